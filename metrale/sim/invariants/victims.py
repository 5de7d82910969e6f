"""Who is preempted when the pool is dry (S1 section 14)."""

from __future__ import annotations

from metrale.trace import records as r

from .base import Invariant, on
from .ghost import Ghost, Life, Seq

IMMUNITY = 64
DRY = "KV cache exhausted"


class Victims(Invariant):
    """See ``sentence``.

    A row with a grammar, or with vision pads and no spill store, is spared; the log does not show those. So a choice
    is judged against rows that were chosen themselves at some time, or by the scenario if there is one.
    """

    name = "victims"
    sentence = (
        "A dry pool costs the row with the fewest tokens, the lowest slot on a tie; one that just came back is spared."
    )

    def __init__(self, ghost: Ghost) -> None:
        super().__init__(ghost)
        self.what: str | None = None
        self.dry = 0
        self.eligible: set[int] = set()
        self.passed_over: list[tuple[Life, str, tuple[int, ...]]] = []
        self.barred: set[int] = set()
        self.grammars: set[int] = set()
        scenario = ghost.scenario
        if scenario is not None:
            self.grammars = {one.id for one in scenario.request if one.grammar_active}
            store = scenario.scheduler.swap_space_gb > 0
            self.barred = {one.id for one in scenario.request if one.grammar_active or (one.vision_pads and not store)}

    @on(r.DecodeBatch)
    def decode(self, rec: r.DecodeBatch) -> None:
        self.dry = len(rec.seqs) if rec.error == DRY else 0

    @on(r.FxReleaseSeq)
    def releasing(self, rec: r.FxReleaseSeq) -> None:
        self.what = rec.what
        g, rows, self.dry = self.g, self.dry, 0
        if g.scenario is None or rows < 2 or rec.what != "send_error":
            return
        spared = next((seq for seq in g.active if seq.life is not None and seq.life.id not in self.barred), None)
        if spared is not None and not g.uses_drafts:
            self.fail(f"a dry pool fails all {rows} rows, though s{spared.hash}@{spared.slot} could be parked")

    @on(r.FreeSequence)
    def freed(self, rec: r.FreeSequence) -> None:
        g = self.g
        what, self.what = self.what, None
        victim = g.at(rec.seq)
        if victim is None or victim.life is None:
            return
        if what == "spill_out_sequence" and not g.failed_decode:
            self._spilled(victim, rec)
        if what not in ("preempt_requeue", "spill_out_sequence") or not g.failed_decode:
            return
        self.eligible.add(victim.life.id)
        if victim.life.id in self.barred and not self._shared(victim.life.id):
            self.fail(f"{rec.seq} is preempted, though it has a grammar or pictures that no re-prefill brings back")
        if victim.life.dropped:
            return
        key = self._key(victim)
        if g.scenario is not None and g.scenario.scheduler.think_start_token is not None:
            return  # a first token that opens a thought is no output
        for seq in g.active:
            if seq is victim or seq.life is None or seq.life.dropped or self._key(seq) >= key:
                continue
            text = f"{rec.seq} is preempted; s{seq.hash}@{seq.slot} has {seq.life.outputs} tokens and comes first"
            if g.scenario is not None:
                if seq.life.id not in self.barred:
                    self.fail(text, g.failed_decode)
                    break
            elif seq.life.outputs < victim.life.outputs - 1:
                self.passed_over.append((seq.life, text, (g.failed_decode, g.line)))

    def _spilled(self, victim: Seq, rec: r.FreeSequence) -> None:
        """Admission-time spill: the row with the most blocks, the last of them (S1 section 12)."""
        g = self.g
        if g.scenario is None or g.pool.low != g.pool.high or victim.life is None:
            return
        rows = [seq for seq in g.active if seq.life is not None and seq.life.id not in self.grammars]
        most = max((seq.low for seq in rows), default=0)
        right = next((seq for seq in reversed(rows) if seq.low == most), None)
        if right is not None and right is not victim and len({seq.hash for seq in rows}) == len(rows):
            self.fail(f"{rec.seq} is spilled; s{right.hash}@{right.slot} holds {most} blocks and comes first")

    def _shared(self, id_: int) -> bool:
        scenario = self.g.scenario
        return scenario is not None and sum(one.id == id_ for one in scenario.request) > 1

    def _key(self, seq: Seq) -> tuple[bool, int, int]:
        assert seq.life is not None
        outputs = seq.life.outputs
        spared = seq.origin.name in ("RESUME", "RESTORE") and outputs < seq.immune_until
        return spared, outputs, seq.slot

    @on(r.AcquireAdapterSlot)
    def acquired(self, rec: r.AcquireAdapterSlot) -> None:
        """A row that comes back is spared for its next 64 tokens."""
        g = self.g
        seq = g.newest
        if seq is not None and seq.origin.name == "RESTORE" and seq.life is not None:
            seq.immune_until = seq.life.outputs + IMMUNITY

    @on(r.Prefill)
    def resumed(self, rec: r.Prefill) -> None:
        g = self.g
        seq = g.live.get(rec.seq.slot)
        parked = next((entry for entry in g.requeued if entry.hash == rec.seq.hash), None)
        if seq is not None and not seq.named and parked is not None and seq.origin.name == "RESUME":
            seq.immune_until = parked.outputs + IMMUNITY

    def finish(self) -> None:
        for life, text, lines in self.passed_over:
            if life.id in self.eligible:
                self.g.line = 0
                self.fail(text, *lines)
                return
