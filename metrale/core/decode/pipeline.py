"""The plain lane one step ahead of the host (S5 section 11)."""

from __future__ import annotations

from dataclasses import dataclass

from ..state import State


@dataclass(slots=True)
class Flight:
    """One launched step that is not settled yet."""

    ticket: int


def pipelined_step(s: State) -> None:
    raise NotImplementedError


def drain_flight(s: State) -> None:
    if s.flight is not None:
        raise NotImplementedError
