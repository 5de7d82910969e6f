"""``metrale pending``: what waits for a decision, by cause; the twin of the keys of ``metrale review``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from metrale.cli.errors import BadInput
from metrale.cli.files import print_json
from metrale.cli.goldens import SUITE
from metrale.cli.reviewing import Group, find_group, group_pending, loose_ends, names, reject_group
from metrale.cli.text import plain, plain_lines, say
from metrale.trace.align import explain
from metrale.trace.report import plain_report


@click.command(epilog="Example: metrale pending --json")
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Write the causes and their pending traces as JSON.")
@click.option("--show", metavar="CAUSE", help="Write the whole report on every pending trace of one cause.")
@click.option("--reject", metavar="CAUSE", help="Remove the pending traces of one cause; the goldens stay.")
def pending(paths: tuple[Path, ...], as_json: bool, show: str | None, reject: str | None) -> int:
    """List the pending traces below golden/ (or PATH), grouped by cause.

    `metrale accept --cause CAUSE --why TEXT` makes those of one cause the new goldens.
    """
    where = suite(paths)
    if show is not None and reject is not None:
        raise click.UsageError("--show and --reject exclude each other")
    if reject is not None:
        group = find_group(where, reject)
        reject_group(group)
        say(f"{len(group.members)} rejected: {names(group.members)}")
        return 0
    if show is not None:
        click.echo(plain_lines("\n\n".join(plain_report(member.found) for member in find_group(where, show).members)))
        return 0
    groups = group_pending(where)
    loose = loose_ends(where)
    if as_json:
        print_json({"causes": [group.to_dict() for group in groups], "loose_ends": loose})
    else:
        _show(groups, loose)
    say(summary(groups))
    return 0


def suite(paths: Sequence[Path]) -> list[Path]:
    """Where to look. Raises BadInput."""
    if not paths and not SUITE.is_dir():
        raise BadInput(f"{SUITE}: no such folder here; name the scenarios or folders to look at")
    return list(paths) or [SUITE]


def _show(groups: Sequence[Group], loose: Sequence[str]) -> None:
    for group in groups:
        click.echo(plain(f"{group.id}  {group.headline}"))
        for member in group.members:
            click.echo(plain(f"    {member.pair.golden}: {explain(member.found)}"))
    for line in loose:
        click.echo(plain(line))


def summary(groups: Sequence[Group]) -> str:
    """The last line."""
    if not groups:
        return "nothing is pending"
    traces = sum(len(group.members) for group in groups)
    causes = "1 cause" if len(groups) == 1 else f"{len(groups)} causes"
    return f"{traces} pending, {causes}; next: metrale review, or metrale accept --cause {groups[0].id} --why TEXT"
