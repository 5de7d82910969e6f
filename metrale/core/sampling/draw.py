"""From edited logits to a token: arg-max with a written tie rule, or one seeded draw (S3 sections 5.3 and 5.4)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..request import SamplingParams
from .chacha import draw24

Logits = NDArray[np.float32]
PENALTY_WINDOW = 256
_MASK64 = 0xFFFFFFFFFFFFFFFF


def expand_bf16(data: bytes) -> Logits:
    """bf16, little-endian, to f32: the two bytes are the upper half of the float."""
    halves = np.frombuffer(data, dtype="<u2").astype(np.uint32)
    return (halves << np.uint32(16)).view(np.float32)


def first_maximum(logits: Logits) -> int:
    """The lowest id among the maxima: first tokens and verify picks."""
    return int(logits.argmax())


def last_maximum(logits: Logits) -> int:
    """The highest id among the maxima: decode picks of the plain path."""
    return len(logits) - 1 - int(logits[::-1].argmax())


def sample(logits: Logits, params: SamplingParams, seed: int) -> int:
    """One draw at temperature > 0, in f32, over the finite candidates in id order.

    The draw is ``draw24(seed) / 2**24`` (the seed wraps at 64 bits). Returns the first candidate whose running weight
    reaches the drawn share; the last maximum when nothing is finite.
    """
    ids = _candidates(logits, params)
    if not len(ids):
        return last_maximum(logits)
    weights = _weights(logits[ids], np.float32(params.temperature))
    if params.min_p > 0.0:
        keep = weights >= np.float32(params.min_p)
        ids, weights = ids[keep], weights[keep]
    if 0.0 < params.top_p < 1.0:
        ids, weights = _nucleus(ids, weights, params.top_p)
    running = np.cumsum(weights, dtype=np.float32)
    share = np.float32(draw24(seed & _MASK64) / 2**24)
    reached = running >= share * running[-1]
    return int(ids[int(reached.argmax())]) if reached.any() else int(ids[-1])


def _weights(values: Logits, temperature: np.float32) -> Logits:
    """exp(value / temperature - the largest of these); a temperature too small to divide by leaves the maxima alone."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        scaled = values / temperature
        peak = scaled.max()
        weights: Logits = np.exp(scaled - peak)
    return weights if np.isfinite(peak) else (values == values.max()).astype(np.float32)


def _candidates(logits: Logits, params: SamplingParams) -> NDArray[np.intp]:
    """Finite ids in ascending order, after top-n-sigma and top-k."""
    ids = np.flatnonzero(np.isfinite(logits))
    if params.top_n_sigma > 0.0 and len(ids):
        values = logits[ids]
        ids = ids[values >= values.max() - np.float32(params.top_n_sigma) * values.std()]
    if 0 < params.top_k < len(ids):
        best = np.argsort(-logits[ids], kind="stable")[: params.top_k]
        ids = ids[np.sort(best)]
    return ids


def _nucleus(
    ids: NDArray[np.intp], weights: NDArray[np.float32], top_p: float
) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """The smallest set of likeliest candidates with at least ``top_p`` of the weight, back in id order."""
    order = np.argsort(-weights, kind="stable")
    reach = np.cumsum(weights[order], dtype=np.float32)
    count = int(np.searchsorted(reach, np.float32(top_p) * reach[-1])) + 1
    keep = np.sort(order[:count])
    return ids[keep], weights[keep]


def penalize(logits: Logits, params: SamplingParams, history: list[int]) -> None:
    """Repetition, frequency and presence, LZ, DRY, then bias, in place (S3 section 5.3). Ids beyond the vocabulary
    are passed over."""
    window = [token for token in history[-PENALTY_WINDOW:] if 0 <= token < len(logits)]
    if params.repetition_penalty > 0.0 and params.repetition_penalty != 1.0:
        factor = np.float32(params.repetition_penalty)
        for token in window:
            logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
    if params.frequency_penalty or params.presence_penalty:
        for token in sorted(set(window)):
            logits[token] -= np.float32(params.frequency_penalty * window.count(token) + params.presence_penalty)
    if params.lz_penalty > 0.0 and len(history) >= 4:
        for token, length in _continuations(history, len(logits)):
            logits[token] -= np.float32(params.lz_penalty * length)
    if params.dry_multiplier > 0.0 and len(history) >= 3:
        for token, length in _continuations(history, len(logits)):
            if length >= params.dry_allowed_length:
                weight = params.dry_multiplier * params.dry_base ** (length - params.dry_allowed_length)
                logits[token] -= np.float32(weight)
    for token, bias in params.logit_bias:
        if 0 <= token < len(logits):
            logits[token] += np.float32(bias)


def _continuations(history: list[int], vocab: int) -> list[tuple[int, int]]:
    """Ids that would continue a repeat of the history's end, each with the longest match length, in id order."""
    longest: dict[int, int] = {}
    count = len(history)
    for end in range(count - 1):
        length = 0
        while length <= end and history[end - length] == history[count - 1 - length]:
            length += 1
        follower = history[end + 1]
        if length and 0 <= follower < vocab:
            longest[follower] = max(longest.get(follower, 0), length)
    return sorted(longest.items())
