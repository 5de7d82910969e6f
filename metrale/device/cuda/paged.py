"""Paged attention on tensors: what the kernels of :mod:`.attention` are told about rows, and their launches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ..kernels.shapes import Paging
from ..kernels.transfer import send
from .attention import AttentionShape, attention_shape, combine_kernel, decode_kernel, prefill_kernel
from .launch import launch, storage_of

Tensor = torch.Tensor
PARTIAL = 1 << 26
"""Bytes of unmerged splits that :func:`attend_paged` holds at once, more or less."""


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """Rows that share nothing: tables [R, width] and spans [R, 2] int64 on the device; ``pieces`` is at least the
    number of splits that any row touches."""

    tables: Tensor
    spans: Tensor
    pieces: int


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """Rows of prompts: tables and spans as in a decode, and successive portions (first row, row after the last, tiles
    [T, 3]), each of which leaves about ``room`` bytes of unmerged splits."""

    tables: Tensor
    spans: Tensor
    pieces: int
    portions: list[tuple[int, int, Tensor]]
    room: int


def decode_plan(tables: Tensor, spans: Tensor, longest: int, heads: int, kv_heads: int, head: int) -> DecodePlan:
    """The plan of rows whose contexts are at most ``longest`` positions, whatever tables and spans hold by then."""
    shape = attention_shape(heads, kv_heads, head, 1)
    return DecodePlan(tables, spans, split_count(shape, 0, longest))


def attend_paged(q: Tensor, keys: Tensor, values: Tensor, paging: Paging, scale: float, room: int = PARTIAL) -> Tensor:
    """Live rows of q [R, H, D], each over its own context; the rows of padding answer 0.

    Successive positions of one sequence share their K/V loads; which rows do so changes no bit. A long chunk is cut so
    that unmerged splits take about ``room`` bytes. The plan of the first call stays with ``paging``."""
    live = len(paging.contexts)
    if not live:
        return torch.zeros_like(q, memory_format=torch.contiguous_format)
    rows, plan = q[:live].contiguous(), paging.plan
    if plan is None or (isinstance(plan, ChunkPlan) and plan.room != room):
        plan = paging.plan = _plan(rows, keys, paging, room)
    if isinstance(plan, DecodePlan):
        out = attend_rows(rows, keys, values, plan.tables, plan.spans, plan.pieces, scale)
    else:
        out = torch.empty_like(rows)
        shape = attention_shape_of(rows, keys, prefill=True)
        for begin, end, tiles in plan.portions:
            part = rows[begin:end], keys, values, plan.tables, tiles, plan.spans[begin:end], plan.pieces, scale, shape
            out[begin:end] = attend_chunk(*part)
    return out if live == q.shape[0] else torch.cat((out, torch.zeros_like(q[live:])))


def _plan(q: Tensor, keys: Tensor, paging: Paging, room: int) -> DecodePlan | ChunkPlan:
    """What the kernels want to know of live rows q [R, H, D], on the device."""
    lengths = _sequences(paging)
    spans = list(zip(paging.starts, paging.contexts, strict=True))
    sent = [send(torch.nn.utils.rnn.pad_sequence(paging.tables, batch_first=True), q.device)]
    sent.append(send([list(span) for span in spans], q.device))
    if len(lengths) == len(spans):
        shape = attention_shape_of(q, keys)
        return DecodePlan(sent[0], sent[1], max(split_count(shape, *span) for span in spans))
    shape = attention_shape_of(q, keys, prefill=True)
    # A tile's table is that of its first row.
    tiles = [(at, count, at) for at, count, _ in tiles_of(lengths, shape.rows)]
    pieces = max(split_count(shape, paging.starts[at], paging.contexts[at + count - 1]) for at, count, _ in tiles)
    portions = _portions(tiles, room // (4 * q[0].numel() * pieces))
    cut = [(begin, end, send([list(tile) for tile in mine], q.device)) for begin, end, mine in portions]
    return ChunkPlan(sent[0], sent[1], pieces, cut, room)


def _portions(tiles: list[tuple[int, int, int]], most: int) -> Iterator[tuple[int, int, list[tuple[int, int, int]]]]:
    """Successive tiles of about ``most`` rows: first row, row after the last, and the tiles, counted from the first."""
    portion: list[tuple[int, int, int]] = []
    for at, count, table in tiles:
        begin = portion[0][0] if portion else at
        if portion and at + count - begin > most:
            yield begin, at, [(row - begin, rows, owner) for row, rows, owner in portion]
            portion = []
        portion.append((at, count, table))
    begin, (last, count, _) = portion[0][0], portion[-1]
    yield begin, last + count, [(row - begin, rows, owner) for row, rows, owner in portion]


def _sequences(paging: Paging) -> list[int]:
    """Lengths of the runs of rows that are successive positions of one block table."""
    lengths: list[int] = []
    rows_of = list(zip(paging.tables, paging.contexts, paging.starts, strict=True))
    for i, (table, context, start) in enumerate(rows_of):
        before = rows_of[i - 1] if i else None
        if before and before[0] is table and before[1] + 1 == context and before[2] <= start:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths


def attend(q: Tensor, keys: Tensor, values: Tensor, table: Tensor, context: int, start: int, scale: float) -> Tensor:
    """One row: q [H, D] over positions [start, context) of the block table; [H, D]."""
    spans = torch.tensor([[start, context]], device=q.device)
    pieces = split_count(attention_shape_of(q[None], keys), start, context)
    return attend_rows(q[None].contiguous(), keys, values, table[None], spans, pieces, scale)[0]


def attention_shape_of(q: Tensor, keys: Tensor, prefill: bool = False) -> AttentionShape:
    """The specialisation for q [R, H, D] and a pool [blocks, block_size, KV, D]."""
    return attention_shape(q.shape[1], keys.shape[2], q.shape[2], keys.shape[1], prefill=prefill)


def split_count(shape: AttentionShape, first: int, context: int) -> int:
    """Splits that positions [first, context) touch."""
    return -(-context // shape.split) - first // shape.split


def attend_rows(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    spans: Tensor,
    pieces: int,
    scale: float,
    shape: AttentionShape | None = None,
) -> Tensor:
    """Decode rows q [R, H, D] over positions spans [R, 2] of block tables [R, width]; [R, H, D].

    ``pieces`` is at least the :func:`split_count` of every row; what it exceeds that costs an empty block each.
    """
    shape = shape or attention_shape_of(q, keys)
    storage = storage_of(q)
    out, partial = torch.empty_like(q), _partial(q, pieces)
    grid = (pieces, shape.kv_heads * shape.parts, q.shape[0])
    arguments = (q, keys, values, tables, tables.shape[1], spans, float(scale), out, partial, pieces)
    launch(decode_kernel(storage, shape), grid, shape.threads, *arguments)
    _combine(shape, partial, pieces, spans, out)
    return out


def attend_chunk(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    tiles: Tensor,
    spans: Tensor,
    pieces: int,
    scale: float,
    shape: AttentionShape | None = None,
) -> Tensor:
    """Rows of prompts q [R, H, D]: row r sees positions spans[r]; tiles [T, 3] as :func:`tiles_of` cuts them; tables
    [sequences, width]. ``pieces`` is at least the number of splits that any tile touches."""
    shape = shape or attention_shape_of(q, keys, prefill=True)
    out, partial = torch.empty_like(q), _partial(q, pieces)
    grid = (pieces, shape.kv_heads * shape.parts, tiles.shape[0])
    arguments = (q, keys, values, tables, tables.shape[1], tiles, spans, float(scale), out, partial, pieces)
    launch(prefill_kernel(storage_of(q), shape), grid, shape.threads, *arguments)
    _combine(shape, partial, pieces, spans, out)
    return out


def tiles_of(lengths: list[int], rows_a_tile: int) -> list[tuple[int, int, int]]:
    """(first row, rows, sequence) of every tile, for sequences that have so many rows one after the other."""
    tiles, at = [], 0
    for sequence, length in enumerate(lengths):
        tiles += [(at + i, min(rows_a_tile, length - i), sequence) for i in range(0, length, rows_a_tile)]
        at += length
    return tiles


def _partial(q: Tensor, pieces: int) -> Tensor:
    size = (q.shape[0], q.shape[1], pieces, q.shape[2] + 2) if pieces > 1 else (1,)
    return torch.empty(size, device=q.device)


def _combine(shape: AttentionShape, partial: Tensor, pieces: int, spans: Tensor, out: Tensor) -> None:
    if pieces > 1:
        kernel = combine_kernel(storage_of(out), shape)
        launch(kernel, (out.shape[1], out.shape[0]), shape.threads, partial, pieces, spans, out)
