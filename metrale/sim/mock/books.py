"""Slots and blocks of the mock device: who owns what, and how much is left (S1 section 2)."""

from __future__ import annotations

from bisect import insort

from metrale.core.sequence import NO_SLOT, Sequence


class SlotBook:
    """Slots 0, 1, 2, ...: the smallest free one is handed out, else the next never used."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._next = 0
        self._owner: dict[int, Sequence] = {}

    def take(self) -> int:
        """The slot of a new sequence; :meth:`assign` names its owner."""
        if self._free:
            return self._free.pop(0)
        self._next += 1
        return self._next - 1

    def assign(self, slot: int, seq: Sequence) -> None:
        """``seq`` owns ``slot``."""
        self._owner[slot] = seq

    def move(self, seq: Sequence, target: int) -> None:
        """``seq`` takes ``target``, free or not; the slot it owned becomes free."""
        if target == seq.slot:
            return
        if target in self._free:
            self._free.remove(target)
        self.release(seq)
        self._owner[target] = seq
        self._next = max(self._next, target + 1)
        seq.slot = target

    def release(self, seq: Sequence) -> None:
        """The slot goes back, if ``seq`` still owns it (decision D25)."""
        if seq.slot != NO_SLOT and self._owner.get(seq.slot) is seq:
            del self._owner[seq.slot]
            insort(self._free, seq.slot)


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
