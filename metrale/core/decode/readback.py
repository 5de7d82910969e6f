"""How a step's picks come back, and what is picked from them (S3 section 4)."""

from __future__ import annotations

from ..config import SchedulerConfig
from ..io import HostLogits
from ..row import Row
from ..sampling.pick import pick_decode
from ..sampling.record import LogprobRecord
from ..sequence import NO_ID, RowMask
from ..state import State

LOGIT_BYTES = 2


def argmax_eligible(s: State, rows: list[Row]) -> bool:
    """Whether the device may pick for every row (S3 section 4.1); one ineligible row sends the batch to the host."""
    for row in rows:
        if not row.device_pick or (row.floor and row.floor > len(row.outputs)):
            return False
    if s.config.think_end_token is None and s.config.think_start_token is None:
        return True
    return all(not row.think.inside and (not row.think.over or row.request.sampling.penalties_neutral) for row in rows)


def row_mask(row: Row, config: SchedulerConfig) -> RowMask:
    """Ids that a device pick of this row may not answer: the think ids once thinking is over (S5 section 9.2)."""
    if not row.think.over:
        return NO_ID, NO_ID
    end, start = config.think_end_token, config.think_start_token
    return (NO_ID if end is None else end, NO_ID if start is None else start)


def mask_hit(s: State, rows: list[Row], tokens: list[int]) -> bool:
    """Whether a device pick is a think id of a row past thinking: the whole batch is then picked on the host."""
    end, start = s.config.think_end_token, s.config.think_start_token
    if end is None and start is None:
        return False
    return any(row.think.over and token in (end, start) for row, token in zip(rows, tokens, strict=True))


def read_mixed(s: State, count: int, on_device: bool) -> list[int] | HostLogits:
    """Readback of the decode rows of a mixed forward: a direct device call. Raises DeviceError."""
    if on_device:
        return s.device.argmax_batch(0, count, 0)
    data = s.device.copy_logits_to_host(0, 0, count * LOGIT_BYTES * s.device.facts.vocab_size)
    return HostLogits(data, count)


def pick_rows(
    s: State, rows: list[Row], logits: HostLogits, skip: list[bool] | None
) -> tuple[list[int], list[LogprobRecord | None]]:
    """All picks of a host readback, before the first is processed; a skipped row is not picked (its token is 0)."""
    width = len(logits.data) // logits.rows
    tokens: list[int] = []
    records: list[LogprobRecord | None] = []
    for index, row in enumerate(rows):
        token, record = 0, None
        if skip is None or not skip[index]:
            token, record = pick_decode(logits.data[index * width : (index + 1) * width], row, s.config)
        tokens.append(token)
        records.append(record)
    return tokens, records
