"""The plain decode step: launched, awaited and committed within one tick (S1 section 14)."""

from __future__ import annotations

from operator import attrgetter

from ..io import StepError
from ..state import State
from .commit import commit_rows
from .launch import fail_step, launch_decode

slot_of = attrgetter("seq.slot")
"""Sort key of a batch."""


def plain_step(s: State) -> None:
    """One token for every active row."""
    if len(s.active) > 1:
        s.active.sort(key=slot_of)
    ticket = launch_decode(s, masked=False)
    if ticket is None:
        return
    try:
        result = s.router.await_result(ticket)
    except StepError as error:
        fail_step(s, error)
        return
    commit_rows(s, s.active, result)
