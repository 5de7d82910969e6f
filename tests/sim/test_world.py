"""The harness: sinks, inbox, arrivals, marks of ticks, and runs that cannot end (S1 section 3, S5 2.7, 2.8)."""

from __future__ import annotations

import pytest
from testkit import E, between, done, outs, req, run, scenario, stream, toks

from metrale.core.io import Wait
from metrale.core.request import Completion
from metrale.core.sampling.record import LogprobRecord
from metrale.sim.harness import (
    BlockingSink,
    Harness,
    HarnessError,
    LossySink,
    StandingClock,
    StreamingSink,
    build_client,
)
from metrale.sim.runner import RunError, mock_config, run_scenario, scheduler_config

RECORD = LogprobRecord(7, -0.5, ((7, -0.5), (8, -1.0)))


# -- sinks ------------------------------------------------------------------------------------------------------------


def test_a_stream_renders_its_events_and_nothing_follows_the_terminal_frame() -> None:
    sink = StreamingSink()
    assert sink.render() == ""
    assert sink.token(5) is True
    assert sink.token_logprobs(7, RECORD) is True
    sink.finish(Completion("stop", [5, 7, 63], think=1, cached=2, accepted=3, guard="request_timeout"))
    sink.error("late")
    sink.finish(Completion("stop", []))
    assert sink.render() == 'T5 TL7:2 Done(stop, n=3, think=1, cached=2, acc=3, guard=Some("request_timeout"))'
    failed = StreamingSink()
    failed.error("why")
    assert (failed.render(), failed.ended) == ("Error(why)", True)


def test_a_blocking_sink_takes_its_first_terminal_frame() -> None:
    sink = BlockingSink()
    assert (sink.render(), sink.ended) == ("dropped", False)
    assert sink.token(5) is True
    assert sink.token_logprobs(5, RECORD) is True
    sink.finish(Completion("length", [1, 2], think=1, cached=2, accepted=3, guard="x", logprobs=4))
    sink.error("late")
    sink.finish(Completion("stop", []))
    assert sink.render() == "Response(tokens=[1, 2], length, think=1, cached=2, acc=3, logprobs=4)"
    failed = BlockingSink()
    failed.error("why")
    assert failed.render() == "Err(why)"


def test_a_lossy_reader_fails_every_later_send_and_still_gets_its_end() -> None:
    sink = LossySink(2)
    assert [sink.token(1), sink.token_logprobs(2, RECORD), sink.token(3), sink.token_logprobs(4, RECORD)] == [
        True, True, False, False,
    ]  # fmt: skip
    sink.finish(Completion("stop", [1]))
    assert sink.render() == "T1 TL2:2 " + done("stop", 1)


def test_the_smaller_bound_of_a_reader_counts() -> None:
    assert outs(run(req(1, 5, toks(10, 29), drop_reader_after=4, stall_reader=2)))[0].startswith("T10 T11 Done")


# -- requests ---------------------------------------------------------------------------------------------------------


def test_request_build() -> None:
    """Defaults of S1 section 3: max_tokens from the script, seed 42, a cancel flag for streams alone."""
    client = build_client(scenario(req(9, 3, [10, 11, E])).request[0])
    request = client.request
    assert (request.id, request.prompt, request.max_tokens, request.min_tokens) == (9, [9, 3, 4], 3, 0)
    assert (request.sampling.seed, request.sampling.temperature, request.sampling.neutral) == (42, 0.0, True)
    assert (request.top_logprobs, request.num_beams, request.adapter_slot, request.deadline) == (None, 1, -1, None)
    assert request.cancel is not None
    assert not request.prompt_is_explicit
    blocking = build_client(scenario(req(9, 3, [10], streaming=False, expired_deadline=True, max_tokens=5)).request[0])
    assert (blocking.request.cancel, blocking.request.deadline, blocking.request.max_tokens) == (
        None,
        StandingClock.NOW,
        5,
    )


