"""KV blocks by count, as the log shows them; the block size is inferred from the counts (S1 section 2).

A sequence holds ``max(base, peak // size + 1)`` blocks, where ``peak`` is the longest it has been. That never grows
with the block size, so each printed count narrows the possible sizes to an interval.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .ghost import Seq

LARGEST = 1024
NEVER = 1 << 62


class Pool:
    """``low`` and ``high`` bound the block size; ``used_low`` and ``used_high`` are the blocks in use under each."""

    def __init__(self) -> None:
        self.low, self.high = 1, LARGEST
        self.used_low = self.used_high = 0
        self.total: int | None = None
        self.holders: dict[int, Seq] = {}
        self.blind = False

    def blocks(self, seq: Seq, size: int) -> int:
        """Blocks that ``seq`` holds under a block size."""
        return max(seq.base, seq.peak // size + 1 if seq.peak else 0)

    def add(self, seq: Seq) -> None:
        """A new sequence: no blocks yet."""
        self.holders[id(seq)] = seq

    def cover(self, seq: Seq, length: int) -> None:
        """A forward brought ``seq`` to ``length`` tokens; blocks are never given back by a rewind."""
        if length > seq.peak:
            seq.peak = length
            self._resize(seq)

    def set_base(self, seq: Seq, blocks: int) -> None:
        """A restore took exactly ``blocks``."""
        seq.base = blocks
        self._resize(seq)

    def shrink(self, seq: Seq, peak: int) -> None:
        """Reserved blocks went back: the sequence holds what ``peak`` tokens need."""
        seq.peak = peak
        self._resize(seq)

    def drop(self, seq: Seq) -> None:
        """The sequence is gone; what a reclaim already counted is not given back twice (D16)."""
        if self.holders.pop(id(seq), None) is not None:
            self.used_low = max(0, self.used_low - seq.low)
            self.used_high = max(0, self.used_high - seq.high)

    def reclaim(self, got: int) -> None:
        """The prefix cache gave blocks back."""
        self.blind = self.blind or self.low != self.high
        self.used_low = max(0, self.used_low - got)
        self.used_high = max(0, self.used_high - got)

    def believe(self, free: int) -> None:
        """After a reclaim under an unknown block size: once the size is known, the next count is taken as it is."""
        if self.low == self.high and free > 0:
            assert self.total is not None
            self.used_low = self.used_high = self.total - free
            self.blind = False

    def _resize(self, seq: Seq) -> None:
        low = self.blocks(seq, self.low)
        high = low if self.low == self.high else self.blocks(seq, self.high)
        self.used_low += low - seq.low
        self.used_high += high - seq.high
        if low < seq.low:
            self.used_low, self.used_high = max(0, self.used_low), max(0, self.used_high)
        seq.low, seq.high = low, high
        seq.limit = low * self.low if seq.peak and self.low == self.high else 0

    # -- what printed numbers say about the block size

    def free_range(self) -> tuple[int, int]:
        """The free counts that the possible block sizes allow: (fewest, most)."""
        assert self.total is not None
        return max(0, self.total - self.used_low), max(0, self.total - self.used_high)

    def learn_free(self, free: int) -> bool:
        """Narrow the block size by a printed free count; False if no size explains it."""
        assert self.total is not None
        used = self.total - free
        offset = self.used_low - sum(seq.low for seq in self.holders.values())

        def in_use(size: int) -> int:
            return max(0, sum(self.blocks(seq, size) for seq in self.holders.values()) + offset)

        if free == 0:
            return self._narrow(lambda size: in_use(size) >= used, lambda size: True)
        return self._narrow(lambda size: in_use(size) >= used, lambda size: in_use(size) <= used)

    def learn_blocks(self, seq: Seq, blocks: int) -> bool:
        """Narrow the block size by the printed count of one sequence; False if no size explains it."""
        if self.low == self.high or seq.low == seq.high:
            return blocks == seq.low
        return self._narrow(
            lambda size: self.blocks(seq, size) >= blocks, lambda size: self.blocks(seq, size) <= blocks
        )

    def _narrow(self, enough, few) -> bool:  # type: ignore[no-untyped-def]
        """Keep the sizes with ``enough(size) and few(size)``; the first holds up to a size, the second from one on."""
        low, high = self.low, self.high
        if not enough(low) or not few(high):
            return False
        first, last = low, high
        while first < last:
            middle = (first + last) // 2
            first, last = (first, middle) if few(middle) else (middle + 1, last)
        lowest = first
        first, last = low, high
        while first < last:
            middle = (first + last + 1) // 2
            first, last = (middle, last) if enough(middle) else (first, middle - 1)
        highest = first
        if lowest > highest:
            return False
        self._set(lowest, highest)
        return True

    def _set(self, low: int, high: int) -> None:
        before_low, before_high = self.low, self.high
        self.low, self.high = low, high
        for seq in self.holders.values():
            now_low = self.blocks(seq, low) if low != before_low else seq.low
            now_high = self.blocks(seq, high) if high != before_high else seq.high
            self.used_low += now_low - seq.low
            self.used_high += now_high - seq.high
            seq.low, seq.high = now_low, now_high
            seq.limit = now_low * low if seq.peak and low == high else 0
