"""Which kernels run: the reference, Numba's simulator, a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from metrale.cli.conform import conform
from metrale.cli.errors import BadInput
from metrale.conform.forced_device import run_device
from metrale.device.engine import EngineOptions
from metrale.device.errors import ModelError
from metrale.device.loading import backend, build_device
from metrale.sim.runner import run_scenario
from metrale.sim.scenario import load_scenario

from .support import HYBRID, LLAMA, config_of, random_tensors

ROOT = Path(__file__).parents[2]
SIMULATE = (
    "import sys\n"
    "from metrale.cli.conform import conform\n"
    "sys.exit(conform.main(args=sys.argv[1:], standalone_mode=False))\n"
)


def test_the_reference_is_the_default():
    chosen = backend("torch")
    assert (chosen.width, chosen.device) == (8, torch.device("cpu"))


def test_the_reference_computes_in_fp32():
    with pytest.raises(ModelError, match="backend torch: weights and caches are float32, not bfloat16"):
        backend("torch", "bfloat16")


def test_weights_and_caches_in_bf16(monkeypatch):
    from metrale.device.ptx import runner

    monkeypatch.setattr(runner, "active", None)
    on = backend("cuda-ptx", "bfloat16")
    config = config_of(HYBRID)
    device = build_device(config, random_tensors(config), EngineOptions(total_blocks=4, max_sequences=1), on=on)
    memory = device.memory
    kinds = {tensor.dtype for tensor in (*memory.keys, *memory.values, memory.conv, device.hidden, device.head.keys)}
    assert kinds == {torch.bfloat16}
    assert (memory.h.dtype, device.logits.dtype) == (torch.float32, torch.float32)
    mixer = device.decoder.layers[0].mixer
    assert (mixer.decay.dtype, mixer.dt_bias.dtype, mixer.out.weight.dtype) == (
        torch.float32,
        torch.float32,
        torch.bfloat16,
    )


def test_a_model_that_no_kernel_takes(monkeypatch):
    from metrale.device.ptx import runner

    monkeypatch.setattr(runner, "active", None)
    config = config_of(LLAMA | {"head_dim": 12})
    with pytest.raises(ModelError, match=r"head size 12 is not supported: .*; the `torch` backend takes any size"):
        build_device(config, random_tensors(config), EngineOptions(), on=backend("cuda-ptx"))
    config = config_of(HYBRID | {"linear_value_head_dim": 6})
    with pytest.raises(ModelError, match="value head size 6 is not supported"):
        build_device(config, random_tensors(config), EngineOptions(), on=backend("cuda-ptx"))


def test_an_unknown_way_of_launching(monkeypatch):
    monkeypatch.setenv("METRALE_LAUNCH", "Numba")
    with pytest.raises(ModelError, match="METRALE_LAUNCH=Numba: one of packed, numba"):
        backend("cuda")


def test_an_unknown_backend():
    with pytest.raises(ModelError, match=r"'tpu' is unknown; one of torch, cuda-sim, cuda"):
        backend("tpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu():
    with pytest.raises(ModelError, match="torch sees no CUDA GPU here"):
        backend("cuda")
    with pytest.raises(BadInput, match="backend cuda"):
        conform.main(args=["--device", "cuda", str(ROOT / "golden" / "beam.toml")], standalone_mode=False)


def test_the_simulator_has_to_be_chosen_before_numba_is_loaded():
    code = "import numba\nfrom metrale.device.loading import backend\nbackend('cuda-sim')"
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert "start this process with NUMBA_ENABLE_CUDASIM=1" in done.stderr


def test_free_mode_is_not_offered_where_a_step_takes_seconds():
    with pytest.raises(BadInput, match=r"cuda-sim: no free mode there, .* it offers forced"):
        conform.main(args=["--device", "cuda-sim", "--mode", "free"], standalone_mode=False)


def test_forced_traces_of_the_simulated_kernels():
    paths = [str(ROOT / "golden" / f"{name}.toml") for name in ("self_spec", "chunked_prefill")]
    command = [sys.executable, "-c", SIMULATE, "--device", "cuda-sim", *paths]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "2 checks, 0 failed: forced 2/2")


def test_run_on_the_torch_device():
    scenario = load_scenario(ROOT / "golden" / "verify_k4.toml")
    assert (
        run_scenario(scenario, device=run_device(scenario, "torch")).text
        == (ROOT / "golden" / "verify_k4.trace").read_text()
    )
