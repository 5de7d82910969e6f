"""Bandwidth of the kernels beside a copy on the same GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial

import torch
from gpu_clock import Call, Clock

from metrale.device.cuda import backend
from metrale.device.cuda.attention import attention_shape

BLOCK = 16
BF16 = torch.bfloat16
VARIANTS = ((256, 256), (128, 256), (512, 256), (256, 128))
"""(split, threads) of the decode attention; the first is what the backend uses."""
AIMS = {(16, 4096): 0.7, (16, 256): 0.4}
"""Share of the copy's bandwidth that decode attention should reach, by batch and context."""
PICKING = 512
"""Rows of an argmax that should reach 0.8 of the copy; fewer rows are figures without an aim."""

Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """One kernel's time and the bytes that it has to move. ``aim`` is the share of the copy's rate, 0 for none."""

    bytes: int
    seconds: float
    aim: float

    def row(self, copy: float) -> Row:
        """For the report; ``copy`` in bytes a second."""
        rate = self.bytes / self.seconds
        return asdict(self) | {"gigabytes_per_second": rate / 1e9, "share_of_copy": rate / copy}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the measured inputs are. ``room``: bytes that the inputs of one kernel exceed, so that no cache holds
    them; short inputs are made several times and take turns."""

    copy: int
    rows: int
    width: int
    inner: int
    channels: int
    vocabulary: int
    sequences: int
    state: int
    contexts: tuple[tuple[int, int], ...]
    picks: tuple[int, ...]
    room: int
    variants: tuple[tuple[int, int], ...] = VARIANTS

    def sets(self, size: int) -> int:
        """Input sets of ``size`` bytes that together exceed the room."""
        return max(1, min(256, -(-self.room // size)))


CONTEXTS = ((16, 4096), (16, 256), (1, 4096), (64, 1024))
FULL = Sizes(1 << 29, 16384, 4096, 14336, 8192, 151936, 128, 128, CONTEXTS, (PICKING, 64, 1), 1 << 28)
WARM = replace(FULL, copy=1 << 20, rows=32, sequences=2, contexts=((1, 1024), (1, 256)), picks=(1,), room=0)
"""The same kernels on little: what compiles here need not compile while time is measured."""
SMALL = Sizes(256, 4, 64, 64, 16, 40, 1, 8, ((1, 5),), (2,), 0, ((16, 32),))


def copy_rate(clock: Clock, sizes: Sizes) -> float:
    """Bytes a second of a torch copy, reads and writes counted."""
    source = torch.ones(sizes.copy, device=clock.on)
    target = torch.empty_like(source)
    return 8 * sizes.copy / clock.seconds([lambda: target.copy_(source)], together=1)


Maker = Callable[[torch.device, Sizes], Iterator[tuple[str, int, float, list[Call]]]]
"""Names, bytes, aims and calls of some measurements. The calls own their inputs, so what is measured is freed before
the next inputs are made."""


def bandwidths(clock: Clock, sizes: Sizes) -> Iterator[tuple[str, object]]:
    """The copy, and every kernel as a share of it; a kernel that fails does not stop the others."""
    copy = copy_rate(clock, sizes)
    yield "copy", copy / 1e9
    for maker in (_rows, _rotary, _recurrent, _picks, _attention):
        for name, size, aim, calls in maker(clock.on, sizes):
            try:
                yield name, Bandwidth(size, clock.seconds(calls), aim).row(copy)
            except Exception as error:
                yield name, {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
            del calls
    yield "copy at the end", copy_rate(clock, sizes) / 1e9
    yield "timed by", clock.method


def _rows(on: torch.device, sizes: Sizes) -> Iterator[tuple[str, int, float, list[Call]]]:
    rows, width = sizes.rows, sizes.width
    x, weight = torch.randn(rows, width, device=on, dtype=BF16), torch.ones(width, device=on, dtype=BF16)
    size = 2 * x.numel()
    yield "rms norm", 2 * size, 0.85, [partial(backend.rms_norm, x, weight, 1e-6)]
    ids = torch.randperm(rows, device=on)
    yield "embedding gather", 2 * size, 0.0, [partial(backend.embed, x, ids)]
    target = torch.empty_like(x)
    yield "copy of rows, scattered", 2 * size, 0.0, [partial(backend.move_rows, x, None, target, ids, rows)]
    del x, target
    gate, up = (torch.randn(rows // 2, sizes.inner, device=on, dtype=BF16) for _ in range(2))
    yield "swiglu", 6 * gate.numel(), 0.85, [partial(backend.swiglu, gate, up)]


def _rotary(on: torch.device, sizes: Sizes) -> Iterator[tuple[str, int, float, list[Call]]]:
    rows, heads, kv_heads, head = sizes.rows, 32, 8, min(128, sizes.width)
    q = torch.randn(rows, heads, head, device=on, dtype=BF16)
    k, v = (torch.randn(rows, kv_heads, head, device=on, dtype=BF16) for _ in range(2))
    keys, values = (torch.zeros(rows // BLOCK + 1, BLOCK, kv_heads, head, device=on, dtype=BF16) for _ in range(2))
    angles = torch.rand(rows, head // 2, device=on)
    places = torch.arange(rows, device=on)
    # q, k and v in and out; two fp32 tables, and two int64 numbers a row.
    size = rows * (4 * (heads + 2 * kv_heads) * head + 4 * head + 16)
    call = partial(backend.rope_and_write, q, k, v, places, angles.cos(), angles.sin(), places, keys, values)
    yield "rotary and page write", size, 0.85, [call]


def _picks(on: torch.device, sizes: Sizes) -> Iterator[tuple[str, int, float, list[Call]]]:
    for rows in sizes.picks:
        size = rows * sizes.vocabulary * 2
        sets = [torch.randn(rows, sizes.vocabulary, device=on).to(BF16) for _ in range(sizes.sets(size))]
        masks = torch.zeros(rows, 2, dtype=torch.int64, device=on)
        aim = 0.8 if rows >= PICKING else 0.0
        yield f"argmax, {rows} rows", size, aim, [partial(backend.argmax, one) for one in sets]
        masked = [partial(backend.masked_argmax, one, masks) for one in sets]
        yield f"masked argmax, {rows} rows", size, 0.0, masked


def _recurrent(on: torch.device, sizes: Sizes) -> Iterator[tuple[str, int, float, list[Call]]]:
    count, size, heads = sizes.sequences, sizes.state, 32
    state = torch.zeros(count, heads, size, size, device=on)
    q, k = (torch.randn(count, heads // 2, size, device=on, dtype=BF16) * size**-0.5 for _ in range(2))
    v = torch.randn(count, heads, size, device=on, dtype=BF16)
    gates = torch.rand(count, heads, device=on)
    slots, starts = torch.arange(count, device=on), torch.arange(count + 1, device=on)
    call = partial(backend.delta_rows, state, slots, starts, q, k, v, gates, gates)
    yield "delta rule step", 8 * state.numel(), 0.0, [call]
    del state, call
    rows, channels = sizes.rows, sizes.channels
    x, taps = torch.randn(rows, channels, device=on, dtype=BF16), torch.randn(4, channels, device=on, dtype=BF16)
    tails, one = torch.zeros(1, 3, channels, device=on, dtype=BF16), torch.zeros(1, dtype=torch.int64, device=on)
    owners, ends = torch.zeros(rows, dtype=torch.int64, device=on), torch.tensor([0, rows], device=on)
    yield "convolution of a chunk", 4 * x.numel(), 0.0, [partial(backend.conv_rows, x, tails, owners, one, ends, taps)]


def _attention(on: torch.device, sizes: Sizes) -> Iterator[tuple[str, int, float, list[Call]]]:
    """Decode attention, 32 heads over 8 K/V heads of 128, for each (split, threads). The bytes are those of K and V."""
    heads, kv_heads, head = 32, 8, 128 if sizes.width >= 128 else 8
    for batch, context in sizes.contexts:
        size = 4 * batch * context * kv_heads * head
        wide = -(-context // BLOCK)
        sets = [pages(on, batch * wide, kv_heads, head) for _ in range(sizes.sets(size))]
        tables = torch.randperm(batch * wide, device=on).view(batch, wide)
        spans = torch.tensor([[0, context]] * batch, device=on)
        q = torch.randn(batch, heads, head, device=on, dtype=BF16)
        aim = AIMS.get((batch, context), 0.0)
        for split, threads in sizes.variants:
            shape = attention_shape(heads, kv_heads, head, BLOCK, split=split, threads=threads)
            pieces = backend.split_count(shape, 0, context)
            calls = [partial(backend.attend_rows, q, k, v, tables, spans, pieces, head**-0.5, shape) for k, v in sets]
            yield f"decode attention {batch} x {context}, split {split}, {threads} threads", size, aim, calls


def pages(on: torch.device, blocks: int, kv_heads: int, head: int) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V pools with numbers in them."""
    made = [torch.randn(blocks, BLOCK, kv_heads, head, device=on, dtype=BF16) for _ in range(2)]
    return made[0], made[1]
