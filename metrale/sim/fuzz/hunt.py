"""The hot loop: seeds in, failures and coverage out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

from metrale.sim.runner import RunResult, run_scenario
from metrale.sim.scenario import Scenario, scenario_from

from .coverage import Coverage
from .draw import draw_scenario
from .judge import Failure, judge
from .prng import Stream
from .relations import RELATIONS, relate, same_twice

TWICE_EVERY = 16
BATCH = 50


@dataclass(slots=True)
class SeedReport:
    """What one seed gave."""

    seed: int
    tables: dict[str, Any]
    failures: list[Failure] = field(default_factory=list)
    relation: str | None = None

    @property
    def replay(self) -> str:
        """The command that shows this seed again."""
        return f"metrale fuzz --seeds {self.seed}..{self.seed}"


def try_seed(seed: int, coverage: Coverage | None = None, run: Callable[..., RunResult] = run_scenario) -> SeedReport:
    """Draw, run and judge the scenario of a seed, then one relation of its own choice."""
    tables = draw_scenario(seed)
    report = SeedReport(seed, tables)
    scenario: Scenario = scenario_from(tables, f"seed {seed}")
    judged = judge(scenario, run)
    report.failures = judged.failures
    if coverage is not None:
        coverage.see(tables["about"], judged.records, judged.check, judged.result.ticks if judged.result else 0)
    if report.failures or judged.result is None:
        return report
    draw = Stream(seed, "relation")
    report.relation = draw.pick(tuple(RELATIONS))
    report.failures = relate(tables, report.relation, draw.sub(report.relation), run, judged.result)
    if not report.failures and draw.one_in(TWICE_EVERY):
        report.failures = same_twice(scenario, judged.result, run)
    return report


def hunt(seeds: Iterable[int], coverage: Coverage) -> Iterator[SeedReport]:
    """Try seeds one after the other."""
    for seed in seeds:
        yield try_seed(seed, coverage)


def _batch(seeds: range) -> tuple[Coverage, list[SeedReport]]:
    coverage = Coverage()
    return coverage, [report for report in hunt(seeds, coverage) if report.failures]


def hunt_in_parallel(
    first: int, last: int | None, jobs: int, seconds: float | None, coverage: Coverage
) -> Iterator[tuple[int, list[SeedReport]]]:
    """Batches of seeds from ``first`` to ``last`` (None: no end) until the time is over: (tried, failing ones)."""
    started = time.monotonic()
    pool = get_context("fork").Pool(jobs) if jobs > 1 else None
    try:
        for found, failing, count in _batches(pool, first, last, jobs):
            coverage.add(found)
            yield count, failing
            if seconds is not None and time.monotonic() - started >= seconds:
                return
    finally:
        if pool is not None:
            pool.terminate()
            pool.join()


def _batches(pool: Any, first: int, last: int | None, jobs: int) -> Iterator[tuple[Coverage, list[SeedReport], int]]:
    def ranges() -> Iterator[range]:
        at = first
        while last is None or at <= last:
            stop = at + BATCH if last is None else min(at + BATCH, last + 1)
            yield range(at, stop)
            at = stop

    if pool is None:
        for seeds in ranges():
            yield (*_batch(seeds), len(seeds))
        return
    waiting: list[tuple[range, Any]] = []
    for seeds in ranges():
        waiting.append((seeds, pool.apply_async(_batch, (seeds,))))
        if len(waiting) >= 2 * jobs:
            done, result = waiting.pop(0)
            yield (*result.get(), len(done))
    for done, result in waiting:
        yield (*result.get(), len(done))
