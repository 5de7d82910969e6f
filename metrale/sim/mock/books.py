"""Blocks of the mock device: how much is left (S1 section 2)."""

from __future__ import annotations

from metrale.core.sequence import Sequence


class BlockBook:
    """A pool of KV blocks by count. It may be overdrawn; the free count never shows less than 0."""

    def __init__(self, total: int, held: int, reclaimable: int) -> None:
        self.total = total
        self.held = held
        self.reclaimable = reclaimable
        self.used = 0

    @property
    def free(self) -> int:
        """Blocks neither used nor held."""
        return max(0, self.total - self.used - self.held)

    def grow(self, seq: Sequence, blocks: int) -> int:
        """Raise the block table to ``blocks`` entries; entries added."""
        added = blocks - seq.num_blocks
        if added <= 0:
            return 0
        self.used += added
        seq.num_blocks = blocks
        return added

    def give_back(self, seq: Sequence, count: int) -> None:
        """Drop the last ``count`` entries, at most all of them (clamped: decision D16)."""
        count = min(count, seq.num_blocks)
        seq.num_blocks -= count
        self.used = max(0, self.used - count)

    def reclaim(self, count: int) -> int:
        """Blocks that the prefix cache gives back."""
        got = min(count, self.reclaimable)
        self.reclaimable -= got
        self.used = max(0, self.used - got)
        return got
