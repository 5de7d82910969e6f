"""The report for a terminal (rich), as plain text, and as the few lines that a failed test shows."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from ..align import Comparison, explain
from .outline import Line, Section, Style, outline, verdict

_STYLES: dict[Style, str] = {
    "plain": "",
    "same": "dim",
    "a": "red",
    "b": "green",
    "strong": "bold",
    "note": "dim",
}


def print_report(found: Comparison, console: Console) -> None:
    """The whole report, coloured where the console can show it; long lines are not broken."""
    for number, section in enumerate(outline(found)):
        if number:
            console.print()
            console.print(Text(section.title, style="bold underline"), soft_wrap=True)
        for line in section.lines:
            console.print(Text(line.text, style=_STYLES[line.style]), soft_wrap=True)


def plain_report(found: Comparison) -> str:
    """The whole report as text."""
    parts = []
    for number, section in enumerate(outline(found)):
        parts.append("\n".join(_plain(section, titled=number > 0)))
    return "\n\n".join(parts)


def _plain(section: Section, *, titled: bool) -> Iterator[str]:
    if titled:
        yield f"{section.title}:"
    yield from (line.text for line in section.lines)


def short_report(found: Comparison) -> str:
    """Verdict, first divergence and two sentences: at most a dozen lines."""
    sections = {section.title: section for section in outline(found)}
    lines = [Line(verdict(found)), *(Line(f"  {mark}") for mark in found.marks)]
    if "First divergence" in sections:
        lines += [Line(f"  {line.text}") for line in sections["First divergence"].lines]
        lines.append(Line(f"  {explain(found)}"))
    return "\n".join(line.text for line in lines)
