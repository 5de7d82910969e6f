"""Matrix products of a layer, and what adapters add to them."""

from __future__ import annotations

from types import ModuleType

import torch

from ..checkpoint.lora import LoraAdapter
from .rows import Tile

Tensor = torch.Tensor


class Projection:
    """A weight matrix by name, with whatever adapters the tile's rows carry."""

    def __init__(self, k: ModuleType, tensors: dict[str, Tensor], name: str) -> None:
        self.k = k
        self.name = f"{name}.weight"
        self.weight = tensors[self.name]
        self.bias = tensors.get(f"{name}.bias")

    def __call__(self, x: Tensor, tile: Tile) -> Tensor:
        """[R, in] to [R, out]."""
        y = self.k.linear(x, self.weight, self.bias)
        for mask, adapter in tile.loras:
            delta = adapter.deltas.get(self.name)
            if delta is not None:
                a, b, scale = delta
                y = torch.where(mask, y + self.k.linear(self.k.linear(x, a), b) * scale, y)
        return y


class Stack:
    """Projections of one input as one product: their weights one above the other.

    ``order`` lists the rows of the stacked output as they shall come, where a checkpoint stores them interleaved.
    """

    def __init__(
        self, k: ModuleType, tensors: dict[str, Tensor], names: list[str], order: Tensor | None = None
    ) -> None:
        self.k, self.order = k, order
        self.names = [f"{name}.weight" for name in names]
        self.sizes = [tensors[name].shape[0] for name in self.names]
        self.weight = torch.cat([tensors[name] for name in self.names])
        biases = [tensors[f"{name}.bias"] for name in names if f"{name}.bias" in tensors]
        self.bias = torch.cat(biases) if biases else None
        if order is not None:
            self.weight = self.weight[order].contiguous()

    def __call__(self, x: Tensor, tile: Tile) -> Tensor:
        """[R, in] to [R, sum of outputs]."""
        y = self.k.linear(x, self.weight, self.bias)
        for mask, adapter in tile.loras:
            if any(name in adapter.deltas for name in self.names):
                y = torch.where(mask, y + self._delta(x, adapter), y)
        return y

    def _delta(self, x: Tensor, adapter: LoraAdapter) -> Tensor:
        """What an adapter adds, in the order of the output."""
        parts = []
        for name, size in zip(self.names, self.sizes, strict=True):
            if name in adapter.deltas:
                a, b, scale = adapter.deltas[name]
                parts.append(self.k.linear(self.k.linear(x, a), b) * scale)
            else:
                parts.append(x.new_zeros((x.shape[0], size)))
        stacked = torch.cat(parts, dim=-1)
        return stacked if self.order is None else stacked[:, self.order]


class Mlp:
    """SwiGLU."""

    def __init__(self, k: ModuleType, tensors: dict[str, Tensor], prefix: str) -> None:
        self.k = k
        self.both = Stack(k, tensors, [f"{prefix}gate_proj", f"{prefix}up_proj"])
        self.down = Projection(k, tensors, f"{prefix}down_proj")

    def __call__(self, x: Tensor, tile: Tile) -> Tensor:
        """[R, W] to [R, W]."""
        gate, up = self.both(x, tile).split_with_sizes(self.both.sizes, dim=-1)
        return self.down(self.k.swiglu(gate, up), tile)
