"""The n-gram lane: one sequence, one draft found in its own text, two-row verifies (S4 section 12)."""

from __future__ import annotations

from ..io import DeviceError
from ..row import Row
from ..state import State
from .emit import emit, emit_run
from .serial import announced_verify
from .verdict import Window, count_verified, window_picks

LONGEST_MATCH = 16
SHORTEST_MATCH = 2


def ngram_draft(tokens: list[int]) -> int | None:
    """The token after the first earlier place where the longest repeated end of ``tokens`` (2 to 16 ids) occurs."""
    count = len(tokens)
    best_length, follower = SHORTEST_MATCH - 1, None
    for end in range(count - 1):
        length = 0
        limit = min(LONGEST_MATCH, end + 1)
        while length < limit and tokens[end - length] == tokens[count - 1 - length]:
            length += 1
        if length > best_length:
            best_length, follower = length, tokens[end + 1]
    return follower


def ngram_step(s: State) -> None:
    """Bootstrap without a draft, else verify. A failed call ends the row, without an error frame."""
    row = s.active[0]
    try:
        if row.drafts:
            _verify(s, row)
        else:
            _bootstrap(s, row)
    except DeviceError:
        row.finished = True


def _propose(row: Row) -> None:
    """Look for a draft; ``last_token`` is not in the text it looks at."""
    draft = ngram_draft(row.seq.tokens)
    row.drafts = [] if draft is None else [draft]


def _bootstrap(s: State, row: Row) -> None:
    s.device.ep_broadcast_cmd_for_seq(row.seq.ep_slot, row.last_token)
    s.device.decode(row.last_token, row.seq, 0)
    token = s.device.argmax_on_device(0, 0)
    emit(s, row, token)
    if row.finished:
        return
    row.last_token = token
    _propose(row)
    if row.drafts:
        _checkpoint(s, row)


def _verify(s: State, row: Row) -> None:
    """The first pending draft is used, the rest dropped."""
    draft = row.drafts[0]
    row.drop_drafts()
    base = row.seq.seq_len
    answers = announced_verify(s, row, [row.last_token, draft], s.device.decode_verify_graphed)
    window = Window(base, [draft], window_picks(s, row, answers, 0))
    count_verified(s, window)
    s.device.ep_broadcast_cmd(window.accepted)
    if not window.full:
        row.seq.rewind(1)
        s.device.start_rollback_and_checkpoint_async(row.seq, 1)
    if not emit_run(s, row, window.tokens):
        return
    row.last_token = window.extra
    if window.full:
        _checkpoint(s, row)
    _propose(row)


def _checkpoint(s: State, row: Row) -> None:
    try:
        s.device.start_checkpoint_async(row.seq)
    except DeviceError:
        return
