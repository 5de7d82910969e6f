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

MAX_READ = 120_000
"""So many lines of each side, from the first difference on, are looked at in detail."""

LEAD = 60
"""So many lines before a gap are filed with it."""

_FREE = "num_free_blocks() -> "
_TICK = "-- tick "

_NEVER_MOVED = ("tick", "memory", "text")

Range = tuple[int, int]
Gap = tuple[Range, Range]


@dataclass(slots=True)
class Matching:
    """``ordered`` pairs keep the order of both sides; ``moved`` maps lines of A to lines of B that do not.

    ``prefix`` lines are common from the start. ``stop`` is how far each side was looked at. ``works`` files the
    lines that differ or stand between two differences.
    """

    prefix: int
    stop: Range
    ordered: list[tuple[int, int]] = field(default_factory=list)
    moved: dict[int, int] = field(default_factory=dict)
    works: tuple[dict[int, Work], dict[int, Work]] = field(default_factory=lambda: ({}, {}))
    reached: tuple[dict[int, int], dict[int, int]] = field(default_factory=lambda: ({}, {}))


def match_sides(a: Side, b: Side, block_sizes: Range) -> Matching:
    """Match the lines of two traces whose texts differ somewhere."""
    prefix, suffix = _common_ends(a.texts, b.texts)
    stop = min(len(a.texts) - suffix, prefix + MAX_READ), min(len(b.texts) - suffix, prefix + MAX_READ)
    found = Matching(prefix, stop)
    pairs = _by_text(a.texts[prefix : stop[0]], b.texts[prefix : stop[1]], prefix)
    _file_both(found, (a, b), list(_gaps(pairs, prefix, stop)), block_sizes)
    found.ordered = _of_same_work(found, pairs)
    gaps = list(_gaps(found.ordered, prefix, stop))
    gaps = _in_order(found, gaps, lambda work: work.key)
    _match_moved(found, gaps, lambda which, index: found.works[which][index].key)
    gaps = _in_order(found, gaps, lambda work: work.loose)
    gaps = _in_order(found, gaps, lambda work: work.loose[:1])
    _match_moved(found, gaps, lambda which, index: (a, b)[which].texts[index])
    found.ordered += _damaged(found, gaps)
    found.ordered.sort()
    return found


def _common_ends(a: list[str], b: list[str]) -> tuple[int, int]:
    shorter = min(len(a), len(b))
    prefix = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), shorter)
    backwards = zip(reversed(a), reversed(b), strict=False)
    suffix = next((i for i, (x, y) in enumerate(backwards) if x != y), shorter)
    return prefix, min(suffix, shorter - prefix)


def _masked(text: str) -> str:
    """The text without what a shift in time or memory changes on its own."""
    if text.startswith(_TICK):
        return _TICK
    return _FREE if text.startswith(_FREE) else text


def _by_text(a: list[str], b: list[str], offset: int) -> list[tuple[int, int]]:
    """Lines with equal text, in order; a router line only together with the device call behind it."""
    numbers: dict[str, int] = {}
    left, right = ([numbers.setdefault(_masked(text), len(numbers)) for text in texts] for texts in (a, b))
    pairs = align(left, right, exact=False)
    following = dict(pairs)
    whole = ((x, y) for x, y in pairs if not a[x].startswith("fx ") or following.get(x + 1) == y + 1)
    return [(x + offset, y + offset) for x, y in whole]


