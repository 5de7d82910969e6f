"""docs/invariants.md lists every rule with its sentence, and every relation."""

from __future__ import annotations

from pathlib import Path

from metrale.sim.fuzz.relations import RELATIONS
from metrale.sim.invariants import INVARIANTS

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "invariants.md").read_text(encoding="utf-8")


def test_every_rule_is_listed_with_its_sentence_and_its_module() -> None:
    for one in INVARIANTS:
        need = " (needs the scenario)" if one.needs_scenario else ""
        module = one.__module__.rpartition(".")[2]
        assert f"| `{one.name}` | {one.sentence}{need} | `{module}.py` |" in TEXT


def test_every_relation_is_listed() -> None:
    for name, (_, sentence) in RELATIONS.items():
        assert f"| `{name}` |" in TEXT
        assert sentence in TEXT
