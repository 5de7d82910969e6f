"""The one-layer draft head: (embedding of the next token, hidden of this position) to a guess of the token after it.

Row p of the drafter's K/V is made from the hidden row of position p and the token at p + 1, rotated at p + 1 (S6 3.6).
K/V is indexed by absolute position, so drafts that were dropped or refused leave nothing stale behind: every proposal
starts from the newest true row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType

import torch

from ..checkpoint.config import FULL, ModelConfig
from .decoder import Decoder, Layer, Projection, _norm_weight
from .rows import InputRow, Tile, tiles

PAGE = 64


@dataclass(slots=True)
class DraftMemory:
    """One sequence's drafter K/V in pages. Rows from ``base`` on come from true hidden rows; ``fed`` are the tokens
    that they were made with."""

    keys: torch.Tensor
    values: torch.Tensor
    table: torch.Tensor
    base: int = 0
    fed: list[int] = field(default_factory=list)

    def standing(self, tokens: list[int]) -> int:
        """How many rows from ``base`` on were made with these very tokens."""
        for count, (old, new) in enumerate(zip(self.fed, tokens, strict=False)):
            if old != new:
                return count
        return min(len(self.fed), len(tokens))


class DraftHead:
    """Tensors ``mtp.*``; embedding and output head are the model's own."""

    def __init__(
        self, kernels: ModuleType, config: ModelConfig, tensors: dict[str, torch.Tensor], target: Decoder
    ) -> None:
        self.k, self.config, self.target = kernels, config, target
        self.fuse = Projection(kernels, tensors, "mtp.fc")
        self.norms = {
            name: _norm_weight(config, tensors, f"mtp.{name}.weight")
            for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        }
        self.layer = Layer(kernels, config, tensors, "mtp.layers.0.", FULL, False)

    def new_memory(self, positions: int) -> DraftMemory:
        """Room for ``positions`` rows; nothing is touched before it is written."""
        pages = -(-positions // PAGE)
        shape = (pages + 1, PAGE, self.config.kv_heads, self.config.head_dim)
        where = {"device": self.target.device, "dtype": self.target.dtype}
        return DraftMemory(torch.empty(shape, **where), torch.empty(shape, **where), torch.arange(pages))

    @torch.inference_mode()
    def propose(
        self, memory: DraftMemory, history: torch.Tensor, tokens: list[int], start: int, saved: torch.Tensor, count: int
    ) -> tuple[list[int], list[float]]:
        """``count`` drafts after ``tokens[-1]``, and their log-probabilities.

        ``tokens`` is the sequence up to and with the pending one; ``history`` [positions, W] holds hidden rows from
        position ``start`` on; ``saved`` [W] is that of position len(tokens) - 2.
        """
        newest = len(tokens) - 2
        if not memory.fed:
            memory.base = min(start, newest)
        first = memory.base + memory.standing(tokens[memory.base + 1 : newest + 1])
        hidden = torch.cat([history[first:newest], saved[None]])
        out = self._rows(memory, tokens[first + 1 :], hidden, first)
        memory.fed = tokens[memory.base + 1 :]
        drafts: list[int] = []
        confidences: list[float] = []
        for step in range(count):
            scores = self.target.scores(self.k.rms_norm(out, self.norms["norm"], self.config.eps))
            draft = int(self.k.argmax(scores)[0])
            drafts.append(draft)
            confidences.append(float(torch.log_softmax(scores[0].float(), dim=-1)[draft]))
            if step + 1 < count:
                out = self._rows(memory, [draft], out[:1], newest + 1 + step)
        return drafts, confidences

    def _rows(self, memory: DraftMemory, tokens: list[int], hidden: torch.Tensor, first: int) -> torch.Tensor:
        """Feed rows ``first``..; the last one's output stands in row 0 of the answer (a whole tile)."""
        self.target.rope.reach(first + len(tokens) + 1)
        vocab, table = self.config.vocab_size, memory.table
        rows = [InputRow(t % vocab, first + i, table, 0, first=memory.base) for i, t in enumerate(tokens)]
        width = self.target.width
        dummy = (memory.keys.shape[0] - 1) * PAGE
        at = 0
        out = hidden
        for tile in tiles(rows, width, PAGE, dummy, 2, self.target.device):
            live = len(tile.rows)
            spare = tile.ids.shape[0] - live
            part = torch.nn.functional.pad(hidden[at : at + live], (0, 0, 0, spare))
            out = self._tile(memory, tile, part).roll(1 - live, 0)
            at += live
        return out

    def _tile(self, memory: DraftMemory, tile: Tile, hidden: torch.Tensor) -> torch.Tensor:
        k, eps = self.k, self.config.eps
        tile.positions = tile.positions + 1
        embedded = k.rms_norm(k.embed(self.target.embeddings, tile.ids), self.norms["pre_fc_norm_embedding"], eps)
        seen = k.rms_norm(hidden, self.norms["pre_fc_norm_hidden"], eps)
        x = self.fuse(torch.cat([embedded, seen], dim=-1), tile)
        return self.layer(x, tile, self.target.rope, memory.keys, memory.values)


def lookup_drafts(tokens: list[int], count: int, longest: int = 8) -> list[int]:
    """A drafter for models without a head: what followed the newest earlier place of the longest matching suffix."""
    for size in range(min(longest, len(tokens) - 1), 0, -1):
        suffix = tokens[-size:]
        for at in range(len(tokens) - size - 1, -1, -1):
            if tokens[at : at + size] == suffix:
                return tokens[at + size : at + size + count]
    return tokens[-1:] * count
