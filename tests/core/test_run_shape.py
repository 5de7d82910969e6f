"""Rotation, arrivals, idle ticks, the end of a run (S1 sections 3, 10, 11 and 21)."""

from __future__ import annotations

from testkit import (
    END_LINES,
    START,
    Bench,
    E,
    between,
    count,
    done,
    finish,
    free_direct,
    gate,
    marker,
    outs,
    req,
    run,
    run_failing,
    scenario,
    step,
    stream,
    tick_of,
    toks,
    whole,
)

from metrale.core.io import DeviceFault
from metrale.core.scheduler import Lane


def fault(text: str = "scripted") -> DeviceFault:
    return DeviceFault(text, text)


def test_case_11_a_rotation_waits_for_quiescence() -> None:
    """A: overlapping requests postpone it to tick 13, once. B: without any request it is applied and acknowledged."""
    a = run(req(1, 5, toks(10, 15, E)), req(2, 5, toks(20, 25, E), 3), req(3, 5, toks(30, 35, E), 6), lora_rotation="x")
    assert tick_of(a, "fx lora Rotate(x)") == 13
    assert count(a, "set_active_lora(x)") == 1
    assert a.clients[0] == "rotation ack: Done"
    b = run(lora_rotation="adapter y")
    assert b.calls == [
        *START,
        *marker(1000, 1),
        "fx lora Rotate(adapter y)",
        "set_active_lora(adapter y)",
        *marker(1000, 2),
        *END_LINES,
    ]
    assert b.clients == ["rotation ack: Done"]


def test_case_11c_a_rotation_waits_for_parked_work() -> None:
    """Only after the spilled R1 was restored and ended."""
    result = run(
        req(1, 32, toks(10, 15, E)),
        req(2, 96, toks(20, 22, E), 2),
        device={"total_blocks": 10, "held_blocks": 4},
        swap_space_gb=1,
        lora_rotation="x",
    )
    assert tick_of(result, "fx lora") > tick_of(result, "free_sequence(s0@0")
    assert tick_of(result, "fx lora") == 10
    assert result.ticks == 11


def test_a_refused_rotation_is_acknowledged_with_the_devices_words() -> None:
    """Logged, never fatal (S5 4.2)."""
    result = run_failing(
        scenario(req(1, 5, [10, E]), lora_rotation="x"), {"set_active_lora": {0: fault("unknown adapter")}}
    )
    assert result.clients == ["rotation ack: Err(unknown adapter)", f"out s1: {stream([10], done('stop', 2))}"]


def test_d7_no_request_at_all() -> None:
    """Start-up, the pair of tick 1, the end sequence."""
    assert run().calls == [*START, *marker(1000, 1), *END_LINES]


def test_d6_d7_empty_ticks_up_to_an_arrival() -> None:
    """Arrival ticks 4 and 9: idle pairs, admission in the tick after; each honoured exactly."""
    result = run(req(1, 5, [10, E], 4), req(2, 5, [20, E], 9))
    idle = [line for tick in range(1, 5) for line in marker(1000, tick)]
    assert result.calls[: 3 + 8] == [*START, *idle]
    assert result.calls[11 : 11 + 4] == [*gate(1), *marker(1000, 5)]
    assert tick_of(result, "prefill(") == 5
    assert between(result, 6, 9) == [
        *marker(1000, 7),
        *marker(1000, 8),
        *marker(1000, 9),
        *gate(1),
        "num_free_blocks() -> 1000",
    ]
    assert tick_of(result, "prefill(", 1) == 10
    assert result.ticks == 11


def test_d6_arrivals_of_one_tick_keep_file_order_and_ticks_sort() -> None:
    """Stable by tick."""
    result = run(req(3, 5, [30, E], 2), req(2, 5, [20, E], 1), req(4, 5, [40, E], 2), req(1, 5, [10, E], 1))
    assert [line.split(" s")[1].split("@")[0] for line in result.calls if line.startswith("prefill(")] == [
        "2",
        "1",
        "3",
        "4",
    ]


def test_an_arrival_is_first_seen_by_the_drain_of_the_next_tick() -> None:
    """Its gate lines stand between the last line of tick t and the marker of t + 1 (S1 section 3)."""
    result = run(req(1, 5, toks(10, 14, E)), req(2, 5, [20, E], 2))
    assert between(result, 2) == [*step("s1@0:6 11>12"), *gate(1), "num_free_blocks() -> 999"]


def test_ticks_far_apart() -> None:
    """Five thousand empty ticks are only pairs."""
    result = run(req(1, 5, [10, E], 4000))
    assert result.ticks == 4002
    assert len(result.calls) == 3 + 2 * 4000 + 2 + 2 + 11 + len(step("s1@0:5 10>63")) + 4 + 2 + 8


