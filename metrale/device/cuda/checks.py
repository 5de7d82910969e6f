"""Every kernel against its torch reference, for the tests (under the simulator) and for a GPU.

A check draws its inputs from a seed, runs the kernel, runs the reference in fp64 on the CPU from the same rounded
inputs, and answers pairs. fp32 must agree within 1e-5 of the largest value of its row; bf16 within one unit in the last
place of the result, or within that same fp32 bound where a sum all but cancels. What copies or picks must be equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from ..kernels import reference as k
from ..kernels.shapes import Paging
from . import backend, rows
from . import reference as many
from .attention import attention_shape
from .launch import launch, storage_of

Tensor = torch.Tensor
TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class Pair:
    """A kernel's result beside the wanted one; ``exact`` demands equality."""

    label: str
    got: Tensor
    want: Tensor
    exact: bool = False

    def fault(self) -> str | None:
        """What is wrong, in one line, or None."""
        got, want = self.got.detach().cpu(), self.want.detach().cpu()
        if got.shape != want.shape:
            return f"{self.label}: shape {tuple(got.shape)}, wanted {tuple(want.shape)}"
        if self.exact:
            return None if torch.equal(got, want.to(got.dtype)) else f"{self.label}: {_differing(got, want)}"
        excess = error_share(got, want)
        return None if excess <= 1 else f"{self.label}: error is {excess:.3g} times what is allowed"


def _differing(got: Tensor, want: Tensor) -> str:
    places = (got != want.to(got.dtype)).nonzero()
    first = tuple(places[0].tolist())
    return f"{len(places)} of {got.numel()} differ, first at {first}: {got[first].item()} for {want[first].item()}"


def error_share(got: Tensor, want: Tensor) -> float:
    """The greatest error as a share of what is allowed; ``want`` is fp64."""
    if not got.numel():
        return 0.0
    error, want = (got.double() - want).abs(), want.abs()
    allowed = TOLERANCE * want.amax(-1, keepdim=True).expand_as(want)
    if got.dtype == torch.bfloat16:
        allowed = torch.maximum(allowed, torch.ldexp(torch.ones_like(want), torch.frexp(want).exponent - 8))
    if not bool(torch.isfinite(error).all()):
        return float("inf")
    return float((error / allowed.clamp_min(torch.finfo(torch.float64).tiny)).max())


