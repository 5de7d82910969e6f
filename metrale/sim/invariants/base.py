"""What every invariant is made of: name, sentence, the lines it listens to, and what it says when it is broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from metrale.trace.records import Record

if TYPE_CHECKING:
    from .ghost import Ghost

MAX_PER_INVARIANT = 3
"""So many violations of one invariant are reported; a first broken line often breaks all that follow."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule: the invariant's name, what is wrong in plain English, and the lines (1-based) that show it."""

    invariant: str
    message: str
    lines: tuple[int, ...]

    @property
    def kind(self) -> str:
        """What makes two violations the same failure: the rule, and the message without its numbers."""
        words = "".join("#" if letter.isdigit() else letter for letter in self.message)
        while "##" in words:
            words = words.replace("##", "#")
        return f"{self.invariant}: {words}"

    def __str__(self) -> str:
        where = "line" if len(self.lines) == 1 else "lines"
        place = f"{where} {', '.join(map(str, self.lines))}: " if self.lines else ""
        return f"{place}{self.message} [{self.invariant}]"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"invariant": self.invariant, "message": self.message, "lines": list(self.lines)}


_F = TypeVar("_F", bound=Callable[..., Any])


def on(*kinds: type[Record]) -> Callable[[_F], _F]:
    """Let a method listen to these records; it is called with the record, before the ghost takes it in."""

    def mark(method: _F) -> _F:
        method.listens = (*getattr(method, "listens", ()), *kinds)  # type: ignore[attr-defined]
        return method

    return mark


class Invariant:
    """A rule that every legal trace keeps. Subclasses give ``name`` and ``sentence`` and listen with :func:`on`.

    ``ghost`` is what the lines so far say about the run; it still shows the state before the present line.
    """

    name: ClassVar[str]
    sentence: ClassVar[str]
    needs_scenario: ClassVar[bool] = False

    def __init__(self, ghost: Ghost) -> None:
        self.g = ghost

    def fail(self, message: str, *lines: int) -> None:
        """Report at the present line, with the earlier ``lines`` that it contradicts."""
        self.g.report(self.name, message, lines)

    def finish(self) -> None:
        """After the last line."""


def plural(count: int, noun: str) -> str:
    """``1 row``, ``2 rows``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
