"""Gated linear attention: the delta rule over recurrent state, and the causal convolution before it.

A step is a chunk of one row: both run the same kernel, so a chunked prompt leaves the same bits as single steps.
State is fp32 and lives by slot. The rows of a call are grouped by sequence: ``starts[n]`` to ``starts[n + 1]``.

R rows, N sequences, Hk and Hv key and value heads, Dk and Dv their sizes, C channels, e bytes of an element.
"""

from __future__ import annotations

from functools import cache

from numba import cuda, float32, int64

from .lanes import kernel, load4_f32, scratch_size, store4_f32, sum_lanes_each
from .rows import silu
from .storage import VECTOR, Storage, movers

COLUMNS = 4
"""Columns of the state that a thread holds: one 128-bit load."""


def delta_lanes(key_dim: int, value_dim: int) -> tuple[int, int]:
    """Threads that share a column (a power of two) and column groups of a block.

    Raises ValueError for a value head that is no multiple of 4.
    """
    if value_dim % COLUMNS:
        raise ValueError(f"value head size {value_dim} is not supported: use a multiple of {COLUMNS}")
    sharing = next(size for size in (16, 8, 4, 2, 1) if key_dim % size == 0)
    groups = value_dim // COLUMNS
    return sharing, next(size for size in range(min(8, groups), 0, -1) if groups % size == 0)


