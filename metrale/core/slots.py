"""Slot labels: who owns which number. Every device keeps the same book, so that their logs show the same slots."""

from __future__ import annotations

from bisect import insort

from .sequence import NO_SLOT, Sequence


class SlotBook:
    """Slots 0, 1, 2, ...: the smallest free one is handed out, else the next never used (S6 section 9)."""

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
