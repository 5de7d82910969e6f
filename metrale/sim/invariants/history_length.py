"""At what length a line may name a sequence (S6 sections 1 and 5)."""

from __future__ import annotations

from metrale.trace import records as r
from metrale.trace.values import SeqId

from .base import Invariant, on
from .ghost import Phase, Seq
from .live_sequence import AFTER_FEED, NAMED
from .replay_drafts import VERIFIES

SMALLEST_REWIND = 45
"""A watchdog rolls at least three windows of fifteen tokens back (S3 section 8)."""


class HistoryLength(Invariant):
    """See ``sentence``."""

    name = "history-length"
    sentence = "The length that a call prints is the number of tokens that the calls before it fed, less what was cut."

    @on(*NAMED)
    def named(self, rec: r.FreeSequence) -> None:
        seq = self.g.at(rec.seq)
        if seq is None or seq.phase is Phase.EMPTY:
            return
        length = rec.seq.length
        booked = seq.ahead and not isinstance(rec, r.ReleaseDecodeBlocks | r.DflashSerialCtxAppend)
        right = seq.length + 1 if booked else seq.length
        if length == right or length == seq.alternative:
            return
        if seq.ahead and length == seq.length and isinstance(rec, r.FreeSequence):
            return
        if seq.undo and length == right - 1:
            return
        if self.g.reconsider(seq, length):
            return
        if seq.length - length >= SMALLEST_REWIND and seq.life is not None and length >= seq.life.prompt:
            return  # a watchdog rolled the row back, which without recurrent layers no call announces
        if (
            seq.window is not None
            and seq.window.host
            and seq.window.start < length <= seq.window.start + seq.window.rows
        ):
            return
        self._wrong(rec.seq, seq, right)

    @on(r.DecodeMarconiCheckpoint)
    def checkpoint(self, rec: r.DecodeMarconiCheckpoint) -> None:
        seq = self.g.live.get(rec.seq.slot)
        if seq is None:
            return
        right = seq.length + 1 if seq.ahead and not seq.fresh else seq.length
        if rec.seq.length != right and not self._content_loop(rec.seq, seq):
            self._wrong(rec.seq, seq, right)

    def _content_loop(self, sid: SeqId, seq: Seq) -> bool:
        """The content watchdog rolls back before the token that it looked at is kept (S3 section 9.4)."""
        return seq.fresh and seq.life is not None and seq.length - sid.length >= SMALLEST_REWIND < len(seq.life.kept)

    @on(r.DecodeBatch)
    def batch(self, rec: r.DecodeBatch) -> None:
        live = self.g.live
        for token, sid in zip(rec.tokens, rec.seqs, strict=False):
            seq = live.get(sid.slot)
            if seq is not None and sid.length != seq.length:
                self._moved(sid, seq, token)

    @on(r.DecodeBatchFed)
    def fed(self, rec: r.DecodeBatchFed) -> None:
        for sid in rec.seqs:
            seq = self.g.live.get(sid.slot)
            if seq is not None and sid.length != self.g.expected_length(seq):
                self._wrong(sid, seq, self.g.expected_length(seq))

    @on(r.DecodeVerifyBatched)
    def verify_batch(self, rec: r.DecodeVerifyBatched) -> None:
        for rows, sid in zip(rec.ks, rec.seqs, strict=False):
            self._fed(sid, rows if rec.error is None else 0)

    @on(*AFTER_FEED)
    def fed_rows(self, rec: r.DecodeVerify) -> None:
        if rec.error is None:
            self._fed(rec.seq, len(rec.tokens) if isinstance(rec, VERIFIES) else 1)
        else:
            self._fed(rec.seq, 0)

    def _fed(self, sid: SeqId, rows: int) -> None:
        seq = self.g.live.get(sid.slot)
        if seq is not None and sid.length != seq.length + rows and not self._undecided(seq, sid.length - rows):
            self._wrong(sid, seq, seq.length + rows)

    @on(r.CheckpointSsmStates, r.NormalizeSsmStates, r.RollbackSsmStates)
    def cut(self, rec: r.CheckpointSsmStates) -> None:
        seq = self.g.live.get(rec.seq.slot)
        if seq is None:
            return
        right = seq.length - seq.drafting
        if rec.seq.length != right and not self._undecided(seq, rec.seq.length):
            self._wrong(rec.seq, seq, right)

    def _undecided(self, seq: Seq, length: int) -> bool:
        """A host pick decided how many rows of the verify stay."""
        window = seq.window
        return window is not None and window.host and window.start < length <= window.start + window.rows

    def _moved(self, sid: SeqId, seq: Seq, token: int) -> None:
        """The batch shows another length than was fed: a fed token was booked, a watchdog rolled back, or a fault."""
        if sid.length == self.g.expected_length(seq) or (seq.undo and sid.length == seq.length - 1):
            return
        life, window = seq.life, seq.window
        if window is not None and window.host and window.start < sid.length <= window.start + window.rows:
            return
        if life is not None and seq.length - sid.length >= SMALLEST_REWIND:
            index = sid.length - life.prompt
            if token in life.kept[max(0, index - 1) : index + 1]:
                return
        self._wrong(sid, seq, seq.length)

    def _wrong(self, sid: SeqId, seq: Seq, right: int) -> None:
        self.fail(f"{sid} should have {right} tokens by what was fed to it", max(seq.picked, seq.born))
