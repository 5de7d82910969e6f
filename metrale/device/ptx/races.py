"""Who touched which byte last, and whether anything ordered that before the access of now.

Two accesses of different threads to one place, of which one writes, race unless a barrier lies between them:
``bar.sync`` for threads of one block, ``bar.warp.sync`` for threads of one warp, nothing for threads of different
blocks. A shuffle orders nothing. Time is counted in barriers: a block's, and a warp's since the last of its block.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
SEVERAL = -1
WARP = 32
WARP_BITS = 12
"""Bits of a time that count the barriers of a warp."""


class Shadow:
    """The last write and the reads since, of every unit of some memory.

    Threads are numbered over the grid, from 1; ``threads`` of them are a block. A time is
    ``barriers of the block << 12 | barriers of the warp since``.
    """

    def __init__(self, size: int, threads: int) -> None:
        self.threads = threads
        self.writer, self.written = np.zeros(size, np.int32), np.zeros(size, np.int32)
        self.reader, self.read_at = np.zeros(size, np.int32), np.zeros(size, np.int32)
        self.reader_warp, self.reader_block = np.zeros(size, np.int32), np.zeros(size, np.int32)

    def _block(self, thread: Array) -> Array:
        return (thread - 1) // self.threads

    def _warp(self, thread: Array) -> Array:
        return (thread - 1) % self.threads // WARP

    def _unordered(self, block: Array, warp: Array, when: Array, thread: Array, time: Array) -> Array:
        """Whether an access by some thread of ``block`` and ``warp`` at ``when`` is not ordered before this one."""
        same_block = block == self._block(thread)
        same_time = when >> WARP_BITS == time >> WARP_BITS
        same_warp = same_block & (warp == self._warp(thread))
        return ~same_block | (same_time & ~(same_warp & (when < time)))

    def _after_write(self, units: Array, thread: Array, time: Array) -> Array:
        writer = self.writer[units]
        other = (writer != 0) & (writer != thread)
        if not other.any():
            return other
        return other & self._unordered(self._block(writer), self._warp(writer), self.written[units], thread, time)

    def read(self, units: Array, thread: Array, time: Array) -> tuple[Array, Array, str] | None:
        """Note reads of units [n, k] by threads [n]; as :meth:`write`."""
        mine, now = np.broadcast_to(thread[:, None], units.shape), np.broadcast_to(time[:, None], units.shape)
        bad = self._after_write(units, mine, now)
        if bad.any():
            return bad.any(1), self.writer[units].ravel()[bad.argmax()][None], "wrote"
        before = self.reader[units]
        alone = (before == 0) | (before == mine)
        if not alone.all():
            over = self.read_at[units] >> WARP_BITS < now >> WARP_BITS
            alone |= (self.reader_block[units] == self._block(mine)) & over
        first, who = units[alone], mine[alone]
        self.reader[first], self.reader_block[first], self.reader_warp[first] = who, self._block(who), self._warp(who)
        crowd = ~alone | (self.reader[units] != mine)
        if crowd.any():
            self._join(units[crowd], mine[crowd])
        self.read_at[units] = now
        return None

    def _join(self, units: Array, thread: Array) -> None:
        """More readers of units that have one."""
        for kept, own in ((self.reader_block, self._block(thread)), (self.reader_warp, self._warp(thread))):
            kept[units] = np.where(kept[units] == own, own, SEVERAL)
            kept[units[kept[units] != own]] = SEVERAL
        self.reader[units] = SEVERAL

    def write(self, units: Array, thread: Array, time: Array, changed: Array | None) -> tuple[Array, Array, str] | None:
        """Note writes. ``changed`` (bool [n, k]): units whose value is another now; without it every write counts.

        Answers lanes that race, a thread that they race with (SEVERAL: more than one), and what that one did."""
        mine, now = np.broadcast_to(thread[:, None], units.shape), np.broadcast_to(time[:, None], units.shape)
        bad = self._after_write(units, mine, now)
        if changed is not None:
            bad = bad & changed
        if bad.any():
            return bad.any(1), self.writer[units].ravel()[bad.argmax()][None], "wrote"
        reader = self.reader[units]
        other = (reader != 0) & (reader != mine)
        if changed is not None:
            other &= changed
        if other.any():
            when = self.read_at[units]
            bad = other & self._unordered(self.reader_block[units], self.reader_warp[units], when, mine, now)
            if bad.any():
                return bad.any(1), reader.ravel()[bad.argmax()][None], "read"
        self.writer[units], self.written[units] = mine, now
        self.reader[units] = 0
        return None
