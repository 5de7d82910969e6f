"""A GPU that is none: tensors made for "cuda" lie on the CPU with a mark, and what a GPU would refuse is refused.

Refused: an operation over marked and unmarked tensors (a single number may come from the host), ``numpy()`` of a marked
one, launches over unmarked or strided tensors, and in a recorded step whatever brings numbers to the host or from it.
Streams and events do nothing, kernels are not run.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

MARK = "_pretended"
CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
INDEXING = {torch.Tensor.__getitem__, torch.Tensor.__setitem__}
BRINGS_TO_HOST = {torch.Tensor.cpu, torch.Tensor.tolist, torch.Tensor.item}
SENDS = {torch.Tensor.copy_}
"""What may have arguments on both sides."""


def marked(tensor: torch.Tensor) -> bool:
    """Whether a tensor pretends to lie on the GPU."""
    return MARK in tensor.__dict__


def mark(tensor: Any) -> Any:
    """Put a tensor there."""
    if isinstance(tensor, torch.Tensor):
        tensor.__dict__[MARK] = True
    return tensor


def _device(value: Any) -> torch.device | None:
    if isinstance(value, torch.device):
        return value
    return torch.device(value) if isinstance(value, str) and value.split(":")[0] in ("cpu", "cuda") else None


class PretendedGpu(TorchFunctionMode):
    """While it is entered, "cuda" is a place. ``recording``: in a recording the host neither looks nor sends."""

    def __init__(self) -> None:
        super().__init__()
        self.recording = False

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {key: value for key, value in (kwargs or {}).items() if key != "pin_memory"}
        leaves = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        name = getattr(func, "__name__", "")
        if getattr(func, "__self__", None) is torch.Tensor.device:
            return CUDA if marked(args[0]) else CPU
        if getattr(func, "__self__", None) is torch.Tensor.is_cuda:
            return marked(args[0])
        if func in (torch.Tensor.pin_memory, torch.Tensor.record_stream):
            if func is torch.Tensor.pin_memory and marked(args[0]):
                raise RuntimeError("pin_memory of a tensor on the GPU")
            return args[0]
        if func is torch.Tensor.numpy and marked(args[0]):
            raise TypeError("can't convert cuda tensor to numpy")
        there = any(map(marked, leaves))
        target = next((d for d in map(_device, [*args[1:], *kwargs.values()]) if d is not None), None)
        if there and func not in SENDS and not (func in INDEXING and self._index(args)):
            strangers = [x for x in leaves if not marked(x) and x.dim()]
            if strangers and name not in ("to", "type_as"):
                raise RuntimeError(f"{name}: tensors on the GPU and on the CPU, {[tuple(x.shape) for x in leaves]}")
        if target is not None:
            args = tree_map(lambda x: x if _device(x) is None else CPU, args)
            kwargs = {key: CPU if _device(x) is not None else x for key, x in kwargs.items()}
        result = func(*args, **kwargs)
        moved = target is not None and target.type == "cpu"
        if self.recording:
            sent = func in SENDS and not all(map(marked, leaves))
            if sent or (there and (func in BRINGS_TO_HOST or moved)) or name in ("__bool__", "nonzero"):
                raise RuntimeError(f"{name}: in a recording")
        if func in BRINGS_TO_HOST or moved:
            if there and isinstance(result, torch.Tensor) and func is not torch.Tensor.copy_:
                return result.clone() if result is args[0] else result
            return result
        if there or (target is not None and target.type == "cuda"):
            if name == "to" and result is args[0] and not there:
                result = result.clone()
            return tree_map(mark, result)
        return result

    def _index(self, args: Any) -> bool:
        """Indices may be on the host for a tensor on the GPU; what is written into it may not, but for one number."""
        if not marked(args[0]):
            return False
        return len(args) < 3 or not isinstance(args[2], torch.Tensor) or marked(args[2]) or not args[2].dim()


class Stream:
    """Does nothing."""

    cuda_stream = 0

    def __init__(self, *_: Any) -> None: ...

    def wait_stream(self, other: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def synchronize(self) -> None: ...

    def record_event(self, event: Any = None) -> Event:
        return event or Event()


class Event:
    """Lies a millisecond after the one before."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...

    def wait(self, *_: Any) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        return 1.0


class Recorder:
    """A recording is the work itself."""

    def __init__(self, gpu: PretendedGpu) -> None:
        self.gpu = gpu

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        def replay() -> None:
            self.gpu.recording = True
            try:
                work()
            finally:
                self.gpu.recording = False

        return replay


class Graph:
    """A graph that nothing was captured in."""

    def replay(self) -> None: ...


def no_launch(kernel: Any, grid: tuple[int, ...], block: int, *arguments: Any) -> None:
    """Looks at what a kernel is given, and does not run it."""
    for one in arguments if 0 not in grid else ():
        if isinstance(one, torch.Tensor):
            if not marked(one):
                raise TypeError(f"a kernel is given a tensor on the CPU, {tuple(one.shape)}")
            if not one.is_contiguous():
                raise TypeError(f"a kernel is given a tensor of strides {one.stride()}")


def rest_of(tensor: torch.Tensor) -> torch.Tensor:
    """Everything from a tensor's first element to the end of its storage."""
    room = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    return tensor.as_strided((room,), (1,))


def picking_kernels() -> ModuleType:
    """The CUDA backend, but what picks is the reference: the only kernels whose results a forced run needs."""
    from metrale.device.cuda import backend
    from metrale.device.kernels import reference

    def to_feed(logits: torch.Tensor, masks: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
        picks = reference.masked_argmax(logits, masks)
        cells[: len(picks)] = picks
        return picks

    kernels = ModuleType("picking_kernels")
    kernels.__dict__.update({name: value for name, value in vars(backend).items() if not name.startswith("__")})
    kernels.argmax, kernels.masked_argmax = reference.argmax, reference.masked_argmax
    kernels.masked_argmax_to_feed = to_feed
    return kernels


@contextlib.contextmanager
def pretended_gpu(monkeypatch: Any) -> Iterator[PretendedGpu]:
    """``torch.cuda`` pretended, and launches that only look at their arguments."""
    importlib.import_module("metrale.device.cuda.backend")
    cuda = torch.cuda
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    for name in ("synchronize", "set_device"):
        monkeypatch.setattr(cuda, name, lambda *_: None)
    monkeypatch.setattr(cuda, "current_stream", lambda *_: Stream())
    for name in ("stream", "graph"):
        monkeypatch.setattr(cuda, name, lambda *_, **__: contextlib.nullcontext())
    for name, what in (("Stream", Stream), ("Event", Event), ("CUDAGraph", Graph)):
        monkeypatch.setattr(cuda, name, what)
    for name, module in list(sys.modules.items()):
        if name.startswith("metrale.device.cuda."):
            for attribute, instead in (("launch", no_launch), ("memory", rest_of)):
                if callable(getattr(module, attribute, None)):
                    monkeypatch.setattr(module, attribute, instead)
    gpu = PretendedGpu()
    monkeypatch.setattr("metrale.device.engine.core.CudaRecorder", lambda: Recorder(gpu))
    with gpu:
        yield gpu
