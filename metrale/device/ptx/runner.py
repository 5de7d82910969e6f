"""Numba kernels on the machine: compiled to PTX for the types of their arguments, and run on numpy arrays.

Numba passes a one-dimensional array as seven parameters: meminfo, parent, items, bytes of an item, data, shape, stride.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from numba import cuda, typeof, types

from .machine import Launch
from .memory import Argument
from .parser import parse
from .profile import Profile
from .program import Program, prepare
from .semantics import DTYPES
from .threads import Geometry

DATA = 4
"""Of an array's parameters, the one that is its address."""

Signature = tuple[Any, ...]


@dataclass(slots=True)
class Machine:
    """What kernels run on: the compute capability that they are compiled for; whether races are looked for; profiles by
    kernel, if they are wanted; a change to every PTX text before it is read, for experiments."""

    capability: tuple[int, int] = (9, 0)
    races: bool = True
    profiles: dict[str, Profile] | None = None
    edit: Callable[[str], str] | None = None
    _programs: dict[tuple[Any, Signature], Program] = field(default_factory=dict)

    def run(self, kernel: Any, grid: tuple[int, ...], block: int, arguments: list[Any]) -> None:
        """Run a kernel over one-dimensional contiguous arrays and numbers. Raises KernelFault, and PtxError for what
        the machine does not know."""
        signature = tuple(type_of(one) for one in arguments)
        if (kernel, signature) not in self._programs:
            text = ptx_of(kernel, signature, self.capability)
            self._programs[kernel, signature] = prepare(parse(self.edit(text) if self.edit else text))
        self.run_program(self._programs[kernel, signature], kernel.py_func, grid, block, arguments)

    def kernels(self) -> list[str]:
        """Names of the kernels that ran."""
        return sorted({kernel.py_func.__name__ for kernel, _ in self._programs})

    def run_program(
        self, program: Program, function: Callable[..., Any], grid: tuple[int, ...], block: int, arguments: list[Any]
    ) -> None:
        """The same with a program at hand; ``function`` gives the names."""
        name = function.__name__
        parameters, arrays = _passed(program, list(inspect.signature(function).parameters), arguments)
        x, y, z = (*grid, 1, 1)[:3]
        profile = None if self.profiles is None else self.profiles.setdefault(name, Profile())
        if profile is not None:
            profile.launch(x * y * z * block)
        Launch(name, program, Geometry((x, y, z), (block, 1, 1)), parameters, arrays, self.races, profile).run()


def _passed(
    program: Program, names: list[str], arguments: list[Any]
) -> tuple[dict[str, np.ndarray[Any, Any]], dict[int, Argument]]:
    """Parameters by name, and the arrays by the parameter that is their address."""
    values: list[np.ndarray[Any, Any]] = []
    arrays: dict[int, Argument] = {}
    for name, one in zip(names, arguments, strict=True):
        if isinstance(one, np.ndarray):
            arrays[len(values) + DATA] = Argument(name, one.ctypes.data, one.nbytes)
            words = (0, 0, one.size, one.itemsize, 0, one.size, one.itemsize)
            values += [np.array([word], np.uint64) for word in words]
        else:
            values.append(np.array([one]))
    kinds = program.kernel.parameters
    parameters = {name: value.view(DTYPES[kind]) for (name, kind), value in zip(kinds, values, strict=True)}
    return parameters, arrays


def type_of(one: Any) -> Any:
    """Numba's type of an argument; arrays are contiguous."""
    if isinstance(one, np.ndarray):
        return types.Array(typeof(one.dtype.type(0)), 1, "C")
    return typeof(one) if isinstance(one, bool | np.generic) else types.int64


_texts: dict[tuple[Any, Signature, tuple[int, int]], str] = {}


def ptx_of(kernel: Any, signature: Signature, capability: tuple[int, int]) -> str:
    """PTX of a kernel, made with no GPU and kept for the process. Raises what numba raises."""
    key = kernel, signature, capability
    if key not in _texts:
        here = SimpleNamespace(compute_capability=capability)
        # Numba asks the present device which capability to compile inner functions for; without a GPU we answer.
        with mock.patch("numba.cuda.dispatcher.get_current_device", return_value=here):
            bounds = kernel.targetoptions.get("launch_bounds")
            _texts[key], _ = cuda.compile(
                kernel.py_func,
                signature,
                device=False,
                cc=capability,
                abi="numba",
                output="ptx",
                launch_bounds=bounds,
            )
    return _texts[key]


active: Machine | None = None
"""What kernels over CPU tensors run on; None: nothing, they need a GPU."""


def enable(machine: Machine | None = None) -> Machine:
    """From now on kernels over CPU tensors run on ``machine``; without one, on that of before or a new one."""
    global active
    active = machine or active or Machine()
    return active


@contextmanager
def interpreting(machine: Machine | None = None) -> Iterator[Machine]:
    """The same for a while."""
    global active
    before = active
    try:
        yield enable(machine)
    finally:
        active = before
