"""What a report on a comparison says, in which order; terminal, Markdown and plain text only differ in dress."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ..align import PARKED, Both, Cause, Change, Comparison, Phase, Row, State, explain
from .document import ranges_of

CONTEXT = 10
MOST_CAUSES = 8
MOST_CLIENTS = 8
MOST_ROWS = 12
MOST_RANGES = 6
WIDTH = 180

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

Style = Literal["plain", "same", "a", "b", "strong", "note"]
"""``a`` and ``b`` mark what one side has, ``same`` a line of both, ``note`` what may be skipped."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a section."""

    text: str
    style: Style = "plain"


@dataclass(frozen=True, slots=True)
class Section:
    """A titled part of the report; ``code`` sections hold trace lines and tables and keep their blanks."""

    title: str
    lines: list[Line]
    code: bool = False


def verdict(found: Comparison) -> str:
    """One sentence on how the traces compare."""
    a, b = (side.name for side in found.sides)
    if found.equal:
        return f"{a} and {b} are equal"
    if found.bytes_only:
        return f"{a} and {b} differ in their bytes only"
    causes = "1 cause" if len(found.causes) == 1 else f"{len(found.causes)} causes"
    folded = sum(map(len, found.causes[0].folded))
    lines = f"{found.differing} differing lines, {folded} of them folded as consequences of the first"
    return f"{a} and {b} differ: {causes}, {lines}, {found.unexplained} not explained by it"


def outline(found: Comparison) -> Iterator[Section]:
    """The report, section by section, of bounded size."""
    yield Section("Verdict", [Line(verdict(found), "strong"), *(Line(mark, "note") for mark in found.marks)])
    if found.equal or found.bytes_only:
        return
    yield Section("First divergence", list(_divergence(found)), code=True)
    told = explain(found)
    yield Section("In words", [Line(told.what), Line(told.then)])
    yield Section("Before it", list(_before(found)), code=True)
    yield Section("State", list(_states(found)), code=True)
    yield Section("Causes and what follows from them", list(_causes(found)), code=True)
    yield Section("Differences by kind", [Line(_kinds(found)), *_unread(found)])
    yield Section("What the clients saw", list(_clients(found)), code=True)


# ---------------------------------------------------------------- the divergence and what stands before it


def _divergence(found: Comparison) -> Iterator[Line]:
    d = found.divergence
    assert d is not None
    where = "clients" if d.tick is None else f"tick {d.tick}" if d.tick else "start-up"
    argument = f", {d.argument}" if d.argument else ""
    yield Line(f"{where}, {d.call}{argument}: {d.change.value}", "strong")
    for which, style in enumerate(("a", "b")):
        number, text = d.lines[which], d.texts[which]
        shown = "(the trace ends)" if text is None else _around(text, d.texts[1 - which])
        yield Line(f"{'AB'[which]} {'' if number is None else number:>6}  {shown}", style)  # type: ignore[arg-type]
    if d.argument:
        yield Line(f"{d.argument}: {d.values[0]} -> {d.values[1]}")


