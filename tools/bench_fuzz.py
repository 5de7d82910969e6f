"""How many scenarios a second a hunt judges on one core: ``python tools/bench_fuzz.py [SEEDS]``.

Goal: 60 a second at a mean of 100 ticks, all invariants on. Two figures: scenarios run, logged, parsed and checked;
and seeds of ``metrale fuzz``, which compare each scenario with a relative as well.
"""

from __future__ import annotations

import sys
import time

from metrale.sim.fuzz.coverage import Coverage
from metrale.sim.fuzz.draw import draw_scenario
from metrale.sim.fuzz.hunt import hunt
from metrale.sim.fuzz.judge import judge
from metrale.sim.scenario import Scenario, scenario_from

GOAL = 60.0
MEAN_TICKS = 100


def long_enough(count: int) -> list[Scenario]:
    """Drawn scenarios, the short ones left out until the mean is at least the goal's."""
    chosen: list[Scenario] = []
    seed = total = 0
    while len(chosen) < count:
        scenario = scenario_from(draw_scenario(seed))
        result = judge(scenario).result
        seed += 1
        if result is not None and (result.ticks >= MEAN_TICKS or total >= MEAN_TICKS * (len(chosen) + 1)):
            chosen.append(scenario)
            total += result.ticks
    return chosen


def main() -> int:
    """Print two lines; exit status 1 if the goal is missed."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    scenarios = long_enough(count)
    started = time.process_time()
    ticks = lines = 0
    for scenario in scenarios:
        judged = judge(scenario)
        assert judged.result is not None
        assert not judged.failures, judged.failures
        ticks += judged.result.ticks
        lines += len(judged.records)
    seconds = time.process_time() - started
    rate = count / seconds
    print(f"{rate:.0f} scenarios/s, invariants on, mean {ticks / count:.0f} ticks and {lines / count:.0f} lines")
    coverage = Coverage()
    started = time.process_time()
    for _ in hunt(range(count), coverage):
        pass
    seconds = time.process_time() - started
    print(f"{count / seconds:.0f} seeds/s, relations on, mean {coverage.ticks / coverage.runs:.0f} ticks")
    return int(rate < GOAL)


if __name__ == "__main__":
    sys.exit(main())
