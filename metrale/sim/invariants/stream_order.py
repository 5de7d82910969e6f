"""Happens-before over streams and events (S6 section 7)."""

from __future__ import annotations

from metrale.trace import records as r

from .base import Invariant, on
from .ghost import Ghost, Seq
from .replay_drafts import VERIFIES


class StreamOrder(Invariant):
    """See ``sentence``.

    Work on the prefill stream is seen by stream 0 once it waited for an event recorded behind it. A forward on the
    prefill stream shares buffers with stream 0, whose work must have been read back. Copies on the secondary stream
    are waited for before the next verify or decode of their sequence; two exceptions are in S6 section 7.3: the
    n-gram lane, which decodes over its own rollback, and mixed steps.
    """

    name = "stream-order"
    sentence = "No call reads or overwrites work of another stream that nothing waited for."

    def __init__(self, ghost: Ghost) -> None:
        super().__init__(ghost)
        self.unseen = 0
        self.marks: dict[int, tuple[int, int]] = {}
        self.prefill_work = 0
        self.prefill_seen = 0
        self.prefill_line = 0
        self.pending_read = 0

    # -- work on the prefill stream

    @on(r.PrefillChunk, r.PrefillBatchChunk, r.MixedForward, r.MixedForwardBatch, r.PrefillTwophase)
    def forward(self, rec: r.PrefillChunk) -> None:
        if rec.error is not None:
            return
        if self.pending_read:
            self.fail("a prefill runs while nobody has read back the decode step before it", self.pending_read)
        if rec.stream != 0:
            self.prefill_work += 1
            self.prefill_line = self.g.line

    @on(r.NormalizeSsmStates)
    def normalise(self, rec: r.NormalizeSsmStates) -> None:
        self.prefill_work += 1

    @on(r.RecordEvent)
    def record(self, rec: r.RecordEvent) -> None:
        g = self.g
        if rec.event != g.prefill_event or rec.stream != g.prefill_stream:
            self.fail(
                f"the prefill event {g.prefill_event} marks the prefill stream {g.prefill_stream}, "
                f"not event {rec.event} stream {rec.stream}"
            )
        if rec.error is None:
            self.marks[rec.event] = (rec.stream, self.prefill_work)

    @on(r.StreamWaitEvent)
    def wait(self, rec: r.StreamWaitEvent) -> None:
        g = self.g
        if rec.stream != 0 or rec.event != g.prefill_event:
            self.fail(f"stream 0 waits for event {g.prefill_event}, not stream {rec.stream} for event {rec.event}")
        mark = self.marks.get(rec.event)
        if mark is None:
            self.fail(f"event {rec.event} was never recorded: the wait waits for nothing")
        elif mark[0] != 0 and rec.error is None:
            self.prefill_seen = max(self.prefill_seen, mark[1])

    # -- reads on stream 0

    @on(r.ArgmaxOnDevice, r.ArgmaxBatch, r.CopyLogitsToHost, r.ArgmaxBatchToFeed)
    def read(self, rec: r.ArgmaxOnDevice) -> None:
        if self.prefill_seen < self.prefill_work:
            self._unordered("logits are read")
        if not isinstance(rec, r.ArgmaxBatchToFeed):
            self.pending_read = 0

    @on(r.DecodeBatch, r.DecodeBatchFed, r.Decode, r.DecodeVerifyBatched, r.Prefill, *VERIFIES)
    def use(self, rec: r.DecodeBatch) -> None:
        if self.prefill_seen < self.prefill_work:
            self._unordered(f"a {rec.call} runs")
        if rec.error is None and isinstance(rec, r.DecodeBatch):
            self.pending_read = self.g.line

    @on(r.Tick)
    def tick(self, rec: r.Tick) -> None:
        self.pending_read = 0

    def _unordered(self, what: str) -> None:
        self.fail(f"{what} on stream 0, which has not waited for the prefill stream's work", self.prefill_line)
        self.prefill_seen = self.prefill_work

    # -- the secondary stream

    @on(r.DecodeVerifyBatched)
    def verify_batch(self, rec: r.DecodeVerifyBatched) -> None:
        for sid in rec.seqs:
            self._copied(self.g.live.get(sid.slot), "verified")

    @on(*VERIFIES)
    def verify(self, rec: r.DecodeVerify) -> None:
        self._copied(self.g.live.get(rec.seq.slot), "verified")

    @on(r.Decode)
    def decode(self, rec: r.Decode) -> None:
        seq = self.g.live.get(rec.seq.slot)
        if seq is not None and seq.mtp:
            self._copied(seq, "decoded")

    @on(r.DecodeBatch)
    def decode_batch(self, rec: r.DecodeBatch) -> None:
        if not self.g.uses_mtp:
            return
        for sid in rec.seqs:
            seq = self.g.live.get(sid.slot)
            if seq is not None and seq.mtp:
                self._copied(seq, "decoded")

    def _copied(self, seq: Seq | None, what: str) -> None:
        if seq is not None and seq.secondary:
            self.fail(
                f"s{seq.hash}@{seq.slot} is {what} while the secondary stream may still {seq.secondary} its state",
                seq.secondary_line,
            )
            seq.secondary = ""
