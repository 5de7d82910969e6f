"""``metrale run``: the trace, whatever process and place it is made in; bad scenario files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from metrale.cli.errors import BadInput
from metrale.cli.run import open_device
from metrale.sim.harness import HarnessError
from metrale.sim.runner import RunError
from metrale.sim.scenario import Scenario, load_scenario

from .conftest import GOLDEN, SCENARIO, Run, one_error

NAMES = ["preempt_requeue", "spill_swap_out_in", "host_logits_paths", "dflash_batched", "async_lagging"]


@pytest.mark.parametrize("name", NAMES)
def test_stdout_is_the_trace_and_stderr_the_summary(name: str, inside) -> None:
    status, out, err = inside("run", GOLDEN / f"{name}.toml")
    golden = (GOLDEN / f"{name}.trace").read_text()
    assert (status, out) == (0, golden)
    assert len(err.splitlines()) == 1
    assert err.startswith(f"{name}: {len(golden.splitlines())} lines, ")


@pytest.mark.parametrize(
    ("python", "env"),
    [((), {"PYTHONHASHSEED": "1"}), ((), {"PYTHONHASHSEED": "2"}), (("-O",), {"PYTHONHASHSEED": "3"})],
    ids=["hash seed 1", "hash seed 2", "-O"],
)
def test_same_bytes_in_every_process(python: tuple[str, ...], env: dict[str, str], metrale: Run) -> None:
    done = metrale("run", GOLDEN / "spill_into_a_free_slot.toml", python=python, **env)
    assert (done.returncode, done.stdout) == (0, (GOLDEN / "spill_into_a_free_slot.trace").read_text())
    whole = metrale("check", GOLDEN, python=python, CI="1", **env)
    assert whole.returncode == 0, whole.stdout


def test_output_file_is_whole_and_silent_on_stdout(metrale: Run, tmp_path: Path) -> None:
    target = tmp_path / "out.trace"
    target.write_text("old")
    done = metrale("run", GOLDEN / "beam.toml", "-o", "out.trace")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "beam: 56 lines, 3 ticks, 2 requests, written to out.trace\n"
    assert target.read_bytes() == (GOLDEN / "beam.trace").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.trace"]
    assert target.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_output_that_cannot_be_written(inside, tmp_path: Path) -> None:
    for target in (tmp_path / "no" / "such.trace", tmp_path):
        status, out, err = inside("run", GOLDEN / "beam.toml", "-o", target)
        assert (status, out) == (2, "")
        assert one_error(err).startswith(f"{target}: cannot be written: ")
    assert list(tmp_path.iterdir()) == []


def test_a_golden_is_not_written_in_ci(pair: Path, metrale: Run) -> None:
    golden = pair.with_suffix(".trace")
    golden.write_text("kept")
    done = metrale("run", pair, "-o", golden, CI="true")
    assert done.returncode == 2
    assert "in CI (CI is set) nothing writes a golden" in one_error(done.stderr)
    assert golden.read_text() == "kept"
    assert metrale("run", pair, "-o", golden.with_name("other.trace"), CI="true").returncode == 0


def test_the_router_can_be_overridden(inside) -> None:
    status, out, _ = inside("run", GOLDEN / "plain_decode.toml", "--router", "async")
    deep = (GOLDEN / "async_plain_decode.trace").read_text().split("\n", 1)[1]
    assert (status, out) == (0, "# scenario plain_decode\n" + deep)
    status, out, _ = inside("run", GOLDEN / "async_plain_decode.toml", "--router", "sync")
    flat = (GOLDEN / "plain_decode.trace").read_text().split("\n", 1)[1]
    assert (status, out) == (0, "# scenario async_plain_decode\n" + flat)


def test_a_run_has_a_bound(inside, tmp_path: Path) -> None:
    scenario = tmp_path / "late.toml"
    scenario.write_text(SCENARIO + "arrive_at_tick = 50\n")
    assert inside("run", scenario)[0] == 0
    status, out, err = inside("run", scenario, "--max-ticks", "20")
    assert (status, out) == (2, "")
    assert one_error(err).startswith(f"{scenario}: the run passed 20 ticks")


def test_the_engine_behind_the_same_interface(inside) -> None:
    pytest.importorskip("torch")
    status, out, _err = inside("run", GOLDEN / "chunked_prefill.toml", "--device", "torch")
    assert (status, out) == (0, (GOLDEN / "chunked_prefill.trace").read_text())


def test_an_engine_without_its_packages() -> None:
    """In a process of its own: modules that are imported anew would leave others with the old ones."""
    code = "import sys; sys.modules['torch'] = None; from metrale.cli.main import run_cli; sys.exit(run_cli())"
    command = [sys.executable, "-c", code, "run", GOLDEN / "beam.toml", "--device", "torch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert one_error(done.stderr).startswith("--device torch: not available")
    assert "pip install 'metrale[engine]'" in done.stderr


REQUEST = "[[request]]\nid = 1\nprompt_len = 5\ntokens = [10, 63]\n"

BAD = {
    "unknown key": (f'name = "x"\n{REQUEST}promt_len = 5\n', ["[[request]] number 1", "promt_len", "unknown"]),
    "unknown table": ('name = "x"\n[devise]\nvocab = 64\n', ["devise", "unknown"]),
    "negative length": (f'name = "x"\n{REQUEST.replace("5", "-1")}', ["prompt_len", "0 to 1048576", "-1"]),
    "out of range": (f'name = "x"\n[device]\nvocab = 1\n{REQUEST}', ["[device]", "vocab", "2 to 1048576"]),
    "held beyond the pool": ('name = "x"\n[device]\ntotal_blocks = 4\nheld_blocks = 5\n', ["held_blocks", "0 to"]),
    "too many beams": (f'name = "x"\n{REQUEST}num_beams = 65\n', ["num_beams", "1 to 64"]),
    "batch of none": ('name = "x"\n[scheduler]\nmax_batch_size = 0\n', ["[scheduler]", "max_batch_size", "1 to 4096"]),
    "unknown policy": ('name = "x"\n[scheduler]\npolicy = "lifo"\n', ["policy", "fifo", "slai"]),
    "tick nought": (f'name = "x"\n{REQUEST}arrive_at_tick = 0\n', ["arrive_at_tick", "1 to"]),
    "no tokens": ('name = "x"\n[[request]]\nid = 1\nprompt_len = 5\ntokens = []\n', ["tokens", "1 or more"]),
    "missing tokens": ('name = "x"\n[[request]]\nid = 1\nprompt_len = 5\n', ["tokens", "missing"]),
    "no name": (REQUEST, ["name", "missing"]),
    "nan": (f'name = "x"\n{REQUEST}temperature = nan\n', ["[[request]] number 1", "temperature", "finite"]),
    "infinite": (f'name = "x"\n{REQUEST}temperature = 1e400\n', ["[[request]] number 1", "temperature", "finite"]),
    "negative temperature": (f'name = "x"\n{REQUEST}temperature = -0.5\n', ["temperature", "0"]),
    "text for a number": (
        f'name = "x"\n{REQUEST.replace("id = 1", "id = " + chr(34) + "one" + chr(34))}',
        ["id", "whole"],
    ),
    "float for a number": (f'name = "x"\n{REQUEST.replace("5", "5.0")}', ["prompt_len", "whole number"]),
    "number for a switch": (f'name = "x"\n{REQUEST}streaming = 1\n', ["streaming", "true or false"]),
    "id beyond 63 bits": (f'name = "x"\n{REQUEST.replace("id = 1", f"id = {2**63}")}', ["id", "2^63-1"]),
    "prompt against prompt_len": (f'name = "x"\n{REQUEST}prompt = [1, 2]\n', ["prompt_len", "agree"]),
    "cancel of a blocking one": (
        f'name = "x"\n{REQUEST}streaming = false\ncancel_at = 1\n',
        ["cancel_at", "streaming"],
    ),
    "empty": ("", ["empty"]),
    "blank": (" \n\n", ["empty"]),
    "not TOML": ("name = \n", ["not valid TOML", "line 1"]),
    "binary": ("name\0 = 1", ["not a text file"]),
    "not UTF-8": (b'name = "\xff"', ["not UTF-8"]),
}


@pytest.mark.parametrize("case", list(BAD))
def test_bad_scenario_files(case: str, inside, tmp_path: Path) -> None:
    content, said = BAD[case]
    scenario = tmp_path / "bad.toml"
    scenario.write_bytes(content if isinstance(content, bytes) else content.encode())
    status, out, err = inside("run", scenario)
    assert (status, out) == (2, "")
    message = one_error(err)
    assert message.startswith(f"{scenario}: ")
    for word in said:
        assert word in message


def test_paths_that_are_no_scenario(metrale: Run, tmp_path: Path) -> None:
    done = metrale("run", "nowhere.toml")
    assert (done.returncode, done.stdout) == (2, "")
    assert one_error(done.stderr) == "nowhere.toml: cannot be read: No such file or directory"
    done = metrale("run", tmp_path)
    assert done.returncode == 2
    assert one_error(done.stderr).startswith(f"{tmp_path}: cannot be read: ")


@pytest.mark.parametrize("value", ["0.1", "0.30000000000000004", "1e-7", "-0.0", "3"])
def test_any_finite_temperature_runs_and_leaves_no_float(value: str, inside, tmp_path: Path) -> None:
    scenario = tmp_path / "warm.toml"
    scenario.write_text(f'name = "warm"\n{REQUEST}temperature = {value}\n')
    status, out, _ = inside("run", scenario)
    assert status == 0
    assert "out s1: T10 Done(stop, n=2" in out


def _hangs(*_: object, **__: object) -> None:
    raise RunError("the scheduler waits for a new request at tick 9 while s1 is unanswered") from HarnessError(
        "it waits"
    )


def test_a_scheduler_that_hangs_is_a_violation(monkeypatch: pytest.MonkeyPatch, inside, pair: Path) -> None:
    monkeypatch.setattr("metrale.cli.run.run_scenario", _hangs)
    status, out, err = inside("run", pair)
    assert (status, out) == (1, "")
    assert err.splitlines() == [
        f"{pair}: the scheduler waits for a new request at tick 9 while s1 is unanswered",
        f"next: metrale run --max-ticks N {pair}, with N the last tick to look at",
    ]
    monkeypatch.setattr("metrale.cli.goldens.run_scenario", _hangs)
    status, out, err = inside("check", pair)
    assert status == 1
    assert err.splitlines() == [f"next: metrale run {pair}", "1 checked: 1 stuck (the run does not end)"]


def test_a_device_is_made_for_the_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    scenario = load_scenario(GOLDEN / "beam.toml")
    made: list[tuple[Scenario, str]] = []
    monkeypatch.setattr("metrale.conform.forced_device.run_device", lambda *given: made.append(given) or "device")
    assert open_device("cuda-sim", scenario) == "device"
    assert made == [(scenario, "cuda-sim")]
    assert open_device("mock", scenario) is None


def test_a_device_that_is_not_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadInput, match="--device cuda: backend cuda: torch sees no CUDA GPU here"):
        open_device("cuda", load_scenario(GOLDEN / "beam.toml"))
