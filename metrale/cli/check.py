"""``metrale check``: did any behaviour change?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from metrale.cli.errors import BAD_INPUT, DIFFERENT, BadInput
from metrale.cli.files import Outputs, in_ci, print_json, write_whole
from metrale.cli.goldens import MEANING, SUITE, Outcome, Verdict, check_pairs, find_pairs
from metrale.cli.text import plain, plain_lines, quoted, say

DIFFS_SHOWN = 3
PIPE_WIDTH = 120


@click.command(epilog="Example: metrale check golden/plain_decode.toml")
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Write the outcomes as JSON.")
@click.option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Also write the outcomes as JUnit XML.")
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Also write them as one HTML page.")
@click.option("-v", "--verbose", is_flag=True, help="List the scenarios that passed as well.")
def check(paths: tuple[Path, ...], as_json: bool, junit: Path | None, report: Path | None, verbose: bool) -> int:
    """Run scenarios and compare each trace, byte for byte, with the golden beside it.

    PATH is a scenario, a trace or a folder (default: golden/). A different trace is left in NAME.trace.pending; a
    golden is never overwritten, and with CI set nothing is written at all. Exit status 1 if anything differs or is
    missing, 2 if a file cannot be used.
    """
    if not paths and not SUITE.is_dir():
        raise BadInput(f"{SUITE}: no such folder here; name the scenarios or folders to check")
    pairs = find_pairs(list(paths) or [SUITE])
    outputs = Outputs(*(file for pair in pairs for file in (pair.scenario, pair.golden, pair.pending)))
    for file in filter(None, (junit, report)):
        outputs.claim(file)
    outcomes = list(_watched(check_pairs(pairs, leave_pending=not in_ci()), len(pairs)))
    if junit is not None:
        from metrale.cli.junit import junit_xml

        write_whole(junit, junit_xml(outcomes))
    if report is not None:
        from metrale.cli.check_report import report_page

        write_whole(report, report_page(outcomes, list(_closing(outcomes))[-1]))
    if as_json:
        print_json(_as_json(outcomes))
    else:
        _show(outcomes, verbose)
    for line in _closing(outcomes):
        say(line)
    return _status(outcomes)


def _watched(outcomes: Iterator[Outcome], total: int) -> Iterator[Outcome]:
    """Pass the outcomes on; on a terminal, show how far the check is."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield from outcomes
        return
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("checking", total=total)
        for outcome in outcomes:
            progress.update(task, advance=1, description=escape(plain(outcome.pair.name)))
            yield outcome


# -- what the user sees -----------------------------------------------------------------------------------------------


def _show(outcomes: Sequence[Outcome], verbose: bool) -> None:
    console = Console(highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPE_WIDTH)
    listed = [outcome for outcome in outcomes if verbose or outcome.verdict is not Verdict.PASSED]
    if listed:
        console.print(_list(listed))
    console.print(_totals(outcomes))
    diffs = [outcome for outcome in outcomes if outcome.diff is not None]
    for outcome in diffs[:DIFFS_SHOWN]:
        click.echo(f"\n{plain(str(outcome.pair.golden))}: {outcome.verdict.value}\n{plain_lines(str(outcome.diff))}")
    if len(diffs) > DIFFS_SHOWN:
        click.echo(f"\n{len(diffs) - DIFFS_SHOWN} more differences are not shown; `metrale check PATH` shows one")


def _list(outcomes: Iterable[Outcome]) -> Table:
    table = Table("scenario", "verdict", "ticks", "lines", "what")
    for outcome in outcomes:
        size = ("", "") if not outcome.lines else (str(outcome.ticks), str(outcome.lines))
        table.add_row(Text(plain(str(outcome.pair.stem))), outcome.verdict.value, *size, Text(plain(outcome.message)))
    for column in table.columns[2:4]:
        column.justify = "right"
    return table


def _totals(outcomes: Iterable[Outcome]) -> Table:
    """One row per folder, one column per verdict that occurs."""
    folders: dict[str, Counter[Verdict]] = {}
    for outcome in outcomes:
        folders.setdefault(str(outcome.pair.stem.parent), Counter())[outcome.verdict] += 1
    seen = [v for v in Verdict if v is Verdict.PASSED or any(counts[v] for counts in folders.values())]
    table = Table("folder", "scenarios", *(verdict.value for verdict in seen))
    for column in table.columns[1:]:
        column.justify = "right"
    for folder, counts in folders.items():
        table.add_row(Text(plain(folder)), str(counts.total()), *(str(counts[verdict]) for verdict in seen))
    return table


def _closing(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """What to run next for the first failure, and the summary line."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    failed = [outcome for outcome in outcomes if outcome.verdict is not Verdict.PASSED]
    if failed:
        yield from _next(next((outcome for outcome in failed if outcome.pending or outcome.unwritten), failed[0]))
    found = [f"{counts[verdict]} {verdict.value} ({MEANING[verdict]})" for verdict in Verdict if counts[verdict]]
    yield f"{len(outcomes)} checked: {', '.join(found)}"


def _next(outcome: Outcome) -> Iterator[str]:
    pair = outcome.pair
    scenario = quoted(pair.scenario)
    if outcome.pending:
        yield f"next: metrale diff {quoted(pair.golden)} {quoted(pair.pending)}"
        yield f"      metrale accept {scenario}    if the new behaviour is right"
    elif outcome.unwritten:
        yield outcome.unwritten
        yield f"next: metrale check {scenario}    where the pending trace can be written"
    elif outcome.diff is not None:
        yield f"next: metrale check {scenario}    where CI is not set, to look at it and to accept it"
    elif outcome.verdict is Verdict.MISSING:
        yield f"next: metrale accept {scenario}    once you have read what metrale run {scenario} shows"
    elif outcome.verdict is Verdict.ORPHAN:
        yield f"next: bring {pair.scenario} back, or remove {pair.golden}; then metrale check"
    else:
        yield f"next: metrale run {scenario}"


def _as_json(outcomes: Sequence[Outcome]) -> dict[str, object]:
    counts = Counter(outcome.verdict for outcome in outcomes)
    return {
        "ok": _status(outcomes) == 0,
        "checked": len(outcomes),
        "counts": {verdict.value: counts[verdict] for verdict in Verdict},
        "outcomes": [outcome.to_dict() for outcome in outcomes],
    }


def _status(outcomes: Sequence[Outcome]) -> int:
    verdicts = {outcome.verdict for outcome in outcomes}
    if Verdict.INVALID in verdicts:
        return BAD_INPUT
    return 0 if verdicts == {Verdict.PASSED} else DIFFERENT
