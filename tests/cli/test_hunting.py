"""``metrale fuzz``, ``shrink``, ``explore`` and ``mutants`` as a user has them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from metrale.sim.fuzz.draw import draw_scenario
from metrale.sim.fuzz.toml_text import scenario_toml

from .conftest import GOLDEN, Run, one_error

BROKEN = """
import sys
from metrale.sim.mutants.plant import planted
from metrale.sim.mutants.table import MUTANTS
from metrale.cli.main import run_cli
mutant = next(one for one in MUTANTS if one.name == "leaked-block")
with planted(mutant):
    sys.exit(run_cli(sys.argv[1:]))
"""


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """The program with a planted fault."""
    path = tmp_path / "broken.py"
    path.write_text(BROKEN)
    return path


def run_broken(metrale: Run, broken: Path, *arguments: object):  # type: ignore[no-untyped-def]
    import subprocess
    import sys

    command = [sys.executable, str(broken), *map(str, arguments)]
    return subprocess.run(command, cwd=broken.parent, capture_output=True, encoding="utf-8", timeout=120, check=False)


def test_fuzz_finds_nothing(metrale: Run) -> None:
    done = metrale("fuzz", "--seeds", "0..19")
    assert done.returncode == 0
    assert done.stdout.startswith("20 runs, ")
    assert "never seen" in done.stdout
    assert done.stderr.splitlines()[-1].startswith("20 seeds, none fails, ")


def test_fuzz_stops_after_its_seconds(metrale: Run) -> None:
    done = metrale("fuzz", "--seconds", "0.2")
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1].startswith("50 seeds, none fails, ")


def test_fuzz_shows_saves_and_replays_a_failing_seed(metrale: Run, broken: Path) -> None:
    done = run_broken(metrale, broken, "fuzz", "--seeds", "0..4", "--save", "found")
    assert done.returncode == 1
    first, second = done.stdout.splitlines()[:2]
    assert first.startswith("seed 0 (lane ")
    assert first.endswith("[blocks]")
    assert second == "  replay: metrale fuzz --seeds 0..0"
    assert done.stderr.splitlines()[-2] == "next: metrale shrink found/fuzz_0.toml"
    assert done.stderr.splitlines()[-1].startswith("5 seeds, ")
    assert run_broken(metrale, broken, "fuzz", "--seeds", "0").returncode == 1
    assert metrale("fuzz", "--seeds", "0").returncode == 0
    small = run_broken(metrale, broken, "shrink", "found/fuzz_0.toml", "-o", "lost_block.toml")
    assert small.returncode == 1
    assert small.stderr.splitlines()[-1].startswith("lost_block.toml: 1 request, ")
    assert (broken.parent / "test_lost_block.py").is_file()
    assert metrale("run", "lost_block.toml").returncode == 0
    assert metrale("shrink", "lost_block.toml").stderr == "lost_block.toml: breaks no invariant and no relation\n"


def test_fuzz_as_json(metrale: Run, broken: Path) -> None:
    found = json.loads(run_broken(metrale, broken, "fuzz", "--seeds", "0..1", "--json").stdout)
    assert found["seeds"] == 2
    assert found["failing"][0]["failures"][0]["rule"] == "blocks"
    assert found["failing"][0]["scenario"] == draw_scenario(0)
    assert found["coverage"]["runs"] == 2


@pytest.mark.parametrize("seeds", ["9..1", "x", "1..", "-3"])
def test_fuzz_with_a_range_that_is_none(metrale: Run, seeds: str) -> None:
    done = metrale("fuzz", "--seeds", seeds)
    assert done.returncode == 2
    assert "--seeds" in done.stderr


def test_shrink_of_what_is_no_scenario(metrale: Run, tmp_path: Path) -> None:
    assert "no such file" in one_error(metrale("shrink", "nowhere.toml").stderr)
    (tmp_path / "bad.toml").write_text("name = 1\n")
    assert "must be text in quotes" in one_error(metrale("shrink", "bad.toml").stderr)


def test_shrink_of_a_good_scenario(metrale: Run) -> None:
    done = metrale("shrink", GOLDEN / "preempt_requeue.toml")
    assert done.returncode == 0
    assert done.stdout == ""


def test_a_saved_scenario_runs(metrale: Run, tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(scenario_toml(draw_scenario(5)))
    assert metrale("run", "one.toml").returncode == 0


@pytest.mark.parametrize("command", [("fuzz", "--seeds", "0..999999"), ("explore",)])
def test_a_folder_that_cannot_be_made_is_told_before_the_work(metrale: Run, tmp_path: Path, command: tuple) -> None:
    """The first command alone would take an hour."""
    (tmp_path / "file").touch()
    done = metrale(*command, "--save", "file/found")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == ["Error: file/found: cannot be made: Not a directory"]


def test_explore_one_world(metrale: Run) -> None:
    done = metrale("explore", "--world", "plain", "--json")
    assert done.returncode == 0
    (world,) = json.loads(done.stdout)["worlds"]
    assert world["closed"] is True
    assert world["states"] > 300
    assert done.stderr.splitlines()[-1].endswith("closed, no schedule breaks a rule")


def test_mutants_of_one_fault(metrale: Run) -> None:
    done = metrale("mutants", "--only", "double-release", "--no-shrink", "--golden", GOLDEN)
    assert done.returncode == 0
    assert done.stdout.splitlines()[2].startswith("| `double-release` |")
    assert done.stderr.splitlines()[-1].startswith("1 of 1 planted faults found, ")


def test_mutants_that_are_not_found(metrale: Run) -> None:
    done = metrale("mutants", "--only", "spill-smallest-row", "--no-shrink", "--seconds", "0.1", "--golden", "nowhere")
    assert done.returncode == 1
    assert "next: metrale mutants --only spill-smallest-row" in done.stderr


@pytest.mark.parametrize("command", ["fuzz", "shrink", "explore", "mutants"])
def test_help_has_an_example(metrale: Run, command: str) -> None:
    done = metrale(command, "--help")
    assert done.returncode == 0
    assert f"Example: metrale {command}" in done.stdout
