"""Decoder layers of the families llama, qwen2, qwen3 and qwen3_next over paged K/V and pooled recurrent state."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

import torch

from ..checkpoint.config import FULL, LINEAR, ModelConfig
from ..kernels import dispatch
from ..kernels.transfer import send
from .dense import Mlp, Projection, Stack
from .experts import Experts
from .rope import RopeTable
from .rows import InputRow, Tile, tiles

Tensor = torch.Tensor


class Graphs(Protocol):
    """Recorded steps (see :mod:`.graphs`)."""

    def run(self, rows: list[InputRow], memory: Memory, cells: Tensor, hidden: Tensor, logits: Tensor) -> bool:
        """Run a step from its recording; False if there is none and ``rows`` must go the usual way."""


@dataclass(slots=True)
class Memory:
    """What persists between forwards. K and V: per attention layer [blocks + 1, block_size, KV, D], the last block is
    the dummy. Recurrent, per slot and layer: ``h`` [slots + 1, layers, Hv, Dk, Dv], ``conv`` [slots + 1, layers,
    taps - 1, C], the last slot is the dummy. ``history`` [rows, W] are the drafter's hidden rows, a stretch for each
    slot by position, the last row nobody reads; None without a draft head."""

    keys: list[Tensor]
    values: list[Tensor]
    h: Tensor
    conv: Tensor
    block_size: int
    history: Tensor | None = None

    @property
    def forgotten(self) -> int:
        """The row of the history that nobody reads."""
        return 0 if self.history is None else self.history.shape[0] - 1

    @property
    def dummy(self) -> int:
        """Flat K/V position that padding rows write."""
        return (self.keys[0].shape[0] - 1) * self.block_size if self.keys else 0


def new_memory(
    config: ModelConfig, blocks: int, block_size: int, slots: int, on: torch.device, dtype: torch.dtype
) -> Memory:
    """Zeroed pools: matrix states in fp32, K, V and convolution inputs in ``dtype``."""
    linear = config.linear
    shape = (blocks + 1, block_size, config.kv_heads, config.head_dim)
    layers = len(config.linear_layers)
    if linear is None:
        h, conv = torch.zeros((slots + 1, 0)), torch.zeros((slots + 1, 0))
    else:
        h = torch.zeros((slots + 1, layers, linear.value_heads, linear.key_dim, linear.value_dim))
        conv = torch.zeros((slots + 1, layers, linear.taps - 1, linear.channels), dtype=dtype)
    count = len(config.attention_layers)
    return Memory(
        [torch.zeros(shape, device=on, dtype=dtype) for _ in range(count)],
        [torch.zeros(shape, device=on, dtype=dtype) for _ in range(count)],
        h.to(on),
        conv.to(on),
        block_size,
    )


class Attention:
    """Grouped-query attention over block tables."""

    def __init__(
        self, k: ModuleType, config: ModelConfig, tensors: dict[str, Tensor], prefix: str, window: int
    ) -> None:
        self.k, self.config, self.window = k, config, window
        self.qkv = Stack(k, tensors, [f"{prefix}self_attn.{n}_proj" for n in ("q", "k", "v")])
        self.o = Projection(k, tensors, f"{prefix}self_attn.o_proj")
        self.q_norm = _norm_weight(config, tensors, f"{prefix}self_attn.q_norm.weight")
        self.k_norm = _norm_weight(config, tensors, f"{prefix}self_attn.k_norm.weight")
        self.scale = config.head_dim**-0.5

    def __call__(self, x: Tensor, tile: Tile, rope: RopeTable, keys: Tensor, values: Tensor) -> Tensor:
        """[R, W] to [R, W]; writes K/V of the rows first."""
        c, k, rows = self.config, self.k, x.shape[0]
        q, key, value = self.qkv(x, tile).split_with_sizes(self.qkv.sizes, dim=-1)
        q, gate = q.view(rows, c.heads, -1), None
        if c.output_gate:
            q, gate = q[..., : c.head_dim].contiguous(), q[..., c.head_dim :].reshape(rows, -1)
        key, value = key.view(rows, c.kv_heads, c.head_dim), value.view(rows, c.kv_heads, c.head_dim)
        if c.qk_norm:
            q, key = k.rms_norm(q, self.q_norm, c.eps), k.rms_norm(key, self.k_norm, c.eps)
        q = dispatch.rope_write(k, q, key, value, rope.cos, rope.sin, tile.positions, tile.where, keys, values)
        mixed = dispatch.attention(k, q, keys, values, tile.paging(self.window), self.scale).view(rows, -1)
        return self.o(mixed if gate is None else mixed * k.sigmoid(gate), tile)


class DeltaNet:
    """Gated delta-rule linear attention with its causal convolution."""

    def __init__(self, k: ModuleType, config: ModelConfig, tensors: dict[str, Tensor], prefix: str) -> None:
        assert config.linear is not None
        self.k, self.linear, self.eps = k, config.linear, config.eps
        name = f"{prefix}linear_attn."
        self.inputs = Stack(k, tensors, [f"{name}in_proj_qkvz", f"{name}in_proj_ba"], self._order())
        self.out = Projection(k, tensors, f"{name}out_proj")
        self.taps = tensors[f"{name}conv1d.weight"][:, 0].t().contiguous()
        self.dt_bias, self.decay = tensors[f"{name}dt_bias"], tensors[f"{name}A_log"].exp()
        self.norm = tensors[f"{name}norm.weight"]

    def _order(self) -> Tensor:
        """Checkpoints interleave by key head: [q, k, v, z] of each, [b, a] of each. Here: all q, k, v, z, then b, a."""
        n = self.linear
        per = n.value_heads // n.key_heads
        wide = torch.arange(2 * n.keys + 2 * n.values).view(n.key_heads, -1)
        gates = torch.arange(2 * n.value_heads).view(n.key_heads, -1) + wide.numel()
        sizes = [n.key_dim, n.key_dim, per * n.value_dim, per * n.value_dim]
        parts = [*wide.split_with_sizes(sizes, dim=1), *gates.split_with_sizes([per, per], dim=1)]
        return torch.cat([part.reshape(-1) for part in parts])

    def __call__(self, x: Tensor, tile: Tile, h: Tensor, conv: Tensor) -> Tensor:
        """[R, W] to [R, W]; ``h`` and ``conv`` are this layer's states by slot."""
        k, n, rows = self.k, self.linear, x.shape[0]
        sizes = [n.channels, n.values, n.value_heads, n.value_heads]
        mixed, z, b, a = self.inputs(x, tile).split_with_sizes(sizes, dim=-1)
        source = torch.cat([conv.index_select(0, tile.places).view(-1, n.channels), mixed])
        beta, decay = k.delta_gates(b, a, self.decay, self.dt_bias)
        qk, v = k.conv(source, tile.window, self.taps).split_with_sizes([2 * n.keys, n.values], dim=-1)
        qk = k.l2_norm(qk.reshape(rows, 2 * n.key_heads, n.key_dim))
        q, key = qk[:, : n.key_heads] / n.key_dim**0.5, qk[:, n.key_heads :]
        v = v.reshape(rows, n.value_heads, n.value_dim)
        keep = any(row.inter is not None for row in tile.rows)
        out, kept = dispatch.delta_rule(k, h, tile.runs, q, key, v, beta, decay, keep)
        for i, row in enumerate(tile.rows):
            if row.inter is not None:
                row.inter.h.append(kept[i])
                row.inter.conv.append(source.index_select(0, tile.window[1:, i]))
        conv.index_copy_(0, tile.places, source[tile.tail])
        gated = k.rms_norm(out, self.norm, self.eps).view(rows, -1) * k.silu(z)
        return self.out(gated, tile)


