"""Every kernel becomes machine code for compute capability 8.0 and 9.0 without a GPU, within its means."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from metrale.device.cuda.budget import CAPABILITIES, kernels

THREADS = {kernel.name: kernel.threads for kernel in kernels()}
REGISTERS = 65536
"""Of one multiprocessor, both capabilities."""
STATIC_SHARED = 48 * 1024
SCRIPT = Path(__file__).with_name("compiled.py")
TABLE = Path(__file__).parents[3] / "docs" / "kernels.md"
COUNTS = {"fp32": 19, "bf16": 21, "": 5}


def test_names_are_told_apart():
    assert len(THREADS) == len(kernels()) == sum(COUNTS.values())


@pytest.mark.parametrize("storage", COUNTS)
def test_machine_code_without_local_memory(storage):
    command = [sys.executable, SCRIPT, storage]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    used = json.loads(run.stdout)
    assert len(used) == COUNTS[storage]
    for name, usages in used.items():
        assert len(usages) == len(CAPABILITIES)
        for usage in usages:
            assert (name, usage["stack"], usage["spills"]) == (name, 0, 0)
            assert 0 < usage["registers"] * THREADS[name] <= REGISTERS, name
            assert usage["shared"] <= STATIC_SHARED, name


def test_the_documented_table_names_every_kernel():
    rows = [line.split("|")[1].strip() for line in TABLE.read_text().splitlines() if line.startswith("| ")]
    assert [row for row in rows if row in THREADS] == list(THREADS)


def test_a_gpu_gets_the_ptx_that_is_tested():
    for kernel in kernels():
        assert kernel.make().targetoptions["lto"] is False, kernel.name
