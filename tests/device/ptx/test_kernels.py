"""Every kernel as a GPU would get it: its PTX for compute capability 9.0, real block sizes, warp shuffles, 128-bit
loads, bf16 conversions. It agrees with its reference as on a GPU, the machine finds nothing amiss, and it
notices when any barrier is left out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("interpreted.py")
SMALL = (
    "attention_decode attention_prefill choose conv delta feed gates move norm pick rotary rotary_write swiglu tail"
    " unary window_conv"
)
ATTENTION = "attention_combine attention_decode attention_prefill"


@pytest.mark.parametrize(
    ("batch", "pairs", "kernels", "barriers"), [("small", 240, SMALL, 23), ("attention", 9, ATTENTION, 24)]
)
def test_kernels_agree_with_their_references_and_need_every_barrier(batch, pairs, kernels, barriers):
    run = subprocess.run([sys.executable, SCRIPT, batch], capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    assert json.loads(run.stdout) == {
        "pairs": pairs,
        "faults": [],
        "kernels": kernels.split(),
        "barriers": barriers,
        "unseen": 0,
        "spare turns": 0,
    }
