"""The sequence object that core and device share (S6 section 2), and slices of a prompt being prefilled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .request import Request

NO_SLOT = 2**64 - 1
"""The slot of a detached sequence, as it prints (S1 section 1)."""

U32 = 0xFFFFFFFF

NO_ID = 0xFFFFFFFF
"""The half of a row mask that means "no id" (S5 section 2.2)."""

RowMask = tuple[int, int]
UNMASKED: RowMask = (NO_ID, NO_ID)


@dataclass(slots=True, eq=False)
class Sequence:
    """One device sequence.

    ``tokens`` are the fed tokens, ``seq_len`` their count. Device and scheduler edit both: a forward appends, the
    scheduler rewinds (no call announces a rewind). ``num_blocks`` is the length of the block table; only the device
    writes it. ``slot`` is the label that prints; ``state`` belongs to the device alone.
    """

    slot: int
    request: Request | None = None
    tokens: list[int] = field(default_factory=list)
    seq_len: int = 0
    num_blocks: int = 0
    session_hash: int = 0
    prompt_len: int = 0
    adapter_slot: int = -1
    adapter_id: int = 0
    acquired_adapter: int = -1
    cached_tokens: int = 0
    state: Any = None

    def rewind(self, count: int) -> None:
        """Drop the last ``count`` fed tokens; blocks stay (S4 notation)."""
        if count > 0:
            del self.tokens[-count:]
            self.seq_len -= count

    @property
    def ep_slot(self) -> int:
        """The slot as the 32-bit word of an expert-parallel broadcast."""
        return self.slot & U32


@dataclass(slots=True)
class PrefillSlice:
    """Rows ``[start, start + length)`` of a prompt for one sequence; ``last`` marks the end of the prompt."""

    seq: Sequence
    prompt: list[int]
    start: int
    length: int
    last: bool


def blocks_for(length: int, block_size: int) -> int:
    """KV blocks for ``length`` tokens and the next one: ``length // block_size + 1`` (S1 section 2)."""
    return length // (block_size or 1) + 1
