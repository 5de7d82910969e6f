"""Which sequence a line may name (S6 section 5)."""

from __future__ import annotations

from metrale.trace import records as r
from metrale.trace.values import SeqId

from .base import Invariant, on
from .ghost import Phase
from .replay_drafts import VERIFIES

AFTER_FEED = (r.Decode, r.DecodeDraft, *VERIFIES)
NAMED = (
    r.CacheSequence, r.FreeSequence, r.SaveSequenceState, r.CompactSequence, r.ReserveDecodeBlock,
    r.ReleaseDecodeBlocks, r.CommitAcceptedPrefix, r.TrimProposerState, r.RunMtpProposeMulti,
    r.StartCheckpointAsync, r.StartRollbackAndCheckpointAsync, r.DflashEagleAcceptAppend,
    r.DflashEagleKgammaAppend, r.DflashSerialCtxAppend, r.SaveDecodeSsmSnapshot, r.RestoreDecodeSsmSnapshot,
)  # fmt: skip
"""Calls that print a length of the moment and change none."""


class LiveSequence(Invariant):
    """See ``sentence``."""

    name = "live-sequence"
    sentence = "A call names a sequence that is allocated, not yet freed, on its own slot: none is used or freed twice."

    @on(
        r.DecodeMarconiCheckpoint, r.NormalizeSsmStates, r.CheckpointSsmStates, r.RollbackSsmStates, *NAMED, *AFTER_FEED
    )
    def named(self, rec: r.FreeSequence) -> None:
        self._lives(rec.seq)

    @on(r.Prefill, r.PrefillChunk)
    def begins(self, rec: r.Prefill | r.PrefillChunk) -> None:
        """A request starts under its id: nobody else decodes or prefills under it (D18)."""
        live = self.g.live
        seq = live.get(rec.seq.slot)
        if seq is None or seq.named:
            return
        for other in live.values():
            if other.life is not None and other.life.id == rec.seq.hash:
                self.fail(f"id {rec.seq.hash} is in use by the sequence on slot {other.slot}", other.born)
                return

    @on(r.DecodeBatch, r.DecodeBatchFed, r.DecodeVerifyBatched)
    def batch(self, rec: r.DecodeBatch) -> None:
        live = self.g.live
        for sid in rec.seqs:
            seq = live.get(sid.slot)
            if seq is None or seq.hash != sid.hash:
                self._lives(sid)
            elif seq.phase is not Phase.READY:
                self.fail(f"{sid} decodes, but its prompt is not fed yet", seq.born)

    def _lives(self, sid: SeqId) -> None:
        g = self.g
        seq = g.live.get(sid.slot)
        if seq is not None and seq.hash == sid.hash and seq.named:
            return
        if seq is None and g.at(sid) is not None:
            return
        if seq is not None and not seq.named:
            return
        freed = g.freed.get((sid.hash, sid.slot), 0)
        if freed and seq is None:
            self.fail(f"s{sid.hash}@{sid.slot} was freed before", freed)
        elif seq is None:
            self.fail(f"no sequence stands on slot {sid.slot}", freed)
        else:
            self.fail(f"slot {sid.slot} belongs to s{seq.hash}, not to s{sid.hash}", seq.born)
