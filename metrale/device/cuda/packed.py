"""Kernel launches with parameters packed by hand.

Numba converts every argument anew at each launch, which takes longer than most kernels of a decode step. Here a
specialised kernel keeps one buffer of parameters; a launch fills in addresses and sizes and calls the driver, which
copies the buffer before it returns.

The layout is that of Numba's kernels: a one-dimensional contiguous array is seven words (meminfo, parent, elements,
item size, address, shape, stride), an int64 one word, a float32 half a word.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import torch
from cuda.bindings import driver
from numba import types

Argument = torch.Tensor | int | float

WORD = 8
ARRAY_WORDS = 7
ELEMENTS = {
    torch.float32: types.float32,
    torch.bfloat16: types.uint16,
    torch.int64: types.int64,
    torch.bool: types.uint8,
    torch.uint8: types.uint8,
}


def type_of(argument: Argument) -> Any:
    """The Numba type that a kernel is specialised on. Raises TypeError for what kernels do not take."""
    if isinstance(argument, torch.Tensor):
        if argument.dtype not in ELEMENTS:
            raise TypeError(f"kernels take no tensor of {argument.dtype}")
        return types.Array(ELEMENTS[argument.dtype], 1, "C")
    return types.float32 if isinstance(argument, float) else types.int64


class Parameters:
    """The parameter buffer of one specialisation; ``address`` is that of the list of pointers to its parameters."""

    def __init__(self, arguments: tuple[Argument, ...]) -> None:
        codes, self.sizes, offsets = "<", [], []
        for argument in arguments:
            array = isinstance(argument, torch.Tensor)
            offsets += [WORD * (len(offsets) + i) for i in range(ARRAY_WORDS if array else 1)]
            self.sizes += [WORD] * ARRAY_WORDS if array else [4 if isinstance(argument, float) else WORD]
            codes += "7q" if array else "f4x" if isinstance(argument, float) else "q"
        self._packer = struct.Struct(codes)
        self._buffer = bytearray(self._packer.size)
        start = ctypes.addressof((ctypes.c_char * len(self._buffer)).from_buffer(self._buffer))
        self._pointers = (ctypes.c_void_p * len(offsets))(*(start + offset for offset in offsets))
        self.address = ctypes.addressof(self._pointers)

    def fill(self, arguments: tuple[Argument, ...]) -> None:
        """Write the values of one launch. Raises ValueError for a tensor that is not contiguous."""
        values: list[int | float] = []
        for argument in arguments:
            if not isinstance(argument, torch.Tensor):
                values.append(argument)
                continue
            if not argument.is_contiguous():
                shape, strides = tuple(argument.shape), argument.stride()
                raise ValueError(f"a kernel needs contiguous memory, not {shape} with strides {strides}")
            count, size = argument.numel(), argument.element_size()
            values += (0, 0, count, size, argument.data_ptr() if count else 0, count, size)
        self._packer.pack_into(self._buffer, 0, *values)


class PackedLauncher:
    """Specialised kernels of one GPU with their parameter buffers."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], tuple[Parameters, int]] = {}

    def launch(
        self, kernel: Any, grid: tuple[int, ...], block: int, stream: int, arguments: tuple[Argument, ...]
    ) -> None:
        """Queue a kernel on a stream (its handle). Raises RuntimeError with the driver's word for what went wrong."""
        kinds = [one.dtype if isinstance(one, torch.Tensor) else type(one) for one in arguments]
        key = (kernel, *kinds)
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = Parameters(arguments), function_of(kernel, arguments)
        parameters, function = found
        parameters.fill(arguments)
        x, y, z = (*grid, 1, 1)[:3]
        (status,) = driver.cuLaunchKernel(function, x, y, z, block, 1, 1, 0, stream, parameters.address, 0)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"launch of {kernel.py_func.__name__} with grid {grid}, block {block}: {status.name}")


def function_of(kernel: Any, arguments: tuple[Argument, ...]) -> int:
    """The driver's handle of a kernel for these arguments, compiled and loaded at the first call."""
    compiled = kernel.compile(tuple(type_of(one) for one in arguments))
    return int(compiled._codelibrary.get_cufunc().handle)
