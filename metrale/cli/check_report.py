"""The page that ``metrale check --report`` writes."""

from __future__ import annotations

from collections.abc import Sequence

from metrale.cli.files import read_regular
from metrale.cli.goldens import Outcome, Verdict
from metrale.trace.align import Comparison, compare
from metrale.trace.report.html import Result, check_page

MOST_SHOWN = 50
"""So many differences are shown in full."""


def report_page(outcomes: Sequence[Outcome], summary: str) -> bytes:
    """One HTML page: a row per scenario, then the differences."""
    differing = [outcome for outcome in outcomes if outcome.diff is not None and outcome.run is not None]
    shown = {id(outcome) for outcome in differing[:MOST_SHOWN]}
    results = [
        Result(
            name=str(outcome.pair.stem),
            passed=outcome.verdict is Verdict.PASSED,
            verdict=outcome.verdict.value,
            message=outcome.message,
            found=_comparison(outcome) if id(outcome) in shown else None,
        )
        for outcome in outcomes
    ]
    return check_page(results, summary).encode()


def _comparison(outcome: Outcome) -> Comparison:
    assert outcome.run is not None
    fresh = str(outcome.pair.pending) if outcome.pending else "this run"
    return compare(read_regular(outcome.pair.golden), outcome.run.text.encode(), (str(outcome.pair.golden), fresh))
