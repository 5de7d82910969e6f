"""Torch references of the calls over many rows, made of :mod:`metrale.device.kernels.reference` row by row.

They take what :mod:`.backend` takes, in any float type; shapes, bytes and operations stand with the kernels.
"""

from __future__ import annotations

import torch

from ..kernels import reference as k

Tensor = torch.Tensor


def attend_rows(q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, spans: Tensor, scale: float) -> Tensor:
    """Decode rows over positions spans [R, 2] of tables [R, width]."""
    rows = [
        k.attend(q[row], keys, values, tables[row], context, first, scale)
        for row, (first, context) in enumerate(spans.tolist())
    ]
    return torch.stack(rows)


def attend_chunk(
    q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, tiles: Tensor, spans: Tensor, scale: float
) -> Tensor:
    """Rows of prompts; a row's table is that of its tile's sequence."""
    owners = torch.zeros(q.shape[0], dtype=torch.int64)
    for row, count, sequence in tiles.tolist():
        owners[row : row + count] = sequence
    return attend_rows(q, keys, values, tables[owners], spans, scale)


def rope_and_write(
    q: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    where: Tensor,
    keys: Tensor,
    values: Tensor,
) -> Tensor:
    """Rotated queries; rotated keys and values in the pools."""
    cos, sin = cos[positions], sin[positions]
    k.write_kv(keys, values, k.rope(key, cos, sin), value, where)
    return k.rope(q, cos, sin)


def conv_rows(x: Tensor, state: Tensor, slots: Tensor, starts: Tensor, taps: Tensor) -> Tensor:
    """Convolution over rows grouped by sequence."""
    out = []
    for sequence, slot in enumerate(slots.tolist()):
        rows = x[starts[sequence] : starts[sequence + 1]]
        window = torch.arange(len(rows))[None] + torch.arange(taps.shape[0])[:, None]
        out.append(k.conv(torch.cat([state[slot], rows]), window, taps))
    return torch.cat(out)


def conv_tails(x: Tensor, state: Tensor, spans: Tensor, target: Tensor) -> None:
    """The newest inputs of each entry to its target slot."""
    kept = state.shape[1]
    for source, first, rows, goal in spans.tolist():
        target[goal] = torch.cat([state[source], x[first : first + rows]])[-kept:]


def delta_rows(
    state: Tensor, slots: Tensor, starts: Tensor, q: Tensor, key: Tensor, v: Tensor, beta: Tensor, decay: Tensor
) -> tuple[Tensor, Tensor]:
    """Output of every row and the state after it; ``state`` is updated in place."""
    per = v.shape[1] // key.shape[1]
    q, key = q.repeat_interleave(per, dim=1), key.repeat_interleave(per, dim=1)
    out, between = [], []
    for sequence, slot in enumerate(slots.tolist()):
        for row in range(int(starts[sequence]), int(starts[sequence + 1])):
            state[slot], line = k.delta_step(state[slot], q[row], key[row], v[row], beta[row], decay[row])
            out.append(line)
            between.append(state[slot].clone())
    return torch.stack(out), torch.stack(between)


def feed_ids(sources: Tensor, fed: Tensor, cells: Tensor) -> Tensor:
    """cells[sources] where fed, else sources."""
    return torch.where(fed, cells[torch.where(fed, sources, 0)], sources)
