"""The Decode lane: which step this tick's batch takes (S1 section 13, S4 section 3)."""

from __future__ import annotations

from contextlib import suppress

from ..config import MTP_MAX_SEQS
from ..io import EffectFailed
from ..prefill.start import order_after_prefill
from ..row import Row
from ..speculative.mtp import mtp_step
from ..speculative.ngram import ngram_step
from ..speculative.self_spec import self_spec_step
from ..state import State
from .pipeline import pipelined_step
from .plain import plain_step


def decode_lane(s: State) -> None:
    """One decode step for everything active, unless a mixed prefill step already was it."""
    if s.mixed_done or not s.active:
        return
    if s.prefilling:
        order_after_prefill(s)
    modes = s.modes
    if not modes.speculative:
        if s.router.max_depth >= 2:
            pipelined_step(s)
        else:
            plain_step(s)
        return
    covered = all(row.seq.slot < modes.spec_slot_cap for row in s.active)
    alone = covered and len(s.active) == 1 and _may_speculate_alone(s.active[0])
    s.speculated = True
    if modes.ngram and alone:
        ngram_step(s)
    elif modes.self_spec and alone:
        self_spec_step(s)
    elif modes.mtp and covered and len(s.active) <= MTP_MAX_SEQS and all(map(_may_draft, s.active)):
        before = [row.seq.seq_len for row in s.active]
        rows = list(s.active)
        mtp_step(s)
        _account(rows, before)
    else:
        s.speculated = False
        if modes.mtp:
            _leave_mtp(s)
        plain_step(s)


def _may_speculate_alone(row: Row) -> bool:
    """n-gram and self-speculation: no grammar, not below the floor (D19)."""
    return not row.request.grammar and not row.below_floor


def _may_draft(row: Row) -> bool:
    """MTP: not inside thinking, not below the floor (D19)."""
    return not row.think.inside and not row.below_floor


def _account(rows: list[Row], before: list[int]) -> None:
    """Accepted drafts are the growth beyond the one token of a plain step (S4 section 16)."""
    for row, length in zip(rows, before, strict=True):
        row.accepted += max(0, row.seq.seq_len - length - 1)


def _leave_mtp(s: State) -> None:
    """A batch that MTP cannot take decodes plainly: drafts are dropped, the secondary stream is waited for."""
    for row in s.active:
        row.drop_drafts()
    with suppress(EffectFailed):
        s.router.sync_secondary()
