"""``metrale shrink``: the smallest scenario that fails in the same way."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import click

from metrale.cli.errors import DIFFERENT, BadInput
from metrale.cli.files import Outputs, print_json, read_input, write_whole
from metrale.cli.text import plain, plain_lines, quoted, say
from metrale.sim.fuzz.toml_text import scenario_toml
from metrale.sim.invariants.base import plural
from metrale.sim.scenario import ScenarioError, parse_scenario
from metrale.sim.shrink import Shrunk, failures_of, pytest_text, shrink


@click.command("shrink", epilog="Example: metrale shrink found/fuzz_1234.toml -o golden/lost_block.toml")
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where to write it (default: NAME_small.toml).")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True,
              help="For a failed relation: the seed that found it.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Write the outcome as JSON.")
def shrink_command(scenario: Path, output: Path | None, seed: int, as_json: bool) -> int:
    """Reduce SCENARIO, which breaks an invariant or a relation, to the smallest that breaks the same one.

    Requests, faults, knobs and tokens are dropped and numbers lowered as long as the failure stays the same. The result
    is a scenario ready for golden/, with a pytest beside it that fails until the fault is mended. Exit status 1: the
    scenario fails and was shrunk; 0: nothing is wrong with it.
    """
    own = scenario.with_name(f"{scenario.stem}_small.toml")
    target = output or own
    test = target.with_name(f"test_{target.stem}.py")
    outputs = Outputs(scenario)
    outputs.claim(target, own=target == own)
    if target != own and os.path.lexists(test):
        raise BadInput(f"{test}: is there already, and the test of {target.name} would replace it; name another file")
    outputs.claim(test)
    data = read_input(scenario, "a scenario", regular=True)
    try:
        parse_scenario(data, str(scenario))
        tables = tomllib.loads(data.decode().removeprefix("﻿").replace("\r\n", "\n"))
        failures = failures_of(_full(tables), seed)
        found = shrink(_full(tables), failures[0], seed) if failures else None
    except ScenarioError as error:
        raise BadInput(str(error)) from error
    if found is None:
        say(f"{scenario}: breaks no invariant and no relation")
        return 0
    _write(found, target, test)
    if as_json:
        print_json(_as_json(found, target))
    else:
        click.echo(plain_lines(scenario_toml(found.tables)))
        click.echo(plain(str(found.failure)))
    say(f"next: mend the fault, then metrale check {quoted(target)} and metrale accept")
    requests, ticks = found.size
    say(f"{target}: {plural(requests, 'request')}, {plural(ticks, 'tick')}, {found.attempts} scenarios tried")
    return DIFFERENT


def _full(tables: dict[str, Any]) -> dict[str, Any]:
    return {"device": {}, "scheduler": {}, "request": [], **tables}


def _write(found: Shrunk, target: Path, test: Path) -> None:
    name = target.stem
    found.tables = {**found.tables, "name": name, "about": str(found.failure)[:200]}
    write_whole(target, scenario_toml(found.tables).encode())
    write_whole(test, pytest_text(name, found.failure.rule, target.name).encode())


def _as_json(found: Shrunk, target: Path) -> dict[str, Any]:
    requests, ticks = found.size
    return {
        "file": str(target),
        "rule": found.failure.rule,
        "kind": found.failure.kind,
        "message": found.failure.message,
        "requests": requests,
        "ticks": ticks,
        "attempts": found.attempts,
        "scenario": found.tables,
    }
