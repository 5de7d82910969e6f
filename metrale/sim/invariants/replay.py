"""How each line changes the ghost: life cycle, memory, forwards, picks. Speculative lines are in :mod:`.replay_drafts`.

Every rule here says what a *legal* line does (S1 section 2, S6 section 3). A line that contradicts the ghost has been
reported by then; the ghost believes the line and goes on, so that one fault is one report and not a hundred.
"""

from __future__ import annotations

from metrale.trace import records as r
from metrale.trace.values import SeqId

from .base import on
from .ghost import UNKNOWN, Ghost, Life, Origin, Phase, Seq
from .replay_drafts import DraftReplay
from .replay_memory import MemoryReplay


class Replay(DraftReplay, MemoryReplay):
    """Writes the ghost; its methods run after those of the invariants."""

    def __init__(self, ghost: Ghost) -> None:
        self.g = ghost
        self._release: str | None = None
        self._launched = False

    # -- frame

    @on(r.Tick)
    def tick(self, rec: r.Tick) -> None:
        g = self.g
        g.tick, g.tick_line = rec.tick, g.line
        g.failed_decode = 0
        g.newest = None

    @on(r.CreateStream)
    def stream(self, rec: r.CreateStream) -> None:
        if rec.result is not None:
            self.g.prefill_stream = rec.result

    @on(r.CreateEvent)
    def event(self, rec: r.CreateEvent) -> None:
        self.g.prefill_event = rec.result

    @on(r.NumFreeBlocks)
    def free_blocks(self, rec: r.NumFreeBlocks) -> None:
        pool = self.g.pool
        if pool.total is None:
            pool.total = rec.result + pool.used_low

    @on(r.ReclaimPrefixBlocks)
    def reclaimed(self, rec: r.ReclaimPrefixBlocks) -> None:
        if rec.result:
            self.g.pool.reclaim(rec.result)

    @on(r.Teardown)
    def teardown(self, rec: r.Teardown) -> None:
        self.g.torn_down = True

    @on(r.Out)
    def out(self, rec: r.Out) -> None:
        self.g.outs.append((self.g.line, rec))

    # -- birth

    @on(r.AllocSequence, r.AllocSequenceFor)
    def alloc(self, rec: r.AllocSequence | r.AllocSequenceFor) -> None:
        g = self.g
        if rec.slot is None:
            return
        seq = Seq(rec.slot, g.line)
        if isinstance(rec, r.AllocSequenceFor):
            seq.budget = rec.budget
            g.chunked = True
        g.live[rec.slot] = seq
        g.pool.add(seq)
        g.newest = seq

    @on(r.AdapterIdFor)
    def adapter(self, rec: r.AdapterIdFor) -> None:
        seq = self.g.newest
        if seq is not None and seq.origin is Origin.NEW:
            seq.origin = Origin.START
            seq.adapter = rec.slot

    @on(r.AcquireAdapterSlot)
    def acquire(self, rec: r.AcquireAdapterSlot) -> None:
        seq = self.g.newest
        if seq is not None:
            seq.acquired += 1
            if seq.origin is Origin.NEW:
                seq.origin = Origin.RESUME
            if seq.adapter is None:
                seq.adapter = rec.slot

    @on(r.GenerateBeamBatch)
    def beams(self, rec: r.GenerateBeamBatch) -> None:
        seq = self.g.newest
        if seq is not None and rec.result:
            seq.hypothesis = rec.result[-1]
        else:
            self.g.hypotheses.extend(rec.result or ())

    def christen(self, sid: SeqId) -> Seq | None:
        """The sequence that a line names for the first time takes its hash; its life begins or goes on."""
        g = self.g
        seq = g.live.get(sid.slot)
        if seq is None or seq.named:
            return seq if seq is not None and seq.hash == sid.hash else g.at(sid)
        seq.named, seq.hash = True, sid.hash
        if seq.origin is Origin.RESUME:
            self._resume(seq)
        if seq.life is None:
            life = Life(sid.hash, seq.born, budget=seq.budget, adapter=-1 if seq.adapter is None else seq.adapter)
            g.lives.setdefault(sid.hash, []).append(life)
            seq.life = life
        return seq

    def _resume(self, seq: Seq) -> None:
        parked = next((entry for entry in self.g.requeued if entry.hash == seq.hash), None)
        if parked is None:
            return
        self.g.requeued.remove(parked)
        seq.life, seq.pending, seq.fresh, seq.picked = parked.life, parked.pending, parked.fresh, parked.line
        seq.life.end = None
        seq.life.steps.append("requeued -> active")

    # -- prefill

    @on(r.Prefill, r.PrefillTwophase)
    def prefill(self, rec: r.Prefill | r.PrefillTwophase) -> None:
        seq = self.christen(rec.seq)
        if rec.error is not None or seq is None:
            return
        seq.prompt = rec.n
        self._fed_prompt(seq, rec.seq.length, True)
        self._forward([seq])

    @on(r.PrefillChunk)
    def chunk(self, rec: r.PrefillChunk) -> None:
        seq = self.christen(rec.seq)
        if rec.error is not None or seq is None:
            return
        self._fed_prompt(seq, rec.seq.length, rec.last)
        self._forward([seq])

    @on(r.PrefillBatchChunk)
    def batch_chunk(self, rec: r.PrefillBatchChunk) -> None:
        if rec.error is None:
            self._forward(self._slices(rec.streams))
            self.g.rows_mixed = True

    @on(r.MixedForward)
    def mixed(self, rec: r.MixedForward) -> None:
        if rec.error is None:
            self._mix(rec.decode, (rec.prefill,))

    @on(r.MixedForwardBatch)
    def mixed_batch(self, rec: r.MixedForwardBatch) -> None:
        if rec.error is None:
            self._mix(rec.decode, rec.prefills)

    def _mix(self, inputs: tuple[int, ...], slices: tuple[r.Slice, ...]) -> None:  # type: ignore[name-defined]
        g = self.g
        g.active.sort(key=_slot)
        rows = g.active[: len(inputs)]
        for seq, token in zip(rows, inputs, strict=False):
            self.feed(seq, token)
            self.grown(seq, seq.length)
        self._forward([*rows, *self._slices(slices)])
        g.rows_mixed = True

    def _slices(self, slices: tuple[r.Slice, ...]) -> list[Seq]:  # type: ignore[name-defined]
        seqs = []
        for piece in slices:
            seq = self.christen(piece.seq)
            if seq is not None:
                self._fed_prompt(seq, piece.seq.length, piece.last)
                seqs.append(seq)
        return seqs

    def _fed_prompt(self, seq: Seq, length: int, last: bool) -> None:
        g = self.g
        if seq.phase is Phase.EMPTY:
            seq.phase = Phase.PREFILL
            g.prefilling.append(seq)
        seq.length = length
        self.grown(seq, length)
        if not last:
            return
        seq.phase = Phase.READY
        if seq in g.prefilling:
            g.prefilling.remove(seq)
        if seq.life is not None and not seq.life.prefilled:
            seq.life.prefilled = True
            seq.life.prompt = length
        if seq.origin is Origin.RESUME and seq not in g.active:
            g.active.append(seq)

    def _forward(self, rows: list[Seq]) -> None:
        g = self.g
        g.rows, g.row_count, g.rows_line = rows, len(rows), g.line
        g.rows_single = g.rows_mixed = g.rows_verified = False
        g.born_at = len(g.active)
        g.newest = None

    # -- decode

    @on(r.FxLaunchDecode, r.FxLaunchDecodeFed)
    def launch(self, rec: r.FxLaunchDecode | r.FxLaunchDecodeFed) -> None:
        self._launched = True
        if len(self.g.active) > 1:
            self.g.active.sort(key=_slot)

    @on(r.DecodeBatch)
    def decode_batch(self, rec: r.DecodeBatch) -> None:
        g = self.g
        if rec.error is not None:
            g.failed_decode = g.line
            return
        rows = []
        live = g.live
        for token, sid in zip(rec.tokens, rec.seqs, strict=False):
            seq = live.get(sid.slot)
            if seq is None:
                continue
            self.feed(seq, token)
            if sid.length + 1 < seq.length:
                self.rewind(seq, sid.length)
            length = sid.length + 1
            seq.length = length
            if length >= seq.limit:
                g.pool.cover(seq, length)
            rows.append(seq)
        self._forward(rows)
        g.rows_single, self._launched = not self._launched, False
        if g.flight:
            g.flight = []

    @on(r.DecodeBatchFed)
    def decode_fed(self, rec: r.DecodeBatchFed) -> None:
        g = self.g
        if rec.error is not None:
            return
        rows = []
        for token, sid in zip(rec.inputs, rec.seqs, strict=False):
            seq = g.live.get(sid.slot)
            if seq is None:
                continue
            g.settle_ahead(seq)
            if seq.pending == UNKNOWN:
                seq.pending = token
            seq.length = sid.length
            seq.ahead = True
            self.grown(seq, sid.length + 1)
            rows.append(seq)
        self._forward(rows)

    def feed(self, seq: Seq, token: int) -> None:
        """``token`` becomes part of the history: the pick that it is was kept, or dropped without a trace."""
        if seq.ahead:
            self.g.settle_ahead(seq)
        life = seq.life
        if life is not None:
            if life.run:
                if life.run[-1] == UNKNOWN:
                    life.run[-1] = token
                life.flush()
            elif seq.fresh:
                life.dropped.append(token)
            elif seq.pending == UNKNOWN and life.kept and life.kept[-1] == UNKNOWN:
                life.kept[-1] = token
        seq.fresh = False
        seq.pending = token
        seq.window = None
        seq.alternative = None
        seq.length += 1

    def grown(self, seq: Seq, length: int) -> None:
        """A forward brought the sequence to ``length`` tokens."""
        if length >= seq.limit:
            self.g.pool.cover(seq, length)

    # -- picks

    @on(r.ArgmaxOnDevice)
    def argmax(self, rec: r.ArgmaxOnDevice) -> None:
        if rec.result is not None and rec.row < len(self.g.rows):
            self.pick(self.g.rows[rec.row], rec.result)

    @on(r.ArgmaxBatch)
    def argmax_batch(self, rec: r.ArgmaxBatch) -> None:
        if rec.result is None:
            return
        line = self.g.line
        if self.g.rows_single:
            for seq, token in zip(self.g.rows[rec.row :], rec.result, strict=False):
                self.pick(seq, token)
            return
        for seq, token in zip(self.g.rows[rec.row :], rec.result, strict=False):
            seq.pending, seq.picked, seq.fresh = token, line, True

    @on(r.ArgmaxBatchToFeed)
    def argmax_to_feed(self, rec: r.ArgmaxBatchToFeed) -> None:
        g = self.g
        if rec.result is None:
            return
        g.depth_two = True
        for seq, token in zip(g.rows, rec.result, strict=False):
            if seq.ahead:
                seq.ahead_pick = token
            else:
                seq.pending, seq.picked, seq.fresh = token, g.line, True
        g.flight = list(g.rows)

    @on(r.CopyLogitsToHost)
    def copy_logits(self, rec: r.CopyLogitsToHost) -> None:
        g = self.g
        if rec.error is not None:
            return
        if g.vocab is None and g.row_count:
            g.vocab = self._vocab_of(rec)
        width = 2 * (g.vocab or 1)
        rows = max(1, rec.bytes // width)
        for seq in g.rows[rec.row : rec.row + rows]:
            if seq.window is not None and seq.window.line == g.rows_line:
                self.host_verdict(seq)
            else:
                self.pick(seq, UNKNOWN)

    def _vocab_of(self, rec: r.CopyLogitsToHost) -> int | None:
        """The vocabulary size, told by the first copy whose number of rows is known."""
        g = self.g
        if g.rows_verified and rec.row < len(g.rows):
            return rec.bytes // (2 * g.rows.count(g.rows[rec.row]))
        born = rec.row < len(g.rows) and g.rows[rec.row].phase is Phase.READY and g.rows[rec.row] not in g.active
        rows = 1 if born or g.rows_single or g.row_count == 1 else g.born_at if g.rows_mixed else g.row_count - rec.row
        return rec.bytes // (2 * rows) if rows > 0 else None

    def pick(self, seq: Seq, token: int) -> None:
        """A row's next token is known to the scheduler (UNKNOWN: picked on the host)."""
        g = self.g
        life = seq.life
        if life is not None and token == UNKNOWN:
            life.host_picks += 1
        if seq.phase is Phase.READY and seq not in g.active and seq.origin is Origin.START:
            g.active.insert(min(g.born_at, len(g.active)), seq)
            seq.pending, seq.picked, seq.fresh = token, g.line, False
            if life is not None:
                life.kept.append(token)
            return
        if seq.drafting:
            seq.picked = g.line
            self.draft_picked(seq, token)
            return
        seq.pending, seq.picked = token, g.line
        if g.rows_single:
            self.single_pick(seq, token)
        else:
            seq.fresh = True

    @on(r.DecodeMarconiCheckpoint)
    def checkpoint(self, rec: r.DecodeMarconiCheckpoint) -> None:
        g = self.g
        seq = g.live.get(rec.seq.slot)
        if seq is None or seq.life is None:
            return
        if seq.ahead and not seq.fresh:
            g.settle_ahead(seq)
        if seq.fresh:
            token, seq.fresh = seq.pending, False
            if rec.seq.length < seq.length:
                self.rewind(seq, rec.seq.length - 1)
                seq.length, seq.boundary = rec.seq.length, seq.pending
            seq.life.kept.append(token)
            if seq.boundary is not None:
                seq.pending, seq.boundary = seq.boundary, None


def _slot(seq: Seq) -> int:
    return seq.slot
