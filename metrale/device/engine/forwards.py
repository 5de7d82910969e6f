"""Prefill and decode forwards (S6 section 3.2)."""

from __future__ import annotations

from metrale.core.io import DeviceFault, Unsupported
from metrale.core.request import Request
from metrale.core.sequence import PrefillSlice, Sequence

from ..model.rows import InputRow
from .core import EngineCore
from .prefix_cache import CHECKPOINT_BLOCKS
from .state import state_of
from .streams import DEFAULT, PREFILL


class Forwards(EngineCore):
    """Every forward takes all blocks of all its rows first, so that a dry pool changes nothing."""

    # -- prefill

    def prefill(self, prompt: list[int], seq: Sequence, stream: int) -> None:
        """Whole prompt on D."""
        self._prefill([PrefillSlice(seq, prompt, 0, len(prompt), True)], DEFAULT, [], [])

    def prefill_chunk(self, piece: PrefillSlice, stream: int) -> None:
        """One chunk on P."""
        self._prefill([piece], PREFILL, [], [])

    def prefill_batch_chunk(self, pieces: list[PrefillSlice], stream: int) -> None:
        """One chunk of each piece on P; row i belongs to piece i."""
        self._prefill(pieces, PREFILL, [], [])

    def prefill_twophase(self, prompt: list[int], seq: Sequence, chunk: int, stream: int) -> None:
        """Chunks do what it would do."""
        raise Unsupported("two-phase prefill is unsupported")

    def normalize_ssm_states(self, seq: Sequence, stream: int) -> None:
        """Nothing: a clamp between chunks would make a chunked prompt differ from a whole one."""

    def mixed_forward(self, tokens: list[int], seqs: list[Sequence], piece: PrefillSlice, stream: int) -> None:
        """Decode rows and one chunk in one pass on D; the chunk's row follows the decode rows."""
        self._prefill([piece], DEFAULT, tokens, seqs)

    def mixed_forward_batch(
        self, tokens: list[int], seqs: list[Sequence], pieces: list[PrefillSlice], stream: int
    ) -> None:
        """Decode rows and one chunk of each piece in one pass on D."""
        self._prefill(pieces, DEFAULT, tokens, seqs)

    def _prefill(self, pieces: list[PrefillSlice], stream: int, tokens: list[int], seqs: list[Sequence]) -> None:
        for piece in pieces:
            self._check(piece)
            if piece.start == 0 and piece.seq.seq_len == 0:
                self._look_up(piece)
        wanted = [self.blocks_before(seq, 1) for seq in seqs]
        wanted += [self.blocks_before(piece.seq, piece.length) for piece in pieces]
        self.take_blocks(wanted)
        forced: dict[int, int] = {}
        rows = self._steps(tokens, seqs, forced)
        for i, piece in enumerate(pieces):
            self._prepare(piece, stream)
            rows += self._chunk(piece, len(seqs) + i, forced)
        marked = [*seqs, *(piece.seq for piece in pieces)]
        for piece in pieces:
            rows = self._launch_before_cut(piece, rows, stream)
        if rows:
            self.launch(stream, marked, rows, forced)
        for seq, token in zip(seqs, tokens, strict=True):
            self.fed(seq, [token])
        for piece in pieces:
            self._booked(piece, stream)

    def _check(self, piece: PrefillSlice) -> None:
        seq = piece.seq
        if piece.start != seq.seq_len or piece.start + piece.length > len(piece.prompt):
            raise DeviceFault(f"chunk [{piece.start}, +{piece.length}) does not continue a length of {seq.seq_len}")

    def _look_up(self, piece: PrefillSlice) -> None:
        """Prefix lookup at start 0; a repeated chunk 0 keeps what the first attempt matched (S6 section 4)."""
        seq, state = piece.seq, state_of(piece.seq)
        state.adapter = self.adapters.of(seq.acquired_adapter)
        request = seq.request
        if self.cache is None or state.match is not None or (request is not None and request.vision_pads):
            return
        match = self.cache.lookup(seq.adapter_id, piece.prompt)
        state.match = match
        self._extend(seq, [node.block for node in match.nodes])
        seq.cached_tokens = min(match.skip, match.matched)
        state.history_from = match.skip

    def _prepare(self, piece: PrefillSlice, stream: int) -> None:
        """What the chunk builds on: earlier chunks, shared blocks, a recurrent snapshot."""
        state = state_of(piece.seq)
        if piece.start != 0 or state.match is None:
            return
        for node in state.match.nodes:
            self.streams.wait(stream, node.mark, "share-after-write")
        if state.match.snapshot is not None:
            slot, saved = state.slot, state.match.snapshot.saved
            self.streams.wait(stream, state.match.snapshot.mark, "restore-after-save")
            self.streams.run(stream, lambda: self.load_state(slot, saved.h, saved.conv))

    def _chunk(self, piece: PrefillSlice, row: int, forced: dict[int, int]) -> list[InputRow]:
        """The chunk's rows that are not skipped; the last one of a last chunk gives logits row ``row``."""
        state = state_of(piece.seq)
        skip = state.match.skip if state.match is not None else 0
        end = piece.start + piece.length
        start = min(max(piece.start, skip), end)
        rows = self.rows_of(piece.seq, piece.prompt[start:end], start)
        if piece.last:
            rows[-1].logits = rows[-1].hidden = row
            if self.picks is not None:
                forced[row] = self.picks.after(piece.seq, end - 1)
        return rows

    def _launch_before_cut(self, piece: PrefillSlice, rows: list[InputRow], stream: int) -> list[InputRow]:
        """Run the rows before the place of a snapshot inside a last chunk and take it; the rows that are left."""
        at = self._tail_cut(piece)
        if at is None:
            return rows
        slot = state_of(piece.seq).slot
        self.launch(stream, [piece.seq], [row for row in rows if row.slot == slot and row.position < at])
        self.remember(piece.seq, piece.prompt[:at], stream)
        return [row for row in rows if row.slot != slot or row.position >= at]

    def _tail_cut(self, piece: PrefillSlice) -> int | None:
        """Where the last chunk is split for a snapshot: one block below the last whole block (S6 section 4)."""
        if self.cache is None or not piece.last or not self.cache.recurrent:
            return None
        state = state_of(piece.seq)
        size = self.options.block_size
        at = (len(piece.prompt) - 1) // size * size - size
        skip = state.match.skip if state.match is not None else 0
        return at if at > max(piece.start, skip) else None

    def _booked(self, piece: PrefillSlice, stream: int) -> None:
        seq = piece.seq
        if piece.start == 0:
            seq.prompt_len = len(piece.prompt)
        self.fed(seq, piece.prompt[piece.start : piece.start + piece.length])
        if not piece.last or self.cache is None or (seq.request is not None and seq.request.vision_pads):
            return
        state = state_of(seq)
        self.cache.insert(seq.adapter_id, seq.tokens, state.blocks, self.streams.end_of(stream))
        state.checkpointed_block = seq.seq_len // self.options.block_size
        if self.cache.recurrent and self._tail_cut(piece) is None:
            self.remember(seq, list(seq.tokens), stream)

    # -- decode

    def decode(self, token: int, seq: Sequence, stream: int) -> None:
        """One row."""
        self.decode_batch([token], [seq], stream)

    def decode_batch(self, tokens: list[int], seqs: list[Sequence], stream: int) -> None:
        """One row per sequence, in the order of the call."""
        self.take_blocks([self.blocks_before(seq, 1) for seq in seqs])
        forced: dict[int, int] = {}
        rows = self._steps(tokens, seqs, forced)
        self.launch(DEFAULT, seqs, rows, forced)
        for seq, token in zip(seqs, tokens, strict=True):
            self.fed(seq, [token])

    def _steps(self, tokens: list[int], seqs: list[Sequence], forced: dict[int, int]) -> list[InputRow]:
        """One decode row per sequence, results in rows 0..; enters their forced picks."""
        rows: list[InputRow] = []
        for i, (seq, token) in enumerate(zip(seqs, tokens, strict=True)):
            row = self.rows_of(seq, [token], seq.seq_len)[0]
            row.logits = row.hidden = i
            if self.picks is not None:
                forced[i] = self.picks.after(seq, seq.seq_len)
            rows.append(row)
        return rows

    def decode_draft(self, token: int, seq: Sequence, stream: int) -> None:
        """A decode without the recurrent layers; their state stays."""
        self.take_blocks([self.blocks_before(seq, 1)])
        forced: dict[int, int] = {}
        rows = self._steps([token], [seq], forced)
        rows[0].history = -1
        state = state_of(seq)
        rec = state.rec
        self.launch(DEFAULT, [seq], rows, forced, recurrent=False)
        self.fed(seq, [token])
        state.rec = rec

    def generate_beam_batch(self, requests: list[Request]) -> list[list[int]]:
        """Beam search is not offered; a forced run still answers from its script."""
        if self.picks is None:
            raise Unsupported("beam search is unsupported")
        return [self.picks.beam(request) for request in requests]

    def decode_marconi_checkpoint(self, seq: Sequence) -> None:
        """A prefix-cache snapshot at every new multiple of four whole blocks."""
        if self.cache is None or seq.state is None:
            return
        state = state_of(seq)
        whole = seq.seq_len // self.options.block_size
        due = whole >= 1 and whole % CHECKPOINT_BLOCKS == 0 and whole != state.checkpointed_block
        if not due or whole > len(state.blocks) or state.rec != seq.seq_len:
            return
        state.checkpointed_block = whole
        self.cache.insert(seq.adapter_id, seq.tokens, state.blocks, self.streams.end_of(DEFAULT))
        self.remember(seq, list(seq.tokens), DEFAULT)
