"""Linting a trace or a piece of a log against the grammar, in bounded memory and with a bounded report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .problems import ERROR, Problem
from .reader import Source, TraceScan, open_source, source_name


@dataclass(frozen=True, slots=True)
class LintReport:
    """What is wrong with one file.

    ``lines`` were looked at, ``records`` of them are lines of the language, ``malformed`` are not. ``problems`` holds
    one entry per named problem of the file and the first few malformed lines (:data:`.reader.MAX_DETAILS`).
    """

    file: str
    lines: int
    records: int
    malformed: int
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """No errors; warnings are allowed."""
        return not any(found.severity == ERROR for found in self.problems)

    @property
    def exit_status(self) -> int:
        """0, or 2 (bad input) if there is an error."""
        return 0 if self.ok else 2

    @property
    def summary(self) -> str:
        """One line for the end of the report."""
        if not self.problems:
            return f"{self.file}: {self.lines} lines, no problem"
        more = self.malformed - sum(found.kind in ("malformed", "cut_line") for found in self.problems)
        tail = f", {more} more malformed lines not shown" if more > 0 and self.records else ""
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        return f"{self.file}: {self.lines} lines, {self.malformed} malformed, {count}{tail}"

    def __str__(self) -> str:
        return "\n".join([*(found.in_file(self.file) for found in self.problems), self.summary])

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "file": self.file,
            "ok": self.ok,
            "lines": self.lines,
            "records": self.records,
            "malformed": self.malformed,
            "problems": [found.to_dict() for found in self.problems],
        }


def lint_grammar(source: Source, *, fragment: bool = False) -> LintReport:
    """Check every line of ``source`` and the order of its blocks. Raises OSError.

    ``fragment`` allows a piece of a log: no header, no end, any order.
    """
    with open_source(source) as stream:
        scan = TraceScan(stream, fragment=fragment)
        for _ in scan:
            pass
    return LintReport(source_name(source), scan.lines, scan.records, scan.malformed, tuple(scan.problems))
