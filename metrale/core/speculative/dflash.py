"""DFlash: block drafts verified at any width, alone or in a batch, on the raw argmax (S4 8.2, 9.1, 11)."""

from __future__ import annotations

from contextlib import suppress

from ..io import DeviceError
from ..row import Row
from ..state import State
from .bootstrap import bootstrap, propose_one_from_stash
from .emit import emit, emit_run
from .serial import verify_serial
from .verdict import Window, commit_dflash_context, count_verified, propose, save_hidden, trim, under_grammar


def bootstrap_dflash(s: State, row: Row, asked: int, width: int) -> None:
    """No decode: propose from the context and verify at most three drafts at once, in the same step."""
    propose(s, row, under_grammar(row, asked))
    drafts = row.drafts
    row.drop_drafts()
    if not drafts:
        bootstrap(s, row, width)
        return
    take = max(1, min(3, under_grammar(row, asked), len(drafts)))
    verify_serial(s, row, drafts[:take], asked)


def split_batch(s: State, rows: list[Row]) -> tuple[list[list[Row]], list[Row]]:
    """Batches of equal draft counts that the device takes in one forward, and the rows verified alone (S4 9.1)."""
    batch: list[Row] = []
    serial: list[Row] = []
    for row in rows:
        if not row.request.grammar and (not batch or len(row.drafts) == len(batch[0].drafts)):
            batch.append(row)
        else:
            serial.append(row)
    size = len(batch)
    while size >= 2 and not s.device.can_batch_verify([len(batch[0].drafts) + 1] * size):
        size -= 1
    if size < 2:
        return [], serial + batch
    chunks = [batch[at : at + size] for at in range(0, len(batch), size)]
    if len(chunks[-1]) == 1:
        serial += chunks.pop()
    return chunks, serial


def verify_dflash(s: State, row: Row, asked: int) -> None:
    """One sequence, any number of drafts, no expert-parallel words (S4 section 11.1). A failure ends the row."""
    drafts = row.drafts
    row.drop_drafts()
    if not drafts:
        return
    base = row.seq.seq_len
    try:
        s.device.sync_secondary()
        picks = s.device.decode_verify_dflash([row.last_token, *drafts], row.seq)
    except DeviceError:
        row.finished = True
        return
    window = Window(base, drafts, picks)
    count_verified(s, window)
    row.seq.rewind(len(drafts) - window.accepted)
    if s.config.dflash_unified_ctx:
        commit_dflash_context(s, row, window)
    else:
        with suppress(DeviceError):
            s.device.dflash_eagle_kgamma_append(row.seq, window.accepted, base)
    if not emit_run(s, row, window.tokens):
        return
    row.last_token = window.extra
    try:
        s.device.commit_accepted_prefix(row.seq, window.accepted + 1, window.rows)
    except DeviceError:
        row.finished = True
        return
    save_hidden(s, window.accepted)
    trim(s, row, window.accepted)
    propose(s, row, asked)


def verify_dflash_batched(s: State, batch: list[Row], asked: int) -> None:
    """Several sequences with as many drafts each (S4 section 11.2). A finished one does not stop the batch; a failed
    forward leaves the drafts for the next tick, a short answer ends everybody."""
    rows = len(batch[0].drafts) + 1
    bases = [row.seq.seq_len for row in batch]
    inputs = [token for row in batch for token in (row.last_token, *row.drafts)]
    try:
        s.device.sync_secondary()
    except DeviceError:
        _end_all(batch)
        return
    try:
        answers = s.device.decode_verify_batched(inputs, [rows] * len(batch), [row.seq for row in batch], 0, True)
    except DeviceError:
        return
    if len(answers) < len(inputs):
        _end_all(batch)
        return
    windows = []
    for index, row in enumerate(batch):
        windows.append(Window(bases[index], row.drafts, answers[index * rows : (index + 1) * rows]))
        row.drop_drafts()
        _emit_window(s, row, windows[-1], index * s.device.facts.capture_band)
    try:
        s.device.gdn_fold_accepted([row.seq for row in batch], [window.accepted + 1 for window in windows], rows)
    except DeviceError:
        _end_all(batch)
        return
    _commit_and_propose(s, batch, windows, asked)


def _emit_window(s: State, row: Row, window: Window, scratch_row: int) -> None:
    """Rewind, context, accepted drafts, then the bonus if the row still lives."""
    count_verified(s, window)
    row.seq.rewind(len(window.drafts) - window.accepted)
    commit_dflash_context(s, row, window, scratch_row)
    if emit_run(s, row, window.kept):
        emit(s, row, window.extra)
        row.last_token = window.extra


def _commit_and_propose(s: State, batch: list[Row], windows: list[Window], asked: int) -> None:
    rows = windows[0].rows
    for row, window in zip(batch, windows, strict=True):
        try:
            s.device.commit_accepted_prefix(row.seq, window.accepted + 1, rows)
        except DeviceError:
            row.finished = True
    with suppress(DeviceError):
        stash = [index * rows + window.accepted for index, window in enumerate(windows)]
        s.device.stash_verify_hidden_rows(stash, 0)
    alive = [index for index, row in enumerate(batch) if not row.finished]
    for index in alive:
        trim(s, batch[index], windows[index].accepted)
    if not _propose_together(s, batch, alive, asked):
        for index in alive:
            propose_one_from_stash(s, index, batch[index], asked)


def _propose_together(s: State, batch: list[Row], alive: list[int], asked: int) -> bool:
    """Batched proposes for all; False as soon as a group is too small, declined or failed: everybody is then asked
    alone."""
    candidates = [index for index in alive if not batch[index].request.grammar]
    limit = s.device.facts.propose_batch_max
    groups = [candidates[at : at + limit] for at in range(0, len(candidates), limit)]
    for group in groups:
        if len(group) < 2:
            return False
        rows = [batch[index] for index in group]
        try:
            answer = s.device.run_mtp_propose_batched(
                [row.last_token for row in rows],
                [row.seq.seq_len for row in rows],
                group,
                asked,
                [row.seq for row in rows],
                0,
            )
        except DeviceError:
            return False
        if answer is None:
            return False
        for row, drafts in zip(rows, answer[0], strict=True):
            row.drafts = drafts
    return True


def _end_all(batch: list[Row]) -> None:
    for row in batch:
        row.drop_drafts()
        row.finished = True
