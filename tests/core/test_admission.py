"""The queue: refusals, what ends there, seats, the adapter cohort, the KV reservation (S1 sections 7 and 8)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from testkit import (
    END_LINES,
    START,
    Bench,
    E,
    assert_block,
    between,
    count,
    done,
    finish,
    gate,
    marker,
    outs,
    req,
    run,
    scenario,
    step,
    stream,
    tick_of,
    toks,
    whole,
)

from metrale.core.admission import absorb
from metrale.core.io import Batch


def _whole_run(id: int, length: int, tokens: list[int]) -> list[str]:
    """Calls of a run that serves one greedy request alone, its refused companions leaving no line."""
    lines = [*START, *gate(1), *marker(1000, 1), *whole(id, 0, length, tokens[0])]
    for index, (given, picked) in enumerate(pairwise(tokens)):
        if index:
            lines += marker(999, index + 1)
        lines += step(f"s{id}@0:{length + index} {given}>{picked}")
    lines += finish(f"s{id}@0:{length + len(tokens) - 1}", 1)
    return [*lines, *marker(1000, len(tokens)), *END_LINES]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (req(2, 0, [20, E]), "prompt is empty"),
        (req(2, None, [20, E], prompt=[]), "prompt is empty"),
        (req(2, 5, [20, E], max_tokens=0), "max_tokens is 0"),
        (req(2, None, [20, E], prompt=[1, 64, 70]), "token 64 is outside the vocabulary of 64"),
        (req(2, 16000, [20, E]), "prompt needs 1001 KV blocks but the pool has 1000"),
        (req(1, 5, [20, E]), "request id 1 is in use"),
    ],
)
def test_d11_d13_a_refused_request_costs_no_line(bad: dict, why: str) -> None:
    """Each reason alone, streaming and blocking; the other request's run is the one it has alone."""
    for streaming in (True, False):
        result = run(req(1, 5, [10, 11, E]), {**bad, "streaming": streaming})
        assert result.calls == _whole_run(1, 5, [10, 11, E])
        text = f"refused: {why}"
        assert outs(result) == [stream([10, 11], done("stop", 3)), f"Error({text})" if streaming else f"Err({text})"]


def test_d11_the_first_reason_wins() -> None:
    """Empty before max_tokens, before vocabulary, before the pool, before the id."""
    pool = {"total_blocks": 2}
    busy = req(1, 5, [10, E])
    cases = [
        (req(1, 0, [20], max_tokens=0), "prompt is empty"),
        (req(1, None, [20], prompt=[99] * 40, max_tokens=0), "max_tokens is 0"),
        (req(1, None, [20], prompt=[5, 99, *[98] * 40]), "token 99 is outside the vocabulary of 64"),
        (req(1, 40, [20]), "prompt needs 3 KV blocks but the pool has 2"),
        (req(1, 5, [20]), "request id 1 is in use"),
    ]
    for bad, why in cases:
        assert outs(run(busy, bad, device=pool))[1] == f"Error(refused: {why})"


def test_d17_the_vocabulary_check_is_for_explicit_prompts_alone() -> None:
    """Id 64 and above as the first prompt token is served; script tokens may lie outside; the bound is exact."""
    result = run(req(64, 5, [100, 101, E]), req(2, None, [20, E], prompt=[63, 0]), device={"vocab": 64})
    assert outs(result) == [stream([100, 101], done("stop", 3)), stream([20], done("stop", 2))]


def test_d17_a_host_copy_of_a_token_outside_the_vocabulary_is_all_zeros() -> None:
    """Decode takes the last of the equal logits (63, the EOS), a first token the lowest id."""
    result = run(req(1, 5, [10, 99, 11, E], top_logprobs=0))
    assert outs(result) == [stream([10], done("stop", 2))]
    first = run(req(1, 5, [99, 11, E], min_tokens=1))
    assert outs(first) == [stream([0, 11], done("stop", 3))]


def test_the_pool_check_ignores_held_blocks_and_takes_prompts_that_just_fit() -> None:
    """prompt_len // block_size + 1 against the total (S1 section 8)."""
    device = {"total_blocks": 4, "held_blocks": 4}
    assert outs(run(req(1, 63, [10, E]), device=device)) == [stream([10], done("stop", 2))]
    assert outs(run(req(1, 64, [10, E]), device=device)) == [
        "Error(refused: prompt needs 5 KV blocks but the pool has 4)"
    ]
    assert outs(run(req(1, 5000, [10, E]), device={"total_blocks": 0})) == [stream([10], done("stop", 2))]


