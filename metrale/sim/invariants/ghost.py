"""The ghost: what the lines read so far say about sequences, slots, blocks and clients (S6 section 1).

It is rebuilt from the log alone, line by line. Invariants read it; :mod:`.replay` writes it.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from metrale.trace.records import Out
from metrale.trace.values import SeqId

from .base import MAX_PER_INVARIANT, Violation
from .pool import Pool

if TYPE_CHECKING:
    from metrale.sim.scenario import Scenario

UNKNOWN = -1
"""A token that the host picked from logits: no line shows it until it is fed or streamed."""


class Phase(IntEnum):
    """Where a sequence is in its life (S6 section 5)."""

    EMPTY = 0
    PREFILL = 1
    READY = 2
    GONE = 3


class Origin(IntEnum):
    """Why a sequence was allocated."""

    NEW = 0
    START = 1
    RESUME = 2
    RESTORE = 3
    BEAM = 4


@dataclass(slots=True, eq=False)
class Life:
    """One request on the device, from its first sequence to its last release; parking does not end it.

    ``kept`` are the tokens that count as output so far (UNKNOWN where the host picked), ``run`` those of the latest
    speculative step, of which a finish may have cut a tail. ``dropped`` picks were neither recorded nor checkpointed.
    """

    id: int
    born: int
    prompt: int = 0
    budget: int | None = None
    adapter: int = -1
    kept: array[int] = field(default_factory=lambda: array("q"))
    run: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    accepted: int = 0
    rewound: int = 0
    thought: bool = False
    host_picks: int = 0
    steps: list[str] = field(default_factory=list)
    end: str | None = None
    ended: int = 0
    end_length: int = 0
    ended_by_drop: bool = False
    hypothesis: tuple[int, ...] | None = None
    prefilled: bool = False
    run_at_end: bool = False

    def flush(self) -> None:
        """The row went on: everything its last speculative step emitted counts."""
        if self.run:
            self.kept.extend(self.run)
            self.run = []

    @property
    def outputs(self) -> int:
        """Tokens that count as output so far."""
        return len(self.kept) + len(self.run)


@dataclass(slots=True, eq=False)
class Window:
    """The latest verify of a sequence: ``rows`` inputs fed from position ``start``, ``accepted`` drafts of them.

    ``host`` is set once the rows were copied to the host: what was accepted is then known from later lines only.
    """

    line: int
    call: str
    start: int
    tokens: tuple[int, ...]
    answers: tuple[int, ...]
    accepted: int
    host: bool = False
    counted: int = 0
    told: bool = False

    @property
    def rows(self) -> int:
        """Rows fed."""
        return len(self.tokens)

    @property
    def full(self) -> bool:
        """Every draft was accepted."""
        return self.accepted == len(self.tokens) - 1


@dataclass(slots=True, eq=False)
class Seq:
    """One device sequence as the log shows it.

    ``pending`` is the pick that the next forward feeds, made at line ``picked``; ``fresh`` until it is known to be
    kept or dropped. ``ahead`` is set while a fed step is launched whose input is not booked yet (depth 2).
    """

    slot: int
    born: int
    hash: int = 0
    named: bool = False
    origin: Origin = Origin.NEW
    phase: Phase = Phase.EMPTY
    length: int = 0
    alternative: int | None = None
    life: Life | None = None
    prompt: int = 0
    budget: int | None = None
    adapter: int | None = None
    acquired: int = 0
    pending: int = UNKNOWN
    picked: int = 0
    fresh: bool = False
    ahead: bool = False
    ahead_pick: int = UNKNOWN
    undo: bool = False
    boundary: int | None = None
    base: int = 0
    peak: int = 0
    before_reserve: int = 0
    low: int = 0
    high: int = 0
    limit: int = 0
    reserved: int | None = None
    drafts: tuple[int, ...] = ()
    proposed: int = 0
    drafting: int = 0
    mtp: bool = False
    window: Window | None = None
    secondary: str = ""
    secondary_line: int = 0
    context_end: int | None = None
    moved: int = 0
    ring: dict[int, int] = field(default_factory=dict)
    mask: bool | None = None
    hypothesis: tuple[int, ...] | None = None
    immune_until: int = 0
    undrafted: int = 0

    def __str__(self) -> str:
        return f"s{self.hash}" if self.hash else "the restored sequence" if self.origin is Origin.RESTORE else "it"


@dataclass(slots=True, eq=False)
class Parked:
    """A life without a sequence: requeued (``blocks`` None) or spilled."""

    life: Life
    hash: int
    length: int
    blocks: int | None
    pending: int
    fresh: bool
    adapter: int | None
    line: int
    outputs: int


class Ghost:
    """All that the log said so far. ``line`` is the number of the present line."""

    def __init__(self, scenario: Scenario | None = None) -> None:
        self.scenario = scenario
        self.violations: list[Violation] = []
        self._counts: dict[str, int] = {}
        self.line = 0
        self.index = 0
        self.tick = 0
        self.tick_line = 0
        self.pool = Pool()
        self.live: dict[int, Seq] = {}
        self.detached: list[Seq] = []
        self.active: list[Seq] = []
        self.prefilling: list[Seq] = []
        self.newest: Seq | None = None
        self.lives: dict[int, list[Life]] = {}
        self.requeued: list[Parked] = []
        self.spilled: list[Parked] = []
        self.freed: dict[tuple[int, int], int] = {}
        self.rows: list[Seq] = []
        self.rows_line = 0
        self.row_count = 0
        self.rows_single = False
        self.rows_mixed = False
        self.rows_verified = False
        self.born_at = 0
        self.stash: list[Seq] = []
        self.stash_line = 0
        self.chunked: bool | None = None
        self.failed_decode = 0
        self.flight: list[Seq] = []
        self.vocab: int | None = None
        self.prefill_stream = 1
        self.prefill_event: int | None = None
        self.hypotheses: list[tuple[int, ...]] = []
        self.outs: list[tuple[int, Out]] = []
        self.torn_down = False
        self.depth_two = False
        self.uses_mtp = False
        self.uses_drafts = False
        self.unified: bool | None = None

    def report(self, invariant: str, message: str, lines: tuple[int, ...] = ()) -> None:
        """Note a violation at the present line; the same invariant is noted a few times only."""
        count = self._counts.get(invariant, 0)
        self._counts[invariant] = count + 1
        if count < MAX_PER_INVARIANT:
            where = tuple(sorted({line for line in (*lines, self.line) if line}))
            self.violations.append(Violation(invariant, message, where))

    def at(self, sid: SeqId) -> Seq | None:
        """The live sequence that a line names, or None if no live sequence stands there."""
        seq = self.live.get(sid.slot)
        if seq is not None and (seq.hash == sid.hash or not seq.named):
            return seq
        return self._detached(sid) if seq is None else None

    def _detached(self, sid: SeqId) -> Seq | None:
        for seq in self.detached:
            if seq.slot == sid.slot and seq.hash == sid.hash:
                return seq
        return None

    def expected_length(self, seq: Seq) -> int:
        """The length that the next line naming ``seq`` must show, if it is no checkpoint."""
        return seq.length + 1 if seq.ahead else seq.length

    def settle_ahead(self, seq: Seq) -> None:
        """The step before the fed one is settled: the fed input is booked, its pick is the pending one (S5 11.6)."""
        if seq.ahead:
            if seq.fresh and seq.life is not None:
                seq.life.dropped.append(seq.pending)
            seq.length += 1
            seq.pending, seq.ahead_pick = seq.ahead_pick, UNKNOWN
            seq.fresh, seq.ahead = True, False

    def reconsider(self, seq: Seq, length: int, token: int = UNKNOWN) -> bool:
        """A restored sequence shows another length than its image: take the image of that length instead, from the
        spilled ones or from a sequence restored beside it that no line has named yet. False if there is none."""
        if seq.origin is not Origin.RESTORE:
            return False

        def fits(one: Seq | Parked) -> bool:
            return one.length == length and (token == UNKNOWN or one.pending in (token, UNKNOWN))

        for other in self.active:
            if other is not seq and other.origin is Origin.RESTORE and other.low == seq.low and fits(other):
                for name in ("life", "length", "pending", "fresh", "picked", "adapter"):
                    mine, theirs = getattr(seq, name), getattr(other, name)
                    setattr(seq, name, theirs)
                    setattr(other, name, mine)
                return True
        image = next((one for one in self.spilled if one.blocks == seq.low and fits(one)), None)
        if image is not None:
            self.swap_image(seq, image)
        return image is not None

    def swap_image(self, seq: Seq, image: Parked) -> None:
        """``seq`` was restored from ``image`` after all: the image of equal size before it had been given up."""
        life = seq.life
        self.spilled.remove(image)
        if life is not None:
            life.end = "spill_out_sequence"
        seq.life, seq.length, seq.pending, seq.adapter = image.life, image.length, image.pending, image.adapter
        image.life.end = None

    def name(self, sid: SeqId) -> str:
        """How a message calls the sequence of a line."""
        return f"s{sid.hash}@{sid.slot}"
