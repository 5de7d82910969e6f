"""The frame of a run: start-up, tick markers, the end (S1 sections 5, 9, 21; S5 section 10)."""

from __future__ import annotations

from metrale.trace import records as r

from .base import Invariant, on
from .ghost import Ghost


class Ticks(Invariant):
    """See ``sentence``."""

    name = "ticks"
    sentence = "A run starts up once, counts its ticks from 1 without a gap behind a free-block line, and ends once."

    def __init__(self, ghost: Ghost) -> None:
        super().__init__(ghost)
        self.free_at = -1
        self.events: list[int] = []
        self.bound = 0
        self.streams = 0
        self.ended = 0
        self.destroyed: list[int] = []

    @on(r.NumFreeBlocks)
    def free_blocks(self, rec: r.NumFreeBlocks) -> None:
        self.free_at = self.g.index

    @on(r.Tick)
    def tick(self, rec: r.Tick) -> None:
        g = self.g
        if rec.tick != g.tick + 1:
            self.fail(f"tick {rec.tick} follows tick {g.tick}", g.tick_line)
        if self.free_at != g.index - 1:
            self.fail("a tick marker must stand right behind a free-block line")
        self._started_up("a tick begins")
        if self.ended:
            self.fail("a tick begins after the run has ended", self.ended)

    @on(r.AdapterIdFor)
    def gate(self, rec: r.AdapterIdFor) -> None:
        if not self.g.tick:
            self._started_up("a request is looked at")

    def _started_up(self, what: str) -> None:
        if not (self.bound and self.streams and len(self.events) in (1, 4)):
            self.fail(f"{what} before the start-up calls are made")

    @on(r.BindGpuToThread)
    def bind(self, rec: r.BindGpuToThread) -> None:
        if self.bound or self.g.tick:
            self.fail("the device is bound once, at the start", self.bound)
        if self.streams:
            self.fail("the device is bound before anything else", self.streams)
        if len(self.events) not in (0, 3):
            self.fail(f"a readback ring has 3 events, not {len(self.events)}")
        self.bound = self.g.line

    @on(r.CreateStream)
    def stream(self, rec: r.CreateStream) -> None:
        if self.streams or not self.bound or self.g.tick:
            self.fail("the prefill stream is created once, right after the device is bound", self.streams)
        if rec.result not in (1, None):
            self.fail(f"the prefill stream is stream 1, not {rec.result}")
        self.streams = self.g.line

    @on(r.CreateEvent)
    def event(self, rec: r.CreateEvent) -> None:
        if rec.result is None:
            return
        if rec.result != len(self.events) + 2:
            self.fail(f"events are numbered from 2 on: {len(self.events) + 2} is next, not {rec.result}")
        if self.g.tick or (self.bound and not self.streams):
            self.fail("events are created at the start")
        if self.bound and len(self.events) not in (0, 3):
            self.fail(f"one prefill event is created, behind a ring of 0 or 3; there are {len(self.events)} already")
        self.events.append(rec.result)

    @on(r.AllocSequence, r.AllocSequenceFor)
    def alloc(self, rec: r.AllocSequence | r.AllocSequenceFor) -> None:
        if not self.g.tick:
            self.fail("a sequence is allocated before the first tick")

    @on(r.FxEpShutdown)
    def shutdown(self, rec: r.FxEpShutdown) -> None:
        g = self.g
        if self.ended:
            self.fail("the end sequence runs twice", self.ended)
        self.ended = g.line
        for seq in g.live.values():
            self.fail(f"s{seq.hash}@{seq.slot} still holds its slot at the end of the run", seq.born)
            break
        if not g.tick:
            self.fail("a run ends in a tick; none was begun")

    @on(r.DestroyEvent)
    def destroy(self, rec: r.DestroyEvent) -> None:
        self.destroyed.append(rec.event)

    @on(r.Teardown)
    def teardown(self, rec: r.Teardown) -> None:
        ring = self.events[:3] if len(self.events) > 1 else []
        if self.destroyed != ring:
            self.fail(f"the events of the readback ring are {ring}, destroyed are {self.destroyed}")

    def finish(self) -> None:
        if not self.ended:
            self.fail("the run never ends: the end sequence is missing")
        elif not self.g.torn_down:
            self.fail("the device memory is never freed: `teardown()` is missing")
