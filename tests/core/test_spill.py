"""Admission-time and decode-time spill, slots, swap-in (S1 sections 12 and 19)."""

from __future__ import annotations

from pathlib import Path

import pytest
from testkit import (
    END_LINES,
    START,
    E,
    assert_block,
    between,
    compact,
    count,
    done,
    exhausted,
    finish,
    free_direct,
    gate,
    lines_of,
    marker,
    outs,
    release,
    req,
    run,
    spill,
    step,
    stream,
    swap_in,
    toks,
    whole,
)

R1, R2, R3 = req(1, 5, toks(10, 15, E)), req(2, 5, toks(20, 23, E)), req(3, 5, toks(30, 34, E))


GONE = "18446744073709551615"


def _prefilling_on_slot_0(held: int, **keys: int) -> list[str]:
    """Tick 3 of a run where s1 prefills on slot 0 beside active [s2@1, s3@2], and s4 needs 11 blocks of 9 free."""
    result = run(
        req(1, 200, [10], **keys),
        req(2, 8, toks(20, 29), max_tokens=10),
        req(3, 4, toks(30, 39), max_tokens=10),
        req(4, 40, [40, 41, E], 2),
        device={"block_size": 4, "total_blocks": 80, "held_blocks": held},
        swap_space_gb=1,
        max_prefill_tokens=8,
        max_batch_tokens=8,
    )
    assert outs(result)[1:] == [
        stream(toks(20, 29), done("length", 10)),
        stream(toks(30, 39), done("length", 10)),
        stream([40, 41], done("stop", 3)),
    ]
    return between(result, 2, 3)


SPILLED = (req(1, 32, toks(10, 15, E)), req(2, 96, toks(20, 22, E), 2))


SMALL_POOL = {"total_blocks": 10, "held_blocks": 4}


def test_d21_vision_pads_are_requeued_only_with_a_spill_store() -> None:
    """Without a store the padded row is no victim; with one it is spilled like any other."""
    padded = {**R1, "vision_pads": True}
    result = run(padded, R2, device={"kv_exhaust_at": [1]})
    assert_block(result, "\n".join(release("s2@1:6", 1, "preempt_requeue")))
    stored = run(padded, R2, device={"kv_exhaust_at": [1]}, swap_space_gb=1)
    assert_block(stored, "\n".join(spill("s1@0:6", 1)))
    assert outs(stored) == outs(run(R1, R2))


def test_a_decode_time_spill_keeps_slots_and_comes_back_without_a_prefill() -> None:
    """Victim choice as without a store; no compaction in the retry; swap-in at the end of the same tick."""
    result = run(R1, R2, device={"kv_exhaust_at": [1]}, swap_space_gb=1)
    assert between(result, 2) == [
        *exhausted("s1@0:6 11>0", "s2@1:6 21>0"),
        *spill("s1@0:6", 1),
        *step("s2@1:6 21>22"),
        *compact("s2@1:7", 0),
        "num_free_blocks() -> 999",
        *swap_in(1, 1),
        "num_free_blocks() -> 998",
    ]
    assert between(result, 3) == [*step("s2@0:7 22>23", "s0@1:6 11>12"), "num_free_blocks() -> 998"]


def test_derived_s1_19_swap_out_of_a_row_that_is_not_the_last() -> None:
    """The last row takes the victim's position and slot; the victim is detached (exact lines of S1 section 19)."""
    result = run(
        req(1, 40, toks(10, 25, E)),
        req(2, 5, toks(20, 35, E)),
        req(3, 5, toks(30, 45, E)),
        req(4, 96, [40, E], 2),
        device={"total_blocks": 20, "held_blocks": 12},
        swap_space_gb=1,
    )
    assert between(result, 3)[:14] == [
        "num_free_blocks() -> 3",
        "reclaim_prefix_blocks(4) -> 0",
        "num_free_blocks() -> 3",
        *lines_of(f"""
            fx apply CompactSlot{{target=0}}
            compact_sequence(s3@2:len=7, new_slot=0)
            fx apply DetachSlot
            detach_slot_for_reuse(s1@0:len=42)
            fx apply SaveSequenceState
            save_sequence_state(s1@{GONE}:len=42, blocks=3)
            fx apply ReleaseSeq{{cache=false, spill_out_sequence}}
            free_sequence(s1@{GONE}:len=42, blocks=3)
            ep_broadcast_cmd_for_seq(seq=4294967295, cmd=0xfffffff1)
            num_free_blocks() -> 6
        """),
        "fx apply SaveSequenceState",
    ]
    assert outs(result)[0] == stream(toks(10, 25), done("stop", 17))


