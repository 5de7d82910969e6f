"""Counts that a launch takes on request: instructions, sectors of global memory, conflicts in shared memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .memory import LOCAL_BITS, OwnMemory
from .program import Block, Move
from .threads import Lanes

Array = np.ndarray[Any, Any]
SECTOR = 32
"""Bytes that global memory moves at once."""
BANKS = 32
"""Words of 4 bytes that shared memory moves at once, from different banks."""


@dataclass(slots=True)
class Traffic:
    """One instruction, or several.

    ``useful`` bytes that lanes asked for, each byte once a warp; ``sectors`` that a warp touched, and the ``fewest``
    that hold as many bytes. In shared memory ``turns`` that a warp's access took, and the ``fewest``."""

    text: str
    space: str
    requests: int = 0
    useful: int = 0
    sectors: int = 0
    turns: int = 0
    fewest: int = 0


@dataclass(slots=True)
class Profile:
    """Launches, threads, instructions of threads and of warps; accesses by line and text of the PTX."""

    launches: int = 0
    threads: int = 0
    instructions: int = 0
    warp_instructions: int = 0
    traffic: dict[tuple[int, str], Traffic] = field(default_factory=dict)

    def launch(self, threads: int) -> None:
        """A kernel was started."""
        self.launches += 1
        self.threads += threads

    def block(self, block: Block, lanes: int, warps: int) -> None:
        """Straight code was run."""
        self.instructions += block.size * lanes
        self.warp_instructions += block.size * warps

    def access(self, one: Move, address: Array, lanes: Lanes, shared: OwnMemory) -> None:
        """An access of every lane."""
        if one.space == "local":
            return
        key = one.instruction.line, one.instruction.text
        entry = self.traffic.setdefault(key, Traffic(one.instruction.text, one.space))
        entry.requests += lanes.warps
        if one.space == "global":
            _sectors(entry, one.access.size, address.astype(np.int64), lanes.warp)
        else:
            _turns(entry, one.access.size, address.astype(np.int64), lanes.warp, lanes.lane, shared)

    def total(self, space: str) -> Traffic:
        """All accesses to ``global`` or ``shared`` memory."""
        found = Traffic("all", space)
        for one in self.traffic.values():
            if one.space == space:
                for name in ("requests", "useful", "sectors", "turns", "fewest"):
                    setattr(found, name, getattr(found, name) + getattr(one, name))
        return found


def _pairs(group: Array, value: Array) -> tuple[Array, Array]:
    """Different pairs."""
    wide = int(value.max()) + 1
    found = np.sort(group * wide + value)
    found = found[np.append(True, found[1:] != found[:-1])]
    return found // wide, found % wide


def _sectors(entry: Traffic, size: int, address: Array, warp: Array) -> None:
    address = address - (int(address.min()) & ~(SECTOR - 1))
    useful = np.bincount(_pairs(warp, address)[0]) * size
    entry.useful += int(useful.sum())
    entry.sectors += len(_pairs(warp, address // SECTOR)[0])
    entry.fewest += int((-(-useful // SECTOR)).sum())


def _turns(entry: Traffic, size: int, address: Array, warp: Array, lane: Array, shared: OwnMemory) -> None:
    """A warp's access takes as many turns as its fullest bank has different words; accesses of 8 bytes are made by half
    a warp at a time, of 16 bytes by a quarter."""
    number, offset = (address >> LOCAL_BITS) - 1, address & (1 << LOCAL_BITS) - 1
    wide = max(1, size // 4)
    words = (shared.starts[number] + offset)[:, None] // 4 + np.arange(wide)
    part = np.broadcast_to((warp * wide + lane * wide // BANKS)[:, None], words.shape)
    part, word = _pairs(part.ravel(), words.ravel())
    in_bank = np.bincount(part * BANKS + word % BANKS, minlength=(int(part.max()) + 1) * BANKS)
    turns = in_bank.reshape(-1, BANKS).max(1)
    entry.turns += int(turns.sum())
    entry.fewest += int((turns > 0).sum())
    entry.useful += len(word) * 4
