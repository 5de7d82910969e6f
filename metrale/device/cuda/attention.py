"""Paged attention: decode rows split over the context, and chunks of a prompt, with the same arithmetic.

A block works on up to eight *queries*: heads of one group that share a K/V head, times rows of one sequence when a
chunk is prefilled. The context is cut at multiples of ``split`` positions, counted from position 0. Within a split,
scores go to shared memory, then their softmax, then the weighted sum of V; splits are merged in their order. All that
depends on nothing but the query's position, so a row gives the same bits in a decode of any batch and in any chunk.

Shapes: R rows, H query heads, KV heads, D head size (up to 256, a multiple of 8), L context. K and V pools are
[blocks, block_size, KV, D]; block tables [R or sequences, width] int64.

A decode row moves ``2 KV L D`` elements of K and V, ``2 H D`` of q and out, and with more than one split
``2 H (D + 2) splits`` fp32 of partial results; it computes ``4 H L D`` multiply-adds and ``H L`` exponentials.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from numba import cuda, float32, int32, int64, uint64

from .lanes import (
    SIMULATED,
    WARP,
    device,
    issue_loads,
    kernel,
    max_lanes,
    scattered,
    scatterer,
    scratch_size,
    sum_lanes,
)
from .storage import VECTOR, Storage

QUERIES = 8
"""Most queries of one block."""
RUN = 4
"""Positions that a group of threads takes one after the other, a warp's groups taking turns; a constant, so that the
order of a query's sums does not depend on its neighbours."""
SOFTMAX_LANES = WARP
"""Threads that share one query's softmax; a constant for the same reason."""
SHARED = 48 * 1024
"""Bytes of shared memory that a block may declare."""
NEVER = float32(-math.inf)


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What attention kernels are specialised on. ``heads`` query heads of one K/V head share a block, ``rows`` rows."""

    kv_heads: int
    group: int
    head: int
    block_size: int
    heads: int
    rows: int
    split: int
    threads: int

    @property
    def queries(self) -> int:
        """Queries of one block."""
        return self.heads * self.rows

    @property
    def parts(self) -> int:
        """Blocks that share one K/V head."""
        return self.group // self.heads

    @property
    def lanes(self) -> int:
        """Threads that hold one head, a *group*."""
        return lanes_of(self.head)

    @property
    def groups_a_warp(self) -> int:
        """Positions that a warp works on at once."""
        return WARP // self.lanes

    @property
    def together(self) -> int:
        """Positions whose K or V a thread has in flight at once."""
        return RUN // 2 if self.queries > 4 else RUN

    @property
    def stride(self) -> int:
        """Positions that the block's groups take before a warp goes on to its next run."""
        return self.threads // self.lanes * RUN

    @property
    def room(self) -> int:
        """Positions of a split, filled up to whole strides."""
        return -(-self.split // self.stride) * self.stride

    @property
    def line(self) -> int:
        """Scores from one query to the next. A warp leaves those of all queries at once, for the positions of its
        groups together; so they lie in different banks, for the room is a multiple of 32."""
        return self.room + self.groups_a_warp * self.together

    @property
    def pool(self) -> int:
        """Sums that the warps leave for each other."""
        return self.threads * scattered(self.queries * VECTOR, self.groups_a_warp)[0]

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: homes of positions, scores, the pool of sums, four numbers a query, one spare."""
        return 8 * self.room + 4 * (self.queries * (self.line + 4) + self.pool + 1)


def attention_shape(
    heads: int,
    kv_heads: int,
    head: int,
    block_size: int,
    *,
    prefill: bool = False,
    split: int | None = None,
    threads: int | None = None,
) -> AttentionShape:
    """The specialisation for a model.

    Raises ValueError for a head size that is no multiple of 8 up to 256, and for what no block has room for."""
    if head % VECTOR or not 0 < head <= VECTOR * 32:
        raise ValueError(f"head size {head} is not supported: use a multiple of {VECTOR} up to {VECTOR * 32}")
    group = heads // kv_heads
    shared = max(size for size in range(1, QUERIES + 1) if group % size == 0)
    rows = max(1, QUERIES // shared) if prefill and shared == group else 1
    split = split or (16 if SIMULATED else 256)
    threads = threads or (32 if SIMULATED else 128 if head > 128 else 256)
    shape = AttentionShape(kv_heads, group, head, block_size, shared, rows, split, threads)
    if shape.shared_bytes > SHARED:
        raise ValueError(f"split {split} with {threads} threads needs {shape.shared_bytes} bytes of shared memory")
    return shape


def lanes_of(head: int) -> int:
    """Threads that hold one head: a power of two."""
    return 1 << (-(-head // VECTOR) - 1).bit_length()


@cache
def _parts(storage: Storage, shape: AttentionShape):
    """The device functions of one split, shared by the decode and the prefill kernel."""
    load8 = storage.load8
    kv_heads, head, block_size, line = shape.kv_heads, shape.head, shape.block_size, shape.line
    queries, threads, together = shape.queries, shape.threads, shape.together
    lanes, groups_a_warp, warps, stride = shape.lanes, shape.groups_a_warp, threads // WARP, shape.stride
    whole = lanes * VECTOR == head
    passes = RUN // together
    dots_size, sums_size = together * queries, queries * VECTOR
    kept_dots, sharing_dots = scattered(dots_size, lanes)
    kept_sums, sharing_sums = scattered(sums_size, groups_a_warp)
    # Indices of shared memory are uint64 where it counts: Numba lets a signed one count from the end.
    scatter_dots, scatter_sums = scatterer(dots_size, lanes), scatterer(sums_size, groups_a_warp, lanes)
    softmax_groups = threads // SOFTMAX_LANES
    softmax_turns = -(-queries // softmax_groups)
    softmax_steps = -(-shape.room // SOFTMAX_LANES)
    home_turns = -(-shape.room // threads)

    @device
    def locate(tables, table_at, kv_head, begin, count, padded, homes, thread):
        """First element of each position's K or V to shared memory; past the last position, that of the last."""
        for turn in range(home_turns):
            at = turn * threads + thread
            if at < padded:
                position = begin + min(at, count - 1)
                block = tables[table_at + position // block_size]
                homes[uint64(at)] = ((block * block_size + position % block_size) * kv_heads + kv_head) * head

    @device
    def base_of(step, thread):
        """A thread's first position in a step; the next ones follow ``groups_a_warp`` apart."""
        at = step // passes * stride + thread // WARP * (RUN * groups_a_warp)
        return at + step % passes * (together * groups_a_warp) + thread % WARP // lanes

    @device
    def score(query, keys, homes, steps, low, high, scale, scores, dots, held, thread, scratch):
        """Scores to shared memory; -inf outside a query's own [low, high)."""
        lane = thread % lanes
        dim = lane * VECTOR
        for step in range(steps):
            base = base_of(step, thread)
            if whole or dim < head:
                for u in range(together):
                    key = load8(keys, homes[uint64(base + u * groups_a_warp)] + dim)
                    for i in range(VECTOR):
                        held[u * VECTOR + i] = key[i]
                if whole:
                    issue_loads()
                for u in range(together):
                    for m in range(queries):
                        dot = query[m * VECTOR] * held[u * VECTOR]
                        for i in range(1, VECTOR):
                            dot += query[m * VECTOR + i] * held[u * VECTOR + i]
                        dots[u * queries + m] = dot
            else:
                for i in range(dots_size):
                    dots[i] = float32(0)
            scatter_dots(dots, thread, scratch)
            for r in range(kept_dots):
                number = lane // sharing_dots * kept_dots + r
                m, at = number % queries, base + number // queries * groups_a_warp
                if lane % sharing_dots == 0:
                    seen = low[uint64(m)] <= at and at < high[uint64(m)]
                    scores[uint64(m * line + at)] = dots[r] * scale if seen else NEVER

    @device
    def soften(scores, padded, top, total, thread, scratch):
        """Scores of ``padded`` positions to weights exp(score - max), in place; max and sum of each query."""
        lane = thread % SOFTMAX_LANES
        for turn in range(softmax_turns):
            m = turn * softmax_groups + thread // SOFTMAX_LANES
            best = NEVER
            if m < queries:
                for i in range(softmax_steps):
                    at = i * SOFTMAX_LANES + lane
                    if at < padded:
                        best = max(best, scores[uint64(m * line + at)])
            best = max_lanes(best, SOFTMAX_LANES, thread, scratch)
            weight = float32(0)
            if m < queries:
                for i in range(softmax_steps):
                    at = i * SOFTMAX_LANES + lane
                    if at < padded:
                        value = float32(0)
                        if best > NEVER:
                            value = float32(math.exp(scores[uint64(m * line + at)] - best))
                        scores[uint64(m * line + at)] = value
                        weight += value
            weight = sum_lanes(weight, SOFTMAX_LANES, thread, scratch)
            if m < queries and lane == 0:
                top[m] = best
                total[m] = weight

    @device
    def weigh(scores, values, homes, steps, sums, held, thread):
        """Each thread's share of the weighted sum of V, eight dimensions of every query. What stands in for a position
        past the last has weight 0."""
        dim = thread % lanes * VECTOR
        for i in range(sums_size):
            sums[i] = float32(0)
        if whole or dim < head:
            for step in range(steps):
                base = base_of(step, thread)
                for u in range(together):
                    value = load8(values, homes[uint64(base + u * groups_a_warp)] + dim)
                    for i in range(VECTOR):
                        held[u * VECTOR + i] = value[i]
                if whole:
                    issue_loads()
                for u in range(together):
                    for m in range(queries):
                        weight = scores[uint64(m * line + base + u * groups_a_warp)]
                        for i in range(VECTOR):
                            sums[m * VECTOR + i] += weight * held[u * VECTOR + i]

    @device
    def share(sums, pool, thread, scratch):
        """The warps' sums to shared memory, [warps, kept, 32], in an order that lets 32 threads read 8 dimensions of 4
        neighbours, or write one each, from 32 different banks."""
        scatter_sums(sums, thread, scratch)
        at, lane = thread // WARP * (kept_sums * WARP), thread % WARP
        for r in range(kept_sums):
            pool[uint64(at + r * WARP + (lane ^ (r % VECTOR * 4)))] = sums[r]

    @device
    def gathered(pool, m, dim):
        """The sum of one dimension over all warps, in their order."""
        number = m * VECTOR + dim % VECTOR
        r, lane = number % kept_sums, number // kept_sums * (sharing_sums * lanes) + dim // VECTOR
        at = r * WARP + (lane ^ (r % VECTOR * 4))
        total = float32(0)
        for warp in range(warps):
            total += pool[uint64(warp * (kept_sums * WARP) + at)]
        return total

    return locate, score, soften, weigh, share, gathered


@cache
def _piece(storage: Storage, shape: AttentionShape):
    """What one block does: one split for up to ``rows`` rows of one sequence and ``heads`` heads of one K/V head."""
    load8, store = storage.load8, storage.store
    locate, score, soften, weigh, share, gathered = _parts(storage, shape)
    kv_heads, group, head, split, threads = shape.kv_heads, shape.group, shape.head, shape.split, shape.threads
    queries, parts, heads, lanes, together = shape.queries, shape.parts, shape.heads, shape.lanes, shape.together
    whole, stride, room = lanes * VECTOR == head, shape.stride, shape.room
    query_count, score_count, dots_count = queries * VECTOR, queries * shape.line, together * queries
    held_count, pool_count = together * VECTOR, shape.pool
    scratch_count = scratch_size(threads, max(query_count, dots_count))
    turns, record = -(-queries * head // threads), head + 2

    @device
    def attention_piece(q, keys, values, tables, table_at, row, rows, spans, scale, out, partial, splits):
        thread = cuda.threadIdx.x
        piece = spans[2 * row] // split + int64(cuda.blockIdx.x)
        begin = piece * split
        end = min(begin + split, spans[2 * (row + rows) - 1])
        if begin >= end:
            return
        homes = cuda.shared.array(room, int64)
        scores = cuda.shared.array(score_count, float32)
        pool = cuda.shared.array(pool_count, float32)
        low = cuda.shared.array(queries, int32)
        high = cuda.shared.array(queries, int32)
        top = cuda.shared.array(queries, float32)
        total = cuda.shared.array(queries, float32)
        scratch = cuda.shared.array(scratch_count, float32)
        query = cuda.local.array(query_count, float32)
        sums = cuda.local.array(query_count, float32)
        dots = cuda.local.array(dots_count, float32)
        held = cuda.local.array(held_count, float32)
        kv_head = int64(cuda.blockIdx.y) // parts
        head_at = kv_head * group + int64(cuda.blockIdx.y) % parts * heads
        count = int32(end - begin)
        cycles = (count + stride - 1) // stride
        steps, padded = cycles * (RUN // together), cycles * stride
        if thread < queries:
            mine = row + min(thread // heads, rows - 1)
            low[thread] = int32(max(spans[2 * mine] - begin, 0))
            high[thread] = int32(max(min(spans[2 * mine + 1], end) - begin, 0))
        locate(tables, table_at, kv_head, begin, count, padded, homes, thread)
        dim = thread % lanes * VECTOR
        if whole or dim < head:
            for m in range(queries):
                mine = row + min(m // heads, rows - 1)
                part = load8(q, (mine * (kv_heads * group) + head_at + m % heads) * head + dim)
                for i in range(VECTOR):
                    query[m * VECTOR + i] = part[i]
        cuda.syncthreads()
        score(query, keys, homes, steps, low, high, scale, scores, dots, held, thread, scratch)
        cuda.syncthreads()
        soften(scores, padded, top, total, thread, scratch)
        cuda.syncthreads()
        weigh(scores, values, homes, steps, sums, held, thread)
        share(sums, pool, thread, scratch)
        cuda.syncthreads()
        for turn in range(turns):
            pair = turn * threads + thread
            m, d = pair // head, pair % head
            if m < queries and m // heads < rows:
                mine = row + m // heads
                own = spans[2 * mine] // split
                pieces = (spans[2 * mine + 1] + split - 1) // split - own
                index = mine * (kv_heads * group) + head_at + m % heads
                value = gathered(pool, m, d)
                if pieces == 1:
                    if piece == own:
                        store(out, index * head + d, value / total[m])
                elif own <= piece and piece < own + pieces:
                    to = (index * splits + piece - own) * record
                    partial[to + d] = value
                    if d == 0:
                        partial[to + head] = top[m]
                        partial[to + head + 1] = total[m]

    return attention_piece


@cache
def decode_kernel(storage: Storage, shape: AttentionShape):
    """One row a block: grid (splits, KV * parts, R), block ``threads``.

    q and out [R, H, D]; tables [R, width] int64; spans [R, 2] int64, the positions [first, context) that a row sees.
    A row whose positions lie in one split is finished here; the others leave [R, H, splits, D + 2] fp32: the weighted
    sums, the maximum of the scores, the sum of the weights.
    """
    attention_piece = _piece(storage, shape)

    @kernel
    def attention_decode(q, keys, values, tables, width, spans, scale, out, partial, splits):
        row = int64(cuda.blockIdx.z)
        attention_piece(q, keys, values, tables, row * width, row, 1, spans, scale, out, partial, splits)

    return attention_decode


@cache
def prefill_kernel(storage: Storage, shape: AttentionShape):
    """Rows of chunks over pages, causal: grid (splits of the longest tile, KV * parts, tiles), block ``threads``.

    As the decode kernel, but a block takes a tile of up to ``rows`` successive rows of one sequence: tiles [T, 3] int64
    are first row, rows, sequence, and tables [sequences, width]. K and V are read once a tile: ``2 KV L D`` elements.
    """
    attention_piece = _piece(storage, shape)

    @kernel
    def attention_prefill(q, keys, values, tables, width, tiles, spans, scale, out, partial, splits):
        tile = 3 * int64(cuda.blockIdx.z)
        row, rows, at = tiles[tile], tiles[tile + 1], tiles[tile + 2] * width
        attention_piece(q, keys, values, tables, at, row, rows, spans, scale, out, partial, splits)

    return attention_prefill


@cache
def combine_kernel(storage: Storage, shape: AttentionShape):
    """Merge the splits of rows that have several, in their order: grid (H, R), block ``threads``.

    Moves ``splits (D + 2)`` fp32 in and D elements out for every row and head; 4 splits D operations.
    """
    store = storage.store
    head, split, threads = shape.head, shape.split, shape.threads
    turns, record = -(-head // threads), head + 2

    @kernel
    def attention_combine(partial, splits, spans, out):
        row = int64(cuda.blockIdx.y)
        begin = spans[2 * row] // split
        count = (spans[2 * row + 1] + split - 1) // split - begin
        if count < 2:
            return
        tops = cuda.local.array(RUN, float32)
        totals = cuda.local.array(RUN, float32)
        values = cuda.local.array(RUN, float32)
        at = row * int64(cuda.gridDim.x) + int64(cuda.blockIdx.x)
        for turn in range(turns):
            d = turn * threads + int64(cuda.threadIdx.x)
            if d < head:
                best, total, value = NEVER, float32(0), float32(0)
                for first in range(0, count, RUN):
                    # A piece past the last is the last again, with no weight.
                    for u in range(RUN):
                        piece = first + u
                        here = (at * splits + min(piece, count - 1)) * record
                        top = partial[uint64(here + head)]
                        tops[u] = top if piece < count else NEVER
                        totals[u] = partial[uint64(here + head + 1)]
                        values[u] = partial[uint64(here + d)]
                    for u in range(RUN):
                        if tops[u] > NEVER:
                            new_best = max(best, tops[u])
                            old, new = float32(math.exp(best - new_best)), float32(math.exp(tops[u] - new_best))
                            total = total * old + totals[u] * new
                            value = value * old + values[u] * new
                            best = new_best
                store(out, at * head + d, value / total)

    return attention_combine
