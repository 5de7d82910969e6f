"""Logprob records (S3 section 5.6)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True, frozen=True)
class LogprobRecord:
    """One pick: its id, its log-probability, and the ``top`` list of (id, log-probability), best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def logprob_record(logits: NDArray[np.float32], token: int, count: int) -> LogprobRecord:
    """The record of ``token`` over ``logits`` as they are after masks, penalties and bias.

    ``top`` has min(count, vocabulary) entries; masked ids may appear with minus infinity, which is also the
    log-probability of a ``token`` outside the vocabulary. Ties go to the lower id.
    """
    wide = logits.astype(np.float64)
    peak = wide.max()
    if np.isneginf(peak):
        logs = np.full_like(wide, -np.inf)
    else:
        logs = wide - peak - np.log(np.exp(wide - peak).sum())
    order = np.argsort(-wide, kind="stable")[: min(count, len(wide))]
    own = float(logs[token]) if 0 <= token < len(logs) else -np.inf
    return LogprobRecord(token, own, tuple((int(i), float(logs[i])) for i in order))
