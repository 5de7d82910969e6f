"""Counts that a launch takes on request: instructions, sectors of global memory, conflicts in shared memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .memory import OwnMemory
from .program import Block, Move

Array = np.ndarray[Any, Any]
SECTOR = 32
"""Bytes that global memory moves at once."""
BANKS = 32
"""Words of 4 bytes that shared memory moves at once."""


@dataclass(slots=True)
class Traffic:
    """One instruction: warps that ran it; bytes that its lanes asked for, each once a warp; sectors that a warp
    touched, and the fewest that hold those bytes; turns that shared memory took, and the fewest."""

    text: str
    space: str
    requests: int = 0
    useful: int = 0
    sectors: int = 0
    fewest: int = 0
    turns: int = 0
    fewest_turns: int = 0


@dataclass(slots=True)
class Profile:
    """Instructions of threads and of warps; accesses by line of the PTX."""

    threads: int = 0
    instructions: int = 0
    warp_instructions: int = 0
    traffic: dict[int, Traffic] = field(default_factory=dict)

    def block(self, block: Block, lanes: int, warps: int) -> None:
        """Straight code that was run."""
        self.instructions += block.size * lanes
        self.warp_instructions += block.size * warps

    def access(self, one: Move, address: Array, warp: Array, lane: Array, shared: OwnMemory) -> None:
        """An access of every lane."""
        if one.space == "local":
            return
        line = one.instruction.line
        entry = self.traffic.setdefault(line, Traffic(one.instruction.text, one.space))
        entry.requests += len(np.unique(warp))
        if one.space == "global":
            self._sectors(entry, one.access.size, address.astype(np.int64), warp)
        else:
            self._turns(entry, one.access.size, address.astype(np.int64), warp, lane, shared)

    def _sectors(self, entry: Traffic, size: int, address: Array, warp: Array) -> None:
        pieces = np.unique(np.stack([warp, address]), axis=1)
        useful = np.bincount(pieces[0]) * size
        touched = np.unique(np.stack([warp, address // SECTOR]), axis=1)
        entry.useful += int(useful.sum())
        entry.sectors += touched.shape[1]
        entry.fewest += int((-(-useful // SECTOR)).sum())

    def _turns(self, entry: Traffic, size: int, address: Array, warp: Array, lane: Array, shared: OwnMemory) -> None:
        """A warp's access takes as many turns as its fullest bank has different words; 8 bytes a lane take half a warp
        at a time, 16 bytes a quarter."""
        number, offset = (address >> 20) - 1, address & (1 << 20) - 1
        part = warp * 4 + lane * max(1, size // 4) // BANKS
        word = (shared.starts[number] + offset) // 4
        words = word[:, None] + np.arange(max(1, size // 4))
        parts = np.broadcast_to(part[:, None], words.shape)
        pieces = np.unique(np.stack([parts.ravel(), words.ravel()]), axis=1)
        in_bank = np.unique(np.stack([pieces[0], pieces[1] % BANKS]), axis=1, return_counts=True)
        turns = np.zeros(int(part.max()) + 1, np.int64)
        np.maximum.at(turns, in_bank[0][0], in_bank[1])
        entry.turns += int(turns.sum())
        entry.fewest_turns += len(np.unique(part))
        entry.useful += pieces.shape[1] * 4
