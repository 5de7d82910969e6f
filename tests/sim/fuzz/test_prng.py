"""The draws of a seed are fixed for ever, and one stream does not disturb another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metrale.sim.fuzz.prng import Stream


def test_known_draws() -> None:
    assert Stream(0).bits() == 0xE587D3DFF9E92ED0
    stream = Stream(42, "scenario/lane")
    assert [stream.bits() for _ in range(3)] == [0xE99EC396CCEBA9B2, 0x35C99A90101EDE24, 0x22F8CB8DAA680996]


def test_a_substream_depends_on_seed_and_name_alone() -> None:
    one, other = Stream(7, "a"), Stream(7, "a")
    one.bits()
    assert one.sub("b").bits() == other.sub("b").bits() == Stream(7, "a/b").bits()
    assert other.sub("b").bits() != other.sub("c").bits() != Stream(8, "a/c").bits()


@given(st.integers(0, 2**63), st.integers(1, 10**6))
def test_draws_stay_in_range(seed: int, count: int) -> None:
    stream = Stream(seed, "range")
    assert 0 <= stream.below(count) < count
    assert -3 <= stream.between(-3, count) <= count


def test_draws_are_spread() -> None:
    stream = Stream(1, "spread")
    counts = [0] * 10
    for _ in range(10_000):
        counts[stream.below(10)] += 1
    assert min(counts) > 900
    assert max(counts) < 1100


def test_some_keeps_the_order() -> None:
    items = list(range(20))
    for seed in range(30):
        chosen = Stream(seed, "some").some(items, 7)
        assert len(chosen) == 7
        assert chosen == sorted(set(chosen))