@cache
def delta_kernel(storage: Storage, key_dim: int, value_dim: int, per_key: int, keep: bool):
    """The delta rule over the rows of each sequence: grid (Dv / columns of a block, Hv, N), block sharing * groups.

    state [slots, ..] fp32, [Hv, Dk, Dv] every ``stride`` elements; slots [N], starts [N + 1] int64;
    q and k [R, Hk, Dk] normalised, value head h uses key head h // per_key; v and out [R, Hv, Dv]; beta and decay
    [R, Hv] fp32; with ``keep`` the states after every row go to between [R, Hv, Dk, Dv] fp32.

    Each row: S' = decay S; S' += k (beta (v - k S'))^T; out = q S'. The state is read and written once a sequence:
    8 N Hv Dk Dv bytes, and 4 R Hv Dk Dv more with ``keep``; 8 R Hv Dk Dv operations.
    """
    load = storage.load
    _, store = movers(storage, 1)
    sharing, groups = delta_lanes(key_dim, value_dim)
    held = key_dim // sharing
    size, scratch_count = held * COLUMNS, scratch_size(sharing * groups, COLUMNS)

    @kernel
    def delta(state, stride, slots, starts, q, k, v, beta, decay, out, between):
        scratch = cuda.shared.array(scratch_count, float32)
        held_state = cuda.local.array(size, float32)
        sums = cuda.local.array(COLUMNS, float32)
        thread = cuda.threadIdx.x
        lane = thread % sharing
        column = (int64(cuda.blockIdx.x) * groups + thread // sharing) * COLUMNS
        head, heads = int64(cuda.blockIdx.y), int64(cuda.gridDim.y)
        sequence = int64(cuda.blockIdx.z)
        home = slots[sequence] * stride + head * key_dim * value_dim + column
        for i in range(held):
            part = load4_f32(state, home + (i * sharing + lane) * value_dim)
            for j in range(COLUMNS):
                held_state[i * COLUMNS + j] = part[j]
        for row in range(starts[sequence], starts[sequence + 1]):
            line = row * heads + head
            key_at = (row * (heads // per_key) + head // per_key) * key_dim + lane
            kept, strength = decay[line], beta[line]
            for j in range(COLUMNS):
                sums[j] = float32(0)
            for i in range(held):
                key = load(k, key_at + i * sharing)
                for j in range(COLUMNS):
                    value = held_state[i * COLUMNS + j] * kept
                    held_state[i * COLUMNS + j] = value
                    sums[j] += value * key
            sum_lanes_each(sums, COLUMNS, sharing, thread, scratch)
            value_at = line * value_dim + column
            a = (load(v, value_at) - sums[0]) * strength
            b = (load(v, value_at + 1) - sums[1]) * strength
            c = (load(v, value_at + 2) - sums[2]) * strength
            d = (load(v, value_at + 3) - sums[3]) * strength
            for j in range(COLUMNS):
                sums[j] = float32(0)
            for i in range(held):
                key, query = load(k, key_at + i * sharing), load(q, key_at + i * sharing)
                at = i * COLUMNS
                held_state[at] += key * a
                held_state[at + 1] += key * b
                held_state[at + 2] += key * c
                held_state[at + 3] += key * d
                for j in range(COLUMNS):
                    sums[j] += held_state[at + j] * query
                if keep:
                    to = (line * key_dim + i * sharing + lane) * value_dim + column
                    piece = (held_state[at], held_state[at + 1], held_state[at + 2], held_state[at + 3])
                    store4_f32(between, to, piece)
            sum_lanes_each(sums, COLUMNS, sharing, thread, scratch)
            if lane == 0:
                for j in range(COLUMNS):
                    store(out, value_at + j, sums, j)
        for i in range(held):
            at = i * COLUMNS
            piece = (held_state[at], held_state[at + 1], held_state[at + 2], held_state[at + 3])
            store4_f32(state, home + (i * sharing + lane) * value_dim, piece)

    return delta


@cache
def conv_kernel(storage: Storage, vector: int, taps: int):
    """Causal depthwise convolution and silu: grid (ceil(C / (vector block)), R).

    x and out [R, C]; state [slots, ..], the newest earlier inputs [taps - 1, C] every ``stride`` elements; owners [R]
    the sequence of each row, slots [N], starts [N + 1]; weights [taps, C]. The state stays: see the tail kernel. Moves
    R C e (taps + 1) bytes at most, of which taps - 1 parts come from cache; 2 taps R C operations.
    """
    load, store = movers(storage, vector)

    @kernel
    def conv(x, state, stride, owners, slots, starts, weights, out, channels):
        total = cuda.local.array(vector, float32)
        value = cuda.local.array(vector, float32)
        weight = cuda.local.array(vector, float32)
        row = int64(cuda.blockIdx.y)
        at = int64(cuda.grid(1)) * vector
        if at >= channels:
            return
        sequence = owners[row]
        home, inside = slots[sequence] * stride, row - starts[sequence]
        for i in range(vector):
            total[i] = float32(0)
        for tap in range(taps):
            back = inside - (taps - 1) + tap
            if back >= 0:
                load(x, (row - (taps - 1) + tap) * channels + at, value, 0)
            else:
                load(state, home + (taps - 1 + back) * channels + at, value, 0)
            load(weights, tap * channels + at, weight, 0)
            for i in range(vector):
                total[i] += value[i] * weight[i]
        for i in range(vector):
            total[i] = silu(total[i])
        store(out, row * channels + at, total, 0)

    return conv


@cache
def tail_kernel(storage: Storage, vector: int, taps: int):
    """The inputs that the next row needs: grid (ceil(C / (vector block)), N).

    Entry n of ``spans`` [N, 4] int64 is (slot it comes from, first row, rows, slot it goes to): the last taps - 1 of
    [state of the slot; those rows of x [R, C]] go to the target, [taps - 1, C] every ``target_stride`` elements. Source
    and target may be the same memory and slot. Moves 2 N (taps - 1) C e bytes.
    """
    load, store = movers(storage, vector)
    size = (taps - 1) * vector

    @kernel
    def tail(x, state, stride, spans, target, target_stride, channels):
        kept = cuda.local.array(size, float32)
        entry = 4 * int64(cuda.blockIdx.y)
        at = int64(cuda.grid(1)) * vector
        if at >= channels:
            return
        home, first, rows = spans[entry] * stride, spans[entry + 1], spans[entry + 2]
        goal = spans[entry + 3] * target_stride
        for j in range(taps - 1):
            back = rows - (taps - 1) + j
            if back >= 0:
                load(x, (first + back) * channels + at, kept, j * vector)
            else:
                load(state, home + (taps - 1 + back) * channels + at, kept, j * vector)
        for j in range(taps - 1):
            store(target, goal + j * channels + at, kept, j * vector)

    return tail


@cache
def window_kernel(storage: Storage, vector: int, taps: int):
    """The convolution over inputs named by index: grid (ceil(C / (vector block)), R).

    source [S, C], window [taps, R] int64 rows of it, weights [taps, C], out [R, C]. Moves R C e (taps + 1) bytes.
    """
    load, store = movers(storage, vector)

    @kernel
    def window_conv(source, window, weights, out, channels):
        total = cuda.local.array(vector, float32)
        value = cuda.local.array(vector, float32)
        weight = cuda.local.array(vector, float32)
        row, rows = int64(cuda.blockIdx.y), int64(cuda.gridDim.y)
        at = int64(cuda.grid(1)) * vector
        if at >= channels:
            return
        for i in range(vector):
            total[i] = float32(0)
        for tap in range(taps):
            load(source, window[tap * rows + row] * channels + at, value, 0)
            load(weights, tap * channels + at, weight, 0)
            for i in range(vector):
                total[i] += value[i] * weight[i]
        for i in range(vector):
            total[i] = silu(total[i])
        store(out, row * channels + at, total, 0)

    return window_conv


__all__ = ["VECTOR", "conv_kernel", "delta_kernel", "delta_lanes", "tail_kernel", "window_kernel"]