def test_the_inbox_closes_in_the_tick_after_the_last_end() -> None:
    """Start to end of the smallest run, line by line."""
    result = run(req(1, 1, [10, E]))
    assert result.calls == [
        *START,
        *gate(1),
        *marker(1000, 1),
        *whole(1, 0, 1, 10),
        *step("s1@0:1 10>63"),
        *finish("s1@0:2", 1),
        *marker(1000, 2),
        *END_LINES,
    ]


def test_case_13a_closing_the_inbox_matters_on_an_idle_tick_only() -> None:
    """Active, prefilling and queued work runs to its normal end; the run ends without the extra idle tick."""
    result = run(
        req(1, 4, toks(10, 15, E)),
        req(2, 40, [20, E], 1),
        req(3, 5, [30, E], 2),
        max_batch_size=2,
        max_prefill_tokens=8,
        swap_space_gb=1,
        close_inbox_at_tick=3,
    )
    assert outs(result) == [
        stream(toks(10, 15), done("stop", 7)),
        stream([20], done("stop", 2)),
        stream([30], done("stop", 2)),
    ]
    assert result.calls[-len(END_LINES) :] == END_LINES


def test_case_13a_parked_work_at_a_shutdown_gets_an_error() -> None:
    """Closed while R1 is parked: once nothing runs, the idle tick ends the run and tells it and who never arrived."""
    stuck = {"total_blocks": 10, "held_blocks": 9}
    requeued = run(
        req(1, 5, toks(10, 15, E)),
        req(2, 5, toks(20, 25, E)),
        req(3, 5, [30, E], 50),
        device={**stuck, "kv_exhaust_at": [1]},
        close_inbox_at_tick=6,
    )
    assert outs(requeued) == [
        "T10 T11 Error(server shutting down before preempted resume)",
        stream(toks(20, 25), done("stop", 7)),
        "Error(server shut down before this request started)",
    ]
    assert requeued.calls[-len(END_LINES) - 2 :] == [*marker(1, 7), *END_LINES]
    spilled = run(
        req(1, 15, toks(10, 15, E)),
        req(2, 5, toks(20, 25, E)),
        device={**stuck, "kv_exhaust_at": [3]},
        swap_space_gb=1,
        close_inbox_at_tick=6,
    )
    assert outs(spilled)[0] == stream(
        toks(10, 13), "Error(server shut down while this request was swapped out to disk)"
    )


def test_the_end_sequence_tells_everybody_in_order() -> None:
    """S1 section 21: active rows finish; requeued, prefilling, spilled, queued and unseen ones get an error."""
    from metrale.core.parking import requeue
    from metrale.core.row import Spilled

    events: list[str] = []
    bench = Bench(
        scenario(
            req(1, 4, toks(10, 30)),
            req(2, 4, toks(20, 40)),
            req(3, 4, toks(30, 50)),
            req(4, 400, [40], 1),
            req(5, 4, [50], 1),
            req(6, 4, [60], 90),
            max_prefill_tokens=8,
            max_batch_size=4,
        )
    )
    for client in bench.harness.clients:
        for name in ("finish", "error"):
            inner = getattr(client.sink, name)
            setattr(client.sink, name, lambda x, i=client.request.id, inner=inner: (events.append(f"s{i}"), inner(x)))
    bench.tick(2)
    state = bench.state
    requeue(state, state.active.pop(1))
    spilled = state.active.pop(1)
    state.spilled.append(Spilled(spilled, 0, list(spilled.seq.tokens), spilled.seq.seq_len, 1))
    before = len(bench.calls)
    bench.scheduler.finish()
    assert bench.calls[before:] == [*finish("s1@0:6", 1), *free_direct("s4@3:16", 2), *END_LINES]
    assert events == ["s1", "s2", "s4", "s3", "s5", "s6"]
    assert bench.outs() == [
        stream([10, 11, 12], done("stop", 3)),
        "T20 T21 T22 Error(server shutting down before preempted resume)",
        "T30 T31 T32 Error(server shut down while this request was swapped out to disk)",
        "Error(server shut down during prefill)",
        "Error(server shut down before this request started)",
        "Error(server shut down before this request started)",
    ]


def test_skip_rest_ticks_never_reach_the_end_of_tick() -> None:
    """A tick whose only row ended at birth has no sweep, compaction or resume lines."""
    result = run(req(1, 5, [10]), req(2, 5, [20, E], 3))
    assert between(result, 1, 3) == [
        *whole(1, 0, 5, 10),
        *finish("s1@0:5", 1),
        *marker(1000, 2),
        *marker(1000, 3),
        *gate(1),
        "num_free_blocks() -> 1000",
    ]


def test_lanes_run_in_order() -> None:
    """Start, Continue, Decode."""
    plan = Bench(scenario(req(1, 5, [10, E]))).scheduler.plan()
    assert plan.lanes == (Lane.START_PREFILLS, Lane.CONTINUE_PREFILLS, Lane.DECODE)