# -- D14: where the queue is looked at --------------------------------------------------------------------------------


def test_d14_a_refused_request_takes_no_seat() -> None:
    """One seat, the refused one first: the second is admitted in tick 1."""
    result = run(req(1, 0, [10]), req(2, 5, [20, E]), max_batch_size=1)
    assert tick_of(result, "prefill(") == 1
    assert result.calls[3:7] == [*gate(1), *marker(1000, 1)]


def test_d14_the_drain_closes_in_the_same_tick_when_everything_was_refused() -> None:
    """As if nothing had been queued: start-up, the pair of tick 1, the end."""
    result = run(req(1, 0, [10]), req(2, 5, [20], max_tokens=0))
    assert result.calls == [*START, *marker(1000, 1), *END_LINES]


def test_d14_slai_never_sees_a_refused_head() -> None:
    """The queue head of SLAI is the first that is not refused."""
    result = run(
        req(1, 0, [10]), req(2, 9, [20, E]), req(3, 2, [30, E]), req(4, 5, [40, E]), policy="slai", max_batch_size=2
    )
    assert [line for line in result.calls if line.startswith("prefill(")] == [
        "prefill(n=9, s2@0:len=9, stream=0)",
        "prefill(n=2, s3@1:len=2, stream=0)",
        "prefill(n=5, s4@0:len=5, stream=0)",
    ]


def test_case_5_d4_d12_cancelled_while_queued() -> None:
    """R2's flag rises at tick 3; the drain of tick 4 ends it: no alloc, no prefill, n = 0, the others untouched."""
    requests = [req(1, 5, toks(10, 19, E)), req(2, 5, toks(20, 29, E), cancel_at_tick=3), req(3, 5, [30, 31, E])]
    result = run(*requests, max_batch_size=1)
    alone = run(requests[0], requests[2], max_batch_size=1)
    assert result.calls == alone.calls
    assert outs(result) == [
        stream(toks(10, 19), done("stop", 11)),
        done("cancelled", 0),
        stream([30, 31], done("stop", 3)),
    ]


def test_d14_refused_before_cancelled() -> None:
    """Tested in this order: a request that is both is refused."""
    result = run(req(1, 5, toks(10, 19, E)), req(2, 0, [20], 2, cancel_at_tick=1))
    assert outs(result)[1] == "Error(refused: prompt is empty)"


def test_d18_a_cancel_in_the_queue_frees_the_id_for_the_next_in_the_same_look() -> None:
    """First in the inbox owns the id until it ends; its end in the look comes before the second one's look."""
    first = req(7, 5, toks(20, 29, E), 2, cancel_at_tick=1)
    result = run(req(1, 5, toks(10, 19, E)), first, req(7, 5, [30, E], 2))
    assert outs(result)[1:] == [done("cancelled", 0), stream([30], done("stop", 2))]


def test_case_10_d18_two_requests_with_one_id() -> None:
    """The second is refused, the third, after both, is served; a late cancel of the first does nothing."""
    result = run(
        req(7, 5, [10, 11, E], cancel_at_tick=8),
        req(7, 9, [20, 21, 22, E]),
        req(7, 5, toks(30, 39, E), 6),
    )
    assert [line.split(":")[0] for line in result.clients] == ["out s7", "out s7", "out s7"]
    assert outs(result) == [
        stream([10, 11], done("stop", 3)),
        "Error(refused: request id 7 is in use)",
        stream(toks(30, 39), done("stop", 11)),
    ]


def test_d18_an_id_is_busy_while_parked_and_free_after_any_end() -> None:
    """Requeued work still owns its id; an error ends the ownership as a normal end does."""
    held = {"total_blocks": 10, "held_blocks": 8, "kv_exhaust_at": [1]}
    result = run(req(1, 5, toks(10, 15, E)), req(2, 5, toks(20, 25, E)), req(1, 5, [30, E], 3), device=held)
    assert outs(result)[2] == "Error(refused: request id 1 is in use)"
    failed = run(req(1, 5, toks(10, 15, E)), req(1, 5, [30, E], 3), device={"kv_exhaust_at": [1]})
    assert outs(failed) == [
        "T10 T11 Error(KV cache exhausted (scripted at decode_batch #1))",
        stream([30], done("stop", 2)),
    ]


