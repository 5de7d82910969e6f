"""The GPU check without a GPU: it says so, and every one of its sections can be rehearsed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[3] / "tools"


@pytest.fixture
def tools(monkeypatch):
    """The modules of the check, importable as its processes import them."""
    monkeypatch.syspath_prepend(TOOLS)


BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name in {names}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Block())
"""


def run(folder, *arguments, without=()):
    """The command on a machine that lacks some packages, and that it does not start in the checkout."""
    (folder / "sitecustomize.py").write_text(BLOCK.format(names=without))
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(folder)}
    command = [sys.executable, TOOLS / "gpu_check.py", "--out", folder, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment, cwd="/")
    return done, json.loads((folder / "gpu_check.json").read_text()), (folder / "gpu_check.md").read_text()


def test_without_a_gpu_it_is_not_run(tmp_path):
    done, result, text = run(tmp_path)
    assert done.returncode == 0
    assert result == {"status": "not run", "reason": "torch sees no CUDA GPU here", "failures": []}
    assert text == "# GPU check\n\nNot run: torch sees no CUDA GPU here\n"
    assert done.stdout.splitlines()[-1].startswith("gpu check: not run: torch sees no CUDA GPU here; see ")


def test_a_rehearsal_goes_through_every_section(tmp_path):
    done, result, text = run(tmp_path, "--rehearse", without=("click", "lark", "rich", "jinja2", "hypothesis"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert result["failures"] == []
    sections = result["sections"]
    assert {name: entry["state"] for name, entry in sections.items()} == dict.fromkeys(sections, "done")
    results = {name: entry["results"] for name, entry in sections.items()}
    assert list(results["kernel checks"]) != []
    assert all(check["pairs"] > 0 and check["faults"] == [] for check in results["kernel checks"].values())
    assert sorted(results["kernel checks"]) == [
        f"{name}, {dtype}" for name in ("decode 1x8", "moves", "prefill 1x8") for dtype in ("bfloat16", "float32")
    ]
    assert list(results["conform free"]) == list(results["conform free, as served"]) == ["attention: depth 2"]
    assert len(results["conform forced"]) == 2
    assert [name for name, row in results["bandwidth"].items() if isinstance(row, dict)] == [
        "rms norm",
        "embedding gather",
        "copy of rows, scattered",
        "swiglu",
        "rotary and page write",
        "delta rule step",
        "convolution of a chunk",
        "argmax, 2 rows",
        "masked argmax, 2 rows",
        "decode attention 1 x 5, split 16, 32 threads",
    ]
    assert results["decode steps"]["2 x 9"]["same_picks"] == 1.0
    assert list(results["engine"]) == ["float32, launched, batch 2", "shipped model, batch 2"]
    assert "| rms norm |" in text
    assert "A rehearsal on the CPU: the numbers mean nothing." in text


def test_a_run_whose_time_is_over_ends_and_reports_what_it_had(tmp_path):
    started = time.monotonic()
    done, result, text = run(tmp_path, "--rehearse", "--limit", "4.1")
    assert time.monotonic() - started < 60
    assert done.returncode == 1
    assert result["sections"]["machine"]["state"] == "killed"
    assert result["sections"]["kernel checks"] == {
        "state": "not run",
        "results": {},
        "notes": ["the machine section did not get so far"],
    }
    assert result["failures"][0].startswith("machine: probe: killed after ")
    assert "kernel checks: not run: the machine section did not get so far" in result["failures"]
    assert "| machine | killed |" in text


@pytest.mark.parametrize("limit", ["0", "-1", "nan", "inf", "soon"])
def test_a_limit_is_a_time(tmp_path, limit):
    command = [sys.executable, TOOLS / "gpu_check.py", "--out", tmp_path, "--limit", limit]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2,
        f"gpu_check.py: error: argument --limit: invalid seconds value: '{limit}'",
    )


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    command = [sys.executable, TOOLS / "gpu_check.py", "--out", tmp_path / "file"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"gpu check: --out {tmp_path / 'file'}: File exists; name a folder\n"


def test_wheels_are_put_on_the_path(tmp_path, tools):
    import gpu_check

    wheel = tmp_path / "small-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("small.py", "VALUE = 7\n")
        file.writestr("small-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n")
        file.writestr("small-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("small-1.0.dist-info/RECORD", "small.py,,\n")
    assert gpu_check.unpack(tmp_path, tmp_path / "into") == ""
    seen = gpu_check.environment(False, tmp_path / "links", str(tmp_path / "into"))
    code = "import small, metrale, gpu_sections; print(small.VALUE)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, env=seen, check=False)
    assert done.stdout == "7\n", done.stderr


def test_wheels_that_cannot_be_used(tmp_path, tools):
    import gpu_check

    assert gpu_check.unpack(tmp_path, tmp_path / "into") == f"--wheels {tmp_path}: no wheel is there"
    (tmp_path / "broken-1.0-py3-none-any.whl").write_bytes(b"no zip")
    assert gpu_check.unpack(tmp_path, tmp_path / "into").startswith(f"--wheels {tmp_path}: ")


def test_what_forced_mode_lacks_is_named(tools, monkeypatch):
    import gpu_sections

    monkeypatch.setitem(sys.modules, "pydantic", None)
    find = gpu_sections.importlib.util.find_spec
    lacking = ("annotated_types",)
    monkeypatch.setattr(gpu_sections.importlib.util, "find_spec", lambda name: None if name in lacking else find(name))
    with pytest.raises(gpu_sections.LeftOut, match="needs pydantic, annotated_types: not installed") as why:
        next(gpu_sections.forced(gpu_sections.Task((0, 1), True, False, lambda: None)))
    assert why.value.section == "conform forced"


@pytest.mark.parametrize(("cores", "many", "count"), [(16, True, 7), (4, True, 1), (16, False, 1)])
def test_sections_share_a_gpu_where_there_are_cores(tools, cores, many, count):
    import gpu_check

    assert gpu_check.parts(cores, many, False)["kernel checks"] == count


def test_a_process_goes_when_the_check_is_gone(tmp_path):
    command = [sys.executable, TOOLS / "gpu_check.py", "--task", "kernel checks", "--part", "0/1", "--rehearse"]
    command += ["--records", tmp_path / "records"]
    environment = os.environ | {"PYTHONPATH": f"{TOOLS}{os.pathsep}{TOOLS.parent}", "NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run(command, stdin=subprocess.DEVNULL, env=environment, timeout=60, check=False)
    assert done.returncode == 1
    assert (tmp_path / "records").read_text() == ""
