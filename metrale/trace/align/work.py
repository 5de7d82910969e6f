"""Which piece of work a line belongs to: the identity by which lines of two traces are matched.

A checkpoint of request 1 at its seventh token is the same work in both traces, whatever its tick, slot or line
number. Lines that name no sequence take the identity of the work they serve.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from .. import records as rec
from ..records import Fx, Record, Stage
from .state import PARKED, State, seqs_of

Key = tuple[Hashable, ...]

ACT_OF: dict[type[Record], str] = {
    rec.NumFreeBlocks: "memory",
    rec.ReclaimPrefixBlocks: "memory",
    rec.AdapterIdFor: "gate",
    rec.AllocSequence: "admit",
    rec.AllocSequenceFor: "admit",
    rec.FxLaunchDecode: "decode",
    rec.FxLaunchDecodeFed: "decode",
    rec.FxReserveKv: "decode",
    rec.FxRollback: "decode",
    rec.FxReadLogits: "decode",
    rec.PollInnerq: "prefill",
    rec.PrefillChunk: "prefill",
    rec.PrefillBatchChunk: "prefill",
    rec.MixedForward: "prefill",
    rec.MixedForwardBatch: "prefill",
    rec.MtpSlotDraftCapacity: "step",
    rec.FxSyncSecondary: "step",
    rec.FxSaveHiddenCatchup: "step",
    rec.FxMarconiCheckpoint: "token",
    rec.FxSsmSnapshotSave: "token",
    rec.FxSsmSnapshotRestore: "token",
    rec.FxReleaseSeq: "release",
    rec.FxCompactSlot: "compaction",
    rec.FxDetachSlot: "compaction",
    rec.FxSaveSequenceState: "release",
    rec.FxRotate: "adapter",
    rec.FxLoadIntoSlot: "adapter",
    rec.FxPromote: "adapter",
    rec.FxPromoteDisk: "adapter",
    rec.FxEpShutdown: "frame",
    rec.FxQuiesce: "frame",
    rec.FxTeardown: "frame",
    rec.Header: "frame",
    rec.Out: "client",
}
"""Lines that begin an act of the scheduler; any other line belongs to the act before it."""

_INSIDE_ADMISSION = (rec.AdapterIdFor, rec.PrefillChunk)


@dataclass(slots=True)
class Work:
    """One line's place in the scheduler's work.

    ``act`` numbers the act by the index of its first line, ``kind`` names it (:data:`ACT_OF`; an ``admit`` of parked
    work is a ``resume``, free blocks followed by the marker are a ``tick``). ``owner`` is the request, None for what
    concerns no single one. ``key`` is the exact identity, ``loose`` the one that survives another length or batch.
    """

    act: int
    kind: str
    owner: int | None = None
    progress: int = 0
    key: Key = ()
    loose: Key = ()


class Clerk:
    """Files the lines of one trace; feed it line by line with the state after each (before, for free calls)."""

    def __init__(self) -> None:
        self._act = 0
        self._kind = "frame"
        self._waiting: list[tuple[Work, str]] = []
        self._routed: list[tuple[Work, Key]] = []
        self._context: Key = ()
        self._count: Counter[str] = Counter()

    def file(self, index: int, record: Record | None, text: str, state: State) -> Work:
        """The work of line ``index``; ``state`` has not taken the line in yet, and takes it in here."""
        if record is None:
            return Work(index, "text", key=("text", text), loose=("text",))
        opening = state.opening is not None
        act = ACT_OF.get(type(record))
        if act is None and self._kind == "tick" and not isinstance(record, rec.Tick):
            act = "step"
        if act is not None and not (opening and isinstance(record, _INSIDE_ADMISSION)):
            if act != "gate" or self._kind != "gate":
                self._act = index
            self._kind = act
        if isinstance(record, rec.Tick):
            self._kind = "tick"
        work = Work(self._act, self._kind)
        seqs = seqs_of(record)
        owners = [state.owner(seq) for seq in seqs]
        parked = [state.rows[o].phase in PARKED for o in owners if o in state.rows]
        prompts = {o: state.rows[o].prompt for o in owners if o in state.rows}
        slot_owner = state.at_slot(record.seq) if isinstance(record, rec.EpBroadcastCmdForSeq) else None
        state.feed(record)
        if isinstance(record, Fx):
            extra: Key = (record.what,) if isinstance(record, rec.FxReleaseSeq) else ()
            self._routed.append((work, (record.rule, *extra)))
            work.loose = (record.rule, *extra)
            return work
        named = [(o, s.length - prompts.get(o, _prompt(state, o))) for o, s in zip(owners, seqs, strict=True)]
        self._identify(work, record, named, slot_owner, opening, state)
        if parked and parked[0] and work.kind == "admit":
            self._rename(work)
        self._settle(work)
        return work

    def _rename(self, work: Work) -> None:
        self._kind = work.kind = "resume"

    def _identify(
        self,
        work: Work,
        record: Record,
        named: list[tuple[int, int]],
        slot_owner: int | None,
        opening: bool,
        state: State,
    ) -> None:
        rule = record.rule
        if len(named) == 1:
            owner, progress = named[0]
            work.owner, work.progress = owner, progress
            self._enter((owner, progress))
            extra = (record.start,) if isinstance(record, rec.PrefillChunk) else ()
            work.key, work.loose = (rule, owner, progress, *extra, self._nth(rule)), (rule, owner)
            self._name_waiting(owner, progress)
        elif named:
            batch = tuple(named)
            self._enter(batch)
            work.key, work.loose = (rule, batch, self._nth(rule)), (rule,)
        elif isinstance(record, rec.AllocSequence | rec.AllocSequenceFor) or opening:
            if isinstance(record, rec.AllocSequence | rec.AllocSequenceFor):
                self._name_waiting(None, 0)
            self._waiting.append((work, rule))
        elif isinstance(record, rec.Out):
            work.owner = record.id
            work.key = work.loose = (rule, record.id)
        elif record.stage is not Stage.CALLS:
            work.key = work.loose = (rule,)
        elif isinstance(record, rec.Tick):
            self._enter(())
            work.key = work.loose = (rule,)
        elif isinstance(record, rec.NumFreeBlocks | rec.ReclaimPrefixBlocks) or work.kind == "gate":
            self._enter(())
            work.key = work.loose = (rule, work.kind)
        elif work.kind == "frame":
            work.key, work.loose = (rule, str(record)), (rule,)
        else:
            if slot_owner is not None:
                self._enter((slot_owner, state.progress_of(slot_owner) or 0))
            if len(self._context) == 2 and isinstance(self._context[0], int):
                work.owner = self._context[0]
            work.key, work.loose = (rule, self._context, self._nth(rule)), (rule, work.owner)

    def _enter(self, context: Key) -> None:
        if context != self._context:
            self._context = context
            self._count.clear()

    def _nth(self, rule: str) -> int:
        self._count[rule] += 1
        return self._count[rule]

    def _settle(self, work: Work) -> None:
        """Router lines have the identity of the device call that follows."""
        for routed, key in self._routed:
            routed.owner, routed.progress = work.owner, work.progress
            routed.key = (*key, *(work.key or ("open",)))
            routed.loose = (*key, work.owner)
        self._routed.clear()

    def _name_waiting(self, owner: int | None, progress: int) -> None:
        """The sequence of an allocation is named: its lines so far get their identity."""
        count: Counter[str] = Counter()
        for work, rule in self._waiting:
            count[rule] += 1
            work.owner, work.progress = owner, progress
            work.key = (rule, "admit", owner, progress, count[rule])
            work.loose = (rule, owner, count[rule])
        self._waiting.clear()

    def close(self) -> None:
        """The trace is over."""
        self._name_waiting(None, 0)
        self._settle(Work(0, "frame", key=("end",)))


def _prompt(state: State, owner: int) -> int:
    row = state.rows.get(owner)
    return 0 if row is None else row.prompt
