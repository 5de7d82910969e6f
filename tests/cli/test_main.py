"""The program itself: help, version, unknown commands, faults, interrupts and closed pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from metrale import __version__
from metrale.cli.main import COMMANDS

from .conftest import GOLDEN, ROOT, Run, environment


def test_version_and_console_script(metrale: Run) -> None:
    done = metrale("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"metrale {__version__}\n", "")
    script = subprocess.run(
        [Path(sys.executable).with_name("metrale"), "--version"], capture_output=True, text=True, check=True
    )
    assert script.stdout == done.stdout


def test_help_lists_every_command_and_imports_none(metrale: Run) -> None:
    done = metrale("--help", python=("-X", "importtime"))
    assert done.returncode == 0
    for name, (_, _, text) in COMMANDS.items():
        assert f"  {name} " in done.stdout
        assert text.rstrip(".")[:40] in done.stdout
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert "metrale.cli.main" in imported
    assert not imported & {"pydantic", "lark", "numpy", "rich", *(module for module, _, _ in COMMANDS.values())}


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help_with_an_example(name: str, inside) -> None:
    status, out, err = inside(name, "--help")
    assert (status, err) == (0, "")
    assert f"Usage: metrale {name} " in out
    assert f"metrale {name} " in out.split("Example", 1)[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("chekc",), "no such command 'chekc'; did you mean 'check'?"),
        (("zzz",), "no such command 'zzz'; one of run, check, accept"),
        (("run",), "Missing argument 'SCENARIO'"),
        (("run", "x.toml", "--frobnicate"), "No such option"),
        (("--frobnicate",), "No such option"),
        (("run", "x.toml", "--router", "depth3"), "'depth3' is not one of 'sync', 'async'"),
        (("run", "x.toml", "--max-ticks", "0"), "0 is not in the range x>=1"),
    ],
)
def test_usage_errors(arguments: tuple[str, ...], said: str, inside) -> None:
    status, out, err = inside(*arguments)
    assert (status, out) == (2, "")
    assert said in " ".join(err.split())
    assert "Traceback" not in err


def test_no_command_shows_the_help(inside) -> None:
    status, out, err = inside()
    assert (status, out) == (2, "")
    assert "Commands:" in err


def test_a_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch, inside) -> None:
    def lacking(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'numba'", name="numba")

    monkeypatch.setattr("metrale.cli.run.run_scenario", lacking)
    status, out, err = inside("run", GOLDEN / "beam.toml")
    assert (status, out) == (2, "")
    remedy = "`pip install 'metrale[engine]'` installs what every command needs"
    assert err == f"Error: No module named 'numba'; {remedy}\n"


def test_a_fault_of_the_program_is_one_line(monkeypatch: pytest.MonkeyPatch, inside) -> None:
    def broken(*_: object, **__: object) -> None:
        raise LookupError("two\nlines")

    monkeypatch.setattr("metrale.cli.run.run_scenario", broken)
    status, out, err = inside("run", GOLDEN / "beam.toml")
    assert (status, out) == (2, "")
    assert err == (
        "Error: metrale failed, which is a fault of the program: LookupError: two lines (METRALE_DEBUG=1 shows where)\n"
    )
    monkeypatch.setenv("METRALE_DEBUG", "1")
    with pytest.raises(LookupError):
        inside("run", GOLDEN / "beam.toml")


def test_a_closed_pipe_ends_the_program_quietly() -> None:
    command = f"{sys.executable} -m metrale run {GOLDEN / 'watchdog_rollback.toml'} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], env=environment(), capture_output=True, text=True, check=True)
    first, status = done.stdout.splitlines()
    assert first == "# scenario watchdog_rollback"
    assert status in ("0", "141")
    assert "Error" not in done.stderr
    assert "Traceback" not in done.stderr


def test_stdout_that_cannot_be_written_is_no_traceback() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "metrale", "run", str(GOLDEN / "beam.toml")],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(),
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "Error: standard output cannot be written: No space left on device\n"


def test_an_interrupt_ends_the_program_quietly(tmp_path: Path) -> None:
    (tmp_path / "long.toml").write_text(
        'name = "long"\n[[request]]\nid = 1\nprompt_len = 5\ntokens = [10, 63]\narrive_at_tick = 900000000\n'
    )
    command = [sys.executable, "-m", "metrale", "run", "--max-ticks", "1000000000", str(tmp_path / "long.toml")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True) as run:
        time.sleep(3)
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=30)
    assert run.returncode == 130
    assert err.strip() == ""


def test_the_root_has_no_stray_pending_file() -> None:
    assert not list(ROOT.glob("golden/*.pending"))
