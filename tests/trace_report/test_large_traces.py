"""Traces of 50,000 lines and lines of megabytes against anything: time and report are bounded."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable

import pytest

from metrale.sim.runner import run_scenario
from metrale.sim.scenario import scenario_from
from metrale.trace.align import Comparison, compare
from metrale.trace.report import comparison_document, plain_report
from metrale.trace.report.html import trace_page

from .test_planted_causes import assert_accounted

SECONDS = 12
"""Far above what is measured (tools/bench_diff.py), far below what a quadratic step would take."""


@pytest.fixture(scope="module")
def long_trace() -> list[str]:
    requests = [
        {
            "id": i,
            "prompt_len": 5 + i % 30,
            "tokens": [10 + (i + k) % 40 for k in range(20 + i * 7 % 50)],
            **({"arrive_at_tick": i // 2} if i >= 2 else {}),
        }
        for i in range(1, 300)
    ]
    device = {"total_blocks": 60, "kv_exhaust_at": [50, 51, 200]}
    return run_scenario(scenario_from({"name": "long", "device": device, "request": requests}, "long.toml")).lines


def timed(a: list[str], b: list[str]) -> Comparison:
    left, right = ("\n".join(lines).encode() + b"\n" for lines in (a, b))
    start = time.process_time()
    found = compare(left, right, ("left", "right"))
    assert len(plain_report(found)) < 12_000
    assert time.process_time() - start < SECONDS
    assert len(json.dumps(comparison_document(found))) < 500_000
    assert_accounted(found)
    return found


def one_more(line: str) -> str:
    return re.sub(r"(\d+)(?!.*\d)", lambda found: str(int(found[1]) + 1), line)


AGAINST: dict[str, Callable[[list[str]], list[str]]] = {
    "without line 1": lambda lines: lines[1:],
    "one field on every line": lambda lines: [one_more(line) for line in lines],
    "all lines replaced": lambda lines: [f"line {i}" for i in range(len(lines))],
    "reversed": lambda lines: lines[::-1],
    "shuffled": lambda lines: random.Random(3).sample(lines, len(lines)),
    "cut in a line": lambda lines: [*lines[:30_000], lines[30_000][:10]],
    "nothing": lambda lines: ["x"],
}


@pytest.mark.parametrize("kind", AGAINST)
def test_a_long_trace_against_anything(long_trace: list[str], kind: str) -> None:
    assert len(long_trace) > 50_000
    found = timed(long_trace, AGAINST[kind](long_trace))
    assert found.divergence is not None
    if kind == "without line 1":
        assert (found.differing, found.unexplained, found.divergence.call) == (1, 0, "header")


def test_a_long_trace_against_itself(long_trace: list[str]) -> None:
    assert timed(long_trace, list(long_trace)).equal


def test_twenty_edits(long_trace: list[str]) -> None:
    rng = random.Random(2)
    lines = list(long_trace[:40_000])
    for _ in range(20):
        i = rng.randrange(100, len(lines) - 100)
        lines[i : i + 1] = rng.choice(([], [lines[i], lines[i]], [one_more(lines[i])]))
    found = timed(long_trace[:40_000], lines)
    assert 20 <= found.differing <= 60
    assert found.unread[0].total() == 0


def test_a_tick_more_in_a_long_trace_is_one_cause(long_trace: list[str]) -> None:
    start = next(i for i, line in enumerate(long_trace) if line == "-- tick 40")
    later = [
        re.sub(r"^-- tick (\d+)", lambda found: f"-- tick {int(found[1]) + 1}", line) for line in long_trace[start:]
    ]
    found = timed(long_trace, [*long_trace[: start + 1], long_trace[start - 1], *later])
    assert len(found.causes) == 1
    assert found.unexplained == 0
    assert found.causes[0].why["ticks renumbered"] > 1000


def test_a_line_of_megabytes(long_trace: list[str]) -> None:
    tokens = ", ".join(["10"] * 600_000)
    a = [*long_trace[:1000], f"decode_batch(tokens=[{tokens}], seqs=[], stream=0)", *long_trace[1000:2000]]
    b = [line.replace("[10, 10", "[10, 11", 1) if len(line) > 1000 else line for line in a]
    found = timed(a, b)
    assert found.divergence is not None
    assert (found.divergence.call, found.divergence.argument) == ("decode_batch", "tokens[1]")


def test_the_page_on_a_long_trace(long_trace: list[str]) -> None:
    start = time.process_time()
    page = trace_page("long", "\n".join(long_trace).encode())
    assert time.process_time() - start < 2 * SECONDS
    assert len(page) < 6_000_000
