"""The pytest plugin: scenarios with a trace beside them are tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import SCENARIO, environment


@pytest.fixture
def folder(tmp_path: Path, inside) -> Path:
    """A project with three scenarios in ``cases``: two with a trace, one without."""
    cases = tmp_path / "cases"
    cases.mkdir()
    for name in ("alpha", "beta", "bare"):
        scenario = cases / f"{name}.toml"
        scenario.write_text(SCENARIO.replace('"small"', f'"{name}"'))
        if name != "bare":
            assert inside("run", scenario, "-o", cases / f"{name}.trace")[0] == 0
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def run(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """pytest with this plugin and xdist alone."""
    plugins = ["-p", "metrale.pytest_plugin", "-p", "xdist.plugin", "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "-q", *arguments],
        cwd=folder,
        env=environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", **env),
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


def damage(folder: Path, name: str) -> bytes:
    golden = folder / "cases" / f"{name}.trace"
    golden.write_text(golden.read_text().replace("readback=Argmax", "readback=HostLogits", 1))
    return golden.read_bytes()


def test_scenarios_with_a_trace_are_collected(folder: Path) -> None:
    done = run(folder, "--collect-only")
    assert done.stdout.splitlines()[:2] == ["cases/alpha.toml::alpha", "cases/beta.toml::beta"]
    assert "bare" not in done.stdout
    assert run(folder).returncode == 0


def test_a_failure_is_the_short_difference(folder: Path) -> None:
    damage(folder, "beta")
    done = run(folder)
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout
    assert "beta.trace and this run differ: 1 cause" in done.stdout
    assert "readback.kind: HostLogits -> Argmax" in done.stdout
    assert "has readback.kind HostLogits in A and Argmax in B." in done.stdout
    assert "next: metrale check " in done.stdout
    assert "Traceback" not in done.stdout
    assert len(done.stdout.splitlines()) < 25
    assert not (folder / "cases" / "beta.trace.pending").exists()


def test_names_select(folder: Path) -> None:
    damage(folder, "beta")
    assert run(folder, "-k", "alpha").returncode == 0
    assert run(folder, "-k", "beta").returncode == 1
    assert run(folder, "cases/beta.toml::beta").returncode == 1
    assert run(folder, "cases/alpha.toml").returncode == 0


def test_in_parallel(folder: Path) -> None:
    damage(folder, "beta")
    done = run(folder, "-n", "2")
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout


def test_update(folder: Path) -> None:
    golden = folder / "cases" / "beta.trace"
    right = golden.read_bytes()
    wrong = damage(folder, "beta")
    alpha = damage(folder, "alpha")
    for env in ({"CI": "true"}, {"CI": "1"}):
        done = run(folder, "--metrale-update", **env)
        assert done.returncode == 4
        assert "--metrale-update: CI is set" in done.stderr
        assert golden.read_bytes() == wrong
    assert run(folder, "--metrale-update", "-k", "beta", "-n", "2", CI="false").returncode == 0
    assert golden.read_bytes() == right
    assert (folder / "cases" / "alpha.trace").read_bytes() == alpha
    assert run(folder, "-k", "beta").returncode == 0


def test_a_scenario_that_is_none(folder: Path) -> None:
    (folder / "cases" / "alpha.toml").write_text("name = 3\n")
    done = run(folder, "-k", "alpha")
    assert done.returncode == 1
    assert "alpha.toml" in done.stdout
    assert "Traceback" not in done.stdout


def test_collection_can_be_turned_off(folder: Path) -> None:
    (folder / "pytest.ini").write_text("[pytest]\nmetrale_collect = false\n")
    assert run(folder, "--collect-only").returncode == 5


def test_a_folder_without_scenarios_is_left_alone(folder: Path) -> None:
    (folder / "test_own.py").write_text("def test_own():\n    pass\n")
    (folder / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    done = run(folder, "test_own.py")
    assert (done.returncode, "1 passed" in done.stdout) == (0, True)
