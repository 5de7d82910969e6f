"""The first difference of two traces: bytes first, then the line, its tick and the argument that differs.

Time is linear in the input and the report is bounded, whatever the input (one line of megabytes, all lines changed).
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from itertools import islice, zip_longest
from typing import Any

from .fast import fast_reader
from .reader import Source, open_source, source_name
from .records import Record
from .writer import spell_fields

CONTEXT = 10
"""Lines shown before the difference."""

MAX_FIELDS = 20
"""Arguments shown of one line."""

_WIDTH = 160

MARKS = {
    "bom": "a UTF-8 byte order mark",
    "crlf": "CRLF line ends",
    "trailing_blanks": "blanks at line ends",
    "empty_lines": "empty lines",
    "missing_final_newline": "no final newline",
}


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """One argument or answer that differs; ``path`` is its place in the record, as ``tokens[1]``."""

    path: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class TraceDiff:
    """The first difference between traces ``a`` and ``b``.

    ``kind`` is ``equal``; ``bytes``: the lines are the same, ``marks`` tells how their bytes differ; ``line``: the
    lines numbered ``line_a`` and ``line_b`` differ from ``column`` on; or ``end``: one trace has no line where the
    other goes on. ``where`` is ``tick <t>``, ``start-up`` or ``clients``, ``tick`` the number alone. ``fields`` is
    empty if the lines are two different calls. ``context`` holds the lines before, numbered as in ``a``.
    """

    a: str
    b: str
    kind: str
    marks: tuple[str, ...] = ()
    line_a: int | None = None
    line_b: int | None = None
    where: str | None = None
    tick: int | None = None
    column: int | None = None
    text_a: str | None = None
    text_b: str | None = None
    summary: str = ""
    fields: tuple[FieldDifference, ...] = ()
    context: tuple[tuple[int, str], ...] = ()

    @property
    def equal(self) -> bool:
        """Whether the files are the same, byte for byte."""
        return self.kind == "equal"

    @property
    def exit_status(self) -> int:
        """0 if equal, else 1 (a difference)."""
        return 0 if self.equal else 1

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [self.summary, *(f"  {mark}" for mark in self.marks)]
        lines += [f"    {number:>6}  {text}" for number, text in self.context]
        for sign, number, text in (("-", self.line_a, self.text_a), ("+", self.line_b, self.text_b)):
            if text is not None:
                lines.append(f"  {sign} {number:>6}  {text}")
        lines += [f"  {field.path}: {field.a} -> {field.b}" for field in self.fields]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class TraceLines:
    """A trace without what only its bytes show: ``marks`` counts that; ``numbers`` are those of the file."""

    texts: list[str]
    numbers: list[int]
    marks: dict[str, int]


def trace_lines(data: bytes) -> TraceLines:
    """Cut a file into its lines and count what only the bytes show."""
    marks = dict.fromkeys(MARKS, 0)
    if data.startswith(BOM_UTF8):
        marks["bom"] = 1
        data = data[len(BOM_UTF8) :]
    rows = data.decode("utf-8", "backslashreplace").split("\n")
    if rows[-1]:
        marks["missing_final_newline"] = 1
    else:
        rows.pop()
    texts, numbers = [], []
    for number, row in enumerate(rows, 1):
        text = row.rstrip(" \t\r")
        if text != row:
            marks["crlf"] += row.endswith("\r")
            blanks = row.rstrip("\r") != text and not _empty_stream(row.rstrip("\r"))
            marks["trailing_blanks"] += blanks
        if text:
            texts.append(text)
            numbers.append(number)
        else:
            marks["empty_lines"] += 1
    return TraceLines(texts, numbers, marks)


def _empty_stream(text: str) -> bool:
    """The one line that ends in a blank: an ``out`` line without events."""
    return text.startswith("out s") and text.endswith(": ") and text[5:-2].isdigit()


def diff_traces(a: Source, b: Source) -> TraceDiff:
    """Find the first difference. Raises OSError."""
    with open_source(a) as stream_a, open_source(b) as stream_b:
        data_a, data_b = stream_a.read(), stream_b.read()
    names = source_name(a, "a"), source_name(b, "b")
    if data_a == data_b:
        return TraceDiff(*names, "equal", summary=f"{names[0]} and {names[1]} are equal")
    left, right = trace_lines(data_a), trace_lines(data_b)
    marks = tuple(mark_differences(names, left.marks, right.marks))
    at = _first_difference(left.texts, right.texts)
    if at == len(left.texts) == len(right.texts):
        marks = marks or (f"the first byte that differs is {_first_difference(data_a, data_b)}",)
        return TraceDiff(*names, "bytes", marks, summary=f"{names[0]} and {names[1]} differ in their bytes only")
    longer = left if at < len(left.texts) else right
    where, tick = _place(longer, at)
    context = tuple((left.numbers[i], _clip(left.texts[i])) for i in range(max(0, at - CONTEXT), at))
    found = TraceDiff(*names, "line", marks, where=where, tick=tick, context=context)
    return (
        _ending(found, left, right, at)
        if at in (len(left.texts), len(right.texts))
        else _changed(found, left, right, at)
    )


def _first_difference(a: Sequence[Any], b: Sequence[Any]) -> int:
    """The first index at which the sequences differ; the length of the shorter one if it is the start of the other."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def mark_differences(names: tuple[str, str], a: dict[str, int], b: dict[str, int]) -> Iterator[str]:
    """What one file's bytes have more of than the other's, in words."""
    for mark, text in MARKS.items():
        for name, here, there in ((names[0], a[mark], b[mark]), (names[1], b[mark], a[mark])):
            if here > there:
                count = "" if mark in ("bom", "missing_final_newline") else f" ({here} against {there})"
                yield f"{name} has {text}{count}"


