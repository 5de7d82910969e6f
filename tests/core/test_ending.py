"""Cancels, deadlines and readers on the plain lanes (S1 section 17, D4, D5, D12)."""

from __future__ import annotations

import pytest
from testkit import (
    Bench,
    E,
    assert_block,
    between,
    checkpoints,
    count,
    done,
    finish,
    outs,
    req,
    run,
    scenario,
    step,
    stream,
    tick_of,
    toks,
)

HELD = {"total_blocks": 10, "held_blocks": 8, "kv_exhaust_at": [1]}


PARKED = (req(1, 5, toks(10, 15, E)), req(2, 5, toks(20, 25, E)))


def test_case_6a_d4_a_cancel_on_the_plain_lane_keeps_the_token_of_its_tick() -> None:
    """cancel_at 5: the decode that yields the seventh output raises the flag; the sweep ends the row, cached."""
    result = run(req(1, 5, toks(10, 29), cancel_at=5), req(2, 5, [20, 21, 22, E]))
    assert outs(result) == [stream(toks(10, 16), done("cancelled", 7)), stream([20, 21, 22], done("stop", 4))]
    assert_block(result, "\n".join([*checkpoints("s1@0:10 0>16"), *finish("s1@0:11", 1), "num_free_blocks() -> 1000"]))


@pytest.mark.parametrize(("at", "last"), [(0, 11), (1, 12), (3, 14)])
def test_cancel_at_counts_generated_tokens_before_the_push(at: int, last: int) -> None:
    """Exactly equal, inside a plain decode."""
    assert outs(run(req(1, 5, toks(10, 29), cancel_at=at))) == [stream(toks(10, last), done("cancelled", last - 9))]


def test_a_cancel_hook_does_not_look_at_mixed_forwards() -> None:
    """The decode rows of a mixed step step over the number; the request runs to its end (S1 section 2)."""
    result = run(req(1, 4, toks(10, 15), cancel_at=1), req(2, 20, [20, E], 1), max_prefill_tokens=8)
    assert outs(result)[0] == stream(toks(10, 15), done("length", 6))


def test_d12_a_cancel_tick_acts_in_the_sweep_of_that_tick() -> None:
    """Marker of tick 3, so the token of tick 3 is the last."""
    result = run(req(1, 5, toks(10, 29), cancel_at_tick=3))
    assert outs(result) == [stream(toks(10, 13), done("cancelled", 4))]
    assert tick_of(result, "free_sequence") == 3


def test_d12_cancel_and_deadline_before_the_arrival_act_on_it_and_after_the_end_do_nothing() -> None:
    """Flag raised on arrival: the look of the next drain ends it; a deadline (scope active) two tokens later."""
    one = req(1, 5, toks(10, 20))
    early = run(one, req(2, 5, [20, E], 3, cancel_at_tick=1), req(3, 5, toks(30, 39), 3, deadline_at_tick=2))
    assert outs(early)[1:] == [done("cancelled", 0), stream([30, 31], done("timeout", 2, guard="request_timeout"))]
    late = run(one, req(2, 5, [20, E], cancel_at_tick=5, deadline_at_tick=6))
    assert outs(late)[1] == stream([20], done("stop", 2))


def test_d12_cancel_and_deadline_of_one_tick_report_the_cancel() -> None:
    """The cancel is tested first in the sweep (S1 section 17)."""
    result = run(req(1, 5, toks(10, 20), cancel_at_tick=2, deadline_at_tick=2))
    assert outs(result) == [stream([10, 11, 12], done("cancelled", 3))]


def test_a_row_that_ends_by_itself_keeps_its_own_reason() -> None:
    """EOS or length in the tick of the deadline or the cancel."""
    for key in ("cancel_at_tick", "deadline_at_tick"):
        assert outs(run(req(1, 5, [10, 11, E], **{key: 2}))) == [stream([10, 11], done("stop", 3))]
        assert outs(run(req(1, 5, [10, 11, 12], **{key: 2}))) == [stream([10, 11, 12], done("length", 3))]


def test_a_deadline_of_a_blocking_request() -> None:
    """No guard and no n in a Response."""
    result = run(req(1, 5, toks(10, 20), streaming=False, deadline_at_tick=2))
    assert outs(result) == ["Response(tokens=[10, 11, 12], timeout, think=0, cached=0, acc=0, logprobs=0)"]


def test_case_9_a_cancel_while_requeued() -> None:
    """Before the snapshot of the tick after the marker; no device call; n = tokens so far."""
    result = run({**PARKED[0], "cancel_at_tick": 3}, PARKED[1], device=HELD)
    assert outs(result) == [stream([10, 11], done("cancelled", 2)), stream(toks(20, 25), done("stop", 7))]
    assert count(result, "prefill(n=6") == 0
    assert between(result, 3)[-3:] == [
        "num_free_blocks() -> 1",
        "reclaim_prefix_blocks(1) -> 0",
        "num_free_blocks() -> 1",
    ]
    assert between(result, 4) == [*step("s2@0:8 23>24"), "num_free_blocks() -> 1"]


