"""Substitution at the pick: forced runs (conformance) replace what the model would say, never what it computes."""

from __future__ import annotations

from typing import Protocol

from metrale.core.request import Request
from metrale.core.sequence import Sequence


class Picks(Protocol):
    """Scripted answers. Positions count from 0; a pick belongs to the row whose input stands at ``position``."""

    def after(self, seq: Sequence, position: int) -> int:
        """The pick of a forward whose last input stands at ``position``."""

    def verify(self, seq: Sequence, tokens: list[int]) -> list[int]:
        """The picks of verify rows, asked before they are fed."""

    def drafts(self, seq: Sequence, pos: int, count: int) -> list[int]:
        """The drafts for positions ``pos + 1`` on."""

    def beam(self, request: Request) -> list[int]:
        """The hypothesis of a beam request."""
