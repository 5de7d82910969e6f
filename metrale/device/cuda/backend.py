"""The Numba-CUDA kernels behind the names of :mod:`metrale.device.kernels.reference`, on tensors.

An engine takes this module where it takes the reference. On a GPU the tensors are CUDA tensors; under Numba's simulator
they are CPU tensors and every kernel runs all the same. fp32 and bf16 storage, fp32 arithmetic. Matrix products and the
choice of experts go through torch, on the same stream.

Beyond the reference's names there are calls over many rows: :func:`attend_paged`, :func:`attend_rows`,
:func:`attend_chunk`, :func:`rope_and_write`, :func:`conv_rows`, :func:`conv_tails`, :func:`delta_rows`,
:func:`feed_ids`.
"""

from __future__ import annotations

import torch

from ..kernels.reference import linear, route
from . import linear_attention as la
from . import picking, rotary, rows
from .attention import attention_shape
from .launch import blocks_for, launch, memory, storage_of
from .paged import attend, attend_chunk, attend_paged, attend_rows, decode_plan, split_count, tiles_of
from .storage import vector_of
from .views import ALIGNMENT, aligned, by_rows, dense, vector_for

Tensor = torch.Tensor
L2_EPS = 1e-6
MOST_ROWS = 65535
"""Blocks of a grid along y."""


def check_sizes(heads: int, kv_heads: int, head: int, value_dim: int = la.COLUMNS) -> None:
    """Raises ValueError for a model that no kernel takes: its head size, or that of its recurrent values."""
    for prefill in (False, True):
        attention_shape(heads, kv_heads, head, 1, prefill=prefill)
    la.delta_lanes(la.COLUMNS, value_dim)


def _rows(count: int) -> int:
    """Rows of a grid. Raises ValueError for more than it can have."""
    if count > MOST_ROWS:
        raise ValueError(f"{count} rows are more than the {MOST_ROWS} of a grid: pass fewer at once")
    return count


# -- rows


def embed(table: Tensor, ids: Tensor) -> Tensor:
    """Rows of [V, W] at ids [R]."""
    out = table.new_empty((ids.shape[0], *table.shape[1:]))
    _move(table, ids, out, None, ids.shape[0])
    return out


def move_rows(source: Tensor, sources: Tensor | None, target: Tensor, targets: Tensor | None, count: int) -> None:
    """target[targets[i]] = source[sources[i]] for i < count; without indices, row i itself."""
    _move(source, sources, target, targets, count)


def _move(source: Tensor, sources: Tensor | None, target: Tensor, targets: Tensor | None, count: int) -> None:
    width = source[0].numel() if source.shape[0] else 0
    source, vector = source.contiguous(), 1
    if width * source.element_size() % ALIGNMENT == 0 and aligned(source, target):
        vector, width = 4, width * source.element_size() // 4
        source, target = source.view(-1).view(torch.float32), target.view(-1).view(torch.float32)
    unused = source.new_empty(0, dtype=torch.int64)
    kernel = rows.move_kernel(vector, sources is not None, targets is not None)
    grid = (*blocks_for(width, vector * rows.BLOCK), _rows(count))
    sources, targets = unused if sources is None else sources, unused if targets is None else targets
    launch(kernel, grid, rows.BLOCK, source, sources, target, targets, width)


def feed_ids(sources: Tensor, fed: Tensor, cells: Tensor) -> Tensor:
    """cells[sources] where fed, else sources; [R] int64."""
    out = torch.empty_like(sources)
    launch(rows.feed_kernel(), blocks_for(len(out), rows.BLOCK), rows.BLOCK, sources, fed, cells, out, len(out))
    return out


def _norm(x: Tensor, weight: Tensor, eps: float, weighted: bool) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    width, weight = x.shape[-1], dense(weight)
    group, outer, inner = 1, width, width
    if x.dim() == 3 and _by_heads(x):
        group, outer, inner = x.shape[1], x.stride(0), x.stride(1)
    else:
        x = dense(x)
    count = x.numel() // width
    shape = rows.row_shape(width)
    kernel = rows.norm_kernel(storage_of(x), shape, weighted)
    lines = (memory(x), group, outer, inner)
    launch(kernel, blocks_for(count, shape.rows), shape.threads, *lines, weight, float(eps), out, count)
    return out


