"""The report as Markdown, for a comment on a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from ..align import Comparison
from .outline import Section, outline

_FOLDED = ("Before it", "State", "Causes and what follows from them", "What the clients saw")
"""Sections that a reader opens."""


def markdown_report(found: Comparison) -> str:
    """A headline, the divergence as a diff block, the rest to be unfolded."""
    return "\n\n".join(_section(section) for section in outline(found)) + "\n"


def _section(section: Section) -> str:
    texts = [_plain(line.text) for line in section.lines]
    if section.title == "Verdict":
        return "\n\n".join([f"### {texts[0]}", *(f"* {text}" for text in texts[1:])])
    body = _fenced("\n".join(_diff_lines(section))) if section.code else "\n\n".join(texts)
    if section.title in _FOLDED:
        return f"<details><summary>{section.title}</summary>\n\n{body}\n\n</details>"
    return f"**{section.title}**\n\n{body}"


def _diff_lines(section: Section) -> Iterator[str]:
    """Lines of one side with the sign that colours them."""
    for line in section.lines:
        sign = {"a": "-", "b": "+"}.get(line.style, " ")
        yield f"{sign} {line.text}"


def _fenced(text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}diff\n{text}\n{fence}"


def _plain(text: str) -> str:
    """Text whose special characters stand for themselves; what is in backquotes stays code."""
    parts = text.split("`")
    for i in range(0, len(parts), 2):
        for special in ("\\", "*", "_", "<", "[", "#", "|"):
            parts[i] = parts[i].replace(special, f"\\{special}")
    return "`".join(parts)
