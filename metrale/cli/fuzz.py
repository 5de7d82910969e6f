"""``metrale fuzz``: look for schedules that nobody thought of."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from metrale.cli.errors import DIFFERENT
from metrale.cli.files import Outputs, make_folder, print_json, write_whole
from metrale.cli.seconds import Seconds
from metrale.cli.text import plain, quoted, say
from metrale.sim.fuzz.coverage import Coverage
from metrale.sim.fuzz.hunt import SeedReport, hunt_in_parallel
from metrale.sim.fuzz.toml_text import scenario_toml

DEFAULT_SEEDS = 1000
SHOWN = 10


class SeedRange(click.ParamType):  # type: ignore[type-arg]
    """``A..B``, both included, or one seed."""

    name = "A..B"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Read the range; usage error with an example if it is none."""
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(\d{1,18})(?:\.\.(\d{1,18}))?", str(value))
        if match is None:
            self.fail(f"{value!r} is no range of seeds; write 0..999, or one seed", param, ctx)
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            self.fail(f"{value!r} ends before it begins; write {last}..{first}", param, ctx)
        return first, last


@click.command(epilog="Example: metrale fuzz --seconds 60 --jobs 2 --save found/")
@click.option("--seconds", type=Seconds(), help="Hunt for so long (default: until the seeds are tried).")
@click.option(
    "--seeds", type=SeedRange(), help=f"Try these seeds (default: 0..{DEFAULT_SEEDS - 1}, or on without end)."
)
@click.option("--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Hunt in so many processes.")
@click.option("--save", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Write the scenario of each failing seed to DIR.")  # fmt: skip
@click.option("--keep-going", is_flag=True, help="Go on after the first failing batch of seeds.")
@click.option("--json", "as_json", is_flag=True, help="Write findings and coverage as JSON.")
def fuzz(
    seconds: float | None, seeds: tuple[int, int] | None, jobs: int, save: Path | None, keep_going: bool, as_json: bool
) -> int:
    """Draw scenarios from seeds, run them, and check everything that is known about them.

    Each seed gives one scenario: any lane, policy and router, with faults, cancels and deadlines. Its trace must keep
    every invariant, what arrives after the last fault must be served, and a relative of it (alone, another pool, lane,
    router, ...) must give its clients the same streams. A failing seed is shown with the line that replays it. Exit
    status 1 if any seed fails.
    """
    first, last = seeds if seeds is not None else (0, None if seconds is not None else DEFAULT_SEEDS - 1)
    coverage, failing, tried = Coverage(), [], 0
    if save is not None:
        make_folder(save)
    started = time.monotonic()
    console = Console(stderr=True)
    with console.status("hunting") as status:
        for count, reports in hunt_in_parallel(first, last, jobs, seconds, coverage):
            tried += count
            failing += reports
            status.update(f"hunting: {tried} seeds, {len(failing)} failing")
            if failing and not keep_going:
                break
    if save is not None:
        _save(failing, save)
    if as_json:
        print_json({"seeds": tried, "failing": [_as_json(one) for one in failing], "coverage": coverage.to_dict()})
    else:
        _show(failing)
        for line in coverage.summary():
            click.echo(line)
    return _close(tried, failing, time.monotonic() - started, save)


def _show(failing: list[SeedReport]) -> None:
    for report in failing[:SHOWN]:
        click.echo(plain(f"seed {report.seed} ({report.tables['about']}): {report.failures[0]}"))
        click.echo(f"  replay: {report.replay}")
    if len(failing) > SHOWN:
        click.echo(f"{len(failing) - SHOWN} more failing seeds are not shown; --json lists them")


def _save(failing: list[SeedReport], folder: Path) -> None:
    outputs = Outputs()
    for report in failing:
        tables = {**report.tables, "about": f"seed {report.seed}: {report.failures[0]}"[:200]}
        write_whole(outputs.claim(folder / f"{report.tables['name']}.toml", own=True), scenario_toml(tables).encode())


def _as_json(report: SeedReport) -> dict[str, Any]:
    found = [{"rule": one.rule, "kind": one.kind, "message": one.message} for one in report.failures]
    return {"seed": report.seed, "replay": report.replay, "failures": found, "scenario": report.tables}


def _close(tried: int, failing: list[SeedReport], seconds: float, save: Path | None) -> int:
    if not failing:
        say(f"{tried} seeds, none fails, {seconds:.1f} s")
        return 0
    if save is not None:
        say(f"next: metrale shrink {quoted(save / (failing[0].tables['name'] + '.toml'))}")
    else:
        say(f"next: {failing[0].replay} --save found, then metrale shrink what it saves")
    what = "1 fails" if len(failing) == 1 else f"{len(failing)} fail"
    say(f"{tried} seeds, {what}, {seconds:.1f} s")
    return DIFFERENT
