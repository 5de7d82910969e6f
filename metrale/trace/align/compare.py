"""Comparing two traces: match the lines, then walk both and tell causes from consequences."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator

from .. import records as rec
from ..records import Fx, Out, Record, RotationAck, Stage
from ..writer import format_record, spell_fields
from .judge import Leaf, Scene, decision_follows, follow, leaves, owners_of_tokens
from .matching import Matching, match_sides
from .model import Both, Cause, Change, ClientView, Comparison, Divergence, Place, Role
from .side import Reading, Side, byte_marks, load_side
from .state import State, block_size_of
from .work import Work

_RESULTS = frozenset({"result", "error", "slot"})


def compare(a: bytes, b: bytes, names: Both[str] = ("a", "b")) -> Comparison:
    """Align two trace files and explain how they differ. Any bytes will do; what is no trace line is plain text.

    ``compare(b, a)`` is the mirror image of ``compare(a, b)``. Time is linear in practice; beyond
    :data:`.matching.MAX_READ` lines behind the first difference, lines are only counted.
    """
    if a > b:
        return _compare(b, a, (names[1], names[0])).mirrored()
    return _compare(a, b, names)


def _compare(a: bytes, b: bytes, names: Both[str]) -> Comparison:
    reading = Reading()
    side_a, side_b = load_side(names[0], a, reading), load_side(names[1], b, reading)
    found = Comparison((side_a, side_b), bytes_equal=a == b)
    found.clients = list(_clients(side_a, side_b))
    if side_a.texts == side_b.texts:
        found.runs = [(0, 0, len(side_a.texts))]
        if not found.bytes_equal:
            found.marks = byte_marks(side_a, side_b) or ("other bytes in the same lines",)
            found.divergence = _byte_divergence(a, b, side_a, found.marks[0])
        return found
    found.marks = byte_marks(side_a, side_b)
    sizes = (_block_size(side_a), _block_size(side_b))
    walk = _Walk(found, match_sides(side_a, side_b, sizes), sizes)
    walk.run()
    return found


def _block_size(side: Side) -> int:
    releases = (text for text in side.texts if text.startswith("free_sequence("))
    return block_size_of(side.reading[text] for text in releases)


def _byte_divergence(a: bytes, b: bytes, side: Side, mark: str) -> Divergence:
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    line = a.count(b"\n", 0, at) + 1
    return Divergence((line, line), None, (None, None), "bytes", (mark, mark), (None, None), Change.BYTES)


def _clients(a: Side, b: Side) -> Iterator[ClientView]:
    """What each client saw, in the order of the out lines; equal ids are told apart by occurrence."""
    left, right = (_outs(side) for side in (a, b))
    for id, occurrence in [*left, *(key for key in right if key not in left)]:
        key = (id, occurrence)
        yield ClientView(id, (left.get(key), right.get(key)), occurrence)


def _outs(side: Side) -> dict[tuple[int, int], str]:
    seen: dict[tuple[int, int], str] = {}
    count: defaultdict[int, int] = defaultdict(int)
    for text in side.texts:
        head, colon, rest = text.partition(":")
        if colon and head.startswith("out s") and head[5:].isdecimal():
            id = int(head[5:])
            count[id] += 1
            seen[id, count[id]] = rest.strip()
    return seen


class _Walk:
    """One pass over the aligned lines, with both states and the causes so far."""

    def __init__(self, found: Comparison, matching: Matching, sizes: Both[int]) -> None:
        self._found = found
        self._sides = found.sides
        self._match = matching
        self._states = (State(block_size=sizes[0]), State(block_size=sizes[1]))
        self._places = found.places
        self._odd: Both[dict[int, int]] = ({}, {})
        self._partner_act: Both[dict[int, int]] = ({}, {})
        self._odd_tick = [0, 0]
        self._last_alone = (0, -2, 0)
        self._replaced = 0
        self._tainted: dict[int, int] = {}
        self._owned: set[int] = set()
        self._offsets: dict[tuple[str, str], object] = {}
        self._same_change: dict[Hashable, Cause] = {}
        self._blame = 0
        self._moved = (matching.moved, {y: x for x, y in matching.moved.items()})
        self._verdict_of_moved: dict[int, Place] = {}

    # ------------------------------------------------------------ the pass

    def run(self) -> None:
        """Account for every line."""
        match, (a, _) = self._match, self._sides
        start = self._states[0]
        start.feed_all(a.record(index) for index in range(match.prefix))
        self._states = (start.fork(), start.fork(self._states[1].block_size))
        self._found.before = (start, self._states[1].fork())
        self._same(0, 0, match.prefix)
        x, y = match.prefix, match.prefix
        for next_x, next_y, count in self._stretches():
            self._unmatched(0, range(x, next_x))
            self._instead(next_x)
            self._unmatched(1, range(y, next_y))
            x, y = next_x + count, next_y + count
            if count:
                self._matched(next_x, next_y, count)
        self._rest()
        self._found.divergence = self._first_divergence()
        if self._found.after == (None, None):
            self._found.after = self._states

    def _stretches(self) -> Iterator[tuple[int, int, int]]:
        """The matched pairs: lines with equal text in a row, each line with another text, at last the end."""
        left, right = self._sides[0].texts, self._sides[1].texts
        x = y = count = 0
        for next_x, next_y in self._match.ordered:
            equal = left[next_x] == right[next_y]
            if count and (not equal or (next_x, next_y) != (x + count, y + count)):
                yield x, y, count
                count = 0
            if not equal:
                yield next_x, next_y, 1
            elif count:
                count += 1
            else:
                x, y, count = next_x, next_y, 1
        if count:
            yield x, y, count
        yield *self._match.stop, 0

    def _same(self, x: int, y: int, count: int) -> None:
        if count:
            runs = self._found.runs
            if runs and (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2]) == (x, y):
                x, y, count = runs[-1][0], runs[-1][1], runs.pop()[2] + count
            runs.append((x, y, count))

    def _rest(self) -> None:
        """Behind what was looked at: the common end, or lines that are only counted."""
        (stop_a, stop_b), (a, b) = self._match.stop, self._sides
        left, right = len(a.texts) - stop_a, len(b.texts) - stop_b
        if a.texts[stop_a:] == b.texts[stop_b:]:
            self._same(stop_a, stop_b, left)
            left = right = 0
        self._found.read = (len(a.texts) - left, len(b.texts) - right)
        self._found.unread = left + right

    def _matched(self, x: int, y: int, count: int) -> None:
        """Lines with equal text, or one pair with another text."""
        a, b = self._sides
        for step in range(count):
            self._link_acts(x + step, y + step)
            if a.texts[x + step].startswith("-- tick "):
                self._odd_tick = [0, 0]
        if a.texts[x] == b.texts[y]:
            self._same(x, y, count)
        else:
            self._differ(x, y)
        lines = range(x, x + count), range(y, y + count)
        for which, side in enumerate(self._sides):
            self._feed(which, (side.record(index) for index in lines[which]))

    def _link_acts(self, x: int, y: int) -> None:
        """Two acts are one if they begin alike: what is odd about one is odd about the other."""
        work_a, work_b = self._match.works[0].get(x), self._match.works[1].get(y)
        if work_a is not None and work_b is not None and (work_a.act, work_b.act) == (x, y):
            cause = self._odd[0].get(x) or self._odd[1].get(y)
            if cause:
                self._odd[0][x] = self._odd[1][y] = cause
            self._partner_act[0][x], self._partner_act[1][y] = y, x

    def _mark_odd(self, which: int, act: int, cause: int) -> None:
        self._odd[which].setdefault(act, cause)
        partner = self._partner_act[which].get(act)
        if partner is not None:
            self._odd[1 - which].setdefault(partner, cause)

    def _feed(self, which: int, records: Iterable[Record | None]) -> None:
        """Move a state on; remember both at the end of the tick in which the traces part."""
        if self._found.causes and self._found.after == (None, None):
            for record in records:
                if type(record) is rec.Tick and self._found.after == (None, None):
                    self._found.after = (self._states[0].fork(), self._states[1].fork())
                self._states[which].feed_all((record,))
        else:
            self._states[which].feed_all(records)

    # ------------------------------------------------------------ verdicts

    def _scene(self, owner: int | None = None) -> Scene:
        return Scene(self._states[0], self._states[1], self._tainted, self._offsets, owner)

    def _differ(self, x: int, y: int) -> None:
        """Two lines of the same work with different text."""
        a, b = self._sides[0].record(x), self._sides[1].record(y)
        work_a, work_b = self._match.works[0].get(x), self._match.works[1].get(y)
        place, leaf = self._judge_pair(a, b, work_a, work_b)
        differing = leaves(a, b) if a is not None and b is not None else []
        if place is None:
            place = self._new_cause((x, y), (a, b), (work_a, work_b), leaf)
        self._put(place, x, y)
        if a is None or b is None:
            return
        for state, record in zip(self._states, (a, b), strict=True):
            for owner in owners_of_tokens(state, record, differing) if place.role is Role.CAUSE else ():
                self._tainted.setdefault(owner, place.cause)
        for found in differing:
            if isinstance(found.a, int):
                self._offsets[a.rule, found.field] = (found.a, found.b)

    def _judge_pair(
        self, a: Record | None, b: Record | None, work_a: Work | None, work_b: Work | None
    ) -> tuple[Place | None, Leaf | None]:
        """The place of a changed line; None for a new cause, then with the argument that nothing explains."""
        if a is None or b is None:
            return None, None
        if not self._found.causes:
            return None, leaves(a, b)[0]
        if isinstance(a, Out):
            return self._client_follows(a), leaves(a, b)[0]
        cause = self._odd_act(work_a, work_b)
        if cause:
            return Place(Role.FOLDED, cause=cause, why="same step"), None
        scene = self._scene(work_a.owner if work_a else None)
        why, leaf = follow(scene, a, b)
        if not why and isinstance(a, Fx) and work_a is not None and decision_follows(scene, work_a, True, {}):
            why = "decided from another state"
        if why:
            return Place(Role.FOLDED, cause=self._blame, why=why), None
        return None, leaf

    def _client_follows(self, out: Out) -> Place | None:
        cause = self._tainted.get(out.id) or (self._blame if out.id in self._owned else 0)
        return Place(Role.FOLDED, cause=cause, why="seen by the client") if cause else None

    def _odd_act(self, work_a: Work | None, work_b: Work | None) -> int:
        for which, work in enumerate((work_a, work_b)):
            if work is not None and work.act in self._odd[which]:
                return self._odd[which][work.act]
        return 0

    def _unmatched(self, which: int, lines: range) -> None:
        side, works = self._sides[which], self._match.works[which]
        partners = self._moved[which]
        for index in lines:
            record, work = side.record(index), works[index]
            partner = partners.get(index, -1)
            first = index if which == 0 else partner
            if partner >= 0 and first in self._verdict_of_moved:
                self._see_moved_again(which, index, first)
            else:
                self._judge_alone(which, index, partner, record, work)
            self._feed(which, (record,))

    def _see_moved_again(self, which: int, index: int, first: int) -> None:
        verdict = self._verdict_of_moved[first]
        work = self._match.works[which][index]
        self._mark_odd(which, work.act, verdict.cause)

    def _judge_alone(self, which: int, index: int, partner: int, record: Record | None, work: Work) -> None:
        """A line that the other trace has not here."""
        place = self._replaces(which, record, partner) or self._goes_on(which, index, partner)
        place = place or self._follows_alone(which, record, work, partner >= 0)
        x, y = (index, partner) if which == 0 else (partner, index)
        if place is None:
            records = (record, None) if which == 0 else (None, record)
            works = (work, None) if which == 0 else (None, work)
            place = self._new_cause((x, y), records, works, None)
        self._mark_odd(which, work.act, place.cause)
        self._last_alone = (which, index, place.cause)
        if type(record) is rec.Tick:
            self._odd_tick[which] = place.cause
        self._put(place, x, y)
        if partner >= 0:
            self._verdict_of_moved[x] = place
        elif work.owner is not None:
            self._owned.add(work.owner)

    def _instead(self, end: int) -> None:
        """If A's lines up to ``end`` are a cause, what B has in their place belongs to it."""
        side, last, cause = self._last_alone
        place = self._places[0].get(last) if (side, last) == (0, end - 1) else None
        self._replaced = cause if place is not None and place.partner < 0 and cause else 0

    def _replaces(self, which: int, record: Record | None, partner: int) -> Place | None:
        number, self._replaced = self._replaced, 0
        if not number or which == 0 or partner >= 0:
            return None
        cause = self._found.causes[number - 1]
        if cause.change is Change.MISSING:
            cause.change, cause.values = Change.REPLACED, (cause.call, _call(record))
        if cause.change is Change.REPLACED and cause.values[1] == _call(record):
            return Place(Role.CAUSE, cause=number)
        return Place(Role.FOLDED, cause=number, why="same step")

    def _goes_on(self, which: int, index: int, partner: int) -> Place | None:
        """Lines in a row that the other trace has nowhere are one difference."""
        side, last, cause = self._last_alone
        if cause and partner < 0 and (side, last) == (which, index - 1):
            return Place(Role.FOLDED, cause=cause, why="same step")
        return None

    def _follows_alone(self, which: int, record: Record | None, work: Work, moved: bool) -> Place | None:
        if not self._found.causes:
            return None
        cause = self._odd[which].get(work.act, 0)
        if cause:
            return Place(Role.FOLDED, cause=cause, why="same step")
        if self._odd_tick[which] and work.kind not in ("client", "text"):
            return Place(Role.FOLDED, cause=self._odd_tick[which], why="in a tick of its own")
        reached = self._match.reached[1 - which]
        if isinstance(record, Out):
            return self._client_follows(record)
        if work.kind != "text" and decision_follows(self._scene(), work, moved, reached):
            return Place(Role.FOLDED, cause=self._blame, why="decided from another state")
        return None

    def _put(self, place: Place, x: int, y: int) -> None:
        """Account for a line on A, on B or on both, and book it with its cause."""
        cause = self._found.causes[place.cause - 1]
        book = cause.lines if place.role is Role.CAUSE else cause.folded
        if place.role is Role.FOLDED:
            cause.why[place.why] += (x >= 0) + (y >= 0)
        for which, index, partner in ((0, x, y), (1, y, x)):
            if index >= 0:
                self._places[which][index] = Place(place.role, partner, place.cause, place.why)
                book[which].append(index)

    # ------------------------------------------------------------ causes

    def _new_cause(
        self, at: Both[int], records: Both[Record | None], works: Both[Work | None], leaf: Leaf | None
    ) -> Place:
        """A difference that nothing explains: a cause of its own, or one more place of the same change."""
        record = records[0] or records[1]
        change = _change(at, records, leaf)
        key = (leaf.field, *_step(leaf)) if leaf else (_call(record), change)
        cause = self._same_change.get(key)
        if cause is None:
            cause = self._same_change[key] = self._first_of_kind(change, record, works[0] or works[1], leaf)
        else:
            cause.places += 1
        if not self._blame or not any(self._scene().differs(aspect) for aspect in ("rows", "queue", "memory", "clock")):
            self._blame = cause.number
        for which, work in enumerate(works):
            if work is not None:
                self._mark_odd(which, work.act, cause.number)
                if work.owner is not None:
                    self._owned.add(work.owner)
        return Place(Role.CAUSE, cause=cause.number)

    def _first_of_kind(self, change: Change, record: Record | None, work: Work | None, leaf: Leaf | None) -> Cause:
        cause = Cause(
            number=len(self._found.causes) + 1,
            change=change,
            ticks=(self._states[0].tick, self._states[1].tick),
            call=_call(record),
            argument=leaf.path if leaf else None,
            values=(_brief(leaf.a), _brief(leaf.b)) if leaf else (None, None),
            act=work.kind if work else _kind(record),
            owner=work.owner if work else None,
        )
        self._found.causes.append(cause)
        return cause

    # ------------------------------------------------------------ the first divergence

    def _first_divergence(self) -> Divergence:
        at, sides = self._match.prefix, self._sides
        records = tuple(side.record(at) if at < len(side.texts) else None for side in sides)
        texts = tuple(side.texts[at] if at < len(side.texts) else None for side in sides)
        works = tuple(self._match.works[which].get(at) for which in (0, 1))
        a, b = records
        change, leaf = self._how(at, a, b)
        numbers = (sides[0].number(at), sides[1].number(at))
        acts = tuple(work.kind if work else None for work in works)
        owners = tuple(work.owner if work else None for work in works)
        values = (_spelled(a, leaf, leaf.a), _spelled(b, leaf, leaf.b)) if leaf else (None, None)
        calls = (_call(a) if texts[0] is not None else None, _call(b) if texts[1] is not None else None)
        in_calls = any(r is not None and r.stage is Stage.CALLS for r in records)
        before = self._found.before[0]
        tick = before.tick if before is not None and (in_calls or a is b is None) else None
        return Divergence(
            numbers, tick, calls, leaf.path if leaf else None, values, (texts[0], texts[1]), change,
            (acts[0], acts[1]), (owners[0], owners[1]),
        )  # fmt: skip

    def _how(self, at: int, a: Record | None, b: Record | None) -> tuple[Change, Leaf | None]:
        """What became of the first differing line, and the first argument that differs."""
        if a is not None and b is not None and type(a) is type(b):
            leaf = leaves(a, b)[0]
            return (Change.RESULT if leaf.field in _RESULTS else Change.ARGUMENT), leaf
        here = [self._places[which].get(at) for which in (0, 1)]
        if here[0] and here[1] and here[0].partner < 0 and here[1].partner < 0:
            return Change.REPLACED, None
        for which, alone in ((0, Change.MISSING), (1, Change.EXTRA)):
            place = here[which]
            if place is not None:
                return (alone if place.partner < 0 else Change.MOVED), None
        return Change.MOVED, None


