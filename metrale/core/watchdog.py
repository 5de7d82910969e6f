"""Loop detectors and the rollback to a boundary (S3 sections 8 and 9)."""

from __future__ import annotations

from operator import ne

from .config import WATCHDOG
from .io import EffectFailed
from .row import Row
from .state import State


def exact_loop(outputs: list[int], periods: tuple[int, int], repeats: int, min_tokens: int) -> bool:
    """Whether the end of ``outputs`` is ``repeats`` copies of one window, periods tried in ascending order."""
    count = len(outputs)
    if count < min_tokens or repeats < 2:
        return False
    for period in range(periods[0], periods[1] + 1):
        if repeats * period > count:
            return False
        if outputs[-1] != outputs[-1 - period]:
            continue
        tail = outputs[count - repeats * period :]
        if tail[period:] == tail[:-period]:
            return True
    return False


def content_loop(outputs: list[int]) -> bool:
    """The content-loop detector (S3 section 8.1)."""
    return exact_loop(outputs, WATCHDOG.content_periods, WATCHDOG.repeats, WATCHDOG.content_min_tokens)


def content_loop_due(s: State, row: Row) -> bool:
    """Whether the content-loop detector runs for this token and hits. ``content_tokens`` already counts the token."""
    return (
        s.config.loop_watchdog
        and row.content_tokens >= WATCHDOG.content_min_tokens
        and row.content_tokens % WATCHDOG.content_stride == 0
        and content_loop(row.outputs)
    )


def thinking_loop(outputs: list[int]) -> bool:
    """The thinking-loop detector (S3 section 6.3)."""
    return exact_loop(outputs, WATCHDOG.thinking_periods, WATCHDOG.repeats, WATCHDOG.thinking_min_tokens)


ECHO_SPAN = WATCHDOG.fuzzy_periods
MOST_MISMATCHES = max(ECHO_SPAN[1] // WATCHDOG.fuzzy_divisor, 1)


def fuzzy_repetition_at(row: Row) -> int | None:
    """:func:`fuzzy_repetition` of a row that has just kept a token.

    A repetition leaves an echo: one of the last four outputs equals the one a period before it. The row remembers how
    many outputs in a row had none at any period, and for how many outputs in all that holds.
    """
    outputs = row.outputs
    count = len(outputs)
    shortest, longest = ECHO_SPAN
    token = outputs[-1]
    if row.echo_known != count - 1 or token in outputs[max(0, count - 1 - longest) : max(0, count - shortest)]:
        row.echo_free = 0
    else:
        row.echo_free += 1
    row.echo_known = count
    return None if row.echo_free > MOST_MISMATCHES else fuzzy_repetition(outputs)


def fuzzy_repetition(outputs: list[int]) -> int | None:
    """The longest period whose last three windows differ in few places, or None (S3 section 8.2)."""
    count = len(outputs)
    if count < WATCHDOG.fuzzy_min_tokens:
        return None
    shortest, longest = WATCHDOG.fuzzy_periods
    longest = min(longest, count // 3)
    likely = _likely_periods(outputs, shortest, longest)
    if likely is None:
        return None
    for period in range(longest, shortest - 1, -1):
        if not likely[period]:
            continue
        tolerance = _tolerance(period)
        a, b, c = (outputs[count - k * period : count - (k - 1) * period or None] for k in (3, 2, 1))
        if sum(map(ne, b, c)) <= tolerance and sum(map(ne, a, b)) <= tolerance:
            return period
    return None


def _tolerance(period: int) -> int:
    return max(period // WATCHDOG.fuzzy_divisor, 1)


def _likely_periods(outputs: list[int], shortest: int, longest: int) -> list[bool] | None:
    """Flags by period, None when no period is possible: with at most ``tolerance`` mismatches in the last window, one
    of the last tolerance + 1 ids equals the id one period before it."""
    count = len(outputs)
    probes = _tolerance(longest) + 1
    if set(outputs[-probes:]).isdisjoint(outputs[count - probes - longest : count - shortest]):
        return None
    likely: list[bool] | None = None
    for back in range(1, probes + 1):
        token = outputs[-back]
        earlier = outputs[count - back - longest : count - back - shortest + 1]
        if token in earlier:
            likely = likely or [False] * (longest + 1)
            for index, other in enumerate(earlier):
                if other == token:
                    likely[longest - index] = True
    return likely


def roll_back(s: State, row: Row, min_drop: int) -> bool:
    """Rewind the row to a boundary at least ``min_drop`` outputs back; False: declined, nothing changed."""
    index = _rollback_target(s, row, min_drop)
    if index is None:
        return False
    if s.device.facts.has_ssm_layers:
        slot = row.ring.lookup(index + 1)
        assert slot is not None
        try:
            s.router.ssm_snapshot_restore(row.seq, slot)
        except EffectFailed:
            return False
        row.ring.cut(index + 1)
    _rewind(row, index + 1)
    row.rewinds += 1
    return True


def _rollback_target(s: State, row: Row, min_drop: int) -> int | None:
    """The output index to keep up to, or None: the decisions of S3 section 9.1 in order."""
    if row.request.cancel is not None or row.rewinds >= WATCHDOG.max_rollbacks or not s.config.boundary_tokens:
        return None
    needs_snapshot = s.device.facts.has_ssm_layers
    if needs_snapshot and row.ring.capacity == 0:
        return None
    for index in range(len(row.outputs) - 1 - min_drop, -1, -1):
        if row.outputs[index] in s.config.boundary_tokens and (
            not needs_snapshot or row.ring.lookup(index + 1) is not None
        ):
            return index
    return None


def _rewind(row: Row, keep: int) -> None:
    """Cut outputs to ``keep`` and the device tokens by as many; blocks stay, the budget comes back."""
    dropped = len(row.outputs) - keep
    del row.outputs[keep:]
    row.seq.rewind(min(dropped, len(row.seq.tokens)))
    row.remaining += dropped
    row.content_tokens = max(0, row.content_tokens - dropped)
    row.last_token = row.outputs[-1]
    row.think.confident_run = 0


def snapshot_boundary(s: State, row: Row) -> None:
    """Save the recurrent state when the token just kept is a boundary (S3 section 9.2)."""
    if not (s.modes.ring_slots and row.outputs[-1] in s.config.boundary_tokens):
        return
    position = len(row.outputs)
    slot = row.ring.record(position)
    try:
        s.router.ssm_snapshot_save(row.seq, slot)
    except EffectFailed:
        row.ring.cut(position - 1)
