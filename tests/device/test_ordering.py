"""Late order on the CPU: right with every wait in place, wrong without any one of them."""

from __future__ import annotations

import pytest

from metrale.device.conformance.ordering import CASES
from metrale.device.engine import Streams
from metrale.device.engine.streams import EDGES

from .support import HYBRID, LLAMA, device_for


def run(case, mode="immediate", seed=0, without=""):
    family = HYBRID if case.hybrid else LLAMA
    device = device_for(family, seed=5, streams=Streams(mode, seed, without), prefix_cache=case.prefix_cache)
    try:
        return case.program(device)
    except Exception as error:
        return [type(error).__name__]


def test_every_edge_has_a_program():
    assert sorted(case.edge for case in CASES) == sorted(EDGES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.edge)
def test_late_and_random_orders_are_right(case):
    wanted = run(case)
    assert all(isinstance(token, int) for token in wanted)
    assert run(case, "late") == wanted
    for seed in range(4):
        assert run(case, "random", seed) == wanted


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.edge)
def test_without_its_edge_the_late_order_is_wrong(case):
    assert run(case, "late", without=case.edge) != run(case)


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="immediate, late or random"):
        Streams("eager")
