"""``metrale mutants``: does anything notice a planted fault?"""

from __future__ import annotations

import time
from pathlib import Path

import click
from rich.console import Console

from metrale.cli.errors import DIFFERENT, BadInput
from metrale.cli.files import Outputs, print_json, write_whole
from metrale.cli.seconds import Seconds
from metrale.cli.text import say
from metrale.sim.mutants.measure import Noticed, document, markdown, measure
from metrale.sim.mutants.plant import PlantError
from metrale.sim.mutants.table import MUTANTS

GOAL = 0.95


@click.command("mutants", epilog="Example: metrale mutants --only leaked-block")
@click.option("--only", multiple=True, type=click.Choice([one.name for one in MUTANTS]), metavar="NAME",
              help="Plant this fault only; may be repeated.")  # fmt: skip
@click.option("--seconds", type=Seconds(), default=10.0, show_default=True,
              help="Hunt for each fault so long.")  # fmt: skip
@click.option("--golden", type=click.Path(path_type=Path), default=Path("golden"), show_default=True,
              help="The folder of scenarios and their traces.")  # fmt: skip
@click.option("--no-shrink", is_flag=True, help="Leave out the smallest scenario of each fault.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the table to this file as Markdown.")
@click.option("--json", "as_json", is_flag=True, help="Write the table as JSON.")
def mutants_command(
    only: tuple[str, ...], seconds: float, golden: Path, no_shrink: bool, output: Path | None, as_json: bool
) -> int:
    """Plant each fault of a table in the core or the mock, in memory, and say who notices it.

    For each fault: the goldens whose trace changes, the invariants that their changed traces break, how long a hunt
    takes to find it, and the smallest scenario that shows it. Exit status 1 if a hunt finds fewer than 95 %.
    """
    if output is not None:
        Outputs(golden).claim(output)
    chosen = [one for one in MUTANTS if not only or one.name in only]
    rows: list[Noticed] = []
    started = time.monotonic()
    try:
        with Console(stderr=True).status("planting") as status:
            for mutant in chosen:
                status.update(f"{len(rows)} of {len(chosen)}: {mutant.name}")
                rows.append(measure(mutant, golden, seconds, small=not no_shrink))
    except PlantError as error:
        raise BadInput(f"{error}; the table metrale/sim/mutants/ must follow the code") from error
    if output is not None:
        write_whole(output, document(rows).encode())
    if as_json:
        print_json({"mutants": [row.to_dict() for row in rows]})
    elif output is None:
        click.echo(markdown(rows), nl=False)
    return _close(rows, time.monotonic() - started)


def _close(rows: list[Noticed], seconds: float) -> int:
    found = sum(row.rule is not None for row in rows)
    times = sorted(row.seconds for row in rows if row.rule is not None)
    median = times[len(times) // 2] if times else 0.0
    summary = f"{found} of {len(rows)} planted faults found, median {median:.1f} s of hunting, {seconds:.0f} s in all"
    if found < GOAL * len(rows):
        missed = next(row.mutant.name for row in rows if row.rule is None)
        say(f"next: metrale mutants --only {missed} --seconds 60")
        say(summary)
        return DIFFERENT
    say(summary)
    return 0
