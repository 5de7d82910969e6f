"""Greedy picks: the lowest index of the maximum, and the masked pick of the token feed.

NaN never wins; a row with nothing above -1e30 answers 0. A row's vocabulary is cut into ``parts``; within and across
them ties are settled by index, so the answer is the same in every run and for any number of parts.

R rows, V vocabulary, e bytes of an element.
"""

from __future__ import annotations

import math
from functools import cache

from numba import cuda, float32, int32, int64

from .lanes import SIMULATED, WARP, device, kernel, pair_from_lane, scratch_size
from .storage import VECTOR, Storage, movers

THREADS = 32 if SIMULATED else 256
MOST_PARTS = 4 if SIMULATED else 128
LEAST = 64 if SIMULATED else THREADS * VECTOR
"""Elements of a part that is worth a block of its own: one load of each thread."""
RESIDENT = 6
"""Blocks that a multiprocessor has room for, with 40 registers a thread."""
BLOCKS = 132 * RESIDENT
"""Blocks that keep the memory of a GPU of 132 multiprocessors busy, all in one wave."""
FLIGHT = 4
"""Vectors that a thread asks for before it looks at the first."""
NEVER = float32(-1e30)
LOWEST = float32(-math.inf)
NO_ID = 0xFFFFFFFF


def pick_parts(count: int, vocabulary: int) -> int:
    """Blocks that share each of ``count`` rows."""
    return max(1, min(MOST_PARTS, BLOCKS // max(count, 1), -(-vocabulary // LEAST)))


@device
def _first(value, index, other_value, other_index):
    """The greater value; of equal ones the lower index."""
    if other_value > value or (other_value == value and other_index < index):
        return other_value, other_index
    return value, index


@device
def _last(value, index, other_value, other_index):
    """The greater value; of equal ones the higher index."""
    if other_value > value or (other_value == value and other_index > index):
        return other_value, other_index
    return value, index


@cache
def _block_pick(threads: int, first: bool, again: bool = False):
    """A block's pick: butterflies in the warps, then over the warps in shared memory. Thread 0 has it.

    With ``again`` the pool is one that an earlier pick of the block has used."""
    better = _first if first else _last
    warps = -(-threads // WARP)

    @device
    def block_pick(value, index, thread, floats, numbers, pool_values, pool_numbers):
        step = WARP // 2
        while step > 0:
            other_value, other_index = pair_from_lane(value, index, step, thread, floats, numbers)
            value, index = better(value, index, other_value, other_index)
            step //= 2
        if warps > 1:
            if again:
                cuda.syncthreads()
            if thread % WARP == 0:
                pool_values[thread // WARP] = value
                pool_numbers[thread // WARP] = index
            cuda.syncthreads()
            if thread == 0:
                for i in range(1, warps):
                    value, index = better(value, index, pool_values[i], pool_numbers[i])
        return value, index

    return block_pick


@cache
def pick_kernel(storage: Storage, vector: int, masked: bool, alone: bool):
    """The pick of one part of one row: grid (parts, R), block :data:`THREADS`.

    logits [R, V]; masks [R, 2] int64 with ``masked``; values fp32 and ids int64 [R, parts, 2]: the plain pick, and the
    last maximum without the two masked ids. A part has ``length`` elements, whole vectors. With ``alone`` there is one
    part, and the pick goes where the choose kernel puts it. Moves R V e bytes, 2 R V comparisons.

    The second pick can matter only if a masked id is the row's pick, so only where no value of a part exceeds theirs;
    a part that sees a greater one leaves it out. Else the part is read again.
    """
    load, _ = movers(storage, vector)
    load_one = storage.load
    threads, stride, size = THREADS, THREADS * vector, FLIGHT * vector
    first_pick, last_pick = _block_pick(threads, True), _block_pick(threads, False, again=True)
    scratch_count, warps = scratch_size(threads), -(-threads // WARP)

    @device
    def greatest(part, first, at, best, found):
        """``best`` at index ``found``, or the first greater one of a vector that begins at index ``at``."""
        for i in range(vector):
            if part[first + i] > best:
                best, found = part[first + i], int32(at + i)
        return best, found

    @device
    def value_of(logits, line, vocabulary, id):
        """The logit of an id, at least -1e30."""
        if 0 <= id < vocabulary:
            value = load_one(logits, line + id)
            if value > NEVER:
                return value
        return NEVER

    @kernel(launch_bounds=threads)
    def pick(logits, vocabulary, length, masks, values, ids, out, cells):
        floats = cuda.shared.array(scratch_count, float32)
        numbers = cuda.shared.array(scratch_count, int64)
        pool_values = cuda.shared.array(warps, float32)
        pool_numbers = cuda.shared.array(warps, int64)
        part = cuda.local.array(size, float32)
        thread = cuda.threadIdx.x
        row, piece, pieces = int64(cuda.blockIdx.y), int64(cuda.blockIdx.x), int64(cuda.gridDim.x)
        line = row * vocabulary
        end = min(piece * length + length, vocabulary)
        start = piece * length + thread * vector
        best, found = NEVER, int32(0)
        at = start
        while at + (FLIGHT - 1) * stride < end:
            # Written out: a loop over them may stay a loop, and the array then lies in memory.
            load(logits, line + at, part, 0)
            load(logits, line + at + stride, part, vector)
            load(logits, line + at + 2 * stride, part, 2 * vector)
            load(logits, line + at + 3 * stride, part, 3 * vector)
            best, found = greatest(part, 0, at, best, found)
            best, found = greatest(part, vector, at + stride, best, found)
            best, found = greatest(part, 2 * vector, at + 2 * stride, best, found)
            best, found = greatest(part, 3 * vector, at + 3 * stride, best, found)
            at += FLIGHT * stride
        while at < end:
            load(logits, line + at, part, 0)
            best, found = greatest(part, 0, at, best, found)
            at += stride
        best, index = first_pick(best, int64(found), thread, floats, numbers, pool_values, pool_numbers)
        left, left_index = LOWEST, int64(-1)
        if masked:
            hidden, hidden_too = masks[2 * row], masks[2 * row + 1]
            most = max(value_of(logits, line, vocabulary, hidden), value_of(logits, line, vocabulary, hidden_too))
            if thread == 0:
                pool_values[0] = best
            cuda.syncthreads()
            if pool_values[0] <= most:
                for at in range(start, end, stride):
                    load(logits, line + at, part, 0)
                    for i in range(vector):
                        shown = part[i] if part[i] > LOWEST else NEVER
                        if at + i == hidden or at + i == hidden_too:
                            shown = LOWEST
                        if shown >= left:
                            left, left_index = shown, int64(at + i)
                left, left_index = last_pick(left, left_index, thread, floats, numbers, pool_values, pool_numbers)
        if thread == 0:
            if alone:
                if masked:
                    if index in (hidden, hidden_too):
                        index = left_index
                    cells[row] = index
                out[row] = index
            else:
                to = 2 * (row * pieces + piece)
                values[to] = best
                ids[to] = index
                values[to + 1] = left
                ids[to + 1] = left_index

    return pick


@cache
def choose_kernel(masked: bool):
    """Over the parts of a row: grid R, one warp. The pick goes to out[row] and, with ``masked``, to cells[row].

    values and ids as the pick kernel leaves them, masks [R, 2], out and cells [R] int64. Moves 24 R parts bytes.
    """
    first_pick, last_pick = _block_pick(WARP, True), _block_pick(WARP, False)
    scratch_count = scratch_size(WARP)

    @kernel
    def choose(values, ids, parts, masks, out, cells):
        floats = cuda.shared.array(scratch_count, float32)
        numbers = cuda.shared.array(scratch_count, int64)
        thread = cuda.threadIdx.x
        row = int64(cuda.blockIdx.x)
        best, index = NEVER, int64(0)
        left, left_index = LOWEST, int64(-1)
        for piece in range(thread, parts, WARP):
            at = 2 * (row * parts + piece)
            if values[at] > best:
                best, index = values[at], ids[at]
            if masked and values[at + 1] >= left:
                left, left_index = values[at + 1], ids[at + 1]
        best, index = first_pick(best, index, thread, floats, numbers, floats, numbers)
        if masked:
            left, left_index = last_pick(left, left_index, thread, floats, numbers, floats, numbers)
        if thread == 0:
            if masked:
                if index == masks[2 * row] or index == masks[2 * row + 1]:
                    index = left_index
                cells[row] = index
            out[row] = index

    return choose
