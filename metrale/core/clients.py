"""Terminal frames: the one place where a request ends for its client and its id becomes free again (D18)."""

from __future__ import annotations

from .request import Completion, Request
from .row import Row
from .state import State


def answer(s: State, request: Request, completion: Completion) -> None:
    """Send the frame of a normal end."""
    _disown(s, request)
    s.finished_tokens += len(completion.tokens)
    if s.io.telemetry.enabled:
        s.io.telemetry.request_finished(len(completion.tokens))
    request.sink.finish(completion)


def answer_error(s: State, request: Request, text: str) -> None:
    """Send the frame of a failure."""
    _disown(s, request)
    request.sink.error(text)


def own(s: State, request: Request) -> bool:
    """Take the request's id at its first look; False while another request has it."""
    return s.owners.setdefault(request.id, request) is request


def _disown(s: State, request: Request) -> None:
    if s.owners.get(request.id) is request:
        del s.owners[request.id]


def completion_of(row: Row, reason: str, guard: str | None) -> Completion:
    """The frame of a row as it stands (fields: S1 section 20)."""
    return Completion(
        reason=reason,
        tokens=row.outputs,
        think=row.think.tokens,
        cached=row.cached,
        accepted=row.accepted,
        guard=guard,
        logprobs=len(row.logprobs),
    )


def finish_reason(s: State, row: Row) -> str:
    """First match wins (S1 section 20)."""
    if row.guard == "request_timeout":
        return "timeout"
    if row.cancelled:
        return "cancelled"
    if row.outputs and row.outputs[-1] in row.eos:
        return "stop"
    if row.guard is not None:
        return "length"
    ceiling = s.config.max_seq_len
    if row.remaining == 0 or (ceiling > 0 and row.seq.seq_len + 1 >= ceiling):
        return "length"
    return "stop"
