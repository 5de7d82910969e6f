"""What a forward is told: its rows, cut into tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from ..checkpoint.lora import LoraAdapter
from ..kernels.shapes import Paging, Runs


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
    already. ``first`` is the oldest position it attends to. ``history`` keeps hidden rows by position for the drafter.
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
    history: torch.Tensor | None = None
    hidden: int = -1
    logits: int = -1


@dataclass(slots=True)
class Tile:
    """Rows that go through the layers together, padded with rows that touch dummy block and dummy slot only."""

    rows: list[InputRow]
    ids: torch.Tensor
    positions: torch.Tensor
    where: torch.Tensor
    places: torch.Tensor
    window: torch.Tensor
    tail: torch.Tensor
    loras: list[tuple[torch.Tensor, LoraAdapter]]

    @property
    def runs(self) -> Runs:
        """Whose recurrent state each live row is on."""
        return Runs([row.slot for row in self.rows])

    def paging(self, window: int) -> Paging:
        """Contexts of the live rows; a sliding ``window`` of 0 is none."""
        contexts = [row.position + 1 for row in self.rows]
        starts = [
            max(row.first, c - window) if window else row.first for row, c in zip(self.rows, contexts, strict=True)
        ]
        return Paging([row.table for row in self.rows], contexts, starts)


def tiles(
    rows: list[InputRow], width: int, block_size: int, dummy: int, taps: int, cells: torch.Tensor, on: torch.device
) -> Iterator[Tile]:
    """Cut ``rows`` into tiles of ``width`` rows (0: one tile of all). ``dummy`` is the flat K/V position of padding."""
    width = width or len(rows)
    for at in range(0, len(rows), width):
        yield _tile(rows[at : at + width], width, block_size, dummy, taps, cells, on)


def _tile(
    rows: list[InputRow], width: int, block_size: int, dummy: int, taps: int, cells: torch.Tensor, on: torch.device
) -> Tile:
    spare = width - len(rows)
    pad = [0] * spare
    where = [dummy] * width
    for i, row in enumerate(rows):
        if row.write:
            where[i] = int(row.table[row.position // block_size]) * block_size + row.position % block_size
    ids = torch.tensor([row.token for row in rows] + pad)
    if any(row.fed for row in rows):
        fed = torch.tensor([row.fed for row in rows] + [False] * spare)
        ids = torch.where(fed, cells.cpu()[torch.where(fed, ids, 0)], ids)
    slots, window, tail = _windows(rows, width, taps)
    return Tile(
        rows=rows,
        ids=ids.to(on),
        positions=torch.tensor([row.position for row in rows] + pad).to(on),
        where=torch.tensor(where).to(on),
        places=torch.tensor(slots).to(on),
        window=window.to(on),
        tail=tail.to(on),
        loras=_adapters(rows, width, on),
    )


def _windows(rows: list[InputRow], width: int, taps: int) -> tuple[list[int], torch.Tensor, torch.Tensor]:
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
    return [(torch.tensor([row.adapter is one for row in rows] + spare, device=on)[:, None], one) for one in present]
