"""Adapter rotation (S1 section 10)."""

from __future__ import annotations

from metrale.trace import records as r

from .base import Invariant, on
from .ghost import Ghost


class Rotations(Invariant):
    """See ``sentence``."""

    name = "rotation"
    sentence = "An adapter is rotated while nothing runs, starts or is parked, and each rotation is acknowledged."

    def __init__(self, ghost: Ghost) -> None:
        super().__init__(ghost)
        self.made = 0
        self.refused = False
        self.line = 0
        self.tick = 0
        self.ack: r.RotationAck | None = None

    @on(r.FxRotate, r.FxLoadIntoSlot, r.FxPromote, r.FxPromoteDisk)
    def rotate(self, rec: r.FxRotate) -> None:
        g = self.g
        self.made += 1
        self.line, self.tick = g.line, g.tick
        for seq in g.live.values():
            self.fail(f"an adapter is rotated under s{seq.hash}@{seq.slot}", seq.born)
            break

    @on(r.SetActiveLora, r.SwapLoraFromDisk, r.PromoteLoraFromDisk, r.PromoteLoraFromPeer)
    def done(self, rec: r.SetActiveLora) -> None:
        self.refused = rec.error is not None

    @on(r.AllocSequence, r.AllocSequenceFor)
    def alloc(self, rec: r.AllocSequence) -> None:
        if self.line and self.tick == self.g.tick:
            self.fail("an adapter is rotated in a tick that starts or brings back a sequence", self.line)

    @on(r.RestoreSequenceState)
    def restore(self, rec: r.RestoreSequenceState) -> None:
        image = next((entry for entry in self.g.spilled if entry.blocks == rec.blocks), None)
        if image is not None and image.line < self.line:
            self.fail("an adapter was rotated while this sequence was parked", image.line, self.line)

    @on(r.Prefill)
    def resume(self, rec: r.Prefill) -> None:
        seq = self.g.live.get(rec.seq.slot)
        if seq is None or seq.named or seq.origin.name != "RESUME":
            return
        parked = next((entry for entry in self.g.requeued if entry.hash == rec.seq.hash), None)
        if parked is not None and parked.line < self.line:
            self.fail("an adapter was rotated while this sequence was parked", parked.line, self.line)

    @on(r.RotationDone, r.RotationPromoted, r.RotationErr, r.RotationDropped)
    def acknowledged(self, rec: r.RotationAck) -> None:
        self.ack = rec
        if isinstance(rec, r.RotationDropped):
            if self.made:
                self.fail("the rotation was carried out, but nobody acknowledged it", self.line)
        elif not self.made:
            self.fail("a rotation is acknowledged that was never carried out")
        elif isinstance(rec, r.RotationErr) != self.refused:
            self.fail("the acknowledgement contradicts what the device answered", self.line)

    def finish(self) -> None:
        if self.made and self.ack is None:
            self.fail("the rotation is not acknowledged", self.line)
