"""Mixture of experts: few rows take their experts' weights along, many rows share a pass over each expert."""

from __future__ import annotations

from types import ModuleType

import torch

from ..checkpoint.config import ModelConfig
from .dense import Mlp, Projection
from .rows import Tile

Tensor = torch.Tensor
GATHERED = 64
"""Most pairs of a row and an expert whose weights are gathered: beyond, each chosen expert runs once for all rows."""
EXPERTS = 32
"""Most experts of which a recorded step runs all, whoever was chosen."""


class Experts:
    """Experts and a shared one. ``gathers``: few rows gather, so that the host need not know which were chosen.

    On fixed tiles an expert runs on the whole tile instead, so that a row's bits do not depend on the others.
    """

    def __init__(
        self, k: ModuleType, config: ModelConfig, tensors: dict[str, Tensor], prefix: str, gathers: bool
    ) -> None:
        assert config.experts is not None
        self.k, self.config, self.gathers = k, config.experts, gathers
        self.router = Projection(k, tensors, f"{prefix}gate")
        self.experts = [Mlp(k, tensors, f"{prefix}experts.{i}.") for i in range(config.experts.count)]
        self.shared = Mlp(k, tensors, f"{prefix}shared_expert.")
        self.shared_gate = Projection(k, tensors, f"{prefix}shared_expert_gate")
        if gathers:
            self.both = stacked([expert.both for expert in self.experts])
            self.down = stacked([expert.down for expert in self.experts])

    def __call__(self, x: Tensor, tile: Tile) -> Tensor:
        """[R, W] to [R, W]."""
        weights, chosen = self.k.route(self.router(x, tile), self.config.chosen, self.config.normalise)
        few = self.gathers and chosen.numel() <= GATHERED and not tile.loras
        total = self._gathered(x, weights, chosen) if few else self._shared_out(x, tile, weights, chosen)
        return total + self.k.sigmoid(self.shared_gate(x, tile)) * self.shared(x, tile)

    def _gathered(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Each row with the weights of its experts; ``weights`` and ``chosen`` [R, K]."""
        rows, each = chosen.shape
        picked = chosen.flatten()
        into = torch.bmm(self.both[picked], x.repeat_interleave(each, 0)[:, :, None])[:, :, 0]
        gate, up = into.chunk(2, dim=-1)
        out = torch.bmm(self.down[picked], self.k.swiglu(gate, up)[:, :, None])[:, :, 0]
        return (out.view(rows, each, -1) * weights[:, :, None]).sum(1)

    def _shared_out(self, x: Tensor, tile: Tile, weights: Tensor, chosen: Tensor) -> Tensor:
        """Every expert that some row chose runs on the whole tile, with share 0 for the others."""
        shares = x.new_zeros((x.shape[0], self.config.count)).scatter_(1, chosen, weights)
        total = torch.zeros_like(x)
        for index in range(self.config.count) if tile.fixed else chosen_by(chosen[: len(tile.rows)]):
            total = total + self.experts[index](x, tile) * shares[:, index : index + 1]
        return total


def can_be_recorded(config: ModelConfig, rows: int) -> bool:
    """Whether a step of so many rows can run without the host knowing which experts were chosen."""
    experts = config.experts
    return experts is None or experts.count <= EXPERTS or rows * experts.chosen <= GATHERED


def stacked(parts: list) -> Tensor:
    """Weights [E, out, in] of experts, which from now on are views of it."""
    whole = torch.stack([part.weight for part in parts])
    for part, weight in zip(parts, whole, strict=True):
        part.weight = weight
    return whole


def chosen_by(chosen: Tensor) -> list[int]:
    """The distinct experts of some rows; the host waits for them."""
    return sorted(set(chosen.flatten().tolist()))
