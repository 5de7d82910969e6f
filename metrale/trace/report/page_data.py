"""The data behind the HTML page: both sides tick by tick, in chunks that the page unpacks when they are looked at."""

from __future__ import annotations

import base64
import json
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..align import Chronicle, Comparison, Frame, Phase, Role, Side

CHUNK = 40
"""Ticks of one chunk."""

LONGEST = 4000
"""Longer lines are cut on the page."""

_PHASES = [Phase.PREFILLING, Phase.ACTIVE, Phase.REQUEUED, Phase.SPILLED, Phase.ENDED]
_ROLES = {Role.CAUSE: 1, Role.FOLDED: 2}
UNREAD = 3


@dataclass(frozen=True, slots=True)
class Column:
    """One tick on A beside the same tick on B; None where a side has no such tick.

    ``mark``: 0 nothing differs, 1 the column holds a cause, 2 consequences only, 3 lines that were only counted.
    """

    a: Frame | None
    b: Frame | None
    mark: int = 0


class Aligned:
    """Looks up what became of single lines of a comparison."""

    def __init__(self, found: Comparison) -> None:
        self._found = found
        self._starts = [[run[which] for run in found.runs] for which in (0, 1)]

    def partner(self, which: int, index: int) -> int:
        """The line of the other side that is the same work, or -1."""
        place = self._found.places[which].get(index)
        if place is not None:
            return place.partner
        run = self._run(which, index)
        return -1 if run is None else run[1 - which] + index - run[which]

    def _run(self, which: int, index: int) -> tuple[int, int, int] | None:
        at = bisect_right(self._starts[which], index) - 1
        if at < 0:
            return None
        run = self._found.runs[at]
        return run if index < run[which] + run[2] else None

    def role(self, which: int, index: int) -> tuple[int, int, str]:
        """0 same, 1 cause, 2 folded, 3 only counted; the number of the cause; the rule."""
        place = self._found.places[which].get(index)
        if place is not None:
            return _ROLES[place.role], place.cause, place.why
        return (0 if self._run(which, index) is not None else UNREAD), 0, ""


def columns_of_diff(aligned: Aligned, a: Chronicle, b: Chronicle) -> list[Column]:
    """The ticks of both sides, matched by their markers."""
    by_marker = {frame.start: number for number, frame in enumerate(b.frames)}
    columns: list[Column] = []
    done = 0
    for frame in a.frames:
        partner = by_marker.get(aligned.partner(0, frame.start)) if frame.tick else 0
        if partner is None or partner < done:
            columns.append(_column(aligned, frame, None))
            continue
        columns += [_column(aligned, None, alone) for alone in b.frames[done:partner]]
        columns.append(_column(aligned, frame, b.frames[partner]))
        done = partner + 1
    return columns + [_column(aligned, None, alone) for alone in b.frames[done:]]


def _column(aligned: Aligned, a: Frame | None, b: Frame | None) -> Column:
    roles = {
        aligned.role(which, index)[0]
        for which, frame in ((0, a), (1, b))
        if frame is not None
        for index in range(frame.start, frame.stop)
    }
    return Column(a, b, next((mark for mark in (1, 2, UNREAD) if mark in roles), 0))


def columns_of_trace(told: Chronicle) -> list[Column]:
    """The ticks of one trace."""
    return [Column(frame, None) for frame in told.frames]


def chunks(columns: list[Column], sides: tuple[Side, Side | None], aligned: Aligned | None) -> Iterator[str]:
    """The columns in packed chunks: deflated JSON in base64."""
    for start in range(0, len(columns), CHUNK):
        texts: dict[str, int] = {}
        packed = [_packed(column, sides, aligned, texts) for column in columns[start : start + CHUNK]]
        document = json.dumps({"t": list(texts), "c": packed}, separators=(",", ":"))
        yield base64.b64encode(zlib.compress(document.encode(), 9)).decode()


def _packed(
    column: Column, sides: tuple[Side, Side | None], aligned: Aligned | None, texts: dict[str, int]
) -> list[Any]:
    frames = [None if frame is None else _frame(frame) for frame in (column.a, column.b)]
    return [*frames, column.mark, [_row(row, sides, aligned, texts) for row in _rows(column, aligned)]]


def _frame(frame: Frame) -> list[Any]:
    seats = [
        [seat.slot, seat.id, _PHASES.index(seat.phase), seat.length] for seat in frame.seats if seat.slot < 1 << 32
    ]
    return [frame.tick, frame.free, seats, frame.parked]


def _rows(column: Column, aligned: Aligned | None) -> Iterator[tuple[int, int]]:
    """The column's lines side by side, -1 where one side has none."""
    x, x_stop = (column.a.start, column.a.stop) if column.a else (0, 0)
    y, y_stop = (column.b.start, column.b.stop) if column.b else (0, 0)
    while x < x_stop or y < y_stop:
        partner_x = aligned.partner(0, x) if aligned and x < x_stop else -1
        partner_y = aligned.partner(1, y) if aligned and y < y_stop else -1
        if x < x_stop and y < y_stop and partner_x == y:
            yield x, y
            x, y = x + 1, y + 1
        elif x < x_stop and not y <= partner_x < y_stop:
            yield x, -1
            x += 1
        elif y < y_stop and not x <= partner_y < x_stop:
            yield -1, y
            y += 1
        elif x < x_stop:
            yield x, -1
            x += 1
        else:
            yield -1, y
            y += 1


def _row(
    row: tuple[int, int], sides: tuple[Side, Side | None], aligned: Aligned | None, texts: dict[str, int]
) -> list[Any]:
    """Line numbers (0: none), texts (by number in the chunk), role, cause and rule."""
    cells: list[Any] = []
    for index, side in zip(row, sides, strict=True):
        if index < 0 or side is None:
            cells += [0, 0]
        else:
            text = side.texts[index][:LONGEST]
            cells += [side.numbers[index], texts.setdefault(text, len(texts))]
    if aligned is None:
        return cells
    which = 0 if row[0] >= 0 else 1
    role, cause, why = aligned.role(which, row[which])
    return [*cells, role, cause, why] if role else cells
