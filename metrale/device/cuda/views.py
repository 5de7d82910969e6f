"""What a kernel can take as it lies in memory. 128-bit accesses need addresses that are multiples of 16 bytes; a view
into a larger tensor may begin at any element, and so may each of its rows."""

from __future__ import annotations

import torch

from .storage import vector_of

Tensor = torch.Tensor
ALIGNMENT = 16
"""Bytes of the widest access."""


def aligned(*tensors: Tensor) -> bool:
    """Whether every tensor begins where a 128-bit access may."""
    return all(tensor.data_ptr() % ALIGNMENT == 0 for tensor in tensors)


def vector_for(width: int, *tensors: Tensor) -> int:
    """Elements that a thread moves at once in contiguous rows of ``width``: one by one where a tensor is unaligned."""
    return vector_of(width) if aligned(*tensors) else 1


def dense(tensor: Tensor) -> Tensor:
    """The tensor itself if it is contiguous and aligned, else a copy that is."""
    tensor = tensor.contiguous()
    return tensor if aligned(tensor) else tensor.clone()


def by_rows(tensor: Tensor, vector: int) -> Tensor:
    """The tensor itself if each row of its first dimension is contiguous and, for more than one element at a time,
    aligned; else a dense copy. A kernel takes ``memory(tensor)`` and ``tensor.stride(0)``."""
    inner = 1
    for size, stride in zip(tensor.shape[:0:-1], tensor.stride()[:0:-1], strict=True):
        if size > 1 and stride != inner:
            return dense(tensor)
        inner *= size
    apart = tensor.shape[0] > 1 and tensor.stride(0) * tensor.element_size() % ALIGNMENT
    return dense(tensor) if vector > 1 and (apart or not aligned(tensor)) else tensor
