"""The pending token: picked by one step, fed by the next (S1 sections 13 to 15, S4 section 1)."""

from __future__ import annotations

from metrale.trace import records as r

from .base import Invariant, on
from .ghost import UNKNOWN, Ghost, Seq
from .replay_drafts import VERIFIES


class PendingToken(Invariant):
    """See ``sentence``."""

    name = "pending-token"
    sentence = "Each step feeds exactly the token that the step before it picked: none is lost, repeated or swapped."

    def __init__(self, ghost: Ghost) -> None:
        super().__init__(ghost)
        self.row = -1
        self.rows_line = 0

    @on(r.DecodeBatch)
    def batch(self, rec: r.DecodeBatch) -> None:
        live = self.g.live
        for token, sid in zip(rec.tokens, rec.seqs, strict=False):
            seq = live.get(sid.slot)
            if seq is not None and token != seq.pending and seq.pending != UNKNOWN:
                self._fed(seq, token, sid.length)

    @on(r.DecodeBatchFed)
    def fed(self, rec: r.DecodeBatchFed) -> None:
        for token, sid in zip(rec.inputs, rec.seqs, strict=False):
            seq = self.g.live.get(sid.slot)
            if seq is not None:
                right = seq.ahead_pick if seq.ahead else seq.pending
                if token != right != UNKNOWN:
                    self.fail(f"the feed cell of s{seq.hash} holds {right}, the fed decode reads {token}", seq.picked)

    @on(r.MixedForward, r.MixedForwardBatch)
    def mixed(self, rec: r.MixedForward) -> None:
        rows = sorted(self.g.active, key=lambda seq: seq.slot)
        for token, seq in zip(rec.decode, rows, strict=False):
            if token != seq.pending and seq.pending != UNKNOWN:
                self._fed(seq, token, seq.length)

    @on(r.Decode)
    def single(self, rec: r.Decode) -> None:
        seq = self.g.live.get(rec.seq.slot)
        if seq is not None and rec.token != seq.pending and seq.pending != UNKNOWN:
            self._fed(seq, rec.token, rec.seq.length - 1)

    @on(*VERIFIES)
    def verify(self, rec: r.DecodeVerify) -> None:
        self._verified(self.g.live.get(rec.seq.slot), rec.tokens)

    @on(r.DecodeVerifyBatched)
    def verify_batch(self, rec: r.DecodeVerifyBatched) -> None:
        at = 0
        for rows, sid in zip(rec.ks, rec.seqs, strict=False):
            self._verified(self.g.live.get(sid.slot), rec.tokens[at : at + rows])
            at += rows

    def _verified(self, seq: Seq | None, tokens: tuple[int, ...]) -> None:
        if seq is None or not tokens:
            return
        if not seq.drafting and tokens[0] != seq.pending and seq.pending != UNKNOWN:
            self._fed(seq, tokens[0], seq.length)
        if seq.mtp and not seq.drafting:
            drafts = tokens[1:]
            if drafts != seq.drafts[: len(drafts)]:
                shown = f"{list(drafts)} are verified, {list(seq.drafts)} were drafted"
                self.g.report("drafts", f"s{seq.hash}@{seq.slot}: {shown}", (seq.proposed,))

    def _fed(self, seq: Seq, token: int, length: int) -> None:
        if seq.undo or seq.ahead_pick == token:
            return
        if seq.ahead and token == seq.ahead_pick:
            return
        if length < seq.length and seq.life is not None and token in seq.life.kept:
            return
        self.fail(f"s{seq.hash}@{seq.slot} was to be fed {seq.pending}, it is fed {token}", seq.picked)

    # -- checkpoints follow kept tokens, in row order

    @on(r.FedStepSettled)
    def settled(self, rec: r.FedStepSettled) -> None:
        self.row = -1

    @on(r.DecodeMarconiCheckpoint)
    def checkpoint(self, rec: r.DecodeMarconiCheckpoint) -> None:
        g = self.g
        seq = g.live.get(rec.seq.slot)
        if seq is None:
            return
        if not seq.fresh and not seq.ahead:
            if seq.window is None or seq.window.rows != 2:
                self.fail(f"{rec.seq} is checkpointed, but no new token of it was kept", seq.picked)
            return
        rows = g.rows
        if g.rows_line != self.rows_line:
            self.rows_line, self.row = g.rows_line, -1
        for index in range(self.row + 1, len(rows)):
            if rows[index] is seq:
                self.row = index
                return
        if not g.depth_two:
            self.fail(f"{rec.seq} is checkpointed out of row order", g.rows_line)
