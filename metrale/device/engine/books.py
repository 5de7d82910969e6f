"""Physical slots and the paged K/V pool; slot labels are the core's ``SlotBook`` and carry no memory."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable

from metrale.core.io import KvExhausted, SlotsExhausted


class PhysicalSlots:
    """Places in the recurrent pool, private to a sequence from birth to free."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count))

    def take(self) -> int:
        """A place. Raises SlotsExhausted."""
        if not self._free:
            raise SlotsExhausted(f"sequence slot pool exhausted: all {self.count} slots are in use")
        return self._free.pop(0)

    def release(self, slot: int) -> None:
        """The place goes back."""
        insort(self._free, slot)

    @property
    def free(self) -> int:
        """Places left."""
        return len(self._free)


class BlockPool:
    """K/V blocks with reference counts; block ids are the same in all layers. ``make_room`` may free one block."""

    def __init__(self, total: int, pinned: int) -> None:
        self.total = total
        self._free = list(range(total - 1, pinned - 1, -1))
        self._refs = [1] * pinned + [0] * (total - pinned)
        self.make_room: Callable[[], bool] = lambda: False

    @property
    def free(self) -> int:
        """Blocks on the free list."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """``count`` blocks or none at all. Raises KvExhausted."""
        while len(self._free) < count:
            if not self.make_room():
                raise KvExhausted(f"KV cache exhausted: {count} blocks wanted, {len(self._free)} of {self.total} free")
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._refs[block] = 1
        return blocks

    def share(self, block: int) -> None:
        """One more reference."""
        self._refs[block] += 1

    def release(self, block: int) -> bool:
        """One reference less; whether the block became free."""
        self._refs[block] -= 1
        if self._refs[block]:
            return False
        self._free.append(block)
        return True

    def references(self, block: int) -> int:
        """How many hold the block."""
        return self._refs[block]
