"""Metamorphic relations: scenarios that must give each client the same stream (decisions D18, D19).

A relation compares a scenario without faults with a relative of it. What may differ is left out of the comparison:
``acc=`` tells the lanes apart, log-probabilities are not given on every lane. Scenarios in which an end depends on
time or on the lane by rule are not compared at all (see :func:`fixed_streams`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from metrale.sim.runner import RunError, RunResult, run_scenario
from metrale.sim.scenario import Scenario, ScenarioError, scenario_from

from .judge import MAX_TICKS, Failure
from .prng import Stream

Tables = dict[str, Any]
Change = Callable[[Tables, Stream], Tables | None]

FAULT_KEYS = (
    "kv_exhaust_at", "exhaust_at", "fatal_at", "device_lost_at", "spill_fail_at", "restore_fail_at",
    "event_query_fault_at", "spill_capacity",
)  # fmt: skip
TIMED_KEYS = (
    "cancel_at",
    "cancel_at_tick",
    "deadline_at_tick",
    "expired_deadline",
    "drop_reader_after",
    "stall_reader",
)
_NOISE = re.compile(r"acc=\d+|logprobs=\d+")
_LOGPROBS = re.compile(r"TL(\d+):\d+")


def calm(tables: Tables) -> Tables:
    """The scenario without faults and without what clients do at a certain moment."""
    device = {key: value for key, value in tables["device"].items() if key not in FAULT_KEYS}
    scheduler = {key: value for key, value in tables["scheduler"].items() if key != "close_inbox_at_tick"}
    requests = [{key: value for key, value in one.items() if key not in TIMED_KEYS} for one in tables["request"]]
    return {**tables, "device": device, "scheduler": scheduler, "request": requests}


def fixed_streams(tables: Tables, lanes: bool) -> bool:
    """Whether every stream is fixed by its request alone.

    Equal ids are refused by timing; a script id outside the vocabulary reads differently on host and device (D17); a
    context ceiling, think tokens and the watchdogs act differently on the speculative lanes (S4 section 4).
    """
    scheduler, device = tables["scheduler"], tables["device"]
    ids = [one["id"] for one in tables["request"]]
    if len(set(ids)) < len(ids):
        return False
    vocab = device.get("vocab", 64)
    if any(token >= vocab for one in tables["request"] for token in one["tokens"]):
        return False
    if scheduler.get("think_start_token") is not None or scheduler.get("loop_watchdog"):
        return False
    speculative = any(scheduler.get(key) for key in ("use_speculative", "ngram_speculative", "self_speculative"))
    return not ((lanes or speculative) and scheduler.get("max_seq_len", 4096) != 4096)


# -- relatives --------------------------------------------------------------------------------------------------------


def alone(tables: Tables, draw: Stream) -> Tables | None:
    """One of the requests, without the others."""
    if len(tables["request"]) < 2:
        return None
    return {**tables, "request": [draw.pick(tables["request"])]}


def larger_pool(tables: Tables, draw: Stream) -> Tables | None:
    """Blocks in plenty."""
    if "total_blocks" not in tables["device"]:
        return None
    return {**tables, "device": {**tables["device"], "total_blocks": 100_000, "held_blocks": 0}}


def other_policy(tables: Tables, draw: Stream) -> Tables:
    """The other admission policy."""
    policy = "fifo" if tables["scheduler"].get("policy") == "slai" else "slai"
    return {**tables, "scheduler": {**tables["scheduler"], "policy": policy}}


def other_router(tables: Tables, draw: Stream) -> Tables:
    """The other router."""
    router = "sync" if tables["scheduler"].get("router") == "async" else "async"
    return {**tables, "scheduler": {**tables["scheduler"], "router": router}}


def other_batching(tables: Tables, draw: Stream) -> Tables:
    """Another batch size and another chunking."""
    scheduler = {**tables["scheduler"], "max_batch_size": draw.pick((1, 2, 5, 8))}
    scheduler["max_prefill_tokens"] = draw.pick((0, 4, 8)) if not scheduler.get("max_prefill_tokens") else 0
    return {**tables, "scheduler": scheduler}


def other_lane(tables: Tables, draw: Stream) -> Tables:
    """Plain for a speculative scenario, a speculative lane for a plain one."""
    modes = ("use_speculative", "ngram_speculative", "self_speculative", "dflash", "num_drafts")
    scheduler = {key: value for key, value in tables["scheduler"].items() if key not in modes}
    device = dict(tables["device"])
    if not any(tables["scheduler"].get(mode) for mode in modes[:3]):
        mode = draw.pick(modes[:3])
        scheduler[mode], scheduler["num_drafts"] = True, draw.between(1, 5)
        scheduler["dflash"] = mode == "use_speculative" and draw.one_in(2)
        device["has_proposer"] = device["has_self_speculative"] = True
    return {**tables, "scheduler": scheduler, "device": device}


def no_preemption(tables: Tables, draw: Stream) -> Tables | None:
    """Preempted early and often. A batched bootstrap is never preempted: exhaustion ends its rows (S4 section 8.3)."""
    if tables["scheduler"].get("use_speculative") and not tables["scheduler"].get("dflash_unified_ctx", True):
        return None
    device = {**tables["device"], "kv_exhaust_at": sorted({draw.below(12) for _ in range(4)})}
    return {**tables, "device": device, "scheduler": {**tables["scheduler"], "swap_space_gb": draw.below(2)}}


RELATIONS: dict[str, tuple[Change, str]] = {
    "alone": (alone, "a request alone gets the stream that it gets beside others"),
    "larger-pool": (larger_pool, "more blocks change no stream"),
    "policy": (other_policy, "the admission policy changes no stream"),
    "router": (other_router, "the router's depth changes no stream"),
    "batching": (other_batching, "batch size and chunking change no stream"),
    "lane": (other_lane, "the decode lane changes no stream"),
    "preemption": (no_preemption, "a request that is preempted and comes back gets the stream of one that is not"),
}


# -- comparing --------------------------------------------------------------------------------------------------------


def compared(line: str, strict: bool) -> str:
    """What of a client line must be equal."""
    return line if strict else _LOGPROBS.sub(r"T\1", _NOISE.sub("", line))


def relate(
    tables: Tables,
    name: str,
    draw: Stream,
    run: Callable[..., RunResult] = run_scenario,
    known: RunResult | None = None,
) -> list[Failure]:
    """Compare a scenario, calmed, with its relative ``name``; nothing if the relation does not apply.

    ``known`` is the run of the scenario as it is: it serves if there was nothing to calm.
    """
    change, sentence = RELATIONS[name]
    base = calm(tables)
    if not fixed_streams(base, lanes=name == "lane"):
        return []
    relative = change(base, draw)
    if relative is None:
        return []
    try:
        if known is None or base != tables:
            known = run(scenario_from(base), log=False, max_ticks=MAX_TICKS)
        ours = known.clients
        theirs = run(_valid(relative), log=False, max_ticks=MAX_TICKS).clients
    except ScenarioError:
        return []
    except RunError as error:
        return [Failure(f"relation {name}", f"relation {name}: run", f"the relative cannot end: {error}")]
    except Exception as error:
        return [Failure(f"relation {name}", f"relation {name}: {type(error).__name__}", repr(error))]
    return _differences(name, sentence, ours, theirs)


def _valid(tables: Tables) -> Scenario:
    return scenario_from(tables)


def _differences(name: str, sentence: str, ours: list[str], theirs: list[str]) -> list[Failure]:
    own = {line.split(":", 1)[0]: line for line in ours if line.startswith("out ")}
    failures = []
    for line in theirs:
        head = line.split(":", 1)[0]
        other = own.get(head)
        if other is None or not line.startswith("out "):
            continue
        if _refused(line) or _refused(other):
            continue
        if name == "preemption" and ("Error(" in line or "Err(" in line):
            continue
        a, b = compared(other, False), compared(line, False)
        if a != b:
            text = f"{sentence}, but `{_short(other)}` becomes `{_short(line)}`"
            failures.append(Failure(f"relation {name}", f"relation {name}", text))
    return failures


def _refused(line: str) -> bool:
    return "refused: " in line or "cannot resume: " in line


def _short(line: str) -> str:
    return line if len(line) <= 90 else f"{line[:40]} .. {line[-45:]}"


def same_twice(scenario: Scenario, first: RunResult, run: Callable[..., RunResult] = run_scenario) -> list[Failure]:
    """A scenario that runs twice writes the same bytes (invariant 11)."""
    again = run(scenario, max_ticks=MAX_TICKS)
    if again.lines == first.lines:
        return []
    at = next((i for i, (a, b) in enumerate(zip(first.lines, again.lines, strict=False)) if a != b), len(first.lines))
    return [Failure("twice", "twice", f"the second run differs from the first at line {at + 1}")]
