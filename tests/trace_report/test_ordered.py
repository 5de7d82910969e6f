"""Ordered alignment of integers: a common subsequence, a long one, in bounded time."""

from __future__ import annotations

import itertools
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrale.trace.align.ordered import MAX_EDITS, align, by_occurrence, increasing

SMALL = st.lists(st.integers(0, 4), max_size=24)


def longest_common(a: list[int], b: list[int]) -> int:
    """The length of a longest common subsequence, by the textbook."""
    row = [0] * (len(b) + 1)
    for x in a:
        last = 0
        for j, y in enumerate(b):
            last, row[j + 1] = row[j + 1], last + 1 if x == y else max(row[j + 1], row[j])
    return row[-1]


def assert_common(pairs: list[tuple[int, int]], a: list[int], b: list[int]) -> None:
    assert all(a[x] == b[y] for x, y in pairs)
    assert all(x < x2 and y < y2 for (x, y), (x2, y2) in itertools.pairwise(pairs))


@given(SMALL, SMALL)
def test_a_common_subsequence(a: list[int], b: list[int]) -> None:
    for exact in (True, False):
        assert_common(align(a, b, exact=exact), a, b)
    assert_common(by_occurrence(a, b), a, b)


@given(SMALL)
def test_a_sequence_matches_itself(a: list[int]) -> None:
    assert align(a, a) == [(i, i) for i in range(len(a))]


@given(st.lists(st.integers(0, 1), max_size=20), st.lists(st.integers(0, 1), max_size=20))
def test_repeated_values_give_a_longest_one(a: list[int], b: list[int]) -> None:
    """Without anchors and equal ends the search is exact."""
    inner_a, inner_b = [2, 2, *a, 3, 3], [3, 3, *b, 2, 2]
    if not any(inner_a.count(v) == 1 == inner_b.count(v) for v in (0, 1)):
        assert len(align(inner_a, inner_b)) == longest_common(inner_a, inner_b)


def test_a_local_change_stays_local() -> None:
    a = [0, 1] * 500 + list(range(10, 400)) + [0, 1] * 500
    b = [*a[:300], 7, *a[302:1200], *a[1203:]]
    assert len(align(a, b)) == len(b) - 1


def test_more_edits_than_the_search_takes() -> None:
    a = [i % 3 for i in range(4 * MAX_EDITS)]
    b = [(i * i) % 3 for i in range(4 * MAX_EDITS)]
    pairs = align(a, b)
    assert_common(pairs, a, b)
    assert len(pairs) > MAX_EDITS


def test_increasing_takes_the_longest_part() -> None:
    assert increasing([(0, 5), (1, 1), (2, 2), (3, 0), (4, 3)]) == [(1, 1), (2, 2), (4, 3)]
    assert increasing([]) == []


@pytest.mark.parametrize("kind", ["reversed", "shuffled", "two values"])
def test_time_is_bounded(kind: str) -> None:
    a = list(range(20_000))
    b = a[::-1] if kind == "reversed" else random.Random(1).sample(a, len(a))
    if kind == "two values":
        a, b = ([random.Random(seed).randrange(2) for _ in range(20_000)] for seed in (1, 2))
    start = time.process_time()
    assert_common(align(a, b), a, b)
    assert time.process_time() - start < 10
