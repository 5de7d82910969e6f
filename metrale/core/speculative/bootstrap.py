"""A sequence without drafts decodes one token and asks for some (S4 section 8)."""

from __future__ import annotations

from contextlib import suppress

from ..config import MTP_MAX_SEQS
from ..decode.readback import LOGIT_BYTES
from ..io import DeviceError
from ..row import Row
from ..sampling.pick import pick_window, window_records
from ..sampling.record import LogprobRecord
from ..state import State
from .emit import emit
from .verdict import propose, save_hidden, under_grammar


def bootstrap_all(s: State, rows: list[Row], width: int) -> None:
    """Bootstrap every row without drafts: together where that is allowed, else one by one."""
    if _together(s, rows):
        _bootstrap_together(s, rows, width)
        return
    for row in rows:
        bootstrap(s, row, width)


def bootstrap(s: State, row: Row, width: int) -> None:
    """One row: decode, pick, emit, propose (S4 section 8.1). A failure ends the row, without an error frame."""
    try:
        s.device.ep_broadcast_cmd_for_seq(row.seq.ep_slot, row.last_token)
        s.device.decode(row.last_token, row.seq, 0)
        token = _pick(s, row, 0)
        record = _record(s, row, token, 0)
    except DeviceError:
        row.finished = True
        return
    emit(s, row, token, record)
    if row.finished:
        return
    row.last_token = token
    if not save_hidden(s, 0):
        return
    propose(s, row, under_grammar(row, width))
    _checkpoint(s, row)


def _greedy(row: Row) -> bool:
    return row.request.sampling.temperature == 0.0 and row.request.sampling.neutral


def _pick(s: State, row: Row, logits_row: int) -> int:
    """Greedy and neutral: the device's argmax; else a host pick (S4 section 5.3)."""
    if _greedy(row):
        return s.device.argmax_on_device(logits_row, 0)
    data = s.device.copy_logits_to_host(logits_row, 0, LOGIT_BYTES * s.device.facts.vocab_size)
    return pick_window(data, 1, row, s.config)[0]


def _record(s: State, row: Row, token: int, logits_row: int) -> LogprobRecord | None:
    wanted = row.request.top_logprobs
    if wanted is None:
        return None
    data = s.device.copy_logits_to_host(logits_row, 0, LOGIT_BYTES * s.device.facts.vocab_size)
    return window_records(data, [token], wanted)[0]


def _checkpoint(s: State, row: Row) -> None:
    with suppress(DeviceError):
        s.device.start_checkpoint_async(row.seq)


# -- several at once --------------------------------------------------------------------------------------------------


def _together(s: State, rows: list[Row]) -> bool:
    """Whether one decode serves all: only without drafter context, and if the device can verify pairs in a batch."""
    if len(rows) < 2 or s.modes.dflash or s.config.dflash_unified_ctx or s.config.dflash_serial_append:
        return False
    return s.device.can_batch_verify([2] * len(rows))


def _bootstrap_together(s: State, rows: list[Row], width: int) -> None:
    """S4 section 8.3. Any failure of the forward or a pick ends all rows."""
    rows = sorted(rows, key=lambda row: row.seq.slot)
    try:
        s.device.decode_batch([row.last_token for row in rows], [row.seq for row in rows], 0)
        tokens = _pick_together(s, rows)
        records = [_record(s, row, tokens[index], index) for index, row in enumerate(rows)]
    except DeviceError:
        for row in rows:
            row.finished = True
        return
    proposing: list[int] = []
    for index, row in enumerate(rows):
        emit(s, row, tokens[index], records[index])
        if not row.finished:
            row.last_token = tokens[index]
            proposing.append(index)
    if proposing:
        with suppress(DeviceError):
            s.device.stash_verify_hidden_rows(proposing, 0)
        propose_from_stash(s, [(at, rows[index]) for at, index in enumerate(proposing)], width)
    for row in rows:
        if not row.finished:
            _checkpoint(s, row)


def _pick_together(s: State, rows: list[Row]) -> list[int]:
    if sum(map(_greedy, rows)) < 2:
        return [_pick(s, row, index) for index, row in enumerate(rows)]
    answers = s.device.argmax_batch(0, len(rows), 0)
    return [answers[index] if _greedy(row) else _pick(s, row, index) for index, row in enumerate(rows)]


def propose_from_stash(s: State, entries: list[tuple[int, Row]], count: int) -> None:
    """Drafts for (stash index, row) pairs: in groups where a group has two or more, else one by one. A failed group
    gets none; a declined one is asked one by one."""
    batchable = [entry for entry in entries if not entry[1].request.grammar]
    leftovers = [entry for entry in entries if entry[1].request.grammar]
    limit = min(s.device.facts.propose_batch_max, MTP_MAX_SEQS)
    for at in range(0, len(batchable), limit):
        group = batchable[at : at + limit]
        if len(group) < 2 or not _propose_group(s, group, count):
            leftovers += group
    for index, row in sorted(leftovers, key=lambda entry: entry[0]):
        propose_one_from_stash(s, index, row, under_grammar(row, count))


def propose_one_from_stash(s: State, index: int, row: Row, count: int) -> None:
    """One row's drafts from its stash entry."""
    try:
        s.device.save_hidden_for_mtp_from_stash(index, 0)
    except DeviceError:
        return
    propose(s, row, count)


def _propose_group(s: State, group: list[tuple[int, Row]], count: int) -> bool:
    """One batched propose; False only when the device declined."""
    rows = [row for _index, row in group]
    try:
        answer = s.device.run_mtp_propose_batched(
            [row.last_token for row in rows],
            [row.seq.seq_len for row in rows],
            [index for index, _row in group],
            count,
            [row.seq for row in rows],
            0,
        )
    except DeviceError:
        return True
    if answer is None:
        return False
    for row, drafts, confidences in zip(rows, *answer, strict=True):
        row.drafts = drafts
        row.draft_confidences = confidences
    return True
