"""``metrale explain``: the cause of a difference in two sentences."""

from __future__ import annotations

from pathlib import Path

import click

from metrale.cli.errors import DIFFERENT
from metrale.cli.files import print_json
from metrale.cli.text import plain, quoted, say
from metrale.cli.traces import compare_files
from metrale.trace.align import explain as explain_comparison
from metrale.trace.report import verdict


@click.command(epilog="Example: metrale explain golden/plain_decode.trace golden/plain_decode.trace.pending")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Write the sentences as JSON.")
def explain(a: Path, b: Path, as_json: bool) -> int:
    """Say in two sentences how the traces A and B part and what follows from it.

    Exit status 1 if the files differ.
    """
    found = compare_files(a, b)
    told = explain_comparison(found)
    if as_json:
        print_json({"equal": found.equal, "what": told.what, "then": told.then, "unexplained": found.unexplained})
    else:
        click.echo(plain(str(told)))
    if found.equal:
        return 0
    say(f"next: metrale diff {quoted(a)} {quoted(b)}")
    say(verdict(found))
    return DIFFERENT
