"""Text for people: nothing in a file or a name reaches a terminal as a command; a suggested line can be pasted."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import click

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_UNSAFE_IN_LINES = re.compile("(?![\n\t])" + _UNSAFE.pattern)


def plain(text: str) -> str:
    """One line: control characters, line separators, changes of direction and stray bytes as escapes."""
    return _UNSAFE.sub(_escape, text)


def plain_lines(text: str) -> str:
    """The same for text of several lines, which keeps its line ends and tabs."""
    return _UNSAFE_IN_LINES.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]


def quoted(path: Path | str) -> str:
    """A path as a word of a shell command; never an option."""
    text = str(path)
    if text.startswith("-"):
        text = f"./{text}"
    if _UNSAFE.search(text):
        return f"$'{''.join(map(_quoted_byte, os.fsencode(text)))}'"
    return shlex.quote(text)


def _quoted_byte(byte: int) -> str:
    return chr(byte) if 32 <= byte < 127 and byte not in b"\\'" else f"\\x{byte:02x}"


def say(line: str) -> None:
    """One line on standard error: a summary, a warning or what to do next."""
    click.echo(plain(line), err=True)
