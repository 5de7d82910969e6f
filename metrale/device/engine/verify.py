"""Verify forwards (S6 section 3.5)."""

from __future__ import annotations

from metrale.core.io import DeviceFault
from metrale.core.sequence import Sequence

from ..model.rows import InputRow, Intermediate
from .core import EngineCore
from .state import state_of
from .streams import DEFAULT


class Verify(EngineCore):
    """K rows of one sequence are K queries with growing context; the recurrent state after each row is kept."""

    def argmax_batch(self, row: int, count: int, stream: int) -> list[int]:
        """Picks of ``count`` rows."""
        raise NotImplementedError

    def decode_verify(self, tokens: list[int], seq: Sequence) -> list[int]:
        """Any number of rows."""
        return self._verify(tokens, [len(tokens)], [seq])

    def decode_verify_graphed(self, tokens: list[int], seq: Sequence) -> list[int]:
        """Two rows."""
        return self._fixed(tokens, seq, 2)

    def decode_verify_graphed_k3(self, tokens: list[int], seq: Sequence) -> list[int]:
        """Three rows."""
        return self._fixed(tokens, seq, 3)

    def decode_verify_graphed_k4(self, tokens: list[int], seq: Sequence) -> list[int]:
        """Four rows."""
        return self._fixed(tokens, seq, 4)

    def _fixed(self, tokens: list[int], seq: Sequence, rows: int) -> list[int]:
        if len(tokens) != rows:
            raise DeviceFault(f"a verify of {rows} rows got {len(tokens)}")
        return self._verify(tokens, [rows], [seq])

    def decode_verify_dflash(self, tokens: list[int], seq: Sequence) -> list[int]:
        """Any number of rows; hidden rows are captured as for every verify."""
        return self._verify(tokens, [len(tokens)], [seq])

    def decode_and_verify_fused(self, tokens: list[int], seq: Sequence) -> list[int]:
        """Any number of rows."""
        return self._verify(tokens, [len(tokens)], [seq])

    def can_batch_verify(self, rows: list[int]) -> bool:
        """One forward takes any shapes that fit the arena."""
        return self.options.batch_verify and sum(rows) <= self.logits.shape[0]

    def decode_verify_batched(
        self, tokens: list[int], rows: list[int], seqs: list[Sequence], stream: int, write_on_accept: bool
    ) -> list[int]:
        """Several sequences in one forward; states between are written always, which ``write_on_accept`` allows."""
        return self._verify(tokens, rows, seqs)

    def mtp_slot_draft_capacity(self, slot: int) -> int:
        """The same for every slot."""
        return self.options.draft_capacity

    def _verify(self, tokens: list[int], counts: list[int], seqs: list[Sequence]) -> list[int]:
        self.take_blocks([self.blocks_before(seq, count) for seq, count in zip(seqs, counts, strict=True)])
        rows: list[InputRow] = []
        forced: dict[int, int] = {}
        windows: list[list[Intermediate]] = []
        at = 0
        for seq, count in zip(seqs, counts, strict=True):
            mine = tokens[at : at + count]
            if self.picks is not None:
                forced |= {at + i: token for i, token in enumerate(self.picks.verify(seq, mine))}
            window = [Intermediate() for _ in mine]
            for i, row in enumerate(self.rows_of(seq, mine, seq.seq_len)):
                row.logits = row.hidden = at + i
                row.inter = window[i] if self.config.linear is not None else None
                rows.append(row)
            windows.append(window)
            at += count
        self.launch(DEFAULT, seqs, rows, forced)
        at = 0
        for seq, count, window in zip(seqs, counts, windows, strict=True):
            state = state_of(seq)
            state.window_at, state.window = seq.seq_len, window
            self.fed(seq, tokens[at : at + count])
            at += count
        return self.argmax_batch(0, at, 0)
