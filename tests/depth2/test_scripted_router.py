"""The scripted router at depth 1: chosen tokens, failing launches, the effect log (S5 section 14.6)."""

from __future__ import annotations

from typing import Any

import pytest

from metrale.core.io import EffectFailed, HostLogits
from metrale.sim import Fault, RunResult, ScriptedRouter, run_scenario, scenario_from

E = 63


def m(count: int, first: int) -> list[int]:
    """``count`` tokens from ``first`` on."""
    return list(range(first, first + count))


def req(id: int, prompt_len: int, tokens: list[int], **more: Any) -> dict[str, Any]:
    return {"id": id, "prompt_len": prompt_len, "tokens": tokens, **more}


THREE_STREAMS = [req(1, 5, m(8, 10)), req(2, 5, m(8, 20)), req(3, 7, m(8, 30))]


def run(
    requests: list[dict[str, Any]],
    scripts: dict[int, list[int]],
    faults: list[Fault] | None = None,
    **scheduler: Any,
) -> tuple[RunResult, ScriptedRouter]:
    made: list[ScriptedRouter] = []

    def wrap(inner: Any) -> ScriptedRouter:
        made.append(ScriptedRouter(inner, scripts, faults or []))
        return made[0]

    scenario = scenario_from({"name": "scripted", "request": requests, "scheduler": scheduler})
    return run_scenario(scenario, wrap=wrap, router="sync"), made[0]


def positions(result: RunResult, line: str) -> list[int]:
    return [index for index, own in enumerate(result.calls) if own.startswith(line)]


def test_greedy_order() -> None:
    result, router = run(THREE_STREAMS, {1: [70, 71, 72, E], 2: [80, 81, E], 3: [90, 91, 92, 93, E]})
    assert result.clients == [
        "out s1: T10 T70 T71 T72 Done(stop, n=5, think=0, cached=0, acc=0, guard=None)",
        "out s2: T20 T80 T81 Done(stop, n=4, think=0, cached=0, acc=0, guard=None)",
        "out s3: T30 T90 T91 T92 T93 Done(stop, n=6, think=0, cached=0, acc=0, guard=None)",
    ]
    assert router.launches == 5


def test_release_before_compaction() -> None:
    scripts = {1: [70, E], 2: [80, 81, 82, E], 3: [90, 91, 92, 93, 94, E]}
    result, router = run(THREE_STREAMS, scripts)
    releases = positions(result, "fx apply ReleaseSeq{cache=true, finish_sequence}")
    assert len(releases) == 3
    compaction = positions(result, "fx apply CompactSlot")[0]
    next_launch = min(at for at in positions(result, "fx launch Decode") if at > releases[0])
    assert releases[0] < compaction < next_launch
    assert max(releases) < positions(result, "fx apply EpShutdown")[0]
    assert router.effects.count("ReleaseSeq{cache=true, finish_sequence}") == 3


def test_deadline() -> None:
    requests = [req(1, 5, m(8, 10), expired_deadline=True), req(2, 5, m(4, 20))]
    result, _router = run(requests, {1: m(6, 70), 2: [80, 81, E]})
    assert result.clients == [
        'out s1: T10 T70 Done(timeout, n=2, think=0, cached=0, acc=0, guard=Some("request_timeout"))',
        "out s2: T20 T80 T81 Done(stop, n=4, think=0, cached=0, acc=0, guard=None)",
    ]
    first_release = positions(result, "fx apply ReleaseSeq")[0]
    assert len([at for at in positions(result, "fx launch Decode") if at < first_release]) == 1


def test_rotation_waits() -> None:
    result, router = run([req(1, 5, m(6, 10))], {1: [70, 71, 72, E]}, lora_rotation="adapter-y")
    rotations = positions(result, "fx lora Rotate(adapter-y)")
    releases = positions(result, "fx apply ReleaseSeq{cache=true, finish_sequence}")
    assert len(rotations) == len(releases) == 1
    assert rotations[0] > releases[0]
    assert result.clients[0] == "rotation ack: Done"
    assert "lora Rotate(adapter-y)" in router.effects


def test_kv_exhaustion() -> None:
    scripts = {1: [70, 71, 72, E], 2: [80, 81, E], 3: [90, 91, 92, E]}
    result, router = run(THREE_STREAMS, scripts, [Fault.KV_EXHAUSTED])
    preemptions = positions(result, "fx apply ReleaseSeq{cache=true, preempt_requeue}")
    assert len(preemptions) == 1
    following = next(line for line in result.calls[preemptions[0] :] if line.startswith("fx launch Decode"))
    assert following.startswith("fx launch Decode{n=2")
    assert not any("Error" in line for line in result.clients)
    assert all("Done(stop" in line for line in result.clients)
    # the failed launch left its label, but no forward
    assert result.calls[preemptions[0] - 1] == "fx launch Decode{n=3, ctx=Unified, readback=Argmax}"
    assert router.launches == 6


def test_fatal_fault() -> None:
    requests = [req(1, 5, m(6, 10)), req(2, 5, m(6, 20)), req(3, 5, m(6, 30), arrive_at_tick=1)]
    result, _router = run(requests, {3: [90, 91, E]}, [Fault.FATAL])
    assert result.clients == [
        "out s1: T10 Error(scripted device fault)",
        "out s2: T20 Error(scripted device fault)",
        "out s3: T30 T90 T91 Done(stop, n=4, think=0, cached=0, acc=0, guard=None)",
    ]
    assert len(positions(result, "fx apply ReleaseSeq{cache=false, send_error}")) == 2


def test_host_readback_is_overwritten_row_by_row() -> None:
    requests = [req(1, 5, m(4, 10), temperature=0.7), req(2, 5, m(4, 20))]
    result, _router = run(requests, {1: [50, 51]})
    assert result.clients[0].startswith("out s1: T10 T50 T51 T13 ")
    assert result.clients[1].startswith("out s2: T20 T21 T22 T23 ")


def test_read_logits_comes_from_the_last_tokens() -> None:
    requests = [req(1, 5, m(4, 10)), req(2, 5, m(4, 20))]
    # the scripted think-end id of a row past thinking sends the batch to the host, which may not pick it either
    result, router = run(requests, {1: [7, 11, 12], 2: [21, 22, 23]}, think_end_token=7)
    assert router.effects[0] == "ReadLogits{rows=2}"
    assert "copy_logits_to_host(row=0, off=0, bytes=256)" not in result.calls
    assert result.clients == [
        "out s1: T10 Done(stop, n=2, think=0, cached=0, acc=0, guard=None)",
        "out s2: T20 T21 T22 T23 Done(length, n=4, think=0, cached=0, acc=0, guard=None)",
    ]


def test_an_unknown_ticket_is_refused() -> None:
    _result, router = run([req(1, 5, m(2, 10))], {})
    with pytest.raises(EffectFailed, match="ticket 77 is not in flight"):
        router.await_result(77)


def test_one_hot_outside_the_vocabulary_is_all_zero() -> None:
    _result, router = run([req(1, 5, m(2, 10))], {1: [70]})
    assert router.read_logits(1) == HostLogits(bytes(128), 1)
