"""What fails while prefilling, and whom it costs (S2 section 14, D3, D13)."""

from __future__ import annotations

import pytest
from testkit import (
    END_LINES,
    Bench,
    E,
    assert_block,
    between,
    chunk0,
    count,
    done,
    free_direct,
    marker,
    outs,
    preamble,
    release,
    req,
    run,
    run_failing,
    scenario,
    step,
    stream,
    toks,
    whole,
)

from metrale.core.io import DeviceFault, KvExhausted, SlotsExhausted
from metrale.core.prefill.advance import _plain_chunk, next_slice
from metrale.core.prefill.start import start_prefills

FAULT = "scripted"


def fault(text: str = FAULT) -> DeviceFault:
    return DeviceFault(text, text)


TWO = (req(1, 5, [10, E]), req(2, 5, [20, E]))


LATER = (req(1, 4, toks(10, 21, E)), req(2, 40, [20, E], 2))


def test_case_2c_exhaustion_of_a_plain_chunk_beside_a_speculative_row() -> None:
    """The one decoding row is ended with an error, not parked; the chunk is tried again without a new preamble."""
    result = run(
        req(1, 4, toks(10, 40, E)),
        req(2, 20, [20, 21, E], 1),
        device={"has_proposer": True, "exhaust_at": {"prefill_chunk": [2]}},
        use_speculative=True,
        max_prefill_tokens=8,
    )
    assert_block(
        result,
        "\n".join(
            [
                *preamble(1, 8, 8, 20),
                "prefill_chunk(start=8, len=8, last=false, s2@1:len=8, stream=1) -> ERR KV cache exhausted",
                *release("s1@0:5", 1, "send_error", cache=False),
                "prefill_chunk(start=8, len=8, last=false, s2@1:len=16, stream=1)",
                "normalize_ssm_states(s2@1:len=16, stream=1)",
            ]
        ),
    )
    assert outs(result)[0].endswith("Error(preempted: KV cache exhausted (a prefill needed its blocks))")
    assert outs(result)[1].startswith("T20 T21 Done(stop, n=3,")


@pytest.mark.parametrize(
    ("call", "text", "lines"),
    [
        ("alloc_sequence", "alloc_sequence failed: scripted", []),
        ("prefill", "prefill failed: scripted", free_direct("s1@0:0", 0)),
        ("ep_broadcast_tokens", "prefill failed: scripted", free_direct("s1@0:0", 0)),
        ("argmax_on_device", "prefill failed: scripted", free_direct("s1@0:5", 1)),
    ],
)
def test_a_failed_whole_prompt_start(call: str, text: str, lines: list[str]) -> None:
    """The client is told, the sequence is freed by direct calls, the next request starts."""
    result = run_failing(scenario(*TWO), {call: {0: fault()}})
    assert outs(result) == [f"Error({text})", stream([20], done("stop", 2))]
    if lines:
        assert_block(result, "\n".join([*lines, "alloc_sequence() -> slot 0"]))
    assert count(result, "fx apply ReleaseSeq") == 1


@pytest.mark.parametrize(
    ("call", "text", "length"),
    [
        ("prefill_chunk", "prefill_chunk failed: scripted", 0),
        ("ep_broadcast_cmd", "prefill_chunk failed: scripted", 0),
        ("argmax_on_device", "sample_token failed: scripted", 5),
    ],
)
def test_a_failed_chunk_zero(call: str, text: str, length: int) -> None:
    """Texts of S2 14.1; no pair after a failed forward."""
    result = run_failing(scenario(*TWO, max_prefill_tokens=8), {call: {0: fault()}})
    assert outs(result) == [f"Error({text})", stream([20], done("stop", 2))]
    frees = free_direct(f"s1@0:{length}", 1 if length else 0)
    assert_block(result, "\n".join([*frees, "alloc_sequence_for(budget=7) -> slot 0"]))


def test_a_failed_alloc_in_chunked_mode() -> None:
    """Nothing to release."""
    result = run_failing(scenario(*TWO, max_prefill_tokens=8), {"alloc_sequence_for": {0: fault()}})
    assert outs(result) == ["Error(alloc_sequence failed: scripted)", stream([20], done("stop", 2))]


def test_no_kv_retry_while_starting() -> None:
    """ "KV cache exhausted" is an ordinary failure in the Start lane; ``exhaust_at`` names the call."""
    result = run(*TWO, device={"exhaust_at": {"prefill": [1]}})
    assert outs(result) == [
        stream([10], done("stop", 2)),
        "Error(prefill failed: KV cache exhausted (scripted at prefill #1))",
    ]
    chunked = run(*TWO, device={"exhaust_at": {"prefill_chunk": [1]}}, max_prefill_tokens=8)
    assert outs(chunked)[1] == "Error(prefill_chunk failed: KV cache exhausted (scripted at prefill_chunk #1))"