def _of_same_work(found: Matching, pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Equal text can be other work when lengths are shifted: near a gap, a stretch of pairs is kept whole or not."""
    kept: list[tuple[int, int]] = []
    stretch: list[tuple[int, int]] = []
    good = True
    for x, y in [*pairs, (-1, -1)]:
        work_a, work_b = found.works[0].get(x), found.works[1].get(y)
        if stretch and stretch[-1] != (x - 1, y - 1):
            kept += stretch if good else []
            stretch, good = [], True
        if work_a is None or work_b is None:
            kept += stretch if good else []
            stretch, good = [], True
            kept += [(x, y)] if x >= 0 else []
        else:
            stretch.append((x, y))
            good = good and work_a.key == work_b.key
    return kept


def _file_both(found: Matching, sides: tuple[Side, Side], gaps: list[Gap], block_sizes: Range) -> None:
    first = max(0, found.prefix - LEAD)
    start = State()
    start.feed_all(sides[0].record(index) for index in range(first))
    for which, side in enumerate(sides):
        near = _near([gap[which] for gap in gaps], first)
        state = start.fork(block_sizes[which])
        _file(side, (first, found.stop[which]), near, state, found.works[which], found.reached[which])


def _near(gaps: list[Range], first: int) -> list[Range]:
    """The gaps with the lines just before them, which tell whose work they go on with."""
    merged: list[Range] = []
    for start, stop in gaps:
        start = max(first, start - LEAD)
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    return merged


def _file(
    side: Side, lines: Range, near: list[Range], state: State, works: dict[int, Work], reached: dict[int, int]
) -> None:
    """File the lines ``near`` a gap; the others only move the state on."""
    at = lines[0]
    for start, stop in [*near, (lines[1], lines[1])]:
        state.feed_all(side.record(index) for index in range(at, start))
        clerk = Clerk()
        for index in range(start, stop):
            works[index] = clerk.file(index, side.record(index), side.texts[index], state)
        clerk.close()
        at = stop
    reached.update(state.ended)
    reached.update((row.id, row.progress) for row in state.rows.values())


def _gaps(pairs: list[tuple[int, int]], prefix: int, stop: Range) -> Iterator[Gap]:
    """The ranges between matched pairs."""
    x0 = y0 = prefix
    for x, y in [*pairs, stop]:
        if x > x0 or y > y0:
            yield (x0, x), (y0, y)
        x0, y0 = x + 1, y + 1


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
        pairs = [(rows_a[i], rows_b[j]) for i, j in align(left, right)] if left and right else []
        found.ordered += pairs
        remaining += _inner(gap, pairs)
    return remaining


def _inner(gap: Gap, pairs: list[tuple[int, int]]) -> Iterator[Gap]:
    (x0, x1), (y0, y1) = gap
    for x, y in [*pairs, (x1, y1)]:
        if x > x0 or y > y0:
            yield (x0, x), (y0, y)
        x0, y0 = x + 1, y + 1


def _match_moved(found: Matching, gaps: list[Gap], identity: Callable[[int, int], Hashable]) -> None:
    """Lines whose identity occurs once on either side, wherever they stand."""
    left, right = _left_over(found, gaps)
    keys_a = {x: identity(0, x) for x in left if found.works[0][x].kind not in _NEVER_MOVED}
    keys_b = {y: identity(1, y) for y in right if found.works[1][y].kind not in _NEVER_MOVED}
    count_a, count_b = Counter(keys_a.values()), Counter(keys_b.values())
    where = {key: y for y, key in keys_b.items() if count_b[key] == 1}
    found.moved.update((x, where[key]) for x, key in keys_a.items() if count_a[key] == 1 and key in where)


def _left_over(found: Matching, gaps: list[Gap]) -> tuple[list[int], list[int]]:
    there = set(found.moved.values())
    left = [x for (x0, x1), _ in gaps for x in range(x0, x1) if x not in found.moved]
    return left, [y for _, (y0, y1) in gaps for y in range(y0, y1) if y not in there]


def _damaged(found: Matching, gaps: list[Gap]) -> Iterator[tuple[int, int]]:
    """One line against one line where one of them is not of the language: the same line, damaged."""
    for gap in gaps:
        left, right = _left_over(found, [gap])
        if len(left) == len(right) == 1 and "text" in (found.works[0][left[0]].kind, found.works[1][right[0]].kind):
            yield left[0], right[0]
