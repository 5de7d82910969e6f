"""The whole engine on the kernels' PTX."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from numba import float32, int64

from metrale.device.cuda import backend as kernels
from metrale.device.cuda.rows import unary_kernel
from metrale.device.cuda.storage import FP32
from metrale.device.loading import backend
from metrale.device.ptx import runner
from metrale.device.ptx.parser import parse

ROOT = Path(__file__).parents[3]


def test_forced_traces_of_the_interpreted_kernels():
    paths = [str(ROOT / "golden" / f"{name}.toml") for name in ("self_spec", "chunked_prefill")]
    command = [sys.executable, "-m", "metrale", "conform", "--device", "cuda-ptx", *paths]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "2 checks, 0 failed: forced 2/2")


def test_the_backend_lives_on_the_cpu(monkeypatch):
    monkeypatch.setattr(runner, "active", None)
    with pytest.raises(ValueError, match="a kernel over CPU tensors needs the PTX machine"):
        kernels.sigmoid(torch.zeros(3))
    on = backend("cuda-ptx")
    assert (on.kernels, on.width, on.device) == (kernels, 0, torch.device("cpu"))
    assert on.kernels.sigmoid(torch.tensor([0.0, float("-inf"), float("inf")])).tolist() == [0.5, 0.0, 1.0]
    assert runner.active is not None
    assert runner.active.kernels() == ["unary"]


def test_a_machine_for_a_while(monkeypatch):
    monkeypatch.setattr(runner, "active", None)
    with runner.interpreting(runner.Machine((8, 0))) as machine:
        assert backend("cuda-ptx").kernels.silu(torch.zeros(8)).tolist() == [0.0] * 8
        assert runner.active is machine
    assert runner.active is None


def test_both_compute_capabilities_get_the_same_instructions():
    signature = (float32[::1], int64, float32[::1], int64)
    texts = [runner.ptx_of(unary_kernel(FP32, 8, "silu"), signature, capability) for capability in ((8, 0), (9, 0))]
    targets = [next(line for line in text.splitlines() if line.startswith(".target")) for text in texts]
    assert targets == [".target sm_80", ".target sm_90"]
    first, second = ([one.opcode for one in parse(text).instructions] for text in texts)
    assert first == second
    assert first.count("ex2.approx.ftz.f32") == 16
