"""Self-speculation: drafts by skipping layers, verified in the same step; nothing is carried over (S4 section 13)."""

from __future__ import annotations

from ..io import DeviceError
from ..row import Row
from ..state import State
from .emit import emit, emit_run
from .verdict import Window, count_verified, window_picks


def self_spec_step(s: State) -> None:
    """One step of the only active row. A failed call ends the row, without an error frame."""
    row = s.active[0]
    try:
        _step(s, row)
    except DeviceError:
        row.finished = True


def _step(s: State, row: Row) -> None:
    seq, device = row.seq, s.device
    count = min(s.modes.num_drafts, device.mtp_slot_draft_capacity(seq.slot))
    device.ep_broadcast_cmd_for_seq(seq.ep_slot, row.last_token)
    device.decode(row.last_token, seq, 0)
    first = device.argmax_on_device(0, 0)
    base = seq.seq_len
    drafts = _draft(s, row, first, count)
    seq.rewind(seq.seq_len - base)
    if not drafts:
        emit(s, row, first)
        if not row.finished:
            row.last_token = first
        return
    device.checkpoint_ssm_states(seq)
    window = Window(base, drafts, window_picks(s, row, device.decode_verify([first, *drafts], seq), 0))
    count_verified(s, window)
    if not emit_run(s, row, [first, *window.tokens]):
        return
    row.last_token = window.extra
    if not window.full:
        seq.rewind(len(drafts) - window.accepted)
        device.rollback_ssm_states(seq, window.accepted + 1)


def _draft(s: State, row: Row, first: int, count: int) -> list[int]:
    """Chained layer-skip decodes, each draft the next input; an error stops the chain."""
    drafts: list[int] = []
    token = first
    try:
        for _ in range(count):
            s.device.decode_draft(token, row.seq, 0)
            token = s.device.argmax_on_device(0, 0)
            drafts.append(token)
    except DeviceError:
        pass
    return drafts
