"""The plain lane one step ahead of the host (S5 section 11).

A step stays in flight over the end of its tick. The next tick launches its successor, whose inputs the device takes
from its own picks, before the host reads the first one; what the host then finds changed is an over-run and discarded.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto

from ..io import DecodeFed, DeviceLost, EffectFailed, HostLogits, StepError, Ticket
from ..retire import fail_all
from ..row import Row
from ..sequence import RowMask
from ..state import State
from .commit import commit_rows
from .launch import context_commit, fail_step, launch_decode
from .plain import slot_of
from .readback import argmax_eligible, row_mask


class Settled(Enum):
    """How settling the step in flight went. ``REDO``: nothing was committed, the step must be launched afresh."""

    IDLE = auto()
    DONE = auto()
    FAILED = auto()
    REDO = auto()


@dataclass(slots=True)
class Flight:
    """One launched, unsettled step. ``positions`` are (sequence slot, position that the step writes) per row.

    ``fed``: its inputs came from the device. ``discard`` marks over-run rows, ``discard_all`` a step whose masks no
    longer hold, ``host_logits`` one that the host must pick (S5 section 11.6).
    """

    ticket: Ticket
    positions: list[tuple[int, int]]
    masks: list[RowMask]
    fed: bool = False
    discard: list[bool] = field(default_factory=list)
    discard_all: bool = False
    host_logits: bool = False


def pipelined_step(s: State) -> None:
    """One execution of the lane (S5 section 11.3)."""
    if len(s.active) > 1:
        s.active.sort(key=slot_of)
    if s.flight is not None:
        ahead_step = _launch_ahead(s, s.flight) if _may_go_ahead(s, s.flight) else None
        if _settle(s, ahead_step) is not Settled.REDO:
            return
    ahead = ahead_allowed(s)
    ticket = launch_decode(s, masked=ahead)
    if ticket is None:
        return
    hold = ahead and ahead_allowed(s) and not s.parked
    s.flight = Flight(
        ticket,
        [(row.seq.slot, row.seq.seq_len - 1) for row in s.active],
        [row_mask(row, s.config) for row in s.active],
    )
    for row in s.active:
        row.in_flight = True
    if not hold:
        _settle(s, None)


def drain_flight(s: State) -> None:
    """Settle until nothing is in flight (S5 section 11.7)."""
    while s.flight is not None:
        _settle(s, None)


def ahead_allowed(s: State) -> bool:
    """Whether the next step may leave its picks on the device (S5 section 11.1)."""
    facts = s.device.facts
    if s.router.max_depth < 2 or not facts.supports_token_feed or facts.has_ssm_layers or not s.active:
        return False
    return argmax_eligible(s, s.active) and all(_may_run_ahead(s, row) for row in s.active)


def _may_run_ahead(s: State, row: Row) -> bool:
    """The device's masked re-pick is exact, and the row cannot stop by length on the next token."""
    if row.think.over and (row.request.sampling.logit_bias or row.think.just_ended):
        return False
    ceiling = s.config.max_seq_len
    return not row.finished and row.remaining > 1 and not (ceiling != 0 and row.seq.seq_len + 2 >= ceiling)


def _may_go_ahead(s: State, flight: Flight) -> bool:
    """Launch beside the step in flight? Blocks are reserved last; what was reserved before a refusal stays."""
    if flight.host_logits or flight.discard_all or any(flight.discard):
        return False
    if [slot for slot, _position in flight.positions] != [row.seq.slot for row in s.active]:
        return False
    return ahead_allowed(s) and all(s.router.reserve_kv(row.seq) is not None for row in s.active)


def _launch_ahead(s: State, flight: Flight) -> Flight | None:
    """The fed step; any error leaves it out and nobody is told: the next plain launch meets it again."""
    rows = s.active
    masks = [row_mask(row, s.config) for row in rows]
    plan = DecodeFed(list(range(len(rows))), masks, context_commit(s.config, len(rows)))
    try:
        ticket = s.router.launch(plan, [row.seq for row in rows])
    except StepError as error:
        if isinstance(error.cause, DeviceLost):
            s.device_lost = True
        return None
    return Flight(ticket, [(row.seq.slot, row.seq.seq_len) for row in rows], masks, fed=True)


def _settle(s: State, ahead: Flight | None) -> Settled:
    """Await, roll over-runs back, commit, then check the step launched ahead against what was committed (11.5)."""
    flight, s.flight = s.flight, None
    if flight is None:
        return Settled.IDLE
    rows = s.active
    for row in rows:
        row.in_flight = False
    try:
        result = s.router.await_result(flight.ticket)
    except StepError as error:
        if ahead is not None:
            with suppress(StepError):
                s.router.await_result(ahead.ticket)
        fail_step(s, error)
        return Settled.FAILED
    if flight.fed:
        _roll_back_overruns(s, flight)
    if flight.discard_all:
        _unbook(flight, rows)
        return Settled.REDO
    if flight.host_logits:
        try:
            result = s.router.read_logits(len(rows))
        except StepError as error:
            fail_all(s, error.text)
            return Settled.FAILED
    commit_rows(s, rows, result, flight.discard if any(flight.discard) else None)
    if ahead is not None:
        assert not isinstance(result, HostLogits)
        _validate(s, ahead, rows, result)
        s.flight = ahead
    return Settled.DONE


def _roll_back_overruns(s: State, flight: Flight) -> None:
    for row, discard in zip(s.active, flight.discard, strict=True):
        if discard or flight.discard_all:
            with suppress(EffectFailed):
                s.router.rollback(row.seq)


def _unbook(flight: Flight, rows: list[Row]) -> None:
    """Take back what :func:`_validate` booked, so that the redone step does not book it twice (guard H3)."""
    for row, discard in zip(rows, flight.discard, strict=True):
        if not discard:
            row.seq.rewind(1)


def _validate(s: State, flight: Flight, rows: list[Row], inputs: list[int]) -> None:
    """Hold the step launched ahead against the state just committed; book its inputs for the rows that go on
    (S5 section 11.6)."""
    overrun = [
        row.finished or row.last_token != token or row.seq.seq_len != position
        for row, token, (_slot, position) in zip(rows, inputs, flight.positions, strict=True)
    ]
    flight.discard = [False] * len(rows) if s.keep_overrun else overrun
    kept = [row for row, discard in zip(rows, flight.discard, strict=True) if not discard]
    for row, token, discard in zip(rows, inputs, flight.discard, strict=True):
        if not discard:
            row.seq.tokens.append(token)
            row.seq.seq_len += 1
            row.in_flight = True
    flight.host_logits = not argmax_eligible(s, kept)
    if not flight.host_logits:
        flight.discard_all = any(
            row_mask(row, s.config) != mask
            for row, mask, discard in zip(rows, flight.masks, flight.discard, strict=True)
            if not discard
        )
