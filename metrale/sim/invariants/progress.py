"""Nobody waits for nothing (S1 sections 11, 13; decisions D2, D7, D15, D28)."""

from __future__ import annotations

from metrale.trace import records as r

from .base import Invariant, on, plural
from .ghost import Ghost, Seq
from .replay_drafts import VERIFIES

PATIENCE = 3
"""Ticks after which waiting for nothing is a live-lock."""


class Progress(Invariant):
    """See ``sentence``."""

    name = "progress"
    sentence = (
        "Every tick decodes every sequence that can decode, prefills move on, "
        "and no run spins through empty ticks that nothing can end."
    )

    def __init__(self, ghost: Ghost) -> None:
        super().__init__(ghost)
        self.decoded = self.erred = self.prefilled = False
        self.stepped = 0
        self.idle = 0
        self.idle_from = 0
        self.starved = 0
        self.carried: list[Seq] = []

    @on(r.DecodeBatch, r.MixedForward, r.MixedForwardBatch, r.DecodeVerifyBatched, r.Decode, r.DecodeBatchFed,
        *VERIFIES)  # fmt: skip
    def decode(self, rec: r.DecodeBatch) -> None:
        if rec.error is not None:
            self.erred = True
        else:
            self.decoded = True

    @on(r.PollInnerq, r.PrefillChunk)
    def prefill(self, rec: r.PollInnerq) -> None:
        self.prefilled = True

    @on(r.FedStepSettled, r.EventSynchronize)
    def settle(self, rec: r.FedStepSettled) -> None:
        self.decoded = True

    @on(r.AllocSequence, r.AllocSequenceFor)
    def alloc(self, rec: r.AllocSequence) -> None:
        self.idle = 0

    @on(r.FxRotate)
    def rotate(self, rec: r.FxRotate) -> None:
        self.idle = 0

    @on(r.Tick)
    def tick(self, rec: r.Tick) -> None:
        g = self.g
        if self.carried and not self.decoded and not self.erred:
            stuck = [seq for seq in g.active if seq in self.carried]
            self.starved += 1
            if stuck and self.starved >= (2 if g.depth_two else 1):
                names = ", ".join(f"s{seq.hash}@{seq.slot}" for seq in stuck)
                self.fail(f"tick {g.tick} decodes nothing, though {names} can decode", g.tick_line)
        else:
            self.starved = 0
        if g.prefilling and not self.prefilled:
            self.stepped += 1
            if self.stepped >= PATIENCE:
                self.fail(f"{plural(self.stepped, 'tick')} without a prefill step for s{g.prefilling[0].hash}")
        else:
            self.stepped = 0
        if not (g.live or self.decoded or self.prefilled):
            if not self.idle:
                self.idle_from = g.line
            self.idle += 1
        else:
            self.idle = 0
        self.decoded = self.erred = self.prefilled = False
        self.carried = list(g.active)

    def finish(self) -> None:
        g = self.g
        served = sum(len(lives) for lives in g.lives.values())
        if self.idle > PATIENCE and served >= len(g.outs):
            self.fail(
                f"the run goes through {plural(self.idle, 'tick')} with nothing to do and nothing to come",
                self.idle_from,
            )
