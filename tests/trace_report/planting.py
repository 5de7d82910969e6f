"""Planted single causes: one change in a golden trace or in its scenario, and where it must be found."""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metrale.sim.runner import run_scenario
from metrale.sim.scenario import scenario_from

GOLDEN = Path(__file__).resolve().parents[2] / "golden"

NAMES = (
    "batched_mixed",
    "batched_prefill_waves",
    "batched_verify_k4",
    "beam",
    "cancel_mid_stream",
    "chunked_prefill",
    "dflash",
    "host_logits_paths",
    "lora_rotation_at_quiescence",
    "ngram",
    "preempt_requeue",
    "request_timeout",
    "self_spec",
    "spill_swap_out_in",
    "verify_k2",
    "verify_k4",
    "watchdog_rollback",
)
"""One golden per path through the scheduler."""


@dataclass(frozen=True, slots=True)
class Planted:
    """A pair of traces that part for one reason. ``line`` is the first line that differs (1-based).

    ``calls`` are the call names that may be named: the planted one, or for a changed scenario those of the two lines.
    """

    name: str
    a: str
    b: str
    line: int
    calls: frozenset[str]


def golden(name: str) -> str:
    """A golden trace."""
    return (GOLDEN / f"{name}.trace").read_text()


def call_name(line: str) -> str:
    """What a report calls a line."""
    if line.startswith("-- tick "):
        return "tick"
    if line.startswith("# scenario "):
        return "header"
    if line.startswith("out s"):
        return "out"
    return re.split(r"[({]", line, maxsplit=1)[0]


