"""Parked work: requeued or spilled, and how it comes back (S1 sections 12, 17, 18, 19)."""

from __future__ import annotations

from metrale.trace import records as r

from .base import Invariant, on
from .ghost import UNKNOWN, Ghost, Life, Parked

Complaint = tuple[Life, str, tuple[int, ...]]


class ParkedWork(Invariant):
    """See ``sentence``.

    A parked request that is cancelled or expires leaves without a line; what looks wrong because of that is judged at
    the end, when the client lines are known.
    """

    name = "parked-work"
    sentence = (
        "Parked work comes back once, as it was, as soon as it fits: a restore has its save, a resume its preemption, "
        "the fewest blocks first."
    )

    def __init__(self, ghost: Ghost) -> None:
        super().__init__(ghost)
        self.later: list[Complaint] = []
        self.tried: list[tuple[int, int]] = []
        self.last_activity = 0
        self.seats = 0
        self.overtaken: list[tuple[Parked, int]] = []
        self.stuck: list[Complaint] = []
        self.failed = False
        self.looks = 0
        self.restored = False

    # -- tries

    @on(r.NumFreeBlocks)
    def free_blocks(self, rec: r.NumFreeBlocks) -> None:
        self.tried.append((self.g.line, rec.result))
        self.looks += 1

    @on(
        r.FxReleaseSeq, r.FreeSequence, r.FxLaunchDecode, r.DecodeBatch, r.PollInnerq, r.DecodeMarconiCheckpoint,
        r.AllocSequence, r.AllocSequenceFor, r.Prefill, r.AcquireAdapterSlot, r.CompactSequence,
        r.RestoreSequenceState, r.ArgmaxBatch,
    )  # fmt: skip
    def activity(self, rec: r.Record) -> None:
        if isinstance(rec, r.AllocSequence):
            self.last_activity = self.tried[-1][1] if self.tried else -1
        if self.tried:
            self.tried = []

    @on(r.Tick)
    def tick(self, rec: r.Tick) -> None:
        g = self.g
        tries, self.tried = self.tried[:-1], []
        complaints, self.stuck = self.stuck, []
        self.later += complaints
        count = len(g.active)
        if (g.requeued or g.spilled) and rec.tick > 1:
            self._nobody_tried(tries, count)
        self.seats = max(self.seats, count)
        self.looks, self.restored = 0, False

    def _nobody_tried(self, tries: list[tuple[int, int]], count: int) -> None:
        g = self.g
        if (g.depth_two and g.flight) or self.failed:
            self.failed = False
            return
        for entry, want in [(parked, parked.blocks) for parked in g.spilled] + [
            (parked, parked.length // g.pool.low + 2) for parked in g.requeued if g.pool.low == g.pool.high
        ]:
            if want is None or (self.restored and entry.blocks is not None):
                continue  # which image came back is known at the first decode
            looked = tries if entry.blocks is None else self.looks > 1
            if not looked and count < self.seats and self._alone(entry):
                text = f"s{entry.hash} is parked since line {entry.line} and nobody looks for blocks for it"
                self.stuck.append((entry.life, text, (entry.line, g.line)))
            elif tries and tries[-1][1] >= want and self._alone(entry):
                text = f"s{entry.hash} is parked and needs {want} blocks; {tries[-1][1]} are free and it is left behind"
                self.stuck.append((entry.life, text, (entry.line, tries[-1][0])))

    def _alone(self, entry: Parked) -> bool:
        """A requeued entry waits behind those with fewer blocks; the first in line is the one to judge."""
        return entry.blocks is not None or entry is min(self.g.requeued, key=lambda one: one.length)

    @on(r.FxEpShutdown)
    def shutdown(self, rec: r.FxEpShutdown) -> None:
        self.stuck = []

    # -- coming back

    @on(r.Prefill)
    def resume(self, rec: r.Prefill) -> None:
        g = self.g
        seq = g.live.get(rec.seq.slot)
        if seq is None or seq.named or seq.origin.name != "RESUME":
            return
        self.failed = self.failed or rec.error is not None
        parked = next((entry for entry in g.requeued if entry.hash == rec.seq.hash), None)
        if parked is None:
            self.fail(f"s{rec.seq.hash} is resumed, but it was not preempted")
            return
        if rec.n != parked.length:
            self.fail(f"s{rec.seq.hash} was preempted with {parked.length} tokens, {rec.n} are prefilled", parked.line)
        if self.last_activity < 0:
            self.fail(f"s{rec.seq.hash} is resumed, but nobody looked for free blocks", parked.line)
        size = g.pool.low
        if size == g.pool.high:
            want = parked.length // size + 2
            if self.last_activity < want:
                self.fail(
                    f"s{rec.seq.hash} needs {want} free blocks to resume, {self.last_activity} were free", parked.line
                )
            for entry in g.requeued:
                if entry is not parked and entry.length // size < parked.length // size:
                    text = f"s{parked.hash} is resumed before s{entry.hash}, which needs fewer blocks"
                    self.overtaken.append((entry, g.line))
                    self.later.append((entry.life, text, (entry.line, g.line)))

    @on(r.RestoreSequenceState)
    def restore(self, rec: r.RestoreSequenceState) -> None:
        g = self.g
        self.failed = self.failed or rec.error is not None
        self.restored = True
        if not any(entry.blocks == rec.blocks for entry in g.spilled):
            self.fail(f"{rec.blocks} blocks are restored, but no image of that size was saved")
        elif self.last_activity < rec.blocks:
            self.fail(f"{rec.blocks} blocks are restored, {self.last_activity} were free")

    @on(r.DecodeBatch)
    def decode(self, rec: r.DecodeBatch) -> None:
        """A restored sequence must be one of the images of its size: its first decode tells which."""
        live = self.g.live
        for token, sid in zip(rec.tokens, rec.seqs, strict=False):
            if sid.hash:
                continue
            seq = live.get(sid.slot)
            if seq is not None and (sid.length != seq.length or seq.pending not in (token, UNKNOWN)):
                self.g.reconsider(seq, sid.length, token)

    def finish(self) -> None:
        g = self.g
        ended = {
            out.id
            for _, out in g.outs
            for event in out.events
            if getattr(event, "reason", "") in ("cancelled", "timeout") or isinstance(event, r.Error | r.Err)
        }
        for life, text, lines in self.later:
            if life.id not in ended and life.end not in (None, "preempt_requeue", "spill_out_sequence"):
                g.line = 0
                self.fail(text, *lines)
