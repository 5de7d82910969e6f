"""The Start lane: allocate, announce, run the first prefill call of every admitted request (S2 sections 3, 4, 12)."""

from __future__ import annotations

from contextlib import suppress

from ..clients import answer_error
from ..config import BEAM_BATCH_WIDTH
from ..io import DeviceError, SlotsExhausted
from ..parking import announce_prefill
from ..request import Request
from ..retire import send_error
from ..row import Prefill, Row, Thinking, stop_set
from ..sequence import PrefillSlice, Sequence
from ..snapshot_ring import SnapshotRing
from ..state import State
from .birth import failed_start, finish_at_birth, pick_and_birth

Hypotheses = dict[int, list[int]]


def start_prefills(s: State, requests: list[Request]) -> None:
    """Start each request, in admission order, to the end of its first prefill call."""
    hypotheses = _search_beams_together(s, requests)
    for index, request in enumerate(requests):
        error = _start(s, request, hypotheses.get(index))
        if isinstance(error, SlotsExhausted) and s.active:
            send_error(s, s.active.pop(), "Preempted: server resource pressure")


def order_after_prefill(s: State) -> None:
    """Make the default stream wait for the prefill stream; errors are only a matter for a log (S2 section 15)."""
    with suppress(DeviceError):
        s.device.record_event(s.prefill_event, s.prefill_stream)
    with suppress(DeviceError):
        s.device.stream_wait_event(0, s.prefill_event)


def _start(s: State, request: Request, hypothesis: list[int] | None) -> DeviceError | None:
    try:
        if s.config.chunked:
            seq = s.device.alloc_sequence_for(request, len(request.prompt) + request.max_tokens)
        else:
            seq = s.device.alloc_sequence(request)
    except DeviceError as error:
        answer_error(s, request, f"alloc_sequence failed: {error.text}")
        return error
    seq.session_hash = request.id
    seq.adapter_slot = request.adapter_slot
    seq.adapter_id = s.device.adapter_id_for(request.adapter_slot)
    seq.acquired_adapter = s.device.acquire_adapter_slot(request.adapter_slot)
    if s.device.facts.supports_beam and request.num_beams > 1:
        return _beam(s, request, seq, hypothesis)
    if s.config.chunked:
        return _chunk_zero(s, request, seq)
    return _whole_prompt(s, request, seq)


def _whole_prompt(s: State, request: Request, seq: Sequence) -> DeviceError | None:
    """Preamble, forward and pick are one unit: an error in any is ``prefill failed`` (S2 section 4.1)."""
    prompt = request.prompt
    try:
        announce_prefill(s, seq, prompt, len(prompt), 0)
        s.device.prefill(prompt, seq, 0)
    except DeviceError as error:
        failed_start(s, request, seq, f"prefill failed: {error.text}")
        return error
    return pick_and_birth(s, request, seq, 0, "prefill failed")


def _chunk_zero(s: State, request: Request, seq: Sequence) -> DeviceError | None:
    """The first chunk, never rounded; an idle server gives it the whole batch budget (S2 sections 3.3 and 4.2)."""
    prompt = request.prompt
    budget = s.config.max_prefill_tokens if s.running else s.config.max_batch_tokens or len(prompt)
    length = min(len(prompt), budget)
    last = length >= len(prompt)
    try:
        announce_prefill(s, seq, prompt, length, 0)
        s.device.prefill_chunk(PrefillSlice(seq, prompt, 0, length, last), s.prefill_stream)
    except DeviceError as error:
        failed_start(s, request, seq, f"prefill_chunk failed: {error.text}")
        return error
    order_after_prefill(s)
    if last:
        return pick_and_birth(s, request, seq, 0, "sample_token failed")
    s.prefilling.append(Prefill(request, seq, length))
    return None


def _search_beams_together(s: State, requests: list[Request]) -> Hypotheses:
    """Blocking beam requests of one tick search in one call per group of two or more (S2 section 12.1)."""
    found: Hypotheses = {}
    if not s.device.facts.supports_beam:
        return found
    beams = [i for i, request in enumerate(requests) if not request.streaming and request.num_beams > 1]
    for slot in sorted({requests[i].adapter_slot for i in beams}):
        for group in _pack([i for i in beams if requests[i].adapter_slot == slot], requests):
            if len(group) < 2:
                continue
            with suppress(DeviceError):
                answers = s.device.generate_beam_batch([requests[i] for i in group])
                if len(answers) == len(group):
                    found.update(zip(group, answers, strict=True))
    return found


def _pack(indices: list[int], requests: list[Request]) -> list[list[int]]:
    """Greedy groups of at most 320 beams; a wider request stands alone."""
    groups: list[list[int]] = []
    width = 0
    for index in indices:
        beams = requests[index].num_beams
        if not groups or width + beams > BEAM_BATCH_WIDTH:
            groups.append([])
            width = 0
        groups[-1].append(index)
        width += beams
    return groups


def _beam(s: State, request: Request, seq: Sequence, hypothesis: list[int] | None) -> DeviceError | None:
    """A whole beam search; the sequence is never fed and the request ends here (S2 section 12.2)."""
    if hypothesis is None:
        try:
            answers = s.device.generate_beam_batch([request])
        except DeviceError as error:
            answer_error(s, request, f"beam search failed: {error.text}")
            with suppress(DeviceError):
                s.device.free_sequence(seq)
            return error
        hypothesis = answers[-1] if answers else []
    row = Row(
        request=request,
        seq=seq,
        eos=stop_set(request, s.config),
        last_token=hypothesis[-1] if hypothesis else 0,
        outputs=list(hypothesis),
        remaining=0,
        last_token_time=s.io.clock.now(),
        ring=SnapshotRing(0),
        think=Thinking(),
    )
    finish_at_birth(s, row)
    return None
