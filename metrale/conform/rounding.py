"""Where rounding decides: a text may leave the text alone where two best logits tie (S6 section 8, last lines).

On a GPU the same row may get other bits in another batch. Then a greedy text may take the other of two tokens whose
logits are as good as equal, and goes its own way from there. It is excused only if it is a greedy text all the same:
a sequence of its own is fed with it, token by token, and at every position the token taken must be the best one to
within a share of the range of the logits there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from metrale.device.conformance.driver import prefilled
from metrale.device.engine import EngineDevice


@dataclass(frozen=True, slots=True)
class Worst:
    """The token of a text that is furthest from being the best: its place, and by how much of the logit range."""

    position: int
    margin: float


def shortfall(logits: torch.Tensor, token: int) -> float:
    """How far ``token`` lies below the best of a row [V], as a share of the row's range; infinite for a row that has
    no range, or is not finite, unless the token is the best."""
    row = logits.detach().to("cpu", torch.float64)
    if not 0 <= token < row.numel() or not bool(torch.isfinite(row).all()):
        return float("inf")
    gap, spread = float(row.max() - row[token]), float(row.max() - row.min())
    if gap == 0:
        return 0.0
    return gap / spread


def furthest(device: EngineDevice, prompt: list[int], text: list[int]) -> Worst:
    """Feed ``text`` after ``prompt``, alone, and look for its token that is furthest from the best one."""
    seq = prefilled(device, prompt)
    worst = Worst(0, 0.0)
    for position, token in enumerate(text):
        margin = shortfall(device.logits[0], token)
        if margin > worst.margin:
            worst = Worst(position, margin)
        device.decode_batch([token], [seq], 0)
    device.free_sequence(seq)
    return worst


def excuse(device: EngineDevice, prompt: list[int], text: list[int], tolerance: float) -> str:
    """Why a text that differs from the one alone is greedy all the same; nothing if it is not."""
    worst = furthest(device, prompt, text)
    if worst.margin > tolerance:
        return ""
    return f"rounding: margin {worst.margin:.1e} of the logit range at token {worst.position}"
