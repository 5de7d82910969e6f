"""How the rows of a tile reach the kernels: one by one, as the reference takes them, or all in one launch where the
backend offers it (``attend_paged``, ``delta_rows``, ``rope_and_write``, ``feed_ids``)."""

from __future__ import annotations

from types import ModuleType

import torch

from .shapes import Paging, Runs

Tensor = torch.Tensor


def attention(k: ModuleType, q: Tensor, keys: Tensor, values: Tensor, paging: Paging, scale: float) -> Tensor:
    """Live rows of q [R, H, D], each over its own context; rows of padding answer 0."""
    if hasattr(k, "attend_paged"):
        return k.attend_paged(q, keys, values, paging, scale)
    mixed = torch.zeros_like(q)
    for i in range(len(paging.contexts)):
        start, context = paging.starts[i], paging.contexts[i]
        mixed[i] = k.attend(q[i], keys, values, paging.tables[i], context, start, scale)
    return mixed


def feed_ids(k: ModuleType, sources: Tensor, fed: Tensor, cells: Tensor) -> Tensor:
    """Input ids [R]: the feed cell ``sources[r]`` where ``fed``, else ``sources[r]`` itself; all int64."""
    if hasattr(k, "feed_ids"):
        return k.feed_ids(sources, fed.bool(), cells)
    return torch.where(fed.bool(), cells.index_select(0, sources * fed), sources)


def picks_to_feed(k: ModuleType, logits: Tensor, masks: Tensor, cells: Tensor) -> Tensor:
    """Masked picks of logits [R, V], into the first R feed cells as well; the host does not wait for them."""
    if hasattr(k, "masked_argmax_to_feed"):
        return k.masked_argmax_to_feed(logits, masks, cells)
    picks = k.masked_argmax(logits, masks)
    cells[: picks.shape[0]] = picks
    return picks


def rope_write(
    k: ModuleType, q: Tensor, key: Tensor, value: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, where: Tensor,
    keys: Tensor, values: Tensor,
) -> Tensor:  # fmt: skip
    """Rotated q [R, H, D]; rotated key and value [R, KV, D] go into the pools at flat ``where`` [R]. cos and sin
    [positions, half]."""
    if hasattr(k, "rope_and_write"):
        return k.rope_and_write(q, key, value, positions, cos, sin, where, keys, values)
    cos, sin = cos.index_select(0, positions), sin.index_select(0, positions)
    k.write_kv(keys, values, k.rope(key, cos, sin), value, where)
    return k.rope(q, cos, sin)


def delta_rule(
    k: ModuleType,
    states: Tensor,
    runs: Runs,
    q: Tensor,
    key: Tensor,
    v: Tensor,
    beta: Tensor,
    decay: Tensor,
    keep: bool,
) -> tuple[Tensor, list[Tensor]]:
    """Live rows in order, on states [slots, Hv, Dk, Dv] in place; q and key [R, Hk, Dk], v [R, Hv, Dv]: out [R, Hv,
    Dv], and with ``keep`` the state after each row."""
    if hasattr(k, "delta_rows"):
        slots, starts = runs.arrays(v.device)
        between = torch.empty((len(runs.slots), *states.shape[1:]), device=v.device) if keep else None
        live = len(runs.slots)
        rows = [x[:live].contiguous() for x in (q, key, v, beta, decay)]
        out = k.delta_rows(states, slots, starts, *rows, between)
        if live < v.shape[0]:
            out = torch.cat((out, torch.zeros_like(v[live:])))
        return out, [] if between is None else list(between)
    shared = torch.arange(v.shape[1], device=v.device) // (v.shape[1] // key.shape[1])
    q, key = q.index_select(1, shared), key.index_select(1, shared)
    out = torch.zeros_like(v)
    kept = []
    for i, slot in enumerate(runs.slots):
        state, out[i] = k.delta_step(states[slot], q[i], key[i], v[i], beta[i], decay[i])
        states[slot] = state
        if keep:
            kept.append(state)
    return out, kept
