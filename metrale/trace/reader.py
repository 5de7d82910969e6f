"""Trace files: bytes to records, line by line in bounded memory, with every problem named (S1 section 1)."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple

from .diagnose import diagnose, suggest
from .fast import fast_reader
from .parser import LineError, parse_line
from .problems import ERROR, Problem, problem
from .records import (
    AllocSequence,
    AllocSequenceFor,
    FxTeardown,
    Header,
    Out,
    Record,
    RotationAck,
    Stage,
    Teardown,
    Tick,
)

Source = str | Path | bytes | BinaryIO
"""A path, the bytes of a file, or an open binary stream."""

MAX_DETAILS = 20
"""So many malformed lines are explained; the others are counted."""

_PAGED_HEADER = re.compile(r"(\s*[0-9]+[:.|)]?\s+)?(# scenario \S(?:.*\S)?)\s*")
_NUMBERED = re.compile(r"\s*[0-9]+[:.|)]?\s+")


class Line(NamedTuple):
    """A line that was read: its 1-based number in the file, its text and its record."""

    number: int
    text: str
    record: Record


class TraceError(ValueError):
    """A file that is no usable trace; ``problems`` says why."""

    def __init__(self, name: str, problems: list[Problem]) -> None:
        super().__init__("\n".join(found.in_file(name) for found in problems))
        self.problems = problems


@contextmanager
def open_source(source: Source) -> Iterator[BinaryIO]:
    """A binary stream over ``source``; closed at the end if it was opened here. Raises OSError."""
    if isinstance(source, bytes):
        yield BytesIO(source)
    elif isinstance(source, str | Path):
        with open(source, "rb") as stream:
            yield stream
    else:
        yield source


def source_name(source: Source, default: str = "<bytes>") -> str:
    """What to call ``source`` in a message."""
    return str(source) if isinstance(source, str | Path) else getattr(source, "name", default)


class TraceScan:
    """Iterate over the lines of one file; afterwards ``problems`` holds all that was wrong with it.

    Nothing but the problems is kept, so memory is bounded by the longest line. Malformed lines are left out of the
    iteration. With ``fragment`` a file may lack its header, its end or its order (a piece of a log).
    A trace inside a scraped page is found: text before the header and behind the last line is skipped, a column of
    line numbers is dropped, and line numbers are those of the page.
    """

    def __init__(self, stream: BinaryIO, *, fragment: bool = False) -> None:
        self._stream = stream
        self._fragment = fragment
        self._read = fast_reader().read
        self._shared: dict[str, list[int]] = {}
        self._found: list[Problem] = []
        self._block: Stage | None = None
        self._unended: int | None = None
        self._page = self._numbered = self._served = False
        self._first: int | None = None
        self._last: Line | None = None
        self.lines = 0
        """Lines of the file that were looked at."""
        self.records = 0
        """Lines that were read."""
        self.malformed = 0
        """Lines that the grammar refuses."""

    def __iter__(self) -> Iterator[Line]:
        read = self._read
        for number, text in self._trace_lines():
            record = read(text)
            if record is None:
                repaired = self._repair(number, text)
                if repaired is None:
                    continue
                text, record = repaired
            if record.stage != self._block:
                self._enter(number, record.stage)
            elif not self._served and isinstance(record, AllocSequence | AllocSequenceFor):
                self._served = True
            self.records += 1
            self._last = line = Line(number, text, record)
            yield line
        self._finish()

    @property
    def problems(self) -> list[Problem]:
        """All problems in file order: one per kind, and the first :data:`MAX_DETAILS` malformed lines."""
        shared = [problem(kind, line, count) for kind, (line, count) in self._shared.items()]
        return sorted(self._found + shared, key=lambda found: (found.line or 0, found.column or 0))

    # ------------------------------------------------------------ bytes to lines

    def _physical_lines(self) -> Iterator[tuple[int, str]]:
        for number, raw in enumerate(self._stream, 1):
            self.lines = number
            if raw.endswith(b"\n"):
                raw = raw[:-1]
            else:
                self._unended = number
            if number == 1 and raw.startswith(BOM_UTF8):
                self._mark("bom", 1)
                raw = raw[len(BOM_UTF8) :]
            if raw.endswith(b"\r"):
                self._mark("crlf", number)
                raw = raw[:-1]
            if b"\0" in raw:
                self._mark("binary", number)
                return
            try:
                yield number, raw.decode()
            except UnicodeDecodeError:
                self._mark("not_utf8", number)

    def _trace_lines(self) -> Iterator[tuple[int, str]]:
        """The lines of the trace itself, without the page around it."""
        lines = self._physical_lines()
        for number, text in lines if self._fragment else self._from_header(lines):
            if self._page:
                if text.strip().isdigit():
                    continue
                if self._numbered:
                    text = _NUMBERED.sub("", text, count=1)
                if self._is_page_text(text):
                    break
            yield number, text
        for number, text in lines:
            if _PAGED_HEADER.fullmatch(text):
                self._mark("second_header", number)

    def _from_header(self, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
        """Start at the header, or at the first line that a trace can hold; without any, give the lines back."""
        skipped: list[tuple[int, str]] = []
        for number, text in lines:
            header = _PAGED_HEADER.fullmatch(text)
            if header and (header[1] or any(line.strip() for _, line in skipped)):
                self._page = True
                self._numbered = header[1] is not None
                return chain([(number, text)], lines)
            if header or self._read(text):
                return chain(skipped, [(number, text)], lines)
            if len(skipped) < MAX_DETAILS:
                skipped.append((number, text))
        return iter(skipped)

    def _is_page_text(self, text: str) -> bool:
        """Whether the trace in the page is over: it is complete, and the line is none of a trace."""
        complete = self._block is Stage.OUT or self._torn_down
        return complete and not text.startswith(("out s", "rotation ack")) and self._read(text) is None

    # ------------------------------------------------------------ lines to records

    def _repair(self, number: int, text: str) -> tuple[str, Record] | None:
        """Read a line in spite of blanks at its end; else note what is wrong with it."""
        bare = text.rstrip(" \t")
        if not bare:
            self._mark("empty_line", number)
            return None
        for candidate in (bare, bare + " ") if bare != text else ():
            record = self._read(candidate)
            if record is not None:
                self._mark("trailing_blanks", number)
                return candidate, record
        self.malformed += 1
        if self.malformed <= MAX_DETAILS:
            kind = "cut_line" if number == self._unended else "malformed"
            self._found.append(line_problem(kind, number, text))
        return None

    def _enter(self, number: int, stage: Stage) -> None:
        """The line belongs to another block than the one that is due."""
        due, self._block = self._block, stage
        if due is None:
            self._first = number
        if self._fragment:
            return
        if due is None and stage is not Stage.HEADER:
            self._mark("missing_header", number)
        elif due is not None and stage is Stage.HEADER:
            self._mark("second_header", number)
        elif due is Stage.CALLS and not self._torn_down:
            self._mark("ends_early", number)
        elif due is not None and stage < due:
            self._mark("misplaced", number)
            self._block = due
        if stage in (Stage.HEADER, Stage.ROTATION):
            self._block = Stage(stage + 1)

    @property
    def _torn_down(self) -> bool:
        return self._last is not None and isinstance(self._last.record, Teardown | FxTeardown)

    def _finish(self) -> None:
        """The end of the file: what can only be said now."""
        last = self._last
        if "binary" in self._shared:
            return
        if last is None:
            self._name_the_void()
            return
        if self._page:
            self._found.append(problem("page", self._first, detail=f"{self._first}-{last.number}"))
        if last.number == self._unended:
            record = last.record
            if isinstance(record, Out) and record.events and not record.ended:
                self._found.append(problem("cut_line", last.number, detail="no terminal event, no line end"))
            else:
                self._mark("missing_final_newline", last.number)
        if self._block is Stage.CALLS and not self._fragment:
            if not self._torn_down:
                self._mark("ends_early", last.number)
            elif self._served:
                self._mark("no_outs", last.number)

    def _name_the_void(self) -> None:
        """No line was read: one problem says why, in place of one for each line."""
        self._shared = {kind: mark for kind, mark in self._shared.items() if kind == "not_utf8"}
        if self._found:
            first = self._found[0]
            self._found = [problem("no_trace", first.line, detail=f"line {first.line}: {first.message}")]
        elif not self._shared:
            self._found = [problem("empty_file")]

    def _mark(self, kind: str, number: int) -> None:
        self._shared.setdefault(kind, [number, 0])[1] += 1


def line_problem(kind: str, number: int, text: str) -> Problem:
    """The problem of a line that the grammar refuses."""
    try:
        parse_line(text)
    except LineError as error:
        why = diagnose(error)
        hint = suggest(text)
        return problem(kind, number, detail=str(why), column=why.column, expected=why.expected, hint=hint)
    raise AssertionError(f"the fast reader refuses a line that the grammar takes: {text[:200]!r}")


# ---------------------------------------------------------------- whole files


class TickBlock(NamedTuple):
    """The lines of one tick, as indexes into ``TraceFile.lines``: from its marker up to the next one.

    Tick 0 is the start-up, before the first marker. What a tick's drain writes stands before its marker and so in the
    block before (S1 section 9).
    """

    tick: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace in memory: its lines with numbers and records, and what was odd about the bytes (warnings only)."""

    name: str
    lines: list[Line]
    problems: list[Problem]

    def __iter__(self) -> Iterator[Line]:
        return iter(self.lines)

    @property
    def records(self) -> list[Record]:
        """The record of every line, in file order."""
        return [line.record for line in self.lines]

    def block(self, stage: Stage) -> list[Line]:
        """The lines of one block of the file."""
        return [line for line in self.lines if line.record.stage is stage]

    @property
    def scenario(self) -> str | None:
        """The name in the header; None for a fragment without one."""
        return next((line.record.name for line in self.lines if isinstance(line.record, Header)), None)

    @property
    def calls(self) -> list[Line]:
        """Tick markers, router lines and device calls."""
        return self.block(Stage.CALLS)

    @property
    def rotation_ack(self) -> RotationAck | None:
        """The answer to the adapter rotation, if the scenario had one."""
        return next((line.record for line in self.lines if isinstance(line.record, RotationAck)), None)

    @property
    def outs(self) -> list[Out]:
        """What each client saw, in request order."""
        return [line.record for line in self.lines if isinstance(line.record, Out)]

    def ticks(self) -> list[TickBlock]:
        """The call lines, cut at the tick markers."""
        calls = [index for index, line in enumerate(self.lines) if line.record.stage is Stage.CALLS]
        if not calls:
            return []
        marks = [(calls[0], 0)]
        for index in calls:
            record = self.lines[index].record
            if isinstance(record, Tick):
                marks.append((index, record.tick))
        stops = [*(index for index, _ in marks[1:]), calls[-1] + 1]
        return [TickBlock(tick, start, stop) for (start, tick), stop in zip(marks, stops, strict=True)]


def read_trace(source: Source, *, fragment: bool = False) -> TraceFile:
    """Read a whole trace file into memory.

    Raises OSError, and :class:`TraceError` if a problem of severity ``error`` was found. A byte order mark, CRLF, a
    missing final newline, trailing blanks, empty lines and a page around the trace are warnings.
    """
    name = source_name(source)
    with open_source(source) as stream:
        scan = TraceScan(stream, fragment=fragment)
        lines = list(scan)
    problems = scan.problems
    if any(found.severity == ERROR for found in problems):
        raise TraceError(name, problems)
    return TraceFile(name, lines, problems)
