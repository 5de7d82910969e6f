"""Exploration: every schedule of a small world, each state visited once.

A world is a few requests and knobs. In each of its ticks the environment chooses: who of the requests still to come
arrives, and whether the one fault strikes. Two prefixes of choices that lead the core to the same state with the same
choices left are one node. Each edge, a choice in a node, is one scenario; it is run to its end and its whole trace is
judged. The exploration is closed when every choice of every node has led to a node that was visited.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from metrale.core.driver import drive
from metrale.core.io import Device, Router, SchedIo
from metrale.core.row import Row
from metrale.core.state import State
from metrale.trace.recording import RecordingDevice
from metrale.trace.tracing_router import TracingRouter

from .fuzz.judge import Failure, judge
from .harness import Harness, HarnessError, StandingClock
from .mock import MockDevice
from .runner import (
    BoundedScheduler,
    RunError,
    RunResult,
    device_router,
    mock_config,
    scheduler_config,
    spill_store,
)  # fmt: skip
from .scenario import Scenario, scenario_from

Tables = dict[str, Any]
Choice = tuple[tuple[int, ...], str | None, int]
"""Who arrives (indices), the fault that strikes (None: no fault) and whom it hits."""


TOLD_EVERY = 20
"""Progress is told after so many choices."""


@dataclass(frozen=True, slots=True)
class World:
    """A bounded world: ``ticks`` ticks in which the environment chooses. ``faults`` names what may strike once."""

    name: str
    tables: Tables
    ticks: int = 8
    faults: tuple[str, ...] = ("exhaust", "cancel", "deadline")


@dataclass(slots=True)
class Explored:
    """What an exploration found."""

    world: str
    states: int = 0
    edges: int = 0
    merged: int = 0
    unvisited: int = 0
    failures: list[tuple[Tables, Failure]] = field(default_factory=list)

    @property
    def closed(self) -> bool:
        """Every choice of every state led to a visited state."""
        return self.unvisited == 0 and self.edges == self.states - 1 + self.merged

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "world": self.world,
            "states": self.states,
            "edges": self.edges,
            "merged": self.merged,
            "unvisited": self.unvisited,
            "closed": self.closed,
            "failures": [
                {"scenario": tables, "rule": one.rule, "message": one.message} for tables, one in self.failures
            ],
        }


def _request(id_: int, prompt: int, tokens: int, **more: Any) -> Tables:
    script = [10 * id_ + step for step in range(tokens - 1)]
    return {"id": id_, "prompt_len": prompt, "tokens": [*script, 63], **more}


_THREE = [_request(1, 3, 4), _request(2, 5, 3), _request(3, 2, 3, streaming=False)]
_POOL = {"block_size": 4, "total_blocks": 6}

WORLDS = (
    World("plain", {"device": _POOL, "scheduler": {"max_batch_size": 2}, "request": _THREE}),
    World("chunked", {"device": _POOL, "request": _THREE,
                      "scheduler": {"max_batch_size": 3, "max_prefill_tokens": 2, "max_batch_tokens": 2}}),
    World("spill", {"device": {**_POOL, "held_blocks": 3}, "request": _THREE,
                    "scheduler": {"max_batch_size": 2, "swap_space_gb": 1, "deadline_scope": "all"}}),
    World("drafts", {"device": {**_POOL, "has_proposer": True},
                     "request": [{**one, "draft_wrong_every": 2} for one in _THREE],
                     "scheduler": {"max_batch_size": 3, "use_speculative": True, "num_drafts": 2}}),
    World("ahead", {"device": _POOL, "request": _THREE, "scheduler": {"max_batch_size": 3, "router": "async"}}),
)  # fmt: skip
"""Worlds of up to 3 requests, 6 blocks, 8 ticks and one fault."""


# -- choices as a scenario --------------------------------------------------------------------------------------------


def scenario_of(world: World, choices: tuple[Choice, ...]) -> Tables:
    """The scenario in which the environment chose so; whoever was not chosen to arrive is left out."""
    arrivals: dict[int, int] = {}
    device = dict(world.tables["device"])
    own: dict[int, Tables] = {}
    for tick, (arriving, fault, whom) in enumerate(choices, 1):
        arrivals.update(dict.fromkeys(arriving, tick))
        if fault == "exhaust":
            device["kv_exhaust_at"] = [whom]
        elif fault is not None:
            own[whom] = {f"{fault}_at_tick": tick}
    requests = [
        {**request, "arrive_at_tick": arrivals[index], **own.get(index, {})}
        for index, request in enumerate(world.tables["request"])
        if index in arrivals
    ]
    name = f"{world.name}_" + "_".join(_spelled(choice) for choice in choices)
    return {"name": name, "device": device, "scheduler": world.tables["scheduler"], "request": requests}


def _spelled(choice: Choice) -> str:
    arriving, fault, whom = choice
    return "".join(map(str, arriving)) + (f"{fault[0]}{whom}" if fault else "") or "-"


@dataclass(slots=True)
class Glimpse:
    """The world at one tick's marker: what the core is, and how many decodes the device has seen."""

    state: Hashable
    decodes: int
    live: tuple[int, ...]


