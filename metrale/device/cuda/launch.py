"""Torch tensors to kernels and back without a copy, on torch's current stream.

Kernels start in one of three ways: on a GPU; in Numba's simulator; over CPU tensors on the PTX machine, once that is
enabled (:func:`metrale.device.ptx.runner.enable`). On a GPU parameters are packed here (:mod:`.packed`); with
``METRALE_LAUNCH=numba`` in the environment Numba converts them.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import cuda

from ..ptx import runner
from .lanes import SIMULATED
from .packed import PackedLauncher
from .storage import BF16, FP32, Storage

if SIMULATED:
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

PACKED = os.environ.get("METRALE_LAUNCH", "packed") != "numba"
STORAGES = {torch.float32: FP32, torch.bfloat16: BF16}


def storage_of(tensor: torch.Tensor) -> Storage:
    """How a tensor's elements lie in memory. Raises TypeError for what kernels do not take."""
    if tensor.dtype not in STORAGES:
        raise TypeError(f"kernels take float32 and bfloat16, not {tensor.dtype}")
    return STORAGES[tensor.dtype]


def flat(tensor: torch.Tensor) -> Any:
    """A one-dimensional array over a contiguous tensor's memory; bf16 appears as 16-bit integers."""
    if not tensor.is_contiguous():
        raise ValueError(f"a kernel needs contiguous memory, not {tuple(tensor.shape)} with strides {tensor.stride()}")
    tensor = tensor.detach().view(-1)
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.uint16)
    elif tensor.dtype == torch.bool:
        tensor = tensor.view(torch.uint8)
    if SIMULATED:
        return FakeCUDAArray(tensor.numpy())
    if tensor.device.type == "cpu":
        return tensor.numpy()
    return cuda.as_cuda_array(tensor, sync=False)


def memory(tensor: torch.Tensor) -> torch.Tensor:
    """From the tensor's first element to the end of its storage, whatever its strides."""
    room = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    return tensor.as_strided((room,), (1,))


@cache
def _external(pointer: int) -> Any:
    return cuda.external_stream(pointer) if pointer else cuda.default_stream()


_launcher = PackedLauncher()


def launch(kernel: Any, grid: tuple[int, ...], block: int, *arguments: Any) -> None:
    """Run a kernel. Tensors are flattened, floats become float32; an empty grid is nothing to do."""
    if 0 in grid:
        return
    if SIMULATED:
        kernel[grid, block](*map(_argument, arguments))
        return
    if any(isinstance(one, torch.Tensor) and not one.is_cuda for one in arguments):
        if runner.active is None:
            raise ValueError("a kernel over CPU tensors needs the PTX machine: metrale.device.ptx.runner.enable()")
        runner.active.run(kernel, grid, block, [_argument(one) for one in arguments])
        return
    stream = torch.cuda.current_stream().cuda_stream
    if PACKED:
        _launcher.launch(kernel, grid, block, stream, arguments)
    else:
        kernel[grid, block, _external(stream)](*map(_argument, arguments))


def _argument(one: Any) -> Any:
    if isinstance(one, torch.Tensor):
        return flat(one)
    return np.float32(one) if isinstance(one, float) else one


def blocks_for(work: int, block: int) -> tuple[int]:
    """A grid that covers ``work`` threads."""
    return (-(-work // block),)
