"""``metrale review``: walk the pending traces, cause by cause, with single keys."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import click

from metrale.cli.errors import BadInput
from metrale.cli.pending import suite
from metrale.cli.reviewing import Group, accept_group, group_pending, loose_ends, names, refuse_in_ci, reject_group
from metrale.cli.text import plain, say
from metrale.cli.traces import show_report
from metrale.trace.align import explain

KEYS = {"a": "accept", "r": "reject", "s": "skip", "d": "show", "q": "quit"}


@click.command(epilog="Example: metrale review golden")
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path(path_type=Path))
def review(paths: tuple[Path, ...]) -> int:
    """Decide about the traces that `metrale check` left pending, one cause at a time.

    Keys: a accepts all of a cause and asks for the reason, which is noted in CHANGES.md beside the goldens; r removes
    the pending traces; s skips; d shows the difference (again: the next one); q quits. Without a terminal use
    `metrale pending` and `metrale accept --cause CAUSE --why TEXT`. Refused in CI.
    """
    refuse_in_ci("review")
    where = suite(paths)
    groups = group_pending(where)
    if groups and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadInput(
            "review: needs a terminal; `metrale pending --json` lists the causes, "
            "`metrale accept --cause CAUSE --why TEXT` and `metrale pending --reject CAUSE` decide"
        )
    done: Counter[str] = Counter()
    for number, group in enumerate(groups, 1):
        decision = _decide(group, f"[{number}/{len(groups)}]")
        if decision == "quit":
            break
        done[decision] += len(group.members)
    for line in loose_ends(where):
        click.echo(plain(line))
    left = sum(len(group.members) for group in groups) - done["accept"] - done["reject"]
    say(f"{done['accept']} accepted, {done['reject']} rejected, {left} still pending")
    return 0


def _decide(group: Group, place: str) -> str:
    """Ask until one of accept, reject, skip and quit is chosen, and do it."""
    count = len(group.members)
    click.echo(f"\n{place} {plain(group.headline)}")
    click.echo(plain(f"{count} golden{'' if count == 1 else 's'}: {names(group.members)}"))
    click.echo(plain(str(explain(group.members[0].found))))
    shown = 0
    while True:
        click.echo("  ".join(f"{key} {word}" for key, word in KEYS.items()) + "  ? ", nl=False)
        decision = KEYS.get(click.getchar().lower(), "")
        click.echo(decision or "one of " + ", ".join(KEYS))
        if decision == "show":
            show_report(group.members[shown % count].found)
            shown += 1
        elif decision == "accept":
            why = click.prompt("why is it right", default="", show_default=False)
            if why.strip():
                accept_group(group, why)
                return decision
            click.echo("not accepted: a reason is needed")
        elif decision == "reject":
            reject_group(group)
            return decision
        elif decision:
            return decision
