"""Traces as the report commands take them: any log of which at least one line is of the trace language."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console, ConsoleRenderable, RenderHook
from rich.text import Text

from metrale.cli.errors import BadInput
from metrale.cli.files import read_input
from metrale.cli.text import plain, plain_lines, quoted
from metrale.trace import lint_grammar
from metrale.trace.align import Comparison, compare
from metrale.trace.align.side import Reading, load_side
from metrale.trace.problems import ERROR
from metrale.trace.report import print_report


def read_log(path: Path) -> bytes:
    """The bytes of a trace or of a damaged one. Raises BadInput for what is no trace at all."""
    data = read_input(path, "a trace")
    side = load_side(plain(str(path)), data, Reading())
    if all(record is None for record in side.records(0, len(side.texts))):
        raise BadInput(f"{path}: no line of the file belongs to a trace; `metrale lint {quoted(path)}` says more")
    return data


def compare_files(a: Path, b: Path) -> Comparison:
    """The comparison of two trace files. Raises BadInput."""
    return compare_logs(a, read_log(a), b, read_log(b))


def compare_logs(a: Path, data_a: bytes, b: Path, data_b: bytes) -> Comparison:
    """The comparison of two traces that were read."""
    return compare(data_a, data_b, (plain(str(a)), plain(str(b))))


def first_error(path: Path, data: bytes) -> str:
    """Why the bytes are no complete trace, in one line; empty if they are."""
    for found in lint_grammar(data).problems:
        if found.severity == ERROR:
            return found.in_file(str(path))
    return ""


class _Plain(RenderHook):
    """Lines of a trace are shown, never obeyed."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [self._plain(one) if isinstance(one, Text) else one for one in renderables]

    def _plain(self, text: Text) -> Text:
        safe = plain_lines(text.plain)
        if safe == text.plain:
            return text
        return Text(safe, style=text.style, end=text.end, no_wrap=text.no_wrap, overflow=text.overflow)


def show_report(found: Comparison) -> None:
    """The whole report on standard output."""
    console = Console(highlight=False)
    console.push_render_hook(_Plain())
    print_report(found, console)
