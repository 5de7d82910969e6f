"""The driver loop, policies, and the purity of the core (S5 sections 3, 14.1, 14.2; S2 section 13)."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import metrale.core
from metrale.core.config import SchedulerConfig
from metrale.core.driver import drive
from metrale.core.policy import Fifo, Slai, policy_for
from metrale.core.scheduler import Flow

# -- 14.1 -------------------------------------------------------------------------------------------------------------


@dataclass
class FakePlan:
    lanes: list[str]
    shutdown: bool = False


class ScriptedCore:
    """Plans and lane answers by script; notes every call."""

    def __init__(self, plans: list[FakePlan], answers: list[Flow]) -> None:
        self.plans, self.answers, self.log = plans, answers, []

    def plan(self) -> FakePlan:
        self.log.append("plan")
        return self.plans.pop(0)

    def execute(self, lane: str, plan: FakePlan) -> Flow:
        assert lane in plan.lanes
        self.log.append(f"lane {lane}")
        return self.answers.pop(0)

    def end_tick(self) -> None:
        self.log.append("end_tick")

    def finish(self) -> None:
        self.log.append("finish")


def test_14_1_the_driver_calls_in_the_written_order() -> None:
    """B's third lane, B's end_tick and D's lane never run; finish exactly once."""
    go, skip = Flow.PROCEED, Flow.SKIP_REST
    plans = [FakePlan(["a1", "a2"]), FakePlan(["b1", "b2", "b3"]), FakePlan([]), FakePlan(["d1"], shutdown=True)]
    core = ScriptedCore(plans, [go, go, go, skip])
    drive(core)
    assert core.log == [
        "plan", "lane a1", "lane a2", "end_tick",
        "plan", "lane b1", "lane b2",
        "plan", "end_tick",
        "plan",
        "finish",
    ]  # fmt: skip


# -- policies ---------------------------------------------------------------------------------------------------------


@dataclass
class Aged:
    last_token_time: int


def test_slai_numbers_of_s2_13() -> None:
    """Lengths 500, 10, 200, 50, 300: cap 3 -> 0, 1, 3; cap 4 -> 0, 1, 3, 2; cap 0 -> nothing."""
    slai = Slai(1000)
    lengths = [500, 10, 200, 50, 300]
    assert slai.select(lengths, 3) == [0, 1, 3]
    assert slai.select(lengths, 4) == [0, 1, 3, 2]
    assert slai.select(lengths, 9) == [0, 1, 3, 2, 4]
    assert slai.select(lengths, 1) == [0]
    assert slai.select(lengths, 0) == []
    assert slai.select([], 3) == []
    assert slai.select([9, 5, 5, 5], 3) == [0, 1, 2]


@pytest.mark.parametrize(("age", "allowed"), [(0, True), (799, True), (800, False), (5000, False)])
def test_slai_holds_back_from_eight_tenths_of_the_deadline(age: int, allowed: bool) -> None:
    """Any one row decides; without active rows always."""
    slai = Slai(1000)
    rows = [Aged(10_000), Aged(10_000 - age)]
    assert slai.should_prefill(10_000, rows) is allowed  # type: ignore[arg-type]
    assert slai.should_prefill(10_000, []) is True


def test_fifo_takes_the_front_and_never_waits() -> None:
    """First min(n, cap)."""
    fifo = Fifo()
    assert fifo.select([5, 4, 3], 2) == [0, 1]
    assert fifo.select([5], 9) == [0]
    assert fifo.select([5], 0) == []
    assert fifo.should_prefill(10**12, [Aged(0)]) is True  # type: ignore[list-item]


@given(st.lists(st.integers(1, 9), max_size=12), st.integers(0, 12))
def test_slai_select_is_head_then_stable_by_length(lengths: list[int], cap: int) -> None:
    """No index twice, never more than cap, the head first."""
    chosen = Slai(1).select(lengths, cap)
    assert len(chosen) == min(cap, len(lengths))
    assert len(set(chosen)) == len(chosen)
    if chosen:
        assert chosen[0] == 0
        rest = chosen[1:]
        assert rest == sorted(rest, key=lambda i: (lengths[i], i))
        left = set(range(1, len(lengths))) - set(rest)
        assert all((lengths[i], i) < (lengths[j], j) for i in rest for j in left)


