"""``metrale accept``: the one way in which a golden changes."""

from __future__ import annotations

from pathlib import Path

import click

from metrale.cli.errors import BadInput
from metrale.cli.files import in_ci, print_json
from metrale.cli.goldens import SUITE, Pair, accept_pending, find_pairs, record
from metrale.cli.text import plain, quoted, say


@click.command(epilog="Example: metrale accept plain_decode")
@click.argument("names", nargs=-1, metavar="[NAME|PATH]...", type=click.Path(path_type=Path))
@click.option(
    "--all", "everything", is_flag=True, help="Accept every pending trace below golden/ or the given folders."
)
@click.option("--cause", metavar="CAUSE", help="Accept the pending traces of one cause (`metrale pending` lists them).")
@click.option("--why", metavar="TEXT", help="The reason, noted in CHANGES.md beside the goldens; needs --cause.")
@click.option("--json", "as_json", is_flag=True, help="Write what was accepted as JSON.")
def accept(names: tuple[Path, ...], everything: bool, cause: str | None, why: str | None, as_json: bool) -> int:
    """Make the pending traces that `metrale check` left the new goldens.

    NAME is a scenario of golden/; PATH is a file of a pair or a folder. A scenario named here that has no golden yet
    is run and its trace becomes the golden. Refused in CI (CI set to anything but 0, false, no or off).
    """
    if in_ci():
        raise BadInput(
            "accept: CI is set, and in CI nothing writes a golden; accept on your machine and commit the file"
        )
    if cause is not None or why is not None:
        return _accept_cause(names, cause, why, as_json)
    if not names and not everything:
        raise click.UsageError("name what to accept, or --all for every pending trace; `metrale check` lists them")
    accepted, recorded = _choose(list(names) or [SUITE], everything)
    for pair in accepted:
        accept_pending(pair)
    for pair in recorded:
        record(pair)
    if as_json:
        print_json({"accepted": [str(pair.golden) for pair in accepted], "recorded": [str(p.golden) for p in recorded]})
    else:
        for pair in (*accepted, *recorded):
            click.echo(plain(str(pair.golden)))
    say(_summary(accepted, recorded))
    return 0


def _accept_cause(names: tuple[Path, ...], cause: str | None, why: str | None, as_json: bool) -> int:
    from metrale.cli.reviewing import accept_group, find_group

    if cause is None or why is None:
        raise click.UsageError("--cause CAUSE and --why TEXT go together")
    group = find_group(list(names) or [SUITE], cause)
    accept_group(group, why)
    pairs = [member.pair for member in group.members]
    if as_json:
        print_json({"accepted": [str(pair.golden) for pair in pairs], "recorded": []})
    else:
        for pair in pairs:
            click.echo(plain(str(pair.golden)))
    say(_summary(pairs, []))
    return 0


def _choose(paths: list[Path], everything: bool) -> tuple[list[Pair], list[Pair]]:
    """Pairs with a pending trace, and named pairs without a golden. Raises BadInput before anything is written."""
    accepted: list[Pair] = []
    recorded: list[Pair] = []
    for path in paths:
        folder = path.is_dir()
        for pair in find_pairs([path]):
            if pair.pending.exists():
                if not pair.scenario.exists():
                    raise BadInput(f"{pair.pending}: belongs to no scenario; {pair.scenario} is missing")
                accepted.append(pair)
            elif folder or everything:
                continue
            elif pair.golden.exists():
                check = f"metrale check {quoted(pair.scenario)}"
                raise BadInput(f"{pair.stem}: nothing is pending; `{check}` compares it first")
            else:
                recorded.append(pair)
    return accepted, recorded


def _summary(accepted: list[Pair], recorded: list[Pair]) -> str:
    if not accepted and not recorded:
        return "nothing is pending"
    parts = [f"{len(accepted)} accepted"] if accepted else []
    parts += [f"{len(recorded)} recorded"] if recorded else []
    return f"{', '.join(parts)}; next: git diff, then commit"
