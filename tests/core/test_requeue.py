"""Exhaustion, victims, requeue and resume (S1 sections 14 and 18)."""

from __future__ import annotations

from testkit import (
    Bench,
    E,
    assert_block,
    between,
    compact,
    done,
    exhausted,
    outs,
    preamble,
    release,
    req,
    resume,
    run,
    run_failing,
    scenario,
    step,
    stream,
    toks,
)

from metrale.core.io import DeviceFault, SlotsExhausted
from metrale.core.parking import requeue, resume_requeued

R1, R2, R3 = req(1, 5, toks(10, 15, E)), req(2, 5, toks(20, 23, E)), req(3, 5, toks(30, 34, E))


def test_case_1_a_preempted_request_neither_loses_nor_repeats_a_token() -> None:
    """Two exhaustions, two victims: the second is not the one that just came back (64 tokens of immunity)."""
    result = run(R1, R2, R3, device={"kv_exhaust_at": [1, 3]})
    assert between(result, 2) == [
        *exhausted("s1@0:6 11>0", "s2@1:6 21>0", "s3@2:6 31>0"),
        *release("s1@0:6", 1, "preempt_requeue"),
        *step("s2@1:6 21>22", "s3@2:6 31>32"),
        *compact("s3@2:7", 0),
        "num_free_blocks() -> 998",
        *resume(1, 2, 6),
        "num_free_blocks() -> 997",
    ]
    assert between(result, 3) == [
        *exhausted("s3@0:7 32>0", "s2@1:7 22>0", "s1@2:6 11>0"),
        *release("s3@0:7", 1, "preempt_requeue"),
        *step("s2@1:7 22>23", "s1@2:6 11>12"),
        *compact("s1@2:7", 0),
        "num_free_blocks() -> 998",
        *resume(3, 2, 7),
        "num_free_blocks() -> 997",
    ]
    assert outs(result) == [
        stream(toks(10, 15), done("stop", 7)),
        stream(toks(20, 23), done("stop", 5)),
        stream(toks(30, 34), done("stop", 6)),
    ]
    assert outs(result) == outs(run(R1, R2, R3))


def test_immunity_only_reorders_victims() -> None:
    """With every row immune one is still taken: fewest outputs, then lowest slot (S1 24.7)."""
    result = run(R1, req(2, 5, toks(20, 30, E)), device={"kv_exhaust_at": [1, 3, 5]})
    # tick 2: s1 (slot 0) parked, tick 3: s2 parked (s1 is immune), tick 4: both immune, equal counts decide by slot.
    assert [line for line in result.calls if line.startswith("cache_sequence(")][:3] == [
        "cache_sequence(s1@0:len=6)",
        "cache_sequence(s2@0:len=7)",
        "cache_sequence(s1@0:len=7)",
    ]
    assert outs(result) == [stream(toks(10, 15), done("stop", 7)), stream(toks(20, 30), done("stop", 12))]


def test_immunity_ends_after_64_outputs() -> None:
    """A row resumed with 2 outputs is a victim again once it has 66: then fewest outputs decides, not immunity."""
    long = req(1, 5, [10 + i % 20 for i in range(100)], max_tokens=100)
    other = req(2, 5, [30 + i % 20 for i in range(100)], max_tokens=100)

    def second_victim(index: int) -> str:
        result = run(long, other, device={"kv_exhaust_at": [1, index]})
        return [line for line in result.calls if line.startswith("cache_sequence(")][1].split("@")[0]

    # s1 misses the decode of tick 2, so it always has one output less than s2. Call #k (k >= 3) decodes tick k - 0:
    # call 1 fails, call 2 is the retry in tick 2, call k belongs to tick k; s1 then holds k - 1 outputs.
    assert second_victim(66) == "cache_sequence(s2"
    assert second_victim(67) == "cache_sequence(s1"


