"""How releases, moves, spills and reservations change the ghost, beside :mod:`.replay` (S1 sections 2, 19)."""

from __future__ import annotations

from metrale.trace import records as r
from metrale.trace.values import DETACHED_SLOT, SeqId

from .base import on
from .ghost import UNKNOWN, Ghost, Origin, Parked, Phase, Seq

PARKING = {"preempt_requeue": "active -> requeued", "spill_out_sequence": "active -> spilled"}


class MemoryReplay:
    """Sequences that leave, move, are saved and restored."""

    g: Ghost
    _release: str | None

    def christen(self, sid: SeqId) -> Seq | None:
        raise NotImplementedError

    def grown(self, seq: Seq, length: int) -> None:
        raise NotImplementedError

    def rewind(self, seq: Seq, length: int) -> None:
        raise NotImplementedError

    # -- release

    @on(r.FxReleaseSeq)
    def releasing(self, rec: r.FxReleaseSeq) -> None:
        self._release = rec.what

    @on(r.FreeSequence)
    def free(self, rec: r.FreeSequence) -> None:
        g = self.g
        what, self._release = self._release, None
        seq = self.christen(rec.seq)
        if seq is None:
            return
        if seq.ahead and rec.seq.length > seq.length:
            g.settle_ahead(seq)
        g.freed[(rec.seq.hash, rec.seq.slot)] = g.line
        if g.live.get(seq.slot) is seq:
            del g.live[seq.slot]
        elif seq in g.detached:
            g.detached.remove(seq)
        if seq in g.active:
            self._leave(seq, what)
        if seq in g.prefilling:
            g.prefilling.remove(seq)
        if g.newest is seq:
            g.newest = None
        g.pool.drop(seq)
        self._end_life(seq, what or "direct")
        seq.phase = Phase.GONE

    def _leave(self, seq: Seq, what: str | None) -> None:
        """An admission-time spill puts the last row into the hole; everybody else leaves in order (S1 section 19)."""
        active = self.g.active
        index = active.index(seq)
        if what == "spill_out_sequence" and not self.g.failed_decode:
            last = active.pop()
            if last is not seq:
                active[index] = last
        else:
            del active[index]

    def _end_life(self, seq: Seq, what: str) -> None:
        g, life = self.g, seq.life
        if life is None:
            return
        life.end, life.ended, life.end_length = what, g.line, seq.length
        if what in PARKING:
            life.steps.append(PARKING[what])
        if what in PARKING:
            life.flush()
            blocks = seq.low if what == "spill_out_sequence" else None
            entry = Parked(life, life.id, seq.length, blocks, seq.pending, seq.fresh, seq.adapter, g.line, life.outputs)
            (g.requeued if blocks is None else g.spilled).append(entry)
        elif seq.phase is Phase.EMPTY and what == "finish_sequence":
            life.hypothesis = seq.hypothesis
            if life.hypothesis is None and g.hypotheses:
                life.hypothesis = g.hypotheses.pop(0)
        life.ended_by_drop = seq.fresh
        life.run_at_end = bool(life.run)
        if seq.fresh and what != "preempt_requeue":
            life.dropped.append(seq.pending)

    @on(r.CompactSequence)
    def compact(self, rec: r.CompactSequence) -> None:
        g = self.g
        seq = g.at(rec.seq)
        if rec.error is not None or seq is None:
            return
        if g.live.get(seq.slot) is seq:
            del g.live[seq.slot]
        displaced = g.live.get(rec.new_slot)
        if displaced is not None and displaced is not seq:
            g.detached.append(displaced)
        g.live[rec.new_slot] = seq
        seq.slot, seq.moved = rec.new_slot, g.line

    @on(r.DetachSlotForReuse)
    def detach(self, rec: r.DetachSlotForReuse) -> None:
        g = self.g
        seq = self._to_detach(rec.seq)
        if seq is None:
            return
        if g.live.get(seq.slot) is seq:
            del g.live[seq.slot]
            g.detached.append(seq)
        seq.slot = DETACHED_SLOT

    def _to_detach(self, sid: SeqId) -> Seq | None:
        displaced = next((seq for seq in self.g.detached if seq.slot == sid.slot and seq.hash == sid.hash), None)
        return displaced or self.g.at(sid)

    # -- spill

    @on(r.RestoreSequenceState)
    def restore(self, rec: r.RestoreSequenceState) -> None:
        g = self.g
        seq = g.live.get(rec.seq.slot)
        if seq is None:
            return
        seq.origin, seq.named, seq.hash = Origin.RESTORE, True, 0
        image = next((entry for entry in g.spilled if entry.blocks == rec.blocks), None)
        if image is not None:
            g.spilled.remove(image)
            self.take_image(seq, image)
        if rec.error is None:
            g.pool.set_base(seq, rec.blocks)
            seq.phase = Phase.READY
            self.grown(seq, seq.length)
            g.active.append(seq)

    def take_image(self, seq: Seq, image: Parked) -> None:
        """A restored sequence is what the image was."""
        seq.life, seq.length, seq.pending = image.life, image.length, image.pending
        seq.fresh, seq.picked, seq.adapter = image.fresh, image.line, image.adapter
        image.life.end = None

    # -- depth 2

    @on(r.ReserveDecodeBlock)
    def reserve(self, rec: r.ReserveDecodeBlock) -> None:
        g = self.g
        seq = g.at(rec.seq)
        if seq is None or rec.result is None:
            return
        g.settle_ahead(seq)
        seq.length = rec.seq.length
        seq.before_reserve = seq.peak
        seq.reserved = rec.result
        g.pool.cover(seq, rec.seq.length + 1)

    @on(r.ReleaseDecodeBlocks)
    def release_blocks(self, rec: r.ReleaseDecodeBlocks) -> None:
        g = self.g
        seq = g.at(rec.seq)
        if seq is None or rec.error is not None:
            return
        rolled_back = rec.seq.length < seq.length - 1
        if seq.ahead:
            seq.ahead, seq.ahead_pick = False, UNKNOWN
        else:
            seq.undo = not rolled_back
        if rolled_back:
            self.rewind(seq, rec.seq.length)
        if rec.n:
            g.pool.shrink(seq, max(seq.before_reserve, seq.length))
        seq.reserved = None
