"""Every kernel against its reference under Numba's simulator, and whole models on the same kernels."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("simulated.py")
PAIRS = {"small": 123, "decode": 18, "prefill": 8, "engine": 4, "planted": 4}


@pytest.mark.parametrize("batch", PAIRS)
def test_batch(batch):
    run = subprocess.run([sys.executable, SCRIPT, batch], capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    assert json.loads(run.stdout) == {"pairs": PAIRS[batch], "faults": []}
