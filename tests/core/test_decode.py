"""The plain decode step: ends, logprobs, readback plan, order of rows (S1 sections 13 to 17, S3 section 4)."""

from __future__ import annotations

import pytest
from testkit import (
    Bench,
    E,
    assert_block,
    between,
    chunk0,
    compact,
    count,
    done,
    finish,
    marker,
    outs,
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

from metrale.core.io import DeviceFault


def fault(text: str = "scripted") -> DeviceFault:
    return DeviceFault(text, text)


def test_an_eos_on_the_last_budget_unit_is_stop() -> None:
    """Budget first, EOS test before the length test (S1 section 15)."""
    assert outs(run(req(1, 5, [10, 11, E], max_tokens=3))) == [stream([10, 11], done("stop", 3))]
    assert outs(run(req(1, 5, [10, 11, 12, E], max_tokens=3))) == [stream([10, 11, 12], done("length", 3))]


def test_the_token_that_ends_by_length_has_a_checkpoint_and_an_eos_has_none() -> None:
    """S3 section 7 step 3."""
    result = run(req(1, 5, [10, 11]), req(2, 5, [20, E]))
    assert between(result, 1)[22:] == [
        *step("s1@0:5 10>11", "s2@1:5 20>63"),
        *finish("s1@0:6", 1),
        *finish("s2@1:6", 1),
        "num_free_blocks() -> 1000",
    ]
    assert outs(result) == [stream([10, 11], done("length", 2)), stream([20], done("stop", 2))]


@pytest.mark.parametrize("ceiling", [6, 7, 8, 9])
def test_the_context_ceiling_ends_a_row(ceiling: int) -> None:
    """len + 1 >= max_seq_len after the token was kept: a prompt of 5 gives ceiling - 5 - ... tokens, never fewer
    than the first and one decoded."""
    result = run(req(1, 5, toks(10, 40)), max_seq_len=ceiling)
    # After k decodes len = 5 + k; the row ends at the first k >= 1 with 5 + k + 1 >= ceiling.
    decoded = max(1, ceiling - 6)
    assert outs(result) == [stream(toks(10, 10 + decoded), done("length", 1 + decoded))]


def test_max_seq_len_0_is_no_ceiling() -> None:
    """Never the context stop with 0; a prompt beyond the ceiling of 8 still decodes once."""
    assert outs(run(req(1, 5, toks(10, 40)), max_seq_len=0)) == [stream(toks(10, 40), done("length", 31))]
    assert outs(run(req(1, 5, toks(10, 40)), max_seq_len=1)) == [stream([10, 11], done("length", 2))]


def test_stop_tokens_join_the_servers() -> None:
    """Either ends the request, neither is streamed, both count."""
    result = run(req(1, 5, [10, 11, 40], stop_tokens=[40]), req(2, 5, [20, 21, E], stop_tokens=[40]))
    assert outs(result) == [stream([10, 11], done("stop", 3)), stream([20, 21], done("stop", 3))]


def test_a_floor_masks_stop_tokens_too() -> None:
    """Host pick: the highest unmasked id takes the place of each masked peak; the script goes on by position."""
    result = run(req(1, 5, [10, 40, E, 13, E], stop_tokens=[40, 62], min_tokens=4))
    assert outs(result) == [stream([10, 61, 61, 13], done("stop", 5))]


def test_min_tokens_beyond_max_tokens_ends_by_length() -> None:
    """The budget wins."""
    assert outs(run(req(1, 5, [10, E, E, E], min_tokens=10, max_tokens=3))) == [stream([10, 62, 62], done("length", 3))]


def test_case_12_logprobs_streaming_and_blocking() -> None:
    """None for the first token; a blocking answer counts one per decoded token, EOS included; 0 counts as asked."""
    stream_of = run(req(1, 5, [10, 11, 12, 13, E], top_logprobs=2))
    assert outs(stream_of) == ["T10 TL11:2 TL12:2 TL13:2 " + done("stop", 5)]
    blocking = run(req(1, 5, [10, 11, 12, 13, E], top_logprobs=2, streaming=False))
    assert outs(blocking) == ["Response(tokens=[10, 11, 12, 13, 63], stop, think=0, cached=0, acc=0, logprobs=4)"]
    zero = run(req(1, 5, [10, 11, E], top_logprobs=0))
    assert outs(zero) == ["T10 TL11:0 " + done("stop", 3)]
    assert_block(zero, "copy_logits_to_host(row=0, off=0, bytes=128)")
    many = run(req(1, 5, [10, 11, E], top_logprobs=255), device={"vocab": 64})
    assert outs(many) == ["T10 TL11:64 " + done("stop", 3)]
    chunked = run(req(1, 20, [10, 11, 12, 13, E], top_logprobs=2), max_prefill_tokens=8, max_batch_tokens=8)
    assert outs(chunked) == outs(stream_of)


def test_logprobs_survive_a_requeue_and_a_spill() -> None:
    """Case 9: logprobs so far, floor and seed position are kept."""
    one, two = (
        req(1, 5, toks(10, 15, E), top_logprobs=2, streaming=False),
        req(2, 5, toks(20, 25, E), grammar_active=True),
    )
    plain = outs(run(one, two))
    assert plain[0] == "Response(tokens=[10, 11, 12, 13, 14, 15, 63], stop, think=0, cached=0, acc=0, logprobs=6)"
    assert outs(run(one, two, device={"kv_exhaust_at": [2]})) == plain
    assert outs(run(one, two, device={"kv_exhaust_at": [2]}, swap_space_gb=1)) == plain
    floor = (req(1, 5, [10, E, 12, E, 14, E], min_tokens=5), two)
    expected = stream([10, 62, 12, 62, 14], done("stop", 6))
    for index in range(5):
        assert outs(run(*floor, device={"kv_exhaust_at": [index]}))[0] == expected
        assert outs(run(*floor, device={"kv_exhaust_at": [index]}, swap_space_gb=1))[0] == expected


@pytest.mark.parametrize(
    ("keys", "readback"),
    [
        ({}, "Argmax"),
        ({"temperature": 0.1}, "HostLogits"),
        ({"temperature": -0.0}, "Argmax"),
        ({"top_logprobs": 0}, "HostLogits"),
        ({"grammar_active": True}, "HostLogits"),
        ({"min_tokens": 1}, "Argmax"),
        ({"min_tokens": 2}, "HostLogits"),
        ({"stop_tokens": [5]}, "Argmax"),
        ({"vision_pads": True}, "Argmax"),
    ],
)
def test_one_ineligible_row_sends_the_batch_to_the_host(keys: dict, readback: str) -> None:
    """S3 4.1, conditions 1 to 5; the floor compares with the outputs before the step."""
    result = run(req(1, 5, toks(10, 20)), req(2, 5, toks(30, 40), **keys))
    first = next(line for line in result.calls if line.startswith("fx launch"))
    assert first == f"fx launch Decode{{n=2, ctx=Unified, readback={readback}}}"


def test_the_batch_returns_to_the_device_when_the_floor_is_reached_or_the_row_has_gone() -> None:
    """min_tokens 3: two host steps (1 and 2 outputs), then Argmax."""
    result = run(req(1, 5, toks(10, 20)), req(2, 5, toks(30, 40), min_tokens=3))
    kinds = [line.split("readback=")[1] for line in result.calls if line.startswith("fx launch")]
    assert kinds == ["HostLogits}"] * 2 + ["Argmax}"] * 8


def test_context_commit_flavours() -> None:
    """Unified knob, else serial append for one row, else none (S5 2.2, 4)."""
    requests = (req(1, 5, toks(10, 13)), req(2, 5, toks(20, 21)))
    serial = run(*requests, dflash_unified_ctx=False, dflash_serial_append=True)
    launches = [line for line in serial.calls if line.startswith("fx launch")]
    assert [line.split("ctx=")[1].split(",")[0] for line in launches] == ["None", "SerialAppend", "SerialAppend"]
    assert_block(
        serial,
        """
        fx launch Decode{n=1, ctx=SerialAppend, readback=Argmax}
        decode_batch(tokens=[11], seqs=["s1@0:len=6"], stream=0)
        dflash_serial_ctx_append(s1@0:len=7)
        argmax_batch(row=0, n=1, stream=0) -> [12]
        """,
    )
    off = run(*requests, dflash_unified_ctx=False)
    assert count(off, "commit_ctx") == 0
    assert count(off, "dflash_serial_ctx_append") == 0
    assert count(run(*requests, dflash_serial_append=True), "fx launch Decode{n=1, ctx=Unified") == 2


def test_releases_precede_compaction_and_the_largest_target_goes_to_the_first_stray() -> None:
    """Survivors s4@3, s5@4 of five: targets 0, 1; the first stray takes 1 (S1 section 17)."""
    short, long = [10, 11, E], toks(20, 40)
    result = run(*[req(i, 5, short if i in (1, 2, 3) else long) for i in range(1, 6)])
    tick2 = between(result, 2)
    at = tick2.index("fx apply ReleaseSeq{cache=true, finish_sequence}")
    assert tick2[at:] == [
        *finish("s1@0:7", 1),
        *finish("s2@1:7", 1),
        *finish("s3@2:7", 1),
        *compact("s4@3:7", 1),
        *compact("s5@4:7", 0),
        "num_free_blocks() -> 998",
    ]
    # The order of active is not changed by it; the next step sorts by slot.
    assert between(result, 3)[:2] == step("s5@0:7 22>23", "s4@1:7 22>23")[:2]


def test_a_failed_compaction_leaves_the_row_where_it_is() -> None:
    """Logged only; the next end of tick tries again (S5 5.1)."""
    sc = scenario(req(1, 5, [10, E]), req(2, 5, toks(20, 24)))
    result = run_failing(sc, {"compact_sequence": {0: fault("no")}})
    assert_block(
        result,
        "\n".join(
            [
                "fx apply CompactSlot{target=0}",
                "compact_sequence(s2@1:len=6, new_slot=0) -> ERR no",
                *marker(999, 2),
                *step("s2@1:6 21>22"),
                *compact("s2@1:7", 0),
            ]
        ),
    )


def test_ids_in_steps_of_eight_end_in_batch_order() -> None:
    """Case 15: no hash order anywhere: 8, 16, ..., 64 arrive in one tick, two of them end in the same tick."""
    requests = [req(8 * i, 5, toks(10, 12, E) if i in (3, 7) else toks(10, 20)) for i in range(1, 9)]
    result = run(*requests)
    assert [line for line in result.calls if line.startswith("prefill(")] == [
        f"prefill(n=5, s{8 * i}@{i - 1}:len=5, stream=0)" for i in range(1, 9)
    ]
    assert_block(result, "\n".join([*finish("s24@2:8", 1), *finish("s56@6:8", 1), *compact("s64@7:8", 2)][:9]))
    assert [line.split(":")[0] for line in result.clients] == [f"out s{8 * i}" for i in range(1, 9)]


def test_resume_beside_a_prefilling_sequence_takes_the_smallest_free_slot() -> None:
    """The resumed row never lands on the slot a prefill holds; compaction leaves the held slot out."""
    result = run(
        req(1, 4, toks(10, 30)),
        req(2, 4, toks(20, 40)),
        req(3, 60, [30, E], 1),
        device={"kv_exhaust_at": [0]},
        max_prefill_tokens=8,
    )
    assert between(result, 1)[: 2 * 13] == [*chunk0(1, 0, 4, 25, 4, 10), *chunk0(2, 1, 4, 25, 4, 20)][: 2 * 13]
    assert_block(
        result,
        "\n".join(
            [
                *release("s1@0:4", 1, "preempt_requeue"),
                *step("s2@1:4 20>21"),
                *compact("s2@1:5", 0),
                "num_free_blocks() -> 999",
                *resume(1, 1, 4),
            ]
        ),
    )
    assert outs(result)[:2] == [stream(toks(10, 30), done("length", 21)), stream(toks(20, 40), done("length", 21))]


def test_d20_self_speculation_needs_the_knob_and_the_fact() -> None:
    """Either alone gives the plain trace, call by call; so does MTP's knob without a proposer."""
    requests = (req(1, 5, toks(10, 20, E)), req(2, 5, [20, E], 3))
    plain = run(*requests)
    assert run(*requests, self_speculative=True, num_drafts=3).calls == plain.calls
    assert run(*requests, device={"has_self_speculative": True}).calls == plain.calls
    assert run(*requests, use_speculative=True, num_drafts=3).calls == plain.calls
    assert run(*requests, device={"has_proposer": True}).calls == plain.calls
    both = run(*requests, device={"has_self_speculative": True}, self_speculative=True)
    assert count(both, "mtp_slot_draft_capacity") > 0
    assert outs(both)[1] == outs(plain)[1]


@pytest.mark.parametrize("lane", ["ngram_speculative", "self_speculative"])
def test_d21_a_grammar_keeps_a_row_out_of_the_lanes_for_one(lane: str) -> None:
    """n-gram and self-speculation decode it plainly, on the host."""
    device = {"has_self_speculative": True}
    guarded = req(1, 15, [8, 2, 3, 4, 9, 6, 7, 8, 2, E], grammar_active=True)
    result = run(guarded, device=device, **{lane: True})
    assert result.calls == run(guarded).calls
    free = run({**guarded, "grammar_active": False}, device=device, **{lane: True})
    assert free.calls != result.calls
    assert outs(free)[0].split(" Done")[0] == outs(result)[0].split(" Done")[0]


def test_a_budget_unit_that_is_not_there_ends_the_row() -> None:
    """S3 6.1: never a negative remaining; the token itself is handled to its end."""
    bench = Bench(scenario(req(1, 5, toks(10, 20))))
    bench.tick()
    bench.state.active[0].remaining = 0
    bench.tick()
    assert bench.outs() == [stream([10, 11, 12], done("length", 3))]