def test_d25_the_victims_own_slot_returns_when_the_hole_is_another_one() -> None:
    """Active order [s2@1, s3@0, ...] makes position and slot differ: the free set gets the victim's own slot."""
    result = run(
        req(1, 5, [10, 11, E]),
        req(2, 40, toks(20, 35, E)),
        req(3, 5, toks(30, 45, E)),
        req(4, 80, [40, 41, 42, E], 2),
        device={"total_blocks": 20, "held_blocks": 12},
        swap_space_gb=1,
    )
    # Tick 2: s1 ends, survivors s2@1, s3@2 -> s3 moves to slot 0: active is [s2@1, s3@0]. Tick 3: victim s2 stands at
    # position 0; the last row s3 takes position 0 and already has slot 0: no move, s2 keeps slot 1 and frees it.
    assert_block(
        result,
        "\n".join(
            [
                "num_free_blocks() -> 4",
                "reclaim_prefix_blocks(2) -> 0",
                "num_free_blocks() -> 4",
                *spill("s2@1:42", 3),
                "num_free_blocks() -> 7",
                "alloc_sequence() -> slot 1",
            ]
        ),
    )
    # Three rows out of order: tick 2 leaves [s2@1, s3@2, s4@0]; the victim s3@2 stands at position 1, the hole is
    # position 1, whose slot s2 holds: no move, nothing detached.
    result = run(
        req(1, 5, [10, 11, E]),
        req(2, 5, toks(20, 35, E)),
        req(3, 40, toks(30, 45, E)),
        req(4, 5, toks(40, 55, E)),
        req(5, 80, [50, 51, 52, E], 2),
        device={"total_blocks": 20, "held_blocks": 11},
        swap_space_gb=1,
    )
    tick3 = between(result, 3)
    assert tick3[:4] == [
        "num_free_blocks() -> 4",
        "reclaim_prefix_blocks(2) -> 0",
        "num_free_blocks() -> 4",
        "fx apply SaveSequenceState",
    ]
    assert tick3[3:8] == spill("s3@2:42", 3)
    assert tick3[8:10] == ["num_free_blocks() -> 7", "alloc_sequence() -> slot 2"]


def test_d25_a_hole_that_is_free_but_not_the_victims_slot() -> None:
    """s1 is cancelled, slot 0 is free: s3 moves there, the victim s2 is detached and slot 1 is free at once."""
    lines = _prefilling_on_slot_0(66, cancel_at_tick=2)
    start = lines.index("free_sequence(s1@0:len=24, blocks=7)")
    assert lines[start : start + 17] == [
        *free_direct("s1@0:24", 7),
        *marker(9, 3),
        "num_free_blocks() -> 9",
        "reclaim_prefix_blocks(2) -> 0",
        "num_free_blocks() -> 9",
        *compact("s3@2:6", 0),
        "fx apply DetachSlot",
        "detach_slot_for_reuse(s2@1:len=10)",
        *spill(f"s2@{GONE}:10", 3),
        "num_free_blocks() -> 12",
    ]
    assert lines[start + 17 : start + 18] == ["alloc_sequence_for(budget=43) -> slot 1"]


def test_d1_a_swap_out_moves_nobody_onto_a_prefilling_sequences_slot() -> None:
    """S1 19 step 2: slot 0 is held by s1's prefill, so nothing moves and nothing is detached."""
    lines = _prefilling_on_slot_0(59)
    start = lines.index("-- tick 3") + 1
    assert lines[start : start + 10] == [
        "num_free_blocks() -> 9",
        "reclaim_prefix_blocks(2) -> 0",
        "num_free_blocks() -> 9",
        *spill("s2@1:10", 3),
        "num_free_blocks() -> 12",
        "alloc_sequence_for(budget=43) -> slot 1",
    ]


