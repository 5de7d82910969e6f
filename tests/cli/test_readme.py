"""The README tells the truth: its tour runs as printed, its tables name every key and command, its files exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from metrale.cli.main import COMMANDS
from metrale.sim.scenario import DeviceTable, RequestTable, SchedulerTable

from .conftest import ROOT, environment

README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


def steps() -> list[tuple[str, str]]:
    """Every command of the tour, with the output printed below it."""
    found: list[tuple[str, str]] = []
    for block in re.findall(r"```console\n(.*?)```", README, re.S):
        for piece in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, output = piece.partition("\n")
            found.append((command, output))
    return found


def run(command: str, folder: Path) -> str:
    """What a terminal shows: standard output, then the summary on standard error."""
    if command.startswith("metrale "):
        arguments = [sys.executable, "-m", *shlex.split(command)]
    else:
        arguments = ["bash", "-c", command]
    done = subprocess.run(
        arguments, cwd=folder, env=environment(COLUMNS="80"), capture_output=True, encoding="utf-8", check=False
    )
    return done.stdout + done.stderr


def test_the_tour_runs_as_printed(tmp_path: Path) -> None:
    scenario = re.search(r"```toml\n# kv_dry.toml\n(.*?)```", README, re.S)
    assert scenario is not None
    (tmp_path / "kv_dry.toml").write_text(scenario[1])
    assert len(steps()) == 8
    for command, printed in steps():
        pattern = re.escape(printed).replace(re.escape("...\n"), r"(?:.*\n)*?")
        shown = run(command, tmp_path)
        assert re.fullmatch(pattern, shown), f"$ {command}\n{shown}"


@pytest.mark.parametrize(
    ("heading", "model"),
    [("`[[request]]`", RequestTable), ("`[scheduler]`", SchedulerTable), ("`[device]`", DeviceTable)],
)
def test_tables_name_every_key_with_its_default(heading: str, model: type) -> None:
    section = README.split(f"### {heading}\n", 1)[1].split("\n#", 1)[0]
    rows = dict(re.findall(r"^\| `(\w+)` \|([^|]*)\|", section, re.M))
    assert set(rows) == set(model.model_fields)
    for key, written in rows.items():
        default = model.model_fields[key].default
        if model.model_fields[key].is_required() or default is None:
            continue
        spelt = {True: "true", False: "false"}.get(default) if isinstance(default, bool) else None
        if spelt is None:
            spelt = f'"{default}"' if isinstance(default, str) else str(default)
        assert written.strip("` ") == spelt, key


def test_every_command_is_in_the_table() -> None:
    assert set(re.findall(r"^\| `metrale (\w+)[ `]", README, re.M)) == set(COMMANDS)


def test_the_page_on_architecture_names_files_that_exist() -> None:
    named = set(re.findall(r"`((?:core|trace|sim|cli|golden)/[\w/.]*)`", ARCHITECTURE))
    assert len(named) > 30
    for path in named:
        home = ROOT if path.startswith("golden") else ROOT / "metrale"
        assert "NAME" in path or (home / path).exists(), path


def test_the_demonstration_works() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "demo.py"], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "  -     61  cache_sequence(s1@0:len=6)\n  +     61  cache_sequence(s3@2:len=6)\n" in done.stdout
