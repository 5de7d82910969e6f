"""The ``fx`` lines: a router decorator that writes one line before each plan and effect (S5 section 7)."""

from __future__ import annotations

from typing import BinaryIO

from metrale.core.io import Decode, HostLogits, Plan, Readback, Router, Ticket
from metrale.core.sequence import Sequence

from .recording import Write


def _bool(value: bool) -> str:
    return "true" if value else "false"


class TracingRouter:
    """Writes one ``fx`` line before each plan and effect, also when that then fails (S5 section 7)."""

    def __init__(self, inner: Router, write: Write) -> None:
        self.inner = inner
        self.write = write
        self.device = inner.device
        self.max_depth = inner.max_depth
        self.await_result = inner.await_result

    def launch(self, plan: Plan, seqs: list[Sequence]) -> Ticket:
        self.write(f"fx launch {plan_label(plan)}")
        return self.inner.launch(plan, seqs)

    def _apply(self, label: str) -> None:
        self.write(f"fx apply {label}")

    def release_seq(self, seq: Sequence, cache: bool, what: str) -> None:
        self._apply(f"ReleaseSeq{{cache={_bool(cache)}, {what}}}")
        self.inner.release_seq(seq, cache, what)

    def compact_slot(self, seq: Sequence, target: int) -> None:
        self._apply(f"CompactSlot{{target={target}}}")
        self.inner.compact_slot(seq, target)

    def detach_slot(self, seq: Sequence) -> None:
        self._apply("DetachSlot")
        self.inner.detach_slot(seq)

    def save_sequence_state(self, seq: Sequence, writer: BinaryIO) -> None:
        self._apply("SaveSequenceState")
        self.inner.save_sequence_state(seq, writer)

    def read_logits(self, rows: int) -> HostLogits:
        self._apply(f"ReadLogits{{rows={rows}}}")
        return self.inner.read_logits(rows)

    def marconi_checkpoint(self, seq: Sequence) -> None:
        self.write("fx apply MarconiCheckpoint")
        self.inner.marconi_checkpoint(seq)

    def ssm_snapshot_save(self, seq: Sequence, ring: int) -> None:
        self._apply(f"SsmSnapshotSave{{slot={ring}}}")
        self.inner.ssm_snapshot_save(seq, ring)

    def ssm_snapshot_restore(self, seq: Sequence, ring: int) -> None:
        self._apply(f"SsmSnapshotRestore{{slot={ring}}}")
        self.inner.ssm_snapshot_restore(seq, ring)

    def save_hidden_catchup(self, row: int, pos: int) -> None:
        self._apply(f"SaveHiddenCatchup{{row={row}, pos={pos}}}")
        self.inner.save_hidden_catchup(row, pos)

    def sync_secondary(self) -> None:
        self._apply("SyncSecondary")
        self.inner.sync_secondary()

    def ep_shutdown(self) -> None:
        self._apply("EpShutdown")
        self.inner.ep_shutdown()

    def quiesce(self, stream: int) -> None:
        self._apply(f"Quiesce{{stream={stream}}}")
        self.inner.quiesce(stream)

    def reserve_kv(self, seq: Sequence) -> int | None:
        self._apply("ReserveKv")
        return self.inner.reserve_kv(seq)

    def rollback(self, seq: Sequence) -> None:
        self._apply("Rollback")
        self.inner.rollback(seq)

    def rotate_lora(self, name: str) -> None:
        self.write(f"fx lora Rotate({name})")
        self.inner.rotate_lora(name)

    def teardown(self) -> None:
        self.write("fx teardown")
        self.inner.teardown()


def plan_label(plan: Plan) -> str:
    """The plan as an ``fx launch`` line shows it."""
    if not isinstance(plan, Decode):
        rows = len(plan.sources)
        return f"DecodeFed{{n={rows}, fed={rows}, ctx={plan.ctx.value}}}"
    readback = plan.readback.value
    if plan.readback is Readback.ARGMAX_MASKED:
        readback += f"{{n={len(plan.masks or ())}}}"
    return f"Decode{{n={len(plan.tokens)}, ctx={plan.ctx.value}, readback={readback}}}"
