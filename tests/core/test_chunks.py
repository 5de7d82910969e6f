"""Chunk lengths, promotion, the policy gate, cancels and deadlines while prefilling (S2 sections 6 to 11)."""

from __future__ import annotations

import pytest
from testkit import (
    PAIR,
    Bench,
    E,
    assert_block,
    between,
    checkpoints,
    chunk0,
    count,
    done,
    free_direct,
    marker,
    outs,
    preamble,
    req,
    run,
    scenario,
    step,
    stream,
    tick_of,
    toks,
)


def test_derived_f_an_idle_server_gives_a_long_prompt_one_chunk() -> None:
    """The first is active before the second starts; over 8192 tokens it is not."""
    result = run(req(1, 100, [10, 11, 12, 13, E]), req(2, 20, [20, E]), max_prefill_tokens=8)
    assert between(result, 1)[: len(chunk0(1, 0, 100, 105, 100, 10))] == chunk0(1, 0, 100, 105, 100, 10)
    long = run(req(1, 8193, [10, 11, E]), req(2, 20, [20, E]), max_prefill_tokens=8)
    assert_block(long, "\n".join(chunk0(1, 0, 8193, 8196, 8192)))
    assert_block(
        long,
        'prefill_batch_chunk(streams=["s1@0:len=8193 start=8192 len=1 last=true", '
        '"s2@1:len=16 start=8 len=8 last=false"], stream=1)',
    )


def test_an_idle_budget_is_given_again_when_the_first_ended_at_once() -> None:
    """S2 3.3: the lists are still empty, so the next one gets max_batch_tokens too."""
    result = run(req(1, 20, [10]), req(2, 30, [20, E]), req(3, 20, [30, E]), max_prefill_tokens=8)
    assert [line.split(", ")[1] for line in result.calls if line.startswith("prefill_chunk(start=0")] == [
        "len=20",
        "len=30",
        "len=8",
    ]


def test_d30_max_batch_tokens_0_means_no_limit() -> None:
    """An idle server prefills the whole prompt in one chunk, whatever its length."""
    result = run(req(1, 10_000, [10, E]), max_prefill_tokens=8, max_batch_tokens=0)
    assert [line for line in result.calls if line.startswith("prefill")] == [
        "prefill_chunk(start=0, len=10000, last=true, s1@0:len=10000, stream=1)"
    ]


@pytest.mark.parametrize(
    ("chunk", "prompt", "lengths"),
    [
        (8, 20, [8, 8, 4]),
        (8, 17, [8, 8, 1]),
        (8, 18, [8, 8, 2]),
        (8, 16, [8, 8]),
        (8, 8, [8]),
        (10, 30, [10, 8, 8, 4]),
        (10, 20, [10, 10]),
        (3, 10, [3, 3, 3, 1]),
        (4, 9, [4, 4, 1]),
        (5, 16, [5, 4, 4, 3]),
        (7, 12, [7, 5]),
        (1, 3, [1, 1, 1]),
    ],
)
def test_chunk_lengths_beside_a_running_row(chunk: int, prompt: int, lengths: list[int]) -> None:
    """Chunk 0 is never rounded, later ones to fours unless last or below four; last is decided before rounding."""
    result = run(
        req(1, 1, [40 + i % 20 for i in range(40)], max_tokens=40), req(2, prompt, [20, E], 1), max_prefill_tokens=chunk
    )
    found = []
    for line in result.calls:
        if line.startswith("prefill_chunk(") and "s2@" in line:
            found.append(int(line.split("len=")[1].split(",")[0]))
        elif line.startswith("mixed_forward("):
            found.append(int(line.split("start=")[1].split("len=")[1].split(" ")[0]))
    assert found == lengths
    assert outs(result)[1] == stream([20], done("stop", 2))


