"""The drafter's context (S6 section 3.7). Which step commits what: :mod:`.router_calls` and :mod:`.verdicts`."""

from __future__ import annotations

from metrale.trace import records as r

from .base import Invariant, on


class ContextCommit(Invariant):
    """See ``sentence``."""

    name = "context-commit"
    sentence = "A context commit ends where the sequence ends, and starts at the position that its step wrote."

    @on(r.CommitCtx)
    def commit(self, rec: r.CommitCtx) -> None:
        end = rec.base + rec.n
        length = rec.seq.length
        if end == length:
            return
        seq = self.g.live.get(rec.seq.slot)
        fed = seq is not None and seq.ahead
        if not (fed and end == length + 1):
            self.fail(f"{rec.n} rows from position {rec.base} on end at {end}, {rec.seq} does not")