def test_d18_script_and_draft_period_belong_to_the_request() -> None:
    """Two requests with one id one after the other answer from their own scripts."""
    result = run(req(7, 5, [10, 11, E]), req(7, 5, [20, 21, 22, E], 4))
    assert outs(result) == [stream([10, 11], done("stop", 3)), stream([20, 21, 22], done("stop", 4))]


def test_case_14_an_empty_prompt_ends_one_request() -> None:
    """R1 and R3 run as without it."""
    one, three = req(1, 5, [10, 11, E]), req(3, 5, [30, E])
    result = run(one, req(2, 0, [20, 21, E]), three)
    assert result.calls == run(one, three).calls
    assert outs(result)[1] == "Error(refused: prompt is empty)"


# -- seats and policies -----------------------------------------------------------------------------------------------


def test_seats_count_active_and_prefilling_but_not_parked_work() -> None:
    """max_batch_size 2: with one parked and one active the newcomer gets the seat (S1 24.4)."""
    result = run(
        req(1, 5, toks(10, 15, E)),
        req(2, 5, toks(20, 25, E)),
        req(3, 5, [30, 31, E], 2),
        device={"total_blocks": 10, "held_blocks": 8, "kv_exhaust_at": [1]},
        max_batch_size=2,
    )
    assert tick_of(result, "prefill(n=5, s3") == 3


def test_a_full_batch_writes_no_gate_lines() -> None:
    """Cap 0: nothing is drained, so no adapter is asked about; the queue head starts in the tick after the end."""
    result = run(req(1, 5, [10, 11, 12, E]), req(2, 5, [20, E]), max_batch_size=1)
    assert between(result, 1)[-2:] == ["decode_marconi_checkpoint(s1@0:len=6)", "num_free_blocks() -> 999"]
    assert between(result, 3)[-3:] == [*gate(1), "num_free_blocks() -> 1000"]
    assert tick_of(result, "prefill(n=5, s2") == 4


def test_slai_starts_the_head_and_then_the_shortest() -> None:
    """Lengths 500, 10, 200, 50, 300 with 3 seats: 0, 1, 3 (S2 section 13)."""
    lengths = [500, 10, 200, 50, 300]
    requests = [req(i + 1, n, [10 + i, 11, 12, 13, E]) for i, n in enumerate(lengths)]
    result = run(*requests, policy="slai", max_batch_size=3)
    order = [line.split("(n=")[1].split(",")[0] for line in result.calls if line.startswith("prefill(")]
    assert order[:3] == ["500", "10", "50"]
    # The next drain's head is the one that waited longest (200), whatever its length.
    assert order[3:] == ["200", "300"]


# -- gate: adapter cohort ---------------------------------------------------------------------------------------------


def test_the_adapter_cohort_of_a_batch_is_its_first_active_row() -> None:
    """Candidates of another adapter go back to the front of the queue, behind the unreserved (S1 section 8)."""
    bench = Bench(
        scenario(req(1, 5, toks(10, 15, E)), req(2, 5, [20, E], 1), req(3, 5, toks(30, 39), 1), req(4, 5, [40], 1))
    )
    bench.device.adapter_id_for = lambda slot: slot + 1  # type: ignore[method-assign]
    requests = {client.request.id: client.request for client in bench.harness.clients}
    requests[2].adapter_slot = requests[4].adapter_slot = 3
    bench.tick()
    assert bench.tick()
    assert [row.request.id for row in bench.state.active] == [1, 3]
    assert [request.id for request in bench.state.pending] == [2, 4]
    gate_of_tick_2 = bench.calls[bench.calls.index("-- tick 2") - 5 : bench.calls.index("-- tick 2") - 1]
    assert gate_of_tick_2 == ["adapter_id_for(-1)", "adapter_id_for(3)", "adapter_id_for(-1)", "adapter_id_for(3)"]
    assert bench.state.active[1].seq.adapter_id == 0


def test_the_cohort_falls_back_to_the_first_prefill_and_then_to_the_first_candidate() -> None:
    """Without an active row prefilling[0] decides; on an idle server the first candidate does."""
    sc = scenario(req(1, 40, [10, E]), req(2, 5, [20, E], 1), max_prefill_tokens=8, max_batch_tokens=8)
    bench = Bench(sc)
    bench.device.adapter_id_for = lambda slot: slot + 1  # type: ignore[method-assign]
    requests = {client.request.id: client.request for client in bench.harness.clients}
    requests[1].adapter_slot = 5
    bench.tick(2)
    assert [entry.request.id for entry in bench.state.prefilling] == [1]
    assert [request.id for request in bench.state.pending] == [2]
    assert bench.calls[3:5] == ["adapter_id_for(5)", "adapter_id_for(5)"]


