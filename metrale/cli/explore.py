"""``metrale explore``: every schedule of a small world."""

from __future__ import annotations

import time
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from metrale.cli.errors import DIFFERENT
from metrale.cli.files import Outputs, make_folder, print_json, write_whole
from metrale.cli.text import plain, say
from metrale.sim.explore import WORLDS, Explored, explore
from metrale.sim.fuzz.toml_text import scenario_toml


@click.command("explore", epilog="Example: metrale explore --world spill")
@click.option("--world", "names", multiple=True, type=click.Choice([world.name for world in WORLDS]),
              help="Explore this world only; may be repeated.")  # fmt: skip
@click.option("--save", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Write each failing scenario to DIR.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Write the counts as JSON.")
def explore_command(names: tuple[str, ...], save: Path | None, as_json: bool) -> int:
    """Visit every state that 3 requests, 6 blocks, 8 ticks and one fault can reach, and judge the trace of every step.

    In each tick every set of the requests still to come may arrive, and the one fault (a dry pool, a cancel, a
    deadline) may strike. States that the core cannot tell apart are visited once. A world is closed when no choice is
    left that was not taken. Exit status 1 if a trace breaks a rule or a world is not closed.
    """
    if save is not None:
        make_folder(save)
    started = time.monotonic()
    chosen = [world for world in WORLDS if not names or world.name in names]
    found: list[Explored] = []
    with Console(stderr=True).status("exploring") as status:
        for number, world in enumerate(chosen, 1):
            place = f"exploring {world.name}, world {number} of {len(chosen)}"
            found.append(explore(world, lambda one, p=place: status.update(f"{p}: {one.states} states")))
    if save is not None:
        outputs = Outputs()
        for one in found:
            for tables, _ in one.failures:
                file = outputs.claim(save / f"{tables['name'][:80]}.toml", own=True)
                write_whole(file, scenario_toml(tables).encode())
    if as_json:
        print_json({"worlds": [one.to_dict() for one in found]})
    else:
        _show(found)
    return _close(found, time.monotonic() - started)


def _show(found: list[Explored]) -> None:
    table = Table("world", "states", "choices taken", "led to a known state", "left", "closed")
    for one in found:
        cells = (one.states, one.edges, one.merged, one.unvisited)
        table.add_row(one.world, *map(str, cells), "yes" if one.closed else "no")
    Console(width=100, highlight=False).print(table)
    for one in found:
        for tables, failure in one.failures:
            click.echo(plain(f"{one.world}, {tables['name']}: {failure}"))


def _close(found: list[Explored], seconds: float) -> int:
    failing = sum(len(one.failures) for one in found)
    states = sum(one.states for one in found)
    edges = sum(one.edges for one in found)
    counts = f"{states} states, {edges} choices, {seconds:.1f} s"
    if failing or not all(one.closed for one in found):
        click.echo("next: metrale explore --save found, then metrale shrink what it saves", err=True)
        say(f"{counts}: {failing} schedules break a rule")
        return DIFFERENT
    say(f"{counts}: closed, no schedule breaks a rule")
    return 0
