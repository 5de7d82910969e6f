"""What a command raises when it cannot do its work: one line for the user, and the exit status.

Exit status of every command: 0 as expected, 1 a difference or a violation, 2 bad input or usage.
"""

from __future__ import annotations

import click

from metrale.cli.text import plain

DIFFERENT = 1
BAD_INPUT = 2


class BadInput(click.ClickException):
    """Input that cannot be used: a single line that names the file, the place and the remedy (exit status 2)."""

    exit_code = BAD_INPUT

    def __init__(self, message: str) -> None:
        super().__init__(plain(message))
