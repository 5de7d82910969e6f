"""Beam requests (S2 section 12)."""

from __future__ import annotations

from testkit import (
    Bench,
    E,
    assert_block,
    between,
    chunk0,
    count,
    done,
    finish,
    outs,
    req,
    run,
    run_failing,
    scenario,
    stream,
    toks,
)

from metrale.core.io import DeviceFault

FAULT = "scripted"


def fault(text: str = FAULT) -> DeviceFault:
    return DeviceFault(text, text)


BEAM = {"supports_beam": True}


def beam(id: int, hyp: list[int] | None, beams: int = 4, **keys: object) -> dict:
    table = req(id, 5, [E], num_beams=beams, max_tokens=8, streaming=False, **keys)
    return table if hyp is None else {**table, "beam_hyp": hyp}


def _beam_lines(id: int, slot: int, hyp: str | None) -> list[str]:
    lines = [f"alloc_sequence() -> slot {slot}", "adapter_id_for(-1)", "acquire_adapter_slot(-1)"]
    lines += [] if hyp is None else [f"generate_beam_batch(n=1) -> [{hyp}]"]
    return [*lines, *finish(f"s{id}@{slot}:0", 0)]


def test_beam_requests_of_one_tick_search_together() -> None:
    """One call before any allocation; a request without beam_hyp answers an empty list; reasons by the last id."""
    result = run(beam(1, [10, 11, E]), beam(2, None), beam(3, [12, 13]), device=BEAM)
    assert between(result, 1) == [
        "generate_beam_batch(n=3) -> [[10, 11, 63], [], [12, 13]]",
        *_beam_lines(1, 0, None),
        *_beam_lines(2, 0, None),
        *_beam_lines(3, 0, None),
        "num_free_blocks() -> 1000",
    ]
    assert outs(result) == [
        "Response(tokens=[10, 11, 63], stop, think=0, cached=0, acc=0, logprobs=0)",
        "Response(tokens=[], length, think=0, cached=0, acc=0, logprobs=0)",
        "Response(tokens=[12, 13], length, think=0, cached=0, acc=0, logprobs=0)",
    ]


def test_beam_groups_hold_at_most_320_beams_and_singles_search_alone() -> None:
    """64 x 6: five in the first group, the sixth alone searches by itself."""
    result = run(*[beam(i, [i, E], 64) for i in range(1, 7)], device=BEAM)
    calls = [line for line in result.calls if line.startswith("generate_beam_batch")]
    assert calls == [
        "generate_beam_batch(n=5) -> [[1, 63], [2, 63], [3, 63], [4, 63], [5, 63]]",
        "generate_beam_batch(n=1) -> [[6, 63]]",
    ]


def test_beam_groups_are_per_adapter_slot_in_ascending_order() -> None:
    """S2 12.1."""
    bench = Bench(scenario(*[beam(i, [i, E]) for i in range(1, 6)], device=BEAM))
    for client, slot in zip(bench.harness.clients, (2, -1, 2, -1, 7), strict=True):
        client.request.adapter_slot = slot
    bench.tick()
    assert [line for line in bench.calls if line.startswith("generate_beam_batch")] == [
        "generate_beam_batch(n=2) -> [[2, 63], [4, 63]]",
        "generate_beam_batch(n=2) -> [[1, 63], [3, 63]]",
        "generate_beam_batch(n=1) -> [[5, 63]]",
    ]


def test_a_streaming_beam_request_gets_only_its_done() -> None:
    """It is not in the pre-pass; max_tokens does not cut the hypothesis."""
    result = run({**beam(1, toks(10, 25, E)), "streaming": True}, {**beam(2, [9]), "streaming": True}, device=BEAM)
    assert count(result, "generate_beam_batch(n=1)") == 2
    assert outs(result) == [done("stop", 17), done("length", 1)]


def test_num_beams_is_ignored_without_beam_support() -> None:
    """The device fact decides."""
    result = run(req(1, 5, [10, E], num_beams=4, beam_hyp=[11]))
    assert outs(result) == [stream([10], done("stop", 2))]


def test_a_failed_beam_search() -> None:
    """The joint call: only logged, each searches alone. The single call: error, free_sequence and no EP word."""
    sc = scenario(beam(1, [10, E]), beam(2, [11, E]), req(3, 5, [30, E]), device=BEAM)
    result = run_failing(sc, {"generate_beam_batch": {0: fault(), 1: fault("no beams")}})
    assert outs(result) == [
        "Err(beam search failed: no beams)",
        "Response(tokens=[11, 63], stop, think=0, cached=0, acc=0, logprobs=0)",
        stream([30], done("stop", 2)),
    ]
    assert_block(
        result,
        """
        acquire_adapter_slot(-1)
        free_sequence(s1@0:len=0, blocks=0)
        alloc_sequence() -> slot 0
        """,
    )


def test_a_joint_search_with_the_wrong_count_is_not_used() -> None:
    """S2 12.1: each request then searches on its own; an empty single answer is an empty hypothesis."""
    sc = scenario(beam(1, [10, E]), beam(2, [11, E]), device=BEAM)
    result = run_failing(sc, {}, generate_beam_batch=lambda requests: [] if len(requests) == 2 else [[5], [6, 7]])
    assert outs(result) == ["Response(tokens=[6, 7], length, think=0, cached=0, acc=0, logprobs=0)"] * 2


def test_beam_in_chunked_mode_allocates_with_a_budget_and_never_prefills() -> None:
    """No preamble, no chunk; the next request still finds an idle server."""
    result = run(beam(1, [10, E]), req(2, 20, [20, E]), device=BEAM, max_prefill_tokens=8)
    assert_block(
        result,
        "\n".join(
            [
                "alloc_sequence_for(budget=13) -> slot 0",
                "adapter_id_for(-1)",
                "acquire_adapter_slot(-1)",
                "generate_beam_batch(n=1) -> [[10, 63]]",
                *finish("s1@0:0", 0),
                *chunk0(2, 0, 20, 22, 20, 20),
            ]
        ),
    )
