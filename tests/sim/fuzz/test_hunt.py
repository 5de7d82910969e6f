"""A hunt finds nothing in the core as it is, and says what it saw."""

from __future__ import annotations

import pytest
from testkit import E, req, scenario, toks

from metrale.sim.fuzz.coverage import LANES, TRANSITIONS, Coverage
from metrale.sim.fuzz.draw import draw_scenario
from metrale.sim.fuzz.hunt import hunt, hunt_in_parallel, try_seed
from metrale.sim.fuzz.judge import heal_failures, judge
from metrale.sim.mutants.plant import planted
from metrale.sim.mutants.table import MUTANTS
from metrale.sim.runner import RunError
from metrale.sim.scenario import scenario_from
from metrale.trace import read_line

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


@pytest.fixture(scope="module")
def seen() -> Coverage:
    coverage = Coverage()
    failing = [report for report in hunt(range(200), coverage) if report.failures]
    assert [(report.seed, str(report.failures[0])) for report in failing] == []
    return coverage


def test_two_hundred_seeds_find_nothing(seen: Coverage) -> None:
    assert seen.runs == 200


def test_a_hunt_sees_the_lanes(seen: Coverage) -> None:
    assert len(seen.lanes) >= len(LANES) - 2
    assert len(seen.transitions) >= len(TRANSITIONS) - 10
    assert len(seen.pairs) > 250
    assert seen.ticks / seen.runs > 30


def test_the_summary_names_what_was_never_seen(seen: Coverage) -> None:
    text = "\n".join(seen.summary())
    assert text.startswith("200 runs, ")
    assert "never seen calls: prefill_twophase" in text
    assert Coverage().summary()[0] == "0 runs, 0 lines, 0 ticks a run"


def test_coverage_adds_up() -> None:
    one, two, both = Coverage(), Coverage(), Coverage()
    for seed in range(4):
        try_seed(seed, one if seed < 2 else two)
        try_seed(seed, both)
    one.add(two)
    assert one.to_dict() == both.to_dict()


def test_a_failing_seed_says_how_to_replay_it() -> None:
    with planted(BY_NAME["leaked-block"]):
        report = next(report for report in hunt(range(20), Coverage()) if report.failures)
    assert report.failures[0].rule == "blocks"
    assert report.replay == f"metrale fuzz --seeds {report.seed}..{report.seed}"
    assert try_seed(report.seed).failures == []


def test_batches_cover_the_range_once() -> None:
    coverage = Coverage()
    counts = [count for count, _ in hunt_in_parallel(10, 69, 1, None, coverage)]
    assert counts == [50, 10]
    assert coverage.runs == 60


def test_time_ends_a_hunt() -> None:
    assert [count for count, _ in hunt_in_parallel(0, None, 1, 0.01, Coverage())] == [50]


def test_two_processes_see_the_same() -> None:
    one, two = Coverage(), Coverage()
    list(hunt_in_parallel(0, 54, 1, None, one))
    list(hunt_in_parallel(0, 54, 2, None, two))
    assert one.to_dict() == two.to_dict()


def test_a_run_that_dies_is_a_failure() -> None:
    def stuck(*_: object, **__: object) -> None:
        raise RunError("the run passed 20000 ticks")

    def broken(*_: object, **__: object) -> None:
        raise KeyError("row")

    case = scenario_from(draw_scenario(0))
    assert [(one.rule, one.kind) for one in judge(case, stuck).failures] == [
        ("run-error", "run-error: the run passed ##### ticks")
    ]
    assert [(one.rule, one.message) for one in judge(case, broken).failures] == [("crash", "KeyError: 'row'")]


def test_what_comes_after_the_last_fault_must_be_served() -> None:
    case = scenario(
        req(1, 5, toks(10, 19, E)), req(2, 5, toks(20, 29, E), at=9), device={"kv_exhaust_at": [1]}, max_batch_size=1
    )
    judged = judge(case)
    assert judged.failures == []
    records = [*judged.records[:-1], read_line("out s2: T20 Error(scripted device fault)")]
    assert [str(found) for found in heal_failures(case, records)] == [
        "heal: s2 arrives after the last fault (tick 2) and ends with 'scripted device fault'"
    ]
