"""Verify several MTP sequences in one forward: who takes part, how deep, what follows (S4 9.2, 9.3, 11.3)."""

from __future__ import annotations

from contextlib import suppress
from itertools import accumulate

from ..config import MTP_MAX_SEQS
from ..io import DeviceError
from ..row import Row
from ..state import State
from .bootstrap import propose_from_stash
from .verdict import Window, judge, read_window

VERIFY_ROW_BUDGET = 160
CATCHUP_ROWS = 4
DCUT_WIDTH_CAP = 8
CANONICAL_WIDTH = 8


def batch_and_serial(rows: list[Row], width: int) -> tuple[list[Row], list[Row]]:
    """Rows that can share a forward of ``width`` drafts each (cut to that many), and the others, in batch order."""
    batch: list[Row] = []
    serial: list[Row] = []
    for row in rows:
        if not row.request.grammar and len(row.drafts) >= width:
            if len(row.drafts) > width:
                truncate(row, width)
            batch.append(row)
        else:
            serial.append(row)
    return batch, serial


def truncate(row: Row, count: int) -> None:
    """Keep the first ``count`` drafts and their confidences."""
    row.drafts = row.drafts[:count]
    row.draft_confidences = row.draft_confidences[:count]


def prune(batch: list[Row], width: int) -> list[Row]:
    """D-Cut: spend verify rows on the likeliest drafts. Cuts each row's drafts to its depth and returns the dispatch
    order (S4 section 9.2)."""
    if width < 2 or not batch or len(batch) > DCUT_WIDTH_CAP:
        return batch
    depths = _depths(batch, width)
    order = sorted(range(len(batch)), key=lambda i: (-depths[i], i))
    if len(batch) >= CANONICAL_WIDTH:
        depths = sorted(depths, reverse=True)
        order = list(range(len(batch)))
    for index, row in enumerate(batch):
        truncate(row, depths[index])
    return [batch[index] for index in order]


def _depths(batch: list[Row], width: int) -> list[int]:
    """Drafts to verify per row: the first always, deeper ones by their summed log-confidence."""
    count = len(batch)
    candidates = count * (width - 1)
    keep = min((3 * candidates + 2) // 4, VERIFY_ROW_BUDGET - 2 * count, candidates)
    ranked = sorted(
        (-_score(row, position), index, position) for index, row in enumerate(batch) for position in range(2, width + 1)
    )
    depths = [1] * count
    for _rank, index, position in ranked[: max(0, keep)]:
        depths[index] = max(depths[index], position)
    return depths


def _score(row: Row, position: int) -> float:
    if len(row.draft_confidences) != len(row.drafts):
        return 0.0
    return sum(row.draft_confidences[:position]) + 0.0


def chunks_of(batch: list[Row]) -> list[list[Row]]:
    """Greedy cuts: at most 160 rows and min(160 // rows of the first, 32) sequences each."""
    chunks: list[list[Row]] = []
    room_rows = room_seqs = 0
    for row in batch:
        rows = len(row.drafts) + 1
        if not chunks or rows > room_rows or room_seqs == 0:
            chunks.append([])
            room_rows = VERIFY_ROW_BUDGET
            room_seqs = min(VERIFY_ROW_BUDGET // rows, MTP_MAX_SEQS)
        chunks[-1].append(row)
        room_rows -= rows
        room_seqs -= 1
    return chunks


def verify_batched(s: State, batch: list[Row], ask: int) -> None:
    """One forward over all windows, one fold, the verdicts in order, then catch-up and proposes (S4 section 11.3)."""
    drafts = [row.drafts for row in batch]
    bases = [row.seq.seq_len for row in batch]
    inputs = [[row.last_token, *row.drafts] for row in batch]
    counts = list(map(len, inputs))
    offsets = [0, *accumulate(counts)]
    for row in batch:
        row.drop_drafts()
    try:
        s.device.sync_secondary()
        flat = [token for one in inputs for token in one]
        answers = s.device.decode_verify_batched(flat, counts, [row.seq for row in batch], 0, True)
        windows = []
        now = s.io.clock.now()
        for index, row in enumerate(batch):
            at = offsets[index]
            window = read_window(s, row, bases[index], drafts[index], answers[at : offsets[index + 1]], at)
            s.rung.record(len(batch), window.rows - 1, window.accepted, now)
            windows.append(window)
        _stash(s, windows, offsets)
        s.device.gdn_fold_accepted([row.seq for row in batch], [window.accepted + 1 for window in windows], max(counts))
    except DeviceError:
        for row in batch:
            row.finished = True
        return
    for row, window in zip(batch, windows, strict=True):
        try:
            judge(s, row, window, serial=False)
        except DeviceError:
            row.finished = True
    survivors = [index for index, row in enumerate(batch) if not row.finished and not row.drafts]
    if survivors:
        _catch_up(s, batch, windows, survivors)
        propose_from_stash(s, [(index, batch[index]) for index in survivors], ask)


def _stash(s: State, windows: list[Window], offsets: list[int]) -> None:
    """Keep the drafter's input row of every window, and the rows of accepted drafts for its catch-up."""
    rows: list[int] = []
    pairs: list[tuple[int, int]] = []
    slot = 0
    for offset, window in zip(offsets, windows, strict=False):
        accepted = window.accepted
        rows.append(offset + accepted)
        for step in range(min(accepted, CATCHUP_ROWS)):
            pairs.append((slot + step, offset + step))
        slot += CATCHUP_ROWS
    with suppress(DeviceError):
        s.device.stash_verify_hidden_rows(rows, 0)
    if pairs:
        with suppress(DeviceError):
            s.device.stash_verify_catchup_rows(pairs)


def _catch_up(s: State, batch: list[Row], windows: list[Window], survivors: list[int]) -> None:
    """Drafter rows for the accepted drafts of every survivor, if any has some."""
    tokens = [windows[index].kept[:CATCHUP_ROWS] for index in survivors]
    if not any(tokens):
        return
    positions = [batch[index].seq.seq_len - len(own) for index, own in zip(survivors, tokens, strict=True)]
    with suppress(DeviceError):
        s.device.run_mtp_catchup_batched(tokens, [CATCHUP_ROWS * index for index in survivors], positions)
