"""The whole engine on the kernels' PTX."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_forced_traces_of_the_interpreted_kernels():
    paths = [str(ROOT / "golden" / f"{name}.toml") for name in ("self_spec", "chunked_prefill")]
    command = [sys.executable, "-m", "metrale", "conform", "--device", "cuda-ptx", *paths]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "2 checks, 0 failed: forced 2/2")