def test_slots_exhausted_takes_the_last_active_row() -> None:
    """S2 14.2: it may have been started in this very tick; the failed request is not retried."""
    sc = scenario(req(1, 5, toks(10, 15, E)), req(2, 5, toks(20, 25, E)), req(3, 5, [30, E]))
    result = run_failing(sc, {"alloc_sequence": {2: SlotsExhausted("pool exhausted: no slot")}})
    assert_block(
        result,
        "\n".join([*whole(2, 1, 5, 20), *release("s2@1:5", 1, "send_error", cache=False), *step("s1@0:5 10>11")]),
    )
    assert outs(result) == [
        stream(toks(10, 15), done("stop", 7)),
        "T20 Error(Preempted: server resource pressure)",
        "Error(alloc_sequence failed: pool exhausted: no slot)",
    ]
    alone = run_failing(scenario(*TWO), {"alloc_sequence": {0: SlotsExhausted("pool exhausted: no slot")}})
    assert outs(alone) == ["Error(alloc_sequence failed: pool exhausted: no slot)", stream([20], done("stop", 2))]


def test_errors_of_the_releases_of_a_failed_start_are_ignored() -> None:
    """Only logged: the run goes on, the word to the mirror is still sent."""
    result = run_failing(scenario(*TWO), {"prefill": {0: fault()}, "free_sequence": {0: fault("no free")}})
    assert_block(
        result,
        """
        free_sequence(s1@0:len=0, blocks=0) -> ERR no free
        ep_broadcast_cmd_for_seq(seq=0, cmd=0xfffffff1)
        alloc_sequence() -> slot 1
        """,
    )


def test_case_2c_d3_exhaustion_of_a_mixed_forward_drops_the_prefill_alone() -> None:
    """No preemption is tried; the client gets ``prefill failed``; the decode runs in the same tick."""
    result = run(*LATER, device={"exhaust_at": {"mixed_forward": [0]}}, max_prefill_tokens=8)
    assert between(result, 3) == [
        *chunk0(2, 1, 40, 42, 8),
        "poll_innerq()",
        "mixed_forward(decode=[12], prefill=s2@1:len=8 start=8 len=8 last=false, stream=1) -> ERR KV cache exhausted",
        *free_direct("s2@1:8", 1),
        *step("s1@0:6 12>13"),
        "num_free_blocks() -> 999",
    ]
    assert outs(result) == [
        stream(toks(10, 21), done("stop", 13)),
        "Error(prefill failed: KV cache exhausted (scripted at mixed_forward #0))",
    ]


def test_d3_a_failed_batched_mixed_step_tells_every_prefilling_client() -> None:
    """All entries, the last of the list first (S2 10 and 11); nobody else is affected."""
    result = run(
        *LATER,
        req(3, 44, [30, E], 2),
        device={"exhaust_at": {"mixed_forward_batch": [1]}},
        max_prefill_tokens=8,
    )
    text = "Error(prefill failed: KV cache exhausted (scripted at mixed_forward_batch #1))"
    assert outs(result) == [stream(toks(10, 21), done("stop", 13)), text, text]
    assert_block(result, "\n".join([*free_direct("s3@2:16", 2), *free_direct("s2@1:16", 2), *step("s1@0:7 13>14")]))


def test_d3_a_failed_batched_prefill_tells_every_member() -> None:
    """S2 9 step 5."""
    result = run(
        req(1, 40, [10, E]),
        req(2, 44, [20, E]),
        device={"exhaust_at": {"prefill_batch_chunk": [1]}},
        max_prefill_tokens=8,
        max_batch_tokens=8,
    )
    text = "Error(prefill failed: KV cache exhausted (scripted at prefill_batch_chunk #1))"
    assert outs(result) == [text, text]
    assert_block(
        result, "\n".join([*free_direct("s2@1:16", 2), *free_direct("s1@0:16", 2), "num_free_blocks() -> 1000"])
    )


def test_d3_a_later_plain_chunk_that_fails() -> None:
    """``prefill_chunk failed`` for preamble and forward, ``sample_token failed`` for the pick."""
    long = req(1, 20, [10, E])
    for call, index, text in (
        ("prefill_chunk", 1, "prefill_chunk failed: scripted"),
        ("ep_broadcast_tokens", 1, "prefill_chunk failed: scripted"),
        ("argmax_on_device", 0, "sample_token failed: scripted"),
    ):
        sc = scenario(long, max_prefill_tokens=8, max_batch_tokens=8)
        result = run_failing(sc, {call: {index: fault()}})
        assert outs(result) == [f"Error({text})"]
        assert result.calls[-len(END_LINES) - 2 :] == [*marker(1000, result.ticks), *END_LINES]


