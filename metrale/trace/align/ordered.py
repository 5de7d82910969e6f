"""Ordered alignment of two sequences of integers: anchors first, then a bounded exact search, then occurrences.

The result is a common subsequence, in practice a long one. Time is O(n log n) plus a bounded search per gap, whatever
the input; values that occur once on both sides act as anchors, so that a local change stays local.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Sequence

MAX_EDITS = 256
"""The exact search of one gap gives up beyond so many insertions and deletions."""

Pair = tuple[int, int]


def align(a: Sequence[int], b: Sequence[int], *, exact: bool = True) -> list[Pair]:
    """Index pairs with equal values, increasing on both sides.

    Without ``exact`` only equal ends and anchors are matched: cheap, and never a chance match of repeated values.
    """
    found: list[Pair] = []
    todo = [(0, len(a), 0, len(b))]
    while todo:
        a0, a1, b0, b1 = todo.pop()
        while a0 < a1 and b0 < b1 and a[a0] == b[b0]:
            found.append((a0, b0))
            a0, b0 = a0 + 1, b0 + 1
        while a0 < a1 and b0 < b1 and a[a1 - 1] == b[b1 - 1]:
            a1, b1 = a1 - 1, b1 - 1
            found.append((a1, b1))
        if a0 == a1 or b0 == b1:
            continue
        anchors = _anchors(a, b, a0, a1, b0, b1)
        if anchors:
            found += anchors
            ends = [*anchors, (a1, b1)]
            starts = [(a0, b0), *((x + 1, y + 1) for x, y in anchors)]
            todo += [(s, x, t, y) for (s, t), (x, y) in zip(starts, ends, strict=True)]
        elif exact:
            found += [(a0 + x, b0 + y) for x, y in _search(a[a0:a1], b[b0:b1])]
    found.sort()
    return found


def _anchors(a: Sequence[int], b: Sequence[int], a0: int, a1: int, b0: int, b1: int) -> list[Pair]:
    """Values that occur once in each range, as far as they keep their order."""
    once_a = Counter(a[a0:a1])
    once_b = Counter(b[b0:b1])
    where = {value: y for y, value in enumerate(b[b0:b1], b0) if once_b[value] == 1}
    pairs = [(x, where[value]) for x, value in enumerate(a[a0:a1], a0) if value in where and once_a[value] == 1]
    return increasing(pairs)


def increasing(pairs: Sequence[Pair]) -> list[Pair]:
    """The longest part of ``pairs`` (sorted by first index) whose second indexes increase."""
    tails: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for index, (_, y) in enumerate(pairs):
        at = bisect_left(tails, y)
        before.append(last[at - 1] if at else -1)
        if at == len(tails):
            tails.append(y)
            last.append(index)
        else:
            tails[at], last[at] = y, index
    chain: list[Pair] = []
    index = last[-1] if last else -1
    while index >= 0:
        chain.append(pairs[index])
        index = before[index]
    return chain[::-1]


def _search(a: Sequence[int], b: Sequence[int]) -> list[Pair]:
    """A longest common subsequence if it needs few edits; else equal values paired by occurrence."""
    exact = _few_edits(a, b)
    return by_occurrence(a, b) if exact is None else exact


def by_occurrence(a: Sequence[int], b: Sequence[int]) -> list[Pair]:
    """The n-th occurrence in ``a`` with the n-th in ``b``, as far as these pairs keep their order."""
    places: defaultdict[int, deque[int]] = defaultdict(deque)
    for y, value in enumerate(b):
        places[value].append(y)
    return increasing([(x, places[value].popleft()) for x, value in enumerate(a) if places.get(value)])


def _few_edits(a: Sequence[int], b: Sequence[int]) -> list[Pair] | None:
    """Myers' greedy search; None beyond MAX_EDITS."""
    n, m = len(a), len(b)
    if abs(n - m) > MAX_EDITS:
        return None
    furthest = {1: 0}
    history: list[dict[int, int]] = []
    for edits in range(min(n + m, MAX_EDITS) + 1):
        history.append(dict(furthest))
        for k in range(-edits, edits + 1, 2):
            down = k == -edits or (k != edits and furthest[k - 1] < furthest[k + 1])
            x = furthest[k + 1] if down else furthest[k - 1] + 1
            while x < n and x - k < m and a[x] == b[x - k]:
                x += 1
            furthest[k] = x
            if x >= n and x - k >= m:
                return _trace_back(history, n, m)
    return None


def _trace_back(history: list[dict[int, int]], n: int, m: int) -> list[Pair]:
    pairs: list[Pair] = []
    x, y = n, m
    for edits in range(len(history) - 1, -1, -1):
        furthest = history[edits]
        k = x - y
        down = k == -edits or (k != edits and furthest.get(k - 1, -1) < furthest.get(k + 1, -1))
        k_before = k + 1 if down else k - 1
        x_before = furthest[k_before] if edits else 0
        y_before = x_before - k_before if edits else 0
        while x > x_before and y > y_before:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = x_before, y_before
    return pairs[::-1]
