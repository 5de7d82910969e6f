"""One MTP or DFlash step over the whole batch: widths, bootstraps, then verifies (S4 sections 6 and 9)."""

from __future__ import annotations

from contextlib import suppress

from ..io import DeviceError
from ..row import Row
from ..state import State
from .batched import batch_and_serial, chunks_of, prune, verify_batched
from .bootstrap import bootstrap_all
from .dflash import bootstrap_dflash, split_batch, verify_dflash, verify_dflash_batched
from .serial import verify_serial


def mtp_step(s: State) -> None:
    """Who holds drafts when the step begins is verified; the others bootstrap, before any verify."""
    active = s.active
    asked = s.modes.num_drafts
    width = asked if s.modes.dflash else s.rung.width(len(active), asked)
    to_verify = [row for row in active if row.drafts]
    to_boot = [row for row in active if not row.drafts]
    width = min(width, *[s.device.mtp_slot_draft_capacity(row.seq.slot) for row in active])
    if s.io.telemetry.enabled:
        s.io.telemetry.draft_width(width)
    if to_boot:
        with suppress(DeviceError):
            s.device.sync_secondary()
        if s.modes.dflash:
            for row in to_boot:
                bootstrap_dflash(s, row, asked, width)
        else:
            bootstrap_all(s, to_boot, width)
    if s.modes.dflash:
        _verify_dflash_rows(s, to_verify, asked)
    else:
        _verify_mtp_rows(s, to_verify, width)


def _verify_mtp_rows(s: State, rows: list[Row], width: int) -> None:
    serial = rows
    if len(rows) >= 2 and width >= 1:
        batch, serial = batch_and_serial(rows, width)
        for chunk in chunks_of(prune(batch, width)):
            if len(chunk) >= 2 and s.device.can_batch_verify([len(row.drafts) + 1 for row in chunk]):
                verify_batched(s, chunk, width)
            else:
                serial = serial + chunk
    for row in serial:
        drafts = row.drafts[:width]
        row.drop_drafts()
        if drafts:
            verify_serial(s, row, drafts[:3], width)


def _verify_dflash_rows(s: State, rows: list[Row], asked: int) -> None:
    if len(rows) < 2:
        for row in rows:
            _verify_dflash_alone(s, row, asked)
        return
    chunks, serial = split_batch(s, rows)
    for chunk in chunks:
        verify_dflash_batched(s, chunk, asked)
    for row in serial:
        verify_dflash(s, row, asked)


def _verify_dflash_alone(s: State, row: Row, asked: int) -> None:
    """The only verify of a step: four drafts or more take the DFlash call, fewer the fixed widths (S4 section 9.4)."""
    if len(row.drafts) >= 4:
        verify_dflash(s, row, asked)
        return
    drafts = row.drafts[: max(1, min(asked, 3))]
    row.drop_drafts()
    verify_serial(s, row, drafts, asked)
