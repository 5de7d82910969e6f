"""``metrale lint``: is this a well-formed log, and does it keep the rules that every legal trace keeps?"""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import click

from metrale.cli.errors import BAD_INPUT, DIFFERENT, BadInput
from metrale.cli.files import print_json, unreadable
from metrale.cli.text import plain, quoted, say
from metrale.sim.invariants import Violation, check_lines
from metrale.sim.scenario import Scenario, ScenarioError, load_scenario
from metrale.trace import LintReport, TraceScan, lint_grammar
from metrale.trace.reader import open_source

LONGEST_LINE = 64 << 20
PIECE = 64 << 10


@dataclass(frozen=True, slots=True)
class Findings:
    """What is wrong with one file: its lines, and, if they can all be read, the invariants they break."""

    grammar: LintReport
    violations: tuple[Violation, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        ok = self.grammar.ok and not self.violations
        return {**self.grammar.to_dict(), "ok": ok, "violations": [found.to_dict() for found in self.violations]}

    def __str__(self) -> str:
        file = self.grammar.file
        named = [found.in_file(file) for found in self.grammar.problems]
        return "\n".join(map(plain, named + [f"{file}: {found}" for found in self.violations]))


@click.command(epilog="Example: metrale lint golden/plain_decode.trace")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, allow_dash=True))
@click.option("--grammar-only", is_flag=True, help="Read the lines; leave out the invariants.")
@click.option(
    "--scenario", type=click.Path(path_type=Path), help="Also check the invariants that need to know the scenario."
)
@click.option("--json", "as_json", is_flag=True, help="Write the findings as JSON.")
def lint(files: tuple[Path, ...], grammar_only: bool, scenario: Path | None, as_json: bool) -> int:
    """Read each of FILES as a trace (`-` is standard input) and name everything that is wrong with it.

    A malformed line is shown with its line, column and what was expected. A trace inside a copied web page is found.
    A well-formed trace is then held against the invariants, the rules that every legal trace keeps. Exit status 2 if
    a file is malformed, 1 if one breaks an invariant; line ends and the like are warnings.
    """
    if scenario is not None and grammar_only:
        raise click.UsageError("--scenario serves the invariants, which --grammar-only leaves out")
    try:
        known = None if scenario is None else load_scenario(scenario)
    except ScenarioError as error:
        raise BadInput(str(error)) from error
    found: list[Findings] = []
    errors: list[str] = []
    for path in files:
        try:
            found.append(_read(path, grammar_only, known))
        except OSError as error:
            errors.append(unreadable(path, "a trace", error))
    if as_json:
        print_json({"files": [findings.to_dict() for findings in found], "errors": errors})
    else:
        for text in filter(None, map(str, found)):
            click.echo(text)
    for text in errors:
        say(f"Error: {text}")
    return _summary(found, errors)


class BoundedLines:
    """The lines of a stream that may never end a line: cut at a NUL byte, refused beyond :data:`LONGEST_LINE`."""

    def __init__(self, stream: BinaryIO) -> None:
        self.name = str(stream.name)
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        number = 0
        while line := self._line(number := number + 1):
            yield line

    def _line(self, number: int) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while piece := self._stream.readline(PIECE):
            pieces.append(piece)
            size += len(piece)
            if piece.endswith(b"\n") or b"\0" in piece:
                break
            if size > LONGEST_LINE:
                raise OSError(errno.EFBIG, f"line {number} is longer than {LONGEST_LINE >> 20} MiB")
        return b"".join(pieces)


def _standard_input() -> BinaryIO:
    if sys.stdin is None:
        raise OSError(errno.EBADF, "standard input is closed")
    return sys.stdin.buffer


def _read(path: Path, grammar_only: bool, scenario: Scenario | None) -> Findings:
    """One pass over one file, in bounded memory. Raises OSError."""
    with open_source(_standard_input() if str(path) == "-" else path) as source:
        stream = BoundedLines(source)
        if grammar_only:
            return Findings(lint_grammar(stream))
        scan = TraceScan(stream)
        violations = check_lines(scan, scenario)
    report = LintReport(stream.name, scan.lines, scan.records, scan.malformed, tuple(scan.problems))
    return Findings(report, tuple(violations) if report.ok else ())


def _summary(found: list[Findings], errors: list[str]) -> int:
    malformed = sum(not findings.grammar.ok for findings in found) + len(errors)
    broken = sum(bool(findings.violations) for findings in found)
    lines = sum(findings.grammar.lines for findings in found)
    total = len(found) + len(errors)
    files = "1 file" if total == 1 else f"{total} files"
    if malformed:
        as_what = "a trace" if malformed == 1 else "traces"
        click.echo("next: correct what is named above, then metrale lint again", err=True)
        say(f"{malformed} of {files} cannot be used as {as_what}, {lines} lines read")
        return BAD_INPUT
    if broken:
        worst = next(findings.grammar.file for findings in found if findings.violations)
        say(f"next: metrale lint --json {quoted(worst)}")
        say(f"{broken} of {files} {'breaks' if broken == 1 else 'break'} invariants, {lines} lines read")
        return DIFFERENT
    say(f"{files}, {lines} lines, well-formed")
    return 0