def test_reclaim_comes_before_a_spill_and_again_before_a_swap_in() -> None:
    """Prefix-cache blocks go first (S1 section 12); D16: a release after a reclaim is clamped at 0 used blocks."""
    result = run(
        req(1, 32, toks(10, 15, E)),
        req(2, 96, toks(20, 22, E), 2),
        device={"total_blocks": 10, "held_blocks": 4, "reclaimable": 2},
        swap_space_gb=1,
    )
    assert between(result, 3)[:6] == [
        "num_free_blocks() -> 3",
        "reclaim_prefix_blocks(4) -> 2",
        "num_free_blocks() -> 5",
        "reclaim_prefix_blocks(2) -> 0",
        "num_free_blocks() -> 5",
        "fx apply SaveSequenceState",
    ]
    # used was 3, the reclaim made it 1, the release of 3 blocks is clamped: 6 free, not 8.
    assert between(result, 3)[5:11] == [*spill("s1@0:34", 3), "num_free_blocks() -> 6"]


def test_d16_used_blocks_never_fall_below_zero() -> None:
    """Everything reclaimed and then released: free returns to the pool's size, not beyond."""
    result = run(
        req(1, 32, [10, E]), req(2, 100, [20, E], 1), device={"total_blocks": 8, "reclaimable": 8}, swap_space_gb=1
    )
    frees = [int(line.rsplit(" ", 1)[1]) for line in result.calls if line.startswith("num_free_blocks")]
    assert max(frees) == 8
    assert frees[-1] == 8


def test_d10_a_restored_row_prints_no_hash_until_it_is_requeued() -> None:
    """The record keeps the hash: after a later requeue and resume the line shows it again (S1 section 19)."""
    result = run(
        *SPILLED,
        req(3, 5, toks(30, 36, E), 5, grammar_active=True),
        device={**SMALL_POOL, "kv_exhaust_at": [6], "spill_fail_at": [1]},
        swap_space_gb=1,
    )
    assert between(result, 6)[-len(step("s0@0:34 12>13", "s3@1:5 30>31", readback="HostLogits")) - 1 :] == [
        *step("s0@0:34 12>13", "s3@1:5 30>31", readback="HostLogits"),
        "num_free_blocks() -> 2",
    ]
    assert between(result, 7)[:8] == [
        *exhausted("s0@0:35 13>0", "s3@1:6 31>0", readback="HostLogits"),
        "fx apply SaveSequenceState",
        "save_sequence_state(s0@0:len=35, blocks=3) -> ERR scripted save failure",
        *release("s0@0:35", 3, "preempt_requeue"),
    ]
    assert count(result, "prefill(n=35, s1@1:len=35") == 1
    assert outs(result)[0] == stream(toks(10, 15), done("stop", 7))


def test_d26_script_and_cancel_flag_of_a_restored_row_are_its_own() -> None:
    """cancel_at 5 fires after the restore although the device sequence has lost its hash; its explicit prompt begins
    with the other request's id, whose script it must not read."""
    first = req(1, None, toks(10, 25, E), prompt=[2, *range(10, 41)], cancel_at=5)
    result = run(first, SPILLED[1], device={"total_blocks": 11, "held_blocks": 5}, swap_space_gb=1)
    # Spilled with 3 outputs; the decode that finds 5 generated tokens in the sequence yields the seventh output.
    assert outs(result) == [stream(toks(10, 16), done("cancelled", 7)), stream(toks(20, 22), done("stop", 4))]
    assert count(result, "restore_sequence_state") == 1


