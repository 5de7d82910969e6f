"""Every lane that can serve one request, and what a client sees of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from testkit import scenario

from metrale.sim.runner import run_scenario

PROPOSER = {"has_proposer": True}
COMPANION = list(range(20, 50))
"""The script of the requests that keep a batched lane busy; it outlives every request under test."""


@dataclass(frozen=True)
class Lane:
    """How to put a request on a lane. ``companions`` run beside it; ``unlike`` names calls that prove the lane ran."""

    knobs: dict[str, Any]
    device: dict[str, Any] = field(default_factory=dict)
    companions: int = 0
    proof: str = "fx launch Decode{"


def _mtp(drafts: int, proof: str, companions: int = 0, **keys: Any) -> Lane:
    device = PROPOSER | keys.pop("device", {})
    return Lane({"use_speculative": True, "num_drafts": drafts, **keys}, device, companions, proof)


LANES = {
    "plain": Lane({}),
    "plain, batched": Lane({}, companions=2),
    "K = 2": _mtp(1, "decode_verify_graphed("),
    "K = 3": _mtp(2, "decode_verify_graphed_k3("),
    "K = 4": _mtp(3, "decode_verify_graphed_k4("),
    "batched": _mtp(3, "decode_verify_batched(", companions=1),
    "batched, pruned": _mtp(3, "decode_verify_batched(", companions=3),
    "batched bootstrap": _mtp(2, "can_batch_verify([2, 2])", companions=1, dflash_unified_ctx=False),
    "batch vetoed": _mtp(3, "decode_verify_graphed_k4(", companions=1, device={"can_batch_verify": False}),
    "no draft fits": _mtp(3, "decode(", device={"slot_draft_capacity": 0}),
    "DFlash": _mtp(5, "decode_verify_dflash(", dflash=True),
    "DFlash, two drafts": _mtp(2, "decode_and_verify_fused(", dflash=True),
    "DFlash batched": _mtp(4, "decode_verify_batched(", companions=1, dflash=True),
    "n-gram": Lane({"ngram_speculative": True}, proof="decode("),
    "self-speculation": Lane(
        {"self_speculative": True, "num_drafts": 3}, {"has_self_speculative": True}, proof="decode_verify("
    ),
}


@dataclass(frozen=True)
class Seen:
    """What the specification promises to be the same on every lane."""

    tokens: tuple[int, ...]
    n: int
    reason: str


def seen(line: str) -> Seen:
    """Read one ``out`` line; logprob events count as their tokens."""
    text = line.split(": ", 1)[1]
    blocking = re.fullmatch(r"Response\(tokens=\[([\d, ]*)\], (\w+), .*\)", text)
    if blocking:
        tokens = tuple(map(int, blocking[1].split(", "))) if blocking[1] else ()
        return Seen(tokens, len(tokens), blocking[2])
    stream = re.fullmatch(r"((?:TL?\d+(?::\d+)? )*)Done\((\w+), n=(\d+), .*\)", text)
    assert stream, f"not a normal end: {text}"
    tokens = tuple(int(event.lstrip("TL").split(":")[0]) for event in stream[1].split())
    return Seen(tokens, int(stream[3]), stream[2])


def requests_on(lane: Lane, request: dict[str, Any]) -> list[dict[str, Any]]:
    """The request and its companions, which come first in half of the cases (slots and batch order then differ)."""
    others = [
        {"id": 91 + i, "prompt_len": 6, "tokens": COMPANION, "draft_wrong_every": i} for i in range(lane.companions)
    ]
    return [request, *others] if request["id"] % 2 else [*others, request]


def on_lane(
    lane: Lane, request: dict[str, Any], log: bool = False, router: str = "sync", **knobs: Any
) -> tuple[Seen, list[str]]:
    """What the client of ``request`` sees, and the call lines if ``log``."""
    sc = scenario(*requests_on(lane, request), device=lane.device, **{**lane.knobs, **knobs})
    result = run_scenario(sc, router=router, log=log, max_ticks=2000)
    line = next(line for line in result.clients if line.startswith(f"out s{request['id']}: "))
    return seen(line), result.calls
