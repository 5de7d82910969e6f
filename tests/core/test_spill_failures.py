"""Saves, restores, moves and stores that fail: one request at most pays (case 4 A, S5 section 2.9)."""

from __future__ import annotations

from pathlib import Path

from testkit import (
    END_LINES,
    Bench,
    E,
    assert_block,
    between,
    compact,
    done,
    exhausted,
    outs,
    release,
    req,
    resume,
    run,
    run_failing,
    scenario,
    spill,
    step,
    stream,
    toks,
)

from metrale.core.io import DeviceFault, SlotsExhausted
from metrale.sim.spill_store import FileSpillStore

R1, R2, R3 = req(1, 5, toks(10, 15, E)), req(2, 5, toks(20, 23, E)), req(3, 5, toks(30, 34, E))


SPILLED = (req(1, 32, toks(10, 15, E)), req(2, 96, toks(20, 22, E), 2))


SMALL_POOL = {"total_blocks": 10, "held_blocks": 4}


STUCK = (req(1, 5, toks(10, 15, E)), req(2, 5, toks(20, 25, E)))


STUCK_POOL = {"total_blocks": 10, "held_blocks": 9, "kv_exhaust_at": [1]}


class FailingStore:
    """A spill store whose named calls raise OSError."""

    def __init__(self, tmp_path: Path, *fail: str) -> None:
        from metrale.sim.spill_store import FileSpillStore

        self.inner = FileSpillStore(tmp_path / "spill", 1 << 30)
        self.fail = fail

    def __getattr__(self, name: str) -> object:
        if name in self.fail:
            return self._raise
        return getattr(self.inner, name)

    def _raise(self, *_: object) -> None:
        raise OSError("the disk is gone")


def _with_store(tmp_path: Path, *fail: str) -> Bench:
    bench = Bench(scenario(R1, R2, device={"kv_exhaust_at": [1]}))
    bench.state.io.spill = FailingStore(tmp_path, *fail)  # type: ignore[assignment]
    return bench


def test_a_failing_move_of_a_swap_out_fails_the_victim_alone() -> None:
    """S1 19 step 2: a compaction failure sends the victim ``swap-out failed``."""
    sc = scenario(
        req(1, 40, toks(10, 25, E)),
        req(2, 5, toks(20, 25, E)),
        req(3, 5, toks(30, 35, E)),
        req(4, 80, [40, E], 2),
        device={"total_blocks": 20, "held_blocks": 12},
        swap_space_gb=1,
    )
    result = run_failing(sc, {"compact_sequence": {0: DeviceFault("no move", "no move")}})
    assert_block(
        result,
        "\n".join(
            [
                "fx apply CompactSlot{target=0}",
                "compact_sequence(s3@2:len=7, new_slot=0) -> ERR no move",
                *release("s1@0:42", 3, "send_error", cache=False),
                "alloc_sequence() -> slot 0",
            ]
        ),
    )
    assert outs(result) == [
        stream(toks(10, 12), "Error(swap-out failed: no move)"),
        stream(toks(20, 25), done("stop", 7)),
        stream(toks(30, 35), done("stop", 7)),
        stream([40], done("stop", 2)),
    ]


def test_case_4a_a_failed_save_at_decode_time_requeues_the_victim() -> None:
    """No error: it is prefilled again; the half-written file is gone."""
    result = run(R1, R2, R3, device={"kv_exhaust_at": [1], "spill_fail_at": [0]}, swap_space_gb=1)
    assert between(result, 2) == [
        *exhausted("s1@0:6 11>0", "s2@1:6 21>0", "s3@2:6 31>0"),
        "fx apply SaveSequenceState",
        "save_sequence_state(s1@0:len=6, blocks=1) -> ERR scripted save failure",
        *release("s1@0:6", 1, "preempt_requeue"),
        *step("s2@1:6 21>22", "s3@2:6 31>32"),
        *compact("s3@2:7", 0),
        "num_free_blocks() -> 998",
        *resume(1, 2, 6),
        "num_free_blocks() -> 997",
    ]
    assert outs(result) == outs(run(R1, R2, R3))


def test_case_4a_a_failed_save_for_an_admission_ends_that_victim() -> None:
    """The newcomer proceeds, the first victim comes back."""
    result = run(
        req(1, 32, toks(10, 16, E)),
        req(2, 32, toks(20, 26, E)),
        req(3, 96, toks(30, 32, E), 2),
        device={"total_blocks": 13, "held_blocks": 7, "spill_fail_at": [1]},
        swap_space_gb=1,
    )
    assert (
        between(result, 3)[:14]
        == [
            "num_free_blocks() -> 0",
            "reclaim_prefix_blocks(7) -> 0",
            "num_free_blocks() -> 0",
            *spill("s2@1:34", 3),
            "num_free_blocks() -> 3",
            "fx apply SaveSequenceState",
            "save_sequence_state(s1@0:len=34, blocks=3) -> ERR scripted save failure",
            *release("s1@0:34", 3, "send_error", cache=False),
        ][:14]
    )
    assert outs(result) == [
        stream([10, 11, 12], "Error(swap-out failed: scripted save failure)"),
        stream(toks(20, 26), done("stop", 8)),
        stream(toks(30, 32), done("stop", 4)),
    ]


def test_case_4a_a_full_spill_store_is_a_failed_save() -> None:
    """``spill_capacity`` bounds the bytes: the victim of a decode-time spill is requeued, nothing is left behind."""
    result = run(R1, R2, device={"kv_exhaust_at": [1], "spill_capacity": 10}, swap_space_gb=1)
    assert_block(result, "\n".join(release("s1@0:6", 1, "preempt_requeue")))
    assert outs(result) == outs(run(R1, R2))


