"""The token feed of the depth-2 router (S5 sections 10 to 12)."""

from __future__ import annotations

from metrale.trace import records as r

from .base import Invariant, on, plural
from .ghost import Ghost

NO_ID = 0xFFFFFFFF


class TokenFeed(Invariant):
    """See ``sentence``."""

    name = "token-feed"
    sentence = (
        "A fed step reserves a block for each row first, answers into a free ring slot, and is settled exactly once."
    )

    def __init__(self, ghost: Ghost) -> None:
        super().__init__(ghost)
        self.ring: list[int] = []
        self.reserved: list[int] = []
        self.unsettled: list[int] = []
        self.event: int | None = None
        self.busy: list[int] = []
        self.fed = False
        self.masked: dict[int, int] = {}
        self.flying: list[int] = []
        self.waited: dict[int, int] = {}

    @on(r.CreateEvent)
    def created(self, rec: r.CreateEvent) -> None:
        if rec.result is not None:
            self.ring.append(rec.result)

    @on(r.ReserveDecodeBlock)
    def reserve(self, rec: r.ReserveDecodeBlock) -> None:
        if rec.result is not None:
            self.reserved.append(rec.seq.slot)

    @on(r.DecodeBatchFed)
    def launch(self, rec: r.DecodeBatchFed) -> None:
        rows = [sid.slot for sid in rec.seqs]
        if self.reserved != rows:
            self.fail(f"blocks were reserved for slots {self.reserved}, the fed step has {rows}")
        self.reserved = []
        self._budgets(rec)
        self.fed = rec.error is None
        if not self.g.flight:
            self.fail("a step is fed on the device, but no step is in flight to feed it")

    def _budgets(self, rec: r.DecodeBatchFed) -> None:
        """A row whose next token is its last would only over-run (S5 section 11.1); needs the scenario."""
        scenario = self.g.scenario
        if scenario is None or scenario.scheduler.think_start_token is not None:
            return
        budgets: dict[int, int] = {}
        for one in scenario.request:
            wanted = len(one.tokens) if one.max_tokens is None else one.max_tokens
            budgets[one.id] = max(wanted, budgets.get(one.id, 0))
        for sid in rec.seqs:
            seq = self.g.live.get(sid.slot)
            if seq is None or seq.life is None or seq.life.rewound:
                continue
            kept = len(seq.life.kept)
            if kept + 1 >= budgets.get(seq.life.id, kept + 2):
                self.fail(f"{sid} runs ahead with {kept} tokens, its next one is its last", seq.picked)

    @on(r.FxLaunchDecode)
    def launch_plain(self, rec: r.FxLaunchDecode) -> None:
        self.reserved = []
        if self.unsettled:
            self.fail("a plain step is launched while a fed step is not settled", self.unsettled[0])

    @on(r.ArgmaxBatchToFeed)
    def answers(self, rec: r.ArgmaxBatchToFeed) -> None:
        g = self.g
        if rec.event not in self.ring[:3]:
            self.fail(f"event {rec.event} is none of the readback ring {self.ring[:3]}")
        elif rec.event != (right := self.ring[1] if self.fed and self.event == self.ring[0] else self.ring[0]):
            self.fail(f"event {right} is the first free one of the readback ring, not {rec.event}")
        for pair in rec.masks:
            for index, id_ in enumerate(pair):
                self._masks(index, id_)
        self.waited.pop(rec.event, None)
        self.flying = [self.event, rec.event] if self.fed and self.event is not None else [rec.event]
        self.event = rec.event
        if self.fed:
            self.unsettled.append(g.line)
        self.fed = False

    def _masks(self, index: int, id_: int) -> None:
        if id_ == NO_ID:
            return
        known = self.masked.setdefault(index, id_)
        if id_ != known or id_ > NO_ID:
            self.fail(f"id {id_} is masked; the think ids of a run do not change ({known})")

    @on(r.FedStepSettled)
    def settled(self, rec: r.FedStepSettled) -> None:
        if not self.unsettled:
            self.fail("a fed step is settled, but none is in flight")
        else:
            self.unsettled.pop(0)

    @on(r.AllocSequence, r.AllocSequenceFor)
    def alloc(self, rec: r.AllocSequence) -> None:
        if self.unsettled:
            self.fail("a sequence is allocated while a fed step is not settled", self.unsettled[0])

    @on(r.CompactSequence)
    def compact(self, rec: r.CompactSequence) -> None:
        if self.unsettled:
            self.fail(f"{rec.seq} moves while a step that may still write it is not settled", self.unsettled[0])

    @on(r.FreeSequence)
    def freed(self, rec: r.FreeSequence) -> None:
        seq = self.g.at(rec.seq)
        if self.unsettled and seq is not None and seq in self.g.flight:
            self.fail(f"{rec.seq} is freed while a step that may still write it is not settled", self.unsettled[0])

    @on(r.Tick)
    def tick(self, rec: r.Tick) -> None:
        if len(self.unsettled) > 1:
            self.fail(f"{plural(len(self.unsettled), 'fed step')} are in flight at once", self.unsettled[0])
        self.reserved = []

    @on(r.EventQuery, r.EventSynchronize)
    def event_used(self, rec: r.EventQuery) -> None:
        if rec.event not in self.ring[:3]:
            self.fail(f"event {rec.event} is none of the readback ring {self.ring[:3]}")
        elif rec.event not in self.flying:
            self.fail(f"event {rec.event} belongs to no step in flight")
        elif rec.event in self.waited:
            self.fail("this step in flight was waited for before", self.waited[rec.event])
        self.waited[rec.event] = self.g.line

    @on(r.FxEpShutdown)
    def shutdown(self, rec: r.FxEpShutdown) -> None:
        if self.unsettled:
            self.fail("the run ends while a fed step is not settled", self.unsettled[0])
