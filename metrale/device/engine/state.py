"""What the engine keeps for one sequence beside the shared fields (S6 section 2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from metrale.core.io import DeviceFault
from metrale.core.sequence import Sequence

from ..checkpoint.lora import LoraAdapter
from ..model.rows import Intermediate
from .streams import Mark

if TYPE_CHECKING:
    from ..model.drafter import DraftMemory
    from .prefix_cache import Match


@dataclass(slots=True)
class Saved:
    """A copy of the recurrent state of all layers, and the position it stands at."""

    position: int
    h: torch.Tensor
    conv: torch.Tensor


@dataclass(slots=True, eq=False)
class EngineState:
    """``slot`` is the physical place. ``rec``: how many fed tokens the live recurrent state has absorbed.

    ``window_at`` and ``window``: position of the latest verify's first row and the states after its rows. ``secondary``
    and ``prefill`` mark the last work on this sequence in those streams. ``match`` is what the prefix cache gave.
    """

    slot: int
    blocks: list[int] = field(default_factory=list)
    table: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    rec: int = 0
    window_at: int = 0
    window: list[Intermediate] = field(default_factory=list)
    checkpoint: Saved | None = None
    ring: dict[int, Saved] = field(default_factory=dict)
    secondary: Mark | None = None
    prefill: Mark | None = None
    adapter: LoraAdapter | None = None
    history_from: int = 0
    draft: DraftMemory | None = None
    match: Match | None = None
    checkpointed_block: int = 0


def state_of(seq: Sequence) -> EngineState:
    """The engine's record of a live sequence. Raises DeviceFault for one that was freed."""
    state = seq.state
    if not isinstance(state, EngineState):
        raise DeviceFault(f"sequence s{seq.session_hash}@{seq.slot} is not alive on this device")
    return state
