"""Random draws that are the same on every platform and Python: SplitMix64 with named sub-streams.

A sub-stream depends on the seed and its name alone. So a new draw in one stream changes no other, and a seed keeps its
meaning where the generator grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

_T = TypeVar("_T")

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FNV_BASIS, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class Stream:
    """One stream of draws. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014)."""

    __slots__ = ("_path", "_seed", "_state")

    def __init__(self, seed: int, path: str = "") -> None:
        digest = _FNV_BASIS
        for byte in path.encode():
            digest = ((digest ^ byte) * _FNV_PRIME) & _MASK
        self._seed, self._path = seed, path
        self._state = _mix((seed * _GOLDEN + digest) & _MASK)

    def sub(self, name: str) -> Stream:
        """The stream ``name`` below this one; drawing from it moves nothing here."""
        return Stream(self._seed, f"{self._path}/{name}")

    def bits(self) -> int:
        """64 random bits."""
        self._state = (self._state + _GOLDEN) & _MASK
        return _mix(self._state)

    def below(self, count: int) -> int:
        """A whole number from 0 to ``count - 1``."""
        return (self.bits() * count) >> 64

    def between(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included."""
        return low + self.below(high - low + 1)

    def one_in(self, count: int) -> bool:
        """True once in ``count`` draws."""
        return self.below(count) == 0

    def pick(self, items: Sequence[_T]) -> _T:
        """One of the items; repeat an item to weigh it."""
        return items[self.below(len(items))]

    def some(self, items: Sequence[_T], count: int) -> list[_T]:
        """``count`` different items, in their order."""
        left = list(range(len(items)))
        chosen = sorted(left.pop(self.below(len(left))) for _ in range(min(count, len(left))))
        return [items[index] for index in chosen]