def test_knobs_reach_device_and_scheduler() -> None:
    """No key of the tables is forgotten on the way to facts, faults and configuration."""
    device = {
        "vocab": 100, "block_size": 8, "total_blocks": 50, "held_blocks": 5, "reclaimable": 6, "has_proposer": True,
        "has_self_speculative": True, "supports_beam": True, "has_ssm_layers": True, "ring_slots": 3,
        "twophase_ok": True, "can_batch_verify": False, "slot_draft_capacity": 4, "device_token_feed": False,
        "event_lag": 2, "reversed_completion": True, "event_query_fault_at": 9, "kv_exhaust_at": [1],
        "exhaust_at": {"decode_batch": [2], "prefill": [3]}, "fatal_at": [4], "device_lost_at": [5],
        "spill_fail_at": [6], "restore_fail_at": [7],
    }  # fmt: skip
    sc = scenario(device=device, max_batch_size=3, max_prefill_tokens=4, max_batch_tokens=5, max_seq_len=6,
                  use_speculative=True, num_drafts=7, dflash=True, self_speculative=True, ngram_speculative=True,
                  dflash_unified_ctx=False, dflash_serial_append=True, policy="slai", slai_deadline_ms=8,
                  loop_watchdog=True, boundary_tokens=[9], think_start_token=10, think_end_token=11,
                  deadline_scope="all")  # fmt: skip
    mock = mock_config(sc.device)
    facts = mock.facts
    assert (facts.vocab_size, facts.block_size, facts.total_blocks, facts.ring_slots) == (100, 8, 50, 3)
    assert (facts.has_proposer, facts.has_self_speculative, facts.supports_beam, facts.has_ssm_layers) == (True,) * 4
    assert facts.supports_token_feed is False
    assert (mock.held_blocks, mock.reclaimable, mock.twophase_ok, mock.can_batch_verify) == (5, 6, True, False)
    assert (mock.slot_draft_capacity, mock.event_lag, mock.reversed_completion) == (4, 2, True)
    faults = mock.faults
    assert faults.exhaust_at == {"decode_batch": frozenset({1, 2}), "prefill": frozenset({3})}
    assert (faults.fatal_at, faults.lost_at, faults.save_at, faults.restore_at) == ({4}, {5}, {6}, {7})
    assert faults.event_query_at == 9
    config = scheduler_config(sc.scheduler)
    assert (config.max_batch_size, config.max_prefill_tokens, config.max_batch_tokens, config.max_seq_len) == (
        3,
        4,
        5,
        6,
    )
    assert (config.use_speculative, config.num_drafts, config.dflash) == (True, 7, True)
    assert (config.self_speculative, config.ngram_speculative) == (True, True)
    assert (config.dflash_unified_ctx, config.dflash_serial_append, config.policy) == (False, True, "slai")
    assert (config.slai_deadline_ns, config.loop_watchdog, config.boundary_tokens) == (8_000_000, True, {9})
    assert (config.think_start_token, config.think_end_token, config.deadline_scope_all) == (10, 11, True)


# -- inbox ------------------------------------------------------------------------------------------------------------


def test_14_3_receives_take_everything_and_an_open_inbox_gives_nothing_twice() -> None:
    """Two queued requests in one batch; no-wait and bounded then bring nothing and leave it open."""
    harness = Harness(scenario(req(1, 5, [10]), req(2, 5, [20]), lora_rotation="x"))
    batch = harness.receive(Wait.NO_WAIT)
    assert [request.id for request in batch.requests] == [1, 2]
    assert [rotation.name for rotation in batch.rotations] == ["x"]
    assert not batch.closed
    for wait in (Wait.NO_WAIT, Wait.BOUNDED):
        batch = harness.receive(wait)
        assert (batch.requests, batch.rotations, batch.closed) == ([], [], False)


def test_14_3_a_blocking_receive_closes_only_when_everybody_is_answered() -> None:
    """An unanswered client or rotation is a fault of the run; closed stays closed on every later call."""
    harness = Harness(scenario(req(1, 5, [10]), lora_rotation="x"))
    batch = harness.receive(Wait.BLOCK)
    with pytest.raises(HarnessError, match="waits for a new request at tick 0 while s1 is unanswered"):
        harness.receive(Wait.BLOCK)
    harness.clients[0].sink.error("told")
    with pytest.raises(HarnessError, match="while the rotation is unanswered"):
        harness.receive(Wait.BLOCK)
    batch.rotations[0].ack.done()
    for wait in (Wait.BLOCK, Wait.NO_WAIT, Wait.BOUNDED, Wait.BLOCK):
        assert harness.receive(wait).closed


