"""The derived traces of S2 16.2, births, first tokens (S2 sections 3 to 5)."""

from __future__ import annotations

import pytest
from testkit import (
    END_LINES,
    PAIR,
    START,
    E,
    assert_block,
    between,
    checkpoints,
    chunk0,
    compact,
    count,
    done,
    finish,
    gate,
    marker,
    outs,
    preamble,
    req,
    run,
    step,
    stream,
    toks,
    whole,
)

LONG = toks(40, 62)


def test_derived_a_batched_prefill() -> None:
    """Three queued at start; tick 2 runs prefill_batch_chunk, two picks, then a sorted decode without a pair."""
    result = run(req(1, 4, [10, E]), req(2, 20, [20, 21, E]), req(3, 18, [30, 31, E]), max_prefill_tokens=8)
    assert between(result, 1) == [
        *chunk0(1, 0, 4, 6, 4, 10),
        *chunk0(2, 1, 20, 23, 8),
        *chunk0(3, 2, 18, 21, 8),
        "poll_innerq()",
        'mixed_forward_batch(decode=[10], prefills=["s2@1:len=16 start=8 len=8 last=false", '
        '"s3@2:len=16 start=8 len=8 last=false"], stream=1)',
        *PAIR,
        "argmax_batch(row=0, n=1, stream=0) -> [63]",
        *finish("s1@0:5", 1),
        "num_free_blocks() -> 996",
    ]
    assert between(result, 2) == [
        "poll_innerq()",
        'prefill_batch_chunk(streams=["s2@1:len=20 start=16 len=4 last=true", '
        '"s3@2:len=18 start=16 len=2 last=true"], stream=1)',
        "record_event(event=2, stream=1)",
        "stream_wait_event(stream=0, event=2)",
        "argmax_on_device(row=0, stream=0) -> 20",
        "argmax_on_device(row=1, stream=0) -> 30",
        "fx launch Decode{n=2, ctx=Unified, readback=Argmax}",
        'decode_batch(tokens=[20, 30], seqs=["s2@1:len=20", "s3@2:len=18"], stream=0)',
        *step("s2@1:20 20>21", "s3@2:18 30>31")[2:],
        *compact("s3@2:19", 0),
        "num_free_blocks() -> 996",
    ]


def test_derived_b_one_speculative_row_is_never_mixed_with() -> None:
    """Exactly one active row under a speculative knob: plain chunks, preamble and normalize, no pair of their own."""
    result = run(
        req(1, 4, toks(10, 40, E)),
        req(2, 20, [20, 21, E], 1),
        device={"has_proposer": True},
        use_speculative=True,
        max_prefill_tokens=8,
    )
    tick2 = between(result, 2)
    assert tick2[: 12 + 11] == [
        *chunk0(2, 1, 20, 23, 8),
        "poll_innerq()",
        *preamble(1, 8, 8, 20),
        "prefill_chunk(start=8, len=8, last=false, s2@1:len=16, stream=1)",
        "normalize_ssm_states(s2@1:len=16, stream=1)",
        *PAIR,
    ]
    tick3 = between(result, 3)
    assert tick3[: 1 + 6 + 2 + 2 + 1] == [
        "poll_innerq()",
        *preamble(1, 4, 16, 20),
        "prefill_chunk(start=16, len=4, last=true, s2@1:len=20, stream=1)",
        "normalize_ssm_states(s2@1:len=20, stream=1)",
        *PAIR,
        "argmax_on_device(row=0, stream=0) -> 20",
    ]
    assert PAIR[0] not in tick3[12:]
    assert count(result, "mixed_forward") == 0


def test_derived_c_max_tokens_1_on_the_whole_prompt_path() -> None:
    """Birth and end in the Start lane; nothing active, so the tick ends there."""
    result = run(req(1, 5, [10]))
    assert result.calls == [
        *START,
        *gate(1),
        *marker(1000, 1),
        *whole(1, 0, 5, 10),
        *finish("s1@0:5", 1),
        *marker(1000, 2),
        *END_LINES,
    ]
    assert outs(result) == ["T10 Done(length, n=1, think=0, cached=0, acc=0, guard=None)"]


def test_derived_d_d1_a_short_request_joins_while_a_long_one_prefills() -> None:
    """s3 stays on slot 2 because slot 1 is held by the prefilling s2."""
    result = run(
        req(1, 4, toks(10, 30)),
        req(2, 20, [20, 21, E], 1),
        req(3, 4, toks(40, 50), 1),
        max_prefill_tokens=8,
    )
    assert between(result, 2) == [
        *chunk0(2, 1, 20, 23, 8),
        *chunk0(3, 2, 4, 15, 4, 40),
        "poll_innerq()",
        "mixed_forward(decode=[11, 40], prefill=s2@1:len=16 start=8 len=8 last=false, stream=1)",
        *PAIR,
        "argmax_batch(row=0, n=2, stream=0) -> [12, 41]",
        *checkpoints("s1@0:5 11>12", "s3@2:4 40>41"),
        "num_free_blocks() -> 996",
    ]
    assert between(result, 3) == [
        "poll_innerq()",
        "mixed_forward(decode=[12, 41], prefill=s2@1:len=20 start=16 len=4 last=true, stream=1)",
        *PAIR,
        "argmax_on_device(row=2, stream=0) -> 20",
        *PAIR,
        "argmax_batch(row=0, n=2, stream=0) -> [13, 42]",
        *checkpoints("s1@0:6 12>13", "s3@2:5 41>42"),
        "num_free_blocks() -> 996",
    ]
    assert count(result, "compact_sequence(s3") == 1  # only after s2 has ended