def _ending(found: TraceDiff, a: TraceLines, b: TraceLines, at: int) -> TraceDiff:
    """One trace is the start of the other."""
    if at == len(a.texts):
        line, text = b.numbers[at], _clip(b.texts[at])
        summary = f"{found.a} ends where {found.b} goes on with line {line} ({found.where})"
        return replace(found, kind="end", line_b=line, text_b=text, summary=summary)
    line, text = a.numbers[at], _clip(a.texts[at])
    summary = f"{found.b} ends where {found.a} goes on with line {line} ({found.where})"
    return replace(found, kind="end", line_a=line, text_a=text, summary=summary)


def _changed(found: TraceDiff, a: TraceLines, b: TraceLines, at: int) -> TraceDiff:
    """Both traces have a line here, and the lines differ."""
    line_a, line_b, text_a, text_b = a.numbers[at], b.numbers[at], a.texts[at], b.texts[at]
    column = _first_difference(text_a, text_b) + 1
    changed, what = _compare(text_a, text_b)
    lines = f"line {line_a}" if line_a == line_b else f"line {line_a} of {found.a} and line {line_b} of {found.b}"
    return replace(
        found,
        line_a=line_a,
        line_b=line_b,
        column=column,
        text_a=_clip(text_a, column),
        text_b=_clip(text_b, column),
        summary=f"{found.a} and {found.b} differ at {lines} ({found.where}), column {column}: {what}",
        fields=changed,
    )


def _place(lines: TraceLines, at: int) -> tuple[str, int | None]:
    """The part of the trace that line ``at`` stands in, and the tick of the last marker before it."""
    if lines.texts[at].startswith(("out s", "rotation ack")):
        return "clients", None
    for index in range(at - 1, -1, -1):
        text = lines.texts[index]
        if text.startswith("-- tick ") and text[8:].isdigit():
            return f"tick {text[8:]}", int(text[8:])
    return "start-up", None


def _compare(a: str, b: str) -> tuple[tuple[FieldDifference, ...], str]:
    """The fields in which two lines differ, and a word on it."""
    read = fast_reader().read
    x, y = (read(text) or read(f"{text} ") for text in (a, b))
    if x is None or y is None:
        broken = "both lines are" if x is y else "the first line is" if x is None else "the second line is"
        return (), f"the text differs, {broken} malformed"
    if type(x) is not type(y):
        return (), f"`{x.rule}` became `{y.rule}`"
    changed = tuple(islice(_field_differences(x, y), MAX_FIELDS))
    return changed, f"{', '.join(field.path for field in changed[:3])} of `{x.rule}`"


def _field_differences(a: Record, b: Record) -> Iterator[FieldDifference]:
    """The fields in which two records of one kind differ; a whole field is spelled as the line prints it."""
    spelled_a, spelled_b = spell_fields(a), spell_fields(b)
    for field in fields(a):  # type: ignore[arg-type]
        name = field.name
        for found in _differences(getattr(a, name), getattr(b, name), name):
            if spelled_a and found.path == name:
                texts = (spelled_a.get(name, "nothing"), spelled_b.get(name, "nothing"))
                found = FieldDifference(name, *map(_clip, texts))
            yield found


_NOTHING = object()


def _differences(a: Any, b: Any, path: str) -> Iterator[FieldDifference]:
    """The innermost values that differ, with their paths."""
    if a == b and type(a) is type(b):
        return
    parts = _parts(a, b) if type(a) is type(b) else None
    if parts is None:
        yield FieldDifference(path, *(_clip("nothing" if value is _NOTHING else str(value)) for value in (a, b)))
        return
    for name, x, y in parts:
        yield from _differences(x, y, path + name)


def _parts(a: Any, b: Any) -> Iterator[tuple[str, Any, Any]] | None:
    """The parts of two values of one type, None for plain values."""
    if is_dataclass(a):
        return ((f".{field.name}", getattr(a, field.name), getattr(b, field.name)) for field in fields(a))
    if hasattr(a, "_fields"):
        return ((f".{name}", getattr(a, name), getattr(b, name)) for name in a._fields)
    if isinstance(a, tuple):
        return ((f"[{i}]", x, y) for i, (x, y) in enumerate(zip_longest(a, b, fillvalue=_NOTHING)))
    return None


def _clip(text: str, column: int = 1) -> str:
    """At most :data:`_WIDTH` characters of ``text``, the ones around ``column``."""
    if len(text) <= _WIDTH:
        return text
    start = max(0, column - 1 - _WIDTH // 2)
    return ("..." if start else "") + text[start : start + _WIDTH] + ("..." if start + _WIDTH < len(text) else "")
