"""One self-contained HTML page on a comparison, on one trace, or on a whole check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from ..align import Comparison, Side, chronicle, explain
from ..align.side import Reading, load_side
from .outline import Line, Section, outline, printable, verdict
from .page_data import CHUNK, Aligned, Column, chunks, columns_of_diff, columns_of_trace
from .pictures import overview

MOST_CLIENTS = 200
MOST_SHOWN = 2000


@dataclass(frozen=True, slots=True)
class Result:
    """One row of a check's page: a scenario, its verdict in a word, one line on it, its comparison if it differs."""

    name: str
    passed: bool
    verdict: str
    message: str
    found: Comparison | None = None


def diff_page(found: Comparison) -> str:
    """The page on a comparison."""
    if found.equal or found.bytes_only:
        return _page(title=verdict(found), sections=list(outline(found)), view=None, names=_names(found), told=None)
    aligned = Aligned(found)
    columns = columns_of_diff(aligned, chronicle(found.sides[0]), chronicle(found.sides[1]))
    view = _view(columns, found.sides, aligned, _first_marked(columns))
    return _page(
        title=verdict(found), sections=list(outline(found))[1:], view=view, names=_names(found), told=explain(found)
    )


def trace_page(name: str, data: bytes) -> str:
    """The page on one trace."""
    side = load_side(name, data, Reading())
    told = chronicle(side)
    columns = columns_of_trace(told)
    requests = len(told.lives)
    title = f"{name}: {told.ticks} ticks, {requests} request{'' if requests == 1 else 's'}, {len(side.texts)} lines"
    first = min(1, len(columns) - 1)
    view = _view(columns, (side, None), None, first)
    return _page(title=title, sections=_seen_by_clients(side), view=view, names=[name], told=None)


def _seen_by_clients(side: Side) -> list[Section]:
    outs = [text for text in side.texts if text.startswith("out s")]
    lines = [Line(printable(text[:MOST_SHOWN])) for text in outs[:MOST_CLIENTS]]
    if len(outs) > MOST_CLIENTS:
        lines.append(Line(f"… and {len(outs) - MOST_CLIENTS} more", "note"))
    return [Section("What the clients saw", lines, code=True)] if lines else []


def check_page(results: Sequence[Result], title: str) -> str:
    """The page on a check: a table, and for each difference what a terminal would show."""
    shown = [(result, list(outline(result.found)) if result.found is not None else []) for result in results]
    return _environment().get_template("check.html.j2").render(title=title, results=shown)


def _names(found: Comparison) -> list[str]:
    return [side.name for side in found.sides]


def _first_marked(columns: Sequence[Column]) -> int:
    return next((number for number, column in enumerate(columns) if column.mark), 0)


def _view(
    columns: list[Column], sides: tuple[Side, Side | None], aligned: Aligned | None, first: int
) -> dict[str, Any]:
    """What the interactive part needs; requests get their colours in the order in which they appear."""
    ids = dict.fromkeys(
        seat.id for column in columns for frame in (column.a, column.b) if frame for seat in frame.seats
    )
    frames = [frame for column in columns for frame in (column.a, column.b) if frame]
    slots = 1 + max((seat.slot for frame in frames for seat in frame.seats if seat.slot < 1 << 32), default=0)
    free = [frame.free for frame in frames if frame.free is not None]
    return {
        "overview": overview(columns),
        "chunks": list(chunks(columns, sides, aligned)),
        "settings": {
            "columns": len(columns),
            "chunk": CHUNK,
            "sides": 1 if sides[1] is None else 2,
            "slots": slots,
            "first": first,
            "ids": list(ids)[:5000],
            "free": [min(free, default=0), max(free, default=1)],
        },
    }


def _page(**values: Any) -> str:
    return _environment().get_template("page.html.j2").render(**values)


@cache
def _environment() -> Environment:
    loader = PackageLoader("metrale.trace.report", "templates")
    environment = Environment(
        loader=loader,
        autoescape=select_autoescape(["html.j2"], default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code"] = _code
    return environment


def _code(text: str) -> Markup:
    """What stands between backquotes as code."""
    parts = [escape(part) for part in text.split("`")]
    return Markup("").join(
        Markup("<code>") + part + Markup("</code>") if i % 2 else part for i, part in enumerate(parts)
    )
