"""``metrale diff``: where two traces part, why, and what follows from it."""

from __future__ import annotations

from pathlib import Path

import click

from metrale.cli.errors import DIFFERENT
from metrale.cli.files import Outputs, print_json, write_whole
from metrale.cli.text import plain_lines, quoted, say
from metrale.cli.traces import compare_files, show_report
from metrale.trace.report import comparison_document, markdown_report, verdict


@click.command(epilog="Example: metrale diff golden/plain_decode.trace golden/plain_decode.trace.pending")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Write the comparison as JSON (docs/diff-json.md).")
@click.option("--markdown", is_flag=True, help="Write it as Markdown, for a pull request.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Also write it as one HTML page.")
def diff(a: Path, b: Path, as_json: bool, markdown: bool, html: Path | None) -> int:
    """Align the traces A and B and show their first divergence, the state before it, causes and what follows.

    Lines are matched by content, tick and sequence; what follows from an earlier difference (renumbered ticks, shifted
    lengths, other slots) is folded. Differences in bytes alone (line ends, a byte order mark, blanks) are named. Exit
    status 1 if the files differ.
    """
    if as_json and markdown:
        raise click.UsageError("--json and --markdown exclude each other")
    if html is not None:
        Outputs(a, b).claim(html)
    found = compare_files(a, b)
    if html is not None:
        from metrale.trace.report.html import diff_page

        write_whole(html, diff_page(found).encode())
    if as_json:
        print_json(comparison_document(found))
    elif markdown:
        click.echo(plain_lines(markdown_report(found)), nl=False)
    else:
        show_report(found)
    if found.equal:
        return 0
    other = f"lint {quoted(b)}" if found.bytes_only else f"diff --html diff.html {quoted(a)} {quoted(b)}"
    say(f"next: metrale {other}")
    say(verdict(found))
    return DIFFERENT