class Layer:
    """One decoder layer: mixer and MLP, each behind a norm and a residual."""

    def __init__(
        self,
        k: ModuleType,
        config: ModelConfig,
        tensors: dict[str, Tensor],
        prefix: str,
        kind: str,
        sparse: bool,
        gathers: bool = False,
    ) -> None:
        self.k, self.eps, self.kind = k, config.eps, kind
        self.before = _norm_weight(config, tensors, f"{prefix}input_layernorm.weight")
        self.after = _norm_weight(config, tensors, f"{prefix}post_attention_layernorm.weight")
        window = config.window if kind not in (FULL, LINEAR) else 0
        self.mixer = (
            DeltaNet(k, config, tensors, prefix) if kind == LINEAR else Attention(k, config, tensors, prefix, window)
        )
        prefix = f"{prefix}mlp."
        self.mlp = Experts(k, config, tensors, prefix, gathers) if sparse else Mlp(k, tensors, prefix)

    def __call__(self, x: Tensor, tile: Tile, *state: object) -> Tensor:
        """[R, W] to [R, W]."""
        x = x + self.mixer(self.k.rms_norm(x, self.before, self.eps), tile, *state)  # type: ignore[arg-type]
        return x + self.mlp(self.k.rms_norm(x, self.after, self.eps), tile)


