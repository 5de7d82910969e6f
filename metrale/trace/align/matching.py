"""Which line of A is the same work as which line of B.

Lines with equal text match first, as far as they stand in the same order. What is left between them is matched by
exact work identity in order, then by identity anywhere (moved), then by looser identities in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field

from .ordered import align
from .side import Side
from .state import State
from .work import Clerk, Work

MAX_DETAIL = 32_000
"""So many lines of each side in and before gaps are looked at; of the others only those with equal text count as
the same."""

LEAD = 60
"""So many lines before a gap are filed with it: they tell whose work it goes on with."""

TRAIL = 16
"""And so many lines behind it: they name the sequence of an allocation."""

_FREE = "num_free_blocks() -> "
_TICK = "-- tick "
_ANYWHERE = ("tick", "num_free_blocks", "reclaim_prefix_blocks")
"""Calls that belong to no request: the same identity elsewhere is another piece of work."""

Range = tuple[int, int]
Gap = tuple[Range, Range]
Run = tuple[int, int, int]
"""Matched lines in a row: the first on A, the first on B, how many."""


@dataclass(slots=True)
class Matching:
    """``runs`` keep the order of both sides; ``moved`` maps lines of A to lines of B that do not.

    ``prefix`` lines are common from the start, ``suffix`` at the end. Behind ``stop`` (one index per side) only lines
    with equal text were matched: ``rest``. ``works`` files the lines in and before the gaps; ``reached`` says how far
    each request comes on each side.
    """

    prefix: int
    suffix: int
    stop: Range
    runs: list[Run] = field(default_factory=list)
    rest: list[Run] = field(default_factory=list)
    moved: dict[int, int] = field(default_factory=dict)
    works: tuple[dict[int, Work], dict[int, Work]] = field(default_factory=lambda: ({}, {}))
    reached: tuple[dict[int, int], dict[int, int]] = field(default_factory=lambda: ({}, {}))


def match_sides(a: Side, b: Side, block_sizes: Range) -> Matching:
    """Match the lines of two traces whose texts differ somewhere."""
    prefix, suffix = _common_ends(a.texts, b.texts)
    found = Matching(prefix, suffix, (len(a.texts) - suffix, len(b.texts) - suffix))
    runs = _by_text(a.texts[prefix : found.stop[0]], b.texts[prefix : found.stop[1]], prefix)
    runs = _within_bounds(found, runs)
    _file_both(found, (a, b), runs, block_sizes)
    found.runs = list(_of_same_work(found, runs))
    gaps = list(_gaps(found.runs, prefix, found.stop))
    gaps = _in_order(found, gaps, lambda work: work.key)
    _match_moved(found, gaps, lambda which, index: _own_key(found, which, index))
    gaps = _in_order(found, gaps, lambda work: work.loose)
    gaps = _in_order(found, gaps, lambda work: work.loose[:1])
    _match_moved(found, gaps, lambda which, index: (a, b)[which].texts[index])
    found.runs += _damaged(found, gaps)
    found.runs.sort()
    return found


# ---------------------------------------------------------------- equal text


def _common_ends(a: list[str], b: list[str]) -> Range:
    shorter = min(len(a), len(b))
    prefix = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), shorter)
    backwards = zip(reversed(a), reversed(b), strict=False)
    suffix = next((i for i, (x, y) in enumerate(backwards) if x != y), shorter)
    return prefix, min(suffix, shorter - prefix)


class _Numbers(dict[str, int]):
    """A number for every text, the same for texts that only a shift in time or memory tells apart."""

    def __missing__(self, text: str) -> int:
        masked = _TICK if text.startswith(_TICK) else _FREE if text.startswith(_FREE) else text
        number = self[text] = self.setdefault(masked, len(self))
        return number


def _by_text(a: list[str], b: list[str], offset: int) -> list[Run]:
    """Lines with equal text, in order; a router line only together with the device call behind it."""
    numbers = _Numbers()
    left, right = [numbers[text] for text in a], [numbers[text] for text in b]
    runs: list[Run] = []
    for x, y, count in _joined(align(left, right, exact=False)):
        while count and a[x + count - 1].startswith("fx "):
            count -= 1
        if count:
            runs.append((x + offset, y + offset, count))
    return runs


def _joined(pairs: list[Range]) -> Iterator[Run]:
    """Pairs in a row as runs."""
    x = y = count = 0
    for next_x, next_y in pairs:
        if count and (next_x, next_y) != (x + count, y + count):
            yield x, y, count
            count = 0
        if not count:
            x, y = next_x, next_y
        count += 1
    if count:
        yield x, y, count


def _within_bounds(found: Matching, runs: list[Run]) -> list[Run]:
    """Stop where too many lines have no equal; what is matched behind that is put by."""
    detail = [0, 0]
    last = found.prefix
    for (x0, x1), (y0, y1) in _gaps(runs, found.prefix, found.stop):
        lead, last = min(x0 - last, LEAD), x1
        detail[0] += lead + x1 - x0
        detail[1] += lead + y1 - y0
        if max(detail) > MAX_DETAIL:
            found.stop = max(x0, x1 - detail[0] + MAX_DETAIL), max(y0, y1 - detail[1] + MAX_DETAIL)
            found.stop = min(found.stop[0], x1), min(found.stop[1], y1)
            found.rest = [run for run in runs if run[0] >= x1]
            return [run for run in runs if run[0] < x0]
    return runs


def _gaps(runs: list[Run], prefix: int, stop: Range) -> Iterator[Gap]:
    """The ranges between runs."""
    x0 = y0 = prefix
    for x, y, count in [*runs, (*stop, 0)]:
        if x > x0 or y > y0:
            yield (x0, x), (y0, y)
        x0, y0 = x + count, y + count


# ---------------------------------------------------------------- filing


def _file_both(found: Matching, sides: tuple[Side, Side], runs: list[Run], block_sizes: Range) -> None:
    """File the gaps and the lines just before them; equal lines far from a gap only move the states on."""
    first = max(0, found.prefix - LEAD)
    start = State()
    start.feed_all(sides[0].moving(0, first))
    states = start.fork(block_sizes[0]), start.fork(block_sizes[1])
    clerks = Clerk(), Clerk()
    at = first, first
    for gap in _gaps(runs, found.prefix, found.stop):
        far = gap[0][0] - at[0] - LEAD
        if far > TRAIL:
            for which in (0, 1):
                _file(found, which, sides[which], states[which], clerks[which], range(at[which], at[which] + TRAIL))
            at, far = (at[0] + TRAIL, at[1] + TRAIL), far - TRAIL
            states = feed_equal(states, sides, at, far)
            at = at[0] + far, at[1] + far
            for clerk in clerks:
                clerk.close()
            clerks = Clerk(), Clerk()
        for which in (0, 1):
            _file(found, which, sides[which], states[which], clerks[which], range(at[which], gap[which][1]))
        at = gap[0][1], gap[1][1]
    for which, side in enumerate(sides):
        behind = min(at[which] + TRAIL, len(side.texts))
        _file(found, which, side, states[which].fork(), clerks[which], range(at[which], behind))
        clerks[which].close()
        states[which].feed_all(side.records(at[which], found.stop[which]))
        found.reached[which].update(states[which].ended)
        found.reached[which].update((row.id, row.progress) for row in states[which].rows.values())


def _file(found: Matching, which: int, side: Side, state: State, clerk: Clerk, lines: range) -> None:
    works = found.works[which]
    for index in lines:
        works[index] = clerk.file(index, side.record(index), side.texts[index], state)


def feed_equal(states: tuple[State, State], sides: tuple[Side, Side], at: Range, count: int) -> tuple[State, State]:
    """Move both states over ``count`` lines that are equal but for ticks and free blocks; two equal states as one."""
    a, b = states
    if count > LEAD and a.like(b):
        ahead = b.launches - a.launches
        a.feed_all(sides[0].moving(at[0], at[0] + count))
        merged = a.fork()
        merged.pool, merged.tick, merged.free = b.pool, b.tick, b.free
        merged.launches += ahead
        merged.read_clock(sides[1].records(at[1] + max(0, count - 4 * LEAD), at[1] + count))
        return a, merged
    a.feed_all(sides[0].moving(at[0], at[0] + count))
    b.feed_all(sides[1].moving(at[1], at[1] + count))
    return states


def _of_same_work(found: Matching, runs: list[Run]) -> Iterator[Run]:
    """Equal text can be other work when lengths are shifted: the part of a run near a gap stays whole or goes."""
    left, right = found.works
    for x, y, count in runs:
        near = next((n for n in range(count) if x + count - 1 - n not in left), count)
        tail = range(count - near, count)
        if any(left[x + n].key != right[y + n].key for n in tail if y + n in right):
            count -= near
        if count:
            yield x, y, count


# ---------------------------------------------------------------- gaps


def _in_order(found: Matching, gaps: list[Gap], identity: Callable[[Work], Hashable]) -> list[Gap]:
    """Match lines of the same gap that have the same identity and keep their order; gives the gaps that remain."""
    works_a, works_b = found.works
    there = set(found.moved.values())
    remaining: list[Gap] = []
    for gap in gaps:
        rows_a = [x for x in range(*gap[0]) if x not in found.moved]
        rows_b = [y for y in range(*gap[1]) if y not in there]
        numbers: dict[Hashable, int] = {}
        left = [numbers.setdefault(identity(works_a[x]), len(numbers)) for x in rows_a]
        right = [numbers.setdefault(identity(works_b[y]), len(numbers)) for y in rows_b]
        pairs = [(rows_a[i], rows_b[j], 1) for i, j in align(left, right)] if left and right else []
        found.runs += pairs
        remaining += _inner(gap, pairs)
    return remaining


def _inner(gap: Gap, pairs: list[Run]) -> Iterator[Gap]:
    (x0, x1), (y0, y1) = gap
    for x, y, count in [*pairs, (x1, y1, 0)]:
        if x > x0 or y > y0:
            yield (x0, x), (y0, y)
        x0, y0 = x + count, y + count


def _match_moved(found: Matching, gaps: list[Gap], identity: Callable[[int, int], Hashable]) -> None:
    """Lines whose identity occurs once on either side, wherever they stand."""
    left, right = _left_over(found, gaps)
    keys_a = {x: identity(0, x) for x in left if found.works[0][x].kind != "text"}
    keys_b = {y: identity(1, y) for y in right if found.works[1][y].kind != "text"}
    count_a, count_b = Counter(keys_a.values()), Counter(keys_b.values())
    where = {key: y for y, key in keys_b.items() if count_b[key] == 1}
    found.moved.update((x, where[key]) for x, key in keys_a.items() if count_a[key] == 1 and key in where)


def _own_key(found: Matching, which: int, index: int) -> Hashable:
    """The identity of a request's work; that of other lines stands for nothing but the line itself."""
    key = found.works[which][index].key
    return ("line", which, index) if key and key[0] in _ANYWHERE else key


def _left_over(found: Matching, gaps: list[Gap]) -> tuple[list[int], list[int]]:
    there = set(found.moved.values())
    left = [x for (x0, x1), _ in gaps for x in range(x0, x1) if x not in found.moved]
    return left, [y for _, (y0, y1) in gaps for y in range(y0, y1) if y not in there]


def _damaged(found: Matching, gaps: list[Gap]) -> Iterator[Run]:
    """One line against one line where one of them is not of the language: the same line, damaged."""
    there = set(found.moved.values())
    for (x, x1), (y, y1) in gaps:
        alone = (x + 1, y + 1) == (x1, y1) and x not in found.moved and y not in there
        if alone and "text" in (found.works[0][x].kind, found.works[1][y].kind):
            yield x, y, 1
