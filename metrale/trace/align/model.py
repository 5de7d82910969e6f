"""What a comparison of two traces found. A pair ``(a, b)`` always holds side A's value first."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

from .side import Side
from .state import State

T = TypeVar("T")
Both = tuple[T, T]


class Role(StrEnum):
    """How a line that is not the same on both sides is accounted for."""

    CAUSE = "cause"
    FOLDED = "folded"


class Change(StrEnum):
    """What happened to a call between A and B."""

    MISSING = "missing"
    EXTRA = "extra"
    MOVED = "moved"
    ARGUMENT = "argument changed"
    RESULT = "result changed"
    REPLACED = "replaced"
    TEXT = "text changed"
    BYTES = "bytes only"


_MIRROR = {Change.MISSING: Change.EXTRA, Change.EXTRA: Change.MISSING}


@dataclass(frozen=True, slots=True)
class Place:
    """A line that differs: cause or consequence, of which cause (from 1), by which rule it was folded (``why``).

    ``partner`` is the line of the same work on the other side, -1 if it has none.
    """

    role: Role
    cause: int
    why: str = ""
    change: Change = Change.TEXT
    partner: int = -1


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference. ``lines`` are 1-based numbers in the files; a trace that has ended has None there.

    ``argument`` is the field that differs (``slot``, ``result``, ``tokens[1]``), None when it is not about one.
    """

    lines: Both[int | None]
    tick: int | None
    calls: Both[str | None]
    argument: str | None
    values: Both[str | None]
    texts: Both[str | None]
    change: Change
    acts: Both[str | None] = (None, None)
    owners: Both[int | None] = (None, None)

    @property
    def call(self) -> str | None:
        """The call that differs: the one of the side that has it, A's if both do."""
        first, second = self.calls
        return second if self.change is Change.EXTRA or first is None else first

    def mirrored(self) -> Divergence:
        """The same, seen from B."""
        return replace(
            self,
            lines=_swap(self.lines),
            calls=_swap(self.calls),
            values=_swap(self.values),
            texts=_swap(self.texts),
            acts=_swap(self.acts),
            owners=_swap(self.owners),
            change=_MIRROR.get(self.change, self.change),
        )


@dataclass(slots=True)
class Cause:
    """A difference that nothing before it explains, and all that follows from it.

    ``lines`` are the indexes of its own lines (the same change in several places is one cause), ``folded`` those of
    its consequences, ``why`` counts these by rule.
    """

    number: int
    change: Change
    ticks: Both[int]
    call: str
    argument: str | None
    values: Both[str | None]
    act: str
    owner: int | None
    lines: Both[list[int]] = field(default_factory=lambda: ([], []))
    folded: Both[list[int]] = field(default_factory=lambda: ([], []))
    why: Counter[str] = field(default_factory=Counter)
    places: int = 1

    @property
    def total(self) -> int:
        """All lines of both traces that this cause accounts for."""
        return sum(map(len, self.lines)) + sum(map(len, self.folded))

    def mirrored(self) -> Cause:
        """The same, seen from B."""
        return replace(
            self,
            change=_MIRROR.get(self.change, self.change),
            call=self.values[1] or self.call if self.change is Change.REPLACED else self.call,
            ticks=_swap(self.ticks),
            values=_swap(self.values),
            lines=_swap(self.lines),
            folded=_swap(self.folded),
        )


@dataclass(frozen=True, slots=True)
class ClientView:
    """What one client saw on each side: the text behind ``out s<id>: ``, None where there is no such line."""

    id: int
    seen: Both[str | None]
    occurrence: int = 1

    @property
    def same(self) -> bool:
        """Whether the client saw no difference."""
        return self.seen[0] == self.seen[1]


@dataclass(slots=True)
class Comparison:
    """Two traces, aligned.

    ``runs`` are stretches of lines that are the same on both sides: first line on A, on B, number of lines (indexes).
    ``places`` holds a :class:`Place` for every other line; partners are indexes into the other side's lines. Behind
    ``read`` (one index per side) lines that have no equal in order were not looked at: ``unread`` counts them by call.
    ``marks`` are differences of the bytes alone. ``before`` and ``after`` are the scheduler's states at the first
    divergence and at the end of its tick.
    """

    sides: Both[Side]
    marks: tuple[str, ...] = ()
    bytes_equal: bool = False
    divergence: Divergence | None = None
    causes: list[Cause] = field(default_factory=list)
    runs: list[tuple[int, int, int]] = field(default_factory=list)
    places: Both[dict[int, Place]] = field(default_factory=lambda: ({}, {}))
    clients: list[ClientView] = field(default_factory=list)
    before: Both[State | None] = (None, None)
    after: Both[State | None] = (None, None)
    read: Both[int] = (0, 0)
    unread: Both[Counter[str]] = field(default_factory=lambda: (Counter(), Counter()))

    @property
    def equal(self) -> bool:
        """Byte for byte."""
        return self.bytes_equal

    @property
    def bytes_only(self) -> bool:
        """The lines are the same, their bytes are not."""
        return not self.bytes_equal and not self.causes

    @property
    def tally(self) -> Counter[Change]:
        """How many lines are missing, extra, moved or changed; what stands on both sides counts once."""
        left, right = self.places
        tally = Counter(place.change for place in left.values())
        tally.update(place.change for place in right.values() if place.partner < 0)
        return tally

    @property
    def differing(self) -> int:
        """Lines of both traces that are not the same."""
        return sum(cause.total for cause in self.causes) + sum(count.total() for count in self.unread)

    @property
    def unexplained(self) -> int:
        """Differing lines that do not follow from the first divergence."""
        return self.differing - (self.causes[0].total if self.causes else 0)

    def mirrored(self) -> Comparison:
        """The comparison of B with A."""
        return replace(
            self,
            sides=_swap(self.sides),
            divergence=self.divergence and self.divergence.mirrored(),
            causes=[cause.mirrored() for cause in self.causes],
            runs=[(y, x, count) for x, y, count in self.runs],
            places=(_mirrored(self.places[1]), _mirrored(self.places[0])),
            read=_swap(self.read),
            unread=_swap(self.unread),
            clients=[replace(view, seen=_swap(view.seen)) for view in self.clients],
            before=_swap(self.before),
            after=_swap(self.after),
        )


def _mirrored(places: dict[int, Place]) -> dict[int, Place]:
    return {index: replace(place, change=_MIRROR.get(place.change, place.change)) for index, place in places.items()}


def _swap(pair: tuple[T, T]) -> tuple[T, T]:
    return pair[1], pair[0]
