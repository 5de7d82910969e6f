"""Do the hunt and the goldens find bugs? Each planted fault of the table is looked for.

The whole table, with times and shrunk sizes, is what ``metrale mutants`` prints; here every fault gets a bounded hunt.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from metrale.sim.fuzz.hunt import try_seed
from metrale.sim.mutants.measure import Noticed, golden_pairs, markdown, measure
from metrale.sim.mutants.plant import Mutant, PlantError, changed_code, planted, target_of
from metrale.sim.mutants.table import MUTANTS
from metrale.sim.runner import run_scenario

ROOT = Path(__file__).resolve().parents[2]
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
MOST_SEEDS = 250
RARE = frozenset({"spill-smallest-row", "resume-largest-first", "parked-in-idle-ticks", "rotation-under-parked-work"})
"""Faults that need a rare meeting: a longer hunt finds them (docs/mutants.md)."""


def test_the_table_is_large_and_each_fault_can_be_planted() -> None:
    assert len(MUTANTS) >= 40
    assert len(BY_NAME) == len(MUTANTS)
    for mutant in MUTANTS:
        assert changed_code(mutant) != target_of(mutant).__code__


def test_planting_changes_the_function_for_every_caller_and_is_undone() -> None:
    mutant = BY_NAME["leaked-block"]
    before = target_of(mutant).__code__
    with planted(mutant):
        assert target_of(mutant).__code__ is not before
        assert try_seed(0).failures
    assert target_of(mutant).__code__ is before
    assert not try_seed(0).failures


def test_a_fault_whose_code_is_gone_says_so() -> None:
    mutant = Mutant("gone", "", "metrale.core.retire:compact", "no such text", "")
    with pytest.raises(PlantError, match="stands 0 times"), planted(mutant):
        pass
    with pytest.raises(PlantError, match="no function"):
        target_of(Mutant("gone", "", "metrale.core.retire:nowhere", "", ""))


def found_by_hunt(mutant: Mutant) -> str | None:
    """The rule that a bounded hunt sees broken."""
    with planted(mutant):
        for seed in range(MOST_SEEDS):
            failures = try_seed(seed).failures
            if failures:
                return failures[0].rule
    return None


def test_a_hunt_finds_nearly_every_planted_fault() -> None:
    missed = [mutant.name for mutant in MUTANTS if mutant.name not in RARE and found_by_hunt(mutant) is None]
    assert len(missed) <= 0.05 * len(MUTANTS), missed


def test_the_goldens_see_nearly_every_planted_fault() -> None:
    """A sample of the goldens, chosen for speed, sees most of the faults by itself."""
    pairs = [pair for pair in golden_pairs(ROOT / "golden") if len(pair[2]) < 12_000]
    assert len(pairs) > 30
    unseen = []
    for mutant in MUTANTS:
        with planted(mutant):
            if not any(changes(scenario, text) for _, scenario, text in pairs):
                unseen.append(mutant.name)
    assert len(unseen) <= 0.1 * len(MUTANTS), unseen


def changes(scenario, text: str) -> bool:  # type: ignore[no-untyped-def]
    """Whether the scenario's trace is another one under the planted fault."""
    try:
        return run_scenario(scenario, max_ticks=2000).text != text
    except Exception:
        return True


def test_a_row_of_the_table() -> None:
    row = measure(BY_NAME["wrong-verdict-word"], ROOT / "golden", seconds=20, small=True)
    assert "verify_k2" in row.goldens
    assert row.rule in ("verdict-order", "ep-words")
    assert row.small is not None
    assert row.small[0] == 1
    text = markdown([row, Noticed(BY_NAME["leaked-block"], seconds=1.0)])
    assert text.splitlines()[2].startswith("| `wrong-verdict-word` | workers hear that no draft was accepted | ")
    assert text.splitlines()[3].endswith("| none | none | nothing | not in 1 s |  |")
