"""``metrale report``: one trace, or two, as an HTML page; one trace as a Chrome trace."""

from __future__ import annotations

import json
from pathlib import Path

import click

from metrale.cli.errors import DIFFERENT
from metrale.cli.files import Outputs, write_whole
from metrale.cli.text import plain, quoted, say
from metrale.cli.traces import compare_logs, first_error, read_log


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
    trace opens in Perfetto; there a tick lasts one second. Exit status 1 if a trace is not complete or not well-formed;
    the page shows what could be read of it.
    """
    from metrale.trace.report.html import diff_page, trace_page
    from metrale.trace.report.perfetto import chrome_trace

    if other is not None and perfetto is not None:
        raise click.UsageError("--perfetto takes one trace")
    traces = [trace] if other is None else [trace, other]
    outputs = Outputs(*traces)
    target = outputs.claim(output or Path(f"{trace.name}.html"))
    if perfetto is not None:
        outputs.claim(perfetto)
    logs = [read_log(one) for one in traces]
    if other is None:
        page = trace_page(str(trace), logs[0]).encode()
    else:
        page = diff_page(compare_logs(trace, logs[0], other, logs[1])).encode()
    write_whole(target, page)
    click.echo(plain(str(target)))
    if perfetto is not None:
        write_whole(perfetto, json.dumps(chrome_trace(str(trace), logs[0]), separators=(",", ":")).encode())
        click.echo(plain(str(perfetto)))
    errors = [(one, error) for one, log in zip(traces, logs, strict=True) if (error := first_error(one, log))]
    for _, error in errors:
        say(error)
    for one, _ in errors[:1]:
        say(f"next: metrale lint {quoted(one)}")
    say(f"{len(page) // 1024 + 1} KiB of HTML; open {target} in a browser")
    return DIFFERENT if errors else 0
