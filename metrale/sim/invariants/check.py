"""Running all invariants over a trace: one pass, memory bounded by what is live and by the client streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from metrale.trace import Line, read_line
from metrale.trace.records import Record

from .base import Invariant, Violation
from .ghost import Ghost
from .protocol import Conductor, Protocol
from .registry import INVARIANTS
from .replay import Replay

if TYPE_CHECKING:
    from metrale.sim.scenario import Scenario

Handler = Callable[[Any], None]


class TraceCheck:
    """Feed it every record of a trace in order, then ask for the violations.

    With a ``scenario`` the rules that need to know what was asked for are checked as well.
    """

    def __init__(self, scenario: Scenario | None = None) -> None:
        self.ghost = Ghost(scenario)
        self.invariants = [kind(self.ghost) for kind in INVARIANTS if scenario is not None or not kind.needs_scenario]
        self.conductor = Conductor([rule for rule in self.invariants if isinstance(rule, Protocol)])
        table: dict[type[Record], list[Handler]] = {}
        for listener in (*self.invariants, Replay(self.ghost)):
            for kind, handler in _handlers(listener):
                table.setdefault(kind, []).append(handler)
        self.table = {kind: tuple(handlers) for kind, handlers in table.items()}

    def run(self, lines: Iterable[tuple[int, Record]]) -> list[Violation]:
        """Take in many lines and give the verdict."""
        ghost, table, conductor = self.ghost, self.table, self.conductor
        step, starters, strays = conductor.step, conductor.starters, conductor.strays
        for number, record in lines:
            ghost.line = number
            ghost.index += 1
            kind = type(record)
            if conductor.wish is not None or kind in starters or kind in strays:
                step(record)
            for handler in table.get(kind, ()):
                handler(record)
        return self.finish()

    def finish(self) -> list[Violation]:
        """The log is over: what can only be said now."""
        self.conductor.finish()
        for rule in self.invariants:
            rule.finish()
        return sorted(self.ghost.violations, key=lambda found: found.lines[-1:] or (0,))


@cache
def _listens(kind: type) -> tuple[tuple[type[Record], str], ...]:
    """The records that a class listens to, with the names of its methods."""
    methods = ((name, getattr(kind, name, None)) for name in dir(kind))
    return tuple((record, name) for name, method in methods for record in getattr(method, "listens", ()))


def _handlers(listener: object) -> Iterator[tuple[type[Record], Handler]]:
    for kind, name in _listens(type(listener)):
        yield kind, getattr(listener, name)


def check_records(lines: Iterable[tuple[int, Record]], scenario: Scenario | None = None) -> list[Violation]:
    """All violations of the records of one trace, given with their line numbers."""
    return TraceCheck(scenario).run(lines)


def check_lines(lines: Iterable[Line], scenario: Scenario | None = None) -> list[Violation]:
    """All violations of the lines of one trace file."""
    return TraceCheck(scenario).run((line.number, line.record) for line in lines)


def check_text(text: str, scenario: Scenario | None = None) -> list[Violation]:
    """All violations of a trace given as text. Raises :class:`metrale.trace.LineError` for a line that is none."""
    return TraceCheck(scenario).run((number, read_line(line)) for number, line in enumerate(text.splitlines(), 1))


__all__ = ["Invariant", "TraceCheck", "Violation", "check_lines", "check_records", "check_text"]
