"""What kernels are told about the live rows of a tile beside their numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(slots=True)
class Paging:
    """Where each live row's context lies: block tables (host tensors), contexts and first positions in tokens."""

    tables: list[torch.Tensor]
    contexts: list[int]
    starts: list[int]


@dataclass(slots=True)
class Runs:
    """The state slot of each live row. Rows of one sequence follow each other."""

    slots: list[int]

    def arrays(self, on: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Slot of each run [N] and the rows at which runs start [N + 1], the end among them."""
        starts = [i for i, slot in enumerate(self.slots) if i == 0 or self.slots[i - 1] != slot]
        slots = [self.slots[i] for i in starts]
        return torch.tensor(slots, device=on), torch.tensor([*starts, len(self.slots)], device=on)
