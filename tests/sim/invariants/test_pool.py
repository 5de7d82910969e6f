"""The block size is read off the counts of a log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metrale.sim.invariants.ghost import Seq
from metrale.sim.invariants.pool import Pool


def grown(pool: Pool, *lengths: int) -> list[Seq]:
    """Sequences of these lengths."""
    seqs = [Seq(slot, 1) for slot in range(len(lengths))]
    for seq, length in zip(seqs, lengths, strict=True):
        pool.add(seq)
        pool.cover(seq, length)
    return seqs


def test_one_count_gives_an_interval() -> None:
    pool = Pool()
    pool.total = 100
    grown(pool, 33)
    assert pool.learn_free(97)
    assert (pool.low, pool.high) == (12, 16)


def test_a_crossing_gives_the_size() -> None:
    pool = Pool()
    pool.total = 100
    (seq,) = grown(pool, 15)
    assert pool.learn_free(99)
    pool.cover(seq, 16)
    assert pool.learn_free(98)
    assert (pool.low, pool.high) == (16, 16)
    assert (pool.used_low, seq.low, seq.limit) == (2, 2, 32)


def test_counts_that_no_size_explains() -> None:
    pool = Pool()
    pool.total = 100
    grown(pool, 5, 5)
    assert not pool.learn_free(99)


@given(st.integers(1, 64), st.lists(st.integers(1, 300), min_size=1, max_size=6))
def test_the_true_size_is_never_excluded(size: int, lengths: list[int]) -> None:
    pool = Pool()
    pool.total = 10_000
    used = 0
    for length in lengths:
        grown(pool, length)
        used += length // size + 1
        assert pool.learn_free(10_000 - used)
        assert pool.low <= size <= pool.high