# -- gate: reservation ------------------------------------------------------------------------------------------------


def _starts(result) -> dict[str, int]:
    return {
        line.split(" s")[1].split("@")[0]: int(at)
        for at, line in _ticked(result)
        if line.startswith("prefill(") and "stream=0" in line
    }


def _ticked(result) -> list[tuple[str, str]]:
    tick, lines = "0", []
    for line in result.calls:
        if line.startswith("-- tick "):
            tick = line.removeprefix("-- tick ")
        lines.append((tick, line))
    return lines


@pytest.mark.parametrize(("total", "second"), [(3, 4), (4, 1)])
def test_reservation_counts_prompt_and_whole_decode(total: int, second: int) -> None:
    """17 + 15 = 32 tokens are 3 blocks (32 // 16 + 1), 5 + 3 tokens are 1: both fit 4 blocks, not 3."""
    result = run(req(1, 17, [10, 11, 12, E], max_tokens=15), req(2, 5, [20, 21, E]), device={"total_blocks": total})
    # s1 decodes in ticks 1 to 3 and ends in tick 3.
    assert _starts(result) == {"1": 1, "2": second}


def test_reservation_block_boundary_is_exact() -> None:
    """depth // block_size + 1: 15 tokens are one block, 16 are two."""
    for max_tokens, second in ((10, 1), (11, 4)):
        result = run(
            req(1, 5, [10, 11, 12, E], max_tokens=max_tokens), req(2, 5, [20, 21, E]), device={"total_blocks": 2}
        )
        assert _starts(result) == {"1": 1, "2": second}


def test_reservation_of_a_running_row_is_its_length_its_pending_token_and_what_is_left() -> None:
    """S1 section 8, the spill check: 35 + 4 = 39 tokens are 3 blocks; 7 + 3 = 10 fits a pool of 10, not of 9."""
    second = req(2, 96, [20, 21, 22, E], 2)
    for total, tick in ((10, 3), (9, 7)):
        result = run(req(1, 32, toks(10, 15, E)), second, device={"total_blocks": total})
        assert _starts(result) == {"1": 1, "2": tick}


def test_reservation_watermark_and_ceiling_bound_the_depth() -> None:
    """A budget beyond the context ceiling counts to the ceiling (4096 tokens: 257 blocks); without one, no bound."""
    one, two = req(1, 5, [10, 11, E], max_tokens=10**9), req(2, 5, [20, E])
    assert _starts(run(one, two, device={"total_blocks": 258})) == {"1": 1, "2": 1}
    assert _starts(run(one, two, device={"total_blocks": 257})) == {"1": 1, "2": 3}
    assert _starts(run(one, two, device={"total_blocks": 10**6}, max_seq_len=0)) == {"1": 1, "2": 3}
    # A prompt beyond the ceiling counts as itself: max(ceiling, current).
    long = req(1, 100, [10, E], max_tokens=50)
    assert _starts(run(long, two, device={"total_blocks": 8}, max_seq_len=32)) == {"1": 1, "2": 1}
    assert _starts(run(long, two, device={"total_blocks": 7}, max_seq_len=32)) == {"1": 1, "2": 2}


def test_reservation_counts_prefilling_and_parked_work() -> None:
    """Prefilling: prompt + max_tokens. Requeued: history + 1 + remaining, although it holds no block."""
    chunked = run(
        req(1, 40, [10, 11, E]),
        req(2, 5, [20, E], 1),
        device={"total_blocks": 3},
        max_prefill_tokens=8,
        max_batch_tokens=8,
    )
    assert tick_of(chunked, "prefill_chunk(start=0, len=5") > tick_of(chunked, "free_sequence(s1")
    parked = run(
        req(1, 5, toks(10, 15, E)),
        req(2, 5, toks(20, 25, E)),
        req(3, 100, [30, E], 2),
        device={"total_blocks": 8, "held_blocks": 6, "kv_exhaust_at": [1]},
    )
    # 102 tokens are 7 blocks: with s1 parked (1 block) and s2 running (1 block) that is 9 of 8; s2 ends in tick 6 and
    # s1 is resumed at once, so s3 waits for s1 alone: 1 + 7 = 8.
    assert tick_of(parked, "prefill(n=100") == 7