class Inputs:
    """Random inputs of one element type on one device, and what the reference makes of them."""

    def __init__(self, on: torch.device, dtype: torch.dtype, seed: int = 3, tiny: bool = True) -> None:
        self.on, self.dtype, self.tiny = on, dtype, tiny
        self._generator = torch.Generator().manual_seed(seed)

    def draw(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Normal numbers, rounded to the element type."""
        return torch.randn(shape, generator=self._generator).to(self.on, dtype or self.dtype)

    def whole(self, below: int, *shape: int) -> Tensor:
        """Integers in [0, below)."""
        return torch.randint(below, shape, generator=self._generator).to(self.on)

    def order(self, count: int) -> Tensor:
        """A permutation."""
        return torch.randperm(count, generator=self._generator).to(self.on)

    def integers(self, values: list) -> Tensor:
        """int64 values."""
        return torch.tensor(values, dtype=torch.int64, device=self.on)


def exactly(tensor: Tensor) -> Tensor:
    """fp64 on the CPU; integers stay."""
    tensor = tensor.detach().cpu()
    return tensor.double() if tensor.is_floating_point() else tensor


# -- rows


def check_norms(i: Inputs) -> Iterator[Pair]:
    for width in (8, 64, 100, 136) if i.tiny else (8, 64, 100, 128, 256, 2048, 4096, 5120, 16384):
        x, weight = i.draw(3, width), i.draw(width)
        yield Pair(f"rms {width}", backend.rms_norm(x, weight, 1e-6), k.rms_norm(exactly(x), exactly(weight), 1e-6))
        yield Pair(f"l2 {width}", backend.l2_norm(x), k.l2_norm(exactly(x)))
    x, weight, out = i.draw(1, 512), i.draw(512), torch.empty((1, 512), dtype=i.dtype, device=i.on)
    shape = rows.row_shape(512, widest=64)
    kernel = rows.norm_kernel(storage_of(x), shape, True)
    launch(kernel, (1,), shape.threads, x, 1, 512, 512, weight, 1e-6, out, 1)
    yield Pair("rms over two warps", out, k.rms_norm(exactly(x), exactly(weight), 1e-6))


def check_activations(i: Inputs) -> Iterator[Pair]:
    for count, width in ((1, 1), (3, 7), (2, 40)) if i.tiny else ((1, 1), (3, 7), (2, 40), (16, 14336)):
        x, y = i.draw(count, width) * 4, i.draw(count, width)
        yield Pair(f"swiglu {width}", backend.swiglu(x, y), k.swiglu(exactly(x), exactly(y)))
        yield Pair(f"silu {width}", backend.silu(x), k.silu(exactly(x)))
        yield Pair(f"sigmoid {width}", backend.sigmoid(x), k.sigmoid(exactly(x)))
    for label, row in (("far out", [-700, -200, -89, -88, 30, 100, 700]), ("tiny", [-80, -81, -84])):
        x = torch.tensor([row], dtype=torch.float32).to(i.on, i.dtype)
        yield Pair(f"silu, {label}", backend.silu(x), k.silu(exactly(x)))
        yield Pair(f"sigmoid, {label}", backend.sigmoid(x), k.sigmoid(exactly(x)))


def check_gates(i: Inputs) -> Iterator[Pair]:
    b, a = i.draw(3, 5), i.draw(3, 5) * 12
    decay, bias = i.draw(5, dtype=torch.float32).abs(), i.draw(5, dtype=torch.float32)
    got = backend.delta_gates(b, a, decay, bias)
    want = k.delta_gates(exactly(b), exactly(a), exactly(decay), exactly(bias))
    yield Pair("write strength", got[0], want[0])
    yield Pair("decay", got[1], want[1])


def check_moves(i: Inputs) -> Iterator[Pair]:
    for width in (3, 8, 40) if i.tiny else (3, 8, 40, 4096):
        table, ids = i.draw(9, width), i.integers([8, 0, 3, 3, 1])
        yield Pair(f"embed {width}", backend.embed(table, ids), table[ids], exact=True)
        target, places = i.draw(7, width), i.integers([6, 0, 2])
        want = target.clone()
        want[places] = table[ids[:3]]
        backend.move_rows(table, ids, target, places, 3)
        yield Pair(f"move {width}", target, want, exact=True)
    sources, fed, cells = (
        i.integers([2, 7, 0]),
        torch.tensor([True, False, True], device=i.on),
        i.integers([50, 51, 52]),
    )
    yield Pair("feed", backend.feed_ids(sources, fed, cells), many.feed_ids(sources, fed, cells), exact=True)


def check_rotary(i: Inputs) -> Iterator[Pair]:
    for head, half in ((16, 8), (20, 4), (64, 16)) if i.tiny else ((16, 8), (20, 4), (64, 16), (64, 32), (128, 64)):
        heads, kv_heads, count, size = 4, 2, 3, 4
        cos, sin = i.draw(9, half, dtype=torch.float32), i.draw(9, half, dtype=torch.float32)
        q, key, value = i.draw(count, heads, head), i.draw(count, kv_heads, head), i.draw(count, kv_heads, head)
        keys, values = i.draw(3, size, kv_heads, head), i.draw(3, size, kv_heads, head)
        positions, where = i.integers([8, 0, 3]), i.integers([11, 0, 5])
        got = backend.rope(q, cos[positions], sin[positions])
        yield Pair(f"rotary {head}", got, k.rope(exactly(q), exactly(cos[positions]), exactly(sin[positions])))
        want_keys, want_values = exactly(keys), exactly(values)
        tables = (exactly(positions), exactly(cos), exactly(sin), exactly(where))
        want = many.rope_and_write(exactly(q), exactly(key), exactly(value), *tables, want_keys, want_values)
        got = backend.rope_and_write(q, key, value, positions, cos, sin, where, keys, values)
        yield Pair(f"rotary and write {head}, q", got, want)
        yield Pair(f"rotary and write {head}, k", keys, want_keys)
        yield Pair(f"rotary and write {head}, v", values, want_values, exact=True)
        backend.write_kv(keys, values, value, key, where)
        yield Pair(f"write {head}", keys.view(-1, kv_heads, head)[where], value, exact=True)


def shifted(tensor: Tensor) -> Tensor:
    """The same numbers in a view that begins one element into its memory: at no multiple of 16 bytes."""
    room = tensor.new_empty(tensor.numel() + 1)
    room[1:] = tensor.reshape(-1)
    return room[1:].view(tensor.shape)


def check_views(i: Inputs) -> Iterator[Pair]:
    """Unaligned views give the bits of aligned tensors."""
    x, y, weight = i.draw(3, 40), i.draw(3, 40), i.draw(40)
    far, near = shifted(x), shifted(y)
    yield Pair("swiglu, unaligned", backend.swiglu(far, y), backend.swiglu(x, y), exact=True)
    yield Pair("swiglu, unaligned too", backend.swiglu(x, near), backend.swiglu(x, y), exact=True)
    yield Pair("silu, unaligned", backend.silu(far), backend.silu(x), exact=True)
    norm = backend.rms_norm(x, weight, 1e-6)
    yield Pair("rms, unaligned", backend.rms_norm(far, shifted(weight), 1e-6), norm, exact=True)
    ids, places = i.integers([2, 0]), i.integers([1, 2])
    yield Pair("embed, unaligned", backend.embed(far, ids), x[ids], exact=True)
    backend.move_rows(y, ids, far, places, 2)
    yield Pair("move, unaligned", far, torch.stack([x[0], y[2], y[0]]), exact=True)
    yield Pair("argmax, unaligned", backend.argmax(near), k.argmax(y.cpu()), exact=True)
    wide = i.draw(3, 96)
    parts = wide[:, :40], wide[:, 48:88]
    want = backend.swiglu(*(part.contiguous() for part in parts))
    yield Pair("swiglu, columns", backend.swiglu(*parts), want, exact=True)
    yield Pair("swiglu, unaligned columns", backend.swiglu(parts[0], shifted(wide)[:, 48:88]), want, exact=True)
    yield Pair(
        "swiglu, odd columns",
        backend.swiglu(wide[:, 1:38], wide[:, 48:85])[:, 1:3],
        backend.swiglu(wide[:, 2:4].contiguous(), wide[:, 49:51].contiguous()),
        exact=True,
    )
    for start, label in ((16, "heads"), (15, "odd heads")):
        heads = wide[:, start : start + 64].view(3, 4, 16)[:, :, :8]
        want = backend.rms_norm(heads.contiguous(), weight[:8], 1e-6)
        yield Pair(f"rms, {label}", backend.rms_norm(heads, weight[:8], 1e-6), want, exact=True)
    yield Pair("sigmoid, columns", backend.sigmoid(parts[1]), backend.sigmoid(parts[1].contiguous()), exact=True)
    yield from _rotary_views(i)
    yield from _recurrent_views(i)


def _rotary_views(i: Inputs) -> Iterator[Pair]:
    cos, sin = i.draw(9, 8, dtype=torch.float32), i.draw(9, 8, dtype=torch.float32)
    q, key, value, positions, where = i.draw(3, 4, 16), i.draw(3, 2, 16), i.draw(3, 2, 16), [8, 0, 3], [11, 0, 5]
    at, to = i.integers(positions), i.integers(where)
    tables = [shifted(table) for table in (cos, sin)]
    want = backend.rope(q, cos[at], sin[at])
    yield Pair("rotary, unaligned", backend.rope(shifted(q), *(shifted(t[at]) for t in (cos, sin))), want, exact=True)
    pools = [i.draw(3, 4, 2, 16) for _ in range(2)]
    far = [shifted(pool) for pool in pools]
    backend.rope_and_write(q, key, value, at, cos, sin, to, *pools)
    got = backend.rope_and_write(shifted(q), shifted(key), shifted(value), at, *tables, to, *far)
    yield Pair("rotary and write, unaligned, q", got, exactly(want))
    yield Pair("rotary and write, unaligned, k", far[0], exactly(pools[0]))
    yield Pair("rotary and write, unaligned, v", far[1], pools[1], exact=True)
    for label, width in (("columns", 16), ("odd columns", 17)):
        product = torch.cat([x.flatten(1) for x in (q, key, value)], dim=1)
        product = torch.cat([product, i.draw(3, width)], dim=1)
        parts = product.split_with_sizes([64, 32, 32, width], dim=1)
        pair = [torch.zeros_like(pool) for pool in (*pools, *pools)]
        backend.rope_and_write(q, key, value, at, cos, sin, to, *pair[:2])
        got = backend.rope_and_write(*(x.view(3, -1, 16) for x in parts[:3]), at, cos, sin, to, *pair[2:])
        yield Pair(f"rotary and write, {label}, q", got, want, exact=True)
        yield Pair(f"rotary and write, {label}, k", pair[2], pair[0], exact=True)
        yield Pair(f"rotary and write, {label}, v", pair[3], pair[1], exact=True)
        turned = backend.rope(parts[0].view(3, -1, 16), cos[at], sin[at])
        yield Pair(f"rotary, {label}", turned, want, exact=True)
    backend.write_kv(*far, value, key, to)
    yield Pair("write, unaligned", far[0].view(-1, 2, 16)[to], value, exact=True)


def _recurrent_views(i: Inputs) -> Iterator[Pair]:
    x, taps, state = i.draw(5, 16), i.draw(4, 16), i.draw(3, 3, 16)
    owners, slots, starts = i.integers([0, 0, 1, 1, 1]), i.integers([2, 0]), i.integers([0, 2, 5])
    rows_at = (owners, slots, starts)
    want = backend.conv_rows(x, state, *rows_at, taps)
    # Slots of 49 elements: the first begins at a multiple of 16 bytes, the second does not.
    apart = torch.cat([state.view(3, -1), x.new_zeros(3, 1)], dim=1)[:, :48].unflatten(1, (3, 16))
    for label, pool in (("slots", apart), ("pool", shifted(state))):
        got = backend.conv_rows(x, pool, *rows_at, taps)
        yield Pair(f"conv, unaligned {label}", got, want, exact=True)
    yield Pair("conv, unaligned", backend.conv_rows(shifted(x), state, *rows_at, shifted(taps)), want, exact=True)
    window = torch.arange(2, device=i.on)[None] + torch.arange(4, device=i.on)[:, None]
    want = backend.conv(x, window, taps)
    yield Pair("conv by index, unaligned", backend.conv(shifted(x), window, shifted(taps)), want, exact=True)
    spans, kept = i.integers([[2, 0, 2, 2], [0, 2, 3, 0]]), state.clone()
    backend.conv_tails(x, kept, spans, kept)
    backend.conv_tails(x, apart, spans, apart)
    yield Pair("conv tail, unaligned", apart, kept, exact=True)


# -- attention


def paged(i: Inputs, kv_heads: int, head: int, size: int, contexts: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """K and V pools and block tables whose blocks lie in no order; what no row may see is NaN."""
    wide = max(-(-context // size) for context in contexts)
    count = len(contexts) * wide + 1
    keys, values = i.draw(count, size, kv_heads, head), i.draw(count, size, kv_heads, head)
    tables = i.order(count - 1).view(len(contexts), wide)
    for row, context in enumerate(contexts):
        last = tables[row, (context - 1) // size]
        for pool in (keys, values):
            pool[last, (context - 1) % size + 1 :] = float("nan")
            pool[tables[row, (context - 1) // size + 1 :]] = float("nan")
    return keys, values, tables


def check_decode(
    i: Inputs, group: int, head: int, kv_heads: int = 1, alone: bool = True, contexts: list[int] | None = None
) -> Iterator[Pair]:
    """Rows of several lengths, one with a sliding window; with ``alone``, one of them again without the others."""
    contexts = contexts or ([1, 16, 37] if i.tiny else [1, 16, 255, 256, 257, 1000, 4096])
    size, scale = 4 if i.tiny else 16, head**-0.5
    q = i.draw(len(contexts), group * kv_heads, head)
    keys, values, tables = paged(i, kv_heads, head, size, contexts)
    spans = i.integers([[max(0, context - 18) if row == 2 else 0, context] for row, context in enumerate(contexts)])
    shape = attention_shape(group * kv_heads, kv_heads, head, size)
    pieces = max(backend.split_count(shape, *span) for span in spans.tolist())
    got = backend.attend_rows(q, keys, values, tables, spans, pieces, scale)
    clean = [exactly(pool).nan_to_num() for pool in (keys, values)]
    yield Pair("decode", got, many.attend_rows(exactly(q), *clean, exactly(tables), exactly(spans), scale))
    if alone:
        one = backend.attend(q[-1], keys, values, tables[-1], contexts[-1], int(spans[-1, 0]), scale)
        yield Pair("one row alone", one, got[-1], exact=True)


def check_prefill(i: Inputs, group: int, head: int, kv_heads: int = 1, alone: bool = True) -> Iterator[Pair]:
    """Chunks of two sequences, one of which begins inside its context; with ``alone``, every row as a decode too."""
    contexts, lengths = ([3, 19], [3, 4]) if i.tiny else ([70, 1300], [70, 33])
    size, scale = 4 if i.tiny else 16, head**-0.5
    q = i.draw(sum(lengths), group * kv_heads, head)
    keys, values, tables = paged(i, kv_heads, head, size, contexts)
    shape = attention_shape(group * kv_heads, kv_heads, head, size, prefill=True)
    tiles = i.integers(backend.tiles_of(lengths, shape.rows))
    spans = [[0, end - n + at + 1] for end, n in zip(contexts, lengths, strict=True) for at in range(n)]
    pieces = max(backend.split_count(shape, *span) for span in spans)
    places = i.integers(spans)
    got = backend.attend_chunk(q, keys, values, tables, tiles, places, pieces, scale)
    clean = [exactly(pool).nan_to_num() for pool in (keys, values)]
    want = many.attend_chunk(exactly(q), *clean, exactly(tables), exactly(tiles), exactly(places), scale)
    yield Pair("prefill", got, want)
    if not alone:
        return
    owners = i.integers([sequence for sequence, n in enumerate(lengths) for _ in range(n)])
    single = backend.attend_rows(q, keys, values, tables[owners].contiguous(), places, pieces, scale)
    yield Pair("as decodes", got, single, exact=True)


def check_paged(i: Inputs) -> Iterator[Pair]:
    """What an engine asks for: a chunk, a decode row and a verify in one tile with padding, then decode rows alone."""
    size, head, heads, scale = 4, 16, 4, 0.25
    contexts = [6, 9, 3] if i.tiny else [600, 300, 3]
    keys, values, tables = paged(i, 2, head, size, contexts)
    clean = [exactly(pool).nan_to_num() for pool in (keys, values)]
    lines = [tables[n].cpu() for n in range(3)]
    ends = [(0, end) for end in range(contexts[0] - 4, contexts[0] + 1)]
    ends += [(2, contexts[2]), *((1, end) for end in range(contexts[1] - 2, contexts[1] + 1))]
    for picked in (ends, [(n, context) for n, context in enumerate(contexts)]):
        starts = [max(0, end - 5) if n == 1 else 0 for n, end in picked]
        paging = Paging([lines[n] for n, _ in picked], [end for _, end in picked], starts)
        q = i.draw(len(picked) + 2, heads, head)
        got = backend.attend_paged(q, keys, values, paging, scale)
        live = len(picked)
        by_row = zip(lines_of(paging), exactly(q), strict=False)
        want = [k.attend(row, *clean, table, end, first, scale) for (table, end, first), row in by_row]
        yield Pair(f"attention of {live}", got[:live], torch.stack(want))
        yield Pair(f"attention of {live}, padding", got[live:], torch.zeros_like(got[live:]), exact=True)
        again = backend.attend_paged(q, keys, values, paging, scale, room=1)
        yield Pair(f"attention of {live}, in portions", again, got, exact=True)


def lines_of(paging: Paging) -> Iterator[tuple[Tensor, int, int]]:
    """Table, context and first position of every live row."""
    return zip(paging.tables, paging.contexts, paging.starts, strict=True)


# -- linear attention


def check_conv(i: Inputs) -> Iterator[Pair]:
    for channels in (6, 16) if i.tiny else (6, 16, 8192):
        taps, lengths = 4, [1, 5, 2]
        starts = i.integers([0, 1, 6, 8])
        x, weights = i.draw(8, channels), i.draw(taps, channels)
        pool = i.draw(5, 2, taps - 1, channels)
        state, slots = pool[:, 1], i.integers([4, 0, 2])
        owners = i.integers([n for n, length in enumerate(lengths) for _ in range(length)])
        got = backend.conv_rows(x, state, owners, slots, starts, weights)
        want = many.conv_rows(exactly(x), exactly(state), slots.cpu(), starts.cpu(), exactly(weights))
        yield Pair(f"conv {channels}", got, want)
        source = torch.cat([state[0], x[:5]])
        window = torch.arange(5, device=i.on)[None] + torch.arange(taps, device=i.on)[:, None]
        want = k.conv(exactly(source), window.cpu(), exactly(weights))
        yield Pair(f"conv by index {channels}", backend.conv(source, window, weights), want)
        spans = i.integers([[4, 0, 1, 4], [0, 1, 5, 0], [2, 6, 2, 2]])
        untouched, expected = pool[:, 0].clone(), state.clone()
        many.conv_tails(x, expected.clone(), spans, expected)
        backend.conv_tails(x, state, spans, state)
        yield Pair(f"conv tail {channels}", state, expected, exact=True)
        yield Pair(f"conv tail {channels}, neighbours", pool[:, 0], untouched, exact=True)


def check_delta(i: Inputs) -> Iterator[Pair]:
    """A chunk of three sequences, the states between, and the same rows as single steps, bit for bit."""
    shapes = [(8, 8, 2), (6, 12, 1)] if i.tiny else [(8, 8, 2), (6, 12, 1), (64, 64, 1), (128, 128, 2)]
    for key_dim, value_dim, per_key in shapes:
        heads, starts = 2, i.integers([0, 1, 4, 6])
        q, key = (backend.l2_norm(i.draw(6, heads // per_key, key_dim)) for _ in range(2))
        v, beta = i.draw(6, heads, value_dim), i.draw(6, heads, dtype=torch.float32).sigmoid()
        decay = i.draw(6, heads, dtype=torch.float32).sigmoid()
        pool = i.draw(4, 2, heads, key_dim, value_dim, dtype=torch.float32)
        before, slots = pool.clone(), i.integers([3, 0, 1])
        between = torch.empty((6, heads, key_dim, value_dim), device=i.on)
        got = backend.delta_rows(pool[:, 1], slots, starts, q, key, v, beta, decay, between)
        want_state = exactly(before[:, 1])
        inputs = [exactly(part) for part in (q, key, v, beta, decay)]
        want, want_between = many.delta_rows(want_state, slots.cpu(), starts.cpu(), *inputs)
        label = f"delta {key_dim}x{value_dim}"
        yield Pair(label, got, want)
        yield Pair(f"{label}, states", pool[:, 1], want_state)
        yield Pair(f"{label}, states between", between, want_between)
        yield Pair(f"{label}, other layers", pool[:, 0], before[:, 0], exact=True)
        state = before[0, 1]
        for row in range(1, 4):
            wide = [part[row].repeat_interleave(per_key, dim=0) for part in (q, key)]
            state, line = backend.delta_step(state, *wide, v[row], beta[row], decay[row])
            yield Pair(f"{label}, step {row}", line, got[row], exact=True)
        yield Pair(f"{label}, state after steps", state, pool[0, 1], exact=True)


# -- picks


def check_argmax(i: Inputs) -> Iterator[Pair]:
    nan, low = float("nan"), -2e30
    for vocabulary in (1, 7, 264, 1101) if i.tiny else (1, 7, 40, 1100, 32000, 151936):
        logits = i.draw(5, vocabulary)
        logits[1] = nan
        logits[2] = low
        logits[3, vocabulary // 2 :] = logits[3].amax()
        logits[4, ::3] = float("inf")
        logits[4, 0] = nan
        first = backend.argmax(logits)
        yield Pair(f"argmax {vocabulary}", first, k.argmax(logits.cpu()), exact=True)
        for _ in range(0 if i.tiny else 2):
            yield Pair(f"argmax {vocabulary}, again", backend.argmax(logits), first, exact=True)
    for vocabulary in (8200, 6149):
        logits = i.draw(2, vocabulary).round()
        for parts in (1, 3):
            got, want = backend.argmax(logits, parts), k.argmax(logits.cpu())
            yield Pair(f"argmax {vocabulary} in {parts}", got, want, exact=True)


def check_masked(i: Inputs) -> Iterator[Pair]:
    none = k.NO_ID
    for vocabulary in (7, 264) if i.tiny else (7, 1100, 151936):
        logits = i.draw(6, vocabulary)
        logits[1:4] = logits[1:4].round()
        logits[4] = float("nan")
        top = k.argmax(logits.cpu()).tolist()
        second = (top[2] + 1) % vocabulary
        logits[2, second] = logits[2, top[2]]
        masks = [[none, none], [top[1], none], [top[2], second], [none, top[3]], [0, none], [top[5], top[5]]]
        masks[0][1] = (top[0] + 1) % vocabulary
        hidden, cells = i.integers(masks), i.integers([-1] * 8)
        want = k.masked_argmax(logits.cpu(), hidden.cpu())
        got = backend.masked_argmax_to_feed(logits, hidden, cells)
        yield Pair(f"masked argmax {vocabulary}", got, want, exact=True)
        cells_wanted = torch.cat([want, torch.tensor([-1, -1])])
        yield Pair(f"feed cells {vocabulary}", cells, cells_wanted, exact=True)
        for parts in (1, 3):
            got = backend.masked_argmax(logits, hidden, parts)
            yield Pair(f"masked argmax {vocabulary} in {parts}", got, want, exact=True)


Check = Callable[[Inputs], Iterator[Pair]]
ROWS: dict[str, Check] = {
    "norms": check_norms,
    "activations": check_activations,
    "gates": check_gates,
    "moves": check_moves,
    "rotary": check_rotary,
    "paged": check_paged,
    "views": check_views,
}
RECURRENT: dict[str, Check] = {"conv": check_conv, "delta": check_delta}
PICKS: dict[str, Check] = {"argmax": check_argmax, "masked": check_masked}
COMMON = [(1, 64), (1, 128), (4, 64), (4, 128), (8, 64), (8, 128)]
ODD = [(12, 40), (2, 8), (2, 256)]
"""Query heads a K/V head, and head size, of the attention checks."""


def faults(pairs: Iterator[Pair]) -> tuple[list[str], int]:
    """What failed, and how many pairs were compared."""
    found = [pair.fault() for pair in pairs]
    return [fault for fault in found if fault is not None], len(found)