def test_d7_a_blocking_receive_with_an_arrival_ahead_returns_with_nothing() -> None:
    harness = Harness(scenario(req(1, 5, [10], 3)))
    assert harness.arrivals_ahead()
    batch = harness.receive(Wait.BLOCK)
    assert (batch.requests, batch.closed) == ([], False)
    for tick in (1, 2):
        harness.snapshot(tick, 0)
        assert harness.receive(Wait.BLOCK).requests == []
    harness.snapshot(3, 0)
    assert not harness.arrivals_ahead()
    assert [request.id for request in harness.receive(Wait.BLOCK).requests] == [1]


def test_close_hands_over_who_never_got_in() -> None:
    """Queued, refused after the close, still to come: each once."""
    harness = Harness(scenario(req(1, 5, [10]), req(2, 5, [20], 2), req(3, 5, [30], 9), close_inbox_at_tick=1))
    harness.snapshot(1, 0)
    harness.snapshot(2, 0)
    assert not harness.arrivals_ahead()
    assert [request.id for request in harness.close()] == [1, 2, 3]
    assert harness.close() == []


def test_an_arrival_in_the_very_tick_of_the_close_still_gets_in() -> None:
    """Arrivals first, then the marks of the tick."""
    result = run(req(1, 5, toks(10, 15, E)), req(2, 5, [20, E], 3), req(3, 5, [30, E], 4), close_inbox_at_tick=3)
    assert outs(result) == [
        stream(toks(10, 15), done("stop", 7)),
        stream([20], done("stop", 2)),
        "Error(server shut down before this request started)",
    ]


def test_marks_act_inside_their_tick_and_after_its_arrivals() -> None:
    """The flag of tick 2 is up for the sweep of tick 2."""
    result = run(req(1, 5, toks(10, 29)), req(2, 5, toks(20, 39), 2, cancel_at_tick=2, deadline_at_tick=1))
    assert outs(result)[1] == done("cancelled", 0)
    assert between(result, 2)[-1:] == ["num_free_blocks() -> 999"]


# -- runs that cannot end ---------------------------------------------------------------------------------------------


def test_a_run_is_bounded_in_ticks() -> None:
    """The limit is named with a remedy."""
    sc = scenario(req(1, 5, [10, E], 50))
    with pytest.raises(RunError, match="the run passed 20 ticks; an earlier arrive_at_tick or a larger limit helps"):
        run_scenario(sc, max_ticks=20)
    assert run_scenario(sc, max_ticks=52).ticks == 52


def test_a_scheduler_that_forgets_a_client_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocking receive of an idle scheduler names who still waits."""
    import metrale.core.scheduler as scheduler

    monkeypatch.setattr(scheduler, "start_prefills", lambda s, requests: None)
    with pytest.raises(RunError, match="waits for a new request at tick 1 while s1, s2 is unanswered"):
        run_scenario(scenario(req(1, 5, [10, E]), req(2, 5, [20, E])))


def test_a_run_without_a_log_answers_the_same() -> None:
    """log=False leaves the call lines out, nothing else."""
    sc = scenario(req(1, 5, toks(10, 15, E)), req(2, 5, [20, E], 2), device={"kv_exhaust_at": [1]})
    quiet, loud = run_scenario(sc, log=False), run_scenario(sc)
    assert quiet.calls == []
    assert (quiet.clients, quiet.ticks) == (loud.clients, loud.ticks)


def test_the_text_of_a_run() -> None:
    """Header, calls, ack, out lines; LF and a final newline."""
    result = run(req(1, 5, [10, E]), lora_rotation="x")
    assert result.lines[0] == "# scenario case"
    assert result.lines[-2:] == ["rotation ack: Done", "out s1: " + stream([10], done("stop", 2))]
    assert result.text == "\n".join(result.lines) + "\n"
