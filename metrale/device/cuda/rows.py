"""Kernels on rows: norms, activations, gates of the delta rule, and rows moved by index.

R rows, W width, e bytes of an element. All are bound by memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from numba import cuda, float32, int32, int64

from .lanes import SIMULATED, WARP, device, kernel, load4_f32, scratch_size, store4_f32, sum_lanes
from .storage import VECTOR, Storage, movers, vector_of

if SIMULATED:

    def reciprocal(x):
        """1 / x."""
        return ONE / x

else:
    from .intrinsics import reciprocal

BLOCK = 32 if SIMULATED else 128
"""Threads of a block where the work does not say otherwise."""
WIDEST = 32 if SIMULATED else 1024
"""Most threads that share a row."""
WIDE = 128
"""Vectors of a row beyond which a thread holds two."""
ONE = float32(1)
ZERO = float32(0)


@dataclass(frozen=True, slots=True)
class RowShape:
    """How rows of ``width`` are spread: ``vector`` elements at once, ``sharing`` threads a row, ``rows`` a block."""

    width: int
    vector: int
    sharing: int
    rows: int

    @property
    def held(self) -> int:
        """Vectors that one thread holds."""
        return -(-self.width // (self.vector * self.sharing))

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.sharing * self.rows


def row_shape(width: int, widest: int = WIDEST, block: int = BLOCK) -> RowShape:
    """Threads a row, at most ``widest``: one for each of up to :data:`WIDE` vectors, a power of two; for more vectors
    whole warps whose threads hold two each."""
    vector = vector_of(width)
    vectors = width // vector
    sharing = 1 << (vectors - 1).bit_length() if vectors <= WIDE else -(-vectors // (2 * WARP)) * WARP
    sharing = min(widest, sharing)
    return RowShape(width, vector, sharing, max(1, block // sharing))


@cache
def norm_kernel(storage: Storage, shape: RowShape, weighted: bool):
    """RMS norm with a weight, or L2 norm without: grid ceil(R / rows), block ``threads``.

    Row i of x begins at element (i // group) outer + (i % group) inner; out [R, W], weight [W], which is loaded while
    the sum goes round. ``weighted``: x / sqrt(mean(x^2) + eps) weight; else x / sqrt(sum(x^2) + eps).
    Moves 2 R W e bytes, 4 R W operations.
    """
    load, store = movers(storage, shape.vector)
    width, vector, sharing, held, rows = shape.width, shape.vector, shape.sharing, shape.held, shape.rows
    size, lanes = held * vector, min(sharing, WARP)
    scratch_count, warps = scratch_size(shape.threads), -(-shape.threads // WARP)
    warps_a_row = sharing // WARP
    share = float32(1 / width)
    # Larger blocks have no registers for the weight.
    early = weighted and held * shape.threads <= 1024
    step = vector if early else 0
    kept = held * vector if early else vector

    @device
    def row_sum(value, thread, scratch, pool):
        """The sum over the threads of a row."""
        value = sum_lanes(value, lanes, thread, scratch)
        if warps_a_row > 1:
            if thread % WARP == 0:
                pool[thread // WARP] = value
            cuda.syncthreads()
            first = thread // sharing * warps_a_row
            value = ZERO
            for i in range(warps_a_row):
                value += pool[first + i]
        return value

    @kernel(launch_bounds=shape.threads)
    def norm(x, group, outer, inner, weight, eps, out, count):
        scratch = cuda.shared.array(scratch_count, float32)
        pool = cuda.shared.array(warps, float32)
        values = cuda.local.array(size, float32)
        factors = cuda.local.array(kept, float32)
        thread = cuda.threadIdx.x
        lane = thread % sharing
        row = int64(cuda.blockIdx.x) * rows + thread // sharing
        place = row * outer
        if group > 1:
            block = int32(row) // int32(group)
            place = block * outer + (row - block * group) * inner
        total = ZERO
        for i in range(held):
            at = (i * sharing + lane) * vector
            if at < width and row < count:
                load(x, place + at, values, i * vector)
                if early:
                    load(weight, at, factors, i * step)
        for i in range(held):
            at = (i * sharing + lane) * vector
            if at < width and row < count:
                for j in range(vector):
                    total += values[i * vector + j] * values[i * vector + j]
        total = row_sum(total, thread, scratch, pool)
        if weighted:
            total = total * share
        factor = float32(ONE / float32(math.sqrt(total + eps)))
        for i in range(held):
            at = (i * sharing + lane) * vector
            if at < width and row < count:
                if weighted and not early:
                    load(weight, at, factors, i * step)
                for j in range(vector):
                    value = values[i * vector + j] * factor
                    if weighted:
                        value = value * factors[i * step + j]
                    values[i * vector + j] = value
                store(out, row * width + at, values, i * vector)

    return norm


@device
def sigmoid(x):
    """1 / (1 + exp(-x)), without a division: exp overflows to infinity, whose reciprocal is 0."""
    return reciprocal(ONE + float32(math.exp(-x)))


@device
def silu(x):
    """x sigmoid(x)."""
    return x * reciprocal(ONE + float32(math.exp(-x)))


@cache
def unary_kernel(storage: Storage, vector: int, function: str):
    """``sigmoid`` or ``silu``: grid (ceil(W / (2 vector block)), R). Moves 2 R W e bytes, 4 R W operations.

    Rows of x begin every ``stride`` elements; out [R, W]. A thread asks for two vectors at once.
    """
    load, store = movers(storage, vector)
    size = 2 * vector
    operation = {"sigmoid": sigmoid, "silu": silu}[function]

    @kernel
    def unary(x, stride, out, width):
        values = cuda.local.array(size, float32)
        row = int64(cuda.blockIdx.y)
        at = (int64(cuda.blockIdx.x) * (2 * BLOCK) + cuda.threadIdx.x) * vector
        then = at + BLOCK * vector
        if at < width:
            load(x, row * stride + at, values, 0)
        if then < width:
            load(x, row * stride + then, values, vector)
        if at < width:
            for i in range(vector):
                values[i] = operation(values[i])
            store(out, row * width + at, values, 0)
        if then < width:
            for i in range(vector):
                values[vector + i] = operation(values[vector + i])
            store(out, row * width + then, values, vector)

    return unary


@cache
def swiglu_kernel(storage: Storage, vector: int):
    """silu(gate) up: grid (ceil(W / (2 vector block)), R). Moves 3 R W e bytes, 5 R W operations.

    Rows of gate and up begin every ``gate_stride`` and ``up_stride`` elements; out [R, W].
    """
    load, store = movers(storage, vector)
    size = 2 * vector

    @kernel
    def swiglu(gate, gate_stride, up, up_stride, out, width):
        gates = cuda.local.array(size, float32)
        ups = cuda.local.array(size, float32)
        row = int64(cuda.blockIdx.y)
        at = (int64(cuda.blockIdx.x) * (2 * BLOCK) + cuda.threadIdx.x) * vector
        then = at + BLOCK * vector
        if at < width:
            load(gate, row * gate_stride + at, gates, 0)
            load(up, row * up_stride + at, ups, 0)
        if then < width:
            load(gate, row * gate_stride + then, gates, vector)
            load(up, row * up_stride + then, ups, vector)
        if at < width:
            for i in range(vector):
                gates[i] = silu(gates[i]) * ups[i]
            store(out, row * width + at, gates, 0)
        if then < width:
            for i in range(vector):
                gates[vector + i] = silu(gates[vector + i]) * ups[vector + i]
            store(out, row * width + then, gates, vector)

    return swiglu


@cache
def gates_kernel(storage: Storage):
    """Gates of the delta rule, one thread a row and head: grid ceil(R Hv / block).

    b and a [R, Hv]; decay and dt_bias [Hv] fp32; beta = sigmoid(b), keep = exp(-decay softplus(a + dt_bias)), [R, Hv]
    fp32. Moves R Hv (2 e + 8) bytes, 12 R Hv operations.
    """
    load = storage.load

    @kernel
    def gates(b, a, decay, dt_bias, heads, beta, keep, count):
        at = int64(cuda.grid(1))
        if at < count:
            head = at % heads
            beta[at] = sigmoid(load(b, at))
            x = load(a, at) + dt_bias[head]
            rate = x
            if x <= float32(20):
                rate = float32(math.log1p(float32(math.exp(x))))
            keep[at] = float32(math.exp(-decay[head] * rate))

    return gates


@cache
def move_kernel(vector: int, gather: bool, scatter: bool):
    """Copy rows by index: grid (ceil(W / (vector block)), R). Moves 2 R W e bytes.

    Rows are counted in elements of 4 bytes when ``vector`` is 4 (128 bits at once, W a multiple of 4), else in whatever
    elements the arrays have. Row i comes from ``sources[i]`` with ``gather``, goes to ``targets[i]`` with ``scatter``.
    """

    @kernel
    def move(source, sources, target, targets, width):
        row = int64(cuda.blockIdx.y)
        at = int64(cuda.grid(1)) * vector
        if at < width:
            come, go = row, row
            if gather:
                come = sources[row]
            if scatter:
                go = targets[row]
            if vector == 4:
                store4_f32(target, go * width + at, load4_f32(source, come * width + at))
            else:
                target[go * width + at] = source[come * width + at]

    return move


@cache
def feed_kernel():
    """Input ids from feed cells: grid ceil(R / block). ids[i] = cells[sources[i]] where fed[i], else sources[i].

    sources, cells, ids int64, fed uint8. Moves 25 R bytes.
    """

    @kernel
    def feed(sources, fed, cells, ids, count):
        at = int64(cuda.grid(1))
        if at < count:
            ids[at] = cells[sources[at]] if fed[at] else sources[at]

    return feed


__all__ = [
    "BLOCK",
    "VECTOR",
    "RowShape",
    "feed_kernel",
    "gates_kernel",
    "move_kernel",
    "norm_kernel",
    "row_shape",
    "silu",
    "swiglu_kernel",
    "unary_kernel",
]