def test_d3_a_failed_pick_of_a_mixed_step_leaves_the_decode_rows_alone() -> None:
    """The readback of the decode rows follows; the prefill's client gets ``sample_token failed``."""
    sc = scenario(req(1, 4, toks(10, 21, E)), req(2, 12, [20, E], 2), max_prefill_tokens=8)
    result = run_failing(sc, {"argmax_on_device": {1: fault()}})
    assert outs(result) == [stream(toks(10, 21), done("stop", 13)), "Error(sample_token failed: scripted)"]


def test_a_failed_readback_of_a_mixed_step_fails_the_decode_rows_alone() -> None:
    """Bare error text, release without cache; the promoted prefill lives on (S2 8.2 step 6)."""
    sc = scenario(req(1, 4, toks(10, 21, E)), req(2, 12, [20, 21, E], 2), max_prefill_tokens=8)
    result = run_failing(sc, {"argmax_batch": {2: fault()}})
    assert outs(result) == ["T10 T11 T12 Error(scripted)", stream([20, 21], done("stop", 3))]
    assert_block(result, "\n".join(release("s1@0:7", 1, "send_error", cache=False)))


def test_case_2c_exhaustion_of_a_plain_chunk_ends_the_row_with_most_blocks() -> None:
    """Only with one active speculative row is a chunk plain beside decode rows; a tie takes the later one."""
    sc = scenario(
        req(1, 40, [10, E]), device={"exhaust_at": {"prefill_chunk": [1, 2]}}, max_prefill_tokens=8, max_batch_tokens=8
    )
    bench = Bench(sc)
    rows = Bench(scenario(*[req(i, n, toks(20, 40)) for i, n in ((2, 20), (3, 40), (4, 40), (5, 60))]))
    rows.tick()
    victims = rows.state.active
    bench.state.active = victims
    victims[3].request.grammar = True
    start_prefills(bench.state, [bench.harness.clients[0].request])
    entry = bench.state.prefilling[0]
    _plain_chunk(bench.state, entry, next_slice(bench.state, entry))
    # 60 tokens have the most blocks, but a grammar; of the equal two the later one goes first, then the other.
    assert [row.request.id for row in bench.state.active] == [2, 5]
    assert entry.offset == 16
    text = "Error(preempted: KV cache exhausted (a prefill needed its blocks))"
    assert [out.split(" ", 2)[2] for out in rows.outs()[1:3]] == [text, text]


def test_an_exhausted_plain_chunk_with_nobody_to_end_fails() -> None:
    """No victim: the retry stops (S2 8.2 plain 3)."""
    result = run(
        req(1, 20, [10, E]),
        device={"exhaust_at": {"prefill_chunk": [1]}},
        max_prefill_tokens=8,
        max_batch_tokens=8,
    )
    assert outs(result) == ["Error(prefill_chunk failed: KV cache exhausted (scripted at prefill_chunk #1))"]


def test_errors_of_events_polls_and_normalize_are_ignored() -> None:
    """S2 section 15: only a matter for a log."""
    sc = scenario(req(1, 20, [10, 11, E]), max_prefill_tokens=8, max_batch_tokens=8)
    always = dict.fromkeys(range(50))
    errors = {index: fault() for index in always}
    names = ("record_event", "stream_wait_event", "poll_innerq", "normalize_ssm_states")
    result = run_failing(sc, dict.fromkeys(names, errors))
    assert outs(result) == [stream([10, 11], done("stop", 3))]


def test_kv_errors_are_matched_by_class_never_by_text() -> None:
    """A fault whose text speaks of exhaustion preempts nobody."""
    sc = scenario(req(1, 5, toks(10, 15, E)), req(2, 5, toks(20, 25, E)))
    result = run_failing(sc, {"decode_batch": {1: fault("KV cache exhausted, says a stranger")}})
    assert outs(result) == [
        "T10 T11 Error(KV cache exhausted, says a stranger)",
        "T20 T21 Error(KV cache exhausted, says a stranger)",
    ]
    other = run_failing(sc, {"decode_batch": {1: KvExhausted("no blocks left")}})
    assert outs(other) == [stream(toks(10, 15), done("stop", 7)), stream(toks(20, 25), done("stop", 7))]
