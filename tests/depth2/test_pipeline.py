"""The lane one step ahead: what the client sees, what is discarded, what is handed back (S5 sections 11 and 14.7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from metrale.core.config import modes_for
from metrale.core.driver import drive
from metrale.core.io import SchedIo
from metrale.core.routers.asynchronous import AsyncRouter
from metrale.core.scheduler import Scheduler
from metrale.sim import MockDevice, RunResult, Scenario, load_scenario, run_scenario, scenario_from
from metrale.sim.harness import Harness, StandingClock
from metrale.sim.runner import mock_config, scheduler_config
from metrale.trace.recording import RecordingDevice
from metrale.trace.tracing_router import TracingRouter

E = 63
GOLDEN = Path(__file__).parents[2] / "golden"


def req(id: int, prompt_len: int, tokens: list[int], **more: Any) -> dict[str, Any]:
    return {"id": id, "prompt_len": prompt_len, "tokens": tokens, **more}


EARLY_STOPS = [
    req(1, 5, [10, 70, 71, 72, E], max_tokens=12),
    req(2, 5, [20, 80, 81, E], max_tokens=12),
    req(3, 7, [30, 90, 91, 92, 93, E], max_tokens=12),
]
EARLY_STOP_LINES = [
    "out s1: T10 T70 T71 T72 Done(stop, n=5, think=0, cached=0, acc=0, guard=None)",
    "out s2: T20 T80 T81 Done(stop, n=4, think=0, cached=0, acc=0, guard=None)",
    "out s3: T30 T90 T91 T92 T93 Done(stop, n=6, think=0, cached=0, acc=0, guard=None)",
]


def case(requests: list[dict[str, Any]], device: dict[str, Any] | None = None, **scheduler: Any) -> Scenario:
    return scenario_from({"name": "ahead", "request": requests, "device": device or {}, "scheduler": scheduler})


def run(requests: list[dict[str, Any]], device: dict[str, Any] | None = None, **scheduler: Any) -> RunResult:
    return run_scenario(case(requests, device, **scheduler), router="async")


def count(result: RunResult, start: str) -> int:
    return sum(line.startswith(start) for line in result.calls)


def lines(result: RunResult, start: str) -> list[str]:
    return [line for line in result.calls if line.startswith(start)]


def fed(result: RunResult) -> int:
    return count(result, "fx launch DecodeFed")


# -- 14.7.1: equivalence over the golden scenarios --------------------------------------------------------------------


def golden_scenarios() -> list[Path]:
    return sorted(GOLDEN.glob("*.toml"))


def counted_by_call_or_tick(scenario: Scenario) -> bool:
    """Faults counted by call and ends bound to a tick mean something else at another depth."""
    device, scheduler = scenario.device, scenario.scheduler
    by_call = (device.kv_exhaust_at, device.exhaust_at, device.fatal_at, device.device_lost_at)
    by_tick = [(r.cancel_at_tick, r.deadline_at_tick, r.cancel_at) for r in scenario.request]
    return any(by_call) or scheduler.close_inbox_at_tick is not None or any(any(keys) for keys in by_tick)


def speculates(scenario: Scenario) -> bool:
    return modes_for(scheduler_config(scenario.scheduler), mock_config(scenario.device).facts).speculative


@pytest.mark.parametrize("path", golden_scenarios(), ids=lambda path: path.stem)
def test_both_routers_give_the_same_client_lines(path: Path) -> None:
    scenario = load_scenario(path)
    ahead = run_scenario(scenario, router="async")
    if scenario.device.event_query_fault_at is None and not counted_by_call_or_tick(scenario):
        assert ahead.clients == run_scenario(scenario, router="sync").clients
    if scenario.device.has_ssm_layers or speculates(scenario):
        assert fed(ahead) == 0
    if path.stem in FED_LAUNCHES:
        assert fed(ahead) == FED_LAUNCHES[path.stem]


FED_LAUNCHES = {
    "plain_decode": 3,
    "slai_policy": 1,
    "preempt_requeue": 3,
    "request_timeout": 1,
    "host_logits_paths": 0,
    "watchdog_rollback": 0,
    "verify_k2": 0,
    "verify_k4": 0,
    "batched_verify_k4": 0,
    "dflash": 0,
    "ngram": 0,
    "self_spec": 0,
    "cancel_mid_stream": 0,
}


def test_the_golden_folder_has_the_scenarios_with_known_fed_launches() -> None:
    assert set(FED_LAUNCHES) <= {path.stem for path in golden_scenarios()}


# -- 14.7.2 to 14.7.8 -------------------------------------------------------------------------------------------------


def run_with_overrun_kept(requests: list[dict[str, Any]], device: dict[str, Any]) -> list[str]:
    scenario = case(requests, device)
    harness = Harness(scenario)
    router = AsyncRouter(MockDevice(mock_config(scenario.device)), 8)
    core = Scheduler(SchedIo(router, harness, StandingClock(), harness), scheduler_config(scenario.scheduler))
    core.state.keep_overrun = True
    core.start()
    drive(core)
    assert router.counters.fed_launches >= 1
    return harness.out_lines()


def test_negative_control_without_the_discard_a_client_gets_too_much() -> None:
    with_fault = run_with_overrun_kept(EARLY_STOPS, {"vocab": 128})
    assert with_fault != EARLY_STOP_LINES
    assert "Done(stop, n=5" in with_fault[1]
    assert "Done(stop, n=4" in EARLY_STOP_LINES[1]


def test_an_overrun_is_never_emitted() -> None:
    result = run(EARLY_STOPS, {"vocab": 128})
    assert result.clients == EARLY_STOP_LINES
    assert result.clients == run_scenario(case(EARLY_STOPS, {"vocab": 128}), router="sync").clients
    assert fed(result) == 4
    assert count(result, "fx apply Rollback") == 2
    assert all(line.count("Done(") == 1 for line in result.clients)


def test_the_rollback_hits_the_stopped_rows() -> None:
    assert lines(run(EARLY_STOPS, {"vocab": 128}), "release_decode_blocks") == [
        "release_decode_blocks(s2@1:len=8, n=0)",
        "release_decode_blocks(s3@0:len=12, n=0)",
    ]


def test_block_tables_reconcile() -> None:
    requests = [EARLY_STOPS[0], {**EARLY_STOPS[1], "prompt_len": 4}, EARLY_STOPS[2]]
    device = {"vocab": 128, "block_size": 4}
    ahead = run(requests, device)
    plain = run_scenario(case(requests, device), router="sync")
    assert ahead.clients == plain.clients
    releases = lines(ahead, "release_decode_blocks")
    assert len(releases) == 2
    assert sum(line.endswith("n=1)") for line in releases) == 1
    assert sorted(lines(ahead, "free_sequence")) == sorted(lines(plain, "free_sequence"))
    assert sorted(line.split(":", 1)[1] for line in lines(ahead, "free_sequence")) == [
        "len=12, blocks=4)",
        "len=7, blocks=2)",
        "len=9, blocks=3)",
    ]


def test_readiness_order_changes_nothing_that_a_client_sees() -> None:
    reversed_ = run(EARLY_STOPS, {"vocab": 128, "reversed_completion": True})
    assert reversed_.clients == EARLY_STOP_LINES
    assert fed(reversed_) > 0
    assert count(reversed_, "event_synchronize(") == 4
    lagging = run(EARLY_STOPS, {"vocab": 128, "event_lag": 3})
    assert lagging.clients == EARLY_STOP_LINES
    assert count(lagging, "event_synchronize(") == 0


FAULT_REQUESTS = [
    req(1, 5, [10, 70, 71, 72, 73, E], max_tokens=12),
    req(2, 5, [20, 80, 81, 82, 83, E], max_tokens=12),
    req(3, 5, [30, 90, 91, E], max_tokens=12, arrive_at_tick=1),
]


def test_a_fault_fails_the_rows_that_it_hit() -> None:
    result = run(FAULT_REQUESTS, {"vocab": 128, "event_query_fault_at": 1})
    assert result.clients == [
        "out s1: T10 Error(scripted device fault)",
        "out s2: T20 Error(scripted device fault)",
        "out s3: T30 T90 T91 Done(stop, n=4, think=0, cached=0, acc=0, guard=None)",
    ]
    assert count(result, "fx apply ReleaseSeq{cache=false, send_error}") == 2
    assert count(result, "fx apply ReleaseSeq{cache=true, finish_sequence}") == 1
    assert lines(result, "num_free_blocks")[-1] == "num_free_blocks() -> 1000"


def test_a_fault_with_a_step_ahead_awaits_that_step_too() -> None:
    result = run(FAULT_REQUESTS[:2], {"vocab": 128, "event_query_fault_at": 2})
    assert result.clients == [
        "out s1: T10 T70 Error(scripted device fault)",
        "out s2: T20 T80 Error(scripted device fault)",
    ]
    # the second query belongs to the fed step of tick 2, which tick 3 settles with a third step ahead of it
    fault = result.calls.index("event_query(event=3) -> ERR scripted device fault")
    assert result.calls[fault + 1 : fault + 5] == [
        "fed_step_settled()",
        "fed_step_settled()",
        "fx apply ReleaseSeq{cache=false, send_error}",
        "free_sequence(s1@0:len=7, blocks=1)",
    ]
    assert count(result, "fx apply ReleaseSeq{cache=false, send_error}") == 2
    assert lines(result, "num_free_blocks")[-1] == "num_free_blocks() -> 1000"


def test_without_a_token_feed_the_router_is_refused_and_the_run_is_synchronous() -> None:
    scenario = case(EARLY_STOPS, {"vocab": 128, "device_token_feed": False}, router="async")
    with pytest.raises(ValueError, match="no device token feed"):
        AsyncRouter(MockDevice(mock_config(scenario.device)), 8)
    assert run_scenario(scenario).text == run_scenario(case(EARLY_STOPS, {"vocab": 128})).text


def test_a_row_about_to_stop_by_length_is_not_run_ahead_of() -> None:
    result = run([req(1, 5, [10, 11], max_tokens=2)])
    assert fed(result) == 0
    assert lines(result, "fx launch") == ["fx launch Decode{n=1, ctx=Unified, readback=Argmax}"]
    near_ceiling = run([req(1, 5, [10, 11, 12, 13, 14, 15])], max_seq_len=8)
    assert (
        near_ceiling.clients
        == run_scenario(case([req(1, 5, [10, 11, 12, 13, 14, 15])], max_seq_len=8), router="sync").clients
    )


def test_a_dry_pool_declines_the_fed_launch_and_the_next_tick_launches_plainly() -> None:
    # blocks of 4, three of them free: after the prefills one is left, and position 4 of both rows needs a new one
    requests = [req(1, 2, [10, 11, 12, 13, 14, E]), req(2, 2, [20, 21, 22, 23, 24, E])]
    pool = {"block_size": 4, "total_blocks": 1000, "held_blocks": 997}
    result = run(requests, pool)
    first_dry = next(i for i, line in enumerate(result.calls) if line.endswith("-> ERR exhausted"))
    assert result.calls[first_dry].startswith("reserve_decode_block(s2@1:len=3)")
    assert result.calls[first_dry - 2] == "reserve_decode_block(s1@0:len=3) -> 1"
    # the step in flight is settled, nothing is launched in that tick
    tick_end = next(i for i in range(first_dry, len(result.calls)) if result.calls[i].startswith("-- tick"))
    assert not any(line.startswith("fx launch") for line in result.calls[first_dry:tick_end])
    # s1 keeps the block that it was given, and the next plain launch uses it
    assert 'decode_batch(tokens=[11, 21], seqs=["s1@0:len=3", "s2@1:len=3"], stream=0)' in result.calls[tick_end:]
    assert result.clients == run_scenario(case(requests, pool), router="sync").clients


# -- guards and decisions ---------------------------------------------------------------------------------------------


def test_h1_no_step_is_held_over_a_preemption() -> None:
    requests = [req(1, 5, [10, 11, 12, 13, E]), req(2, 5, [20, 21, 22, E]), req(3, 5, [30, 31, 32, E])]
    result = run(requests, {"kv_exhaust_at": [0]})
    assert result.clients == run_scenario(case(requests, {"kv_exhaust_at": [0]}), router="sync").clients
    # the retry of tick 1 is masked but settled in the same tick, before the resume
    retry = result.calls.index("fx launch Decode{n=2, ctx=Unified, readback=ArgmaxMasked{n=2}}")
    resume = next(i for i, line in enumerate(result.calls) if i > retry and line.startswith("prefill("))
    assert any(line == "fx apply MarconiCheckpoint" for line in result.calls[retry:resume])


LOOPING = [10, 11, 12, *[20, 21, 22, 23] * 30]


def test_h2_a_resteered_row_is_not_run_ahead_of() -> None:
    requests = [req(1, 5, LOOPING, streaming=False, max_tokens=200)]
    knobs: dict[str, Any] = {"loop_watchdog": True, "boundary_tokens": [12]}
    ahead = run_scenario(case(requests, {"vocab": 256}, **knobs), router="async", max_ticks=2000)
    plain = run_scenario(case(requests, {"vocab": 256}, **knobs), router="sync", max_ticks=2000)
    assert ahead.clients == plain.clients
    assert fed(ahead) > 0
    assert count(ahead, "fx apply Rollback") > 0


def test_h3_a_step_whose_masks_changed_is_taken_back_before_it_is_redone() -> None:
    # no mask of a live scenario changes while the batch stays argmax-eligible, so the flight is set up by hand
    scenario = case([req(1, 5, [10, 11, 12, 13, 14, E])])
    harness = Harness(scenario)
    device = RecordingDevice(MockDevice(mock_config(scenario.device)), log := [].append)
    calls: list[str] = log.__self__  # type: ignore[attr-defined]
    router = TracingRouter(AsyncRouter(device, 8), calls.append)
    core = Scheduler(SchedIo(router, harness, StandingClock(), harness), scheduler_config(scenario.scheduler))
    core.start()
    for _ in range(2):
        plan = core.plan()
        for lane in plan.lanes:
            core.execute(lane, plan)
        core.end_tick()
    flight = core.state.flight
    assert flight is not None
    assert flight.fed
    flight.discard_all = True
    length = core.state.active[0].seq.seq_len
    mark = len(calls)
    drive(core)
    assert calls[mark + 1 : mark + 3] == ["fed_step_settled()", "fx apply Rollback"]
    relaunch = next(line for line in calls[mark:] if line.startswith("decode_batch("))
    assert relaunch == f'decode_batch(tokens=[11], seqs=["s1@0:len={length - 1}"], stream=0)'
    assert harness.out_lines() == ["out s1: T10 T11 T12 T13 T14 Done(stop, n=6, think=0, cached=0, acc=0, guard=None)"]


def test_h5_the_base_of_a_fed_commit_is_the_position_that_it_writes() -> None:
    result = run([req(1, 5, [10, 11, 12, 13, E])])
    assert lines(result, "commit_ctx")[:2] == [
        "commit_ctx(s1@0:len=6, n=1, base=5, row=0)",
        "commit_ctx(s1@0:len=6, n=1, base=6, row=0)",
    ]


def test_h6_a_booked_token_does_not_count_twice_in_the_reservation() -> None:
    # s1 owes 5 + 11 = 16 tokens, 2 blocks; s2 owes 5 + 10 = 15, 1 block; the pool has 3: both fit, at either depth
    requests = [req(1, 5, [*range(10, 20), E]), req(2, 5, [*range(20, 30)], arrive_at_tick=1)]
    for router in ("sync", "async"):
        result = run_scenario(case(requests, {"total_blocks": 3}), router=router)
        admitted = next(i for i, line in enumerate(result.calls) if line == "alloc_sequence() -> slot 1")
        assert "-- tick 2" in result.calls[:admitted]
        assert "-- tick 3" not in result.calls[:admitted]


def test_d23_a_row_that_the_planning_drain_ends_is_retired_there_and_decodes_no_more() -> None:
    requests = [req(1, 5, [10, 11, E], max_tokens=9), req(2, 5, [20, 21, E], arrive_at_tick=2)]
    result = run(requests)
    release = result.calls.index("fx apply ReleaseSeq{cache=true, finish_sequence}")
    after = next(line for line in result.calls[release:] if line.startswith("-- tick"))
    assert after == "-- tick 3"
    assert result.calls[release - 1] == "fed_step_settled()"
    assert not any(line.startswith("fx launch") for line in result.calls[release : result.calls.index("-- tick 3")])
    assert result.clients[0] == "out s1: T10 T11 Done(stop, n=3, think=0, cached=0, acc=0, guard=None)"


def test_d23_an_end_in_the_step_in_flight_outranks_the_mark_of_the_sweep() -> None:
    for key in ("cancel_at_tick", "deadline_at_tick"):
        requests = [req(1, 5, [10, 11, 12, E], max_tokens=9, **{key: 3})]
        result = run(requests)
        assert result.clients == ["out s1: T10 T11 T12 Done(stop, n=4, think=0, cached=0, acc=0, guard=None)"], (
            result.clients
        )


def test_d27_a_row_that_has_to_move_is_settled_first() -> None:
    # s2 prefills on slot 1 while s3 decodes on slot 2; its cancel frees slot 1 and s3 has to move
    requests = [
        req(1, 4, list(range(10, 30))),
        req(2, 40, [20, 21], arrive_at_tick=2, cancel_at_tick=4),
        req(3, 4, list(range(30, 50)), arrive_at_tick=2),
    ]
    result = run(requests, max_prefill_tokens=8)
    compaction = result.calls.index("fx apply CompactSlot{target=1}")
    issued = [i for i, line in enumerate(result.calls[:compaction]) if line.startswith("argmax_batch_to_feed")]
    settled = [i for i, line in enumerate(result.calls[:compaction]) if line == "fx apply MarconiCheckpoint"]
    assert issued
    assert settled[-1] > issued[-1]
    assert result.clients[1] == "out s2: Done(cancelled, n=0, think=0, cached=0, acc=0, guard=None)"


def test_d29_the_ring_grows_to_the_rows_of_the_step() -> None:
    requests = [req(i + 1, 5, [10, 11, 12, 13, E]) for i in range(3)]
    scenario = case(requests)
    harness = Harness(scenario)
    router = AsyncRouter(MockDevice(mock_config(scenario.device)), 8)
    router.ring.rows = 1
    core = Scheduler(SchedIo(router, harness, StandingClock(), harness), scheduler_config(scenario.scheduler))
    core.start()
    drive(core)
    assert router.ring.rows == 3
    assert all("Done(stop, n=5" in line for line in harness.out_lines())


def test_a_lost_device_met_by_the_fed_launch_ends_everybody_in_the_next_plan() -> None:
    requests = [req(1, 5, [10, 11, 12, 13, E]), req(2, 40, [20, E], arrive_at_tick=2)]
    result = run(requests, {"device_lost_at": [1]})
    assert result.clients == [
        "out s1: T10 T11 Error(server shutting down: device lost)",
        "out s2: Error(server shutting down: device lost)",
    ]
    assert result.calls[-1] == "teardown()"
