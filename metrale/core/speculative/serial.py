"""Verify one sequence with a forward of its own: K = 2, 3, 4 rows (S4 section 10)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ..io import Device, DeviceError
from ..row import Row
from ..sequence import Sequence
from ..state import State
from .verdict import judge, propose, read_window, under_grammar

EP_VERIFY = 0xFFFFFFF0
"""Plus the row count: the command word of a K-row verify."""

Forward = Callable[[list[int], Sequence], list[int]]


def graphed_forward(device: Device, rows: int) -> Forward:
    """The fixed-width verify call."""
    return {
        2: device.decode_verify_graphed,
        3: device.decode_verify_graphed_k3,
        4: device.decode_verify_graphed_k4,
    }[rows]


def announced_verify(s: State, row: Row, inputs: list[int], forward: Forward) -> list[int]:
    """Sync, command word, one word per input, the forward (S4 section 10, head). Raises DeviceError."""
    s.device.sync_secondary()
    s.device.ep_broadcast_cmd_for_seq(row.seq.ep_slot, EP_VERIFY + len(inputs))
    for token in inputs:
        s.device.ep_broadcast_cmd(token)
    return forward(inputs, row.seq)


def verify_serial(s: State, row: Row, drafts: list[int], ask: int) -> None:
    """Verify ``drafts`` (1, 2 or 3 of them) and propose ``ask`` new ones."""
    rows = len(drafts) + 1
    forward = s.device.decode_and_verify_fused if s.modes.dflash else graphed_forward(s.device, rows)
    base = row.seq.seq_len
    try:
        answers = announced_verify(s, row, [row.last_token, *drafts], forward)
        window = read_window(s, row, base, drafts, answers, 0, raw=s.modes.dflash)
        if rows == 4:
            s.rung.record(1, len(drafts), window.accepted, s.io.clock.now())
        s.device.ep_broadcast_cmd(window.accepted)
    except DeviceError as error:
        row.error = error.text
        row.finished = True
        return
    try:
        alive = judge(s, row, window, serial=True)
    except DeviceError as error:
        row.finished = True
        if rows < 4:
            row.error = error.text
        return
    if not alive:
        return
    propose(s, row, ask if rows == 4 else under_grammar(row, ask))
    if rows == 2:
        with suppress(DeviceError):
            s.device.decode_marconi_checkpoint(row.seq)