def test_plain_later_chunks_with_nothing_active() -> None:
    """Preamble with this chunk's numbers, normalize after every one, a pair only after the last (S2 8.2 plain)."""
    result = run(req(1, 18, [10, 11, E]), max_prefill_tokens=8, max_batch_tokens=8)
    assert between(result, 1, 2) == [
        *chunk0(1, 0, 18, 21, 8),
        "poll_innerq()",
        *preamble(0, 8, 8, 18),
        "prefill_chunk(start=8, len=8, last=false, s1@0:len=16, stream=1)",
        "normalize_ssm_states(s1@0:len=16, stream=1)",
        *marker(998, 2),
        "poll_innerq()",
        *preamble(0, 2, 16, 18),
        "prefill_chunk(start=16, len=2, last=true, s1@0:len=18, stream=1)",
        "normalize_ssm_states(s1@0:len=18, stream=1)",
        *PAIR,
        "argmax_on_device(row=0, stream=0) -> 10",
        *step("s1@0:18 10>11"),
        "num_free_blocks() -> 998",
    ]


def test_promotion_is_in_reverse_list_order() -> None:
    """Entries completed in one batched step enter active last first (S2 section 11): seen in the release order of
    requests that end at birth."""
    result = run(
        req(1, 12, [10]),
        req(2, 11, [20]),
        req(3, 40, [30, E]),
        req(4, 10, [40]),
        max_prefill_tokens=8,
        max_batch_tokens=8,
    )
    released = [line for line in result.calls if line.startswith("cache_sequence(")]
    assert released == [
        "cache_sequence(s4@3:len=10)",
        "cache_sequence(s2@1:len=11)",
        "cache_sequence(s1@0:len=12)",
        "cache_sequence(s3@2:len=41)",
    ]


def test_a_promoted_row_waits_a_tick_after_its_mixed_chunk_and_none_after_a_batched_prefill() -> None:
    """mixed_done: the Decode lane does nothing in a tick whose mixed forward was the decode."""
    result = run(req(1, 4, toks(10, 20)), req(2, 12, [20, 21, E], 1), max_prefill_tokens=8)
    # Tick 2: chunk 0 (8), then the mixed last chunk (4) in the same tick; tick 3 decodes both.
    assert tick_of(result, "mixed_forward(") == 2
    assert count(result, "fx launch") == len([*toks(10, 20)]) - 2
    assert_block(result, "\n".join([*marker(998, 3), *step("s1@0:6 12>13", "s2@1:12 20>21")]))


def test_the_policy_holds_chunks_back_and_the_decode_then_waits_for_the_stream() -> None:
    """S2 7.1: no call, not even poll_innerq; the Decode lane makes its pair because prefilling is not empty."""
    bench = Bench(
        scenario(
            req(1, 4, toks(10, 30)), req(2, 40, [20, E], 1), max_prefill_tokens=8, policy="slai", slai_deadline_ms=10
        )
    )
    bench.tick(2)
    assert [entry.offset for entry in bench.state.prefilling] == [16]
    for row in bench.state.active:
        row.last_token_time = -8_000_000
    before = len(bench.calls)
    bench.tick()
    assert [entry.offset for entry in bench.state.prefilling] == [16]
    assert bench.calls[before:] == [*marker(997, 3), *PAIR, *step("s1@0:6 12>13")]
    # The decode refreshed the time, so the next tick mixes again.
    bench.tick()
    assert [entry.offset for entry in bench.state.prefilling] == [24]


def test_case_7_d4_a_cancel_in_the_middle_of_a_chunked_prefill() -> None:
    """R2 keeps its chunk of tick 4, is freed before the snapshot of tick 5, R3 moves up, its slot returns."""
    result = run(
        req(1, 4, toks(10, 21, E)),
        req(2, 40, [20, 21, E], 2, cancel_at_tick=4),
        req(3, 40, [30, 31, E], 2),
        max_prefill_tokens=8,
    )
    assert (
        between(result, 4)[-4:]
        == [
            *checkpoints("s1@0:7 0>14"),
            *free_direct("s2@1:24", 2),
            "num_free_blocks() -> 997",
        ][-4:]
    )
    assert next(line for line in between(result, 5) if line.startswith("mixed")) == (
        "mixed_forward(decode=[14], prefill=s3@2:len=32 start=24 len=8 last=false, stream=1)"
    )
    assert outs(result) == [
        stream(toks(10, 21), done("stop", 13)),
        done("cancelled", 0),
        stream([30, 31], done("stop", 3)),
    ]
    # R1 keeps one token per tick.
    for tick in range(2, 13):
        assert sum(line.startswith("decode_marconi_checkpoint(s1") for line in between(result, tick)) == (tick < 12)


