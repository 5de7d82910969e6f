"""How long all invariants take over a long log, and how much memory: ``python tools/bench_invariants.py [LINES]``.

Goal: a million lines, read and checked, in under 15 s on one core, in bounded memory.
"""

from __future__ import annotations

import io
import sys
import time
import tracemalloc

from metrale.sim.invariants import check_lines
from metrale.sim.runner import run_scenario
from metrale.sim.scenario import scenario_from
from metrale.trace.reader import TraceScan

GOAL_SECONDS = 15.0


def long_log(lines: int) -> bytes:
    """A plain run with arrivals all along, some four rows wide."""
    requests = [
        {
            "id": number,
            "prompt_len": 5 + number % 40,
            "tokens": [*(10 + step % 50 for step in range(300 + number % 90)), 63],
            "arrive_at_tick": 1 + number * 80,
        }
        for number in range(1, max(3, lines // 1220))
    ]
    device = {"vocab": 128}
    return run_scenario(scenario_from({"name": "long", "device": device, "request": requests})).text.encode()


def main() -> int:
    """Print one line; exit status 1 if the goal is missed."""
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    data = long_log(wanted)
    count = data.count(b"\n")
    started = time.process_time()
    for _ in TraceScan(io.BytesIO(data)):
        pass
    read = time.process_time() - started
    started = time.process_time()
    violations = check_lines(TraceScan(io.BytesIO(data)))
    both = time.process_time() - started
    tracemalloc.start()
    check_lines(TraceScan(io.BytesIO(data[: data.rindex(b"\n", 0, len(data) // 4) + 1])))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    per_million = both / count * 1e6
    print(
        f"{count} lines: read {read:.1f} s, read and checked {both:.1f} s ({per_million:.1f} s a million), "
        f"{len(violations)} violations, {peak / 2**20:.1f} MiB at its peak for the first quarter"
    )
    return int(per_million > GOAL_SECONDS or bool(violations))


if __name__ == "__main__":
    sys.exit(main())