def test_two_exhaustions_in_one_step_park_two_rows_and_resume_them_in_preemption_order() -> None:
    """One victim per failure, everything recomputed per attempt; equal sizes resume in preemption order (S1 24.5)."""
    result = run(R1, R2, R3, device={"kv_exhaust_at": [1, 2]})
    assert between(result, 2) == [
        *exhausted("s1@0:6 11>0", "s2@1:6 21>0", "s3@2:6 31>0"),
        *release("s1@0:6", 1, "preempt_requeue"),
        *exhausted("s2@1:6 21>0", "s3@2:6 31>0"),
        *release("s2@1:6", 1, "preempt_requeue"),
        *step("s3@2:6 31>32"),
        *compact("s3@2:7", 0),
        "num_free_blocks() -> 999",
        *resume(1, 1, 6),
        "num_free_blocks() -> 998",
        *resume(2, 2, 6),
        "num_free_blocks() -> 997",
    ]


def test_resume_takes_the_smallest_history_first_and_no_other_when_it_does_not_fit() -> None:
    """want = blocks + 1; the smallest entry that does not fit ends the attempt (S1 section 18)."""
    big = req(1, 40, toks(10, 19, E))
    result = run(big, R2, R3, device={"kv_exhaust_at": [1, 2], "total_blocks": 20, "held_blocks": 14})
    # s1 (3 blocks) and s2 (1 block) are parked; free 6 - 1 = 5: s2 wants 2, then s1 wants 4 of the 4 left.
    start = result.calls.index("num_free_blocks() -> 5")
    assert result.calls[start : start + 10] == ["num_free_blocks() -> 5", *resume(2, 1, 6)]
    assert result.calls[start + 10] == "num_free_blocks() -> 4"
    assert result.calls[start + 11 : start + 20] == resume(1, 2, 41)


def test_a_history_that_can_never_fit_ends_with_an_error_and_no_device_call() -> None:
    """The block of growth counts against the whole pool. No reservation lets such a row in, so it is put there."""
    bench = Bench(scenario(req(1, 33, toks(10, 20), max_tokens=4), device={"total_blocks": 3}))
    bench.tick()
    row = bench.state.active.pop()
    requeue(bench.state, row)
    before = len(bench.calls)
    assert resume_requeued(bench.state) is False
    assert bench.calls[before:] == []
    assert bench.state.requeued == []
    assert bench.outs() == ["T10 T11 Error(preempted sequence needs 4 KV blocks but the pool has 3; cannot resume)"]


def test_a_pool_without_paging_never_refuses_a_resume() -> None:
    """total_blocks 0 disables the test, but then no block is ever free: the row stays parked."""
    bench = Bench(scenario(req(1, 5, toks(10, 20)), device={"total_blocks": 0}))
    bench.tick()
    requeue(bench.state, bench.state.active.pop())
    assert resume_requeued(bench.state) is False
    assert len(bench.state.requeued) == 1
    assert bench.calls[-2:] == ["num_free_blocks() -> 0", "reclaim_prefix_blocks(2) -> 0"]


def test_resume_uses_one_unchunked_prefill_in_chunked_mode_too() -> None:
    """Plain alloc form, stream 0, no pair, no pick (S1 section 18)."""
    result = run(
        req(1, 20, toks(10, 15, E)), req(2, 5, toks(20, 25, E)), device={"kv_exhaust_at": [0]}, max_prefill_tokens=8
    )
    assert_block(
        result, "\n".join([*exhausted("s1@0:20 10>0", "s2@1:5 20>0"), *release("s1@0:20", 2, "preempt_requeue")])
    )
    assert_block(result, "\n".join(["num_free_blocks() -> 999", *resume(1, 1, 20), "num_free_blocks() -> 997"]))
    assert outs(result)[0] == stream(toks(10, 15), done("stop", 7))


def test_resume_failures_cost_the_request_alone() -> None:
    """A failing alloc leaves nothing to free; a failing prefill is released without cache (S1 section 18)."""
    sc = scenario(R1, R2, device={"kv_exhaust_at": [1]})
    result = run_failing(sc, {"alloc_sequence": {2: SlotsExhausted("pool exhausted: no slot")}})
    assert outs(result) == [
        stream([10, 11], "Error(preempt-resume alloc failed: pool exhausted: no slot)"),
        stream(toks(20, 23), done("stop", 5)),
    ]
    result = run_failing(sc, {"prefill": {2: DeviceFault("bad prefill", "bad prefill")}})
    assert outs(result)[0] == stream([10, 11], "Error(preempt-resume re-prefill failed: bad prefill)")
    assert_block(
        result,
        "\n".join(
            [
                *preamble(1, 6, 0, 6),
                "prefill(n=6, s1@1:len=0, stream=0) -> ERR bad prefill",
                *release("s1@1:0", 0, "send_error", cache=False),
            ]
        ),
    )
    assert outs(result)[1] == stream(toks(20, 23), done("stop", 5))


