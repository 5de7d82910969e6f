"""The logit stages before a host pick, in the order of the table of S3 section 5.2.

Stages 3, 5, 7, 8 and 9 of that table need a mid-word mask, tool-call ids or a grammar that forbids something; no
configuration here has them, so they have no entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..config import MIN_REASONING_FLOOR, SchedulerConfig
from ..row import Row
from .draw import Logits

CONFIDENCE_FROM_TOKENS = 400
CONFIDENCE_SHARE = 0.95
CONFIDENCE_RUN = 60
OVERRIDE_DEFERRALS = 64
OVERRIDE_TOKENS = 2048
EARLY_CLOSE_BIAS = -8.0


@dataclass(slots=True, frozen=True)
class Pick:
    """One host pick: the row, and its position in a verify window (0 on the plain path)."""

    row: Row
    config: SchedulerConfig
    position: int = 0


def _mask(logits: Logits, token: int | None) -> None:
    if token is not None and 0 <= token < len(logits):
        logits[token] = -np.inf


def _below_floor(pick: Pick) -> bool:
    return pick.row.floor > 0 and len(pick.row.outputs) + pick.position < pick.row.floor


def _mask_eos(logits: Logits, pick: Pick) -> None:
    for token in sorted(pick.row.eos):
        _mask(logits, token)


def _thinks_long(pick: Pick) -> bool:
    think = pick.row.think
    return think.inside and not think.force_end and think.tokens >= CONFIDENCE_FROM_TOKENS


def _watch_confidence(logits: Logits, pick: Pick) -> None:
    """Sixty confident tokens in a row arm the forced end; logits stay as they are."""
    think = pick.row.think
    share = 1.0 / float(np.exp(logits.astype(np.float64) - float(logits.max())).sum())
    think.confident_run = think.confident_run + 1 if share >= CONFIDENCE_SHARE else 0
    if think.confident_run >= CONFIDENCE_RUN:
        think.force_end = True
        think.deferrals = 0


def _thinking_is_over(pick: Pick) -> bool:
    return pick.row.think.over


def _mask_think_ids(logits: Logits, pick: Pick) -> None:
    _mask(logits, pick.config.think_end_token)
    _mask(logits, pick.config.think_start_token)


def _must_end_thinking(pick: Pick) -> bool:
    return pick.row.think.inside and pick.row.think.force_end


def _force_think_end(logits: Logits, pick: Pick) -> None:
    """Inject the think-end id at a boundary, or anyway once the override holds (S3 section 5.2.1)."""
    row, end = pick.row, pick.config.think_end_token
    think = row.think
    limit = OVERRIDE_TOKENS if think.budget is None else 3 * think.budget
    override = think.tokens >= limit or think.deferrals >= OVERRIDE_DEFERRALS
    boundary = bool(row.outputs) and row.outputs[-1] in pick.config.boundary_tokens
    if end is not None and (override or boundary):
        if 0 <= end < len(logits):
            logits[:] = -np.inf
            logits[end] = 0.0
    else:
        think.deferrals += 1


Stage = tuple[str, Callable[[Pick], bool], Callable[[Logits, Pick], None]]

STAGES: tuple[Stage, ...] = (
    ("min_tokens_eos_mask", _below_floor, _mask_eos),
    ("f2_confidence_early_stop", _thinks_long, _watch_confidence),
    ("post_close_think_mask", _thinking_is_over, _mask_think_ids),
    ("forced_think_end_injector", _must_end_thinking, _force_think_end),
)


def run_stages(logits: Logits, pick: Pick) -> None:
    """Edit ``logits`` in place, stage by stage."""
    for _name, active, act in STAGES:
        if active(pick):
            act(logits, pick)


def early_close_bias(logits: Logits, pick: Pick) -> None:
    """A push against closing a thought at once: while fewer than 16 thinking tokens, if the budget allows as many."""
    think, end = pick.row.think, pick.config.think_end_token
    roomy = think.budget is None or think.budget >= MIN_REASONING_FLOOR
    if think.inside and think.tokens < MIN_REASONING_FLOOR and roomy and end is not None and end < len(logits):
        logits[end] += np.float32(EARLY_CLOSE_BIAS)