def _by_heads(x: Tensor) -> bool:
    """Whether the norm takes [R, heads, W] as it lies: heads of W elements at aligned places, rows at any stride."""
    whole = x.stride(2) == 1 and aligned(x)
    return whole and not any(stride * x.element_size() % ALIGNMENT for stride in x.stride()[:2])


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) times the weight, over the last dimension."""
    return _norm(x, weight, eps, True)


def l2_norm(x: Tensor) -> Tensor:
    """x / sqrt(sum(x^2) + 1e-6) over the last dimension."""
    return _norm(x, x.new_empty(0), L2_EPS, False)


def _lines(*tensors: Tensor) -> tuple[list[Tensor], int, int, int]:
    """Tensors of one shape for an elementwise kernel, rows, elements of a row, and how many a thread moves at once.

    Contiguous tensors are one long row. Columns of a wider product stay where they are."""
    first = tensors[0]
    if all(tensor.is_contiguous() for tensor in tensors):
        return [tensor.view(1, -1) for tensor in tensors], 1, first.numel(), vector_for(first.numel(), *tensors)
    width = first.shape[-1]
    vector = vector_of(width)
    found = [by_rows(tensor.reshape(-1, width), vector) for tensor in tensors]
    return found, found[0].shape[0], width, vector


def _unary(x: Tensor, name: str) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    (x,), count, width, vector = _lines(x)
    kernel = rows.unary_kernel(storage_of(x), vector, name)
    grid = (*blocks_for(width, 2 * vector * rows.BLOCK), _rows(count))
    launch(kernel, grid, rows.BLOCK, memory(x), x.stride(0), out, width)
    return out


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)), [R, W]."""
    return _unary(x, "sigmoid")


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x), [R, W]."""
    return _unary(x, "silu")


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) up, [R, W]."""
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    (gate, up), count, width, vector = _lines(gate, up)
    kernel = rows.swiglu_kernel(storage_of(gate), vector)
    grid = (*blocks_for(width, 2 * vector * rows.BLOCK), _rows(count))
    launch(kernel, grid, rows.BLOCK, memory(gate), gate.stride(0), memory(up), up.stride(0), out, width)
    return out


