"""With speculation configured the router of depth 2 never runs ahead: same lines, no fed launch (S4 section 3)."""

from __future__ import annotations

from typing import Any

import pytest
from lane_table import LANES, PROPOSER, on_lane
from testkit import E, req, scenario

from metrale.sim.runner import run_scenario


def body(calls: list[str]) -> list[str]:
    """From the first tick to the end sequence: what differs at start-up and teardown are the router's own events."""
    return calls[calls.index("-- tick 1") : calls.index("fx apply EpShutdown")]


SPECULATIVE = [name for name in LANES if not name.startswith("plain")]


@pytest.mark.parametrize("lane", SPECULATIVE)
@pytest.mark.parametrize("floor", [0, 4])
def test_both_routers_write_the_same_calls(lane: str, floor: int) -> None:
    asked: dict[str, Any] = {
        "id": 1, "prompt_len": 5, "tokens": [*range(10, 24), E], "draft_wrong_every": 3, "min_tokens": floor
    }  # fmt: skip
    seen, calls = on_lane(LANES[lane], asked, log=True)
    deep, deep_calls = on_lane(LANES[lane], asked, log=True, router="async")
    assert deep == seen
    assert not [line for line in deep_calls if "DecodeFed" in line]
    assert body(deep_calls) == body(calls)


def test_a_plain_scenario_does_run_ahead() -> None:
    """The control: without speculation the same request is fed."""
    asked: dict[str, Any] = {"id": 1, "prompt_len": 5, "tokens": [*range(10, 24), E]}
    seen, _ = on_lane(LANES["plain"], asked, log=True)
    deep, calls = on_lane(LANES["plain"], asked, log=True, router="async")
    assert deep == seen
    assert sum("DecodeFed" in line for line in calls) > 5


@pytest.mark.parametrize(
    "knobs",
    [
        {"use_speculative": True, "num_drafts": 3},
        {"use_speculative": True, "num_drafts": 5, "dflash": True},
        {"ngram_speculative": True},
        {"self_speculative": True, "num_drafts": 2},
    ],
    ids=["mtp", "dflash", "ngram", "self_spec"],
)
def test_batches_chunks_floors_and_preemption_at_both_depths(knobs: dict[str, Any]) -> None:
    """Every way into the plain step at once: two active, a floor, mixed prefills, an exhaustion with requeue."""
    sc = scenario(
        req(1, 5, [*range(10, 30), E], draft_wrong_every=2),
        req(2, 20, [*range(30, 50), E], at=2, min_tokens=5),
        req(3, 18, [*range(20, 40), E], at=3, temperature=0.7),
        device=PROPOSER | {"has_self_speculative": True, "kv_exhaust_at": [1, 4]},
        max_prefill_tokens=8,
        **knobs,
    )
    shallow = run_scenario(sc, router="sync", max_ticks=2000)
    deep = run_scenario(sc, router="async", max_ticks=2000)
    assert deep.clients == shallow.clients
    assert not [line for line in deep.calls if "DecodeFed" in line]
