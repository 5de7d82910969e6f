"""Drafts and the hidden rows that they grow from (S4 sections 8 to 11, S6 section 3.6)."""

from __future__ import annotations

from metrale.trace import records as r

from .base import Invariant, on
from .ghost import Ghost, Seq


class Drafts(Invariant):
    """See ``sentence``."""

    name = "drafts"
    sentence = (
        "Drafts follow the pending token at the sequence's end, from its own hidden row, and are what is verified."
    )

    def __init__(self, ghost: Ghost) -> None:
        super().__init__(ghost)
        self.saved: Seq | None = None
        self.saved_line = 0

    @on(r.SaveHiddenForMtp)
    def save(self, rec: r.SaveHiddenForMtp) -> None:
        g = self.g
        if rec.row >= g.row_count:
            self.fail(f"hidden row {rec.row} is kept, the forward has {g.row_count}", g.rows_line)
            return
        self.saved, self.saved_line = g.rows[rec.row], g.line

    @on(r.SaveHiddenForMtpFromStash)
    def save_stashed(self, rec: r.SaveHiddenForMtpFromStash) -> None:
        g = self.g
        if rec.index >= len(g.stash):
            self.fail(f"stash row {rec.index} was not filled", g.stash_line)
            return
        self.saved, self.saved_line = g.stash[rec.index], g.line

    @on(r.StashVerifyHiddenRows)
    def stash(self, rec: r.StashVerifyHiddenRows) -> None:
        g = self.g
        if rec.rows and max(rec.rows) >= g.row_count:
            self.fail(f"hidden row {max(rec.rows)} is stashed, the forward has {g.row_count}", g.rows_line)

    @on(r.RunMtpProposeMulti)
    def propose(self, rec: r.RunMtpProposeMulti) -> None:
        seq = self.g.at(rec.seq)
        if self.saved is not None and seq is not None and self.saved is not seq:
            self.fail(
                f"the hidden row kept last is of s{self.saved.hash}, the drafts are for {rec.seq}", self.saved_line
            )
        self.saved = None

    @on(r.Tick)
    def tick(self, rec: r.Tick) -> None:
        self.saved = None
