"""Late order on the CPU: right with every wait in place, wrong without any one of them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from metrale.device import engine
from metrale.device.conformance.driver import follow, prefilled
from metrale.device.conformance.ordering import CASES, on_prefill
from metrale.device.engine import Streams
from metrale.device.engine.core import ARENA_ROWS
from metrale.device.engine.streams import EDGES

from .support import HYBRID, LLAMA, device_for


def run(case, mode="immediate", seed=0, without=""):
    family = HYBRID if case.hybrid else LLAMA
    device = device_for(family, seed=5, streams=Streams(mode, seed, without), prefix_cache=case.prefix_cache)
    try:
        return case.program(device)
    except Exception as error:
        return [type(error).__name__]


def waits_in_the_code() -> list[str]:
    """The edges of every wait call of the engine: the last argument, or the default of a synchronize."""
    found = []
    for path in sorted(Path(engine.__file__).parent.glob("*.py")):
        if path.stem.endswith("streams"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            last = node.args[-1] if node.args else None
            name, text = node.func.attr, getattr(last, "value", None)
            if name == "wait_for_copies":
                found += [f"{text}-after-secondary", f"{text}-after-prefill"]
            elif name == "wait" and isinstance(last, ast.Constant):
                found.append(text)
            elif name in BY_DEFAULT:
                found.append(text if isinstance(text, str) else BY_DEFAULT[name])
    return found


BY_DEFAULT = {"wait_event": "event", "host_wait_event": "event-on-host", "synchronize": "stream-on-host"}


def test_every_wait_of_the_engine_has_a_name_of_its_own_and_a_program():
    assert sorted(waits_in_the_code()) == sorted(EDGES)
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


def test_an_arena_that_grows_under_queued_work():
    """A chunk still waits on P when a verify outgrows the arena: its rows, and what the chunk's sequence says later."""

    def outgrown(mode: str) -> list[int]:
        device = device_for(HYBRID, seed=5, streams=Streams(mode))
        late = on_prefill(device, [4, 9, 2])
        seq = prefilled(device, [7, 1], 2)
        picks = device.decode_verify([(3 * i + 1) % 61 for i in range(ARENA_ROWS + 11)], seq)
        return [*picks, *follow(device, late, 5, 4), *follow(device, seq, picks[-1], 4)]

    wanted = outgrown("immediate")
    assert len(wanted) == ARENA_ROWS + 11 + 8
    assert outgrown("late") == wanted
