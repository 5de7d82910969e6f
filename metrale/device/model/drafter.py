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
from .decoder import Decoder, Layer, _norm_weight
from .dense import Projection
from .rows import InputRow, Tile, tiles

Tensor = torch.Tensor
PAGE = 64


@dataclass(slots=True)
class DraftMemory:
    """One sequence's place in the drafter's K/V: a table of pages. Rows from ``base`` on come from true hidden rows;
    ``fed`` are the tokens that they were made with."""

    table: Tensor
    base: int = 0
    fed: list[int] = field(default_factory=list)

    def standing(self, tokens: list[int]) -> int:
        """How many rows from ``base`` on were made with these very tokens."""
        for count, (old, new) in enumerate(zip(self.fed, tokens, strict=False)):
            if old != new:
                return count
        return min(len(self.fed), len(tokens))


@dataclass(frozen=True, slots=True)
class Proposal:
    """What is asked for one sequence: ``count`` drafts after ``tokens[-1]``, the pending one.

    ``history`` [positions, W] holds hidden rows from position ``start`` on; ``saved`` [W] is that of position
    len(tokens) - 2.
    """

    memory: DraftMemory
    history: Tensor
    tokens: list[int]
    start: int
    saved: Tensor
    count: int

    @property
    def newest(self) -> int:
        """The position of the newest true row."""
        return len(self.tokens) - 2


class DraftHead:
    """Tensors ``mtp.*``; embedding and output head are the model's own. K/V for ``slots`` sequences of at most
    ``positions`` tokens; nothing is touched before it is written."""

    def __init__(
        self,
        kernels: ModuleType,
        config: ModelConfig,
        tensors: dict[str, Tensor],
        target: Decoder,
        slots: int,
        positions: int,
    ) -> None:
        self.k, self.config, self.target = kernels, config, target
        self.fuse = Projection(kernels, tensors, "mtp.fc")
        self.norms = {
            name: _norm_weight(config, tensors, f"mtp.{name}.weight")
            for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        }
        self.layer = Layer(kernels, config, tensors, "mtp.layers.0.", FULL, False)
        self.pages = -(-positions // PAGE)
        shape = (slots * self.pages + 1, PAGE, config.kv_heads, config.head_dim)
        self.keys, self.values = (torch.empty(shape, device=target.device, dtype=target.dtype) for _ in range(2))

    def new_memory(self, slot: int) -> DraftMemory:
        """The pages of a slot, with nothing in them."""
        return DraftMemory(torch.arange(slot * self.pages, (slot + 1) * self.pages))

    @torch.inference_mode()
    def propose(self, asked: list[Proposal]) -> list[tuple[list[int], list[float]]]:
        """The drafts of each proposal and their log-probabilities; all sequences go through the layer together."""
        rows: list[InputRow] = []
        hidden: list[Tensor] = []
        ends: list[int] = []
        for one in asked:
            first = self._first(one)
            hidden += [one.history[first : one.newest], one.saved[None]]
            rows += self._inputs(one, one.tokens[first + 1 :], first)
            ends.append(len(rows) - 1)
            one.memory.fed = one.tokens[one.memory.base + 1 :]
        out = self._fed(rows, torch.cat(hidden))[ends]
        answers: list[tuple[list[int], list[float]]] = [([], []) for _ in asked]
        left = list(range(len(asked)))
        for step in range(max(one.count for one in asked)):
            for at, draft, confidence in zip(left, *self._picked(out), strict=True):
                answers[at][0].append(draft)
                answers[at][1].append(confidence)
            going = [i for i, at in enumerate(left) if asked[at].count > step + 1]
            left = [left[i] for i in going]
            if not left:
                break
            rows = [self._inputs(asked[at], answers[at][0][-1:], asked[at].newest + 1 + step)[0] for at in left]
            out = self._fed(rows, out[going])
        return answers

    def _first(self, one: Proposal) -> int:
        """The first row that has to be made anew."""
        memory = one.memory
        if not memory.fed:
            memory.base = min(one.start, one.newest)
        return memory.base + memory.standing(one.tokens[memory.base + 1 : one.newest + 1])

    def _inputs(self, one: Proposal, tokens: list[int], first: int) -> list[InputRow]:
        """Rows ``first``.. of one sequence."""
        vocab, memory = self.config.vocab_size, one.memory
        slot = int(memory.table[0])
        return [InputRow(t % vocab, first + i, memory.table, slot, first=memory.base) for i, t in enumerate(tokens)]

    def _picked(self, out: Tensor) -> tuple[list[int], list[float]]:
        """The best token after each row [R, W], and its log-probability."""
        width = self.target.width or out.shape[0]
        picks, confidences = [], []
        for at in range(0, out.shape[0], width):
            part = out[at : at + width]
            full = torch.nn.functional.pad(part, (0, 0, 0, width - part.shape[0]))
            scores = self.target.scores(self.k.rms_norm(full, self.norms["norm"], self.config.eps))
            best = self.k.argmax(scores)
            shares = torch.log_softmax(scores.float(), dim=-1).gather(1, best[:, None])[:, 0]
            picks.append(best[: part.shape[0]])
            confidences.append(shares[: part.shape[0]])
        return torch.cat(picks).tolist(), torch.cat(confidences).tolist()

    def _fed(self, rows: list[InputRow], hidden: Tensor) -> Tensor:
        """Feed rows with hidden [R, W]; their outputs [R, W]."""
        target = self.target
        target.rope.reach(max(row.position for row in rows) + 2)
        dummy = (self.keys.shape[0] - 1) * PAGE
        found = []
        at = 0
        for tile in tiles(rows, target.width, PAGE, dummy, 2, target.device):
            live = len(tile.rows)
            part = torch.nn.functional.pad(hidden[at : at + live], (0, 0, 0, tile.ids.shape[0] - live))
            found.append(self._tile(tile, part)[:live])
            at += live
        return torch.cat(found)

    def _tile(self, tile: Tile, hidden: Tensor) -> Tensor:
        k, eps = self.k, self.config.eps
        tile.positions = tile.positions + 1
        embedded = k.rms_norm(k.embed(self.target.embeddings, tile.ids), self.norms["pre_fc_norm_embedding"], eps)
        seen = k.rms_norm(hidden, self.norms["pre_fc_norm_hidden"], eps)
        x = self.fuse(torch.cat([embedded, seen], dim=-1), tile)
        return self.layer(x, tile, self.target.rope, self.keys, self.values)


def lookup_drafts(tokens: list[int], count: int, longest: int = 8) -> list[int]:
    """A drafter for models without a head: what followed the newest earlier place of the longest matching suffix."""
    for size in range(min(longest, len(tokens) - 1), 0, -1):
        suffix = tokens[-size:]
        for at in range(len(tokens) - size - 1, -1, -1):
            if tokens[at : at + size] == suffix:
                return tokens[at + size : at + size + count]
    return tokens[-1:] * count
