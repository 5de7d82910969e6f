"""Measurements for tools/gpu_check.py: bandwidth of the kernels beside a copy, and decode steps beside plain torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial

import torch
import torch.nn.functional as F

from metrale.device.cuda import backend
from metrale.device.cuda.attention import attention_shape

BLOCK = 16
BF16 = torch.bfloat16
Call = Callable[[], object]


class Clock:
    """Seconds of a call: CUDA events around a replayed graph on a GPU, wall time in a rehearsal."""

    def __init__(self, on: torch.device) -> None:
        self.on, self.graphed = on, on.type == "cuda"
        self.reason = "" if self.graphed else "rehearsal on the CPU"

    def seconds(self, calls: list[Call], repeats: int = 20) -> float:
        """Of one call, each in its turn, so that inputs larger than the cache can take turns."""
        if self.on.type != "cuda":
            started = time.perf_counter()
            for call in calls:
                call()
            return (time.perf_counter() - started) / len(calls)
        for call in calls:
            call()
        torch.cuda.synchronize()
        play = self._captured(calls) if self.graphed else None
        play = play or (lambda: [call() for call in calls])
        play()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        times = []
        for _ in range(3):
            begin.record()
            for _ in range(repeats):
                play()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        return min(times) / 1000 / repeats / len(calls)

    def _captured(self, calls: list[Call]) -> Call | None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                for call in calls:
                    call()
        except Exception as error:
            self.graphed, self.reason = False, f"{type(error).__name__}: {error}".splitlines()[0]
            torch.cuda.synchronize()
            return None
        return graph.replay


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """One kernel's bytes a second. ``aim`` is the share of the copy's that we want, 0 for none."""

    kernel: str
    bytes: int
    seconds: float
    aim: float

    def row(self, copy: float) -> dict[str, object]:
        """For the report."""
        rate = self.bytes / self.seconds
        return asdict(self) | {"gigabytes_per_second": rate / 1e9, "share_of_copy": rate / copy}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the measured inputs are: no fewer than the caches hold on a GPU, next to nothing in a rehearsal."""

    copy: int
    rows: int
    width: int
    inner: int
    vocabulary: int
    sequences: int
    state: int
    contexts: tuple[tuple[int, int], ...]
    picks: tuple[int, ...]
    room: int

    def sets(self, size: int) -> int:
        """Input sets that together exceed the cache."""
        return max(1, min(16, -(-self.room // size)))


CONTEXTS = ((16, 4096), (16, 256), (1, 4096), (64, 1024))
FULL = Sizes(1 << 29, 8192, 4096, 14336, 151936, 128, 128, CONTEXTS, (64, 1), 1 << 28)
SMALL = Sizes(256, 4, 64, 64, 40, 1, 8, ((1, 5),), (2,), 0)


def copy_rate(clock: Clock, sizes: Sizes) -> float:
    """Bytes a second of a torch copy, reads and writes counted."""
    source = torch.ones(sizes.copy, device=clock.on)
    target = torch.empty_like(source)
    return 8 * sizes.copy / clock.seconds([lambda: target.copy_(source)])


def kernel_rates(clock: Clock, sizes: Sizes) -> Iterator[Bandwidth]:
    """Every memory-bound kernel in bf16, at sizes beyond the caches."""
    on, rows, width = clock.on, sizes.rows, sizes.width
    x, weight = torch.randn(rows, width, device=on, dtype=BF16), torch.ones(width, device=on, dtype=BF16)
    yield _rate("rms norm", 4 * rows * width, 0.85, clock, lambda: backend.rms_norm(x, weight, 1e-6))
    gate = torch.randn(rows, sizes.inner, device=on, dtype=BF16)
    yield _rate("swiglu", 6 * gate.numel(), 0.85, clock, lambda: backend.swiglu(gate, gate))
    ids = torch.randint(rows, (rows,), device=on)
    yield _rate("embedding gather", 4 * rows * width, 0.0, clock, lambda: backend.embed(x, ids))
    yield from _rotary_rate(clock, sizes)
    yield from _argmax_rates(clock, sizes)
    yield from _recurrent_rates(clock, sizes)


def _rate(name: str, size: int, aim: float, clock: Clock, *calls: Call) -> Bandwidth:
    return Bandwidth(name, size, clock.seconds(list(calls)), aim)


def _rotary_rate(clock: Clock, sizes: Sizes) -> Iterator[Bandwidth]:
    on, rows, heads, kv_heads, head = clock.on, sizes.rows, 32, 8, min(128, sizes.width)
    q = torch.randn(rows, heads, head, device=on, dtype=BF16)
    k, v = (torch.randn(rows, kv_heads, head, device=on, dtype=BF16) for _ in range(2))
    keys, values = (torch.zeros(rows // BLOCK + 1, BLOCK, kv_heads, head, device=on, dtype=BF16) for _ in range(2))
    angles = torch.rand(rows, head // 2, device=on)
    places = torch.arange(rows, device=on)
    size = 4 * rows * (heads + 2 * kv_heads) * head
    cos, sin = angles.cos(), angles.sin()
    yield _rate(
        "rotary and page write",
        size,
        0.85,
        clock,
        lambda: backend.rope_and_write(q, k, v, places, cos, sin, places, keys, values),
    )


def _argmax_rates(clock: Clock, sizes: Sizes) -> Iterator[Bandwidth]:
    for rows in sizes.picks:
        size = rows * sizes.vocabulary * 2
        sets = [torch.randn(rows, sizes.vocabulary, device=clock.on).to(BF16) for _ in range(sizes.sets(size))]
        masks = torch.zeros(rows, 2, dtype=torch.int64, device=clock.on)
        plain = [partial(backend.argmax, logits) for logits in sets]
        yield _rate(f"argmax, {rows} rows", size, 0.8 if rows > 1 else 0.0, clock, *plain)
        masked = [partial(backend.masked_argmax, logits, masks) for logits in sets]
        yield _rate(f"masked argmax, {rows} rows", size, 0.0, clock, *masked)


def _recurrent_rates(clock: Clock, sizes: Sizes) -> Iterator[Bandwidth]:
    on, count, size, heads = clock.on, sizes.sequences, sizes.state, 32
    state = torch.zeros(count, heads, size, size, device=on)
    q, k = (torch.randn(count, heads // 2, size, device=on, dtype=BF16) for _ in range(2))
    v = torch.randn(count, heads, size, device=on, dtype=BF16)
    gates = torch.rand(count, heads, device=on)
    slots, starts = torch.arange(count, device=on), torch.arange(count + 1, device=on)
    call = partial(backend.delta_rows, state, slots, starts, q, k, v, gates, gates)
    yield _rate("delta rule step", 8 * state.numel(), 0.0, clock, call)
    rows, channels = sizes.rows, sizes.inner
    x, taps = torch.randn(rows, channels, device=on, dtype=BF16), torch.randn(4, channels, device=on, dtype=BF16)
    tails, one = torch.zeros(1, 3, channels, device=on, dtype=BF16), torch.zeros(1, dtype=torch.int64, device=on)
    owners, ends = torch.zeros(rows, dtype=torch.int64, device=on), torch.tensor([0, rows], device=on)
    yield _rate(
        "convolution of a chunk",
        4 * x.numel(),
        0.0,
        clock,
        lambda: backend.conv_rows(x, tails, owners, one, ends, taps),
    )


def attention_rates(clock: Clock, sizes: Sizes, variants: list[tuple[int, int]]) -> Iterator[Bandwidth]:
    """Decode attention, 32 heads over 8 K/V heads of 128, for each (split, threads)."""
    heads, kv_heads, head = 32, 8, 128 if sizes.room else 8
    for batch, context in sizes.contexts:
        size = 4 * batch * context * kv_heads * head
        wide = -(-context // BLOCK)
        sets = [_pages(clock.on, batch * wide, kv_heads, head) for _ in range(sizes.sets(size))]
        tables = torch.randperm(batch * wide, device=clock.on).view(batch, wide)
        spans = torch.tensor([[0, context]] * batch, device=clock.on)
        q = torch.randn(batch, heads, head, device=clock.on, dtype=BF16)
        aim = {(16, 4096): 0.7, (16, 256): 0.4}.get((batch, context), 0.0)
        for split, threads in variants:
            shape = attention_shape(heads, kv_heads, head, BLOCK, split=split, threads=threads)
            pieces = backend.split_count(shape, 0, context)
            calls = [partial(backend.attend_rows, q, k, v, tables, spans, pieces, head**-0.5, shape) for k, v in sets]
            name = f"decode attention, batch {batch}, context {context}, split {split}, {threads} threads"
            yield _rate(name, size, aim, clock, *calls)


def _pages(on: torch.device, blocks: int, kv_heads: int, head: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = [torch.randn(blocks, BLOCK, kv_heads, head, device=on, dtype=BF16) for _ in range(2)]
    return made[0], made[1]


# -- decode steps


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder of the llama family with random weights."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    inner: int
    vocabulary: int


MODEL = Model(16, 2048, 32, 8, 64, 8192, 128256)
TOY = Model(1, 32, 4, 2, 8, 32, 64)


class DecodeStep:
    """One decode step of a batch, all rows at the same context; ids go from one step to the next on the device.

    Both paths use the same weights and torch's matrix products. ``kernels``: ours, K/V in pages. ``plain``: torch's
    norms, attention and activations, K/V contiguous."""

    def __init__(self, model: Model, batch: int, context: int, on: torch.device) -> None:
        self.model, self.batch, self.context = model, batch, context
        m, self.on = model, on
        wide = -(-context // BLOCK)
        self.layers = []
        for _ in range(m.layers):
            sizes = [m.heads * m.head, m.kv_heads * m.head, m.kv_heads * m.head, m.inner, m.inner]
            shapes = [(size, m.hidden) for size in sizes] + [(m.hidden, m.heads * m.head), (m.hidden, m.inner)]
            weights = [torch.randn(shape, device=on, dtype=BF16) * shape[1] ** -0.5 for shape in shapes]
            self.layers.append((weights, _pages(on, batch * wide, m.kv_heads, m.head)))
        self.norm = torch.ones(m.hidden, device=on, dtype=BF16)
        self.embedding = torch.randn(m.vocabulary, m.hidden, device=on, dtype=BF16) * m.hidden**-0.5
        self.tables = torch.arange(batch * wide, device=on).view(batch, wide)
        self.spans = torch.tensor([[0, context]] * batch, device=on)
        self.positions = torch.full((batch,), context - 1, device=on)
        self.where = self.tables[:, -1] * BLOCK + (context - 1) % BLOCK
        angles = torch.arange(context, device=on)[:, None] * 10000.0 ** -torch.linspace(0, 1, m.head // 2, device=on)
        self.cos, self.sin = angles.cos(), angles.sin()
        self.ids = torch.arange(batch, device=on) % m.vocabulary
        self.shape = attention_shape(m.heads, m.kv_heads, m.head, BLOCK)
        self.pieces = backend.split_count(self.shape, 0, context)

    def _heads(self, x: torch.Tensor, *weights: torch.Tensor) -> list[torch.Tensor]:
        return [F.linear(x, weight).view(self.batch, -1, self.model.head) for weight in weights]

    def kernels(self) -> torch.Tensor:
        """A step with our kernels."""
        x = backend.embed(self.embedding, self.ids)
        for (wq, wk, wv, gate, up, out, down), (keys, values) in self.layers:
            q, k, v = self._heads(backend.rms_norm(x, self.norm, 1e-6), wq, wk, wv)
            q = backend.rope_and_write(q, k, v, self.positions, self.cos, self.sin, self.where, keys, values)
            scale = self.model.head**-0.5
            mixed = backend.attend_rows(q, keys, values, self.tables, self.spans, self.pieces, scale, self.shape)
            x = x + F.linear(mixed.view(self.batch, -1), out)
            y = backend.rms_norm(x, self.norm, 1e-6)
            x = x + F.linear(backend.swiglu(F.linear(y, gate), F.linear(y, up)), down)
        self.ids.copy_(backend.argmax(F.linear(backend.rms_norm(x, self.norm, 1e-6), self.embedding)))
        return self.ids

    def plain(self) -> torch.Tensor:
        """A step in plain torch."""
        m = self.model
        x = self.embedding[self.ids]
        cos, sin = self.cos[self.positions][:, None].to(BF16), self.sin[self.positions][:, None].to(BF16)
        for (wq, wk, wv, gate, up, out, down), (keys, values) in self.layers:
            q, k, v = self._heads(F.rms_norm(x, (m.hidden,), self.norm, 1e-6), wq, wk, wv)
            q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
            lines = [pool.view(self.batch, -1, m.kv_heads, m.head)[:, : self.context] for pool in (keys, values)]
            lines[0][:, -1], lines[1][:, -1] = k, v
            mixed = F.scaled_dot_product_attention(
                q[:, :, None], lines[0].transpose(1, 2), lines[1].transpose(1, 2), enable_gqa=True
            )
            x = x + F.linear(mixed.reshape(self.batch, -1), out)
            y = F.rms_norm(x, (m.hidden,), self.norm, 1e-6)
            x = x + F.linear(F.silu(F.linear(y, gate)) * F.linear(y, up), down)
        self.ids.copy_(F.linear(F.rms_norm(x, (m.hidden,), self.norm, 1e-6), self.embedding).argmax(-1))
        return self.ids


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def step_rates(clock: Clock, full: bool) -> Iterator[dict[str, object]]:
    """Steps a second of both paths, launched one by one and as a graph."""
    model = MODEL if full else TOY
    for batch, context in ((1, 1024), (16, 1024), (64, 1024)) if full else ((2, 9),):
        step = DecodeStep(model, batch, context, clock.on)
        first = step.ids.clone()
        picks = step.kernels().clone()
        step.ids.copy_(first)
        row: dict[str, object] = {"batch": batch, "context": context}
        row["same_picks"] = float((step.plain() == picks).float().mean())
        for name, path in (("kernels", step.kernels), ("torch", step.plain)):
            eager = Clock(clock.on)
            eager.graphed = False
            row[f"{name}_steps_per_second"] = 1 / eager.seconds([path], repeats=10)
            graph = Clock(clock.on)
            spent = graph.seconds([path], repeats=10)
            row[f"{name}_graph_steps_per_second"] = 1 / spent if graph.graphed else None
            row[f"{name}_graph_reason"] = graph.reason
        yield row
