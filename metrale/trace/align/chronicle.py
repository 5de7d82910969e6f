"""A trace tick by tick: who holds which slot, how many blocks are free, who comes, parks, resumes and ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from .. import records as rec
from ..records import Record, Stage
from .side import Side
from .state import PARKED, Phase, State, seqs_of


class Event(StrEnum):
    """What happened to a request in a tick."""

    ADMITTED = "admitted"
    PARKED = "parked"
    RESUMED = "resumed"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Seat:
    """A request in a slot at the end of a tick (or at its end within the tick): ``length`` tokens long."""

    slot: int
    id: int
    phase: Phase
    length: int


@dataclass(slots=True)
class Frame:
    """One tick: the lines ``start`` to ``stop`` (indexes) from its marker on; tick 0 is the start-up.

    ``parked`` are the requests that wait off the device, ``free`` the last free-block answer of the tick, ``rows``
    the requests of the last forward.
    """

    tick: int
    start: int
    stop: int
    seats: list[Seat] = field(default_factory=list)
    parked: list[int] = field(default_factory=list)
    free: int | None = None
    rows: tuple[int, ...] = ()
    events: list[tuple[int, Event]] = field(default_factory=list)


@dataclass(slots=True)
class Life:
    """A request's ticks: None for what did not happen."""

    id: int
    admitted: int | None = None
    parked: list[int] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)
    ended: int | None = None


@dataclass(slots=True)
class Chronicle:
    """All ticks of a trace, and the life of every request that it serves."""

    frames: list[Frame]
    lives: dict[int, Life]

    @property
    def ticks(self) -> int:
        """The number of the last tick."""
        return self.frames[-1].tick if self.frames else 0


def chronicle(side: Side, *, lines: bool = True) -> Chronicle:
    """Rebuild a trace tick by tick. Linear in the number of lines; faster without the frames' lines."""
    records = side.records(0, len(side.texts)) if lines else side.moving(0, len(side.texts))
    frames = list(_frames(records))
    lives: dict[int, Life] = {}
    for frame in frames:
        for id, event in frame.events:
            life = lives.setdefault(id, Life(id))
            if event is Event.PARKED:
                life.parked.append(frame.tick)
            elif event is Event.RESUMED:
                life.resumed.append(frame.tick)
            elif event is Event.ENDED:
                life.ended = frame.tick
            else:
                life.admitted = frame.tick if life.admitted is None else life.admitted
    return Chronicle(frames, lives)


def _frames(records: Iterator[Record | None]) -> Iterator[Frame]:
    state = State()
    frame = Frame(0, 0, 0)
    left: list[Seat] = []
    index = -1
    for index, record in enumerate(records):
        if record is None:
            continue
        if record.stage > Stage.CALLS:
            frame.stop = index
            break
        if isinstance(record, rec.Tick):
            yield _closed(frame, index, state, left)
            frame, left = Frame(record.tick, index, index), []
        _note(frame, left, record, state)
    else:
        frame.stop = index + 1
    yield _closed(frame, frame.stop, state, left)


def _closed(frame: Frame, stop: int, state: State, left: list[Seat]) -> Frame:
    seats = [Seat(row.slot, row.id, row.phase, row.length) for row in state.rows.values() if row.slot >= 0]
    there = {seat.id for seat in seats}
    frame.seats = sorted([*seats, *(seat for seat in left if seat.id not in there)], key=lambda seat: seat.slot)
    frame.parked = [row.id for row in state.in_phase(*PARKED)]
    frame.stop, frame.free, frame.rows = stop, state.free, state.batch
    return frame


def _note(frame: Frame, left: list[Seat], record: Record, state: State) -> None:
    """Feed the record, and keep what it does to its requests."""
    owners = [state.owner(seq) for seq in seqs_of(record)]
    before = {id: (row.phase, row.slot, row.length) for id in owners if (row := state.rows.get(id)) is not None}
    restores = isinstance(record, rec.RestoreSequenceState)
    spilled = [row for row in state.rows.values() if row.phase is Phase.SPILLED] if restores else []
    state.feed(record)
    for id in dict.fromkeys(owners):
        old, row = before.get(id), state.rows.get(id)
        if old is None and row is not None:
            frame.events.append((id, Event.ADMITTED))
        elif old is not None and (row is None or (row.phase in PARKED and old[0] not in PARKED)):
            frame.events.append((id, Event.ENDED if row is None else Event.PARKED))
            left.append(Seat(old[1], id, Phase.ENDED if row is None else row.phase, old[2]))
        elif old is not None and old[0] in PARKED and row is not None and row.phase not in PARKED:
            frame.events.append((id, Event.RESUMED))
    frame.events += [(row.id, Event.RESUMED) for row in spilled if row.phase is not Phase.SPILLED]
