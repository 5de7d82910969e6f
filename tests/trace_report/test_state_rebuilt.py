"""The scheduler's state as a trace tells it: slots, lengths, blocks, parked work, tick by tick."""

from __future__ import annotations

from pathlib import Path

import pytest

from metrale.trace.align import Chronicle, Phase, State, chronicle
from metrale.trace.align.side import Reading, Side, load_side
from metrale.trace.align.state import block_size_of
from metrale.trace.records import NumFreeBlocks

from .planting import GOLDEN, NAMES

ALL = sorted(path.stem for path in GOLDEN.glob("*.trace"))


def side(name: str) -> Side:
    return load_side(name, Path(GOLDEN / f"{name}.trace").read_bytes(), Reading())


def told(name: str) -> Chronicle:
    return chronicle(side(name))


@pytest.mark.parametrize("name", NAMES)
def test_blocks_add_up_to_every_answer(name: str) -> None:
    """In every golden with one path each, the pool less what sequences hold is what num_free_blocks answers."""
    one = side(name)
    records = list(one.records(0, len(one.texts)))
    state = State(block_size=block_size_of(iter(records)))
    for record in records:
        assert record is not None
        if isinstance(record, NumFreeBlocks) and state.pool is not None:
            assert state.predicts_free(record.result)
        state.feed(record)
    assert state.rows == {}
    assert state.slots == {}


def test_a_forked_state_is_independent_and_counts_blocks_anew() -> None:
    one = side("preempt_requeue")
    state = State()
    state.feed_all(one.records(0, 60))
    other = state.fork()
    assert other.like(state)
    other.rows[1].length += 1
    assert not other.like(state)
    halved = state.fork(4)
    assert [row.blocks for row in halved.rows.values()] == [2, 2, 2]
    assert [row.blocks for row in state.rows.values()] == [1, 1, 1]
    assert not halved.like(state)


def test_block_sizes() -> None:
    assert block_size_of(iter([])) == 16
    assert block_size_of(side("spill_swap_out_in").records(0, 137)) == 16


def test_a_requeue_tick_by_tick() -> None:
    story = told("preempt_requeue")
    assert story.ticks == 8
    life = story.lives[1]
    assert (life.admitted, life.parked, life.resumed, life.ended) == (1, [2], [2], 7)
    assert [(seat.slot, seat.id, seat.length) for seat in story.frames[2].seats] == [(0, 3, 7), (1, 2, 7), (2, 1, 6)]
    assert story.frames[5].free == 999
    ended = [seat for seat in story.frames[5].seats if seat.phase is Phase.ENDED]
    assert [(seat.slot, seat.id, seat.length) for seat in ended] == [(0, 3, 10)]


def test_a_spill_tick_by_tick() -> None:
    story = told("spill_swap_out_in")
    life = story.lives[1]
    assert (life.parked, life.resumed, life.ended) == ([3], [5], 9)
    assert [frame.parked for frame in story.frames] == [[], [], [], [1], [1], [], [], [], [], [], []]
    assert [(seat.id, seat.length) for seat in story.frames[6].seats] == [(1, 35)]


def test_chunks_are_prefilling() -> None:
    phases = {seat.phase for frame in told("batched_mixed").frames for seat in frame.seats}
    assert phases == {Phase.PREFILLING, Phase.ACTIVE, Phase.ENDED}


@pytest.mark.parametrize("name", ALL)
def test_every_request_that_comes_also_goes(name: str) -> None:
    story = told(name)
    assert [frame.tick for frame in story.frames] == list(range(story.ticks + 1))
    for life in story.lives.values():
        assert life.admitted is not None
        assert len(life.parked) - len(life.resumed) in (0, 1)
        assert life.ended is not None or len(life.parked) > len(life.resumed)
