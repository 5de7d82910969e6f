"""The Continue lane: one prefill step per tick for what is already prefilling (S2 sections 6 to 11)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from ..decode.commit import commit_rows
from ..decode.plain import slot_of
from ..decode.readback import argmax_eligible, read_mixed
from ..io import DeviceError, KvExhausted
from ..parking import announce_prefill
from ..retire import fail_all, send_error
from ..row import Prefill
from ..sequence import PrefillSlice
from ..state import State
from .birth import birth, failed_start, first_token
from .start import order_after_prefill


@dataclass(slots=True)
class Completed:
    """One entry that is done prefilling: its first token, or why it has none."""

    entry: Prefill
    first: int | None = None
    error: str = ""


def continue_prefills(s: State) -> bool:
    """Advance ``prefilling`` by one step; whether that step fused this tick's decode (S2 section 7)."""
    waiting, active = s.prefilling, s.active
    if not waiting:
        return False
    if active and not s.policy.should_prefill(s.io.clock.now(), active):
        return False
    blocked = s.modes.speculative and len(active) == 1
    if len(waiting) >= 2 and not active:
        _batched_prefill(s)
        return False
    if len(waiting) >= 2 and active and not blocked:
        return _batched_mixed(s)
    return _single_stream(s, fuse=bool(active) and not blocked)


def next_slice(s: State, entry: Prefill) -> PrefillSlice:
    """The next chunk (S2 section 6.2): the rounding to fours is for a recurrence kernel, ``last`` is decided first."""
    prompt = entry.request.prompt
    length = min(len(prompt) - entry.offset, s.config.max_prefill_tokens)
    last = entry.offset + length >= len(prompt)
    if not last and length >= 4:
        length -= length % 4
    return PrefillSlice(entry.seq, prompt, entry.offset, length, last)


def promote(s: State, completed: list[Completed]) -> None:
    """Completed entries leave ``prefilling``, the last of the list first: birth, or an error frame and a direct free
    (S2 section 11, D3)."""
    for done in sorted(completed, key=lambda c: s.prefilling.index(c.entry), reverse=True):
        entry = done.entry
        s.prefilling.remove(entry)
        if done.first is None:
            failed_start(s, entry.request, entry.seq, done.error)
        else:
            birth(s, entry.request, entry.seq, done.first)


def _pick(s: State, entry: Prefill, row: int) -> Completed:
    try:
        return Completed(entry, first_token(s, entry.request, row))
    except DeviceError as error:
        return Completed(entry, error=f"sample_token failed: {error.text}")


# -- one entry --------------------------------------------------------------------------------------------------------


def _single_stream(s: State, fuse: bool) -> bool:
    """The head entry alone (S2 section 8.2): fused with the decode, or as a plain chunk."""
    entry = s.prefilling[0]
    with suppress(DeviceError):
        s.device.poll_innerq()
    piece = next_slice(s, entry)
    if fuse:
        return _mixed(s, entry, piece)
    _plain_chunk(s, entry, piece)
    return False


def _mixed(s: State, entry: Prefill, piece: PrefillSlice) -> bool:
    """One chunk fused with one decode token of every active row."""
    if s.modes.speculative:
        _drop_drafts_before_mixing(s)
    _sort_by_slot(s)
    rows = s.active
    try:
        s.device.mixed_forward([row.last_token for row in rows], [row.seq for row in rows], piece, s.prefill_stream)
    except DeviceError as error:
        promote(s, [Completed(entry, error=f"prefill failed: {error.text}")])
        return False
    entry.offset += piece.length
    completed = []
    if piece.last:
        order_after_prefill(s)
        completed.append(_pick(s, entry, len(rows)))
    order_after_prefill(s)
    _commit_fused_decode(s)
    promote(s, completed)
    return True


def _drop_drafts_before_mixing(s: State) -> None:
    had_drafts = any(row.drafts for row in s.active)
    for row in s.active:
        row.drop_drafts()
    if had_drafts:
        with suppress(DeviceError):
            s.device.sync_secondary()


def _sort_by_slot(s: State) -> None:
    if len(s.active) > 1:
        s.active.sort(key=slot_of)


def _commit_fused_decode(s: State) -> None:
    """Read back and process the decode rows of a mixed forward: direct calls, then the ordinary commit."""
    try:
        result = read_mixed(s, len(s.active), argmax_eligible(s, s.active))
    except DeviceError as error:
        fail_all(s, error.text)
        return
    commit_rows(s, s.active, result)


def _plain_chunk(s: State, entry: Prefill, piece: PrefillSlice) -> None:
    """A chunk by itself. A dry pool ends the active row with the most blocks and the chunk is tried again."""
    try:
        announce_prefill(s, entry.seq, entry.request.prompt, piece.length, piece.start)
        while True:
            try:
                s.device.prefill_chunk(piece, s.prefill_stream)
                break
            except KvExhausted:
                if not _end_largest_row(s):
                    raise
    except DeviceError as error:
        promote(s, [Completed(entry, error=f"prefill_chunk failed: {error.text}")])
        return
    entry.offset += piece.length
    with suppress(DeviceError):
        s.device.normalize_ssm_states(entry.seq, s.prefill_stream)
    if piece.last:
        order_after_prefill(s)
        promote(s, [_pick(s, entry, 0)])


def _end_largest_row(s: State) -> bool:
    """Error and release for the active row without grammar that holds the most blocks, the later one on a tie."""
    victims = [row for row in s.active if not row.request.grammar]
    if not victims:
        return False
    victim = max(reversed(victims), key=lambda row: row.seq.num_blocks)
    s.active.remove(victim)
    send_error(s, victim, "preempted: KV cache exhausted (a prefill needed its blocks)")
    return True


# -- several entries --------------------------------------------------------------------------------------------------


def _batched_prefill(s: State) -> None:
    """Nothing active: one chunk of every entry in one call (S2 section 9)."""
    with suppress(DeviceError):
        s.device.poll_innerq()
    entries = list(s.prefilling)
    pieces = [next_slice(s, entry) for entry in entries]
    try:
        s.device.prefill_batch_chunk(pieces, s.prefill_stream)
    except DeviceError as error:
        promote(s, [Completed(entry, error=f"prefill failed: {error.text}") for entry in entries])
        return
    order_after_prefill(s)
    promote(s, _picks_of(s, entries, pieces, first_row=0))


def _batched_mixed(s: State) -> bool:
    """One chunk of every entry fused with the decode rows (S2 section 10); pending drafts stay."""
    with suppress(DeviceError):
        s.device.poll_innerq()
    entries = list(s.prefilling)
    pieces = [next_slice(s, entry) for entry in entries]
    _sort_by_slot(s)
    rows = s.active
    try:
        s.device.mixed_forward_batch(
            [row.last_token for row in rows], [row.seq for row in rows], pieces, s.prefill_stream
        )
    except DeviceError as error:
        promote(s, [Completed(entry, error=f"prefill failed: {error.text}") for entry in entries])
        return False
    order_after_prefill(s)
    completed = _picks_of(s, entries, pieces, first_row=len(rows))
    _commit_fused_decode(s)
    promote(s, completed)
    return True


def _picks_of(s: State, entries: list[Prefill], pieces: list[PrefillSlice], first_row: int) -> list[Completed]:
    completed = []
    for index, (entry, piece) in enumerate(zip(entries, pieces, strict=True)):
        entry.offset += piece.length
        if piece.last:
            completed.append(_pick(s, entry, first_row + index))
    return completed
