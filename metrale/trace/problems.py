"""What can be wrong with a trace file, by name."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

ERROR = "error"
WARNING = "warning"

# kind: (severity, message). `{s}` is a plural ending, `{where}` the line or lines concerned.
_KINDS: dict[str, tuple[str, str]] = {
    "empty_file": (ERROR, "the file is empty"),
    "binary": (ERROR, "{where} holds NUL bytes: binary data, or text in UTF-16"),
    "not_utf8": (ERROR, "{where}: not UTF-8"),
    "bom": (WARNING, "the file starts with a UTF-8 byte order mark"),
    "crlf": (WARNING, "CRLF line ends: {where}"),
    "trailing_blanks": (WARNING, "blanks at the line end: {where}"),
    "empty_line": (WARNING, "extra empty line{s}: {where}"),
    "missing_final_newline": (WARNING, "the last line ({where}) has no line end"),
    "page": (WARNING, "trace found at lines {detail} of the page"),
    "no_trace": (ERROR, "no line of the file belongs to a trace; {detail}"),
    "cut_line": (ERROR, "the file ends inside {where}: {detail}"),
    "malformed": (ERROR, "{detail}"),
    "missing_header": (ERROR, "`# scenario <name>` is missing: a trace starts with it"),
    "second_header": (ERROR, "another trace starts at {where}: one trace a file"),
    "misplaced": (ERROR, "{where}: out of order (header, calls, rotation ack, out lines)"),
    "no_outs": (ERROR, "sequences were served, but no `out` line follows: the trace is not complete"),
    "ends_early": (ERROR, "the calls end without `teardown()`: the trace is not complete"),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One named problem of a trace file.

    ``line`` and ``column`` count from 1 and are None for the file as a whole; a problem that many lines share is
    reported once, with its first line and ``count``. ``expected`` and ``hint`` are set for a malformed line: what
    the grammar wants at the column, and the nearest call or the call's signature.
    """

    kind: str
    severity: str
    message: str
    line: int | None = None
    column: int | None = None
    count: int = 1
    expected: str | None = None
    hint: str | None = None

    def __str__(self) -> str:
        place = "" if self.line is None else f"{self.line}:" if self.column is None else f"{self.line}:{self.column}:"
        hint = f" ({self.hint})" if self.hint else ""
        return f"{place}{' ' if place else ''}{self.severity}: {self.message}{hint}"

    def in_file(self, name: str) -> str:
        """``<file>:<line>:<column>: <severity>: <message>``, as editors read it."""
        return f"{name}:{self}" if self.line is not None else f"{name}: {self}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def problem(kind: str, line: int | None = None, count: int = 1, detail: str = "", **more: Any) -> Problem:
    """Make the problem named ``kind`` with its standing message."""
    severity, text = _KINDS[kind]
    where = f"line {line}" if count == 1 else f"{count} lines, the first is line {line}"
    message = text.format(where=where, detail=detail, s="" if count == 1 else "s")
    return Problem(kind, severity, message, line, count=count, **more)