def test_a_single_exhausted_row_gets_the_device_message_and_no_cache() -> None:
    """S1 section 14: nobody can be parked; streaming and blocking wording."""
    result = run(req(1, 5, toks(10, 15, E)), device={"kv_exhaust_at": [1]})
    assert between(result, 2) == [
        *exhausted("s1@0:6 11>0"),
        *release("s1@0:6", 1, "send_error", cache=False),
        "num_free_blocks() -> 1000",
    ]
    assert outs(result) == ["T10 T11 Error(KV cache exhausted (scripted at decode_batch #1))"]
    blocking = run(req(1, 5, toks(10, 15, E), streaming=False), device={"kv_exhaust_at": [1]})
    assert outs(blocking) == ["Err(KV cache exhausted (scripted at decode_batch #1))"]


def test_case_2_exhaustion_when_nobody_can_be_parked() -> None:
    """A: alone. B: after one victim the retry has one row left, which gets the error."""
    a = run(R1, req(2, 5, [20, 21, E], 2), device={"kv_exhaust_at": [1]})
    assert outs(a) == [
        "T10 T11 Error(KV cache exhausted (scripted at decode_batch #1))",
        stream([20, 21], done("stop", 3)),
    ]
    assert a.ticks == 5
    b = run(R1, R2, device={"kv_exhaust_at": [1, 2]})
    assert outs(b) == [
        stream(toks(10, 15), done("stop", 7)),
        "T20 T21 Error(KV cache exhausted (scripted at decode_batch #2))",
    ]


def test_d21_a_row_with_a_grammar_is_never_a_victim() -> None:
    """The other row goes, whatever its slot; with grammar rows alone the failure is final for the batch."""
    result = run({**R1, "grammar_active": True}, R2, device={"kv_exhaust_at": [1]})
    assert_block(result, "\n".join(release("s2@1:6", 1, "preempt_requeue")))
    assert outs(result) == [stream(toks(10, 15), done("stop", 7)), stream(toks(20, 23), done("stop", 5))]
    both = run({**R1, "grammar_active": True}, {**R2, "grammar_active": True}, device={"kv_exhaust_at": [1]})
    text = "Error(KV cache exhausted (scripted at decode_batch #1))"
    assert outs(both) == [f"T10 T11 {text}", f"T20 T21 {text}"]
    assert between(both, 2)[2:] == [
        *release("s1@0:6", 1, "send_error", cache=False),
        *release("s2@1:6", 1, "send_error", cache=False),
        "num_free_blocks() -> 1000",
    ]


def test_the_victim_that_forced_host_logits_frees_the_batch_of_them() -> None:
    """Readback is computed anew on each retry (S1 section 14)."""
    result = run({**R1, "temperature": 0.7}, R2, device={"kv_exhaust_at": [1]})
    assert_block(
        result,
        "\n".join(
            [
                *exhausted("s1@0:6 11>0", "s2@1:6 21>0", readback="HostLogits"),
                *release("s1@0:6", 1, "preempt_requeue"),
                *step("s2@1:6 21>22"),
            ]
        ),
    )


def test_derived_s1_19_the_slot_left_free_is_the_moved_rows() -> None:
    """After the swap-out active is [s3@0, s2@1]; the newcomer gets slot 2. With need 6 one victim is enough."""
    result = run(
        req(1, 40, toks(10, 25, E)),
        req(2, 5, toks(20, 35, E)),
        req(3, 5, toks(30, 45, E)),
        req(4, 80, [40, E], 2),
        device={"total_blocks": 20, "held_blocks": 12},
        swap_space_gb=1,
    )
    tick3 = between(result, 3)
    assert tick3[12:14] == ["num_free_blocks() -> 6", "alloc_sequence() -> slot 2"]
    assert_block(
        result,
        "\n".join(step("s3@0:7 32>33", "s2@1:7 22>23", "s4@2:80 40>63")),
    )
