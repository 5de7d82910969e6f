"""Words to expert-parallel workers (S2 section 3.5, S4 section 17, S6 section 6).

Announcements are checked where they are made: :mod:`.prefill_calls`, :mod:`.router_calls`, :mod:`.verdicts`.
"""

from __future__ import annotations

from metrale.trace import records as r

from .base import Invariant, on

U32 = 0xFFFFFFFF
EP_STOP = 0xFFFFFFFF


class EpWords(Invariant):
    """See ``sentence``."""

    name = "ep-words"
    sentence = "Each word to the workers matches the call that it announces: slot, counts, tokens and verdict."

    @on(r.EpBroadcastCmdForSeq)
    def word(self, rec: r.EpBroadcastCmdForSeq) -> None:
        if rec.seq > U32 or rec.cmd > U32:
            self.fail("a word has 32 bits")
        if rec.cmd == EP_STOP and self.g.live:
            slot = next(iter(self.g.live))
            self.fail("workers are told to stop while a sequence lives", self.g.live[slot].born)
