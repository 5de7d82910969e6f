"""The drafter's calls (S6 sections 3.6, 3.7). What it proposes changes speed only."""

from __future__ import annotations

import torch

from metrale.core.io import DeviceFault
from metrale.core.sequence import Sequence

from ..model.drafter import lookup_drafts
from .core import EngineCore
from .state import state_of
from .streams import DEFAULT


class Drafting(EngineCore):
    """The draft head where the checkpoint has one, else a look-up in the sequence's own past.

    True hidden rows are kept by position in the sequence's history, so catch-up calls and context commits have
    nothing left to bring, and no dropped draft leaves a stale row.
    """

    def save_hidden_for_mtp(self, row: int, stream: int) -> None:
        """Keep one hidden row of the latest forward."""
        self.streams.run(DEFAULT, lambda: self.saved.copy_(self.hidden[row]))

    def stash_verify_hidden_rows(self, rows: list[int], stream: int) -> None:
        """Keep one hidden row per sequence."""
        if len(rows) > self.stash.shape[0]:
            raise DeviceFault(f"{len(rows)} rows do not fit a stash of {self.stash.shape[0]}")
        self.streams.run(DEFAULT, lambda: self.stash[: len(rows)].copy_(self.hidden[rows]))

    def save_hidden_for_mtp_from_stash(self, index: int, stream: int) -> None:
        """Use a stashed row."""
        self.streams.run(DEFAULT, lambda: self.saved.copy_(self.stash[index]))

    def stash_verify_catchup_rows(self, pairs: list[tuple[int, int]]) -> None:
        """The history has these rows."""

    def run_mtp_catchup_batched(self, tokens: list[list[int]], slots: list[int], positions: list[int]) -> int:
        """The next proposal catches up from the history."""
        return 0

    def run_mtp_propose_multi(
        self, token: int, pos: int, count: int, seq: Sequence, stream: int, mask: bool
    ) -> list[int]:
        """At most ``count`` chained drafts."""
        return self._propose(token, pos, count, seq, self.saved)[0]

    def run_mtp_propose_batched(
        self, tokens: list[int], positions: list[int], stash: list[int], count: int, seqs: list[Sequence], stream: int
    ) -> tuple[list[list[int]], list[list[float]]] | None:
        """One after the other, inputs from the stash."""
        answers = [
            self._propose(token, pos, count, seq, self.stash[index])
            for token, pos, index, seq in zip(tokens, positions, stash, seqs, strict=True)
        ]
        return [drafts for drafts, _ in answers], [confidences for _, confidences in answers]

    def _propose(
        self, token: int, pos: int, count: int, seq: Sequence, saved: torch.Tensor
    ) -> tuple[list[int], list[float]]:
        drafts, confidences = self._drafts(token, pos, count, seq, saved)
        if self.picks is not None:
            drafts = self.picks.drafts(seq, pos, count)
            confidences = [0.0] * len(drafts)
        return drafts, confidences

    def _drafts(
        self, token: int, pos: int, count: int, seq: Sequence, saved: torch.Tensor
    ) -> tuple[list[int], list[float]]:
        tokens = [*seq.tokens[:pos], token]
        state = state_of(seq)
        if count < 1 or pos < 1:
            return [], []
        if self.head is None or state.draft is None or state.history is None:
            drafts = lookup_drafts(tokens, count)
            return drafts, [0.0] * len(drafts)
        room = self.options.max_seq_len - pos - 1
        if room < 1:
            return [], []
        self.streams.wait(DEFAULT, state.prefill, "propose-after-prefill")
        start = max(state.history_from, 0)
        return self.head.propose(state.draft, state.history, tokens, start, saved, min(count, room))

    def trim_proposer_state(self, seq: Sequence, accepted: int, stream: int) -> None:
        """The drafter's rows are indexed by position: nothing to trim."""

    def save_hidden_for_catchup(self, row: int, pos: int) -> None:
        """The history has this row."""

    def commit_ctx(self, seq: Sequence, count: int, base: int, row: int) -> None:
        """There is no block drafter whose context could grow."""

    def dflash_eagle_accept_append(self, seq: Sequence) -> None:
        """No block drafter."""

    def dflash_eagle_kgamma_append(self, seq: Sequence, accepted: int, base: int) -> None:
        """No block drafter."""

    def dflash_serial_ctx_append(self, seq: Sequence) -> None:
        """No block drafter."""