def test_derived_d_the_survivor_goes_to_slot_0_when_s1_ends() -> None:
    """One survivor: slot 0 is the only target, and it is free."""
    result = run(req(1, 4, [10, 11, E]), req(2, 40, [20, E], 1), req(3, 4, toks(40, 50), 1), max_prefill_tokens=8)
    assert_block(result, "\n".join([*finish("s1@0:6", 1), *compact("s3@2:5", 0), "num_free_blocks() -> 997"]))


def test_d1_compaction_never_takes_a_prefilling_slot_in_a_batch() -> None:
    """Two survivors above range, one of the two targets held: the first survivor moves, the other stays."""
    result = run(
        req(1, 4, [10, 11, E]),
        req(2, 80, [20, E], 1),
        req(3, 4, toks(40, 60), 1),
        req(4, 4, toks(30, 50), 1),
        max_prefill_tokens=8,
    )
    assert_block(result, "\n".join([*finish("s1@0:6", 1), *compact("s3@2:5", 0), "num_free_blocks() -> 996"]))
    tick3 = next(line for line in between(result, 3) if line.startswith("mixed_forward("))
    assert tick3.startswith("mixed_forward(decode=[41, 31], prefill=s2@1:len=24")


def test_derived_e_d8_an_eos_as_first_token() -> None:
    """min_tokens 0: the request ends at birth. min_tokens 1: host copy, the lowest id, the script goes on."""
    result = run(req(1, 5, [E, 11, 12, E]))
    assert between(result, 1) == [
        *whole(1, 0, 5, E),
        "fx apply ReleaseSeq{cache=true, finish_sequence}",
        "cache_sequence(s1@0:len=5)",
        "free_sequence(s1@0:len=5, blocks=1)",
        "ep_broadcast_cmd_for_seq(seq=0, cmd=0xfffffff1)",
        "num_free_blocks() -> 1000",
    ]
    assert outs(result) == ["Done(stop, n=1, think=0, cached=0, acc=0, guard=None)"]
    floor = run(req(1, 5, [E, 11, 12, E], min_tokens=1))
    assert between(floor, 1)[:11] == [*whole(1, 0, 5, None), "copy_logits_to_host(row=0, off=0, bytes=128)"]
    assert outs(floor) == [stream([0, 11, 12], done("stop", 4))]


@pytest.mark.parametrize("script", [[E, 11, E], [10]])
def test_d8_an_end_at_birth_on_every_prefill_path(script: list[int]) -> None:
    """Whole prompt, chunk 0, plain last chunk, mixed, batched mixed, batched prefill: same frame, no T of an EOS, the
    release right after the picks of the step, the slot free for the next one."""
    end = done("stop", 1) if script[0] == E else stream([10], done("length", 1))
    ends = {"max_tokens": 1} if script == [10] else {}
    late = {**ends, "at": 1}
    runs = {
        "prefill(n=5, s2": run(req(1, 4, LONG), req(2, 5, script, **late)),
        "prefill_chunk(start=0, len=5": run(req(1, 4, LONG), req(2, 5, script, **late), max_prefill_tokens=8),
        "prefill_chunk(start=4, len=3": run(req(2, 7, script, **ends), max_prefill_tokens=8, max_batch_tokens=4),
        "mixed_forward(decode": run(req(1, 4, LONG), req(2, 12, script, **late), max_prefill_tokens=8),
        "mixed_forward_batch(decode": run(
            req(1, 4, LONG), req(3, 20, script, 1, **ends), req(2, 12, script, **late), max_prefill_tokens=8
        ),
        "prefill_batch_chunk(": run(
            req(3, 12, script, **ends), req(2, 12, script, **ends), max_prefill_tokens=8, max_batch_tokens=8
        ),
    }
    for start, result in runs.items():
        assert count(result, start) >= 1, start
        texts = [out for line, out in zip(result.clients, outs(result), strict=True) if not line.startswith("out s1")]
        assert texts == [end] * len(texts), start
        assert result.calls[-len(END_LINES) :] == END_LINES


def test_d8_a_stop_token_of_the_request_is_an_eos_too() -> None:
    """E is the server list joined with the request's own (S2 2.2)."""
    assert outs(run(req(1, 5, [20, 11, E], stop_tokens=[20, 20, 5]))) == [done("stop", 1)]
    assert outs(run(req(1, 5, [10, 20, 30], stop_tokens=[20]))) == [stream([10], done("stop", 2))]
    # Under a floor the lowest id that is not in E is picked: 0 is, so 1.
    assert outs(run(req(1, 5, [20, 11, E], stop_tokens=[20, 0], min_tokens=1))) == [stream([1, 11], done("stop", 3))]


def test_a_slot_freed_at_birth_serves_the_next_request_of_the_same_tick() -> None:
    """Same place as the beam release (S1 section 20)."""
    result = run(req(1, 5, [10]), req(2, 5, [20, E]))
    assert between(result, 1)[: 2 * 11 + 4] == [*whole(1, 0, 5, 10), *finish("s1@0:5", 1), *whole(2, 0, 5, 20)]
