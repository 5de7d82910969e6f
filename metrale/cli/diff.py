"""``metrale diff``: where two traces part."""

from __future__ import annotations

from pathlib import Path

import click

from metrale.cli.files import print_json, read_input
from metrale.cli.goldens import named
from metrale.trace import diff_traces


@click.command(epilog="Example: metrale diff golden/plain_decode.trace golden/plain_decode.trace.pending")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Write the difference as JSON.")
def diff(a: Path, b: Path, as_json: bool) -> int:
    """Show the first difference between the traces A and B: its tick, the arguments that differ, the lines before.

    Differences in bytes alone (line ends, a byte order mark, blanks) are named. Exit status 1 if the files differ.
    """
    left, right = (named(read_input(path, "a trace"), str(path)) for path in (a, b))
    found = diff_traces(left, right)
    if as_json:
        print_json(found.to_dict())
    else:
        click.echo(str(found))
    if not found.equal:
        click.echo(f"{found.summary}\nnext: metrale lint {a} {b}", err=True)
    return found.exit_status
