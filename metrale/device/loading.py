"""From a model folder, or weights in memory, to a device on one of the backends."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from types import ModuleType

import torch

from .checkpoint import LoraAdapter, ModelConfig, load_config, load_lora, load_tensors
from .engine import EngineDevice, EngineOptions, Streams
from .errors import ModelError
from .kernels import reference

BACKENDS = ("torch", "cuda-sim", "cuda-ptx", "cuda")
SIMULATOR = "NUMBA_ENABLE_CUDASIM"
SHIPPED = "tiny-hybrid"
SMALL_MODEL = 1024
LAUNCHES = ("packed", "numba")
GATES = ("A_log", "dt_bias")

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Backend:
    """A kernel set, the rows of its tiles (0: as many as there are), where its tensors live, and how: fp32 or bf16."""

    kernels: ModuleType
    width: int
    device: torch.device
    dtype: torch.dtype = torch.float32

    def place(self, tensors: Weights) -> Weights:
        """The weights where and how the kernels want them; the gates of recurrent layers stay fp32."""
        kept = {name: torch.float32 if name.endswith(GATES) else self.dtype for name in tensors}
        return {name: tensor.to(self.device, kept[name]) for name, tensor in tensors.items()}

    def place_adapter(self, adapter: LoraAdapter) -> LoraAdapter:
        """The same for an adapter."""
        return adapter.to(self.device, self.dtype)


def backend(name: str, dtype: str = "float32") -> Backend:
    """``torch``: the reference on the CPU. ``cuda``: the Numba kernels on a GPU. ``cuda-sim``: the same kernels in
    Numba's simulator, which numba has to be told before it is first imported. ``cuda-ptx``: the same kernels as a GPU
    gets them, in our interpreter, on the CPU; it stays on in this process. ``dtype`` is that of weights and caches,
    float32 or bfloat16; on a GPU that has no bfloat16 (before compute capability 8.0) it is float32. Raises
    ModelError."""
    if name == "torch":
        if dtype != "float32":
            raise ModelError(f"backend torch: weights and caches are float32, not {dtype}")
        return Backend(reference, reference.TILE, torch.device("cpu"))
    if name not in BACKENDS:
        raise ModelError(f"backend {name!r} is unknown; one of {', '.join(BACKENDS)}")
    if os.environ.get("METRALE_LAUNCH", "packed") not in LAUNCHES:
        raise ModelError(f"METRALE_LAUNCH={os.environ['METRALE_LAUNCH']}: one of {', '.join(LAUNCHES)}")
    simulated = name == "cuda-sim"
    if simulated and "numba" not in sys.modules:
        os.environ[SIMULATOR] = "1"
    if simulated != (os.environ.get(SIMULATOR) == "1"):
        wanted = "with" if simulated else "without"
        raise ModelError(f"backend {name}: start this process {wanted} {SIMULATOR}=1 in its environment")
    if name == "cuda" and not torch.cuda.is_available():
        raise ModelError("backend cuda: torch sees no CUDA GPU here; the `torch` backend runs on the CPU")
    kernels = importlib.import_module("metrale.device.cuda.backend")
    if name == "cuda":
        # Sums of bf16 products stay fp32 to their end, as in our kernels.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    if name == "cuda-ptx":
        importlib.import_module("metrale.device.ptx.runner").enable()
    wide = dtype == "float32" or (name == "cuda" and torch.cuda.get_device_capability() < (8, 0))
    place = torch.device("cuda" if name == "cuda" else "cpu")
    return Backend(kernels, 0, place, torch.float32 if wide else torch.bfloat16)


def shipped_model() -> Path:
    """The folder of the model that comes with the package."""
    return Path(str(resources.files("metrale.device") / "checkpoints" / SHIPPED))


def limit_threads(hidden_size: int) -> None:
    """One thread for a small model, whose products are shorter than a thread's start, else two. Any number that is a
    power of two keeps results the same (see kernels.reference)."""
    torch.set_num_threads(1 if hidden_size < SMALL_MODEL else 2)


def build_device(
    config: ModelConfig,
    tensors: Weights,
    options: EngineOptions,
    streams: Streams | None = None,
    on: Backend | None = None,
) -> EngineDevice:
    """A device over weights in memory; the ``torch`` backend unless said. Raises ModelError for a model whose sizes the
    backend's kernels do not take."""
    on = on or backend("torch")
    if hasattr(on.kernels, "check_sizes"):
        values = {"value_dim": config.linear.value_dim} if config.linear else {}
        try:
            on.kernels.check_sizes(config.heads, config.kv_heads, config.head_dim, **values)
        except ValueError as error:
            raise ModelError(f"{error}; the `torch` backend takes any size") from error
    return EngineDevice(on.kernels, config, on.place(tensors), options, width=on.width, streams=streams)


def open_model(path: Path, options: EngineOptions, lora: Path | None = None, on: Backend | None = None) -> EngineDevice:
    """Load a folder; ``lora`` becomes the active adapter. Raises ModelError."""
    config = load_config(path)
    adapter = load_lora(lora, config) if lora is not None else None
    on = on or backend("torch")
    device = build_device(config, load_tensors(path, config), options, on=on)
    if adapter is not None:
        device.adapters.active = device.adapters.load(on.place_adapter(adapter))
    return device
