"""Who notices a planted fault: which goldens, which invariants, and a hunt after how long."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from metrale.sim.fuzz.hunt import SeedReport, try_seed
from metrale.sim.fuzz.judge import judge
from metrale.sim.invariants.base import plural
from metrale.sim.scenario import Scenario, ScenarioError, load_scenario
from metrale.sim.shrink import shrink

from .plant import Mutant, planted

SHOWN = 3


@dataclass(slots=True)
class Noticed:
    """One row of the table. ``goldens`` and ``invariants`` are counted over the golden scenarios; ``rule`` is what the
    hunt's first failing seed broke, ``seconds`` and ``seeds`` what it took; ``small`` are requests and ticks of the
    smallest scenario that breaks the same."""

    mutant: Mutant
    goldens: list[str] = field(default_factory=list)
    invariants: Counter[str] = field(default_factory=Counter)
    rule: str | None = None
    seed: int | None = None
    seeds: int = 0
    seconds: float = 0.0
    small: tuple[int, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.mutant.name,
            "what": self.mutant.what,
            "goldens": self.goldens,
            "invariants": dict(self.invariants.most_common()),
            "rule": self.rule,
            "seed": self.seed,
            "seconds": round(self.seconds, 2),
            "small": self.small,
        }


@cache
def golden_pairs(folder: Path) -> tuple[tuple[str, Scenario, str], ...]:
    """(name, scenario, trace) of every pair in a folder."""
    return tuple(_pairs(folder))


def _pairs(folder: Path) -> Iterator[tuple[str, Scenario, str]]:
    for path in sorted(folder.glob("*.toml")):
        trace = path.with_suffix(".trace")
        if trace.is_file():
            try:
                yield path.stem, load_scenario(path), trace.read_text(encoding="utf-8")
            except ScenarioError:
                continue


def measure(mutant: Mutant, folder: Path, seconds: float, small: bool = True, first_seed: int = 0) -> Noticed:
    """Plant the fault and look: goldens first, then a hunt. Raises PlantError."""
    row = Noticed(mutant)
    with planted(mutant):
        for name, scenario, text in golden_pairs(folder):
            judged = judge(scenario)
            if judged.result is None or judged.result.text != text:
                row.goldens.append(name)
            row.invariants.update({failure.rule for failure in judged.failures})
        report = hunt_for(row, seconds, first_seed)
        if report is not None and small:
            found = shrink(report.tables, report.failures[0], report.seed)
            row.small = found.size if found is not None else None
    return row


def hunt_for(row: Noticed, seconds: float, first_seed: int = 0) -> SeedReport | None:
    """Try seeds until one fails or the time is over."""
    started = time.monotonic()
    seed = first_seed
    while row.seconds < seconds:
        report = try_seed(seed)
        row.seeds += 1
        row.seconds = time.monotonic() - started
        seed += 1
        if report.failures:
            row.rule, row.seed = report.failures[0].rule, report.seed
            return report
    return None


HEAD = "| planted fault | what goes wrong | goldens | invariants on goldens | a hunt finds | after | smallest |"
RULE = "|---|---|---|---|---|---|---|"


INTRO = """# Planted faults

Does anything notice? Each row is a small change to the core or the mock device (`metrale/sim/mutants/`), made in
memory for as long as it is looked at. "goldens" are the scenarios of `golden/` whose trace changes; "invariants on
goldens" the rules that the changed traces break; "a hunt finds" what the first failing seed of `metrale fuzz` breaks,
after how many seconds of one core; "smallest" what `metrale shrink` leaves of it. `metrale mutants -o docs/mutants.md`
writes this file.

{found} of {count} are found by a hunt, the median after {median:.1f} s; {seen} of {count} change a golden.

"""


def document(rows: list[Noticed]) -> str:
    """The table as a page."""
    times = sorted(row.seconds for row in rows if row.rule is not None)
    median = times[len(times) // 2] if times else 0.0
    seen = sum(bool(row.goldens) for row in rows)
    return INTRO.format(found=len(times), count=len(rows), median=median, seen=seen) + markdown(rows)


def markdown(rows: list[Noticed]) -> str:
    """The table as Markdown."""
    lines = [HEAD, RULE]
    for row in rows:
        goldens = f"{len(row.goldens)}: {', '.join(row.goldens[:SHOWN])}" if row.goldens else "none"
        rules = ", ".join(name for name, _ in row.invariants.most_common(SHOWN)) or "none"
        small = f"{plural(row.small[0], 'request')}, {plural(row.small[1], 'tick')}" if row.small else ""
        after = f"{row.seconds:.1f} s" if row.rule else f"not in {row.seconds:.0f} s"
        cells = (f"`{row.mutant.name}`", row.mutant.what, goldens, rules, row.rule or "nothing", after, small)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
