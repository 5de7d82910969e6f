"""How fast are the readers? Lines a second over a long log made of the lines of real traces.

    python tools/bench_lint.py [--lines 1000000] [--runs 3] [TRACE ...]

Without files it takes the goldens. Medians of the runs; one process, one core.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from io import BytesIO
from itertools import cycle, islice
from pathlib import Path

from metrale.trace import lint_grammar, parse_line
from metrale.trace.fast import fast_reader

GOLDEN = Path(__file__).parents[1] / "golden"
LARK_LINES = 20_000


def rate(work: Callable[[], object], lines: int, runs: int) -> float:
    """Median lines a second of ``work``, which handles ``lines`` lines."""
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return lines / statistics.median(seconds)


def exhaust(read: Callable[[str], object], lines: Iterable[str]) -> None:
    for line in lines:
        read(line)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("traces", nargs="*", type=Path, metavar="TRACE")
    options.add_argument("--lines", type=int, default=1_000_000)
    options.add_argument("--runs", type=int, default=3)
    chosen = options.parse_args()
    paths = chosen.traces or sorted(GOLDEN.glob("*.trace"))
    real = [line for path in paths for line in path.read_bytes().decode().split("\n")[:-1]]
    if not real:
        options.error(f"no trace given and none in {GOLDEN}")
    log = list(islice(cycle(real), chosen.lines))
    data = "".join(f"{line}\n" for line in log).encode()
    reader = fast_reader()
    parse_line(real[0])

    few = log[:LARK_LINES]
    rates = {
        "Lark": rate(lambda: exhaust(parse_line, few), len(few), chosen.runs),
        "fast reader, verdict only": rate(lambda: exhaust(reader.kind, log), len(log), chosen.runs),
        "fast reader, records": rate(lambda: exhaust(reader.read, log), len(log), chosen.runs),
        "full lint, bytes to records": rate(lambda: lint_grammar(BytesIO(data), fragment=True), len(log), chosen.runs),
    }
    print(f"{len(log)} lines, {len(data) / 1e6:.1f} MB, from {len(real)} lines of {len(paths)} traces")
    print(f"Python {platform.python_version()}, {platform.machine()}, median of {chosen.runs} runs")
    for name, value in rates.items():
        print(f"{name:30} {value:12,.0f} lines/s {value / rates['Lark']:8.1f} x Lark")


if __name__ == "__main__":
    main()