def choices_at(world: World, taken: tuple[Choice, ...], seen: Glimpse) -> Iterator[Choice]:
    """All that the environment can do in the next tick. A fault that nobody would notice is not chosen."""
    here = {index for arriving, _, _ in taken for index in arriving}
    absent = [index for index in range(len(world.tables["request"])) if index not in here]
    struck = any(fault for _, fault, _ in taken)
    for count in range(len(absent) + 1):
        for arriving in combinations(absent, count):
            yield arriving, None, 0
            if struck:
                continue
            if "exhaust" in world.faults and seen.live:
                yield arriving, "exhaust", seen.decodes
            for index in seen.live:
                if "deadline" in world.faults:
                    yield arriving, "deadline", index
                if "cancel" in world.faults and world.tables["request"][index].get("streaming", True):
                    yield arriving, "cancel", index


# -- the core's state -------------------------------------------------------------------------------------------------


def _row(row: Row) -> Hashable:
    flag = row.request.cancel
    return (
        row.request.id, row.seq.seq_len, row.seq.slot, row.seq.num_blocks, len(row.outputs), row.remaining,
        row.last_token, tuple(row.drafts), row.immune_until, row.accepted, row.finished, row.in_flight,
        flag is not None and flag.raised, row.request.deadline is not None,
    )  # fmt: skip


def core_state(s: State, device: MockDevice) -> Hashable:
    """Everything that decides what the core does next."""
    return (
        tuple(request.id for request in s.pending),
        tuple(map(_row, s.active)),
        tuple((one.request.id, one.offset, one.seq.slot, one.seq.num_blocks) for one in s.prefilling),
        tuple((_row(one.row), one.num_blocks) for one in s.spilled),
        tuple((_row(one.row), len(one.history)) for one in s.requeued),
        tuple((request.id, request.cancelled, request.deadline is not None) for request in s.pending),
        device.blocks.used, device.blocks.reclaimable, s.flight is not None, s.closed,
    )  # fmt: skip


class Watched(Harness):
    """A harness that lets ``look`` see each tick's marker before the tick's arrivals."""

    look: Callable[[int], None]

    def snapshot(self, tick: int, free_blocks: int) -> None:
        """The marker of ``tick``."""
        self.look(tick)
        super().snapshot(tick, free_blocks)


