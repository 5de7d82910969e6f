"""Snapshot ring, loop detectors, rollback (S3 sections 8, 9, 12.3 and the worked examples of section 13)."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from testkit import Bench, E, between, count, done, outs, req, run, run_failing, scenario, stream

from metrale.core.io import DeviceFault
from metrale.core.snapshot_ring import SnapshotRing
from metrale.core.watchdog import (
    content_loop,
    exact_loop,
    fuzzy_repetition,
    fuzzy_repetition_at,
    roll_back,
    thinking_loop,
)

# -- ring -------------------------------------------------------------------------------------------------------------


def test_ring_slots_cycle_and_evict_their_owner() -> None:
    """Capacity 2: 0, 1, 0; the position that owned slot 0 is gone."""
    ring = SnapshotRing(2)
    assert [ring.record(p) for p in (51, 80, 100)] == [0, 1, 0]
    assert (ring.lookup(51), ring.lookup(80), ring.lookup(100), ring.lookup(99)) == (None, 1, 0, None)


def test_ring_cut_resumes_after_the_newest_survivor() -> None:
    """Cursor = slot of the last remaining entry + 1, or 0 if none remain."""
    ring = SnapshotRing(4)
    for position in (10, 20, 30):
        ring.record(position)
    ring.cut(20)
    assert ring.entries == [(10, 0), (20, 1)]
    assert ring.record(25) == 2
    ring.cut(5)
    assert (ring.entries, ring.cursor) == ([], 0)
    assert ring.record(7) == 0


@given(st.integers(1, 5), st.lists(st.one_of(st.just(None), st.integers(1, 30)), max_size=40))
def test_ring_against_a_model(capacity: int, operations: list[int | None]) -> None:
    """None cuts to the half of the newest position; a number advances the position and records it."""
    ring, model, position, cursor = SnapshotRing(capacity), [], 0, 0
    for operation in operations:
        if operation is None:
            position //= 2
            model = [(p, s) for p, s in model if p <= position]
            cursor = (model[-1][1] + 1) % capacity if model else 0
            ring.cut(position)
        else:
            position += operation
            model = [(p, s) for p, s in model if s != cursor] + [(position, cursor)]
            assert ring.record(position) == cursor
            cursor = (cursor + 1) % capacity
        assert ring.entries == model
        assert len({slot for _, slot in ring.entries}) == len(ring.entries) <= capacity


# -- detectors --------------------------------------------------------------------------------------------------------


def _exact(out: list[int], low: int, high: int, minimum: int) -> bool:
    """S3 8.1, word by word."""
    n = len(out)
    if n < minimum:
        return False
    for p in range(low, high + 1):
        if 3 * p > n:
            return False
        if out[n - p :] == out[n - 2 * p : n - p] == out[n - 3 * p : n - 2 * p]:
            return True
    return False


def _fuzzy(out: list[int]) -> int | None:
    """S3 8.2, word by word."""
    n = len(out)
    if n < 90:
        return None
    for p in range(40, 14, -1):
        if n < 3 * p:
            continue
        a = sum(out[n - 3 * p + i] != out[n - 2 * p + i] for i in range(p))
        b = sum(out[n - 2 * p + i] != out[n - p + i] for i in range(p))
        if a <= max(p // 12, 1) and b <= max(p // 12, 1):
            return p
    return None


@st.composite
def _loops(draw: st.DrawFn) -> list[int]:
    """A prefix and a periodic tail with a few spoilt places."""
    period = draw(st.integers(2, 66))
    tail = [draw(st.integers(0, 3)) for _ in range(period)] * 4
    tail = tail[: draw(st.integers(0, len(tail)))]
    out = draw(st.lists(st.integers(0, 3), max_size=40)) + tail
    for index in draw(st.lists(st.integers(0, 400), max_size=4)):
        if index < len(out):
            out[index] += 1
    return out


@given(_loops())
def test_detectors_against_the_words_of_the_specification(out: list[int]) -> None:
    """Content, thinking and fuzzy detector."""
    assert content_loop(out) is _exact(out, 2, 64, 48)
    assert thinking_loop(out) is _exact(out, 4, 20, 48)
    assert fuzzy_repetition(out) == _fuzzy(out)


def test_detector_bounds() -> None:
    """48 ids, periods 2 to 64, three copies; repeats below 2 never."""
    assert content_loop([1, 2] * 24)
    assert not content_loop([1, 2] * 23 + [1])
    assert not content_loop(list(range(65)) * 3)
    assert content_loop(list(range(64)) * 3)
    assert not content_loop(list(range(64)) * 2)
    assert content_loop([7] * 48)
    assert not exact_loop([7] * 100, (2, 64), 1, 48)
    assert not thinking_loop(list(range(21)) * 3)
    assert thinking_loop(list(range(20)) * 3)


@pytest.mark.parametrize(("period", "tolerance"), [(15, 1), (23, 1), (24, 2), (35, 2), (36, 3), (40, 3)])
def test_fuzzy_tolerance(period: int, tolerance: int) -> None:
    """max(P // 12, 1) mismatches in each of the two comparisons; the longest period first."""
    base = [100 + i for i in range(period)]
    loop = [-1] * 40 + base * 3
    if len(loop) < 90:
        loop = [-2] * 90 + loop
    assert fuzzy_repetition(loop) == period
    spoilt = list(loop)
    for i in range(tolerance):
        spoilt[len(loop) - 3 * period + i] = -9
    assert fuzzy_repetition(spoilt) == period
    spoilt[len(loop) - 3 * period + tolerance] = -9
    assert fuzzy_repetition(spoilt) is None


def test_fuzzy_needs_90_ids_and_prefers_the_longest_period() -> None:
    """30 ids of period 15 make three copies of 15, and two thirds of three copies of 30."""
    base = [100 + i for i in range(15)]
    assert fuzzy_repetition(base * 5 + [0] * 14) is None
    assert fuzzy_repetition(([9] * 44) + base * 3) is None
    assert fuzzy_repetition(([9] * 45) + base * 3) == 15
    assert fuzzy_repetition(base * 6) == 30


# -- 12.3 and the examples of section 13 ------------------------------------------------------------------------------

WATCH = {"loop_watchdog": True, "boundary_tokens": [12]}
SSM = {"vocab": 256, "has_ssm_layers": True, "ring_slots": 8}


def fuzzy_script(n: int = 280) -> list[int]:
    """The script of the reference scenario: 100 + j up to 60 with a boundary at 50, then period 20 ending in 12."""
    head = [12 if j == 50 else 100 + j for j in range(60)]
    return (head + [*range(20, 39), 12] * 12)[:n]


def _fuzzy_request(**keys: object) -> dict:
    return req(1, 5, fuzzy_script(), **{"streaming": False, "max_tokens": 200, **keys})


def saves(result) -> list[str]:
    return [line for line in result.calls if line.startswith("save_decode_ssm_snapshot")]


def restores(result) -> list[str]:
    return [line for line in result.calls if line.startswith("restore_decode_ssm_snapshot")]


def response(tokens: list[int], reason: str, logprobs: int = 0) -> str:
    return f"Response(tokens={tokens}, {reason}, think=0, cached=0, acc=0, logprobs={logprobs})"


def test_walkthrough_12_3() -> None:
    """Saves at 51, 80, 100; two rollbacks at ticks 118 and 186 with the old length; declined at 254."""
    result = run(_fuzzy_request(), device=SSM, **WATCH)
    first_pass = ["s1@0:len=55, ring=0", "s1@0:len=84, ring=1", "s1@0:len=104, ring=2"]
    assert saves(result) == [f"save_decode_ssm_snapshot({at})" for at in first_pass + first_pass[1:] * 2]
    assert restores(result) == ["restore_decode_ssm_snapshot(s1@0:len=123, ring=0)"] * 2
    assert between(result, 118)[-5:] == [
        "fx apply MarconiCheckpoint",
        "decode_marconi_checkpoint(s1@0:len=123)",
        "fx apply SsmSnapshotRestore{slot=0}",
        "restore_decode_ssm_snapshot(s1@0:len=123, ring=0)",
        "num_free_blocks() -> 992",
    ]
    assert between(result, 119)[:4] == [
        "fx launch Decode{n=1, ctx=Unified, readback=Argmax}",
        'decode_batch(tokens=[12], seqs=["s1@0:len=55"], stream=0)',
        "commit_ctx(s1@0:len=56, n=1, base=55, row=0)",
        "argmax_batch(row=0, n=1, stream=0) -> [151]",
    ]
    assert result.ticks == 255
    assert outs(result) == [response(fuzzy_script(119), "length")]


def test_example_a_a_content_loop_rollback_and_its_quirk() -> None:
    """The token current at the hit is kept after the rewind; the boundary id is fed a second time."""
    script = [100 + j for j in range(70)]
    script[10] = 12
    script += [20, 21, 22, 23] * 40
    result = run(
        req(1, 5, script, streaming=False, max_tokens=230),
        device={"vocab": 256},
        loop_watchdog=True,
        boundary_tokens=[12],
    )
    assert between(result, 96)[:6] == [
        "fx launch Decode{n=1, ctx=Unified, readback=Argmax}",
        'decode_batch(tokens=[21], seqs=["s1@0:len=100"], stream=0)',
        "commit_ctx(s1@0:len=101, n=1, base=100, row=0)",
        "argmax_batch(row=0, n=1, stream=0) -> [22]",
        "fx apply MarconiCheckpoint",
        "decode_marconi_checkpoint(s1@0:len=16)",
    ]
    assert between(result, 97)[1:4] == [
        'decode_batch(tokens=[12], seqs=["s1@0:len=16"], stream=0)',
        "commit_ctx(s1@0:len=17, n=1, base=16, row=0)",
        "argmax_batch(row=0, n=1, stream=0) -> [112]",
    ]
    out = outs(result)[0]
    assert out.startswith(f"Response(tokens={[*range(100, 110), 12, 22, 112, 113]}"[:-1])
    assert ", length, think=0" in out
    assert count(result, "fx apply SsmSnapshotRestore") == 0


def test_example_b_a_stream_cannot_be_taken_back() -> None:
    """Declined at tick 96; the token of the hit is streamed."""
    script = [100 + j for j in range(70)]
    script[10] = 12
    script += [20, 21, 22, 23] * 40
    result = run(req(1, 5, script, max_tokens=230), device={"vocab": 256}, loop_watchdog=True, boundary_tokens=[12])
    assert outs(result) == [stream(script[:97], done("length", 97, guard="content_loop_watchdog"))]


def test_example_c_an_early_loop_has_too_little_to_drop() -> None:
    """48 outputs are not more than 64: declined at tick 48; 49 ids."""
    script = [12] * 1 + [100 + j for j in range(19)] + [20, 21, 22] * 20
    result = run(
        req(1, 5, script, streaming=False, max_tokens=200),
        device={"vocab": 256},
        loop_watchdog=True,
        boundary_tokens=[12],
    )
    assert outs(result) == [response(script[:49], "length")]
    assert result.ticks == 49


def test_example_d_a_ring_of_two_has_lost_the_boundary() -> None:
    """Slots 0, 1, 0; position 51 is evicted at tick 99; declined at tick 118."""
    result = run(_fuzzy_request(), device={**SSM, "ring_slots": 2}, **WATCH)
    assert [line.rsplit("=", 1)[1] for line in saves(result)] == ["0)", "1)", "0)"]
    assert restores(result) == []
    assert outs(result) == [response(fuzzy_script(119), "length")]
    assert result.ticks == 119


def test_example_e_without_ssm_layers_nothing_is_saved_or_restored() -> None:
    """Same ticks and output as 12.3."""
    result = run(_fuzzy_request(), device={"vocab": 256}, **WATCH)
    assert saves(result) + restores(result) == []
    assert result.ticks == 255
    assert outs(result) == [response(fuzzy_script(119), "length")]
    assert 'decode_batch(tokens=[12], seqs=["s1@0:len=55"], stream=0)' in between(result, 119)


def test_example_f_streaming_is_declined() -> None:
    """At tick 118, with the guard's name."""
    result = run(_fuzzy_request(streaming=True), device=SSM, **WATCH)
    assert outs(result) == [stream(fuzzy_script(119), done("length", 119, guard="fuzzy_repetition"))]
    assert len(saves(result)) == 3


def test_example_g_snapshots_do_not_depend_on_the_watchdog() -> None:
    """200 ids; the eight slots in turn."""
    result = run(_fuzzy_request(), device=SSM, boundary_tokens=[12])
    assert outs(result) == [response(fuzzy_script(200), "length")]
    assert [line.rsplit("=", 1)[1] for line in saves(result)] == [f"{i % 8})" for i in range(8)]
    wide = run(_fuzzy_request(max_tokens=280), device={**SSM, "ring_slots": 3}, boundary_tokens=[12])
    assert [line.rsplit("=", 1)[1] for line in saves(wide)] == [f"{i % 3})" for i in range(len(saves(wide)))]


# -- declines and details ---------------------------------------------------------------------------------------------


def test_no_boundary_mask_or_no_ring_declines() -> None:
    """S3 9.1 steps 5 and 6: each ends the request at tick 118."""
    for device, knobs in (
        (SSM, {"loop_watchdog": True}),
        ({**SSM, "ring_slots": 0}, WATCH),
    ):
        result = run(_fuzzy_request(), device=device, **knobs)
        assert outs(result) == [response(fuzzy_script(119), "length")]
        assert saves(result) == []


def test_a_failed_restore_declines_and_changes_nothing() -> None:
    """S3 9.1 step 8."""
    result = run_failing(
        scenario(_fuzzy_request(), device=SSM, **WATCH),
        {"restore_decode_ssm_snapshot": {0: DeviceFault("no", "no")}},
    )
    assert outs(result) == [response(fuzzy_script(119), "length")]
    assert len(saves(result)) == 3


def test_a_failed_save_leaves_no_ring_entry() -> None:
    """The boundary at 51 was never saved, so it is passed over: declined."""
    result = run_failing(
        scenario(_fuzzy_request(), device=SSM, **WATCH),
        {"save_decode_ssm_snapshot": {0: DeviceFault("no", "no")}},
    )
    assert restores(result) == []
    assert outs(result) == [response(fuzzy_script(119), "length")]


def test_an_unsnapshotted_boundary_is_passed_over_for_an_older_one() -> None:
    """Boundaries at 30 (saved) and 50 (save failed): the rollback goes to 30."""
    script = fuzzy_script()
    script[30] = 12
    result = run_failing(
        scenario(req(1, 5, script, streaming=False, max_tokens=200), device=SSM, **WATCH),
        {"save_decode_ssm_snapshot": {1: DeviceFault("no", "no")}},
    )
    assert restores(result)[0] == "restore_decode_ssm_snapshot(s1@0:len=123, ring=0)"
    assert 'decode_batch(tokens=[12], seqs=["s1@0:len=35"], stream=0)' in between(result, 119)


def test_the_first_token_is_never_a_snapshot_and_still_a_boundary() -> None:
    """S3 9.2: on a recurrent model it cannot be a target; without one it can."""
    script = fuzzy_script()
    script[0], script[50] = 12, 150
    request = req(1, 5, script, streaming=False, max_tokens=200)
    assert restores(run(request, device=SSM, **WATCH)) == []
    plain = run(request, device={"vocab": 256}, **WATCH)
    assert 'decode_batch(tokens=[12], seqs=["s1@0:len=5"], stream=0)' in between(plain, 119)


def test_logprobs_are_not_trimmed_by_a_rollback() -> None:
    """254 decoded tokens were handled, 119 survive."""
    result = run(_fuzzy_request(top_logprobs=1), device=SSM, **WATCH)
    assert outs(result) == [response(fuzzy_script(119), "length", logprobs=254)]


def test_blocks_stay_and_the_budget_comes_back() -> None:
    """left += dropped: max_tokens 200 allows 254 ticks; the free count stays down after the first rollback."""
    result = run(_fuzzy_request(), device=SSM, **WATCH)
    frees = [int(line.rsplit(" ", 1)[1]) for line in result.calls if line.startswith("num_free_blocks")]
    assert frees[118:253] == [992] * 135
    spent = run(_fuzzy_request(max_tokens=119), device=SSM, **WATCH)
    # The token that exhausts the budget is never examined by the fuzzy watchdog.
    assert restores(spent) == []
    assert outs(spent) == [response(fuzzy_script(119), "length")]


def test_an_eos_outranks_a_guard_of_the_same_token() -> None:
    """The content loop fires on the EOS itself: stop, and the guard is still named."""
    script = [100 + j for j in range(24)] + [20, 21] * 12 + [E]
    assert len(script) == 49
    result = run(req(1, 5, script), device={"vocab": 256}, loop_watchdog=True)
    assert outs(result) == [stream(script[:-1], done("stop", 49, guard="content_loop_watchdog"))]


def test_the_content_loop_is_examined_every_sixteenth_token() -> None:
    """Looping from index 30 on: 48 is too early for three copies of 7, 64 is not."""
    script = [100 + j for j in range(30)] + [20 + i % 7 for i in range(100)]
    result = run(req(1, 5, script), device={"vocab": 256}, loop_watchdog=True)
    assert outs(result) == [stream(script[:65], done("length", 65, guard="content_loop_watchdog"))]


def test_a_swapped_in_row_starts_its_content_count_again() -> None:
    """S1 section 22: content_tokens is reset by a spill and kept by a requeue."""
    script = [100 + j for j in range(30)] + [20 + i % 7 for i in range(200)]
    other = req(2, 5, [60 + i % 3 for i in range(300)], max_tokens=300, grammar_active=True)
    kept = run(
        req(1, 5, script, max_tokens=200), other, device={"vocab": 256, "kv_exhaust_at": [10]}, loop_watchdog=True
    )
    reset = run(
        req(1, 5, script, max_tokens=200),
        other,
        device={"vocab": 256, "kv_exhaust_at": [10]},
        swap_space_gb=1,
        loop_watchdog=True,
    )
    assert outs(kept)[0].endswith(done("length", 65, guard="content_loop_watchdog"))
    # Spilled after 10 decoded tokens: counts 48 (out has 58 ids: 28 of the loop) instead of 64.
    assert outs(reset)[0].endswith(done("length", 59, guard="content_loop_watchdog"))


def test_a_resumed_row_has_an_empty_ring() -> None:
    """S3 1: what was saved before the preemption is no target any more."""
    other = req(2, 5, [64 + (i * i * 7 + i * 13) % 180 for i in range(170)], grammar_active=True)
    result = run(_fuzzy_request(), other, device={**SSM, "kv_exhaust_at": [51]}, **WATCH)
    # Saved at 51 in tick 50 (call 50), preempted by call 51: a rollback at the fuzzy hit finds nothing at or below 58.
    assert restores(result) == []
    assert outs(result)[0] == response(fuzzy_script(119), "length")


def test_at_most_two_rollbacks_and_never_a_streaming_one() -> None:
    """roll_back itself: the cap, then the cancel flag."""
    bench = Bench(
        scenario(req(1, 5, [12, *range(100, 200)], streaming=False, max_tokens=300), device={"vocab": 256}, **WATCH)
    )
    bench.tick(90)
    row = bench.state.active[0]
    assert roll_back(bench.state, row, 64) is True
    assert (row.outputs, row.remaining, row.last_token, row.rewinds) == ([12], 299, 12, 1)
    assert (row.seq.seq_len, len(row.seq.tokens), row.content_tokens) == (5, 5, 0)
    bench.tick(90)
    assert roll_back(bench.state, row, 64) is True
    bench.tick(90)
    assert roll_back(bench.state, row, 64) is False
    assert roll_back(bench.state, row, 10_000) is False


@pytest.mark.parametrize(("boundary", "accepted"), [(35, True), (36, False)])
def test_a_rollback_drops_at_least_its_minimum(boundary: int, accepted: bool) -> None:
    """100 outputs, minimum 64: index 35 is the newest target (n - 1 - min_drop)."""
    script = [100 + i for i in range(100)]
    script[boundary] = 12
    sc = scenario(req(1, 5, script, streaming=False, max_tokens=300), device={"vocab": 256}, **WATCH)
    bench = Bench(sc)
    bench.tick(99)
    row = bench.state.active[0]
    assert len(row.outputs) == 100
    assert roll_back(bench.state, row, 64) is accepted
    assert len(row.outputs) == (36 if accepted else 100)


@pytest.mark.parametrize("seed", range(60))
def test_the_echo_memory_never_hides_a_repetition(seed: int) -> None:
    rng = Random(seed)
    row = SimpleNamespace(outputs=[], echo_free=0, echo_known=0)
    period = rng.randrange(10, 45)
    for _ in range(260):
        outputs = row.outputs
        if len(outputs) < max(40, period) or rng.random() < 0.08:
            outputs.append(rng.randrange(1000))
        else:
            outputs.append(outputs[-period])
        assert fuzzy_repetition_at(row) == fuzzy_repetition(outputs)  # type: ignore[arg-type]
        if rng.random() < 0.01 and len(outputs) > 60:
            del outputs[rng.randrange(30, 60) :]  # a rollback
