"""What a forward is told: its rows, cut into tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from ..checkpoint.lora import LoraAdapter
from ..kernels.shapes import Paging, Runs
from ..kernels.transfer import send, send_together

MOST_ROWS = 8192
"""Rows of the largest tile: bounds the memory of a long prompt, and a grid of one block a row (65,535 on a GPU)."""


@dataclass(slots=True)
class Intermediate:
    """Recurrent state after one verify row: matrix states and convolution tails of every recurrent layer."""

    h: list[torch.Tensor] = field(default_factory=list)
    conv: list[torch.Tensor] = field(default_factory=list)


@dataclass(slots=True)
class InputRow:
    """One input position of one sequence.

    ``token`` is an id, or the feed cell that holds it when ``fed``. ``table`` lists the blocks of the sequence (host),
    ``slot`` is its place in the recurrent pool. ``write`` is false where the K/V of this position is shared and stands
    already. ``first`` is the oldest position it attends to. ``history`` is the row of the drafter's
    history that keeps this hidden row, or -1.
    ``logits`` is the arena row of the result, or -1.
    """

    token: int
    position: int
    table: torch.Tensor
    slot: int
    write: bool = True
    fed: bool = False
    first: int = 0
    adapter: LoraAdapter | None = None
    inter: Intermediate | None = None
    history: int = -1
    hidden: int = -1
    logits: int = -1


@dataclass(slots=True)
class Tile:
    """Rows that go through the layers together, padded with rows that touch dummy block and dummy slot only.

    On the device: ``ids`` [R], or where ``fed`` [R] is set the numbers of the feed cells that hold them; ``positions``
    and flat K/V positions ``where`` [R]; ``places``, the distinct recurrent slots; ``window`` and ``tail`` as
    :func:`windows_of` makes them; ``history`` [R], the rows that keep hidden rows for the drafter, if any do. The host
    looks at none of their values when the tile is ``fixed``.
    """

    rows: list[InputRow]
    ids: torch.Tensor
    fed: torch.Tensor | None
    positions: torch.Tensor
    where: torch.Tensor
    places: torch.Tensor
    window: torch.Tensor
    tail: torch.Tensor
    history: torch.Tensor | None
    runs: Runs
    loras: list[tuple[torch.Tensor, LoraAdapter]] = field(default_factory=list)
    pagings: dict[int, Paging] = field(default_factory=dict)
    fixed: bool = False

    def paging(self, window: int) -> Paging:
        """Contexts of the live rows; a sliding ``window`` of 0 is none. All layers of a tile share one."""
        if window not in self.pagings:
            contexts = [row.position + 1 for row in self.rows]
            starts = [first_seen(row, window) for row in self.rows]
            self.pagings[window] = Paging([row.table for row in self.rows], contexts, starts)
        return self.pagings[window]


def first_seen(row: InputRow, window: int) -> int:
    """The first position that a row attends to."""
    return max(row.first, row.position + 1 - window) if window else row.first


def tiles(
    rows: list[InputRow],
    width: int,
    block_size: int,
    dummy: int,
    taps: int,
    on: torch.device,
    forgotten: int = 0,
) -> Iterator[Tile]:
    """Cut ``rows`` into tiles of ``width`` rows, the last one padded; 0: of as many as there are, up to MOST_ROWS.
    ``dummy`` is the flat K/V position of padding, ``forgotten`` the row of the history that nobody reads."""
    for at in range(0, len(rows), width or MOST_ROWS):
        part = rows[at : at + (width or MOST_ROWS)]
        yield _tile(part, width or len(part), block_size, dummy, taps, on, forgotten)


def _tile(
    rows: list[InputRow], width: int, block_size: int, dummy: int, taps: int, on: torch.device, forgotten: int
) -> Tile:
    pad = [0] * (width - len(rows))
    where = [written(row, block_size, dummy) for row in rows] + [dummy] * len(pad)
    slots, window, tail = windows_of(rows, width, taps)
    fed, kept = [row.fed for row in rows], [row.history for row in rows]
    parts = [torch.tensor([row.token for row in rows] + pad), torch.tensor([row.position for row in rows] + pad)]
    parts += [torch.tensor(where), torch.tensor(slots), window, tail]
    parts.append(torch.tensor([*fed, *pad], dtype=torch.int64))
    parts.append(torch.tensor([forgotten if at < 0 else at for at in kept] + [forgotten] * len(pad)))
    ids, positions, where_written, places, window, tail, cells, history = send_together(parts, on)
    return Tile(
        rows=rows,
        ids=ids,
        fed=cells if any(fed) else None,
        positions=positions,
        where=where_written,
        places=places,
        window=window,
        tail=tail,
        history=history if max(kept) >= 0 else None,
        runs=Runs([row.slot for row in rows]),
        loras=_adapters(rows, width, on),
    )


def written(row: InputRow, block_size: int, dummy: int) -> int:
    """The flat K/V position that a row writes."""
    if not row.write:
        return dummy
    return int(row.table[row.position // block_size]) * block_size + row.position % block_size


def windows_of(rows: list[InputRow], width: int, taps: int) -> tuple[list[int], torch.Tensor, torch.Tensor]:
    """Where each row finds its ``taps`` newest convolution inputs: in [states of the distinct slots; rows of the tile].

    Answers the distinct slots, the window [taps, width] and, per slot, the inputs to keep [slots, taps - 1].
    """
    slots: list[int] = []
    inputs: list[list[int]] = []
    found: dict[int, int] = {}
    for row in rows:
        if row.slot not in found:
            found[row.slot] = len(slots)
            slots.append(row.slot)
    kept = taps - 1
    base = len(slots) * kept
    inputs = [list(range(i * kept, (i + 1) * kept)) for i in range(len(slots))]
    window = []
    for i, row in enumerate(rows):
        line = inputs[found[row.slot]]
        line.append(base + i)
        window.append(line[-taps:])
    window += [[base] * taps] * (width - len(rows))
    return slots, torch.tensor(window).t().contiguous(), torch.tensor([line[-kept:] for line in inputs])


def _adapters(rows: list[InputRow], width: int, on: torch.device) -> list[tuple[torch.Tensor, LoraAdapter]]:
    present: list[LoraAdapter] = []
    for row in rows:
        if row.adapter is not None and row.adapter not in present:
            present.append(row.adapter)
    spare = [False] * (width - len(rows))
    return [(send([row.adapter is one for row in rows] + spare, on)[:, None], one) for one in present]
