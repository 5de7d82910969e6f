"""A comparison as one JSON object; the schema is described in docs/diff-json.md and versioned here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..align import Cause, ClientView, Comparison, Divergence, Row, State, explain

SCHEMA = "metrale-diff/1"
"""Name and version of the schema; the number rises when a key changes its meaning or goes."""

MOST_CAUSES = 50
MOST_RANGES = 100
MOST_CLIENTS = 200
WIDTH = 400


def comparison_document(found: Comparison) -> dict[str, Any]:
    """The whole comparison, of bounded size whatever the traces."""
    a, b = found.sides
    told = explain(found)
    return {
        "schema": SCHEMA,
        "a": a.name,
        "b": b.name,
        "equal": found.equal,
        "bytes_only": found.bytes_only,
        "marks": list(found.marks),
        "explanation": [told.what, told.then],
        "first_divergence": _divergence(found.divergence),
        "state_before": [_state(state) for state in found.before],
        "state_after": [_state(state) for state in found.after],
        "causes": [_cause(found, cause) for cause in found.causes[:MOST_CAUSES]],
        "causes_left_out": max(0, len(found.causes) - MOST_CAUSES),
        "differing": found.differing,
        "unexplained": found.unexplained,
        "changes": {change.value: count for change, count in sorted(found.tally.items())},
        "lines": {
            "a": len(a.texts),
            "b": len(b.texts),
            "same": sum(count for _, _, count in found.runs),
            "unread_a": dict(found.unread[0].most_common(MOST_CAUSES)),
            "unread_b": dict(found.unread[1].most_common(MOST_CAUSES)),
        },
        "clients": [_client(view) for view in _clients_shown(found)],
        "clients_same": sum(view.same for view in found.clients),
        "clients_left_out": max(0, len(found.clients) - MOST_CLIENTS),
    }


def _clients_shown(found: Comparison) -> list[ClientView]:
    """Those that saw a difference first."""
    return sorted(found.clients, key=lambda view: view.same)[:MOST_CLIENTS]


def _divergence(divergence: Divergence | None) -> dict[str, Any] | None:
    if divergence is None:
        return None
    return {
        "line_a": divergence.lines[0],
        "line_b": divergence.lines[1],
        "tick": divergence.tick,
        "call": divergence.call,
        "call_a": divergence.calls[0],
        "call_b": divergence.calls[1],
        "argument": divergence.argument,
        "change": divergence.change.value,
        "value_a": divergence.values[0],
        "value_b": divergence.values[1],
        "text_a": _clip(divergence.texts[0]),
        "text_b": _clip(divergence.texts[1]),
    }


def _cause(found: Comparison, cause: Cause) -> dict[str, Any]:
    return {
        "number": cause.number,
        "change": cause.change.value,
        "tick_a": cause.ticks[0],
        "tick_b": cause.ticks[1],
        "call": cause.call,
        "argument": cause.argument,
        "value_a": cause.values[0],
        "value_b": cause.values[1],
        "request": cause.owner,
        "places": cause.places,
        "lines_a": _ranges(found, 0, cause.lines[0]),
        "lines_b": _ranges(found, 1, cause.lines[1]),
        "folded": sum(map(len, cause.folded)),
        "folded_a": _ranges(found, 0, cause.folded[0]),
        "folded_b": _ranges(found, 1, cause.folded[1]),
        "why": dict(cause.why.most_common()),
    }


def _ranges(found: Comparison, which: int, indexes: Iterable[int]) -> list[list[int]]:
    """Line numbers as [first, last], the first MOST_RANGES; the last range then runs to the last line."""
    numbers = found.sides[which].numbers
    ranges = list(ranges_of(numbers[index] for index in sorted(indexes)))
    if len(ranges) > MOST_RANGES:
        ranges[MOST_RANGES - 1 :] = [[ranges[MOST_RANGES - 1][0], ranges[-1][1]]]
    return ranges


def ranges_of(numbers: Iterable[int]) -> Iterator[list[int]]:
    """Ascending numbers as [first, last] pairs."""
    current: list[int] = []
    for number in numbers:
        if current and number == current[1] + 1:
            current[1] = number
            continue
        if current:
            yield current
        current = [number, number]
    if current:
        yield current


def _state(state: State | None) -> dict[str, Any] | None:
    if state is None:
        return None
    return {
        "tick": state.tick,
        "free_blocks": state.free,
        "used_blocks": state.used,
        "block_size": state.block_size,
        "rows": [_row(row) for row in state.in_phase(*{row.phase for row in state.rows.values()})],
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "request": row.id,
        "phase": row.phase.value,
        "slot": row.slot if row.slot >= 0 else None,
        "length": row.length,
        "blocks": row.blocks,
        "next_input": row.last,
    }


def _client(view: ClientView) -> dict[str, Any]:
    return {"request": view.id, "same": view.same, "a": _clip(view.seen[0]), "b": _clip(view.seen[1])}


def _clip(text: str | None) -> str | None:
    return text if text is None or len(text) <= WIDTH else f"{text[:WIDTH]}…"
