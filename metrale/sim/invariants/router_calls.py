"""Router lines and the device calls that they announce (S1 section 1, S5 sections 4 and 10)."""

from __future__ import annotations

from metrale.trace import records as r
from metrale.trace.values import SeqId

from .base import plural
from .protocol import Protocol, Wish, look, may, starts, want

U32 = 0xFFFFFFFF
EP_FREE = 0xFFFFFFF1
EP_STOP = 0xFFFFFFFF


class RouterCalls(Protocol):
    """See ``sentence``."""

    name = "router-calls"
    sentence = "Each router line is followed by exactly the device calls that it announces, for the same sequence."

    # -- steps

    @starts(r.FxLaunchDecode)
    def launch(self, rec: r.FxLaunchDecode) -> Wish:
        g = self.g
        if rec.n != len(g.active):
            self.fail(f"the launch is for {plural(rec.n, 'row')} but {plural(len(g.active), 'sequence')} can decode")
        batch = yield may(r.DecodeBatch)
        if batch is None:
            yield look(r.FxReleaseSeq, r.FxSaveSequenceState, why="a launch that fails at once costs rows")
            return
        if len(batch.seqs) != rec.n:
            self.fail(f"the launch announces {plural(rec.n, 'row')}, the decode has {len(batch.seqs)}", g.line - 1)
        if batch.error is not None:
            return
        at = g.line
        yield from self._contexts(rec.ctx, rec.n, batch.seqs, at, 1)
        if rec.readback.kind == "Argmax":
            yield want(r.ArgmaxBatch, why="the launch announces an argmax readback")
        elif rec.readback.kind == "HostLogits":
            yield want(r.CopyLogitsToHost, why="the launch announces a readback of logits")
        else:
            if rec.readback.masks != rec.n:
                self.fail(f"the launch has {rec.readback.masks} masks for {plural(rec.n, 'row')}")
            yield want(r.ArgmaxBatchToFeed, why="the launch announces a masked argmax")

    @starts(r.FxLaunchDecodeFed)
    def launch_fed(self, rec: r.FxLaunchDecodeFed) -> Wish:
        g = self.g
        if rec.fed > rec.n:
            self.fail(f"{rec.fed} of {rec.n} rows are said to be fed on the device")
        if rec.n != len(g.active):
            self.fail(f"the launch is for {plural(rec.n, 'row')} but {plural(len(g.active), 'sequence')} can decode")
        batch = yield may(r.DecodeBatchFed)
        if batch is None:
            yield look(r.FedStepSettled, r.FxMarconiCheckpoint, r.FxReleaseSeq, r.NumFreeBlocks,
                       why="a fed launch that fails leaves the step before it to be settled")  # fmt: skip
            return
        if batch.error is not None:
            return
        if len(batch.seqs) != rec.n:
            self.fail(f"the launch announces {plural(rec.n, 'row')}, the fed decode has {len(batch.seqs)}", g.line - 1)
        yield from self._contexts(rec.ctx, rec.n, batch.seqs, g.line, 0)
        yield want(r.ArgmaxBatchToFeed, why="a fed step puts its picks into the feed cells")

    def _contexts(self, ctx: str, rows: int, seqs: tuple[SeqId, ...], at: int, advanced: int) -> Wish:
        """One context commit per row, in row order, at the position that the row wrote."""
        g = self.g
        g.unified = ctx == "Unified"
        if ctx == "SerialAppend":
            yield want(r.DflashSerialCtxAppend, why="the launch commits its context serially")
        if ctx != "Unified":
            return
        for index, sid in enumerate(seqs):
            commit = yield want(r.CommitCtx, why=f"each of the {rows} rows commits its context")
            length = sid.length + advanced
            seq = commit.seq
            if (
                commit.row == index
                and commit.n == 1
                and seq.length == length
                and commit.base == sid.length
                and seq.slot == sid.slot
                and seq.hash == sid.hash
            ):
                continue
            shown = f"commit_ctx({commit.seq}, n={commit.n}, base={commit.base}, row={commit.row})"
            right = f"commit_ctx(s{sid.hash}@{sid.slot}:len={length}, n=1, base={sid.length}, row={index})"
            g.report("context-commit", f"row {index} of the step commits `{shown}`, its row asks for `{right}`", (at,))

    # -- effects

    @starts(r.FxReleaseSeq)
    def release(self, rec: r.FxReleaseSeq) -> Wish:
        g = self.g
        cached = rec.what in ("finish_sequence", "preempt_requeue")
        if rec.cache != cached:
            self.fail(f"a release for `{rec.what}` must have cache={'true' if cached else 'false'}")
        offered: SeqId | None = None
        if rec.cache:
            offered = (yield want(r.CacheSequence, why="the release offers the prefix to the cache")).seq
        freed = yield want(r.FreeSequence, why="the release frees its sequence")
        if offered is not None and offered != freed.seq:
            self.fail(f"{offered} was offered to the cache, {freed.seq} is freed", g.line - 1)
        slot = freed.seq.slot & U32
        word = yield want(r.EpBroadcastCmdForSeq, why="workers are told to free the slot")
        if word.seq != slot or word.cmd != EP_FREE:
            g.report(
                "ep-words",
                f"after the free of {freed.seq} workers must hear seq={slot}, cmd={EP_FREE:#x}, "
                f"not seq={word.seq}, cmd={word.cmd:#x}",
                (g.line - 1,),
            )

    @starts(r.FxCompactSlot)
    def compact(self, rec: r.FxCompactSlot) -> Wish:
        moved = yield want(r.CompactSequence, why="a compaction was announced")
        g, target = self.g, moved.new_slot
        if target != rec.target:
            self.fail(f"slot {rec.target} was announced, the call says {target}", g.line - 1)
        if moved.error is not None:
            return
        seq, owner, at = g.at(moved.seq), g.live.get(target), g.line
        slots = [one.slot for one in g.active]
        effect = yield may(r.FxDetachSlot)
        if effect is not None:
            gone = yield want(r.DetachSlotForReuse, why="a detach was announced")
            if owner is not None and (gone.seq.slot, gone.seq.hash) != (owner.slot, owner.hash):
                g.report("slots", f"s{owner.hash}@{target} is not the sequence that gives its slot up", (at,))
            return
        if owner is not None and owner is not seq:
            g.report("slots", f"{moved.seq} moves onto slot {target}, which s{owner.hash} holds", (at, owner.born))
            return
        low = range(len(slots))
        held = set(g.live) - {target} | {moved.seq.slot}
        right = max((slot for slot in low if slot not in held), default=None)
        first = next((slot for slot in slots if slot >= len(slots)), None)
        if moved.seq.slot != first:
            g.report("slots", f"{moved.seq} moves, but the first row beyond slot {len(slots) - 1} is on {first}", (at,))
        elif target != right:
            g.report(
                "slots",
                f"{moved.seq} moves to slot {target}; the largest free one below {len(slots)} is {right}",
                (at,),
            )

    @starts(r.FxDetachSlot)
    def detach(self, rec: r.FxDetachSlot) -> Wish:
        self.fail("a slot is given up, but nobody moved")
        yield want(r.DetachSlotForReuse, why="a detach was announced")

    @starts(r.FxSaveSequenceState)
    def save(self, rec: r.FxSaveSequenceState) -> Wish:
        saved = yield want(r.SaveSequenceState, why="a save was announced")
        if saved.error is not None:
            return
        at = self.g.line
        effect = yield may(r.FxReleaseSeq)
        if effect is None or effect.what != "spill_out_sequence":
            # A store that filled up hands the row back: it is requeued, or it ends with an error (S5 section 2.9).
            if effect is not None:
                yield from self.release(effect)
            return
        freed = yield want(r.FreeSequence, why="a spilled sequence is freed")
        if (freed.seq, freed.blocks) != (saved.seq, saved.blocks):
            self.fail(f"{saved.seq} with {saved.blocks} blocks was saved, {freed.seq} with {freed.blocks} is freed", at)
        word = yield want(r.EpBroadcastCmdForSeq, why="workers are told to free the slot")
        if word.seq != freed.seq.slot & U32 or word.cmd != EP_FREE:
            self.g.report("ep-words", f"workers hear the wrong words about the free of {freed.seq}", (self.g.line - 1,))

    @starts(r.FxReadLogits)
    def read_logits(self, rec: r.FxReadLogits) -> Wish:
        copy = yield want(r.CopyLogitsToHost, why="logits are read after all")
        vocab = self.g.vocab
        if copy.row or copy.off or (vocab is not None and copy.bytes != 2 * vocab * rec.rows):
            self.fail(f"the copy does not cover the {rec.rows} rows that were announced", self.g.line - 1)

    @starts(r.FxMarconiCheckpoint)
    def checkpoint(self, rec: r.FxMarconiCheckpoint) -> Wish:
        yield CHECKPOINT

    @starts(r.FxSsmSnapshotSave)
    def ring_save(self, rec: r.FxSsmSnapshotSave) -> Wish:
        saved = yield want(r.SaveDecodeSsmSnapshot, why="a snapshot save was announced")
        if saved.ring != rec.slot:
            self.fail(f"ring slot {rec.slot} was announced, the call says {saved.ring}", self.g.line - 1)
        if saved.error is None:
            yield want(r.FxMarconiCheckpoint, why="a boundary token is checkpointed after its snapshot")
            offered = yield CHECKPOINT
            if offered.seq != saved.seq:
                self.fail(f"the snapshot is of {saved.seq}, the checkpoint of {offered.seq}", self.g.line - 2)

    @starts(r.FxSsmSnapshotRestore)
    def ring_restore(self, rec: r.FxSsmSnapshotRestore) -> Wish:
        restored = yield want(r.RestoreDecodeSsmSnapshot, why="a snapshot restore was announced")
        if restored.ring != rec.slot:
            self.fail(f"ring slot {rec.slot} was announced, the call says {restored.ring}", self.g.line - 1)

    @starts(r.FxSaveHiddenCatchup)
    def catchup(self, rec: r.FxSaveHiddenCatchup) -> Wish:
        saved = yield want(r.SaveHiddenForCatchup, why="a hidden row was announced")
        if (saved.row, saved.pos) != (rec.row, rec.pos):
            self.fail("row and position are not those that were announced", self.g.line - 1)

    @starts(r.FxSyncSecondary)
    def sync_secondary(self, rec: r.FxSyncSecondary) -> Wish:
        yield want(r.SyncSecondary, why="a wait for the secondary stream was announced")

    @starts(r.FxReserveKv)
    def reserve(self, rec: r.FxReserveKv) -> Wish:
        yield want(r.ReserveDecodeBlock, why="a reservation was announced")

    @starts(r.FxRollback)
    def rollback(self, rec: r.FxRollback) -> Wish:
        yield want(r.ReleaseDecodeBlocks, why="a rollback was announced")

    @starts(r.FxRotate)
    def rotate(self, rec: r.FxRotate) -> Wish:
        made = yield want(r.SetActiveLora, why="an adapter rotation was announced")
        if made.name != rec.name:
            self.fail(f"adapter {rec.name} was announced, the call says {made.name}", self.g.line - 1)

    @starts(r.FxLoadIntoSlot)
    def load(self, rec: r.FxLoadIntoSlot) -> Wish:
        made = yield want(r.SwapLoraFromDisk, why="an adapter load was announced")
        if (made.name, made.slot) != (rec.name, rec.slot):
            self.fail("adapter and slot are not those that were announced", self.g.line - 1)

    @starts(r.FxPromote)
    def promote(self, rec: r.FxPromote) -> Wish:
        yield want(r.PromoteLoraFromPeer, why="a promotion was announced")

    @starts(r.FxPromoteDisk)
    def promote_disk(self, rec: r.FxPromoteDisk) -> Wish:
        yield want(r.PromoteLoraFromDisk, why="a promotion was announced")

    # -- the end

    @starts(r.FxEpShutdown)
    def shutdown(self, rec: r.FxEpShutdown) -> Wish:
        g = self.g
        word = yield want(r.EpBroadcastCmdForSeq, why="workers are told to stop")
        if word.seq != 0 or word.cmd != EP_STOP:
            g.report("ep-words", f"workers must hear seq=0, cmd={EP_STOP:#x} at the end", (g.line - 1,))
        for stream in (0, g.prefill_stream):
            quiesce = yield want(r.FxQuiesce, why="both streams are waited for before the teardown")
            waited = yield want(r.Synchronize, why="the wait was announced")
            if quiesce.stream != stream or waited.stream != stream:
                self.fail(f"stream {stream} must be waited for here", g.line - 1)
        yield want(r.FxTeardown, why="the run ends with the teardown")
        destroyed = yield may(r.DestroyEvent)
        while destroyed is not None:
            destroyed = yield may(r.DestroyEvent)
        yield want(r.Teardown, why="the teardown was announced")

    def strays(self) -> dict[type[r.Record], str]:
        announced = "a router line must announce it"
        return dict.fromkeys(
            (
                r.DecodeBatch, r.DecodeBatchFed, r.CacheSequence, r.CompactSequence, r.DetachSlotForReuse,
                r.SaveSequenceState, r.SaveDecodeSsmSnapshot, r.RestoreDecodeSsmSnapshot, r.SaveHiddenForCatchup,
                r.ReserveDecodeBlock, r.ReleaseDecodeBlocks, r.SetActiveLora, r.Synchronize, r.DestroyEvent,
                r.ArgmaxBatchToFeed, r.Teardown, r.FxTeardown, r.FxQuiesce, r.SwapLoraFromDisk,
                r.PromoteLoraFromDisk, r.PromoteLoraFromPeer, r.DflashSerialCtxAppend,
            ),
            announced,
        )  # fmt: skip


CHECKPOINT = want(r.DecodeMarconiCheckpoint, why="a checkpoint was announced")
