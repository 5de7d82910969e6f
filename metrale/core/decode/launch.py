"""Launching a plain decode step: retry under KV exhaustion, victim choice, parking (S1 section 14, S5 section 9)."""

from __future__ import annotations

from ..config import SchedulerConfig
from ..io import Ctx, Decode, DeviceLost, ForwardFailed, KvExhausted, Readback, StepError, Ticket
from ..parking import requeue, spill_out
from ..retire import fail_all
from ..row import Row
from ..state import State
from .readback import argmax_eligible, row_mask


def context_commit(config: SchedulerConfig, rows: int) -> Ctx:
    """The drafter-context flavour of a step of ``rows`` rows (S5 section 2.2)."""
    if config.dflash_unified_ctx:
        return Ctx.UNIFIED
    return Ctx.SERIAL_APPEND if rows == 1 and config.dflash_serial_append else Ctx.NONE


def launch_decode(s: State, masked: bool) -> Ticket | None:
    """Launch one token for every active row; None when the whole batch was failed. ``masked``: picks also go to the
    feed cells.

    Each exhaustion parks one victim and tries again with the rest; everything is computed anew per attempt. Any other
    failure ends every row.
    """
    while True:
        rows = s.active
        if s.io.telemetry.enabled:
            s.io.telemetry.decode_batch(len(rows))
        plan = Decode(
            tokens=[row.last_token for row in rows],
            ctx=context_commit(s.config, len(rows)),
            readback=Readback.ARGMAX if argmax_eligible(s, rows) else Readback.HOST_LOGITS,
        )
        if masked and plan.readback is Readback.ARGMAX:
            plan.readback = Readback.ARGMAX_MASKED
            plan.masks = [row_mask(row, s.config) for row in rows]
        try:
            return s.router.launch(plan, [row.seq for row in rows])
        except ForwardFailed as error:
            victim = choose_victim(s) if isinstance(error.cause, KvExhausted) and len(rows) > 1 else None
            if victim is None:
                fail_step(s, error)
                return None
            s.active.remove(victim)
            _park(s, victim)
        except StepError as error:
            fail_step(s, error)
            return None


def fail_step(s: State, error: StepError) -> None:
    """Every active row gets the error; a lost device asks for shutdown (D32)."""
    if isinstance(error.cause, DeviceLost):
        s.device_lost = True
    fail_all(s, error.text)


def choose_victim(s: State) -> Row | None:
    """The row to park: no grammar, and re-prefillable or spillable; rows past their immunity first; then fewest
    outputs, lowest slot."""
    eligible = [
        row for row in s.active if not row.request.grammar and (s.io.spill is not None or not row.request.vision_pads)
    ]
    exposed = [row for row in eligible if len(row.outputs) >= row.immune_until]
    return min(exposed or eligible, key=lambda row: (len(row.outputs), row.seq.slot), default=None)


def _park(s: State, victim: Row) -> None:
    if s.io.spill is None or spill_out(s, victim) is not None:
        requeue(s, victim)
