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

from numba import cuda, float32, int64

from .lanes import SIMULATED, WARP, device, kernel, max_lanes, scratch_size, sum_lanes, sum_lanes_each
from .storage import VECTOR, Storage

QUERIES = 8
"""Most queries of one block."""
SOFTMAX_LANES = 8
"""Threads that share one query's softmax; a constant, so that a query's sums do not depend on its neighbours."""
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
    def shared_bytes(self) -> int:
        """Shared memory of a block: scores, the pool of sums, two numbers a query and a spare one."""
        return 4 * (self.queries * (self.line + self.threads * VECTOR + 2) + 1)

    @property
    def line(self) -> int:
        """Scores from one query to the next. The threads of a warp that soften several queries find each in banks of
        its own: the queries would share theirs if a split's size, a multiple of 32, lay between them."""
        return self.split + SOFTMAX_LANES


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
    threads = threads or max(lanes_of(head), 32 if SIMULATED else 128)
    shape = AttentionShape(kv_heads, group, head, block_size, shared, rows, split, threads)
    if shape.shared_bytes > SHARED:
        raise ValueError(f"split {split} with {threads} threads needs {shape.shared_bytes} bytes of shared memory")
    return shape


def lanes_of(head: int) -> int:
    """Threads that hold one head: a power of two."""
    return 1 << (-(-head // VECTOR) - 1).bit_length()


def positions_together(queries: int) -> int:
    """Positions whose K or V a thread has in flight at once."""
    return 2 if queries > 4 else 4


@cache
def _parts(storage: Storage, shape: AttentionShape):
    """The device functions of one split, shared by the decode and the prefill kernel."""
    load8 = storage.load8
    kv_heads, head, block_size, split = shape.kv_heads, shape.head, shape.block_size, shape.split
    line = shape.line
    queries, threads = shape.queries, shape.threads
    lanes = lanes_of(head)
    groups, groups_a_warp = threads // lanes, WARP // lanes
    together = positions_together(queries)
    dots_size = together * queries
    softmax_groups = threads // SOFTMAX_LANES
    softmax_turns = -(-queries // softmax_groups)
    softmax_steps = split // SOFTMAX_LANES

    @device
    def place(tables, table_at, position, kv_head):
        """First element of a position's K or V."""
        block = tables[table_at + position // block_size]
        return ((block * block_size + position % block_size) * kv_heads + kv_head) * head

    @device
    def score(query, keys, tables, table_at, kv_head, begin, end, first, limit, scale, scores, dots, thread, scratch):
        """Scores of positions [begin, end) to shared memory; -inf outside a query's own [first, limit)."""
        lane, mine = thread % lanes, thread // lanes
        dim = lane * VECTOR
        for step in range((end - begin + groups * together - 1) // (groups * together)):
            base = begin + step * groups * together + mine
            for i in range(dots_size):
                dots[i] = float32(0)
            for u in range(together):
                position = min(base + u * groups, end - 1)
                if dim < head:
                    key = load8(keys, place(tables, table_at, position, kv_head) + dim)
                    for m in range(queries):
                        at = m * VECTOR
                        dots[u * queries + m] = (
                            query[at] * key[0]
                            + query[at + 1] * key[1]
                            + query[at + 2] * key[2]
                            + query[at + 3] * key[3]
                            + query[at + 4] * key[4]
                            + query[at + 5] * key[5]
                            + query[at + 6] * key[6]
                            + query[at + 7] * key[7]
                        )
            sum_lanes_each(dots, dots_size, lanes, thread, scratch)
            for u in range(together):
                position = base + u * groups
                for m in range(queries):
                    if m % lanes == lane and position < end:
                        seen = first[m] <= position and position < limit[m]
                        scores[m * line + position - begin] = dots[u * queries + m] * scale if seen else NEVER

    @device
    def soften(scores, span, top, total, thread, scratch):
        """Scores of ``span`` positions to weights exp(score - max), in place; max and sum of each query."""
        lane = thread % SOFTMAX_LANES
        for turn in range(softmax_turns):
            m = turn * softmax_groups + thread // SOFTMAX_LANES
            best = NEVER
            if m < queries:
                for i in range(softmax_steps):
                    at = i * SOFTMAX_LANES + lane
                    if at < span:
                        best = max(best, scores[m * line + at])
            best = max_lanes(best, SOFTMAX_LANES, thread, scratch)
            weight = float32(0)
            if m < queries:
                for i in range(softmax_steps):
                    at = i * SOFTMAX_LANES + lane
                    if at < span:
                        value = float32(0)
                        if best > NEVER:
                            value = float32(math.exp(scores[m * line + at] - best))
                        scores[m * line + at] = value
                        weight += value
            weight = sum_lanes(weight, SOFTMAX_LANES, thread, scratch)
            if m < queries and lane == 0:
                top[m] = best
                total[m] = weight

    @device
    def weigh(scores, values, tables, table_at, kv_head, begin, end, sums, thread):
        """Each thread's share of the weighted sum of V, eight dimensions of every query."""
        mine, dim = thread // lanes, thread % lanes * VECTOR
        for i in range(queries * VECTOR):
            sums[i] = float32(0)
        if dim < head:
            for step in range((end - begin + groups * together - 1) // (groups * together)):
                for u in range(together):
                    position = begin + (step * together + u) * groups + mine
                    if position < end:
                        value = load8(values, place(tables, table_at, position, kv_head) + dim)
                        for m in range(queries):
                            weight = scores[m * line + position - begin]
                            at = m * VECTOR
                            sums[at] += weight * value[0]
                            sums[at + 1] += weight * value[1]
                            sums[at + 2] += weight * value[2]
                            sums[at + 3] += weight * value[3]
                            sums[at + 4] += weight * value[4]
                            sums[at + 5] += weight * value[5]
                            sums[at + 6] += weight * value[6]
                            sums[at + 7] += weight * value[7]

    @device
    def share(sums, pool, thread):
        """The threads' sums to shared memory, [queries, warps, 8, 32]: for each dimension the threads of a warp, in an
        order that lets 32 threads read 8 dimensions of 4 neighbours, or write one each, from 32 different banks."""
        at, lane = (thread >> 5) * (VECTOR * WARP), thread & 31
        for m in range(queries):
            for i in range(VECTOR):
                pool[m * threads * VECTOR + at + i * WARP + (lane ^ (i * 4))] = sums[m * VECTOR + i]

    @device
    def gathered(pool, m, dim):
        """The sum of one dimension over all groups, in their order."""
        i = dim % VECTOR
        at = m * threads * VECTOR + i * WARP
        lane = dim // VECTOR ^ (i * 4)
        total = float32(0)
        for g in range(groups):
            total += pool[at + g // groups_a_warp * (VECTOR * WARP) + (lane ^ (g % groups_a_warp * lanes))]
        return total

    return score, soften, weigh, share, gathered


@cache
def _piece(storage: Storage, shape: AttentionShape):
    """What one block does: one split for up to ``rows`` rows of one sequence and ``heads`` heads of one K/V head."""
    load8, store = storage.load8, storage.store
    score, soften, weigh, share, gathered = _parts(storage, shape)
    kv_heads, group, head, split, threads = shape.kv_heads, shape.group, shape.head, shape.split, shape.threads
    queries, parts, heads = shape.queries, shape.parts, shape.heads
    lanes = lanes_of(head)
    together = positions_together(queries)
    scratch_count = scratch_size(threads, together * queries)
    pool_count = threads * VECTOR * queries
    query_count, score_count, dots_count = queries * VECTOR, queries * shape.line, together * queries
    turns, record = -(-queries * head // threads), head + 2

    @device
    def attention_piece(q, keys, values, tables, table_at, row, rows, spans, scale, out, partial, splits):
        thread = cuda.threadIdx.x
        firsts = cuda.local.array(queries, int64)
        limits = cuda.local.array(queries, int64)
        for m in range(queries):
            mine = row + min(m // heads, rows - 1)
            firsts[m] = spans[2 * mine]
            limits[m] = spans[2 * mine + 1]
        piece = firsts[0] // split + int64(cuda.blockIdx.x)
        begin = piece * split
        end = min(begin + split, limits[queries - 1])
        if begin >= end:
            return
        scores = cuda.shared.array(score_count, float32)
        pool = cuda.shared.array(pool_count, float32)
        top = cuda.shared.array(queries, float32)
        total = cuda.shared.array(queries, float32)
        scratch = cuda.shared.array(scratch_count, float32)
        query = cuda.local.array(query_count, float32)
        sums = cuda.local.array(query_count, float32)
        dots = cuda.local.array(dots_count, float32)
        kv_head = int64(cuda.blockIdx.y) // parts
        head_at = kv_head * group + int64(cuda.blockIdx.y) % parts * heads
        dim = thread % lanes * VECTOR
        if dim < head:
            for m in range(queries):
                mine = row + min(m // heads, rows - 1)
                part = load8(q, (mine * (kv_heads * group) + head_at + m % heads) * head + dim)
                for i in range(VECTOR):
                    query[m * VECTOR + i] = part[i]
        at = table_at
        score(query, keys, tables, at, kv_head, begin, end, firsts, limits, scale, scores, dots, thread, scratch)
        cuda.syncthreads()
        soften(scores, end - begin, top, total, thread, scratch)
        cuda.syncthreads()
        weigh(scores, values, tables, at, kv_head, begin, end, sums, thread)
        share(sums, pool, thread)
        cuda.syncthreads()
        for turn in range(turns):
            pair = turn * threads + thread
            m, d = pair // head, pair % head
            if m < queries and m // heads < rows:
                mine = row + m // heads
                own = spans[2 * mine] // split
                count = (spans[2 * mine + 1] + split - 1) // split - own
                index = mine * (kv_heads * group) + head_at + m % heads
                value = gathered(pool, m, d)
                if count == 1:
                    if piece == own:
                        store(out, index * head + d, value / total[m])
                elif own <= piece and piece < own + count:
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
        at = row * int64(cuda.gridDim.x) + int64(cuda.blockIdx.x)
        for turn in range(turns):
            d = turn * threads + int64(cuda.threadIdx.x)
            if d < head:
                best, total, value = NEVER, float32(0), float32(0)
                for piece in range(count):
                    here = (at * splits + piece) * record
                    top = partial[here + head]
                    if top > NEVER:
                        new_best = max(best, top)
                        old, new = float32(math.exp(best - new_best)), float32(math.exp(top - new_best))
                        total = total * old + partial[here + head + 1] * new
                        value = value * old + partial[here + d] * new
                        best = new_best
                store(out, at * head + d, value / total)

    return attention_combine
