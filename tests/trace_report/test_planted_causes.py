"""Single causes planted in the goldens: the first divergence is the right call, and what follows is folded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from metrale.trace.align import Comparison, compare, explain

from .planting import EDITS, SCENARIOS, Planted, changed, edited


def planted(kind: str) -> Iterator[Planted]:
    return edited(kind) if kind in EDITS else changed(kind)


def folded_share(found: Comparison) -> float:
    """The part of the differing lines behind the first cause that is folded under some cause."""
    own = sum(len(found.causes[0].lines[which]) for which in (0, 1))
    folded = sum(len(cause.folded[which]) for cause in found.causes for which in (0, 1))
    return folded / (found.differing - own) if found.differing > own else 1.0


def assert_accounted(found: Comparison) -> None:
    """Every line of both sides is the same as exactly one other, or has exactly one place."""
    for which, side in enumerate(found.sides):
        seen = bytearray(len(side.texts))
        for run in found.runs:
            stretch = slice(run[which], run[which] + run[2])
            assert not any(seen[stretch])
            seen[stretch] = b"\1" * run[2]
        for index in found.places[which]:
            assert not seen[index]
            seen[index] = 1
        assert sum(seen) + found.unread[which].total() == len(side.texts)


@pytest.mark.parametrize("kind", [*EDITS, *SCENARIOS])
def test_the_right_call_first_and_the_rest_folded(kind: str) -> None:
    cases = list(planted(kind))
    assert cases
    for case in cases:
        found = compare(case.a.encode(), case.b.encode())
        divergence = found.divergence
        assert divergence is not None, case.name
        lengths = [text.count("\n") for text in (case.a, case.b)]
        assert divergence.lines == tuple(case.line if case.line <= n else None for n in lengths), case.name
        assert {divergence.call, *divergence.calls} & case.calls, case.name
        if len(case.calls) == 1:
            assert divergence.call in case.calls, case.name
        assert folded_share(found) >= 0.9, case.name
        assert_accounted(found)
        told = explain(found)
        assert told.what.endswith("."), case.name
        assert told.then.endswith("."), case.name


def test_there_are_two_hundred_of_them() -> None:
    count = sum(1 for kind in (*EDITS, *SCENARIOS) for _ in planted(kind))
    assert count >= 400


def test_an_edit_in_the_trace_is_one_cause() -> None:
    for kind in EDITS:
        for case in edited(kind):
            found = compare(case.a.encode(), case.b.encode())
            assert (len(found.causes), found.unexplained) == (1, 0), case.name


def test_most_changed_scenarios_are_one_cause() -> None:
    counts = Counter(
        len(compare(case.a.encode(), case.b.encode()).causes) for kind in SCENARIOS for case in changed(kind)
    )
    assert counts[1] >= 0.85 * counts.total()
    assert max(counts) <= 4
