"""Exploration visits everything, finds what is planted, and closes."""

from __future__ import annotations

import pytest

from metrale.sim.explore import WORLDS, Explored, World, choices_at, explore, run_watched, scenario_of
from metrale.sim.mutants.plant import planted
from metrale.sim.mutants.table import MUTANTS
from metrale.sim.scenario import scenario_from

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
PLAIN = WORLDS[0]


def small(world: World, ticks: int) -> World:
    return World(world.name, world.tables, ticks, world.faults)


def test_worlds_are_small() -> None:
    for world in WORLDS:
        assert len(world.tables["request"]) == 3
        assert world.tables["device"]["total_blocks"] == 6
        assert world.ticks == 8


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_three_ticks_of_every_world_close_without_a_failure(world: World) -> None:
    found = explore(small(world, 3))
    assert found.failures == []
    assert found.closed
    assert found.edges == found.states - 1 + found.merged


def test_without_faults_and_one_request_the_count_can_be_done_by_hand() -> None:
    """One request that never ends within the bound: it arrives in tick 1, 2 or not at all."""
    tables = {"device": {}, "scheduler": {}, "request": [{"id": 1, "prompt_len": 3, "tokens": [10] * 9}]}
    found = explore(World("one", tables, ticks=2, faults=()))
    # Tick 1: it comes or not; tick 2: it is there, it comes, or not.
    assert (found.states, found.edges, found.merged) == (6, 5, 0)


def test_states_that_the_core_cannot_tell_apart_are_one() -> None:
    """Two requests arrive in one tick; a third that ended long ago leaves no trace in the state."""
    tables = {"device": {}, "scheduler": {}, "request": [{"id": 1, "prompt_len": 3, "tokens": [63]}]}
    found = explore(World("one", tables, ticks=4, faults=()))
    assert found.merged > 0
    assert found.closed


def test_choices_are_scenarios() -> None:
    path = (((0, 2), None, 0), ((1,), "cancel", 0), ((), None, 0))
    tables = scenario_of(PLAIN, path)
    assert [(one["id"], one["arrive_at_tick"], one.get("cancel_at_tick")) for one in tables["request"]] == [
        (1, 1, 2),
        (2, 2, None),
        (3, 1, None),
    ]
    result, seen = run_watched(PLAIN, scenario_from(tables), 3)
    assert result is not None
    assert seen is not None
    assert seen.live == (1, 2)
    taken = list(choices_at(PLAIN, path, seen))
    assert taken == [((), None, 0)]


def test_a_planted_fault_is_found() -> None:
    with planted(BY_NAME["victim-off-by-one"]):
        found = explore(small(PLAIN, 4))
    assert {failure.rule for _, failure in found.failures} == {"victims"}
    assert len(found.failures) >= 1


def test_a_search_that_was_broken_off_is_not_closed() -> None:
    assert not Explored("x", states=5, edges=6, merged=2, unvisited=3).closed
    assert Explored("x", states=5, edges=6, merged=2).closed
