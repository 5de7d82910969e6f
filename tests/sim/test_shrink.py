"""Shrinking keeps the failure and loses everything else."""

from __future__ import annotations

import pytest
from testkit import E, req, toks

from metrale.sim.fuzz.hunt import try_seed
from metrale.sim.mutants.plant import planted
from metrale.sim.mutants.table import MUTANTS
from metrale.sim.scenario import ScenarioError, scenario_from
from metrale.sim.shrink import failures_of, pytest_text, shrink, smaller

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


def tables(count: int = 4) -> dict[str, object]:
    return {
        "name": "case",
        "device": {"kv_exhaust_at": [2, 5], "block_size": 8},
        "scheduler": {"policy": "slai", "max_batch_size": 4},
        "request": [req(i, 5 + i, toks(10 * i, 10 * i + 8, E), at=i) for i in range(1, count + 1)],
    }


@pytest.mark.parametrize(
    ("name", "requests", "ticks"),
    [
        ("leaked-block", 1, 4),
        ("history-loses-a-token", 2, 6),
        ("compaction-onto-live-slot", 3, 8),
        ("token-twice", 1, 12),
    ],
)
def test_a_planted_fault_shrinks_to_a_few_ticks(name: str, requests: int, ticks: int) -> None:
    with planted(BY_NAME[name]):
        report = next(report for report in map(try_seed, range(600)) if report.failures)
        found = shrink(report.tables, report.failures[0], report.seed)
        assert found is not None
        assert found.failure.kind == report.failures[0].kind
        assert found.size[0] <= requests
        assert found.size[1] <= ticks
        scenario_from(found.tables)
    assert failures_of({"device": {}, "scheduler": {}, **found.tables}) == []


def test_what_does_not_fail_is_not_shrunk() -> None:
    assert failures_of(tables()) == []
    assert shrink(tables()) is None


def test_every_step_is_smaller_and_another_scenario() -> None:
    case = tables(2)
    steps = list(smaller(case))
    assert case not in steps
    assert {
        "name": "case",
        "device": {"block_size": 8},
        "scheduler": case["scheduler"],
        "request": case["request"],
    } in steps
    assert any(len(step["request"]) == 1 for step in steps)
    for step in steps:
        assert len(str(step)) <= len(str(case))


def test_a_scenario_that_is_none_says_so() -> None:
    with pytest.raises(ScenarioError, match="key tokens"):
        failures_of({"name": "x", "request": [{"id": 1, "prompt_len": 2, "tokens": []}]})


def test_the_pytest_it_leaves_is_a_test() -> None:
    text = pytest_text("lost block", "blocks", "lost block.toml")
    names: dict[str, object] = {}
    exec(compile(text, "test_lost_block.py", "exec"), {"__file__": "test_lost_block.py"}, names)
    assert callable(names["test_lost_block"])
