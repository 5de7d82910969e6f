"""Faults of the device: one step, a readback, the whole device (S5 sections 4 and 9, D32)."""

from __future__ import annotations

from testkit import (
    END_LINES,
    Bench,
    E,
    assert_block,
    between,
    count,
    done,
    exhausted,
    free_direct,
    gate,
    marker,
    outs,
    release,
    req,
    run,
    run_failing,
    scenario,
    spill,
    stream,
    toks,
)

from metrale.core.io import DeviceFault

LOST = "Error(server shutting down: device lost)"


def fault(text: str = "scripted") -> DeviceFault:
    return DeviceFault(text, text)


PARKED = (req(1, 5, toks(10, 15, E)), req(2, 5, toks(20, 25, E)))


def test_a_fatal_fault_fails_its_rows_only() -> None:
    """D32's other half: the run goes on; R3 is served; the texts and the release order of S5 section 9."""
    result = run(req(1, 5, toks(10, 15)), req(2, 5, toks(20, 25)), req(3, 5, [30, 31, E], 2), device={"fatal_at": [1]})
    assert between(result, 2)[1:] == [
        'decode_batch(tokens=[11, 21], seqs=["s1@0:len=6", "s2@1:len=6"], stream=0) -> ERR scripted device fault',
        *release("s1@0:6", 1, "send_error", cache=False),
        *release("s2@1:6", 1, "send_error", cache=False),
        *gate(1),
        "num_free_blocks() -> 1000",
    ]
    text = "Error(scripted device fault)"
    assert outs(result) == [f"T10 T11 {text}", f"T20 T21 {text}", stream([30, 31], done("stop", 3))]


def test_d32_a_lost_device_ends_everybody_and_the_run() -> None:
    """Rows of the step get its error; the next tick tells prefilling, queued and future requests and ends."""
    result = run(
        req(1, 4, toks(10, 15)),
        req(2, 5, toks(20, 25), 1),
        req(3, 5, [30, 31, E], 9),
        req(4, 0, [40], 1),
        device={"device_lost_at": [1]},
        max_batch_size=1,
    )
    assert between(result, 2, 3) == [
        "fx launch Decode{n=1, ctx=Unified, readback=Argmax}",
        'decode_batch(tokens=[11], seqs=["s1@0:len=5"], stream=0) -> ERR scripted device fault',
        *release("s1@0:5", 1, "send_error", cache=False),
        *marker(1000, 3),
        *END_LINES,
    ]
    assert outs(result) == ["T10 T11 Error(scripted device fault)", LOST, LOST, "Error(refused: prompt is empty)"]


def test_d32_prefilling_work_is_freed_when_the_device_is_lost() -> None:
    """Its sequence goes back by direct calls, before the last snapshot."""
    bench = Bench(scenario(req(1, 4, toks(10, 20)), req(2, 400, [20], 1), max_prefill_tokens=8))
    bench.tick(2)
    bench.state.device_lost = True
    before = len(bench.calls)
    assert bench.tick() is False
    assert bench.calls[before:] == [
        *free_direct("s2@1:16", 2),
        *release("s1@0:6", 1, "send_error", cache=False),
        *marker(1000, 3),
    ]
    assert bench.outs() == [f"T10 T11 T12 {LOST}", LOST]


def test_d32_parked_work_is_told_and_not_brought_back() -> None:
    """Requeued by the first exhaustion; the retry loses the device: no resume in that tick, the file is removed."""
    for swap in (0, 1):
        result = run(*PARKED, device={"kv_exhaust_at": [1], "device_lost_at": [2]}, swap_space_gb=swap)
        assert between(result, 2)[:2] == exhausted("s1@0:6 11>0", "s2@1:6 21>0")
        park = spill("s1@0:6", 1) if swap else release("s1@0:6", 1, "preempt_requeue")
        assert between(result, 2, 3)[2:] == [
            *park,
            "fx launch Decode{n=1, ctx=Unified, readback=Argmax}",
            'decode_batch(tokens=[21], seqs=["s2@1:len=6"], stream=0) -> ERR scripted device fault',
            *release("s2@1:6", 1, "send_error", cache=False),
            *marker(1000, 3),
            *END_LINES,
        ]
        assert outs(result) == [f"T10 T11 {LOST}", "T20 T21 Error(scripted device fault)"]


def test_readback_failures_fail_every_row() -> None:
    """S3 4.2: argmax and host copy; rows in order, released without cache."""
    for keys, call in (({}, "argmax_batch"), ({"top_logprobs": 1}, "copy_logits_to_host")):
        result = run_failing(
            scenario(req(1, 5, toks(10, 15), **keys), req(2, 5, toks(20, 25))), {call: {1: fault("no read")}}
        )
        last = "TL11:1" if keys else "T11"
        assert outs(result) == [f"T10 {last} Error(no read)", "T20 T21 Error(no read)"]
        assert count(result, "fx apply ReleaseSeq{cache=false, send_error}") == 2
        assert_block(result, "\n".join(release("s1@0:7", 1, "send_error", cache=False)))


def test_commit_ctx_of_a_failing_row_does_not_stop_the_next() -> None:
    """S5 4 step 2."""
    result = run_failing(scenario(req(1, 5, toks(10, 12)), req(2, 5, toks(20, 22))), {"commit_ctx": {0: fault()}})
    assert outs(result) == [stream(toks(10, 12), done("length", 3)), stream(toks(20, 22), done("length", 3))]
    assert count(result, "commit_ctx(s2@1:len=6, n=1, base=5, row=1)") == 1


def test_release_errors_do_not_stop_the_other_calls() -> None:
    """S5 4.1: each failure is logged, the later calls still happen."""
    result = run_failing(scenario(req(1, 5, [10, E])), {"free_sequence": {0: fault("no free")}})
    assert_block(
        result,
        """
        cache_sequence(s1@0:len=6)
        free_sequence(s1@0:len=6, blocks=1) -> ERR no free
        ep_broadcast_cmd_for_seq(seq=0, cmd=0xfffffff1)
        """,
    )
    assert outs(result) == [stream([10], done("stop", 2))]


def test_end_sequence_goes_on_after_failures() -> None:
    """S5 section 6: Quiesce both streams, then teardown, whatever fails."""
    result = run_failing(
        scenario(req(1, 5, [10, E])), {"synchronize": {0: fault(), 1: fault()}, "teardown": {0: fault()}}
    )
    assert [line for line in result.calls if line.startswith("fx ")][-4:] == [
        "fx apply EpShutdown",
        "fx apply Quiesce{stream=0}",
        "fx apply Quiesce{stream=1}",
        "fx teardown",
    ]
    assert outs(result) == [stream([10], done("stop", 2))]


def test_a_fault_of_await_fails_the_batch_like_a_readback() -> None:
    """S5 section 9: in the depth-1 lane an await error fails all rows."""
    from metrale.core.io import ReadbackFailed

    bench = Bench(scenario(req(1, 5, toks(10, 15)), req(2, 5, toks(20, 25))))

    def failing(ticket: int) -> list[int]:
        raise ReadbackFailed("lost on the way")

    bench.router.await_result = failing  # type: ignore[method-assign]
    bench.tick()
    assert bench.outs() == ["T10 Error(lost on the way)", "T20 Error(lost on the way)"]
    assert bench.state.active == []