def _around(text: str, other: str | None) -> str:
    """A line fit to be shown: without control characters, cut to the part in which it differs if it is long."""
    if len(text) <= WIDTH:
        return printable(text)
    pairs = zip(text, other or "", strict=False)
    at = next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(text), len(other or "")))
    start = max(0, at - WIDTH // 2)
    middle = printable(text[start : start + WIDTH])
    return f"{'…' if start else ''}{middle}{'…' if start + WIDTH < len(text) else ''}"


def printable(text: str) -> str:
    """The text with control characters spelled out."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _before(found: Comparison) -> Iterator[Line]:
    a, b = found.sides
    stop = found.runs[0][2] if found.runs and found.runs[0][:2] == (0, 0) else 0
    for index in range(max(0, stop - CONTEXT), stop):
        number = (
            f"{a.numbers[index]}" if a.numbers[index] == b.numbers[index] else f"{a.numbers[index]}/{b.numbers[index]}"
        )
        yield Line(f"  {number:>6}  {_around(a.texts[index], None)}", "same")
    if not stop:
        yield Line("nothing: the traces differ from their first line on", "note")


def _states(found: Comparison) -> Iterator[Line]:
    """The rebuilt states, at the divergence and at the end of its tick."""
    for title, states in (("at the divergence", found.before), ("at the end of its tick", found.after)):
        texts = [list(_state(state)) for state in states if state is not None]
        if len(texts) == 2 and texts[0] == texts[1]:
            yield Line(f"{title}, A and B:", "strong")
            yield from (Line(f"  {text}") for text in texts[0])
            continue
        for name, text in zip("AB", texts, strict=False):
            yield Line(f"{title}, {name}:", "strong")
            yield from (Line(f"  {line}", "a" if name == "A" else "b") for line in text)


def _state(state: State) -> Iterator[str]:
    free = "not asked yet" if state.free is None else str(state.free)
    yield f"tick {state.tick}; free blocks {free} (last answer); {state.used} held by sequences"
    groups = (("active", (Phase.ACTIVE,)), ("prefilling", (Phase.PREFILLING,)), ("parked", PARKED))
    for title, phases in groups:
        rows = state.in_phase(*phases)
        if rows or title == "active":
            more = f", and {len(rows) - MOST_ROWS} more" if len(rows) > MOST_ROWS else ""
            yield f"{title}: {', '.join(map(_row, rows[:MOST_ROWS])) or 'none'}{more}"


def _row(row: Row) -> str:
    if row.phase in PARKED:
        return f"s{row.id} {row.phase.value} with {row.length} tokens"
    blocks = f"{row.blocks} block{'' if row.blocks == 1 else 's'}"
    return f"s{row.id} in slot {row.slot}, {row.length} tokens, {blocks}"


# ---------------------------------------------------------------- causes, kinds, clients


def _causes(found: Comparison) -> Iterator[Line]:
    for cause in found.causes[:MOST_CAUSES]:
        yield Line(f"{cause.number}. {headline(cause)}", "strong")
        yield Line(f"   lines {_both_ranges(found, cause.lines)}", "note")
        if cause.why:
            rules = ", ".join(f"{why} {count}" for why, count in cause.why.most_common())
            yield Line(f"   {cause.why.total()} lines follow: {rules}")
            yield Line(f"   lines {_both_ranges(found, cause.folded)}", "note")
    if len(found.causes) > MOST_CAUSES:
        yield Line(f"… and {len(found.causes) - MOST_CAUSES} more causes", "note")
    yield Line(f"not explained by the first divergence: {found.unexplained} of {found.differing} differing lines")


def headline(cause: Cause, *, placed: bool = True) -> str:
    """A cause in one line; without its place it reads the same wherever the same change is made."""
    values = f" {cause.values[0]} -> {cause.values[1]}" if cause.values[0] is not None else ""
    argument = f", {cause.argument}" if cause.argument else ""
    if not placed:
        return f"{cause.change.value}: {cause.call}{argument}{values}"
    whose = f" (s{cause.owner})" if cause.owner is not None else ""
    a, b = cause.ticks
    where = f"tick {a}" if a == b else f"tick {a} of A, {b} of B"
    places = f", in {cause.places} places" if cause.places > 1 else ""
    return f"{cause.change.value}: {cause.call}{whose}{argument}{values}; {where}{places}"


def _both_ranges(found: Comparison, lines: Both[list[int]]) -> str:
    return "; ".join(
        f"{name} {_ranges([side.numbers[i] for i in sorted(indexes)])}"
        for name, side, indexes in zip("AB", found.sides, lines, strict=True)
        if indexes
    )


def _ranges(numbers: list[int]) -> str:
    ranges = list(ranges_of(numbers))
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in ranges[:MOST_RANGES]]
    return ", ".join(shown) + (f", … to {ranges[-1][1]}" if len(ranges) > MOST_RANGES else "")


def _kinds(found: Comparison) -> str:
    tally = found.tally
    return ", ".join(f"{change.value} {tally[change]}" for change in Change if tally[change]) or "none was looked at"


def _unread(found: Comparison) -> Iterator[Line]:
    for name, count in zip("AB", found.unread, strict=True):
        if count:
            yield Line(f"{count.total()} further lines of {name} were only counted: {_calls(count)}")


def _calls(count: Counter[str]) -> str:
    return ", ".join(f"{call} {number}" for call, number in count.most_common(MOST_CAUSES))


def _clients(found: Comparison) -> Iterator[Line]:
    differing = [view for view in found.clients if not view.same]
    for view in differing[:MOST_CLIENTS]:
        for name, style, seen, other in (("A", "a", *view.seen), ("B", "b", *view.seen[::-1])):
            text = "(no such client)" if seen is None else _around(seen, other)
            yield Line(f"{name} s{view.id}: {text}", style)  # type: ignore[arg-type]
    if len(differing) > MOST_CLIENTS:
        yield Line(f"… and {len(differing) - MOST_CLIENTS} more clients that saw a difference", "note")
    same = len(found.clients) - len(differing)
    yield Line(f"{same} client{'' if same == 1 else 's'} saw the same on both sides", "note")
