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
