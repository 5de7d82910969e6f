"""No invariant refuses a good log: all goldens, and runs of every lane with and without faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from metrale.sim.fuzz.draw import draw_scenario
from metrale.sim.invariants import check_lines, check_text
from metrale.sim.runner import run_scenario
from metrale.sim.scenario import load_scenario, scenario_from
from metrale.trace import read_trace

GOLDEN = Path(__file__).resolve().parents[3] / "golden"
TRACES = sorted(GOLDEN.glob("*.trace"))


def test_there_are_goldens() -> None:
    assert len(TRACES) > 50


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_goldens_keep_every_invariant(path: Path) -> None:
    lines = read_trace(path).lines
    assert [str(found) for found in check_lines(lines)] == []
    scenario = path.with_suffix(".toml")
    if scenario.is_file():
        assert [str(found) for found in check_lines(lines, load_scenario(scenario))] == []


@pytest.mark.parametrize("first", range(0, 120, 30))
def test_drawn_runs_keep_every_invariant_by_the_log_alone(first: int) -> None:
    for seed in range(first, first + 30):
        result = run_scenario(scenario_from(draw_scenario(seed)), max_ticks=20_000)
        assert [str(found) for found in check_text(result.text)] == [], f"seed {seed}"
