"""Which decode-ring slot holds the recurrent state of which output position (S3 section 9.3)."""

from __future__ import annotations


class SnapshotRing:
    """Boundary snapshots of one row: ``capacity`` slots, the oldest owner of a slot gives way."""

    __slots__ = ("capacity", "cursor", "entries")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.cursor = 0
        self.entries: list[tuple[int, int]] = []

    def record(self, position: int) -> int:
        """Give ``position`` the next slot; returns the slot."""
        slot = self.cursor
        self.cursor = (slot + 1) % self.capacity
        self.entries = [entry for entry in self.entries if entry[1] != slot]
        self.entries.append((position, slot))
        return slot

    def lookup(self, position: int) -> int | None:
        """The slot that holds exactly ``position``."""
        return next((slot for held, slot in self.entries if held == position), None)

    def cut(self, position: int) -> None:
        """Forget what lies beyond ``position``; the cursor resumes after the newest survivor."""
        self.entries = [entry for entry in self.entries if entry[0] <= position]
        self.cursor = (self.entries[-1][1] + 1) % self.capacity if self.entries else 0