def test_case_9_a_cancel_while_spilled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is removed and no restore call is made."""
    from metrale.sim.spill_store import FileSpillStore

    removed: list[int] = []
    monkeypatch.setattr(FileSpillStore, "remove", lambda self, file_id: removed.append(file_id))
    result = run(
        req(1, 32, toks(10, 15, E), cancel_at_tick=4),
        req(2, 96, toks(20, 22, E), 2),
        device={"total_blocks": 10, "held_blocks": 4},
        swap_space_gb=1,
    )
    assert outs(result) == [stream([10, 11, 12], done("cancelled", 3)), stream([20, 21, 22], done("stop", 4))]
    assert count(result, "restore_sequence_state") == 0
    assert removed == [0]


def test_case_9_d5_a_deadline_while_parked() -> None:
    """Scope active: one decode after it is active again. Scope all: at once, with its tokens so far."""
    spilled = (req(1, 32, toks(10, 15, E), deadline_at_tick=4), req(2, 96, toks(20, 22, E), 2))
    pool = {"total_blocks": 10, "held_blocks": 4}
    active = run(*spilled, device=pool, swap_space_gb=1)
    assert outs(active)[0] == stream(toks(10, 13), done("timeout", 4, guard="request_timeout"))
    everywhere = run(*spilled, device=pool, swap_space_gb=1, deadline_scope="all")
    assert outs(everywhere)[0] == stream(toks(10, 12), done("timeout", 3, guard="request_timeout"))
    assert count(everywhere, "restore_sequence_state") == 0
    requeued = run({**PARKED[0], "deadline_at_tick": 3}, PARKED[1], device=HELD, deadline_scope="all")
    assert outs(requeued)[0] == stream([10, 11], done("timeout", 2, guard="request_timeout"))


def test_d4_a_restored_request_can_still_be_cancelled() -> None:
    """The flag is kept over the spill."""
    result = run(
        req(1, 32, toks(10, 15, E), cancel_at_tick=7),
        req(2, 96, toks(20, 22, E), 2),
        device={"total_blocks": 10, "held_blocks": 4},
        swap_space_gb=1,
    )
    assert outs(result)[0] == stream(toks(10, 14), done("cancelled", 5))


def test_requests_that_end_in_one_plan_end_in_a_written_order() -> None:
    """Prefilling, spilled, requeued, queued is the order of the plan after the look: observed at the sinks."""
    order: list[int] = []
    bench = Bench(
        scenario(
            req(1, 4, toks(10, 30)),
            req(2, 40, [20], 1),
            req(3, 40, [30], 1),
            req(4, 5, [40], 1),
            req(5, 5, [50], 1),
            max_prefill_tokens=8,
            max_batch_size=3,
        )
    )
    for client in bench.harness.clients:
        end = client.sink.finish
        client.sink.finish = lambda c, i=client.request.id, end=end: (order.append(i), end(c))  # type: ignore[method-assign]
    bench.tick(2)
    for client in bench.harness.clients[1:]:
        client.request.cancel.raised = True  # type: ignore[union-attr]
    bench.tick()
    # The look of the drain comes first (4, 5), then the prefilling ones in list order.
    assert order == [4, 5, 2, 3]


def test_case_6c_a_reader_that_is_gone_ends_the_row_in_that_tick() -> None:
    """drop_reader_after 3: the fourth token is the first failed send; it counts, and the reason is ``stop``."""
    result = run(req(1, 5, toks(10, 29), drop_reader_after=3), req(2, 5, toks(20, 24, E)))
    assert outs(result)[0] == stream([10, 11, 12], done("stop", 4))
    assert tick_of(result, "free_sequence(s1") == 3
    assert outs(result)[1] == stream(toks(20, 24), done("stop", 6))


def test_a_reader_gone_before_the_first_token_lets_the_sequence_live_on() -> None:
    """S2 5.3: a failed first send is only logged; the next one ends the row."""
    assert outs(run(req(1, 5, toks(10, 29), drop_reader_after=0))) == [done("stop", 2)]


def test_case_13b_a_stalled_reader_delays_nobody() -> None:
    """R1's queue holds 4 events; the fifth send fails at once; R2 completes."""
    result = run(req(1, 5, toks(10, 29), stall_reader=4), req(2, 5, toks(20, 29, E)))
    assert outs(result) == [stream(toks(10, 13), done("stop", 5)), stream(toks(20, 29), done("stop", 11))]
    logprobs = run(req(1, 5, toks(10, 29), stall_reader=2, top_logprobs=1))
    assert outs(logprobs) == ["T10 TL11:1 " + done("stop", 3)]


def test_chunked_preemption_and_cancel_together() -> None:
    """Weird mix: an exhaustion while another request prefills, the victim cancelled while parked, slots stay apart."""
    result = run(
        req(1, 4, toks(10, 40), cancel_at_tick=4),
        req(2, 4, toks(20, 50)),
        req(3, 30, [30, 31, E], 2),
        device={"kv_exhaust_at": [1], "total_blocks": 20, "held_blocks": 18},
        max_prefill_tokens=8,
    )
    assert outs(result)[1] == stream(toks(20, 50), done("length", 31))
    assert outs(result)[2] == stream([30, 31], done("stop", 3))
    assert outs(result)[0] == stream([10, 11], done("cancelled", 2))