def test_given_up_spilled_work_names_its_blocks_and_removes_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A spilled row: n = the blocks of its image."""
    from metrale.sim.spill_store import FileSpillStore

    removed: list[int] = []
    remove = FileSpillStore.remove

    def spy(self: FileSpillStore, file_id: int) -> None:
        removed.append(file_id)
        remove(self, file_id)

    monkeypatch.setattr(FileSpillStore, "remove", spy)
    result = run(
        req(1, 15, toks(10, 15, E)),
        req(2, 5, toks(20, 25, E)),
        device={"total_blocks": 10, "held_blocks": 9, "kv_exhaust_at": [3]},
        swap_space_gb=1,
    )
    assert outs(result)[0] == stream(
        toks(10, 13), "Error(cannot resume: needs 2 KV blocks, 1 free and nothing left to wait for)"
    )
    assert removed == [0]


def test_swap_in_takes_the_first_that_fits_in_spill_order() -> None:
    """A later small image may pass a big one (S1 24.5)."""
    result = run(
        req(1, 70, toks(10, 19, E)),
        req(2, 20, toks(20, 29, E)),
        req(3, 96, [30], 2, max_tokens=1),
        req(4, 64, toks(40, 44, E), 2),
        device={"total_blocks": 20, "held_blocks": 12},
        swap_space_gb=1,
    )
    saves = [line for line in result.calls if line.startswith("save_sequence_state(")]
    restores = [line for line in result.calls if line.startswith("restore_sequence_state(")]
    assert [line.rsplit("=", 1)[1] for line in saves] == ["5)", "2)"]
    assert [line.rsplit("=", 1)[1] for line in restores] == ["2)", "5)"]
    assert outs(result)[:2] == [stream(toks(10, 19), done("stop", 11)), stream(toks(20, 29), done("stop", 11))]


def test_spill_files_are_gone_after_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file and no directory stays behind, whatever failed."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for faults in ({}, {"spill_fail_at": [0]}, {"restore_fail_at": [0]}, {"spill_capacity": 5}):
        run(*SPILLED, device={**SMALL_POOL, **faults}, swap_space_gb=1)
        assert list(tmp_path.iterdir()) == []


def test_whole_trace_of_the_smallest_spill() -> None:
    """Case 4 B from start-up to teardown, line by line."""
    result = run(req(1, 32, [10, 11, E]), req(2, 96, [20], 1, max_tokens=1), device=SMALL_POOL, swap_space_gb=1)
    assert result.calls == [
        *START,
        *gate(1),
        *marker(6, 1),
        "num_free_blocks() -> 6",
        "num_free_blocks() -> 6",
        *whole(1, 0, 32, 10),
        *step("s1@0:32 10>11"),
        *gate(1),
        *marker(3, 2),
        "num_free_blocks() -> 3",
        "reclaim_prefix_blocks(4) -> 0",
        "num_free_blocks() -> 3",
        *spill("s1@0:33", 3),
        "num_free_blocks() -> 6",
        *whole(2, 0, 96, 20),
        *finish("s2@0:96", 7),
        "num_free_blocks() -> 6",
        *swap_in(0, 3),
        *step("s0@0:33 11>63"),
        *finish("s0@0:34", 3),
        *marker(6, 3),
        *END_LINES,
    ]


def test_d21_a_row_with_a_grammar_is_never_spilled_for_an_admission() -> None:
    """s1 has most blocks but a grammar: s2 goes; with grammar rows alone nobody does and the prefill goes ahead."""
    big, small = req(1, 40, toks(10, 25, E), grammar_active=True), req(2, 20, toks(20, 35, E))
    pool = {"total_blocks": 20, "held_blocks": 11}
    newcomer = req(3, 96, [40, E], 2)
    result = run(big, small, newcomer, device=pool, swap_space_gb=1)
    assert [line for line in result.calls if line.startswith("save_sequence_state")] == [
        "save_sequence_state(s2@1:len=22, blocks=2)"
    ]
    both = run(big, {**small, "grammar_active": True}, newcomer, device=pool, swap_space_gb=1)
    assert count(both, "save_sequence_state") == 0
    assert outs(both)[2] == stream([40], done("stop", 2))


def test_an_image_that_fits_exactly_comes_back() -> None:
    """No block of growth is asked for in a swap-in: 3 free blocks are enough for an image of 3."""
    result = run(
        req(1, 32, toks(10, 13, E)),
        req(2, 96, [20], 2, max_tokens=1),
        device={"total_blocks": 10, "held_blocks": 7},
        swap_space_gb=1,
    )
    assert_block(result, "\n".join(["num_free_blocks() -> 3", *swap_in(0, 3)]))
    assert outs(result)[0] == stream(toks(10, 13), done("stop", 5))
