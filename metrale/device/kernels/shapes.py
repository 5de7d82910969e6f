"""What kernels are told about the rows of a tile beside their numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .transfer import send


@dataclass(slots=True)
class Paging:
    """Where each live row's context lies: block tables (host tensors), contexts and first positions in tokens.

    ``plan`` is what a backend made of them for the device, once for all layers of a tile.
    """

    tables: list[torch.Tensor]
    contexts: list[int]
    starts: list[int]
    plan: Any = None


@dataclass(slots=True)
class Runs:
    """The state slot of each live row. Rows of one sequence follow each other.

    ``on_device``: slot of each run [N], and the rows at which runs start [N + 1], the end among them.
    """

    slots: list[int]
    on_device: tuple[torch.Tensor, torch.Tensor] | None = None

    def arrays(self, on: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """``on_device``, made at the first call."""
        if self.on_device is None:
            starts = [i for i, slot in enumerate(self.slots) if i == 0 or self.slots[i - 1] != slot]
            slots = [self.slots[i] for i in starts]
            self.on_device = send(slots, on), send([*starts, len(self.slots)], on)
        return self.on_device
