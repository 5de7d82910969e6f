"""From the inbox to the requests that start in this tick: drain, refusals, gate, reservation (S1 sections 7 and 8)."""

from __future__ import annotations

from .clients import answer, answer_error, own
from .io import Batch, Wait
from .request import Completion, Request
from .retire import expired
from .sequence import blocks_for
from .state import State


def absorb(s: State, batch: Batch) -> None:
    """Append what a receive handed over; ``closed`` is sticky."""
    s.pending.extend(batch.requests)
    s.unseen += len(batch.requests)
    s.rotations.extend(batch.rotations)
    s.closed = s.closed or batch.closed


def drain(s: State) -> list[Request]:
    """This tick's candidates, taken out of the queue in the order in which they start."""
    _take(s, Wait.NO_WAIT)
    if not s.running:
        if s.parked:
            if s.idle_inbox:
                _take(s, Wait.BOUNDED)
        else:
            while s.idle_inbox:
                if not _take(s, Wait.BLOCK):
                    break
            if not s.pending:
                return []
    if not s.pending or not s.policy.should_prefill(s.io.clock.now(), s.active):
        return []
    cap = s.config.max_batch_size - (len(s.active) + len(s.prefilling))
    if cap <= 0:
        return []
    order = s.policy.select([len(request.prompt) for request in s.pending], cap)
    chosen = [s.pending[index] for index in order]
    taken = set(order)
    s.pending = [request for index, request in enumerate(s.pending) if index not in taken]
    return chosen


def _take(s: State, wait: Wait) -> bool:
    """One receive and the look that follows it; False when it brought nothing and the inbox is open (D7)."""
    batch = s.io.inbox.receive(wait)
    absorb(s, batch)
    _look(s)
    return bool(batch.requests or batch.rotations or batch.closed)


def _look(s: State) -> None:
    """End refused, cancelled and, with deadline scope "all", expired requests of the whole queue, in queue order (D14).

    Refusals are for newcomers, the last ``unseen`` of the queue: what could refuse the others has not changed.
    """
    if not s.pending:
        return
    now = s.io.clock.now()
    known = len(s.pending) - s.unseen
    s.unseen = 0
    ended = {
        index
        for index, request in enumerate(s.pending)
        if (index >= known and _refused(s, request)) or _ended_in_queue(s, request, now)
    }
    if ended:
        s.pending = [request for index, request in enumerate(s.pending) if index not in ended]


def _refused(s: State, request: Request) -> bool:
    why = _refusal(s, request)
    if why is not None:
        answer_error(s, request, f"refused: {why}")
    return why is not None


def _ended_in_queue(s: State, request: Request, now: int) -> bool:
    cancel = request.cancel
    if cancel is not None and cancel.raised:
        answer(s, request, Completion("cancelled", []))
        return True
    if s.config.deadline_scope_all and expired(request, now):
        answer(s, request, Completion("timeout", [], guard="request_timeout"))
        return True
    return False


def _refusal(s: State, request: Request) -> str | None:
    """Why a request is refused, first reason first (D11, D13), or None."""
    facts = s.device.facts
    if not request.prompt:
        return "prompt is empty"
    if request.max_tokens == 0:
        return "max_tokens is 0"
    if request.prompt_is_explicit:
        for token in request.prompt:
            if not 0 <= token < facts.vocab_size:
                return f"token {token} is outside the vocabulary of {facts.vocab_size}"
    needed = blocks_for(len(request.prompt), facts.block_size)
    if 0 < facts.total_blocks < needed:
        return f"prompt needs {needed} KV blocks but the pool has {facts.total_blocks}"
    if not own(s, request):
        return f"request id {request.id} is in use"
    return None


def gate(s: State, candidates: list[Request]) -> list[Request]:
    """The candidates that may start: one adapter per batch, then the KV reservation. The others go back to the front
    of the queue, the unreserved ahead of those of another adapter."""
    if not candidates:
        return []
    cohort, others = _adapter_cohort(s, candidates)
    admitted = cohort[: _reserved(s, cohort)]
    s.pending[:0] = cohort[len(admitted) :] + others
    return admitted


def _adapter_cohort(s: State, candidates: list[Request]) -> tuple[list[Request], list[Request]]:
    """Step A: candidates with the batch's adapter identity, and the others; 1 + n ``adapter_id_for`` calls."""
    if s.active:
        slot = s.active[0].request.adapter_slot
    elif s.prefilling:
        slot = s.prefilling[0].request.adapter_slot
    else:
        slot = candidates[0].adapter_slot
    cohort_id = s.device.adapter_id_for(slot)
    cohort: list[Request] = []
    others: list[Request] = []
    for request in candidates:
        same = s.device.adapter_id_for(request.adapter_slot) == cohort_id
        (cohort if same else others).append(request)
    return cohort, others


def _reserved(s: State, candidates: list[Request]) -> int:
    """Step B: how many candidates, in order, the pool can hold with their whole decode on top of what is owed."""
    facts = s.device.facts
    total = facts.total_blocks
    if total == 0:
        return len(candidates)
    used = _committed(s)
    nothing_owed = used == 0
    for count, request in enumerate(candidates):
        used += _need(s, len(request.prompt), request.max_tokens)
        if used > total:
            return 1 if count == 0 and nothing_owed else count
    return len(candidates)


def _committed(s: State) -> int:
    """Blocks owed to live and parked work. A row whose newest token is booked but not settled counts one token less
    (guard H6 of S5 section 15)."""
    owed = 0
    for row in s.active:
        owed += _need(s, row.seq.seq_len + (0 if row.in_flight else 1), row.remaining)
    for entry in s.prefilling:
        owed += _need(s, len(entry.request.prompt), entry.request.max_tokens)
    for image in s.spilled:
        owed += _need(s, image.seq_len + 1, image.row.remaining)
    for parked in s.requeued:
        owed += _need(s, len(parked.history) + 1, parked.row.remaining)
    return owed


def _need(s: State, current: int, budget: int) -> int:
    """Blocks for ``current`` tokens and at most ``budget`` more; the watermark is the context ceiling."""
    ceiling = s.config.max_seq_len
    depth = current + budget
    if ceiling > 0:
        depth = min(current + min(budget, ceiling), max(ceiling, current))
    return blocks_for(depth, s.device.facts.block_size)
