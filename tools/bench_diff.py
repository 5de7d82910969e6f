"""How long a comparison takes: ``python tools/bench_diff.py [LINES]`` (default 200,000 and, with edits, 50,000).

The traces are real runs of a made-up scenario; each case gives CPU seconds, the peak memory of the process so far, and
what was found.
"""

from __future__ import annotations

import random
import re
import resource
import sys
import time
from collections.abc import Iterator

from metrale.sim.runner import run_scenario
from metrale.sim.scenario import scenario_from
from metrale.trace.align import compare

EDITED = 50_000
EDITS = 20


def long_trace(lines: int) -> list[str]:
    """A run of at least so many lines: requests keep coming, some decodes are refused."""
    requests = [
        {
            "id": i,
            "prompt_len": 5 + i % 30,
            "tokens": [10 + (i + k) % 40 for k in range(20 + i * 7 % 50)],
            **({"arrive_at_tick": i // 2} if i >= 2 else {}),
        }
        for i in range(1, lines // 150 + 10)
    ]
    device = {"total_blocks": 60, "kv_exhaust_at": [50, 51, 200]}
    return run_scenario(scenario_from({"name": "long", "device": device, "request": requests}, "long.toml")).lines


def one_more(line: str) -> str:
    """The line with its last number one higher."""
    return re.sub(r"(\d+)(?!.*\d)", lambda found: str(int(found[1]) + 1), line)


def edited(lines: list[str]) -> list[str]:
    """Twenty lines dropped, repeated or changed."""
    rng = random.Random(2)
    changed = list(lines)
    for _ in range(EDITS):
        i = rng.randrange(100, len(changed) - 100)
        changed[i : i + 1] = rng.choice(([], [changed[i], changed[i]], [one_more(changed[i])]))
    return changed


def cases(lines: list[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """A long trace against very different ones, and edits in a shorter trace."""
    short = lines[:EDITED]
    yield f"{len(short)} lines, {EDITS} edits", short, edited(short)
    later = [re.sub(r"^-- tick (\d+)", lambda found: f"-- tick {int(found[1]) + 1}", line) for line in short[5000:]]
    yield f"{len(short)} lines, ticks renumbered", short, [*short[:5000], *later]
    yield "against itself", lines, list(lines)
    yield "without line 1", lines, lines[1:]
    yield "one field on every line", lines, [one_more(line) for line in lines]
    yield "all lines replaced", lines, [f"line {i}" for i in range(len(lines))]
    yield "reversed", lines, lines[::-1]
    yield "shuffled", lines, random.Random(3).sample(lines, len(lines))
    yield "cut in a line", lines, [*lines[: len(lines) // 2], lines[len(lines) // 2][:10]]
    tokens = ", ".join(["10"] * 1_300_000)
    wide = [*lines[:1000], f"decode_batch(tokens=[{tokens}], seqs=[], stream=0)", *lines[1000:]]
    yield (
        "a line of 5 MB",
        wide,
        [line.replace("[10, 10", "[10, 11", 1) if len(line) > 10_000 else line for line in wide],
    )
    clients = [f"out s{i}: T1 Done(stop, n=2, think=0, cached=0, acc=0, guard=None)" for i in range(50_000)]
    yield (
        "50,000 clients",
        ["# scenario x", *clients],
        ["# scenario x", *(line.replace("T1", "T2") for line in clients)],
    )


def main() -> None:
    """Print one line per case."""
    lines = long_trace(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000)
    print(f"{len(lines)} lines, {sum(map(len, lines)) / 1e6:.1f} MB")
    start = time.process_time()
    compare(b"-- tick 1\n", b"-- tick 2\n")
    print(f"loading the grammar, once a process: {time.process_time() - start:.2f} s\n")
    for name, a, b in cases(lines):
        left, right = ("\n".join(side).encode() + b"\n" for side in (a, b))
        start = time.process_time()
        found = compare(left, right)
        seconds = time.process_time() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        counted = sum(count.total() for count in found.unread)
        print(
            f"{name:32} {seconds:6.2f} s  {peak:5} MB  {found.differing:7} lines differ, {len(found.causes):3} causes,"
            f" {counted} only counted"
        )


if __name__ == "__main__":
    main()
