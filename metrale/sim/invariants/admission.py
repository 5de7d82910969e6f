"""Admission as the log shows it: the adapter questions of the gate (S1 section 8)."""

from __future__ import annotations

from metrale.trace import records as r

from .base import Invariant, on, plural
from .ghost import Ghost


class Admission(Invariant):
    """See ``sentence``.

    The gate asks once for the batch and once for each candidate; candidates that it holds back are asked for again.
    """

    name = "admission"
    sentence = (
        "Whoever starts was gated in the plan of that tick, in that order, and whoever was held back is gated again."
    )

    def __init__(self, ghost: Ghost) -> None:
        super().__init__(ghost)
        self.asked: list[int] = []
        self.asked_line = 0
        self.gate: list[int] = []
        self.gate_line = 0
        self.started: list[int] = []
        self.came_back = False
        self.vanished: list[tuple[int, int]] = []
        self.kinds: dict[str, int] = {}

    @on(r.AdapterIdFor)
    def asked_for(self, rec: r.AdapterIdFor) -> None:
        seq = self.g.newest
        if seq is not None and seq.origin.name == "NEW":
            self.started.append(rec.slot)
            self._start()
            return
        if not self.asked:
            self.asked_line = self.g.line
        self.asked.append(rec.slot)

    def _start(self) -> None:
        candidates = self.gate[1:]
        if len(self.started) > len(candidates):
            self.fail(
                f"{plural(len(self.started), 'request')} started in this tick, {len(candidates)} passed the gate",
                self.gate_line,
            )
        elif self.started[-1] not in candidates:
            self.fail(f"adapter slot {self.started[-1]} starts, the gate saw {candidates}", self.gate_line)

    @on(r.AllocSequence, r.AllocSequenceFor)
    def alloc(self, rec: r.AllocSequence | r.AllocSequenceFor) -> None:
        if self.asked:
            self.fail("a sequence is allocated between the gate and its tick's marker", self.asked_line)

    @on(r.AcquireAdapterSlot)
    def acquired(self, rec: r.AcquireAdapterSlot) -> None:
        g = self.g
        seq = g.newest
        if seq is None:
            return
        if seq.acquired:
            self.fail("the sequence takes its adapter twice", seq.born)
        if seq.origin.name in ("NEW", "RESTORE"):
            self.came_back = True
        elif g.chunked is not None and (seq.budget is None) == bool(g.chunked):
            self.fail("a run prefills in chunks or in one pass, not both", seq.born)
        elif g.chunked is None:
            g.chunked = False

    @on(r.Tick)
    def tick(self, rec: r.Tick) -> None:
        g = self.g
        held = len(self.gate) - 1 - len(self.started)
        if held == 0 and self.started != self.gate[1:]:
            self.fail(f"adapter slots {self.gate[1:]} were gated, {self.started} started", self.gate_line)
        if held > 0 and not self.asked and not self.came_back:
            self.vanished.append((held, self.gate_line))
        if len(self.asked) == 1:
            self.fail("the gate asks for the batch's adapter, but for no candidate", self.asked_line)
        if len(self.asked) > 1 and g.live and self.asked[0] not in {seq.adapter for seq in g.live.values()}:
            self.fail(f"the batch's adapter slot is not {self.asked[0]}", self.asked_line)
        if len(self.asked) > 1 and not g.live and self.asked[0] != self.asked[1]:
            self.fail(
                f"with nothing running the first candidate sets the adapter, not {self.asked[0]}", self.asked_line
            )
        self.gate, self.gate_line = self.asked, self.asked_line
        self.asked, self.started, self.came_back = [], [], False

    def finish(self) -> None:
        g = self.g
        unserved = len(g.outs) - sum(map(len, g.lives.values()))
        for held, line in self.vanished:
            unserved -= held
            if unserved < 0:
                g.line = 0
                self.fail(f"{plural(held, 'candidate')} passed the gate's questions and then vanished", line)
                return
