"""Cancels, deadlines, arrivals and seats, which only the scenario tells (S1 sections 3, 7, 17; D4, D5, D12)."""

from __future__ import annotations

from metrale.core.sequence import blocks_for
from metrale.sim.scenario import DeviceTable, RequestTable
from metrale.trace import records as r

from .base import Invariant, on
from .ghost import Ghost, Origin, Seq


def refusal(request: RequestTable, device: DeviceTable) -> str | None:
    """Why a request may never start, whatever else runs (D11, D17), or None."""
    length = len(request.prompt) if request.prompt is not None else request.prompt_len or 0
    if length == 0:
        return "its prompt is empty"
    if request.max_tokens == 0:
        return "it may not generate a token"
    if any(token >= device.vocab for token in request.prompt or ()):
        return "its prompt leaves the vocabulary"
    if 0 < device.total_blocks < blocks_for(length, device.block_size):
        return f"its prompt needs more KV blocks than the pool has ({device.total_blocks})"
    return None


class Endings(Invariant):
    """See ``sentence``. Requests that share an id are left out: a line does not tell them apart."""

    name = "endings"
    sentence = (
        "A request starts after its arrival and on a free seat, or never if it has to be refused; a cancel or a "
        "deadline ends it within the tick, wherever it is by then."
    )
    needs_scenario = True

    def __init__(self, ghost: Ghost) -> None:
        super().__init__(ghost)
        scenario = ghost.scenario
        assert scenario is not None
        ids = [request.id for request in scenario.request]
        own = [request for request in scenario.request if ids.count(request.id) == 1]
        self.arrival = {one.id: one.arrive_at_tick or 0 for one in own}
        self.cancel: dict[int, int] = {}
        self.deadline: dict[int, int] = {}
        for one in own:
            if one.cancel_at_tick is not None and one.streaming:
                self.cancel[one.id] = max(one.cancel_at_tick, one.arrive_at_tick or 0)
            if one.deadline_at_tick is not None:
                self.deadline[one.id] = max(one.deadline_at_tick, one.arrive_at_tick or 0)
            if one.expired_deadline:
                self.deadline[one.id] = 0
        self.everywhere = dict(self.cancel)
        if scenario.scheduler.deadline_scope == "all":
            for id_, tick in self.deadline.items():
                self.everywhere[id_] = min(tick, self.everywhere.get(id_, tick))
        self.refused = {one.id: why for one in own if (why := refusal(one, scenario.device)) is not None}
        self.seats = scenario.scheduler.max_batch_size
        self.carried: list[Seq] = []
        self.erred = False

    @on(r.DecodeBatch, r.DecodeVerifyBatched, r.DecodeVerifyDflash, r.DecodeBatchFed)
    def step(self, rec: r.DecodeBatch) -> None:
        self.erred = self.erred or rec.error is not None

    @on(r.AcquireAdapterSlot)
    def start(self, rec: r.AcquireAdapterSlot) -> None:
        g = self.g
        if g.newest is not None and g.newest.origin is Origin.START and len(g.live) > self.seats:
            self.fail(f"{len(g.live) - 1} sequences are active or prefilling, a start goes beyond {self.seats} seats")

    @on(r.Prefill, r.PrefillChunk)
    def named(self, rec: r.Prefill | r.PrefillChunk) -> None:
        g = self.g
        seq = g.live.get(rec.seq.slot)
        if seq is None or seq.named or seq.origin is not Origin.START:
            return
        id_ = rec.seq.hash
        if id_ in self.refused:
            self.fail(f"s{id_} starts, but it was to be refused: {self.refused[id_]}")
        if self.arrival.get(id_, -1) >= g.tick:
            self.fail(f"s{id_} starts in tick {g.tick}, but it arrives in tick {self.arrival[id_]}")
        if id_ in self.everywhere and self.everywhere[id_] < g.tick:
            self.fail(f"s{id_} starts in tick {g.tick}, but it was to end in the queue at tick {self.everywhere[id_]}")

    @on(r.Tick)
    def tick(self, rec: r.Tick) -> None:
        g = self.g
        before = rec.tick - 1
        for seq in g.active:
            if seq.life is None or seq not in self.carried or self.erred:
                continue
            id_ = seq.life.id
            for what, limits in (("cancelled", self.cancel), ("expired", self.deadline)):
                if limits.get(id_, before + 1) <= before:
                    self.fail(f"s{id_} was {what} at tick {limits[id_]} and still decodes after tick {before}")
        for seq in g.prefilling:
            if seq.life is not None and self.everywhere.get(seq.life.id, before + 1) <= before:
                self.fail(f"s{seq.life.id} was to end at tick {self.everywhere[seq.life.id]} and still prefills")
        self.carried = list(g.active)
        self.erred = False
