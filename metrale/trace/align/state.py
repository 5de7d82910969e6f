"""The scheduler's state, rebuilt from a trace line by line (S1 sections 2, 9, 13 to 19; S5 section 7).

A trace names every sequence with its slot and length, every allocation, release and free-block answer; that is enough
to say at any line who is active, prefilling or parked, in which slot, how long, and how much memory it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from operator import attrgetter
from typing import Any

from .. import records as rec
from ..records import Record
from ..values import DETACHED_SLOT, SeqId

RELEASED = 0xFFFFFFF1
"""The expert-parallel word that ends a sequence (S2 section 3.5)."""

DEFAULT_BLOCK_SIZE = 16


class Phase(StrEnum):
    """Where a sequence stands."""

    PREFILLING = "prefilling"
    ACTIVE = "active"
    REQUEUED = "requeued"
    SPILLED = "spilled"
    ENDED = "ended"


PARKED = (Phase.REQUEUED, Phase.SPILLED)

_AFTER_RELEASE = {
    "finish_sequence": Phase.ENDED,
    "send_error": Phase.ENDED,
    "preempt_requeue": Phase.REQUEUED,
    "spill_out_sequence": Phase.SPILLED,
}


@dataclass(slots=True)
class Row:
    """One request's sequence: ``length`` tokens on the device in ``blocks`` KV blocks; ``prompt`` of them were given.

    ``slot`` is -1 while it holds none. ``last`` is the token it will be fed next, where the trace tells.
    """

    id: int
    slot: int = -1
    length: int = 0
    prompt: int = 0
    blocks: int = 0
    phase: Phase = Phase.PREFILLING
    last: int | None = None

    @property
    def progress(self) -> int:
        """Tokens beyond the prompt: the same for the same piece of work, however it was scheduled."""
        return self.length - self.prompt


@dataclass(slots=True)
class State:
    """What one trace says up to a line.

    ``rows`` are the sequences that are not over, ``ended`` how far each of the others came. ``free`` is the last
    answer of ``num_free_blocks``, ``pool`` what the first one says of the whole pool, ``opening`` a slot that has
    been allocated for a sequence not yet named, ``gates`` counts the admission
    lines of this tick's plan and of the next one's so far, ``launches`` batched decodes.
    """

    block_size: int = DEFAULT_BLOCK_SIZE
    tick: int = 0
    free: int | None = None
    rows: dict[int, Row] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)
    slots: dict[int, int] = field(default_factory=dict)
    batch: tuple[int, ...] = ()
    opening: int | None = None
    gates: tuple[int, int] = (0, 0)
    launches: int = 0
    pool: int | None = None
    _why: str | None = None
    _freed: int | None = None

    def fork(self, block_size: int | None = None) -> State:
        """An independent copy, with the blocks counted anew if the block size is another."""
        rows = {id: replace(row) for id, row in self.rows.items()}
        size = self.block_size if block_size is None else block_size
        for row in rows.values() if size != self.block_size else ():
            row.blocks = row.length // size + 1 if row.blocks else 0
        return replace(self, rows=rows, slots=dict(self.slots), ended=dict(self.ended), block_size=size)

    def like(self, other: State) -> bool:
        """Whether both stand the same in all but tick, free blocks, pool size and number of launches."""
        return (
            self.block_size == other.block_size
            and self.rows == other.rows
            and self.slots == other.slots
            and len(self.ended) == len(other.ended)
            and (self.batch, self.opening, self.gates, self._why)
            == (other.batch, other.opening, other.gates, other._why)
        )

    def read_clock(self, records: Iterable[Record | None]) -> None:
        """Take in nothing but tick and free blocks."""
        for record in records:
            if isinstance(record, rec.Tick):
                self.tick = record.tick
            elif isinstance(record, rec.NumFreeBlocks):
                self.free = record.result

    def owner(self, seq: SeqId) -> int:
        """The request behind a printed sequence; a restored one prints hash 0 and is known by its slot (S1 19)."""
        return seq.hash or self.slots.get(seq.slot, 0)

    def progress_of(self, id: int) -> int | None:
        """How far the request has come; None if it was never seen."""
        row = self.rows.get(id)
        return self.ended.get(id) if row is None else row.progress

    def at_slot(self, slot: int) -> int | None:
        """The request that holds ``slot``, or that has just given it up."""
        return self.slots.get(slot, self._freed)

    def in_phase(self, *phases: Phase) -> list[Row]:
        """Rows of these phases, by slot."""
        return sorted((row for row in self.rows.values() if row.phase in phases), key=lambda row: (row.slot, row.id))

    @property
    def used(self) -> int:
        """KV blocks that the sequences hold, counted by length."""
        return sum(row.blocks for row in self.rows.values() if row.slot >= 0)

    def predicts_free(self, answer: int) -> bool:
        """Whether ``answer`` is what the sequences' blocks leave of the pool."""
        return self.pool is not None and answer == max(0, self.pool - self.used)

    def feed(self, record: Record) -> None:
        """Take one line in."""
        step = _STEPS.get(type(record))
        if step is not None:
            step(self, record)
        else:
            for seq in seqs_of(record):
                if self.owner(seq) in self.rows or seq.slot == self.opening:
                    self._see(seq)

    def feed_all(self, records: Iterable[Record | None]) -> None:
        """Take many lines in; None stands for a line that is not of the language."""
        for record in records:
            if record is not None and (kind := type(record)) not in _IDLE:
                step = _STEPS.get(kind)
                if step is not None:
                    step(self, record)
                else:
                    self.feed(record)

    # ------------------------------------------------------------ what lines do

    def _see(self, seq: SeqId, length: int | None = None) -> Row:
        id = self.owner(seq)
        row = self.rows.get(id)
        if row is None:
            row = self.rows[id] = Row(id)
        if row.slot != seq.slot and seq.slot != DETACHED_SLOT:
            self._seat(row, seq.slot)
        row.length = seq.length if length is None else length
        if row.slot >= 0:
            row.blocks = max(row.blocks, row.length // self.block_size + 1 if row.length else 0)
        return row

    def _seat(self, row: Row, slot: int) -> None:
        if self.slots.get(row.slot) == row.id:
            del self.slots[row.slot]
        row.slot = slot
        self.slots[slot] = row.id
        if slot == self.opening:
            self.opening = None

    def _leave(self, row: Row, phase: Phase) -> None:
        if self.slots.get(row.slot) == row.id:
            del self.slots[row.slot]
        self._freed = row.id
        row.slot, row.blocks, row.phase = -1, 0, phase
        if phase is Phase.ENDED:
            self.ended[row.id] = row.progress
            del self.rows[row.id]

    def _tick(self, record: rec.Tick) -> None:
        self.tick = record.tick
        self.gates = self.gates[1], 0

    def _free_blocks(self, record: rec.NumFreeBlocks) -> None:
        self.free = record.result
        if self.pool is None:
            self.pool = record.result + self.used

    def _alloc(self, record: rec.AllocSequence | rec.AllocSequenceFor) -> None:
        if record.slot is not None:
            squatter = self.rows.get(self.slots.get(record.slot, -1))
            if squatter is not None:
                self._leave(squatter, Phase.ENDED)
            self.opening = record.slot

    def _gate(self, record: rec.AdapterIdFor) -> None:
        if self.opening is None:
            self.gates = self.gates[0], self.gates[1] + 1

    def _prefill(self, record: rec.Prefill | rec.PrefillTwophase) -> None:
        if record.error is None:
            row = self._see(record.seq)
            row.prompt = row.prompt or record.n
            row.phase = Phase.ACTIVE
            self.batch = (row.id,)

    def _chunks(self, chunks: Iterator[tuple[SeqId, bool]]) -> tuple[int, ...]:
        ids = []
        for seq, last in chunks:
            row = self._see(seq)
            row.prompt = row.length if last else 0
            row.phase = Phase.ACTIVE if last else Phase.PREFILLING
            ids.append(row.id)
        return tuple(ids)

    def _prefill_chunk(self, record: rec.PrefillChunk) -> None:
        if record.error is None:
            self.batch = self._chunks(iter([(record.seq, record.last)]))

    def _batch_chunk(self, record: rec.PrefillBatchChunk) -> None:
        if record.error is None:
            self.batch = self._chunks((part.seq, part.last) for part in record.streams)

    def _mixed(self, record: rec.MixedForward | rec.MixedForwardBatch) -> None:
        if record.error is not None:
            return
        rows = self.in_phase(Phase.ACTIVE)[: len(record.decode)]
        for row, token in zip(rows, record.decode, strict=False):
            self._see(SeqId(row.id, row.slot, row.length + 1)).last = token
        parts = record.prefills if isinstance(record, rec.MixedForwardBatch) else (record.prefill,)
        self.batch = tuple(row.id for row in rows) + self._chunks((part.seq, part.last) for part in parts)

    def _decode_batch(self, record: rec.DecodeBatch) -> None:
        self.launches += 1
        grown = int(record.error is None)
        rows = [self._see(seq, seq.length + grown) for seq in record.seqs]
        if grown:
            for row, token in zip(rows, record.tokens, strict=False):
                row.last = token
            self.batch = tuple(row.id for row in rows)

    def _decode_fed(self, record: rec.DecodeBatchFed) -> None:
        self.launches += 1
        self.batch = tuple(self._see(seq).id for seq in record.seqs)

    def _verify_batched(self, record: rec.DecodeVerifyBatched) -> None:
        self.batch = tuple(self._see(seq).id for seq in record.seqs)

    def _one_row(self, record: Any) -> None:
        if record.error is None:
            self.batch = (self._see(record.seq).id,)

    def _answers(self, record: rec.ArgmaxBatch | rec.ArgmaxBatchToFeed) -> None:
        for id, token in zip(self.batch[record.row :], record.result or (), strict=False):
            if id in self.rows:
                self.rows[id].last = token

    def _answer(self, record: rec.ArgmaxOnDevice) -> None:
        if record.row < len(self.batch) and self.batch[record.row] in self.rows:
            self.rows[self.batch[record.row]].last = record.result

    def _why_released(self, record: rec.FxReleaseSeq) -> None:
        self._why = record.what

    def _free_sequence(self, record: rec.FreeSequence) -> None:
        self._leave(self._see(record.seq), _AFTER_RELEASE.get(self._why or "", Phase.ENDED))
        self._why = None

    def _ep_word(self, record: rec.EpBroadcastCmdForSeq) -> None:
        row = self.rows.get(self.slots.get(record.seq, -1))
        if record.cmd == RELEASED and row is not None and self.opening is None and self._freed is None:
            self._leave(row, _AFTER_RELEASE.get(self._why or "", Phase.ENDED))
        self._freed = None

    def _compact(self, record: rec.CompactSequence) -> None:
        row = self._see(record.seq)
        if record.error is None:
            self._seat(row, record.new_slot)

    def _detach(self, record: rec.DetachSlotForReuse) -> None:
        row = self._see(record.seq)
        if self.slots.get(row.slot) == row.id:
            del self.slots[row.slot]
        row.slot = DETACHED_SLOT

    def _restore(self, record: rec.RestoreSequenceState) -> None:
        waiting = [row for row in self.rows.values() if row.phase is Phase.SPILLED]
        fitting = [row for row in waiting if row.length // self.block_size + 1 == record.blocks]
        for row in (fitting or waiting)[:1]:
            row.phase, row.blocks = Phase.ACTIVE, record.blocks
            self._seat(row, record.seq.slot)


_STEPS: dict[type[Record], Callable[[State, Any], None]] = {
    rec.Tick: State._tick,
    rec.NumFreeBlocks: State._free_blocks,
    rec.AllocSequence: State._alloc,
    rec.AllocSequenceFor: State._alloc,
    rec.AdapterIdFor: State._gate,
    rec.Prefill: State._prefill,
    rec.PrefillTwophase: State._prefill,
    rec.PrefillChunk: State._prefill_chunk,
    rec.PrefillBatchChunk: State._batch_chunk,
    rec.MixedForward: State._mixed,
    rec.MixedForwardBatch: State._mixed,
    rec.Decode: State._one_row,
    rec.DecodeDraft: State._one_row,
    rec.DecodeVerify: State._one_row,
    rec.DecodeVerifyGraphed: State._one_row,
    rec.DecodeVerifyGraphedK3: State._one_row,
    rec.DecodeVerifyGraphedK4: State._one_row,
    rec.DecodeVerifyDflash: State._one_row,
    rec.DecodeAndVerifyFused: State._one_row,
    rec.DecodeBatch: State._decode_batch,
    rec.DecodeBatchFed: State._decode_fed,
    rec.DecodeVerifyBatched: State._verify_batched,
    rec.ArgmaxBatch: State._answers,
    rec.ArgmaxBatchToFeed: State._answers,
    rec.ArgmaxOnDevice: State._answer,
    rec.FxReleaseSeq: State._why_released,
    rec.FreeSequence: State._free_sequence,
    rec.EpBroadcastCmdForSeq: State._ep_word,
    rec.CompactSequence: State._compact,
    rec.DetachSlotForReuse: State._detach,
    rec.RestoreSequenceState: State._restore,
}


def _getter(node: type[Record]) -> Callable[[Any], list[SeqId]] | None:
    """How to get at the sequences that a kind of line prints; None if it prints none."""
    kinds = {name: str(kind) for name, kind in getattr(node, "__annotations__", {}).items()}
    for name, kind in kinds.items():
        get = attrgetter(name)
        if kind == "SeqId":
            return lambda record: [get(record)]
        if kind == "Slice":
            return lambda record: [get(record).seq]
        if kind == "Seqs":
            return lambda record: list(get(record))
        if kind == "Slices":
            return lambda record: [part.seq for part in get(record)]
    return None


_GETTERS = {node: get for node in rec.RULES.values() if issubclass(node, Record) and (get := _getter(node)) is not None}


def seqs_of(record: Record) -> list[SeqId]:
    """The sequences that a line prints, in printed order."""
    get = _GETTERS.get(type(record))
    return [] if get is None else get(record)


_IDLE = frozenset(
    node for node in rec.RULES.values() if issubclass(node, Record) and node not in _STEPS and node not in _GETTERS
)
"""Lines that change nothing in the state."""


def block_size_of(records: Iterator[Record | None]) -> int:
    """The block size that explains most releases: a sequence of n tokens frees n // size + 1 blocks (S1 section 2)."""
    seen = {(r.seq.length, r.blocks) for r in records if isinstance(r, rec.FreeSequence) and r.seq.length}
    if not seen:
        return DEFAULT_BLOCK_SIZE
    sizes = sorted({DEFAULT_BLOCK_SIZE, *(1 << power for power in range(11))}, key=lambda size: abs(size - 16))
    return max(sizes, key=lambda size: sum(length // size + 1 == blocks for length, blocks in seen))
