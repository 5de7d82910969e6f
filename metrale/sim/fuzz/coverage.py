"""What a hunt has seen: pairs of lines, lanes, faults, and the steps in a request's life."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from metrale.sim.invariants import TraceCheck
from metrale.trace import records as r
from metrale.trace.records import CALLS, Record

LANES: dict[str, type[Record]] = {
    "whole prompt": r.Prefill,
    "chunk": r.PrefillChunk,
    "batched prefill": r.PrefillBatchChunk,
    "mixed": r.MixedForward,
    "batched mixed": r.MixedForwardBatch,
    "plain decode": r.DecodeBatch,
    "fed decode": r.DecodeBatchFed,
    "bootstrap": r.Decode,
    "verify of 2": r.DecodeVerifyGraphed,
    "verify of 3": r.DecodeVerifyGraphedK3,
    "verify of 4": r.DecodeVerifyGraphedK4,
    "batched verify": r.DecodeVerifyBatched,
    "DFlash bootstrap": r.DecodeAndVerifyFused,
    "DFlash verify": r.DecodeVerifyDflash,
    "self-speculation": r.DecodeDraft,
    "n-gram rollback": r.StartRollbackAndCheckpointAsync,
    "beam": r.GenerateBeamBatch,
    "rotation": r.SetActiveLora,
    "watchdog rollback": r.RestoreDecodeSsmSnapshot,
    "host readback": r.CopyLogitsToHost,
}
"""Each lane or mechanism by the line that only it writes."""

TRANSITIONS = (
    "refused", "queued -> cancelled", "queued -> timeout", "queued -> error", "prefilling -> error",
    "prefilling -> cancelled", "prefilling -> timeout", "born -> stop", "born -> length", "active -> stop",
    "active -> length", "active -> timeout", "active -> cancelled", "active -> error", "active -> requeued",
    "active -> spilled", "requeued -> active", "spilled -> active", "requeued -> cancelled", "requeued -> timeout",
    "requeued -> error", "spilled -> cancelled", "spilled -> timeout", "spilled -> error", "compacted", "displaced",
    "reclaimed", "rolled back", "over-run discarded",
)  # fmt: skip
"""Every step of S1 sections 7, 17 to 20 and S5 section 11 that a request can take."""

IMPOSSIBLE = frozenset({"dflash_eagle_kgamma_append", "save_hidden_for_catchup", "swap_lora_from_disk"})


@dataclass(slots=True)
class Coverage:
    """Counts over many runs; two can be added."""

    runs: int = 0
    lines: int = 0
    ticks: int = 0
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    triples: set[tuple[str, str, str]] = field(default_factory=set)
    calls: Counter[str] = field(default_factory=Counter)
    lanes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    transitions: Counter[str] = field(default_factory=Counter)
    profiles: Counter[str] = field(default_factory=Counter)

    def see(self, profile: str, records: list[Record], check: TraceCheck | None, ticks: int) -> None:
        """Take in one run."""
        self.runs += 1
        self.lines += len(records)
        self.ticks += ticks
        self.profiles[profile] += 1
        kinds = [type(record) for record in records]
        seen = set(kinds)
        self.pairs.update({(a.__name__, b.__name__) for a, b in set(pairwise(kinds))})
        self.triples.update(
            (a.__name__, b.__name__, c.__name__) for a, b, c in set(zip(kinds, kinds[1:], kinds[2:], strict=False))
        )
        self.calls.update(kind.rule for kind in seen)
        self.lanes.update(lane for lane, kind in LANES.items() if kind in seen)
        self.faults.update({record.rule for record in records if getattr(record, "error", None) is not None})
        if check is not None:
            self.transitions.update(transitions_of(check, seen))

    def add(self, other: Coverage) -> None:
        """Take in another hunt's counts."""
        self.runs += other.runs
        self.lines += other.lines
        self.ticks += other.ticks
        self.triples |= other.triples
        for name in ("pairs", "calls", "lanes", "faults", "transitions", "profiles"):
            getattr(self, name).update(getattr(other, name))

    @property
    def never_seen(self) -> dict[str, list[str]]:
        """What no run has shown."""
        calls = [name for name in CALLS if name not in self.calls and name not in IMPOSSIBLE]
        return {
            "lanes": [lane for lane in LANES if lane not in self.lanes],
            "transitions": [step for step in TRANSITIONS if step not in self.transitions],
            "calls": calls,
        }

    def summary(self) -> list[str]:
        """A few lines for a person."""
        mean = self.ticks / self.runs if self.runs else 0
        lines = [
            f"{self.runs} runs, {self.lines} lines, {mean:.0f} ticks a run",
            f"lanes: {_listed(self.lanes)}",
            f"faults hit: {_listed(self.faults)}",
            f"steps of a request: {_listed(self.transitions)}",
            f"pairs of lines: {len(self.pairs)}, triples: {len(self.triples)}",
        ]
        for what, names in self.never_seen.items():
            if names:
                lines.append(f"never seen {what}: {', '.join(names)}")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "runs": self.runs,
            "lines": self.lines,
            "ticks": self.ticks,
            "pairs": len(self.pairs),
            "triples": len(self.triples),
            "lanes": dict(sorted(self.lanes.items())),
            "faults": dict(sorted(self.faults.items())),
            "transitions": dict(sorted(self.transitions.items())),
            "never_seen": self.never_seen,
        }


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common()) or "none"


def transitions_of(check: TraceCheck, seen: set[type[Record]]) -> set[str]:
    """The steps that the requests of one run took."""
    ghost = check.ghost
    steps: set[str] = set()
    by_line = {r.CompactSequence: "compacted", r.DetachSlotForReuse: "displaced", r.ReclaimPrefixBlocks: "reclaimed"}
    by_line |= {r.RestoreSequenceState: "spilled -> active", r.ReleaseDecodeBlocks: "over-run discarded"}
    steps.update(name for kind, name in by_line.items() if kind in seen)
    ends: dict[int, list[r.Event]] = {}
    for _, out in ghost.outs:
        if out.events:
            ends.setdefault(out.id, []).append(out.events[-1])
    for id_, lives in ghost.lives.items():
        for life, end in zip(lives, ends.pop(id_, []), strict=False):
            steps.update(life.steps)
            state = _state(life.end, life.prefilled, len(life.kept))
            steps.add(f"{state} -> {_end(end)}")
            if life.rewound:
                steps.add("rolled back")
    for left in ends.values():
        for end in left:
            message = getattr(end, "message", "")
            steps.add("refused" if message.startswith("refused") else f"queued -> {_end(end)}")
    return steps & set(TRANSITIONS)


def _state(end: str | None, prefilled: bool, outputs: int) -> str:
    parked = {"preempt_requeue": "requeued", "spill_out_sequence": "spilled"}.get(end or "")
    if parked:
        return parked
    if not prefilled:
        return "prefilling"
    return "born" if end == "finish_sequence" and outputs <= 1 else "active"


def _end(end: r.Event) -> str:
    reason: str = getattr(end, "reason", "error")
    return reason
