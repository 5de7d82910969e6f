"""Copies of the recurrent state: commit, rollback, checkpoint, fold, decode ring (S6 section 3.4)."""

from __future__ import annotations

from metrale.core.io import DeviceFault
from metrale.core.sequence import Sequence

from .core import EngineCore
from .state import EngineState, state_of
from .streams import DEFAULT, SECONDARY


class Recurrent(EngineCore):
    """A verify updates the live state in place to its last row and leaves the states between; whatever keeps fewer
    rows is followed by exactly one restoring call."""

    def _keep(self, seq: Sequence, count: int, stream: int, h: bool = True) -> None:
        """Live state := state after ``count`` rows of the latest verify, on ``stream``."""
        state = state_of(seq)
        if self.config.linear is None:
            state.rec = seq.seq_len
            return
        if not 1 <= count <= len(state.window):
            raise DeviceFault(f"{count} rows kept of a verify of {len(state.window)}")
        inter, slot = state.window[count - 1], state.slot
        self.streams.wait(stream, state.secondary, "rollback-after-secondary")
        mark = self.streams.run(stream, lambda: self.load_intermediate(slot, inter, h=h))
        if stream == SECONDARY:
            state.secondary = mark
        state.rec = state.window_at + count

    def commit_accepted_prefix(self, seq: Sequence, accepted: int, rows: int) -> None:
        """Nothing to copy when all rows are kept; else the state after ``accepted`` rows, on S."""
        state = state_of(seq)
        if not 1 <= accepted <= rows or (state.window and rows != len(state.window)):
            raise DeviceFault(f"commit of {accepted} of {rows} rows after a verify of {len(state.window)}")
        if accepted < rows:
            self._keep(seq, accepted, SECONDARY)

    def rollback_ssm_states(self, seq: Sequence, count: int) -> None:
        """On D; 0 rows is the checkpoint."""
        state = state_of(seq)
        if count:
            self._keep(seq, count, DEFAULT)
            return
        saved, slot = state.checkpoint, state.slot
        if saved is None:
            raise DeviceFault("no checkpoint to roll back to")
        self.streams.wait(DEFAULT, state.secondary, "return-after-secondary")
        self.streams.run(DEFAULT, lambda: self.load_state(slot, saved.h, saved.conv))
        state.rec = saved.position

    def checkpoint_ssm_states(self, seq: Sequence) -> None:
        """On D."""
        self.wait_for_copies(state_of(seq), "checkpoint")
        self._checkpoint(seq, DEFAULT)

    def start_checkpoint_async(self, seq: Sequence) -> None:
        """On S."""
        self._checkpoint(seq, SECONDARY)

    def start_rollback_and_checkpoint_async(self, seq: Sequence, accepted: int) -> None:
        """On S, in this order."""
        self._keep(seq, accepted, SECONDARY)
        self._checkpoint(seq, SECONDARY)

    def _checkpoint(self, seq: Sequence, stream: int) -> None:
        state = state_of(seq)
        if self.config.linear is None:
            return
        if stream == SECONDARY:
            self.streams.wait(SECONDARY, state.prefill, "checkpoint-on-secondary-after-prefill")
        saved, slot = self.copy_state(state.slot, state.rec), state.slot

        def work() -> None:
            saved.h.copy_(self.memory.h[slot])
            saved.conv.copy_(self.memory.conv[slot])

        mark = self.streams.run(stream, work)
        state.checkpoint = saved
        if stream == SECONDARY:
            state.secondary = mark

    def sync_secondary(self) -> None:
        """Nothing: every piece of work on a recurrent state waits for S work on it by itself (S6 section 7.3)."""

    def gdn_fold_accepted(self, seqs: list[Sequence], accepted: list[int], rows: int) -> bool:
        """Matrix states to their accepted rows, on D; the commit that follows brings the convolution tails."""
        for seq, count in zip(seqs, accepted, strict=True):
            state = seq.state
            if not isinstance(state, EngineState) or not state.window or count >= len(state.window):
                continue
            inter, slot = state.window[count - 1], state.slot
            self.streams.wait(DEFAULT, state.secondary, "fold-after-secondary")
            self.streams.run(DEFAULT, lambda slot=slot, inter=inter: self.load_intermediate(slot, inter, conv=False))
        return True

    def save_decode_ssm_snapshot(self, seq: Sequence, ring: int) -> None:
        """Ring entries belong to the sequence, so a compaction cannot mix them up."""
        state = state_of(seq)
        if ring >= max(self.options.ring_slots, self.facts.ring_slots):
            raise DeviceFault(f"ring slot {ring} does not exist")
        self.wait_for_copies(state, "ring-save")
        saved, slot = self.copy_state(state.slot, state.rec), state.slot

        def work() -> None:
            saved.h.copy_(self.memory.h[slot])
            saved.conv.copy_(self.memory.conv[slot])

        self.streams.run(DEFAULT, work)
        state.ring[ring] = saved

    def restore_decode_ssm_snapshot(self, seq: Sequence, ring: int) -> None:
        """The scheduler cuts the length to the same position right after."""
        state = state_of(seq)
        saved, slot = state.ring.get(ring), state.slot
        if saved is None:
            raise DeviceFault(f"ring slot {ring} was never saved")
        self.wait_for_copies(state, "ring-restore")
        self.streams.run(DEFAULT, lambda: self.load_state(slot, saved.h, saved.conv))
        state.rec = saved.position
