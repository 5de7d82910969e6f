"""How rows leave: the sweep, retirement, slot compaction, errors (S1 sections 17 and 20)."""

from __future__ import annotations

from contextlib import suppress

from .clients import answer, answer_error, completion_of, finish_reason
from .io import DeviceError, EffectFailed
from .request import Request
from .row import Row
from .sequence import Sequence
from .state import State

EP_FREE = 0xFFFFFFF1


def expired(request: Request, now: int) -> bool:
    """Whether the deadline has passed."""
    return request.deadline is not None and now >= request.deadline


def sweep(s: State) -> list[tuple[Row, str]]:
    """Marks of rows to end: ``cancelled`` before ``request_timeout`` (S1 section 17). Rows that a speculative lane
    decoded in this tick see a cancel in their emission alone (D4)."""
    marks: list[tuple[Row, str]] = []
    now = s.io.clock.now()
    for row in s.active:
        request = row.request
        cancel, deadline = request.cancel, request.deadline
        if cancel is not None and cancel.raised and not s.speculated:
            if not row.finished:
                marks.append((row, "cancelled"))
        elif deadline is not None and now >= deadline and not row.finished:
            marks.append((row, "request_timeout"))
    return marks


def apply_marks(marks: list[tuple[Row, str]]) -> None:
    """End the marked rows that did not end by themselves meanwhile (D23)."""
    for row, mark in marks:
        if row.finished:
            continue
        row.finished = True
        if mark == "cancelled":
            row.cancelled = True
        else:
            row.guard = mark


def retire(s: State) -> bool:
    """Finished rows leave in batch order; whether any did."""
    leaving = [row for row in s.active if row.finished]
    if not leaving:
        return False
    s.active = [row for row in s.active if not row.finished]
    for row in leaving:
        finish(s, row)
    return True


def finish(s: State, row: Row) -> None:
    """Terminal frame, then the release; a row that carries an error gets the error variant."""
    if row.error is not None:
        send_error(s, row, row.error)
        return
    answer(s, row.request, completion_of(row, finish_reason(s, row), row.guard))
    s.router.release_seq(row.seq, True, "finish_sequence")


def send_error(s: State, row: Row, text: str) -> None:
    """Error frame, then a release without caching."""
    answer_error(s, row.request, text)
    s.router.release_seq(row.seq, False, "send_error")


def fail_all(s: State, text: str) -> None:
    """Every active row gets the error, in row order; the batch is empty afterwards."""
    rows, s.active = s.active, []
    for row in rows:
        send_error(s, row, text)


def free_directly(s: State, seq: Sequence) -> None:
    """Free a sequence that never became a row: direct calls, no effect, errors ignored (S2 section 14.1)."""
    with suppress(DeviceError):
        s.device.free_sequence(seq)
    with suppress(DeviceError):
        s.device.ep_broadcast_cmd_for_seq(seq.ep_slot, EP_FREE)


def rows_to_compact(s: State) -> list[tuple[Row, int]]:
    """The moves that bring the survivors' slots into 0..n-1 (S1 section 17): (row, target) in batch order.

    Targets are the numbers below n that no survivor and no prefilling sequence holds (D1); the first survivor out of
    range takes the largest.
    """
    count = len(s.active)
    strays = [row for row in s.active if row.seq.slot >= count]
    if not strays:
        return []
    held = {row.seq.slot for row in s.active}
    held.update(entry.seq.slot for entry in s.prefilling)
    targets = [slot for slot in range(count) if slot not in held]
    return list(zip(strays, reversed(targets), strict=False))


def compact(s: State) -> None:
    """Carry out the compaction; a row whose move fails keeps its slot."""
    for row, target in rows_to_compact(s):
        try:
            s.router.compact_slot(row.seq, target)
        except EffectFailed:
            continue