# -- rotary, pages


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first ``2 * half`` dimensions of [R, heads, D]; cos and sin are [R, half] fp32."""
    count, heads, head = x.shape
    half = cos.shape[-1]
    vector = rotary.rotary_vector(head, half)
    x, cos, sin = by_rows(x, vector), dense(cos), dense(sin)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    kernel = rotary.rotary_kernel(storage_of(x), head, half, vector)
    grid = (*blocks_for(heads * (head - half) // vector, rows.BLOCK), _rows(count))
    launch(kernel, grid, rows.BLOCK, memory(x), x.stride(0), cos, sin, heads, out)
    return out


def write_kv(keys: Tensor, values: Tensor, k: Tensor, v: Tensor, where: Tensor) -> None:
    """Put k, v [R, KV, D] into pools [blocks, block_size, KV, D] at flat positions ``where`` [R]."""
    for pool, new in ((keys, k), (values, v)):
        _move(new.contiguous(), None, pool.view(-1, *pool.shape[2:]), where, new.shape[0])


def rope_and_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    where: Tensor,
    keys: Tensor,
    values: Tensor,
) -> Tensor:
    """Rotated q [R, H, D]; rotated k and v [R, KV, D] go to the pools at ``where`` [R].

    cos and sin [positions, half] fp32. q, k and v may be columns of one product."""
    count, heads, head = q.shape
    kv_heads, half = k.shape[1], cos.shape[-1]
    vector = rotary.rotary_vector(head, half) if aligned(keys, values) else 1
    q, k, v = by_rows(q, vector), by_rows(k, vector), by_rows(v, vector)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    kernel = rotary.rotary_write_kernel(storage_of(q), head, half, vector)
    grid = (*blocks_for((heads + 2 * kv_heads) * (head - half) // vector, rows.BLOCK), _rows(count))
    strided = (memory(q), q.stride(0), memory(k), k.stride(0), memory(v), v.stride(0))
    tables = (positions, dense(cos), dense(sin), where)
    launch(kernel, grid, rows.BLOCK, *strided, *tables, heads, kv_heads, out, keys, values)
    return out


# -- linear attention


def conv(source: Tensor, window: Tensor, taps: Tensor) -> Tensor:
    """Causal depthwise convolution and silu: rows of ``source`` [S, C] at ``window`` [taps, R], weights [taps, C]."""
    source, channels = source.contiguous(), source.shape[1]
    vector = vector_for(channels, source, taps)
    out = source.new_empty((window.shape[1], channels))
    kernel = la.window_kernel(storage_of(source), vector, taps.shape[0])
    grid = (*blocks_for(channels, vector * rows.BLOCK), _rows(window.shape[1]))
    launch(kernel, grid, rows.BLOCK, source, window, taps, out, channels)
    return out


def _slot_vector(channels: int, pool: Tensor, *tensors: Tensor) -> int:
    """Elements at once of ``tensors`` and of a pool whose slots lie ``pool.stride(0)`` elements apart."""
    whole = pool.stride(0) * pool.element_size() % ALIGNMENT == 0 or pool.shape[0] == 1
    return vector_for(channels, pool, *tensors) if whole else 1


def conv_rows(x: Tensor, state: Tensor, owners: Tensor, slots: Tensor, starts: Tensor, taps: Tensor) -> Tensor:
    """The same over rows x [R, C] grouped by sequence, ``owners`` [R]: rows [starts[n], starts[n + 1]) of sequence n.

    Its earlier inputs are state[slots[n]] [taps - 1, C]; only the first dimension of ``state`` may be strided."""
    channels = x.shape[1]
    vector = _slot_vector(channels, state, x, taps)
    out = torch.empty_like(x)
    kernel = la.conv_kernel(storage_of(x), vector, taps.shape[0])
    grid = (*blocks_for(channels, vector * rows.BLOCK), _rows(x.shape[0]))
    arguments = (x, memory(state), state.stride(0), owners, slots, starts, taps, out, channels)
    launch(kernel, grid, rows.BLOCK, *arguments)
    return out


def conv_tails(x: Tensor, state: Tensor, spans: Tensor, target: Tensor) -> None:
    """target[spans[n, 3]] = the newest inputs of state[spans[n, 0]], then spans[n, 2] rows of x from spans[n, 1] on.

    ``state`` and ``target`` [slots, taps - 1, C] may be the same tensor, if each entry stays in its slot."""
    channels = x.shape[1]
    vector = min(_slot_vector(channels, pool, x) for pool in (state, target))
    kernel = la.tail_kernel(storage_of(x), vector, state.shape[1] + 1)
    grid = (*blocks_for(channels, vector * rows.BLOCK), _rows(spans.shape[0]))
    arguments = (x, memory(state), state.stride(0), spans, memory(target), target.stride(0), channels)
    launch(kernel, grid, rows.BLOCK, *arguments)


def delta_gates(b: Tensor, a: Tensor, decay: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """Write strength sigmoid(b) and decay exp(-decay softplus(a + dt_bias)), [R, Hv] fp32 each."""
    b, a = b.contiguous(), a.contiguous()
    beta, keep = torch.empty(b.shape, device=b.device), torch.empty(b.shape, device=b.device)
    grid = blocks_for(b.numel(), rows.BLOCK)
    arguments = (b, a, decay.float(), dt_bias.float(), b.shape[-1], beta, keep, b.numel())
    launch(rows.gates_kernel(storage_of(b)), grid, rows.BLOCK, *arguments)
    return beta, keep


def delta_rows(
    state: Tensor,
    slots: Tensor,
    starts: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    decay: Tensor,
    between: Tensor | None = None,
) -> Tensor:
    """The gated delta rule over rows grouped by sequence: output [R, Hv, Dv].

    state[slots[n]] [Hv, Dk, Dv] fp32 is updated in place; only its first dimension may be strided. q and k [R, Hk, Dk],
    v [R, Hv, Dv], gates [R, Hv] fp32; ``between`` [R, Hv, Dk, Dv] takes the state after every row."""
    key_dim, value_dim = state.shape[-2:]
    sharing, groups = la.delta_lanes(key_dim, value_dim)
    heads = v.shape[1]
    if not aligned(state, *[] if between is None else [between]) or state.stride(0) % la.COLUMNS:
        raise ValueError("states must begin at multiples of 16 bytes: move them into a tensor of their own")
    out = torch.empty_like(v)
    kernel = la.delta_kernel(storage_of(v), key_dim, value_dim, heads // k.shape[1], between is not None)
    grid = (value_dim // (groups * la.COLUMNS), heads, _rows(slots.shape[0]))
    kept = state.new_empty(4) if between is None else between
    arguments = (memory(state), state.stride(0), slots, starts, q, k, v, beta, decay, out, kept)
    launch(kernel, grid, sharing * groups, *arguments)
    return out


def delta_step(state: Tensor, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """One row of the gated delta rule: state [Hv, Dk, Dv], q, k [Hv, Dk], v [Hv, Dv], gates [Hv]; new state, output."""
    new = state[None].clone(memory_format=torch.contiguous_format)
    slots = torch.zeros(1, dtype=torch.int64, device=v.device)
    starts = torch.tensor([0, 1], device=v.device)
    row = [part[None].contiguous() for part in (q, k, v, beta.float(), decay.float())]
    out = delta_rows(new, slots, starts, *row)
    return new[0], out[0]


# -- picks


def argmax(logits: Tensor, parts: int = 0) -> Tensor:
    """Lowest index of the maximum of each row [R, V]. NaN never wins; a row with nothing above -1e30 answers 0.

    ``parts`` blocks share a row, by default as many as suit its size; they do not change the answer."""
    return _picked(logits, None, None, parts)


def masked_argmax(logits: Tensor, masks: Tensor, parts: int = 0) -> Tensor:
    """The argmax; where it is one of the row's two masked ids [R, 2], the last maximum without both (S6 3.11)."""
    return _picked(logits, masks, None, parts)


