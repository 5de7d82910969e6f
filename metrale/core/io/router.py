"""The device router: plans are launched and awaited, effects applied between steps (S5 sections 2.1 to 2.4, 4, 10)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import BinaryIO, Protocol

from ..sequence import RowMask, Sequence
from .device import Device


class Ctx(Enum):
    """Drafter-context commit between forward and readback (S5 section 2.2)."""

    NONE = "None"
    UNIFIED = "Unified"
    SERIAL_APPEND = "SerialAppend"


class Readback(Enum):
    """How the picks of a step come back."""

    ARGMAX = "Argmax"
    HOST_LOGITS = "HostLogits"
    ARGMAX_MASKED = "ArgmaxMasked"


@dataclass(slots=True)
class Decode:
    """One batched decode: ``tokens[i]`` is the pending input of row i. The device appends it and advances the length.

    ``masks`` belongs to ``ARGMAX_MASKED`` alone: one pair of ids per row.
    """

    tokens: list[int]
    ctx: Ctx
    readback: Readback
    masks: list[RowMask] | None = None


@dataclass(slots=True)
class DecodeFed:
    """A decode launched while the previous one is in flight: row i reads feed cell ``sources[i]`` on the device.

    Tokens and lengths are not advanced at launch; the core books them when the step before is settled (S5 11.4).
    """

    sources: list[int]
    masks: list[RowMask]
    ctx: Ctx


Plan = Decode | DecodeFed
Ticket = int


@dataclass(slots=True)
class HostLogits:
    """A logits block on the host: ``rows`` x vocabulary bf16 values, little-endian, row after row."""

    data: bytes
    rows: int


class Router(Protocol):
    """Runs plans and effects on one device. Errors are :class:`~.errors.StepError` and nothing else."""

    @property
    def device(self) -> Device:
        """The device behind the router, for direct calls."""

    @property
    def max_depth(self) -> int:
        """How many steps may be in flight; 1: each step is settled before the next launch."""

    def launch(self, plan: Plan, seqs: list[Sequence]) -> Ticket:
        """Start a step over these rows. Raises ForwardFailed (nothing changed) or ReadbackFailed (rows advanced)."""

    def await_result(self, ticket: Ticket) -> list[int] | HostLogits:
        """Settle a step: device tokens in row order, or the logits block. Raises ReadbackFailed or EffectFailed."""

    def release_seq(self, seq: Sequence, cache: bool, what: str) -> None:
        """Offer to the prefix cache if ``cache``, free, tell the expert-parallel mirror. Never fails."""

    def compact_slot(self, seq: Sequence, target: int) -> None:
        """Move the sequence to slot ``target``. Raises EffectFailed; the sequence then keeps its slot."""

    def detach_slot(self, seq: Sequence) -> None:
        """The sequence gives its slot up. Never fails."""

    def save_sequence_state(self, seq: Sequence, writer: BinaryIO) -> None:
        """Write the spill image. Raises EffectFailed; nothing is freed."""

    def read_logits(self, rows: int) -> HostLogits:
        """Read back the logits of the latest settled step. Raises ReadbackFailed."""

    def marconi_checkpoint(self, seq: Sequence) -> object:
        """Let the prefix cache take a decode checkpoint if its rule says so. Never fails."""

    def ssm_snapshot_save(self, seq: Sequence, ring: int) -> None:
        """Save the recurrent state to a decode ring slot. Raises EffectFailed."""

    def ssm_snapshot_restore(self, seq: Sequence, ring: int) -> None:
        """Load the recurrent state from a decode ring slot. Raises EffectFailed."""

    def save_hidden_catchup(self, row: int, pos: int) -> None:
        """Keep a hidden row for the drafter's catch-up. Raises EffectFailed."""

    def sync_secondary(self) -> None:
        """Make the default stream wait for the secondary one. Raises EffectFailed."""

    def ep_shutdown(self) -> None:
        """Stop the expert-parallel workers. Never fails."""

    def quiesce(self, stream: int) -> None:
        """Wait for all work of a stream. Raises EffectFailed."""

    def reserve_kv(self, seq: Sequence) -> int | None:
        """Make sure the next position has a block: blocks added, or None when the pool is dry."""

    def rollback(self, seq: Sequence) -> None:
        """Hand back what was reserved for a discarded row. Raises EffectFailed without a reservation ledger."""

    def rotate_lora(self, name: str) -> None:
        """Make a resident adapter the active one. Raises EffectFailed with the device's words."""

    def teardown(self) -> None:
        """Free device memory; the router is not used afterwards. Raises EffectFailed."""
