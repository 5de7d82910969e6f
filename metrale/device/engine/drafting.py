"""The drafter's calls (S6 sections 3.6, 3.7). What it proposes changes speed only."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from metrale.core.io import DeviceFault
from metrale.core.sequence import Sequence

from ..model.drafter import Proposal, lookup_drafts
from .core import EngineCore
from .state import state_of
from .streams import DEFAULT


@dataclass(frozen=True, slots=True)
class Asked:
    """A proposal for one sequence: the pending token, its position, the hidden row [W] before it."""

    seq: Sequence
    token: int
    pos: int
    saved: torch.Tensor


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
        return self._proposed([Asked(seq, token, pos, self.saved)], count)[0][0]

    def run_mtp_propose_batched(
        self, tokens: list[int], positions: list[int], stash: list[int], count: int, seqs: list[Sequence], stream: int
    ) -> tuple[list[list[int]], list[list[float]]] | None:
        """All sequences together, inputs from the stash."""
        asked = [
            Asked(seq, token, pos, self.stash[index])
            for seq, token, pos, index in zip(seqs, tokens, positions, stash, strict=True)
        ]
        answers = self._proposed(asked, count)
        return [drafts for drafts, _ in answers], [confidences for _, confidences in answers]

    def _proposed(self, asked: list[Asked], count: int) -> list[tuple[list[int], list[float]]]:
        """Drafts and log-probabilities for each; in a forced run the script's drafts, after the head has run."""
        answers: list[tuple[list[int], list[float]]] = [([], []) for _ in asked]
        proposals = []
        for at, one in enumerate(asked):
            if count < 1 or one.pos < 1:
                continue
            tokens = [*one.seq.tokens[: one.pos], one.token]
            if self.head is None:
                drafts = lookup_drafts(tokens, count)
                answers[at] = drafts, [0.0] * len(drafts)
            elif one.pos + 1 < self.options.max_seq_len:
                proposals.append((at, self._proposal(one, tokens, count)))
        if self.head is not None and proposals:
            found = self.head.propose([proposal for _, proposal in proposals])
            for (at, _), answer in zip(proposals, found, strict=True):
                answers[at] = answer
        if self.picks is None:
            return answers
        scripted = [self.picks.drafts(one.seq, one.pos, count) for one in asked]
        return [(drafts, [0.0] * len(drafts)) for drafts in scripted]

    def _proposal(self, one: Asked, tokens: list[int], count: int) -> Proposal:
        """What the head is asked for one sequence, within the positions it has room for."""
        state = state_of(one.seq)
        assert state.draft is not None
        assert self.memory.history is not None
        self.streams.wait(DEFAULT, state.prefill, "propose-after-prefill")
        room = self.options.max_seq_len
        history = self.memory.history[state.slot * room : (state.slot + 1) * room]
        return Proposal(state.draft, history, tokens, state.history_from, one.saved, min(count, room - one.pos - 1))

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
