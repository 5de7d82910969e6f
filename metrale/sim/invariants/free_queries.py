"""Questions for free blocks and reclaims (S1 sections 9, 12, 17, 18)."""

from __future__ import annotations

from metrale.trace import records as r

from .base import on, plural
from .ghost import Ghost
from .protocol import Protocol, Wish, look, starts


class FreeQueries(Protocol):
    """See ``sentence``.

    Free blocks are asked for in the snapshot of each tick, before parked work comes back, and, with a spill store,
    twice for each request that starts. What is missing is asked back from the prefix cache until it gives nothing.
    """

    name = "free-queries"
    sentence = "Free blocks are asked for where a rule asks, and exactly what is missing is asked back."

    def __init__(self, ghost: Ghost) -> None:
        super().__init__(ghost)
        self.free = 0
        self.asked_at = -1
        self.gated = self.started = self.allocated = 0
        self.asked = self.shortages = 0
        self.store: bool | None = None
        self.needs: list[tuple[int, int]] = []
        self.fed: set[int] = set()
        self.gating = 0
        self.stepped = 0
        self.prompts = 0

    @property
    def admitting(self) -> bool:
        """Between the marker of a tick that may start requests and its first allocation or step."""
        return self.gated > 0 and not self.allocated and self.stepped != self.g.tick

    @starts(r.NumFreeBlocks)
    def query(self, rec: r.NumFreeBlocks) -> Wish:
        g = self.g
        self.free, self.asked_at = rec.result, g.index
        if not self.admitting:
            yield look(r.Tick, r.ReclaimPrefixBlocks, r.AllocSequence, why="nobody asks for free blocks for nothing")
            return
        self.asked += 1
        yield look(
            r.NumFreeBlocks, r.ReclaimPrefixBlocks, r.FxSaveSequenceState, r.FxCompactSlot, r.AllocSequence,
            r.AllocSequenceFor, r.Tick, r.GenerateBeamBatch, why="free blocks are asked for before requests start",
        )  # fmt: skip

    @starts(r.ReclaimPrefixBlocks)
    def reclaim(self, rec: r.ReclaimPrefixBlocks) -> Wish:
        g = self.g
        if self.asked_at != g.index - 1:
            self.fail("blocks are asked back, but nobody asked just before what is free")
            return
        need = rec.n + self.free
        if self.admitting:
            self.shortages += 1
            self.needs.append((need, g.line))
        else:
            self._wanted(need)
        if rec.result:
            yield look(r.NumFreeBlocks, why="what is free is asked again after a reclaim")

    def _wanted(self, need: int) -> None:
        g, size = self.g, self.g.pool.low
        if size != g.pool.high and g.requeued:
            return
        wanted = {entry.length // size + 2 for entry in g.requeued}
        wanted |= {entry.blocks for entry in g.spilled if entry.blocks is not None}
        if need not in wanted:
            self.fail(f"{need} blocks are asked for, but parked work needs {sorted(wanted)}", g.line - 1)

    @on(r.FxSaveSequenceState)
    def spill(self, rec: r.FxSaveSequenceState) -> None:
        self.shortages += self.admitting

    @on(r.AllocSequence, r.AllocSequenceFor)
    def alloc(self, rec: r.AllocSequence | r.AllocSequenceFor) -> None:
        self.allocated += 1

    @on(r.FxLaunchDecode, r.PollInnerq, r.MtpSlotDraftCapacity, r.Decode, r.SyncSecondary, r.FxReserveKv)
    def step(self, rec: r.Record) -> None:
        self.stepped = self.g.tick

    @on(r.AdapterIdFor)
    def adapter(self, rec: r.AdapterIdFor) -> None:
        seq = self.g.newest
        if seq is not None and seq.origin.name == "NEW":
            self.started += 1
        else:
            self.gating += 1

    @on(r.EpBroadcastTokens)
    def prompt(self, rec: r.EpBroadcastTokens) -> None:
        if self.needs:
            self.fed.add(rec.n)
            self.prompts += 1

    @on(r.Tick)
    def tick(self, rec: r.Tick) -> None:
        self._balance()
        self.gated, self.gating = max(0, self.gating - 1), 0
        self.started = self.allocated = self.asked = self.shortages = 0
        self.needs, self.fed, self.prompts = [], set(), 0

    def _balance(self) -> None:
        """What was asked while requests were admitted must fit those that started."""
        g, size = self.g, self.g.pool.low
        if self.started:
            if self.store is None:
                self.store = self.asked > 0
            elif self.store != (self.asked > 0):
                self.fail(
                    "a spill store asks for free blocks before each start, and only a spill store does", g.tick_line
                )
        if self.started and self.asked and not self.shortages and self.asked != 2 * self.started:
            starts_ = plural(self.started, "start")
            self.fail(f"free blocks are asked for twice per start: {starts_}, {self.asked} questions", g.tick_line)
        if size == g.pool.high and self.fed and self.prompts == self.started:
            wanted = {length // size + 1 for length in self.fed}
            for need, line in self.needs:
                if need not in wanted:
                    self.fail(f"{need} blocks are asked for, but the prompts that start need {sorted(wanted)}", line)