class Decoder:
    """The whole model. ``width`` is the number of rows of a tile, 0 for as many as there are."""

    def __init__(self, kernels: ModuleType, config: ModelConfig, tensors: dict[str, Tensor], width: int) -> None:
        self.k, self.config, self.width = kernels, config, width
        self.embeddings = tensors["model.embed_tokens.weight"]
        self.head = self.embeddings if config.tied else tensors["lm_head.weight"]
        self.norm = _norm_weight(config, tensors, "model.norm.weight")
        self.device, self.dtype = self.embeddings.device, self.embeddings.dtype
        self.rope = RopeTable(config.rope, self.device)
        self.layers = [
            Layer(kernels, config, tensors, f"model.layers.{i}.", kind, i in config.sparse_layers, not width)
            for i, kind in enumerate(config.layer_types)
        ]
        self.taps = config.linear.taps if config.linear else 2
        self.graphs: Graphs | None = None

    @torch.inference_mode()
    def forward(
        self,
        rows: list[InputRow],
        memory: Memory,
        cells: Tensor,
        hidden: Tensor,
        logits: Tensor,
        recurrent: bool = True,
        recorded: bool = False,
    ) -> None:
        """Run ``rows`` through the layers. Fills rows of ``hidden`` (before the final norm) and of ``logits``.

        Rows of one sequence must follow each other in the order of their positions. ``recurrent`` false skips the
        recurrent layers (self-speculation). ``recorded``: a recording of the step may be used (on D alone: recordings
        share their memory).
        """
        self.rope.reach(max(row.position for row in rows) + 1)
        if recorded and self.graphs is not None and self.graphs.run(rows, memory, cells, hidden, logits):
            return
        sizes = memory.block_size, memory.dummy, self.taps, self.device, memory.forgotten
        for tile in tiles(rows, self.width, *sizes):
            x = self.layered(tile, memory, cells, recurrent)
            self._deliver(x, tile, hidden, logits)
            remember(x, tile, memory)

    def layered(self, tile: Tile, memory: Memory, cells: Tensor, recurrent: bool = True) -> Tensor:
        """Hidden rows [R, W] of a tile after the last layer, before the final norm."""
        ids = tile.ids if tile.fed is None else dispatch.feed_ids(self.k, tile.ids, tile.fed, cells)
        x = self.k.embed(self.embeddings, ids)
        attention, delta = 0, 0
        for layer in self.layers:
            if layer.kind == LINEAR:
                if recurrent:
                    x = layer(x, tile, memory.h[:, delta], memory.conv[:, delta])
                delta += 1
            else:
                x = layer(x, tile, self.rope, memory.keys[attention], memory.values[attention])
                attention += 1
        return x

    def _deliver(self, x: Tensor, tile: Tile, hidden: Tensor, logits: Tensor) -> None:
        wanted = [(row.logits, i) for i, row in enumerate(tile.rows) if row.logits >= 0]
        if wanted and self.width:
            # A tile of fixed width stays whole, so that a row's bits do not depend on how many are wanted.
            _put(logits, wanted, self.judged(x))
        elif wanted:
            places = [(i, at) for i, (_, at) in enumerate(wanted)]
            picked = x.new_empty((len(wanted), x.shape[1]))
            _put(picked, places, x)
            _put(logits, [(to, i) for i, (to, _) in enumerate(wanted)], self.judged(picked))
        _put(hidden, [(row.hidden, i) for i, row in enumerate(tile.rows) if row.hidden >= 0], x)

    def release(self) -> None:
        """Let go of all weights and recordings; the decoder is not used afterwards."""
        self.graphs = None
        self.layers.clear()
        self.embeddings = self.head = self.norm = torch.empty(0)

    def scores(self, x: Tensor) -> Tensor:
        """Logits [R, V] of normed rows."""
        return self.k.linear(x, self.head)

    def judged(self, x: Tensor) -> Tensor:
        """Logits [R, V] of rows after the last layer."""
        return self.scores(self.k.rms_norm(x, self.norm, self.config.eps))


def remember(x: Tensor, tile: Tile, memory: Memory) -> None:
    """Hidden rows to the drafter's history."""
    if tile.history is not None and memory.history is not None:
        memory.history.index_copy_(0, tile.history, x)


def _put(target: Tensor, pairs: list[tuple[int, int]], source: Tensor) -> None:
    """target[to] = source[at] of each pair (to, at)."""
    if not pairs:
        return
    (to, at), count = pairs[0], len(pairs)
    if all(pair == (to + i, at + i) for i, pair in enumerate(pairs)):
        target[to : to + count] = source[at : at + count]
    else:
        picked = source.index_select(0, send([at for _, at in pairs], source.device))
        target.index_copy_(0, send([to for to, _ in pairs], source.device), picked.to(target.dtype))


def _norm_weight(config: ModelConfig, tensors: dict[str, Tensor], name: str) -> Tensor:
    """A norm's weight with the family's offset applied (qwen3_next stores weight - 1)."""
    return tensors[name] + config.norm_offset if name in tensors else torch.empty(0)
