"""One emitted token on the speculative lanes (S4 section 4)."""

from __future__ import annotations

from ..config import SPONTANEOUS_THINK_BUDGET
from ..decode.commit import (
    at_ceiling,
    close_thinking,
    spend_budget,
    spend_thinking,
    stream_token,
    think_id_outside,
)
from ..row import Row
from ..sampling.record import LogprobRecord
from ..state import State
from ..watchdog import content_loop_due

Records = list[LogprobRecord]


def emit(s: State, row: Row, token: int, record: LogprobRecord | None = None) -> None:
    """Record, pay for and stream one token; makes no device call and leaves ``last_token`` to the caller."""
    if row.request.cancelled:
        row.finished = True
        return
    think = row.think
    if think_id_outside(s, row, token, SPONTANEOUS_THINK_BUDGET):
        return
    if record is not None:
        row.logprobs.append(record)
    row.outputs.append(token)
    if think.over and not think.inside:
        think.emitted_after += 1
    spend_budget(row)
    if think.inside:
        if token == s.config.think_end_token:
            close_thinking(row)
        else:
            spend_thinking(row)
    else:
        think.just_ended = False
        row.content_tokens += 1
        if content_loop_due(s, row):
            row.guard = "content_loop_watchdog"
            row.finished = True
    if token in row.eos:
        held_back = think.inside and row.remaining > 0 and not at_ceiling(s, row)
        row.finished = row.finished or not held_back
        return
    if not stream_token(row, token):
        row.finished = True
        return
    if row.remaining == 0 or at_ceiling(s, row):
        row.finished = True


def emit_run(s: State, row: Row, tokens: list[int], records: Records | None = None) -> bool:
    """Emit in order until the row finishes; whether it is still alive."""
    if s.modes.plain_tokens and not (records or row.logprobs):
        return _emit_plain_run(s, row, tokens)
    for index, token in enumerate(tokens):
        emit(s, row, token, records[index] if records else None)
        if row.finished:
            return False
    return True


def _emit_plain_run(s: State, row: Row, tokens: list[int]) -> bool:
    """:func:`emit_run` with every rule left out that needs think tokens, a watchdog or logprobs."""
    eos, outputs, left = row.eos, row.outputs, row.remaining
    flag, send, ceiling = row.request.cancel, row.request.sink.token, at_ceiling(s, row)
    emitted = 0
    for token in tokens:
        if flag is not None and flag.raised:
            row.finished = True
            break
        outputs.append(token)
        emitted += 1
        left -= 1
        if token in eos or not send(token) or left <= 0 or ceiling:
            row.finished = True
            break
    row.content_tokens += emitted
    row.remaining = max(0, left)
    return not row.finished