def first_difference(a: list[str], b: list[str]) -> int:
    """The index of the first line that differs."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


# ---------------------------------------------------------------- changes in the trace

Edit = Callable[[list[str], random.Random], tuple[list[str], str] | None]


def _calls(lines: list[str]) -> list[int]:
    return [i for i in range(1, len(lines)) if not lines[i].startswith(("out", "#", "rotation", "-- tick"))]


def drop_call(lines: list[str], rng: random.Random) -> tuple[list[str], str]:
    """A call is not made."""
    i = rng.choice(_calls(lines))
    return lines[:i] + lines[i + 1 :], call_name(lines[i])


def repeat_call(lines: list[str], rng: random.Random) -> tuple[list[str], str]:
    """A call is made twice."""
    i = rng.choice(_calls(lines))
    return [*lines[:i], lines[i], *lines[i:]], call_name(lines[i])


def swap_calls(lines: list[str], rng: random.Random) -> tuple[list[str], str]:
    """Two calls in a row change places."""
    places = [i for i in _calls(lines)[:-1] if lines[i] != lines[i + 1] and not lines[i + 1].startswith("out")]
    i = rng.choice(places)
    return [*lines[:i], lines[i + 1], lines[i], *lines[i + 2 :]], ""


def change_number(lines: list[str], rng: random.Random) -> tuple[list[str], str]:
    """One number of a call is one more."""
    number = re.compile(r"(?<![0-9a-zA-Z_])[0-9]+(?![0-9a-zA-Z_])")
    i = rng.choice([i for i in _calls(lines) if number.search(lines[i])])
    found = rng.choice(list(number.finditer(lines[i])))
    line = f"{lines[i][: found.start()]}{int(found[0]) + 1}{lines[i][found.end() :]}"
    return [*lines[:i], line, *lines[i + 1 :]], call_name(lines[i])


def one_block_more(lines: list[str], rng: random.Random) -> tuple[list[str], str]:
    """From some line on every free-block answer is one more."""
    places = [i for i, line in enumerate(lines) if line.startswith("num_free_blocks")]
    i = rng.choice(places)
    after = {k: f"num_free_blocks() -> {int(lines[k].split()[-1]) + 1}" for k in places if k >= i}
    return [after.get(k, line) for k, line in enumerate(lines)], "num_free_blocks"


def one_tick_later(lines: list[str], rng: random.Random) -> tuple[list[str], str]:
    """An empty tick is put in, and all later ones are renumbered."""
    i = rng.choice([i for i, line in enumerate(lines) if line.startswith("-- tick ")])
    tail = [re.sub(r"^-- tick (\d+)", lambda m: f"-- tick {int(m[1]) + 1}", line) for line in lines[i:]]
    return [*lines[: i + 1], lines[i - 1], *tail], ""


def renumber_ticks(lines: list[str], rng: random.Random) -> tuple[list[str], str]:
    """From some tick on the markers count one more."""
    i = rng.choice([i for i, line in enumerate(lines) if line.startswith("-- tick ")])
    tail = [re.sub(r"^-- tick (\d+)", lambda m: f"-- tick {int(m[1]) + 1}", line) for line in lines[i:]]
    return [*lines[:i], *tail], "tick"


def drop_effect(lines: list[str], rng: random.Random) -> tuple[list[str], str] | None:
    """A router effect is left out with its device calls."""
    places = [i for i, line in enumerate(lines) if line.startswith("fx apply")]
    i = rng.choice(places)
    stop = i + 1
    while not lines[stop].startswith(("fx", "num_free", "-- tick", "adapter_id", "alloc", "out")):
        stop += 1
    return lines[:i] + lines[stop:], ""


EDITS: dict[str, Edit] = {
    edit.__name__: edit
    for edit in (
        drop_call,
        repeat_call,
        swap_calls,
        change_number,
        one_block_more,
        one_tick_later,
        renumber_ticks,
        drop_effect,
    )
}


def edited(kind: str, times: int = 2) -> Iterator[Planted]:
    """Traces with one edit of a kind, ``times`` per golden."""
    for name in NAMES:
        rng = random.Random(f"{kind} {name}")
        a = golden(name).splitlines()
        for time in range(times):
            done = EDITS[kind](a, rng)
            if done is None or done[0] == a:
                continue
            b, call = done
            at = first_difference(a, b)
            calls = {call} if call else {call_name(side[at]) for side in (a, b)}
            yield Planted(f"{kind} {name} {time}", _text(a), _text(b), at + 1, frozenset(calls))


# ---------------------------------------------------------------- changes in the scenario


def _device(**keys: Any) -> Callable[[dict[str, Any]], None]:
    return lambda table: table.setdefault("device", {}).update(keys)


def _knob(**keys: Any) -> Callable[[dict[str, Any]], None]:
    return lambda table: table.setdefault("scheduler", {}).update(keys)


def _pool(more: int) -> Callable[[dict[str, Any]], None]:
    def change(table: dict[str, Any]) -> None:
        device = table.setdefault("device", {})
        device["total_blocks"] = device.get("total_blocks", 1000) + more

    return change


def _request(index: int, key: str, value: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def change(table: dict[str, Any]) -> None:
        request = table["request"][index]
        request[key] = value(request.get(key))

    return change


def _cancel(table: dict[str, Any]) -> None:
    for request in table["request"]:
        if request.get("streaming", True):
            request["cancel_at_tick"] = 3
            return


SCENARIOS: dict[str, Callable[[dict[str, Any]], None]] = {
    "another decode is refused": _device(kv_exhaust_at=[0]),
    "a later decode is refused": _device(kv_exhaust_at=[3]),
    "two decodes are refused": _device(kv_exhaust_at=[1, 4]),
    "one block more": _pool(1),
    "two blocks fewer": _pool(-2),
    "smaller blocks": _device(block_size=8),
    "batch of one": _knob(max_batch_size=1),
    "batch of two": _knob(max_batch_size=2),
    "small chunks": _knob(max_prefill_tokens=4),
    "the last request comes one tick later": _request(-1, "arrive_at_tick", lambda tick: (tick or 0) + 1),
    "a longer prompt": _request(0, "prompt_len", lambda length: (length or 5) + 1),
    "a shorter answer": _request(0, "max_tokens", lambda _: 2),
    "another token": _request(-1, "tokens", lambda tokens: [*tokens[:2], 55, *tokens[3:]]),
    "a deadline": _request(0, "deadline_at_tick", lambda _: 2),
    "a cancel": _cancel,
    "other wrong drafts": _request(0, "draft_wrong_every", lambda _: 3),
    "no last request": lambda table: table["request"].pop(),
}


def changed(kind: str) -> Iterator[Planted]:
    """Runs of the goldens' scenarios with one change, beside the runs without."""
    for name in NAMES:
        table = tomllib.loads((GOLDEN / f"{name}.toml").read_text())
        SCENARIOS[kind](table)
        a = golden(name)
        b = run_scenario(scenario_from(table, "changed.toml"), max_ticks=3000).text
        if a != b:
            lines = a.splitlines(), b.splitlines()
            at = first_difference(*lines)
            calls = frozenset(call_name(side[at]) for side in lines if at < len(side))
            yield Planted(f"{kind}: {name}", a, b, at + 1, calls)


def _text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"
