"""Snapshots of recurrent state in the decode ring (S3 section 9)."""

from __future__ import annotations

from metrale.trace import records as r

from .base import Invariant, on


class SnapshotRing(Invariant):
    """See ``sentence``. Where the row goes on is checked by history-length and pending-token."""

    name = "snapshot-ring"
    sentence = "A ring slot is restored only after it was saved for the same sequence, and at an earlier length."

    @on(r.SaveDecodeSsmSnapshot)
    def save(self, rec: r.SaveDecodeSsmSnapshot) -> None:
        seq = self.g.at(rec.seq)
        if seq is not None and rec.error is None and not seq.fresh:
            self.fail(f"a snapshot of {rec.seq} is saved, but no new token of it was kept", seq.picked)

    @on(r.RestoreDecodeSsmSnapshot)
    def restore(self, rec: r.RestoreDecodeSsmSnapshot) -> None:
        seq = self.g.at(rec.seq)
        if seq is None:
            return
        saved = seq.ring.get(rec.ring)
        if saved is None:
            self.fail(f"ring slot {rec.ring} of {rec.seq} was never saved", seq.born)
        elif saved >= rec.seq.length:
            self.fail(f"ring slot {rec.ring} holds {saved} tokens, {rec.seq} is no longer than that")