def test_case_8_deadlines_while_queued_or_prefilling_scope_active() -> None:
    """The sweep looks at active rows, once per tick, after the decode (S1 section 17)."""
    expired = toks(20, 28, E)
    a = run(req(1, 5, toks(10, 13, E)), req(2, 5, expired, expired_deadline=True), max_batch_size=1)
    assert tick_of(a, "prefill(n=5, s2") == 5
    assert outs(a)[1] == stream([20, 21], done("timeout", 2, guard="request_timeout"))
    b = run(req(1, 4, toks(10, 21, E)), req(2, 20, expired, 2, expired_deadline=True), max_prefill_tokens=8)
    assert outs(b)[1] == stream([20], done("timeout", 1, guard="request_timeout"))
    c = run(req(1, 20, expired, expired_deadline=True), max_prefill_tokens=8)
    assert outs(c) == [stream([20, 21], done("timeout", 2, guard="request_timeout"))]


def test_case_8_d5_deadlines_scope_all() -> None:
    """A: no device call for R2. B: the prefill ends before the next snapshot, n = 0."""
    one = req(1, 5, toks(10, 13, E))
    a = run(one, req(2, 5, [20, E], expired_deadline=True), max_batch_size=1, deadline_scope="all")
    assert outs(a)[1] == done("timeout", 0, guard="request_timeout")
    assert a.calls == run(one, max_batch_size=1).calls
    b = run(
        req(1, 4, toks(10, 21, E)),
        req(2, 40, toks(20, 28, E), 2, deadline_at_tick=4),
        max_prefill_tokens=8,
        deadline_scope="all",
    )
    assert outs(b)[1] == done("timeout", 0, guard="request_timeout")
    assert between(b, 4)[-3:] == [*free_direct("s2@1:24", 2), "num_free_blocks() -> 999"]
    blocking = run(
        one, req(2, 5, [20, E], expired_deadline=True, streaming=False), max_batch_size=1, deadline_scope="all"
    )
    assert outs(blocking)[1] == "Response(tokens=[], timeout, think=0, cached=0, acc=0, logprobs=0)"


def test_first_token_rows_of_each_forward() -> None:
    """mixed: row a; batched: a + i; a floor or a temperature makes it one copied row (S2 5.1)."""
    result = run(
        req(1, 4, toks(10, 30)),
        req(2, 12, [20, 21, E], 1, temperature=0.5),
        req(3, 11, [E, 31, E], 1, min_tokens=1),
        max_prefill_tokens=8,
        device={"vocab": 64},
    )
    assert_block(
        result,
        "\n".join(
            [
                'mixed_forward_batch(decode=[11], prefills=["s2@1:len=12 start=8 len=4 last=true", '
                '"s3@2:len=11 start=8 len=3 last=true"], stream=1)',
                *PAIR,
                "copy_logits_to_host(row=1, off=0, bytes=128)",
                "copy_logits_to_host(row=2, off=0, bytes=128)",
                "argmax_batch(row=0, n=1, stream=0) -> [12]",
            ]
        ),
    )
    assert outs(result)[1:] == [stream([20, 21], done("stop", 3)), stream([0, 31], done("stop", 3))]


def test_the_readback_of_mixed_rows_follows_the_decode_rule() -> None:
    """One ineligible decode row sends the mixed readback to the host: a bare copy, no fx line."""
    result = run(
        req(1, 4, toks(10, 30), top_logprobs=1), req(2, 4, toks(40, 60)), req(3, 20, [20, E], 1), max_prefill_tokens=8
    )
    assert_block(
        result,
        "\n".join(
            [
                "mixed_forward(decode=[11, 41], prefill=s3@2:len=16 start=8 len=8 last=false, stream=1)",
                *PAIR,
                "copy_logits_to_host(row=0, off=0, bytes=256)",
                *checkpoints("s1@0:5 11>12", "s2@1:5 41>42"),
            ]
        ),
    )
