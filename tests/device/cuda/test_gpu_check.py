"""The GPU check without a GPU: it says so, and every one of its steps can be rehearsed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[3] / "tools" / "gpu_check.py"


def run(folder, *arguments):
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, TOOL, "--out", folder, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    return done, json.loads((folder / "gpu_check.json").read_text()), (folder / "gpu_check.md").read_text()


def test_without_a_gpu_it_is_not_run(tmp_path):
    done, result, text = run(tmp_path)
    assert done.returncode == 0
    assert result == {"status": "not run", "reason": "torch sees no CUDA GPU here", "failures": []}
    assert text == "# GPU check\n\nNot run: torch sees no CUDA GPU here\n"
    assert done.stdout.splitlines()[-1].startswith("gpu check: not run: torch sees no CUDA GPU here; see ")


def test_a_rehearsal_goes_through_every_step(tmp_path):
    done, result, text = run(tmp_path, "--rehearse")
    assert done.returncode == 0, done.stdout + done.stderr
    assert result["failures"] == []
    assert all(check["pairs"] > 0 and check["faults"] == [] for check in result["kernel checks"].values())
    assert [row["kernel"] for row in result["bandwidth"]["kernels"]] == [
        "rms norm",
        "swiglu",
        "embedding gather",
        "rotary and page write",
        "argmax, 2 rows",
        "masked argmax, 2 rows",
        "delta rule step",
        "convolution of a chunk",
        "decode attention, batch 1, context 5, split 16, 32 threads",
    ]
    assert [(row["batch"], row["context"], row["same_picks"]) for row in result["decode steps"]] == [(2, 9, 1.0)]
    assert "| 2 | 9 |" in text