def test_the_policy_of_a_configuration() -> None:
    """slai_deadline_ns in nanoseconds."""
    assert isinstance(policy_for(SchedulerConfig()), Fifo)
    slai = policy_for(SchedulerConfig(policy="slai", slai_deadline_ns=5))
    assert isinstance(slai, Slai)
    assert slai.deadline == 5


# -- 14.2 seam guard --------------------------------------------------------------------------------------------------

CORE = Path(metrale.core.__file__).parent
PURE = (
    "abc",
    "bisect",
    "collections",
    "contextlib",
    "dataclasses",
    "enum",
    "functools",
    "itertools",
    "math",
    "operator",
)
ALLOWED = {"__future__", "typing", "metrale", *PURE}
FORBIDDEN_NAMES = {
    "open",
    "print",
    "input",
    "eval",
    "exec",
    "compile",
    "__import__",
    "globals",
    "breakpoint",
    "id",
    "hash",
}
FORBIDDEN_ATTRIBUTES = {
    "perf_counter", "monotonic", "time_ns", "sleep", "urandom", "getenv", "environ", "write_text", "read_text",
    "unlink", "put_nowait", "default_rng", "seed_everything",
}  # fmt: skip


def _sources() -> list[Path]:
    return sorted(CORE.rglob("*.py"))


def _violations(path: Path, text: str) -> list[str]:
    """What makes a source impure: imports, builtins, attribute calls, iteration over a set display."""
    found = []
    inside_sampling = "sampling" in path.parts
    for node in ast.walk(ast.parse(text)):
        where = f"{path.name}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or "metrale"]
            relative = isinstance(node, ast.ImportFrom) and node.level > 0
            for name in names:
                root = name.split(".")[0]
                if not relative and root not in ALLOWED and not (root == "numpy" and inside_sampling):
                    found.append(f"{where} imports {name}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_NAMES:
            found.append(f"{where} calls {node.func.id}()")
        elif isinstance(node, ast.Attribute) and node.attr in FORBIDDEN_ATTRIBUTES:
            found.append(f"{where} reaches .{node.attr}")
        elif isinstance(node, ast.For) and _is_set(node.iter):
            found.append(f"{where} iterates a set")
        elif isinstance(node, ast.Global):
            found.append(f"{where} writes a module variable")
    return found


def _is_set(node: ast.expr) -> bool:
    return isinstance(node, ast.Set | ast.SetComp) or (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset")
    )


def test_14_2_the_core_does_no_io() -> None:
    """Every source of the core, comments ignored; an empty scan fails."""
    sources = _sources()
    assert len(sources) >= 30
    assert {"scheduler.py", "parking.py", "commit.py", "advance.py", "sync.py"} <= {path.name for path in sources}
    assert [hit for path in sources for hit in _violations(path, path.read_text())] == []


@pytest.mark.parametrize(
    "text",
    [
        "import time\n", "from random import choice\n", "import os.path\n", "x = open('f')\n", "print(1)\n",
        "y = clock.perf_counter()\n", "for a in {1, 2}:\n    pass\n", "for a in set(b):\n    pass\n",
        "import numpy as np\n", "def f():\n    global x\n", "from metrale_other import x\n",
    ],
)  # fmt: skip
def test_14_2_the_guard_sees_a_planted_leak(text: str) -> None:
    """The scan is not vacuous."""
    assert _violations(Path("metrale/core/planted.py"), text)


def test_the_core_never_imports_an_implementation() -> None:
    """Arrows go one way: absolute imports stay in metrale.core, relative ones do not climb out of it."""
    for path in _sources():
        depth = len(path.relative_to(CORE).parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.level <= depth, path
                if node.level == 0 and (node.module or "").startswith("metrale"):
                    assert (node.module or "").startswith("metrale.core"), path
            elif isinstance(node, ast.Import):
                assert not any(name.name.startswith("metrale") for name in node.names), path
