"""One pass over two aligned traces: every line is the same, a cause or a consequence."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

from .. import records as rec
from ..records import Fx, Out, Record
from .judge import READBACKS, Leaf, Scene, decision_follows, follow, leaves, owners_of_tokens, readback_follows
from .matching import Matching, feed_equal
from .model import Both, Cause, Change, Comparison, Place, Role
from .naming import brief, call_of, change_in, head_of, kind_of, same_change
from .state import State
from .work import Work

SAME_CHANGE = "same change again"


class Walk:
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
        self._sampled: set[int] = set()
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
        start.feed_all(a.moving(0, match.prefix))
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
        if self._found.after == (None, None):
            self._found.after = self._states

    def _stretches(self) -> Iterator[tuple[int, int, int]]:
        """The matched lines: stretches of equal text, single lines with another text, at last the end."""
        left, right = self._sides[0].texts, self._sides[1].texts
        for x, y, count in self._match.runs:
            yield from _split(left, right, x, y, count)
        yield *self._match.stop, 0

    def _same(self, x: int, y: int, count: int) -> None:
        if count:
            runs = self._found.runs
            if runs and (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2]) == (x, y):
                x, y, count = runs[-1][0], runs[-1][1], runs.pop()[2] + count
            runs.append((x, y, count))

    def _rest(self) -> None:
        """Behind what was looked at lines are the same or only counted."""
        at, (a, b), suffix = self._match.stop, self._sides, self._match.suffix
        self._found.read = at
        end = len(a.texts) - suffix, len(b.texts) - suffix
        runs = [run for rest in (*self._match.rest, (*end, suffix)) for run in _split(a.texts, b.texts, *rest)]
        for x, y, count in [*runs, (len(a.texts), len(b.texts), 0)]:
            if a.texts[x : x + count] == b.texts[y : y + count]:
                for which, start, stop in ((0, at[0], x), (1, at[1], y)):
                    self._found.unread[which].update(map(head_of, self._sides[which].texts[start:stop]))
                self._same(x, y, count)
                at = x + count, y + count

    def _matched(self, x: int, y: int, count: int) -> None:
        """Lines with equal text, or one pair with another text."""
        a, b = self._sides
        works = self._match.works[0]
        for index in range(count) if count == 1 else (n for n in range(count) if x + n in works):
            self._link_acts(x + index, y + index)
        if any(text.startswith("-- tick ") for text in a.texts[x : x + count]):
            self._odd_tick = [0, 0]
        if a.texts[x] == b.texts[y]:
            self._same(x, y, count)
        else:
            self._differ(x, y)
        if self._found.causes and self._found.after == (None, None):
            self._feed(0, a.records(x, x + count))
            self._feed(1, b.records(y, y + count))
        else:
            self._states = feed_equal(self._states, self._sides, (x, y), count)

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
        return Scene(self._states[0], self._states[1], self._tainted, self._offsets, self._sampled, owner)

    def _differ(self, x: int, y: int) -> None:
        """Two lines of the same work with different text."""
        a, b = self._sides[0].record(x), self._sides[1].record(y)
        work_a, work_b = self._match.works[0].get(x), self._match.works[1].get(y)
        place, leaf = self._judge_pair(a, b, work_a, work_b)
        differing = leaves(a, b) if a is not None and b is not None else []
        if place is None:
            place = self._new_cause(change_in([leaf] if leaf else []), (a, b), (work_a, work_b), leaf)
        self._put(place, x, y, change_in(differing))
        if a is None or b is None:
            return
        for state, record in zip(self._states, (a, b), strict=True):
            for owner in owners_of_tokens(state, record, differing) if place.why in ("", SAME_CHANGE) else ():
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
            return Place(Role.FOLDED, cause, "same step"), None
        scene = self._scene(work_a.owner if work_a else None)
        why, leaf = follow(scene, a, b)
        if not why and isinstance(a, Fx) and work_a is not None and decision_follows(scene, work_a, True, {}):
            why = "decided from another state"
        if why:
            return Place(Role.FOLDED, self._blame, why), None
        return None, leaf

    def _client_follows(self, out: Out) -> Place | None:
        cause = self._tainted.get(out.id) or (self._blame if out.id in self._owned else 0)
        return Place(Role.FOLDED, cause, "seen by the client") if cause else None

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
        change = Change.MOVED if partner >= 0 else (Change.MISSING, Change.EXTRA)[which]
        if place is None:
            records = (record, None) if which == 0 else (None, record)
            works = (work, None) if which == 0 else (None, work)
            place = self._new_cause(change, records, works, None)
        self._mark_odd(which, work.act, place.cause)
        self._last_alone = (which, index, place.cause)
        if type(record) is rec.Tick:
            self._odd_tick[which] = place.cause
        self._put(place, x, y, change)
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
        if isinstance(record, READBACKS) and cause.owner is not None:
            self._sampled.add(cause.owner)
        if cause.change is Change.MISSING:
            cause.change, cause.values = Change.REPLACED, (cause.call, call_of(record))
        again = self._places[0][self._last_alone[1]].role is Role.FOLDED
        if cause.change is Change.REPLACED and cause.values[1] == call_of(record) and not again:
            return Place(Role.CAUSE, number)
        return Place(Role.FOLDED, number, "same step")

    def _goes_on(self, which: int, index: int, partner: int) -> Place | None:
        """Lines in a row that the other trace has nowhere are one difference."""
        side, last, cause = self._last_alone
        if cause and partner < 0 and (side, last) == (which, index - 1):
            return Place(Role.FOLDED, cause, "same step")
        return None

    def _follows_alone(self, which: int, record: Record | None, work: Work, moved: bool) -> Place | None:
        if not self._found.causes:
            return None
        cause = self._odd[which].get(work.act, 0)
        if cause:
            return Place(Role.FOLDED, cause, "same step")
        if self._odd_tick[which] and work.kind not in ("client", "text"):
            return Place(Role.FOLDED, self._odd_tick[which], "in a tick of its own")
        reached = self._match.reached[1 - which]
        if isinstance(record, Out):
            return self._client_follows(record)
        if record is not None and readback_follows(self._scene(), record):
            return Place(Role.FOLDED, self._blame, "other readback")
        if work.kind != "text" and decision_follows(self._scene(), work, moved, reached):
            return Place(Role.FOLDED, self._blame, "decided from another state")
        return None

    def _put(self, place: Place, x: int, y: int, change: Change) -> None:
        """Account for a line on A, on B or on both, and book it with its cause."""
        cause = self._found.causes[place.cause - 1]
        book = cause.lines if place.role is Role.CAUSE else cause.folded
        if place.role is Role.FOLDED:
            cause.why[place.why] += (x >= 0) + (y >= 0)
        for which, index, partner in ((0, x, y), (1, y, x)):
            if index >= 0:
                self._places[which][index] = Place(place.role, place.cause, place.why, change, partner)
                book[which].append(index)

    # ------------------------------------------------------------ causes

    def _new_cause(
        self, change: Change, records: Both[Record | None], works: Both[Work | None], leaf: Leaf | None
    ) -> Place:
        """A difference that nothing explains: a cause of its own, or one more place of the same change."""
        record = records[0] or records[1]
        key = same_change(leaf) if leaf else (call_of(record), change)
        cause = self._same_change.get(key)
        again = cause is not None
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
        return Place(Role.FOLDED, cause.number, SAME_CHANGE) if again else Place(Role.CAUSE, cause.number)

    def _first_of_kind(self, change: Change, record: Record | None, work: Work | None, leaf: Leaf | None) -> Cause:
        cause = Cause(
            number=len(self._found.causes) + 1,
            change=change,
            ticks=(self._states[0].tick, self._states[1].tick),
            call=call_of(record),
            argument=leaf.path if leaf else None,
            values=(brief(leaf.a), brief(leaf.b)) if leaf else (None, None),
            act=work.kind if work else kind_of(record),
            owner=work.owner if work else None,
        )
        self._found.causes.append(cause)
        return cause


def _split(a: list[str], b: list[str], x: int, y: int, count: int) -> Iterator[tuple[int, int, int]]:
    """A run as stretches of equal text and single lines that differ."""
    if a[x : x + count] == b[y : y + count]:
        if count:
            yield x, y, count
        return
    start = 0
    for n in range(count):
        if a[x + n] != b[y + n]:
            if n > start:
                yield x + start, y + start, n - start
            yield x + n, y + n, 1
            start = n + 1
    if count > start:
        yield x + start, y + start, count - start
