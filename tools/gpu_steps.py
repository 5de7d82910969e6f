"""Whole decode steps: the kernels beside the same model in plain torch on the same GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from gpu_bench import BF16, BLOCK, Row, pages
from gpu_clock import Clock

from metrale.conform.checks import full_products
from metrale.device.cuda import backend
from metrale.device.cuda.attention import attention_shape


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder of the llama family with random weights."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    inner: int
    vocabulary: int


MODEL = Model(16, 2048, 32, 8, 64, 8192, 128256)
TOY = Model(1, 32, 4, 2, 8, 32, 64)


SEED = 1
"""Of the weights: two rows of a step tie now and then, and the same rows do so in every run."""


class DecodeStep:
    """One decode step of a batch, all rows at the same context; ids go from one step to the next on the device.

    Both paths use the same weights and torch's matrix products. ``kernels``: ours, K/V in pages. ``plain``: torch's
    norms, attention and activations, K/V contiguous."""

    def __init__(self, model: Model, batch: int, context: int, on: torch.device) -> None:
        self.model, self.batch, self.context = model, batch, context
        m, self.on = model, on
        torch.manual_seed(SEED)
        wide = -(-context // BLOCK)
        self.layers = []
        for _ in range(m.layers):
            sizes = [m.heads * m.head, m.kv_heads * m.head, m.kv_heads * m.head, m.inner, m.inner]
            shapes = [(size, m.hidden) for size in sizes] + [(m.hidden, m.heads * m.head), (m.hidden, m.inner)]
            weights = [torch.randn(shape, device=on, dtype=BF16) * shape[1] ** -0.5 for shape in shapes]
            self.layers.append((weights, pages(on, batch * wide, m.kv_heads, m.head)))
        self.norm = torch.ones(m.hidden, device=on, dtype=BF16)
        self.embedding = torch.randn(m.vocabulary, m.hidden, device=on, dtype=BF16) * m.hidden**-0.5
        self.tables = torch.arange(batch * wide, device=on).view(batch, wide)
        self.spans = torch.tensor([[0, context]] * batch, device=on)
        self.positions = torch.full((batch,), context - 1, device=on)
        self.where = self.tables[:, -1] * BLOCK + (context - 1) % BLOCK
        angles = torch.arange(context, device=on)[:, None] * 10000.0 ** -torch.linspace(0, 1, m.head // 2, device=on)
        self.cos, self.sin = angles.cos(), angles.sin()
        self.ids = torch.arange(batch, device=on) % m.vocabulary
        self.shape = attention_shape(m.heads, m.kv_heads, m.head, BLOCK)
        self.pieces = backend.split_count(self.shape, 0, context)

    def _heads(self, x: torch.Tensor, *weights: torch.Tensor) -> list[torch.Tensor]:
        return [F.linear(x, weight).view(self.batch, -1, self.model.head) for weight in weights]

    def kernels(self) -> torch.Tensor:
        """A step with our kernels."""
        x = backend.embed(self.embedding, self.ids)
        for (wq, wk, wv, gate, up, out, down), (keys, values) in self.layers:
            q, k, v = self._heads(backend.rms_norm(x, self.norm, 1e-6), wq, wk, wv)
            q = backend.rope_and_write(q, k, v, self.positions, self.cos, self.sin, self.where, keys, values)
            scale = self.model.head**-0.5
            mixed = backend.attend_rows(q, keys, values, self.tables, self.spans, self.pieces, scale, self.shape)
            x = x + F.linear(mixed.view(self.batch, -1), out)
            y = backend.rms_norm(x, self.norm, 1e-6)
            x = x + F.linear(backend.swiglu(F.linear(y, gate), F.linear(y, up)), down)
        self.ids.copy_(backend.argmax(F.linear(backend.rms_norm(x, self.norm, 1e-6), self.embedding)))
        return self.ids

    def plain(self) -> torch.Tensor:
        """A step in plain torch."""
        m = self.model
        x = self.embedding[self.ids]
        cos, sin = self.cos[self.positions][:, None].to(BF16), self.sin[self.positions][:, None].to(BF16)
        for (wq, wk, wv, gate, up, out, down), (keys, values) in self.layers:
            q, k, v = self._heads(F.rms_norm(x, (m.hidden,), self.norm, 1e-6), wq, wk, wv)
            q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
            lines = [pool.view(self.batch, -1, m.kv_heads, m.head)[:, : self.context] for pool in (keys, values)]
            lines[0][:, -1], lines[1][:, -1] = k, v
            mixed = F.scaled_dot_product_attention(
                q[:, :, None], lines[0].transpose(1, 2), lines[1].transpose(1, 2), enable_gqa=True
            )
            x = x + F.linear(mixed.reshape(self.batch, -1), out)
            y = F.rms_norm(x, (m.hidden,), self.norm, 1e-6)
            x = x + F.linear(F.silu(F.linear(y, gate)) * F.linear(y, up), down)
        self.ids.copy_(F.linear(F.rms_norm(x, (m.hidden,), self.norm, 1e-6), self.embedding).argmax(-1))
        return self.ids


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def step_rates(on: torch.device, graphs: bool, full: bool) -> Iterator[tuple[str, Row]]:
    """Steps a second of both paths, launched one by one and as a graph; the products of both as full_products says, so
    that their picks can be compared."""
    full_products()
    for batch, context in ((1, 1024), (16, 1024), (64, 1024)) if full else ((2, 9),):
        try:
            row = _rates(DecodeStep(MODEL if full else TOY, batch, context, on), graphs)
        except Exception as error:
            row = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        yield f"{batch} x {context}", row


def warm_steps(on: torch.device, full: bool) -> None:
    """Compile what :func:`step_rates` needs, on a model of one layer."""
    step = DecodeStep(replace(MODEL, layers=1) if full else TOY, 1, 1024 if full else 9, on)
    step.kernels(), step.plain()


@torch.inference_mode()
def _rates(step: DecodeStep, graphs: bool) -> Row:
    first = step.ids.clone()
    picks = step.kernels().clone()
    step.ids.copy_(first)
    row: Row = {"same_picks": float((step.plain() == picks).float().mean())}
    for name, path in (("kernels", step.kernels), ("torch", step.plain)):
        row[f"{name}_steps_per_second"] = 1 / Clock(step.on, graphs=False).seconds([path], together=1)
        clock = Clock(step.on, graphs)
        spent = clock.seconds([path], together=1)
        row[f"{name}_graph_steps_per_second"] = 1 / spent if clock.graphed else None
        row[f"{name}_graph_reason"] = clock.reason
    return row
