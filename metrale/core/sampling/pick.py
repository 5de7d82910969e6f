"""Host picks for the three places that need one: first tokens, plain decode rows, verify windows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..config import SchedulerConfig
from ..request import SamplingParams
from ..row import Row
from .draw import Logits, expand_bf16, first_maximum, last_maximum, penalize, sample
from .record import LogprobRecord, logprob_record
from .stages import Pick, early_close_bias, run_stages


def pick_first(data: bytes, suppressed: frozenset[int], params: SamplingParams) -> int:
    """First token or bootstrap pick from one bf16 row (S2 section 5.1): suppressed ids masked, the lowest maximum at
    temperature 0, else one draw with neutral penalties from the request's seed."""
    logits = expand_bf16(data).copy()
    for token in sorted(suppressed):
        if token < len(logits):
            logits[token] = -np.inf
    if params.temperature <= 0.0:
        return first_maximum(logits)
    return sample(logits, params, params.seed)


def pick_decode(data: bytes, row: Row, config: SchedulerConfig) -> tuple[int, LogprobRecord | None]:
    """One plain decode pick from one bf16 row, with a record if the request asks for logprobs (S3 section 5.1).

    At temperature 0 the highest of equal maxima wins; a draw is seeded with seed + outputs so far.
    """
    logits = expand_bf16(data).copy()
    _edit(logits, Pick(row, config))
    params = row.request.sampling
    if params.temperature <= 0.0:
        token = last_maximum(logits)
    else:
        token = sample(logits, params, params.seed + len(row.outputs))
    wanted = row.request.top_logprobs
    return token, None if wanted is None else logprob_record(logits, token, wanted)


def pick_window(data: bytes, count: int, row: Row, config: SchedulerConfig) -> list[int]:
    """Picks of the ``count`` rows of one verify window (S4 section 5.1); the row's thinking state is as before after.

    A think-end pick switches thinking off for the later rows of this window, and for them alone.
    """
    blocks = expand_bf16(data).reshape(count, -1)
    params = row.request.sampling
    saved = replace(row.think)
    picks = []
    for position in range(count):
        logits = blocks[position].copy()
        _edit(logits, Pick(row, config, position))
        if params.temperature <= 0.0:
            token = first_maximum(logits)
        else:
            token = sample(logits, params, params.seed + len(row.outputs) + position)
        if row.think.inside and token == config.think_end_token:
            row.think.inside = False
        picks.append(token)
    row.think = saved
    return picks


def window_records(data: bytes, picks: list[int], count: int) -> list[LogprobRecord]:
    """One logprob record per row of a verify window, over the raw logits (S4 section 5.2)."""
    blocks = expand_bf16(data).reshape(len(picks), -1)
    return [logprob_record(blocks[i], token, count) for i, token in enumerate(picks)]


def _edit(logits: Logits, pick: Pick) -> None:
    """Stages, then penalties and bias over the outputs."""
    run_stages(logits, pick)
    params = pick.row.request.sampling
    if not params.neutral:
        penalize(logits, params, pick.row.outputs)
    if pick.row.think.inside:
        early_close_bias(logits, pick)
