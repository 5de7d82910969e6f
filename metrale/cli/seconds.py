"""A time limit on the command line."""

from __future__ import annotations

import math
from typing import Any

import click

LONGEST = 31_536_000.0


class Seconds(click.FloatRange):
    """Seconds from a tenth to a year; not a number is none."""

    def __init__(self) -> None:
        super().__init__(min=0.1, max=LONGEST)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the number; usage error if it is out of range."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return seconds