def test_reservation_counts_spilled_work() -> None:
    """s1 lies in a file and is owed 3 blocks, s2 runs with 7: the one block of s3 waits until s2 has ended."""
    result = run(
        req(1, 32, toks(10, 15, E)),
        req(2, 96, toks(20, 22, E), 2),
        req(3, 5, [30, E], 3),
        device={"total_blocks": 10, "held_blocks": 4},
        swap_space_gb=1,
    )
    assert _starts(result) == {"1": 1, "2": 3, "3": 6}


def test_nobody_passes_the_first_that_does_not_fit() -> None:
    """Strict order: a later, smaller one waits too; each tick repeats the 1 + n gate lines (S1 24.10)."""
    result = run(
        req(1, 5, [10, 11, 12, E]),
        req(2, 100, [20, E]),
        req(3, 5, [30, E]),
        device={"total_blocks": 7},
    )
    assert between(result, 1)[-4:] == [*gate(2), "num_free_blocks() -> 6"]
    assert _starts(result) == {"1": 1, "2": 4, "3": 5}


def test_liveness_admits_exactly_one_that_promises_too_much() -> None:
    """Case 3 C: with nothing committed R1 is let in alone; R2 is prefilled at tick 4."""
    result = run(req(1, 100, [10, 11, 12, E], max_tokens=100), req(2, 5, [20, 21, E]), device={"total_blocks": 10})
    assert _starts(result) == {"1": 1, "2": 4}
    assert outs(result) == [stream([10, 11, 12], done("stop", 4)), stream([20, 21], done("stop", 3))]


def test_case_3_a_request_that_can_never_fit_is_refused_at_once() -> None:
    """A: at the start. B: on arrival; it takes no seat and writes no call line."""
    text = "Error(refused: prompt needs 26 KV blocks but the pool has 10)"
    a = run(req(1, 400, [10, 11, E]), req(2, 5, [20, 21, E]), device={"total_blocks": 10})
    assert outs(a) == [text, stream([20, 21], done("stop", 3))]
    assert a.calls == run(req(2, 5, [20, 21, E]), device={"total_blocks": 10}).calls
    one, three = req(1, 5, toks(10, 15, E)), req(3, 5, [30, 31, E], 2)
    b = run(one, req(2, 400, [20, 21, E], 2), three, device={"total_blocks": 10})
    assert b.calls == run(one, three, device={"total_blocks": 10}).calls
    assert outs(b)[1] == text
    assert tick_of(b, "prefill(", 1) == 3


def test_no_paging_admits_everything() -> None:
    """total_blocks 0: no reservation, one gate line per candidate, free count 0."""
    result = run(*[req(i, 500, [10, E]) for i in range(1, 6)], device={"total_blocks": 0})
    assert result.calls[3:11] == [*gate(5), *marker(0, 1)]
    assert all(out == stream([10], done("stop", 2)) for out in outs(result))


# -- pending queue (S5 14.3) ------------------------------------------------------------------------------------------


def test_pending_queue_idle_and_sticky_close() -> None:
    """New: idle. A request: not idle. Emptied and closed: not idle, and closed stays."""
    state = Bench(scenario(req(1, 5, [10, E]))).state
    assert state.idle_inbox
    request = Bench(scenario(req(1, 5, [10, E]))).harness.clients[0].request
    absorb(state, Batch([request], [], False))
    assert not state.idle_inbox
    state.pending.clear()
    assert state.idle_inbox
    absorb(state, Batch([], [], True))
    absorb(state, Batch([], [], False))
    assert state.closed
    assert not state.idle_inbox


def test_arrivals_append_behind_what_is_queued() -> None:
    """Arrival order is kept over several receives."""
    result = run(
        req(1, 5, toks(10, 15, E)), req(2, 5, [20, E]), req(3, 5, [30, E], 2), req(4, 5, [40, E], 1), max_batch_size=1
    )
    order = [
        line.split("s")[1].split("@")[0]
        for line in result.calls
        if line.startswith("argmax_on") or line.startswith("prefill(n=5, ")
    ]
    assert [x for x in order if x.isdigit()] == ["1", "2", "4", "3"]


def test_many_ids_and_huge_ids() -> None:
    """The id prints as it is, up to 2^63-1; it is the prompt's first token and exempt from the vocabulary check."""
    top = 2**63 - 1
    result = run(req(top, 1, [10, E]))
    assert_block(result, f"prefill(n=1, s{top}@0:len=1, stream=0)")
    assert result.clients == [f"out s{top}: T10 {done('stop', 2)}"]
    assert count(result, "ep_broadcast_tokens(n=1)") == 1
