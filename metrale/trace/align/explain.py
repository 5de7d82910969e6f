"""The cause of a difference in two English sentences, from the aligned records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .. import records as rec
from ..records import Record
from .chronicle import Chronicle, Event, Life, chronicle
from .model import Change, Comparison, Divergence
from .state import State

MOST_FACTS = 3
_WORDS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
_QUOTED = 80

_EMPTY = Chronicle([], {})
"""Stands for traces so different that they were only counted: nothing is said about single requests."""

_RELEASED = {
    "finish_sequence": "finished",
    "preempt_requeue": "parked",
    "spill_out_sequence": "spilled",
    "send_error": "failed",
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """``what`` says how the traces part, ``then`` what follows from it."""

    what: str
    then: str

    def __str__(self) -> str:
        return f"{self.what} {self.then}"


def explain(found: Comparison) -> Explanation:
    """Two sentences on a comparison. A and B are the first and the second trace."""
    if found.equal:
        return Explanation("A and B are equal.", "Nothing follows.")
    divergence = found.divergence
    assert divergence is not None
    if divergence.change is Change.BYTES:
        return Explanation("A and B hold the same lines in other bytes.", f"{_capital('; '.join(found.marks))}.")
    told = _EMPTY, _EMPTY
    if not any(found.unread):
        told = chronicle(found.sides[0], lines=False), chronicle(found.sides[1], lines=False)
    what = _Teller(found, divergence, told).tell()
    place = f"At tick {divergence.tick} " if divergence.tick else "" if divergence.tick is None else "At start-up "
    return Explanation(_capital(f"{place}{what}."), _consequences(found, *told))


# ---------------------------------------------------------------- the first sentence


class _Teller:
    """Finds the words for a first divergence."""

    def __init__(self, found: Comparison, divergence: Divergence, told: tuple[Chronicle, Chronicle]) -> None:
        self._d = divergence
        self._told = told
        self._sides = found.sides
        self._at = min((n for n in (self._index(0), self._index(1)) if n is not None), default=0)
        self._records: tuple[Record | None, Record | None] = (self._record(0), self._record(1))
        self._states: tuple[State | None, State | None] = found.before

    def _index(self, which: int) -> int | None:
        line = self._d.lines[which]
        numbers = self._sides[which].numbers
        return None if line is None else next((i for i in range(len(numbers)) if numbers[i] == line), None)

    def _record(self, which: int) -> Record | None:
        return None if self._d.texts[which] is None else self._sides[which].record(self._at)

    def tell(self) -> str:
        """The clause behind "At tick t"."""
        a, b = self._records
        for which, other in ((0, "B"), (1, "A")):
            if self._d.texts[which] is None:
                return f"{'AB'[which]} ends where {other} goes on with {_quoted(self._d.texts[1 - which])}"
        if a is None or b is None:
            broken = "A and B hold" if a is b else "A holds" if a is None else "B holds"
            return f"{broken} text that is no trace line: {_quoted(self._d.texts[0 if a is None else 1])}"
        if type(a) is type(b):
            return self._changed(a, b)
        return self._other_call(a, b)

    # ------------------------------------------------------------ the same call

    def _changed(self, a: Record, b: Record) -> str:
        if isinstance(a, rec.Out) and isinstance(b, rec.Out):
            return self._other_client(a, b)
        if isinstance(a, rec.NumFreeBlocks) and isinstance(b, rec.NumFreeBlocks):
            return f"A has {a.result} free KV blocks where B has {b.result}"
        if isinstance(a, rec.Tick):
            return f"A's marker counts {self._d.values[0]} where B's counts {self._d.values[1]}"
        released = self._released()
        if released:
            return released
        if self._d.argument == "error":
            return self._fault()
        token = self._token(a)
        if token:
            return token
        owner = self._d.owners[0] if self._d.owners[0] is not None else self._d.owners[1]
        whose = "" if owner is None else f" for s{owner}"
        subject = f"`{self._d.call}`{whose}"
        return f"{subject} has {self._d.argument} {self._d.values[0]} in A and {self._d.values[1]} in B"

    def _other_client(self, a: rec.Out, b: rec.Out) -> str:
        if a.id != b.id:
            return f"A answers s{a.id} where B answers s{b.id}"
        return f"the client of s{a.id} sees {self._d.values[0]} in A and {self._d.values[1]} in B"

    def _released(self) -> str | None:
        """A release of other requests, or for another reason: the victim."""
        verbs = [self._verb(which) for which in (0, 1)]
        owners = self._d.owners
        release = rec.CacheSequence | rec.FreeSequence | rec.SaveSequenceState | rec.FxReleaseSeq
        if not isinstance(self._records[0], release) or None in owners or None in verbs:
            return None
        if owners[0] == owners[1] and verbs[0] == verbs[1]:
            return None
        refused = "the decode launch was refused for lack of blocks and " if self._refused() else ""
        return f"{refused}A {verbs[0]} s{owners[0]} where B {verbs[1]} s{owners[1]}"

    def _verb(self, which: int) -> str | None:
        for index in range(self._at, max(-1, self._at - 6), -1):
            record = self._sides[which].record(index) if index < len(self._sides[which].texts) else None
            if isinstance(record, rec.FxReleaseSeq):
                return _RELEASED.get(record.what, "released")
            if isinstance(record, rec.FxSaveSequenceState):
                return "spilled"
        return None

    def _refused(self) -> bool:
        """Whether a decode was refused shortly before."""
        lines = range(self._at - 1, max(-1, self._at - 60), -1)
        for record in (self._sides[0].record(index) for index in lines):
            if isinstance(record, rec.Tick):
                return False
            if isinstance(record, rec.DecodeBatch | rec.DecodeBatchFed):
                return record.error is not None and "KV cache exhausted" in record.error
        return False

    def _fault(self) -> str:
        errors = [getattr(record, "error", None) for record in self._records]
        what = "the decode launch" if isinstance(self._records[0], rec.DecodeBatch) else f"`{self._d.call}`"
        if None not in errors:
            return f"{what} failed with {_quoted(errors[0])} in A and with {_quoted(errors[1])} in B"
        failed, fine = ("A", "B") if errors[0] is not None else ("B", "A")
        text = str(errors[0] or errors[1])
        why = "for lack of blocks" if "KV cache exhausted" in text else f"({_short(text)})"
        return f"{what} was refused {why} in {failed} and went through in {fine}"

    def _token(self, record: Record) -> str | None:
        """Another token from the device."""
        state, path = self._states[0], self._d.argument or ""
        batched = isinstance(record, rec.ArgmaxBatch | rec.ArgmaxBatchToFeed) and path.startswith("result[")
        if state is None or not (batched or (isinstance(record, rec.ArgmaxOnDevice) and path == "result")):
            return None
        row = getattr(record, "row", 0) + (int(path[7:].split("]")[0]) if batched else 0)
        whose = f"s{state.batch[row]}" if row < len(state.batch) else f"row {row}"
        return f"the device answers token {self._d.values[0]} for {whose} in A and {self._d.values[1]} in B"

    # ------------------------------------------------------------ another call

    def _other_call(self, a: Record, b: Record) -> str:
        for which, record in ((0, a), (1, b)):
            decided = self._decision(which, record)
            if decided is not None:
                return f"{'AB'[which]} {decided} where {'BA'[which]} did not"
        if self._d.change is Change.MOVED:
            return f"A goes on with {self._name(0)} and B with {self._name(1)}, which come in another order"
        if self._d.change is Change.REPLACED:
            return f"A calls {self._name(0)} where B calls {self._name(1)}"
        which = 1 if self._d.change is Change.EXTRA else 0
        if isinstance(self._records[which], rec.NumFreeBlocks | rec.Tick):
            return f"{'AB'[which]} begins another tick where {'BA'[which]} goes on with {self._name(1 - which)}"
        return f"{'AB'[which]} calls {self._name(which)} where {'BA'[which]} goes on with {self._name(1 - which)}"

    def _name(self, which: int) -> str:
        owner = self._d.owners[which]
        return f"`{self._d.calls[which]}`{'' if owner is None else f' for s{owner}'}"

    def _decision(self, which: int, record: Record) -> str | None:
        """The line as a decision of the scheduler: whom it lets in, parks, ends or moves."""
        owner = self._d.owners[which]
        if isinstance(record, rec.AdapterIdFor | rec.AllocSequence | rec.AllocSequenceFor):
            ids = self._let_in(which)
            return f"admitted {_listed([f's{id}' for id in ids])}" if ids else None
        if owner is None:
            return None
        if isinstance(record, rec.FxReleaseSeq):
            return f"{_RELEASED.get(record.what, 'released').replace('failed', 'ended')} s{owner}"
        if isinstance(record, rec.FxSaveSequenceState):
            return f"spilled s{owner}"
        return f"moved s{owner} to slot {record.target}" if isinstance(record, rec.FxCompactSlot) else None

    def _let_in(self, which: int) -> list[int]:
        """Requests that this side admits in the tick at hand and the other one does not."""
        plan = isinstance(self._records[which], rec.AdapterIdFor)
        tick = (self._d.tick or 0) + int(plan)
        here, there = (_admitted_in(chronicle, tick) for chronicle in (self._told[which], self._told[1 - which]))
        return [id for id in here if id not in there]


def _admitted_in(told: Chronicle, tick: int) -> list[int]:
    frames = (frame for frame in told.frames if frame.tick == tick)
    return [id for frame in frames for id, event in frame.events if event is Event.ADMITTED]


# ---------------------------------------------------------------- the second sentence


def _consequences(found: Comparison, a: Chronicle, b: Chronicle) -> str:
    facts = [fact for fact, _ in zip(_facts(found, a, b), range(MOST_FACTS), strict=False)]
    rest = _rest(found)
    if facts:
        return f"From there {_listed(facts)}{rest}."
    return f"{_capital(_folded(found))}{rest}."


def _facts(found: Comparison, a: Chronicle, b: Chronicle) -> Iterator[str]:
    """What differs for the requests, the gravest first."""
    ids = list({**a.lives, **b.lives})
    lives = [(a.lives.get(id, Life(id)), b.lives.get(id, Life(id))) for id in ids]
    yield from _seen(found)
    for x, y in lives:
        yield from _never(x, y)
    for word in ("resumes", "starts", "ends"):
        for x, y in lives:
            here, there = _tick_of(word, x), _tick_of(word, y)
            if here is not None and there is not None and here != there:
                yield f"s{x.id} {word} {_later(there - here)} in B"
    if a.ticks != b.ticks:
        yield f"the run takes {_count(abs(b.ticks - a.ticks), 'tick')} {'more' if b.ticks > a.ticks else 'less'} in B"


def _tick_of(word: str, life: Life) -> int | None:
    if word == "resumes":
        return life.resumed[0] if life.resumed else None
    return life.admitted if word == "starts" else life.ended


def _seen(found: Comparison) -> Iterator[str]:
    for which, name in enumerate("AB"):
        if len(found.clients) > 1 and all(view.seen[which] is None for view in found.clients):
            yield f"no client is answered in {name}"
            return
    for view in found.clients:
        if not view.same:
            x, y = view.seen
            if x is None or y is None:
                yield f"the client of s{view.id} is answered in {'B' if x is None else 'A'} only"
            else:
                yield f"the client of s{view.id} sees another answer"


def _never(x: Life, y: Life) -> Iterator[str]:
    if bool(x.parked) != bool(y.parked):
        here = x if x.parked else y
        yield f"s{x.id} is {'parked and resumed' if here.resumed else 'parked'} in {'A' if x.parked else 'B'} only"
    if (x.admitted is None) != (y.admitted is None):
        yield f"s{x.id} is served in {'B' if x.admitted is None else 'A'} only"


def _folded(found: Comparison) -> str:
    first = found.causes[0]
    if not first.why:
        places = f"the same change stands in {_number(first.places)} places" if first.places > 1 else ""
        return places or "nothing follows from it"
    why, count = first.why.most_common(1)[0]
    return (
        f"from there {_count(first.why.total(), 'line')} follow{'s' if first.why.total() == 1 else ''} ({why}: {count})"
    )


def _rest(found: Comparison) -> str:
    if not found.unexplained:
        return ""
    return f", but {_count(found.unexplained, 'line')} {'is' if found.unexplained == 1 else 'are'} not explained by it"


# ---------------------------------------------------------------- words


def _listed(facts: list[str]) -> str:
    return facts[0] if len(facts) == 1 else f"{', '.join(facts[:-1])} and {facts[-1]}"


def _later(ticks: int) -> str:
    return f"{_count(abs(ticks), 'tick')} {'later' if ticks > 0 else 'earlier'}"


def _count(number: int, noun: str) -> str:
    return f"{_number(number)} {noun}{'' if number == 1 else 's'}"


def _number(number: int) -> str:
    return _WORDS[number] if number < len(_WORDS) else str(number)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _short(text: str) -> str:
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…"


def _quoted(text: str | None) -> str:
    return f"`{_short(text or '')}`"
