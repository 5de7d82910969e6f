"""The ``fx`` lines: a router decorator that writes one line before each plan and effect (S5 section 7)."""

from __future__ import annotations

from typing import BinaryIO

from metrale.core.io import Decode, HostLogits, Plan, Readback, Router, Ticket
from metrale.core.sequence import Sequence

from .recording import Write


def _bool(value: bool) -> str:
    return "true" if value else "false"


def plan_label(plan: Plan) -> str:
    """The plan as an ``fx launch`` line shows it."""
    if not isinstance(plan, Decode):
        rows = len(plan.sources)
        return f"DecodeFed{{n={rows}, fed={rows}, ctx={plan.ctx.value}}}"
    readback = plan.readback.value
    if plan.readback is Readback.ARGMAX_MASKED:
        readback += f"{{n={len(plan.masks or ())}}}"
    return f"Decode{{n={len(plan.tokens)}, ctx={plan.ctx.value}, readback={readback}}}"


class EffectLabels:
    """Forwards every router operation to ``inner``; each effect is named to :meth:`label` first.

    The base of decorators that watch effects; it overrides nothing of what the effects do.
    """

    def __init__(self, inner: Router) -> None:
        self.inner = inner
        self.device = inner.device
        self.max_depth = inner.max_depth

    def label(self, text: str) -> None:
        """The effect that is about to be applied."""

    def launch(self, plan: Plan, seqs: list[Sequence]) -> Ticket:
        return self.inner.launch(plan, seqs)

    def await_result(self, ticket: Ticket) -> list[int] | HostLogits:
        return self.inner.await_result(ticket)

    def release_seq(self, seq: Sequence, cache: bool, what: str) -> None:
        self.label(f"ReleaseSeq{{cache={_bool(cache)}, {what}}}")
        self.inner.release_seq(seq, cache, what)

    def compact_slot(self, seq: Sequence, target: int) -> None:
        self.label(f"CompactSlot{{target={target}}}")
        self.inner.compact_slot(seq, target)

    def detach_slot(self, seq: Sequence) -> None:
        self.label("DetachSlot")
        self.inner.detach_slot(seq)

    def save_sequence_state(self, seq: Sequence, writer: BinaryIO) -> None:
        self.label("SaveSequenceState")
        self.inner.save_sequence_state(seq, writer)

    def read_logits(self, rows: int) -> HostLogits:
        self.label(f"ReadLogits{{rows={rows}}}")
        return self.inner.read_logits(rows)

    def marconi_checkpoint(self, seq: Sequence) -> object:
        self.label("MarconiCheckpoint")
        return self.inner.marconi_checkpoint(seq)

    def ssm_snapshot_save(self, seq: Sequence, ring: int) -> None:
        self.label(f"SsmSnapshotSave{{slot={ring}}}")
        self.inner.ssm_snapshot_save(seq, ring)

    def ssm_snapshot_restore(self, seq: Sequence, ring: int) -> None:
        self.label(f"SsmSnapshotRestore{{slot={ring}}}")
        self.inner.ssm_snapshot_restore(seq, ring)

    def save_hidden_catchup(self, row: int, pos: int) -> None:
        self.label(f"SaveHiddenCatchup{{row={row}, pos={pos}}}")
        self.inner.save_hidden_catchup(row, pos)

    def sync_secondary(self) -> None:
        self.label("SyncSecondary")
        self.inner.sync_secondary()

    def ep_shutdown(self) -> None:
        self.label("EpShutdown")
        self.inner.ep_shutdown()

    def quiesce(self, stream: int) -> None:
        self.label(f"Quiesce{{stream={stream}}}")
        self.inner.quiesce(stream)

    def reserve_kv(self, seq: Sequence) -> int | None:
        self.label("ReserveKv")
        return self.inner.reserve_kv(seq)

    def rollback(self, seq: Sequence) -> None:
        self.label("Rollback")
        self.inner.rollback(seq)

    def rotate_lora(self, name: str) -> None:
        self.inner.rotate_lora(name)

    def teardown(self) -> None:
        self.inner.teardown()


class TracingRouter(EffectLabels):
    """Writes one ``fx`` line before each plan and effect, also when that then fails."""

    def __init__(self, inner: Router, write: Write) -> None:
        super().__init__(inner)
        self.write = write
        self._marconi = inner.marconi_checkpoint

    def label(self, text: str) -> None:
        """``fx apply``."""
        self.write(f"fx apply {text}")

    def launch(self, plan: Plan, seqs: list[Sequence]) -> Ticket:
        self.write(f"fx launch {plan_label(plan)}")
        return self.inner.launch(plan, seqs)

    def marconi_checkpoint(self, seq: Sequence) -> object:
        self.write("fx apply MarconiCheckpoint")
        return self._marconi(seq)

    def rotate_lora(self, name: str) -> None:
        self.write(f"fx lora Rotate({name})")
        self.inner.rotate_lora(name)

    def teardown(self) -> None:
        self.write("fx teardown")
        self.inner.teardown()
