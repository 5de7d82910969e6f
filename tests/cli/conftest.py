"""The program as a user has it: a process with its exit status and both streams."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "golden"

Run = Callable[..., subprocess.CompletedProcess[str]]


def environment(**changes: str) -> dict[str, str]:
    """The caller's environment without what the program reads, plus ``changes``."""
    kept = {key: value for key, value in os.environ.items() if key not in ("CI", "METRALE_DEBUG", "PYTHONHASHSEED")}
    return {**kept, **changes}


@pytest.fixture
def metrale(tmp_path: Path) -> Run:
    """``metrale(*arguments, python=[...], cwd=..., CI="1", ...)`` in ``tmp_path``."""

    def run(
        *arguments: str | Path, python: tuple[str, ...] = (), cwd: Path = tmp_path, **env: str
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *python, "-m", "metrale", *map(str, arguments)]
        return subprocess.run(
            command, cwd=cwd, env=environment(**env), capture_output=True, encoding="utf-8", timeout=60, check=False
        )

    return run


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """``inside(*arguments)``: the same program within this process, for long lists of bad input."""
    from metrale.cli.main import run_cli

    for name in ("CI", "METRALE_DEBUG"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        status = run_cli([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return status, out, err

    return run


SCENARIO = """name = "small"

[[request]]
id = 1
prompt_len = 5
tokens = [10, 11, 63]

[[request]]
id = 2
prompt_len = 5
tokens = [20, 63]
"""


@pytest.fixture
def pair(tmp_path: Path, inside: Callable[..., tuple[int, str, str]]) -> Path:
    """A folder ``suite`` with one scenario and its golden; returns the scenario's path."""
    suite = tmp_path / "suite"
    suite.mkdir()
    scenario = suite / "small.toml"
    scenario.write_text(SCENARIO)
    assert inside("run", scenario, "-o", suite / "small.trace")[0] == 0
    return scenario


def one_error(err: str) -> str:
    """The single error line of ``err``, which holds nothing else."""
    assert "Traceback" not in err
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("Error: ")
    return lines[0].removeprefix("Error: ")
