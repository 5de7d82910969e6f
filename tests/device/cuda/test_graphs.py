"""Recorded decode steps, with the real kernels and a recorder that behaves as a CUDA graph does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("recorded.py")


def test_recorded_steps():
    run = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    assert json.loads(run.stdout) == {
        "sliding": {"same": True, "kept": True, "recorded": 2, "replayed": 3},
        "hybrid": {"same": True, "kept": True, "recorded": 1, "replayed": 1},
        "fed": {"same": True, "kept": True, "recorded": 1, "replayed": 2},
        "refused": {"same": True, "reason": "operation not permitted when stream is capturing", "kept": 0},
        "all experts": {"same": True, "kept": True, "recorded": 1, "replayed": 1},
        "looked": {"reason": "a tensor is read while a step is recorded"},
        "bounded": {"recorded": 2, "kept": 1},
        "dropped": {"kept": [True, False]},
    }
