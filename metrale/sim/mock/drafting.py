"""The mock device's drafting half: proposes, verifies, and the calls around them (S1 section 2)."""

from __future__ import annotations

from metrale.core.sequence import Sequence

from .script import MockConfig, Script

REJECTED = 1
"""What a verify row answers from the first wrong input on."""


class DraftingMixin:
    """Verify answers and scripted drafts."""

    config: MockConfig
    rows: list[int]

    def _push(self, seq: Sequence, token: int) -> None:
        raise NotImplementedError

    def _answer(self, seq: Sequence) -> int:
        raise NotImplementedError

    def _cancel_hook(self, seq: Sequence) -> None:
        raise NotImplementedError

    def _grow(self, seq: Sequence) -> None:
        raise NotImplementedError

    # -- recurrent state: none here

    def checkpoint_ssm_states(self, seq: Sequence) -> None:
        """No recurrent state."""

    def rollback_ssm_states(self, seq: Sequence, count: int) -> None:
        """No recurrent state."""

    def start_checkpoint_async(self, seq: Sequence) -> None:
        """No recurrent state."""

    def start_rollback_and_checkpoint_async(self, seq: Sequence, accepted: int) -> None:
        """No recurrent state."""

    def commit_accepted_prefix(self, seq: Sequence, accepted: int, rows: int) -> None:
        """No recurrent state."""

    def sync_secondary(self) -> None:
        """No secondary stream."""

    def save_decode_ssm_snapshot(self, seq: Sequence, ring: int) -> None:
        """No recurrent state."""

    def restore_decode_ssm_snapshot(self, seq: Sequence, ring: int) -> None:
        """No recurrent state."""

    def decode_marconi_checkpoint(self, seq: Sequence) -> None:
        """No prefix cache."""

    # -- verify

    def _verify_rows(self, tokens: list[int], seq: Sequence) -> list[int]:
        """Feed the rows; each answers like a decode of its position until an input is not the script's. The first
        input is taken as right."""
        script: Script = seq.state
        count = len(tokens)
        answers = script.window(seq.seq_len + 1 - script.prompt_len, count)
        seq.tokens += tokens
        seq.seq_len += count
        if seq.seq_len // self.config.facts.block_size >= seq.num_blocks:
            self._grow(seq)
        for row in range(1, count):
            if tokens[row] != answers[row - 1]:
                answers[row:] = [REJECTED] * (count - row)
                break
        return answers

    def _verify(self, call: str, tokens: list[int], seq: Sequence) -> list[int]:
        self.config.faults.meet(call)
        self._cancel_hook(seq)
        self.rows = self._verify_rows(tokens, seq)
        return list(self.rows)

    def decode_verify(self, tokens: list[int], seq: Sequence) -> list[int]:
        """Any number of rows."""
        return self._verify("decode_verify", tokens, seq)

    def decode_verify_graphed(self, tokens: list[int], seq: Sequence) -> list[int]:
        """Two rows."""
        return self._verify("decode_verify_graphed", tokens, seq)

    def decode_verify_graphed_k3(self, tokens: list[int], seq: Sequence) -> list[int]:
        """Three rows."""
        return self._verify("decode_verify_graphed_k3", tokens, seq)

    def decode_verify_graphed_k4(self, tokens: list[int], seq: Sequence) -> list[int]:
        """Four rows."""
        return self._verify("decode_verify_graphed_k4", tokens, seq)

    def decode_verify_dflash(self, tokens: list[int], seq: Sequence) -> list[int]:
        """Any number of rows."""
        return self._verify("decode_verify_dflash", tokens, seq)

    def decode_and_verify_fused(self, tokens: list[int], seq: Sequence) -> list[int]:
        """Any number of rows."""
        return self._verify("decode_and_verify_fused", tokens, seq)

    def can_batch_verify(self, rows: list[int]) -> bool:
        """The configured fact."""
        return self.config.can_batch_verify

    def decode_verify_batched(
        self, tokens: list[int], rows: list[int], seqs: list[Sequence], stream: int, write_on_accept: bool
    ) -> list[int]:
        """Sequence after sequence; no cancel hook here."""
        self.config.faults.meet("decode_verify_batched")
        answers: list[int] = []
        at = 0
        for seq, count in zip(seqs, rows, strict=True):
            answers += self._verify_rows(tokens[at : at + count], seq)
            at += count
        self.rows = answers
        return list(answers)

    def gdn_fold_accepted(self, seqs: list[Sequence], accepted: list[int], rows: int) -> bool:
        """Always done."""
        return True

    def mtp_slot_draft_capacity(self, slot: int) -> int:
        """The configured fact, the same for every slot."""
        return self.config.slot_draft_capacity

    # -- drafter

    def decode_draft(self, token: int, seq: Sequence, stream: int) -> None:
        """Drafts by skipped layers come from the plain script."""
        self._push(seq, token)
        self.rows = [self._answer(seq)]

    def save_hidden_for_mtp(self, row: int, stream: int) -> None:
        """No hidden rows."""

    def stash_verify_hidden_rows(self, rows: list[int], stream: int) -> None:
        """No hidden rows."""

    def save_hidden_for_mtp_from_stash(self, index: int, stream: int) -> None:
        """No hidden rows."""

    def stash_verify_catchup_rows(self, pairs: list[tuple[int, int]]) -> None:
        """No hidden rows."""

    def run_mtp_catchup_batched(self, tokens: list[list[int]], slots: list[int], positions: list[int]) -> int:
        """The drafter needs no rows."""
        return 0

    def run_mtp_propose_multi(
        self, token: int, pos: int, count: int, seq: Sequence, stream: int, mask: bool
    ) -> list[int]:
        """Script tokens from position ``pos + 1`` on, spoilt on schedule."""
        script: Script = seq.state
        return script.drafts(pos + 1, count, self.config.facts.vocab_size)

    def run_mtp_propose_batched(
        self, tokens: list[int], positions: list[int], stash: list[int], count: int, seqs: list[Sequence], stream: int
    ) -> tuple[list[list[int]], list[list[float]]] | None:
        """The same for several; all confidences are 0."""
        vocab = self.config.facts.vocab_size
        drafts = [seq.state.drafts(pos + 1, count, vocab) for pos, seq in zip(positions, seqs, strict=True)]
        return drafts, [[0.0] * len(one) for one in drafts]

    def trim_proposer_state(self, seq: Sequence, accepted: int, stream: int) -> None:
        """No drafter state."""

    def save_hidden_for_catchup(self, row: int, pos: int) -> None:
        """No hidden rows."""

    def commit_ctx(self, seq: Sequence, count: int, base: int, row: int) -> None:
        """No drafter context."""

    def dflash_eagle_accept_append(self, seq: Sequence) -> None:
        """No drafter context."""

    def dflash_eagle_kgamma_append(self, seq: Sequence, accepted: int, base: int) -> None:
        """No drafter context."""

    def dflash_serial_ctx_append(self, seq: Sequence) -> None:
        """No drafter context."""
