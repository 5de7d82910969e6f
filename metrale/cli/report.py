"""``metrale report``: one trace, or two, as an HTML page; one trace as a Chrome trace."""

from __future__ import annotations

import json
from pathlib import Path

import click

from metrale.cli.files import write_whole
from metrale.cli.traces import compare_files, read_log


@click.command(epilog="Example: metrale report golden/preempt_requeue.trace -o page.html")
@click.argument("trace", type=click.Path(path_type=Path))
@click.argument("other", type=click.Path(path_type=Path), required=False)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="The page (default: TRACE.html here)."
)
@click.option(
    "--perfetto", type=click.Path(path_type=Path), metavar="FILE", help="Also write TRACE in the Chrome trace format."
)
def report(trace: Path, other: Path | None, output: Path | None, perfetto: Path | None) -> int:
    """Write one self-contained HTML page on TRACE: slots, requests and free blocks by tick, and the calls of each tick.

    With a second trace the page shows both side by side. The page needs no network; open it in a browser. The Chrome
    trace opens in Perfetto; there a tick lasts one second.
    """
    from metrale.trace.report.html import diff_page, trace_page
    from metrale.trace.report.perfetto import chrome_trace

    if other is not None and perfetto is not None:
        raise click.UsageError("--perfetto takes one trace")
    page = diff_page(compare_files(trace, other)) if other is not None else trace_page(str(trace), read_log(trace))
    target = output or Path(f"{trace.name}.html")
    write_whole(target, page.encode())
    click.echo(str(target))
    if perfetto is not None:
        document = json.dumps(chrome_trace(str(trace), read_log(trace)), separators=(",", ":"))
        write_whole(perfetto, document.encode())
        click.echo(str(perfetto))
    click.echo(f"{len(page.encode()) // 1024 + 1} KiB of HTML; open {target} in a browser", err=True)
    return 0