def masked_argmax_to_feed(logits: Tensor, masks: Tensor, cells: Tensor) -> Tensor:
    """The same, and the picks go to the first R feed cells, with no wait of the host."""
    return _picked(logits, masks, cells)


def _picked(logits: Tensor, masks: Tensor | None, cells: Tensor | None, parts: int = 0) -> Tensor:
    logits = logits.contiguous()
    count, vocabulary = logits.shape
    masked, parts = masks is not None, parts or picking.pick_parts(count, vocabulary)
    out = torch.empty(count, dtype=torch.int64, device=logits.device)
    hidden = out if masks is None else masks.contiguous()
    into = torch.empty_like(out) if cells is None else cells
    held = parts if parts > 1 else 0
    values = torch.empty((count, held, 2), device=logits.device)
    ids = torch.empty((count, held, 2), dtype=torch.int64, device=logits.device)
    vector = vector_for(vocabulary, logits)
    length = -(-vocabulary // (parts * vector)) * vector
    kernel = picking.pick_kernel(storage_of(logits), vector, masked, parts == 1)
    launch(kernel, (parts, _rows(count)), picking.THREADS, logits, vocabulary, length, hidden, values, ids, out, into)
    if parts > 1:
        launch(picking.choose_kernel(masked), (count,), picking.WARP, values, ids, parts, hidden, out, into)
    return out


__all__ = [
    "argmax",
    "attend",
    "attend_chunk",
    "attend_paged",
    "attend_rows",
    "check_sizes",
    "conv",
    "conv_rows",
    "conv_tails",
    "decode_plan",
    "delta_gates",
    "delta_rows",
    "delta_step",
    "embed",
    "feed_ids",
    "l2_norm",
    "linear",
    "masked_argmax",
    "masked_argmax_to_feed",
    "move_rows",
    "rms_norm",
    "rope",
    "rope_and_write",
    "route",
    "sigmoid",
    "silu",
    "split_count",
    "swiglu",
    "tiles_of",
    "write_kv",
]