def run_watched(world: World, scenario: Scenario, at_tick: int) -> tuple[RunResult | None, Glimpse | None]:
    """Run a scenario to its end and look at the core at the marker of ``at_tick`` (None if the run ended before)."""
    harness = Watched(scenario)
    lines: list[str] = []
    mock = MockDevice(mock_config(scenario.device))
    device: Device = RecordingDevice(mock, lines.append)
    stack: Router = TracingRouter(
        device_router(device, scenario.scheduler.router, scenario.scheduler.max_batch_size), lines.append
    )
    harness.write = lines.append
    store = spill_store(scenario) if scenario.scheduler.swap_space_gb > 0 else None
    scheduler = BoundedScheduler(
        SchedIo(stack, harness, StandingClock(), harness, store), scheduler_config(scenario.scheduler)
    )
    scheduler.max_ticks = 500
    seen: list[Glimpse] = []
    indices = {request["id"]: index for index, request in enumerate(world.tables["request"])}

    def look(tick: int) -> None:
        if tick == at_tick:
            waiting = [client.request.id for client in harness.clients if not client.sink.ended]
            live = tuple(sorted(indices[id_] for id_ in waiting if id_ in indices))
            decodes = mock.config.faults.counts.get("decode_batch", 0)
            seen.append(Glimpse(core_state(scheduler.state, mock), decodes, live))

    harness.look = look
    try:
        scheduler.start()
        drive(scheduler)
    finally:
        if store is not None:
            store.close()
            store.directory.parent.rmdir()
    result = RunResult(scenario.name, lines, harness.out_lines(), scheduler.state.tick)
    return result, seen[0] if seen else None


# -- the search -------------------------------------------------------------------------------------------------------


def explore(world: World, progress: Callable[[Explored], None] | None = None, most_failures: int = 5) -> Explored:
    """Visit every state of a world, breadth first, and judge the trace of every edge."""
    found = Explored(world.name, states=1)
    visited: set[Hashable] = set()
    frontier: list[tuple[tuple[Choice, ...], Glimpse]] = [((), Glimpse("start", 0, ()))]
    for tick in range(1, world.ticks + 1):
        following: list[tuple[tuple[Choice, ...], Glimpse]] = []
        for taken, seen in frontier:
            for choice in choices_at(world, taken, seen):
                path = (*taken, choice)
                found.edges += 1
                if progress is not None and found.edges % TOLD_EVERY == 0:
                    progress(found)
                glimpse = _edge(world, path, tick + 1, found)
                key = _key(world, path, tick, glimpse)
                if key in visited:
                    found.merged += 1
                    continue
                visited.add(key)
                found.states += 1
                if glimpse is not None:
                    following.append((path, glimpse))
            if len(found.failures) >= most_failures:
                found.unvisited = len(following)
                return found
        frontier = following
    return found


def _edge(world: World, path: tuple[Choice, ...], at_tick: int, found: Explored) -> Glimpse | None:
    """Run one choice to its end, judge its trace, and say what the world is like at the next marker."""
    # An absent request keeps the run alive up to the next choice: it arrives late, alone, and is served.
    tables = scenario_of(world, path)
    latecomer = {"id": 9, "prompt_len": 1, "tokens": [63], "arrive_at_tick": at_tick}
    scenario = scenario_from({**tables, "request": [*tables["request"], latecomer]})
    glimpse: Glimpse | None = None

    def run(scenario: Scenario, **_: Any) -> RunResult:
        nonlocal glimpse
        try:
            result, glimpse = run_watched(world, scenario, at_tick)
        except HarnessError as error:
            raise RunError(str(error)) from error
        assert result is not None
        return result

    judged = judge(scenario, run)
    found.failures += [(tables, failure) for failure in judged.failures[:1]]
    return glimpse


def _key(world: World, path: tuple[Choice, ...], tick: int, glimpse: Glimpse | None) -> Hashable:
    here = frozenset(index for arriving, _, _ in path for index in arriving)
    fault = next(((name, whom) for _, name, whom in path if name), None)
    pending = None
    if fault is not None and glimpse is not None and fault[0] == "exhaust" and fault[1] >= glimpse.decodes:
        pending = fault[1] - glimpse.decodes
    state = None if glimpse is None else glimpse.state
    return tick, here, fault is not None, pending, state