def _change(at: Both[int], records: Both[Record | None], leaf: Leaf | None) -> Change:
    if records == (None, None):
        return Change.TEXT
    if None not in records:
        return Change.TEXT if leaf is None else Change.RESULT if leaf.field in _RESULTS else Change.ARGUMENT
    if min(at) >= 0:
        return Change.MOVED
    return Change.EXTRA if at[0] < 0 else Change.MISSING


def _step(leaf: Leaf) -> tuple[Hashable, ...]:
    """The same change elsewhere: numbers by their distance, other values as they are."""
    plain = isinstance(leaf.a, int) and isinstance(leaf.b, int) and not isinstance(leaf.a, bool)
    return ("by", leaf.b - leaf.a) if plain else ("from", str(leaf.a), str(leaf.b))


def _call(record: Record | None) -> str:
    """The name of a line's call; a router line is called by what it asks for."""
    if record is None:
        return "text"
    if isinstance(record, Fx):
        return re.split(r"[{(]", format_record(record), maxsplit=1)[0]
    return "rotation ack" if isinstance(record, RotationAck) else record.rule


def _kind(record: Record | None) -> str:
    if isinstance(record, rec.Tick):
        return "tick"
    return "memory" if isinstance(record, rec.NumFreeBlocks) else "text"


_WIDTH = 200


def _brief(value: object) -> str:
    text = str(value)
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}…"


def _spelled(record: Record | None, leaf: Leaf, value: object) -> str | None:
    if record is None:
        return None
    if leaf.path == leaf.field:
        return _brief(spell_fields(record).get(leaf.field, "nothing"))
    return _brief(value)
