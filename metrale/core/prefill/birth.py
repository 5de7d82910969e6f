"""First token and birth, the same on every prefill path (S2 section 5)."""

from __future__ import annotations

from ..clients import answer, answer_error, completion_of, finish_reason
from ..io import DeviceError
from ..request import Request
from ..retire import free_directly
from ..row import Row, born, stop_set
from ..sampling.pick import pick_first
from ..sequence import Sequence
from ..state import State


def first_token(s: State, request: Request, row: int) -> int:
    """The pick from logits row ``row`` (S2 section 5.1). Raises DeviceError.

    Greedy without a floor: the device's argmax, an EOS included (D8). Otherwise the row comes to the host, where a
    request with a floor has its stop set suppressed.
    """
    suppressed = stop_set(request, s.config) if request.min_tokens > 0 else frozenset()
    if request.sampling.temperature == 0.0 and not suppressed:
        return s.device.argmax_on_device(row, 0)
    logits = s.device.copy_logits_to_host(row, 0, 2 * s.device.facts.vocab_size)
    return pick_first(logits, suppressed, request.sampling)


def birth(s: State, request: Request, seq: Sequence, first: int) -> None:
    """Stream the first token and either finish at once or join the end of ``active`` (S2 section 5.3)."""
    row = born(request, seq, first, s.config, s.modes.ring_slots, s.io.clock.now())
    spontaneous = not row.outputs
    is_eos = first in row.eos
    if not spontaneous and not is_eos:
        request.sink.token(first)
    if not spontaneous and (is_eos or request.max_tokens <= 1):
        row.remaining = 0
        finish_at_birth(s, row)
    else:
        s.active.append(row)


def finish_at_birth(s: State, row: Row) -> None:
    """A request that never enters ``active``: terminal frame, then the cached release."""
    answer(s, row.request, completion_of(row, finish_reason(s, row), None))
    s.router.release_seq(row.seq, True, "finish_sequence")


def failed_start(s: State, request: Request, seq: Sequence, text: str) -> None:
    """Tell the client, free the sequence, tell the mirror (S2 section 14.1)."""
    answer_error(s, request, text)
    free_directly(s, seq)


def pick_and_birth(s: State, request: Request, seq: Sequence, row: int, prefix: str) -> DeviceError | None:
    """Pick from row ``row`` and bring the request to life; a failed pick is told with ``prefix`` and returned."""
    try:
        first = first_token(s, request, row)
    except DeviceError as error:
        failed_start(s, request, seq, f"{prefix}: {error.text}")
        return error
    birth(s, request, seq, first)
    return None
