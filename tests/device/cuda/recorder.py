"""What a CUDA graph does, on the CPU: record the torch calls and kernel launches of a step, run them again in place.

As in a capture, recorded work leaves no trace until it is replayed, and the host may neither look at a value nor
send one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from metrale.device.cuda import backend, launch, paged

FORBIDDEN = ("aten._local_scalar_dense", "aten.lift_fresh", "aten.nonzero", "aten.equal", "aten.is_nonzero")
LAUNCHERS = (backend, paged)
LOOKS = ("tolist", "cpu")
"""Methods that read memory on the CPU without a call that a dispatch mode sees."""


class HostLooked(RuntimeError):
    """The step needs the host; a capture would fail."""


def looked(tensor: torch.Tensor, *_: object, **__: object) -> None:
    raise HostLooked("a tensor is read while a step is recorded")


def storages(found: Any) -> set[int]:
    """Storage addresses of all tensors in nested arguments."""
    if isinstance(found, torch.Tensor):
        return {found.untyped_storage().data_ptr()} - {0}
    if isinstance(found, (list, tuple)):
        return set().union(*map(storages, found)) if found else set()
    return set()


class Tape(TorchDispatchMode):
    """Steps in their order, each a call without arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Callable[[], object]] = []
        self.inside: set[int] = set()
        self.outside: set[int] = set()
        """Memory that the steps use and did not make: a graph does not keep it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if str(func).startswith(FORBIDDEN):
            raise HostLooked(f"{func} while a step is recorded")
        kwargs = kwargs or {}
        self.outside |= storages([*args, *kwargs.values()]) - self.inside
        out = func(*args, **kwargs)
        if not storages(out) & self.outside:
            self.inside |= storages(out)
        fresh = isinstance(out, torch.Tensor) and not storages(out) & storages(list(args))
        if fresh:
            self.steps.append(lambda: out.copy_(func(*args, **kwargs)))
        elif isinstance(out, (list, tuple)) and not storages(out) & storages(list(args)):
            self.steps.append(lambda: [old.copy_(new) for old, new in zip(out, func(*args, **kwargs), strict=True)])
        elif func._schema.is_mutable:
            self.steps.append(lambda: func(*args, **kwargs))
        return out

    def launch(self, kernel: Any, grid: Any, block: int, *arguments: Any) -> None:
        def step() -> None:
            launch.launch(kernel, grid, block, *arguments)

        step()
        self.outside |= storages(list(arguments)) - self.inside
        self.steps.append(step)


def held(found: Any, seen: set[int]) -> set[int]:
    """Storages of all tensors that our own objects reach."""
    if isinstance(found, torch.Tensor):
        return storages(found)
    if isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, (list, tuple)):
        return set().union(*(held(one, seen) for one in found)) if found else set()
    ours = type(found).__module__.startswith("metrale.device")
    if not ours or id(found) in seen:
        return set()
    seen.add(id(found))
    names = [*getattr(found, "__dict__", ()), *getattr(type(found), "__slots__", ())]
    return held([getattr(found, name, None) for name in names], seen)


class CpuRecorder:
    """``standing`` are the tensors that a step may change."""

    def __init__(self, standing: Callable[[], list[torch.Tensor]]) -> None:
        self.standing, self.recorded, self.replayed = standing, 0, 0
        self.outside: set[int] = set()

    def record(self, work: Callable[[], None]) -> Callable[[], object]:
        before = [tensor.clone() for tensor in self.standing()]
        tape = Tape()
        with ExitStack() as stack:
            for module in LAUNCHERS:
                stack.enter_context(mock.patch.object(module, "launch", tape.launch))
            for name in LOOKS:
                stack.enter_context(mock.patch.object(torch.Tensor, name, looked))
            stack.enter_context(tape)
            work()
        for tensor, old in zip(self.standing(), before, strict=True):
            tensor.copy_(old)
        self.recorded += 1
        self.outside |= tape.outside

        @torch.inference_mode()
        def replay() -> None:
            self.replayed += 1
            for step in tape.steps:
                step()

        return replay