def test_case_4a_a_failed_restore_ends_that_request_and_frees_its_new_sequence() -> None:
    """S5 section 2.9: open or restore fails: free_sequence, file removed, error."""
    result = run(*SPILLED, device={**SMALL_POOL, "restore_fail_at": [0]}, swap_space_gb=1)
    assert_block(
        result,
        """
        num_free_blocks() -> 6
        alloc_sequence() -> slot 0
        restore_sequence_state(s0@0:len=0, blocks=3) -> ERR scripted restore failure
        free_sequence(s0@0:len=0, blocks=0)
        num_free_blocks() -> 6
        -- tick 6
        """,
    )
    assert outs(result) == [
        stream([10, 11, 12], "Error(swap-in failed: scripted restore failure)"),
        stream(toks(20, 22), done("stop", 4)),
    ]


def test_a_failed_alloc_of_a_swap_in_costs_the_request() -> None:
    """S5 section 2.9: client error only."""
    sc = scenario(*SPILLED, device=SMALL_POOL, swap_space_gb=1)
    result = run_failing(sc, {"alloc_sequence": {2: SlotsExhausted("pool exhausted: no slot")}})
    assert outs(result)[0] == stream([10, 11, 12], "Error(swap-in failed: pool exhausted: no slot)")
    assert result.calls[-len(END_LINES) :] == END_LINES


def test_a_failed_swap_in_of_an_idle_tick_does_not_doom_the_next_image() -> None:
    """Three images; restores of tick 3 and of the idle tick 4 fail. The third is still restorable, so a later tick
    can differ and it is not given up (D2, D15)."""
    result = run(
        req(1, 32, toks(10, 16, E)),
        req(2, 32, toks(20, 26, E)),
        req(3, 32, toks(30, 36, E)),
        req(4, 144, [40], 2, max_tokens=1),
        device={"total_blocks": 20, "held_blocks": 11, "restore_fail_at": [0, 1]},
        swap_space_gb=1,
    )
    failed = "Error(swap-in failed: scripted restore failure)"
    assert outs(result) == [
        stream(toks(10, 16), done("stop", 8)),
        stream(toks(20, 22), failed),
        stream(toks(30, 32), failed),
        stream([40], done("length", 1)),
    ]


def test_a_store_that_cannot_create_requeues_the_victim(tmp_path: Path) -> None:
    """S5 2.9 step 1: nothing was saved, no effect line."""
    bench = _with_store(tmp_path, "create")
    bench.tick(2)
    at = bench.calls.index("fx apply ReleaseSeq{cache=true, preempt_requeue}")
    assert "ERR KV cache exhausted" in bench.calls[at - 1]
    assert bench.calls[-len(resume(1, 1, 6)) :] == resume(1, 1, 6)


def test_a_ledger_that_fails_is_a_failed_spill(tmp_path: Path) -> None:
    """The file is discarded and the victim requeued."""
    bench = _with_store(tmp_path, "record_usage")
    bench.tick(2)
    assert "fx apply SaveSequenceState" in bench.calls
    assert bench.calls[-len(resume(1, 1, 6)) :] == resume(1, 1, 6)
    assert list((tmp_path / "spill").iterdir()) == []


def test_an_open_or_remove_that_fails_costs_the_request_alone(tmp_path: Path) -> None:
    """S5 2.9: the new sequence is freed, the client told; other requests go on."""
    for index, call in enumerate(("open", "remove")):
        bench = _with_store(tmp_path / str(index), call)
        bench.tick(3)
        assert bench.outs()[0] == "T10 T11 Error(swap-in failed: the disk is gone)"
        frees = [line for line in bench.calls if line.startswith("free_sequence(s0@1:len=0")]
        assert frees == [f"free_sequence(s0@1:len=0, blocks={index})"]
        assert bench.outs()[1].startswith("T20 T21 T22 T23")


def test_a_file_that_cannot_be_removed_does_not_keep_a_request_alive(tmp_path: Path) -> None:
    """A cancel while spilled: the failed remove is ignored."""
    bench = Bench(scenario(*STUCK, device=STUCK_POOL))
    bench.state.io.spill = FailingStore(tmp_path, "remove")  # type: ignore[assignment]
    bench.device.blocks.held = 10
    bench.tick(2)
    assert len(bench.state.spilled) == 1
    bench.harness.clients[0].request.cancel.raised = True  # type: ignore[union-attr]
    bench.tick()
    assert bench.state.spilled == []
    assert bench.outs()[0] == stream([10, 11], done("cancelled", 2))


def test_a_client_reads_no_path_and_no_error_number(tmp_path: Path) -> None:
    """The file of a spilled request is gone: the words of the error alone reach the client."""
    bench = Bench(scenario(R1, R2, device={"kv_exhaust_at": [1]}))
    store = FileSpillStore(tmp_path / "spill", 1 << 30)
    store.record_usage = lambda file_id: store.path(file_id).unlink()  # type: ignore[method-assign]
    bench.state.io.spill = store
    bench.tick(2)
    assert bench.outs()[0] == "T10 T11 Error(swap-in failed: No such file or directory)"


def test_a_full_store_says_so_to_the_victim_of_an_admission() -> None:
    """``spill_capacity`` bounds the bytes of all files."""
    result = run(*SPILLED, device={**SMALL_POOL, "spill_capacity": 10}, swap_space_gb=1)
    assert outs(result)[0] == stream([10, 11, 12], "Error(swap-out failed: the spill store is full)")
    assert outs(result)[1] == stream(toks(20, 22), done("stop", 4))
