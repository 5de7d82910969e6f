"""From the host to where the kernels run."""

from __future__ import annotations

import torch


def send(values: list[int] | list[list[int]] | list[bool] | torch.Tensor, on: torch.device) -> torch.Tensor:
    """Host numbers on a device; Python integers become int64. The host does not wait: to a GPU they go through pinned
    memory, which torch keeps until the copy has run."""
    made = values if isinstance(values, torch.Tensor) else torch.tensor(values)
    return made if on.type == "cpu" else made.pin_memory().to(on, non_blocking=True)


def send_together(parts: list[torch.Tensor], on: torch.device) -> list[torch.Tensor]:
    """Several int64 tensors in one transfer."""
    if on.type == "cpu":
        return parts
    sent = send(torch.cat([part.reshape(-1) for part in parts]), on)
    pieces = sent.split([part.numel() for part in parts])
    return [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]
