"""Relations between runs: which scenarios they compare, what they leave out, what they notice."""

from __future__ import annotations

import pytest
from testkit import E, req, toks

from metrale.sim.fuzz.draw import draw_scenario
from metrale.sim.fuzz.prng import Stream
from metrale.sim.fuzz.relations import (
    RELATIONS,
    calm,
    compared,
    fixed_streams,
    relate,
    same_twice,
)
from metrale.sim.mutants.plant import planted
from metrale.sim.mutants.table import MUTANTS
from metrale.sim.runner import run_scenario
from metrale.sim.scenario import scenario_from

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


def tables(**scheduler: object) -> dict[str, object]:
    return {
        "name": "case",
        "device": {"kv_exhaust_at": [1], "total_blocks": 40},
        "scheduler": {"close_inbox_at_tick": 9, **scheduler},
        "request": [
            req(1, 5, toks(10, 19, E), cancel_at_tick=3),
            req(2, 9, toks(20, 29, E), at=3, draft_wrong_every=3),
            req(3, 20, toks(30, 36, E), deadline_at_tick=2),
        ],
    }


def test_calm_takes_faults_and_timed_ends_away() -> None:
    quiet = calm(tables())
    assert quiet["device"] == {"total_blocks": 40}
    assert quiet["scheduler"] == {}
    assert [sorted(one) for one in quiet["request"]] == [
        ["id", "prompt_len", "tokens"],
        ["arrive_at_tick", "draft_wrong_every", "id", "prompt_len", "tokens"],
        ["id", "prompt_len", "tokens"],
    ]


@pytest.mark.parametrize("name", RELATIONS)
@pytest.mark.parametrize("knobs", [{}, {"use_speculative": True, "num_drafts": 3}, {"max_prefill_tokens": 8}])
def test_relations_hold(name: str, knobs: dict[str, object]) -> None:
    case = tables(**knobs)
    case["device"]["has_proposer"] = True  # type: ignore[index]
    for seed in range(4):
        assert relate(case, name, Stream(seed, name)) == []


def test_streams_that_time_or_lane_may_change_are_not_compared() -> None:
    case = calm(tables())
    assert fixed_streams(case, lanes=True)
    twins = {**case, "request": [case["request"][0], case["request"][0]]}
    assert not fixed_streams(twins, lanes=False)
    outside = {**case, "request": [req(1, 5, [10, 64])]}
    assert not fixed_streams(outside, lanes=False)
    assert not fixed_streams({**case, "scheduler": {"think_start_token": 60}}, lanes=False)
    assert not fixed_streams({**case, "scheduler": {"max_seq_len": 24}}, lanes=True)
    assert fixed_streams({**case, "scheduler": {"max_seq_len": 24}}, lanes=False)


def test_what_tells_lanes_apart_is_left_out() -> None:
    line = "out s1: T10 TL11:2 Done(stop, n=3, think=0, cached=0, acc=4, guard=None)"
    assert compared(line, strict=False) == "out s1: T10 T11 Done(stop, n=3, think=0, cached=0, , guard=None)"
    assert compared(line, strict=True) == line


@pytest.mark.parametrize(
    ("mutant", "name"),
    [("script-of-another", "alone"), ("history-loses-a-token", "preemption"), ("overrun-committed", "router")],
)
def test_relations_notice_planted_faults(mutant: str, name: str) -> None:
    with planted(BY_NAME[mutant]):
        found = [one for seed in range(40) for one in relate(calm(draw_scenario(seed)), name, Stream(seed, name))]
    assert {one.rule for one in found} == {f"relation {name}"}
    assert RELATIONS[name][1] in found[0].message or found[0].kind != f"relation {name}"


def test_the_same_twice() -> None:
    case = scenario_from(calm(tables()))
    first = run_scenario(case)
    assert same_twice(case, first) == []
    first.calls[7] = "poll_innerq()"
    assert [str(one) for one in same_twice(case, first)] == ["twice: the second run differs from the first at line 9"]
