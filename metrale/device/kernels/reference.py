"""The torch reference kernels (CPU).

Every result depends on its own row alone: not on the other rows of a call, not on how many there are, not on where the
row stands. Three rules give that bit for bit. Dense work runs on tiles of exactly :data:`TILE` rows, so a shape never
changes with the batch. What transcends exact IEEE arithmetic (exp, sigmoid) runs on rows of whole vectors, because the
tail of a vector loop may round differently. Work whose size follows the context runs row by row, so its shape depends
on the row's position alone. ``tests/device/test_invariance.py`` holds them to it.

Shapes: R rows, H query heads, G = H / KV heads per K/V head, D head size, L context, W width. Bytes and operations are
those of one call in fp32 storage: ``rms_norm`` 8RW bytes, 4RW operations; ``swiglu`` 12RW, 6RW; ``rope`` 16RHD, 6RHD;
``attend`` 8 KV L D bytes and 4 H L D operations a row; ``delta_step`` 8 Hv Dk Dv bytes and 8 Hv Dk Dv operations a row.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

TILE = 8
VECTOR = 64
NO_ID = 0xFFFFFFFF
NEVER = -1e30

Tensor = torch.Tensor


def whole_vectors(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """An elementwise function on rows padded to whole vectors."""
    spare = -x.shape[-1] % VECTOR
    if not spare:
        return function(x)
    return function(torch.constant_pad_nd(x, (0, spare)))[..., : x.shape[-1]].contiguous()


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)), [R, W]."""
    return whole_vectors(torch.sigmoid, x)


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x), [R, W]."""
    return whole_vectors(F.silu, x)


def embed(table: Tensor, ids: Tensor) -> Tensor:
    """Rows of [V, W] at ids [R]."""
    return table.index_select(0, ids)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b: [TILE, in] with [out, in]."""
    return F.linear(x, weight, bias)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) times the weight, over the last dimension."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def l2_norm(x: Tensor) -> Tensor:
    """x / sqrt(sum(x^2) + 1e-6) over the last dimension."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) up, [R, W]."""
    return silu(gate) * up


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first ``2 * half`` dimensions of [R, heads, D]; cos and sin are [R, half]."""
    half = cos.shape[-1]
    cos, sin = cos[:, None], sin[:, None]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def write_kv(keys: Tensor, values: Tensor, k: Tensor, v: Tensor, where: Tensor) -> None:
    """Put k, v [R, KV, D] into pools [blocks, block_size, KV, D] at flat positions ``where`` [R]."""
    keys.view(-1, *keys.shape[2:]).index_copy_(0, where, k)
    values.view(-1, *values.shape[2:]).index_copy_(0, where, v)


def attend(q: Tensor, keys: Tensor, values: Tensor, table: Tensor, context: int, start: int, scale: float) -> Tensor:
    """One row: q [H, D] over positions [start, context) of the block table; [H, D]."""
    block_size, kv_heads, dim = keys.shape[1:]
    blocks = table[: -(-context // block_size)]
    k = keys.index_select(0, blocks).view(-1, kv_heads, dim)[start:context].transpose(0, 1)
    v = values.index_select(0, blocks).view(-1, kv_heads, dim)[start:context].transpose(0, 1)
    scores = torch.bmm(q.view(kv_heads, -1, dim), k.transpose(1, 2)) * scale
    return torch.bmm(torch.softmax(scores, dim=-1), v).view(-1, dim)


def conv(source: Tensor, window: Tensor, taps: Tensor) -> Tensor:
    """Causal depthwise convolution and silu: rows of ``source`` [S, C] at ``window`` [taps, R], weights [taps, C]."""
    total = source.index_select(0, window[0]) * taps[0]
    for index in range(1, taps.shape[0]):
        total = total + source.index_select(0, window[index]) * taps[index]
    return silu(total)


def delta_gates(b: Tensor, a: Tensor, decay: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """Write strength sigmoid(b) and decay exp(-decay softplus(a + dt_bias)), [R, Hv] each."""
    heads = b.shape[-1]
    both = torch.constant_pad_nd(torch.cat((b, a + dt_bias), dim=-1), (0, -2 * heads % VECTOR))
    rate = F.softplus(both)[:, heads : 2 * heads]
    return torch.sigmoid(both)[:, :heads], whole_vectors(torch.exp, -decay * rate)


def delta_step(state: Tensor, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """One row of the gated delta rule: state [Hv, Dk, Dv], q and k [Hv, Dk], v [Hv, Dv], gates [Hv].

    New state and output [Hv, Dv]: S' = decay S; S' += k (beta (v - k S'))^T; out = q S'.
    """
    state = state * decay[:, None, None]
    column = k[:, :, None]
    wanted = (v - (state * column).sum(-2)) * beta[:, None]
    state = state + column * wanted[:, None, :]
    return state, (state * q[:, :, None]).sum(-2)


def route(logits: Tensor, chosen: int, normalise: bool) -> tuple[Tensor, Tensor]:
    """Weights and indices of the ``chosen`` experts of each row, [R, chosen]."""
    weights, indices = torch.topk(torch.softmax(logits, dim=-1), chosen, dim=-1)
    if normalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights, indices


def argmax(logits: Tensor) -> Tensor:
    """Lowest index of the maximum of each row [R, V]. NaN never wins; a row with nothing above -1e30 answers 0."""
    clean = torch.nan_to_num(logits, nan=NEVER, posinf=float("inf"), neginf=NEVER)
    top = clean.amax(-1, keepdim=True)
    first = (clean == top).to(torch.int8).argmax(-1)
    return torch.where(top[:, 0] > NEVER, first, torch.zeros_like(first))


def masked_argmax(logits: Tensor, masks: Tensor) -> Tensor:
    """The argmax; where it is one of the row's two masked ids [R, 2], the last maximum without both (S6 3.11)."""
    picks = argmax(logits)
    hit = ((masks == picks[:, None]) & (masks != NO_ID)).any(-1)
    for row in hit.nonzero()[:, 0].tolist():
        left = torch.nan_to_num(logits[row], nan=NEVER, neginf=NEVER).clone()
        left[masks[row][masks[row] < left.numel()]] = float("-inf")
        picks[row] = left.numel() - 1 - left.flip(0).argmax()
    return picks
