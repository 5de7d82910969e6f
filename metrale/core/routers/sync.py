"""The synchronous router: every step is settled when its launch returns (S5 section 4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

from ..io import (
    Ctx,
    Decode,
    Device,
    DeviceError,
    EffectFailed,
    ForwardFailed,
    HostLogits,
    Plan,
    Readback,
    ReadbackFailed,
    Ticket,
    reason,
)
from ..sequence import U32, Sequence

EP_FREE = 0xFFFFFFF1
EP_STOP = 0xFFFFFFFF
LOGIT_BYTES = 2


class SyncRouter:
    """Holds at most one settled, unclaimed result; a new launch replaces it."""

    max_depth = 1

    def __init__(self, device: Device) -> None:
        self.device = device
        self._ticket: Ticket = 0
        self._result: list[int] | HostLogits | None = None
        self.marconi_checkpoint = device.decode_marconi_checkpoint
        self.detach_slot = device.detach_slot_for_reuse

    def launch(self, plan: Plan, seqs: list[Sequence]) -> Ticket:
        """Forward, context commit, readback, in this order."""
        if not isinstance(plan, Decode):
            raise ForwardFailed("the synchronous router cannot launch a fed decode step")
        try:
            self.device.decode_batch(plan.tokens, seqs, 0)
        except DeviceError as error:
            raise ForwardFailed(error.text, error) from error
        commit_context(self.device, plan.ctx, seqs)
        if plan.readback is Readback.ARGMAX_MASKED:
            raise ReadbackFailed("the synchronous router has no masked feed argmax")
        try:
            if plan.readback is Readback.ARGMAX:
                self._result = self.device.argmax_batch(0, len(plan.tokens), 0)
            else:
                self._result = self._copy_logits(len(plan.tokens))
        except DeviceError as error:
            raise ReadbackFailed(error.text, error) from error
        self._ticket = (self._ticket + 1) & U32
        return self._ticket

    def await_result(self, ticket: Ticket) -> list[int] | HostLogits:
        """The stored result; a wrong ticket costs it."""
        result, self._result = self._result, None
        if result is None:
            raise EffectFailed("no step in flight")
        if ticket != self._ticket:
            raise EffectFailed(f"ticket {ticket} is not the step in flight ({self._ticket})")
        return result

    def release_seq(self, seq: Sequence, cache: bool, what: str) -> None:
        """Each call is attempted whatever the one before said; the slot is read before the free."""
        device = self.device
        if cache:
            _attempt(device.cache_sequence, seq)
        slot = seq.ep_slot
        _attempt(device.free_sequence, seq)
        _attempt(device.ep_broadcast_cmd_for_seq, slot, EP_FREE)

    def compact_slot(self, seq: Sequence, target: int) -> None:
        """One device call."""
        _effect(self.device.compact_sequence, seq, target)

    def save_sequence_state(self, seq: Sequence, writer: BinaryIO) -> None:
        """One device call; a full disk is an effect error too."""
        try:
            self.device.save_sequence_state(seq, writer)
        except DeviceError as error:
            raise EffectFailed(error.text, error) from error
        except OSError as error:
            raise EffectFailed(reason(error)) from error

    def read_logits(self, rows: int) -> HostLogits:
        """The block of the latest forward."""
        try:
            return self._copy_logits(rows)
        except DeviceError as error:
            raise ReadbackFailed(error.text, error) from error

    def ssm_snapshot_save(self, seq: Sequence, ring: int) -> None:
        """One device call."""
        _effect(self.device.save_decode_ssm_snapshot, seq, ring)

    def ssm_snapshot_restore(self, seq: Sequence, ring: int) -> None:
        """One device call."""
        _effect(self.device.restore_decode_ssm_snapshot, seq, ring)

    def save_hidden_catchup(self, row: int, pos: int) -> None:
        """One device call."""
        _effect(self.device.save_hidden_for_catchup, row, pos)

    def sync_secondary(self) -> None:
        """One device call."""
        _effect(self.device.sync_secondary)

    def ep_shutdown(self) -> None:
        """One device call, errors ignored."""
        _attempt(self.device.ep_broadcast_cmd_for_seq, 0, EP_STOP)

    def quiesce(self, stream: int) -> None:
        """One device call."""
        _effect(self.device.synchronize, stream)

    def reserve_kv(self, seq: Sequence) -> int | None:
        """Any failure means exhausted."""
        try:
            return self.device.reserve_decode_block(seq)
        except DeviceError:
            return None

    def rollback(self, seq: Sequence) -> None:
        """There is nothing to roll back at depth 1."""
        raise EffectFailed("the synchronous router keeps no reservation ledger")

    def rotate_lora(self, name: str) -> None:
        """One device call."""
        _effect(self.device.set_active_lora, name)

    def teardown(self) -> None:
        """One device call."""
        _effect(self.device.teardown)

    def _copy_logits(self, rows: int) -> HostLogits:
        nbytes = rows * self.device.facts.vocab_size * LOGIT_BYTES
        return HostLogits(self.device.copy_logits_to_host(0, 0, nbytes), rows)


def commit_context(device: Device, ctx: Ctx, seqs: list[Sequence], bases: list[int] | None = None) -> None:
    """Drafter-context commit of one step; a failing row does not stop the next. Without ``bases`` row i's position is
    the one its advanced length ends at."""
    if ctx is Ctx.UNIFIED:
        commit = device.commit_ctx
        for index, seq in enumerate(seqs):
            try:
                commit(seq, 1, seq.seq_len - 1 if bases is None else bases[index], index)
            except DeviceError:
                continue
    elif ctx is Ctx.SERIAL_APPEND:
        _attempt(device.dflash_serial_ctx_append, seqs[0])


def _attempt(call: Callable[..., object], *args: object) -> None:
    """Run a device call whose failure is only a matter for a log."""
    try:
        call(*args)
    except DeviceError:
        return


def _effect(call: Callable[..., object], *args: object) -> None:
    """Run a device call whose failure is an effect error."""
    try:
        call(*args)
    except DeviceError as error:
        raise EffectFailed(error.text, error) from error
