"""Slots: who stands where (S1 sections 2 and 17). Moves are checked where they are announced: :mod:`.router_calls`."""

from __future__ import annotations

from metrale.trace import records as r

from .base import Invariant, on
from .ghost import Ghost


class Slots(Invariant):
    """See ``sentence``."""

    name = "slots"
    sentence = (
        "No two live sequences share a slot, a new one takes the smallest free slot, "
        "and after each tick the batch stands on the lowest slots that are to be had."
    )

    def __init__(self, ghost: Ghost) -> None:
        super().__init__(ghost)
        self.disturbed = False

    @on(r.AllocSequence, r.AllocSequenceFor)
    def alloc(self, rec: r.AllocSequence | r.AllocSequenceFor) -> None:
        live = self.g.live
        if rec.slot is None:
            return
        if rec.slot in live:
            owner = live[rec.slot]
            self.fail(f"slot {rec.slot} is given away while s{owner.hash} holds it", owner.born)
            return
        smallest = 0
        while smallest in live:
            smallest += 1
        if rec.slot != smallest:
            self.fail(f"slot {rec.slot} is given away, slot {smallest} is the smallest free one")

    @on(r.FreeSequence)
    def freed(self, rec: r.FreeSequence) -> None:
        """A sequence that ends after the batch was compacted leaves a hole until the next tick (D23, S1 17)."""
        if self.g.depth_two or self.g.prefilling:
            self.disturbed = True

    @on(r.CompactSequence)
    def compacted(self, rec: r.CompactSequence) -> None:
        if rec.error is not None:
            self.disturbed = True

    @on(r.Tick)
    def tick(self, rec: r.Tick) -> None:
        g = self.g
        if self.disturbed:
            self.disturbed = False
            return
        count = len(g.active)
        for seq in g.active:
            if seq.slot >= count:
                hole = next((slot for slot in range(count) if slot not in g.live), None)
                if hole is not None:
                    self.fail(f"s{seq.hash} stays on slot {seq.slot}, but slot {hole} is free in a batch of {count}")
                return
