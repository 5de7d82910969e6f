"""Shrinking: the smallest scenario that fails in the same way.

Greedy passes over the scenario's tables, repeated until none helps: drop requests, drop keys, shorten scripts and
prompts, drop faults, lower numbers. A smaller scenario counts only if it fails with the same rule and the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .fuzz.judge import Failure, judge
from .fuzz.prng import Stream
from .fuzz.relations import RELATIONS, relate, same_twice
from .runner import RunResult, run_scenario
from .scenario import ScenarioError, scenario_from

Tables = dict[str, Any]
MAX_ATTEMPTS = 4000
KEEP = ("id", "prompt_len", "prompt", "tokens")


@dataclass(slots=True)
class Shrunk:
    """The smallest scenario found, the failure that it shows, and how many scenarios were tried."""

    tables: Tables
    failure: Failure
    attempts: int
    ticks: int

    @property
    def size(self) -> tuple[int, int]:
        """(requests, ticks)."""
        return len(self.tables["request"]), self.ticks


def failures_of(tables: Tables, seed: int = 0, run: Callable[..., RunResult] = run_scenario) -> list[Failure]:
    """All that is wrong with a scenario: its own failures, else those of every relation. Raises ScenarioError."""
    scenario = scenario_from(tables)
    judged = judge(scenario, run)
    if judged.failures or judged.result is None:
        return judged.failures
    draw = Stream(seed, "relation")
    full = {"device": {}, "scheduler": {}, **tables}
    found = [one for name in RELATIONS for one in relate(full, name, draw.sub(name), run, judged.result)]
    return found or same_twice(scenario, judged.result, run)


def shrink(
    tables: Tables, failure: Failure | None = None, seed: int = 0, run: Callable[..., RunResult] = run_scenario
) -> Shrunk | None:
    """The smallest scenario that fails like ``failure`` (default: like the scenario's first); None if it does not fail.

    Raises ScenarioError.
    """
    failure = failure or next(iter(failures_of(tables, seed, run)), None)
    if failure is None:
        return None
    kind, attempts = failure.kind, 0
    relation = failure.rule.removeprefix("relation ") if failure.rule.startswith("relation ") else None

    def fails(candidate: Tables) -> Failure | None:
        try:
            return next((one for one in _wanted(candidate, relation, seed, run) if one.kind == kind), None)
        except ScenarioError:
            return None

    shown = fails(tables)
    if shown is None:
        return None
    best, progress = {"device": {}, "scheduler": {}, **tables}, True
    while progress and attempts < MAX_ATTEMPTS:
        progress = False
        for candidate in smaller(best):
            attempts += 1
            found = fails(candidate)
            if found is not None:
                best, shown, progress = candidate, found, True
                break
            if attempts >= MAX_ATTEMPTS:
                break
    judged = judge(scenario_from(best), run)
    return Shrunk(best, shown, attempts, judged.result.ticks if judged.result is not None else 0)


def _wanted(tables: Tables, relation: str | None, seed: int, run: Callable[..., RunResult]) -> list[Failure]:
    """The failures of the wanted sort only: a relation needs runs that a broken invariant does not."""
    if relation is not None:
        return relate(tables, relation, Stream(seed, "relation").sub(relation), run)
    judged = judge(scenario_from(tables), run)
    if judged.failures or judged.result is None:
        return judged.failures
    return same_twice(scenario_from(tables), judged.result, run)


# -- smaller scenarios ------------------------------------------------------------------------------------------------


def smaller(tables: Tables) -> Iterator[Tables]:
    """Scenarios that are smaller than this one, the boldest steps first."""
    requests = tables["request"]
    for size in (len(requests) // 2, 1):
        for at in range(0, len(requests), max(1, size)):
            left = requests[:at] + requests[at + max(1, size) :]
            if size and left:
                yield {**tables, "request": left}
    for table in ("device", "scheduler"):
        yield from _dropped_keys(tables, table)
    for index, request in enumerate(requests):
        for smaller_request in _smaller_request(request):
            yield {**tables, "request": [*requests[:index], smaller_request, *requests[index + 1 :]]}
    for table in ("device", "scheduler"):
        for key, value in tables[table].items():
            for less in _less(value):
                yield {**tables, table: {**tables[table], key: less}}


def _dropped_keys(tables: Tables, table: str) -> Iterator[Tables]:
    for key in tables[table]:
        yield {**tables, table: {name: value for name, value in tables[table].items() if name != key}}


def _smaller_request(request: Tables) -> Iterator[Tables]:
    for key in request:
        if key not in KEEP:
            yield {name: value for name, value in request.items() if name != key}
    tokens = request["tokens"]
    for size in (len(tokens) // 2, len(tokens) // 4, 1):
        for at in range(0, len(tokens) - size + 1, max(1, size)) if size and len(tokens) > size else ():
            yield {**request, "tokens": tokens[:at] + tokens[at + size :]}
    for key, value in request.items():
        if key not in ("tokens", "id", "prompt"):
            for less in _less(value):
                yield {**request, key: less}


def _less(value: Any) -> Iterator[Any]:
    """Smaller values of one kind, the smallest first."""
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        yield from sorted({0, 1, value // 2, value - 1} - {value} - {-1}) if value > 0 else ()
    elif isinstance(value, list):
        for at in range(len(value)):
            yield value[:at] + value[at + 1 :]
        for at, item in enumerate(value):
            for less in _less(item):
                yield [*value[:at], less, *value[at + 1 :]]
    elif isinstance(value, dict):
        for key in value:
            yield {name: item for name, item in value.items() if name != key}
        for key, item in value.items():
            for less in _less(item):
                yield {**value, key: less}


# -- what is left behind ----------------------------------------------------------------------------------------------

PYTEST = '''"""{about}"""

from pathlib import Path

from metrale.sim.fuzz.judge import judge
from metrale.sim.scenario import load_scenario

SCENARIO = Path(__file__).with_name("{file}")


def test_{name}():
    judged = judge(load_scenario(SCENARIO))
    assert [str(failure) for failure in judged.failures] == []
'''


def pytest_text(name: str, about: str, file: str) -> str:
    """A pytest that holds the scenario: it fails as long as the fault is there."""
    return PYTEST.format(
        name="".join(c if c.isalnum() else "_" for c in name), about=about.replace('"', "'"), file=file
    )
