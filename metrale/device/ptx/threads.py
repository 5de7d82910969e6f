"""The threads of a portion of a grid: who they are, their registers, and groups of them that run together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .faults import LaneError
from .races import WARP, WARP_BITS

Array = np.ndarray[Any, Any]

MOST_THREADS, MOST_BLOCKS = 1024, (2**31 - 1, 65535, 65535)
"""Of a block, and of a grid (CUDA C++ Programming Guide, technical specifications per compute capability)."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Blocks of the grid and threads of a block, x first."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]

    def refusal(self) -> str | None:
        """Why a GPU of compute capability 8.0 or 9.0 does not start that, or None."""
        for number, most, axis in zip(self.grid, MOST_BLOCKS, "xyz", strict=True):
            if not 0 < number <= most:
                return f"a grid has 1 to {most} blocks in {axis}, not {number}"
        if not 0 < self.threads <= MOST_THREADS:
            return f"a block has 1 to {MOST_THREADS} threads, not {self.threads}"
        return None

    def block_at(self, number: Any) -> tuple[Any, Any, Any]:
        """Coordinates of blocks."""
        return number % self.grid[0], number // self.grid[0] % self.grid[1], number // (self.grid[0] * self.grid[1])

    def thread_at(self, number: Any) -> tuple[Any, Any, Any]:
        """Coordinates of threads in their block."""
        x, y, _ = self.block
        return number % x, number // x % y, number // (x * y)

    def name(self, identity: int) -> str:
        """A thread of the grid, counted from 0."""
        block, thread = self.block_at(identity // self.threads), self.thread_name(identity)
        return f"thread {thread} of block {block}"

    def thread_name(self, identity: int) -> str:
        """Its place in its block: one number where the block has one dimension."""
        x, y, z = self.thread_at(identity % self.threads)
        return f"{x}" if self.block[1:] == (1, 1) else f"({x}, {y}, {z})"


class Registers(dict[str, Array]):
    """Registers of every thread of a portion; those that some threads have not set lie in ``partial``."""

    def __init__(self) -> None:
        super().__init__()
        self.partial: dict[str, tuple[Array, Array]] = {}

    def __missing__(self, name: str) -> Array:
        value, known = self._partial(name)
        if not known.all():
            raise LaneError(f"reads {name}, which this thread has not set", ~known)
        self[name] = value
        del self.partial[name]
        return value

    def _partial(self, name: str) -> tuple[Array, Array]:
        if name not in self.partial:
            raise LaneError(f"reads {name}, which no thread has set", np.ones(1, bool))
        return self.partial[name]

    def some(self, name: str, index: Array) -> Array:
        """A register of the threads ``index``. Raises LaneError where it is not set."""
        value = self.get(name)
        if value is None:
            value, known = self._partial(name)
            if not known[index].all():
                raise LaneError(f"reads {name}, which this thread has not set", ~known[index])
        return value if value.size == 1 else value[index]

    def put(self, name: str, index: Array, value: Array, count: int) -> None:
        """Set a register of the threads ``index`` of ``count``."""
        held = self.get(name)
        if held is not None:
            if held.size != count:
                held = self[name] = np.repeat(held, count)
            held[index] = value
            return
        if name not in self.partial:
            self.partial[name] = np.zeros(count, value.dtype), np.zeros(count, bool)
        held, known = self.partial[name]
        held[index], known[index] = value, True


class Some(dict[str, Array]):
    """Registers of a group of threads, gathered on demand."""

    def __init__(self, registers: Registers, index: Array) -> None:
        super().__init__()
        self._registers, self._index = registers, index

    def __missing__(self, name: str) -> Array:
        value = self[name] = self._registers.some(name, self._index)
        return value


class Threads:
    """Some blocks of the grid. Threads are numbered from 0 in the portion; ``identity`` counts over the grid from 1.

    Time is counted in barriers: of each block, and of each warp since."""

    def __init__(self, geometry: Geometry, first: int, blocks: int, fixed: Mapping[str, Array]) -> None:
        self.geometry, self.first, self.blocks = geometry, first, blocks
        threads = geometry.threads
        self.count = blocks * threads
        self.everyone = np.arange(self.count)
        self.block, thread = self.everyone // threads, self.everyone % threads
        self.lane = thread % WARP
        self.warps = -(-threads // WARP)
        self.warp = self.block * self.warps + thread // WARP
        self.warp_sizes = np.bincount(self.warp)
        self.identity = (self.everyone + first * threads + 1).astype(np.int32)
        self.block_time = np.zeros(blocks, np.int32)
        self.warp_time = np.zeros(len(self.warp_sizes), np.int32)
        self.registers = Registers()
        self.registers.update(fixed)
        self.registers.update(self._special(thread))

    def _special(self, thread: Array) -> dict[str, Array]:
        found = {"%laneid": self.lane, "%warpid": thread // WARP}
        blocks, threads = self.geometry.block_at(self.block + self.first), self.geometry.thread_at(thread)
        for axis, name in enumerate("xyz"):
            found[f"%tid.{name}"], found[f"%ctaid.{name}"] = threads[axis], blocks[axis]
            found[f"%ntid.{name}"] = np.array([self.geometry.block[axis]])
            found[f"%nctaid.{name}"] = np.array([self.geometry.grid[axis]])
        return {name: value.astype(np.uint32) for name, value in found.items()}


class Lanes:
    """A group of threads that run together: their numbers, ascending, and their registers."""

    def __init__(self, threads: Threads, index: Array) -> None:
        self.threads, self.index, self.count = threads, index, len(index)
        self.whole = self.count == threads.count
        self.registers: dict[str, Array] = threads.registers if self.whole else Some(threads.registers, index)
        self.defined: set[str] = set()
        self.block, self.warp, self.lane = threads.block[index], threads.warp[index], threads.lane[index]
        self._full_warps = True if self.whole else None

    def park(self, live: set[str]) -> None:
        """Put back what is needed later."""
        if not self.whole:
            for name in self.defined & live:
                self.threads.registers.put(name, self.index, self.registers[name], self.threads.count)

    def full_warps(self) -> bool:
        """Whether every warp that has a thread here is here with all of its threads."""
        if self._full_warps is None:
            here = np.bincount(self.warp, minlength=len(self.threads.warp_sizes))
            self._full_warps = bool(((here == 0) | (here == self.threads.warp_sizes)).all())
        return self._full_warps

    @cached_property
    def warps(self) -> int:
        """Warps that have a thread here."""
        return 1 + np.count_nonzero(np.diff(self.warp))

    def spread(self, value: Array) -> Array:
        """One element a lane."""
        return value if value.size == self.count else np.repeat(value, self.count)

    def part(self, held: Array, names: set[str]) -> Lanes:
        """The lanes where ``held`` is set, with the registers ``names``."""
        some = Lanes(self.threads, self.index[held])
        some.registers = {}
        for name in names:
            value = self.registers[name]
            some.registers[name] = value if value.size == 1 else value[held]
        return some

    def identity(self) -> Array:
        """Numbers over the grid, from 1."""
        return self.threads.identity[self.index]

    def time(self) -> Array:
        """Barriers of the block so far, and of the warp since the last of them."""
        block = self.threads.block_time[self.block] << WARP_BITS
        return block + self.threads.warp_time[self.warp] if self.threads.warp_time.any() else block
