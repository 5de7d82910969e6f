"""From an allocation to the first token: the calls around every prefill (S2 sections 3, 4, 8, 9, 10, 15)."""

from __future__ import annotations

from metrale.trace import records as r
from metrale.trace.values import SeqId, Slice

from .base import plural
from .ghost import Phase
from .protocol import Protocol, Wish, may, starts, want

U32 = 0xFFFFFFFF
EP_PREFILL = 0xFFFFFFF0
EP_FREE = 0xFFFFFFF1
FAILED = "a failed start frees its sequence"


class PrefillCalls(Protocol):
    """See ``sentence``."""

    name = "prefill-calls"
    sentence = (
        "A prefill is allocated, announced to the workers, fed and read back in this order, "
        "with the lengths that were announced."
    )

    # -- starts, resumes, swap-ins

    @starts(r.AllocSequence, r.AllocSequenceFor)
    def allocated(self, rec: r.AllocSequence | r.AllocSequenceFor) -> Wish:
        if rec.slot is None:
            return
        at = self.g.line
        first = yield want(
            r.AdapterIdFor, r.AcquireAdapterSlot, r.RestoreSequenceState, why="a new sequence gets its adapter or image"
        )
        if isinstance(first, r.RestoreSequenceState):
            yield from self._restore(first, rec.slot)
            return
        if isinstance(first, r.AcquireAdapterSlot):
            yield from self._resume(rec.slot)
            return
        taken = yield want(r.AcquireAdapterSlot, why="a new sequence takes its adapter")
        if taken.slot != first.slot:
            self.fail(f"the adapter asked for is {first.slot}, the one taken is {taken.slot}", self.g.line - 1)
        next_ = yield want(
            r.EpBroadcastCmdForSeq, r.GenerateBeamBatch, r.FxReleaseSeq, why="a new sequence is announced"
        )
        if isinstance(next_, r.EpBroadcastCmdForSeq):
            yield from self._start(rec, next_, at)
        elif isinstance(next_, r.GenerateBeamBatch):
            yield from self._beam(next_)
        else:
            yield from self._released(next_)

    def _start(self, rec: r.AllocSequence | r.AllocSequenceFor, word: r.EpBroadcastCmdForSeq, at: int) -> Wish:
        assert rec.slot is not None
        chunked = isinstance(rec, r.AllocSequenceFor)
        length, start, total = yield from self._announced(word, rec.slot)
        kind = r.PrefillChunk if chunked else r.Prefill
        fed = yield want(kind, why="the prefill was announced")
        if isinstance(rec, r.AllocSequenceFor) and rec.budget <= total:
            self.fail(f"a budget of {rec.budget} tokens cannot hold a prompt of {total} and one token", at)
        if isinstance(fed, r.Prefill):
            self._same_prefill(fed, total, (length, start), rec.slot)
            if fed.error is not None:
                yield want(r.FreeSequence, why=FAILED)
                yield from self._freed(rec.slot)
                return
        else:
            self._same_chunk(fed, length, start, total, rec.slot)
            if fed.error is not None:
                yield want(r.FreeSequence, why=FAILED)
                yield from self._freed(rec.slot)
                return
            yield from self._pair("after a first chunk")
            if not fed.last:
                return
        yield from self._pick(0)

    def _resume(self, slot: int) -> Wish:
        word = yield want(r.EpBroadcastCmdForSeq, why="a resumed sequence is announced")
        length, start, total = yield from self._announced(word, slot)
        fed = yield want(r.Prefill, why="a resumed sequence is prefilled in one pass")
        self._same_prefill(fed, total, (length, start), slot)

    def _restore(self, rec: r.RestoreSequenceState, slot: int) -> Wish:
        if rec.seq != SeqId(0, slot, 0):
            self.fail(f"an image is read into the new sequence s0@{slot}:len=0, not into {rec.seq}", self.g.line - 1)
        next_ = yield want(r.AcquireAdapterSlot, r.FreeSequence, why="a restored sequence takes its adapter")
        if isinstance(next_, r.AcquireAdapterSlot) and rec.error is not None:
            self.fail("a sequence whose restore failed goes on", self.g.line - 1)

    def _beam(self, rec: r.GenerateBeamBatch) -> Wish:
        if rec.error is not None:
            yield want(r.FreeSequence, why=FAILED)
            return
        if rec.n != 1 or len(rec.result or ()) != 1:
            self.fail(f"a search for one request is for {rec.n} and gives {len(rec.result or ())} hypotheses")
        effect = yield want(r.FxReleaseSeq, why="a beam request ends when its search is done")
        yield from self._released(effect)

    def _released(self, effect: r.FxReleaseSeq) -> Wish:
        if not effect.cache or effect.what != "finish_sequence":
            self.fail("a beam request ends with a cached release for `finish_sequence`")
        offered = yield want(r.CacheSequence, why="the release offers the prefix to the cache")
        freed = yield want(r.FreeSequence, why="the release frees its sequence")
        if offered.seq != freed.seq or freed.seq.length or freed.blocks:
            self.fail(f"a beam request was never fed: {freed.seq} with {freed.blocks} blocks cannot be", self.g.line)
        yield from self._freed(freed.seq.slot)

    @starts(r.GenerateBeamBatch)
    def beams(self, rec: r.GenerateBeamBatch) -> Wish:
        if rec.error is None and len(rec.result or ()) != rec.n:
            self.fail(f"a search for {rec.n} requests gives {len(rec.result or ())} hypotheses")
        yield may(r.GenerateBeamBatch)

    # -- the Continue lane

    @starts(r.PollInnerq)
    def step(self, rec: r.PollInnerq) -> Wish:
        g = self.g
        if not g.prefilling:
            self.fail("a prefill step begins, but no sequence is being prefilled")
        kinds = (r.MixedForward, r.MixedForwardBatch, r.PrefillBatchChunk, r.EpBroadcastCmdForSeq)
        next_ = yield want(r.SyncSecondary, *kinds, why="a prefill step was begun")
        if isinstance(next_, r.SyncSecondary):
            next_ = yield want(r.MixedForward, why="drafts are dropped for a mixed step only")
        if isinstance(next_, r.EpBroadcastCmdForSeq):
            yield from self._plain_chunk(next_)
        elif isinstance(next_, r.PrefillBatchChunk):
            yield from self._batch(next_)
        else:
            yield from self._mixed(next_)

    def _plain_chunk(self, word: r.EpBroadcastCmdForSeq) -> Wish:
        g = self.g
        head = g.prefilling[0] if g.prefilling else None
        slot = head.slot if head is not None else word.seq
        length, start, total = yield from self._announced(word, slot)
        while True:
            fed = yield want(r.PrefillChunk, r.FxReleaseSeq, r.FreeSequence, why="the chunk was announced")
            if isinstance(fed, r.FxReleaseSeq):
                yield want(r.FreeSequence, why="the release frees its sequence")
                victim = yield want(r.EpBroadcastCmdForSeq, why="workers are told to free the slot")
                if victim.cmd != EP_FREE:
                    g.report("ep-words", f"a free is announced with {EP_FREE:#x}, not {victim.cmd:#x}")
                continue
            if isinstance(fed, r.FreeSequence):
                yield from self._freed(fed.seq.slot)
                return
            self._same_chunk(fed, length, start, total, slot)
            if fed.error is None:
                break
        clamped = yield want(r.NormalizeSsmStates, why="recurrent state is normalised after each plain chunk")
        if clamped.seq != fed.seq or clamped.stream != fed.stream:
            self.fail(f"{clamped.seq} is normalised after a chunk of {fed.seq}", g.line - 1)
        if fed.last:
            yield from self._pair("after a last chunk")
            yield from self._pick(0)

    def _batch(self, rec: r.PrefillBatchChunk) -> Wish:
        self._all_prefilling(rec.streams)
        if rec.error is not None:
            return
        at = self.g.line
        self._same_slices(rec.streams)
        yield from self._pair("after a batched prefill")
        for index, piece in enumerate(rec.streams):
            if piece.last:
                yield from self._pick(index, at)

    def _mixed(self, rec: r.MixedForward | r.MixedForwardBatch) -> Wish:
        g = self.g
        slices = (rec.prefill,) if isinstance(rec, r.MixedForward) else rec.prefills
        rows = len(rec.decode)
        if isinstance(rec, r.MixedForwardBatch):
            self._all_prefilling(slices)
        elif g.prefilling and slices[0].seq.slot != g.prefilling[0].slot:
            self.fail(f"the head of the prefills is at slot {g.prefilling[0].slot}, not {slices[0].seq.slot}")
        if rows != len(g.active):
            count = plural(len(g.active), "sequence")
            self.fail(f"the mixed step decodes {plural(rows, 'row')} but {count} can decode")
        if rec.error is not None:
            return
        at = g.line
        self._same_slices(slices)
        if isinstance(rec, r.MixedForward):
            if slices[0].last:
                yield from self._pair("before the first token of a mixed step")
                yield from self._pick(rows, at)
            yield from self._pair("before the readback of a mixed step")
        else:
            yield from self._pair("after a mixed step")
            for index, piece in enumerate(slices):
                if piece.last:
                    yield from self._pick(rows + index, at)
        read = yield want(r.ArgmaxBatch, r.CopyLogitsToHost, why="the decode rows of a mixed step are read back")
        if isinstance(read, r.ArgmaxBatch):
            if read.row != 0 or read.n != rows:
                g.report("batch-rows", f"rows 0 to {rows - 1} must be read back, not {read.n} from {read.row}", (at,))
        elif read.row or read.off or (g.vocab and read.bytes != 2 * g.vocab * rows):
            g.report("batch-rows", f"the logits of {plural(rows, 'row')} must be copied, from row 0", (at,))

    # -- pieces

    def _announced(self, word: r.EpBroadcastCmdForSeq, slot: int) -> Wish:
        """The six calls of the preamble; gives (chunk length, chunk start, prompt length)."""
        g, at = self.g, self.g.line
        if word.seq != slot & U32 or word.cmd != EP_PREFILL:
            g.report(
                "ep-words",
                f"the prefill into slot {slot} is announced with seq={slot}, cmd={EP_PREFILL:#x}, "
                f"not seq={word.seq}, cmd={word.cmd:#x}",
            )
        words = []
        for what in ("the chunk's length", "the chunk's start", "the prompt's length"):
            follow = yield want(r.EpBroadcastCmd, why=f"the word {what} belongs to the announcement")
            words.append(follow.cmd)
        sent = yield want(r.EpBroadcastTokens, why="the announcement sends the prompt")
        images = yield want(r.EpSyncVisionEmbeds, why="the announcement sends the images")
        if not (sent.n == images.n == words[2]):
            g.report("ep-words", f"{words[2]} prompt tokens are announced, {sent.n} and {images.n} are sent", (at,))
        return words[0], words[1], words[2]

    def _same_prefill(self, fed: r.Prefill, total: int, chunk: tuple[int, int], slot: int) -> None:
        length = 0 if fed.error is not None else fed.n
        if fed.n != total or chunk != (total, 0):
            self.g.report(
                "ep-words",
                f"a prompt of {total} in a chunk of {chunk[0]} from {chunk[1]} is announced, {fed.n} are prefilled",
                (self.g.line - 1,),
            )
        if fed.seq.slot != slot or fed.seq.length != length:
            self.fail(f"{fed.n} tokens into slot {slot} make a sequence of {length} there, not {fed.seq}")
        if fed.stream != 0:
            self.fail(f"a whole prompt runs on stream 0, not {fed.stream}")

    def _same_chunk(self, fed: r.PrefillChunk, length: int, start: int, total: int, slot: int) -> None:
        if (fed.len, fed.start) != (length, start):
            self.g.report(
                "ep-words",
                f"a chunk of {length} from {start} is announced, one of {fed.len} from {fed.start} is fed",
                (self.g.line - 1,),
            )
        end = start if fed.error is not None else fed.start + fed.len
        if fed.seq.slot != slot or fed.seq.length != end:
            self.fail(f"a chunk of {fed.len} from {fed.start} into slot {slot} ends at {end} there, not at {fed.seq}")
        if fed.last != (fed.start + fed.len >= total) or fed.start + fed.len > total:
            self.fail(f"a chunk up to {fed.start + fed.len} of {total} cannot have last={str(fed.last).lower()}")
        if fed.stream != self.g.prefill_stream:
            self.fail(f"a chunk runs on stream {self.g.prefill_stream}, not {fed.stream}")
        seq = self.g.live.get(slot)
        if seq is not None:
            seq.prompt = total

    def _same_slices(self, slices: tuple[Slice, ...]) -> None:
        for piece in slices:
            seq = self.g.live.get(piece.seq.slot)
            if piece.seq.length != piece.start + piece.len:
                self.fail(f"a chunk of {piece.len} from {piece.start} does not end at {piece.seq}")
            if seq is None:
                continue
            if seq.phase is not Phase.PREFILL or seq.length != piece.start:
                self.fail(f"{piece.seq} has {seq.length} tokens of its prompt, the chunk starts at {piece.start}")
            if seq.prompt and piece.last != (piece.start + piece.len >= seq.prompt):
                self.fail(f"a chunk up to {piece.seq.length} of {seq.prompt} has last={str(piece.last).lower()}")

    def _all_prefilling(self, slices: tuple[Slice, ...]) -> None:
        ours = [seq.slot for seq in self.g.prefilling]
        theirs = [piece.seq.slot for piece in slices]
        if ours != theirs:
            self.fail(f"the slots being prefilled are {ours}, in this order; the step has {theirs}")

    def _pair(self, when: str) -> Wish:
        """record_event on the prefill stream, then stream_wait_event on stream 0."""
        yield want(r.RecordEvent, why=f"the prefill stream is marked {when}")
        yield want(r.StreamWaitEvent, why=f"stream 0 waits for the prefill stream {when}")

    def _pick(self, row: int, at: int = 0) -> Wish:
        g = self.g
        read = yield want(r.ArgmaxOnDevice, r.CopyLogitsToHost, why="the first token is picked")
        if read.row != row:
            g.report("batch-rows", f"the first token is in row {row}, not {read.row}", (at,))
        if isinstance(read, r.CopyLogitsToHost) and (read.off or (g.vocab and read.bytes != 2 * g.vocab)):
            g.report("batch-rows", f"one row of logits has {2 * (g.vocab or 0)} bytes, not {read.bytes}", (at,))

    def _freed(self, slot: int) -> Wish:
        word = yield want(r.EpBroadcastCmdForSeq, why="workers are told to free the slot")
        if word.seq != slot & U32 or word.cmd != EP_FREE:
            self.g.report("ep-words", f"workers must hear seq={slot & U32}, cmd={EP_FREE:#x}", (self.g.line - 1,))

    @starts(r.FreeSequence)
    def freed_directly(self, rec: r.FreeSequence) -> Wish:
        """Without a router line: a failed start, an ended prefill, a failed restore, a failed search."""
        seq = self.g.at(rec.seq)
        if seq is not None and seq.phase is Phase.READY and seq in self.g.active:
            self.fail(f"{rec.seq} is decoding; a router line must announce its release")
        yield from self._freed(rec.seq.slot)

    @starts(r.RecordEvent)
    def pair(self, rec: r.RecordEvent) -> Wish:
        if not self.g.prefilling:
            self.fail("the prefill stream is marked, but no sequence is being prefilled")
        yield want(r.StreamWaitEvent, why="stream 0 waits for the mark that was just set")

    def strays(self) -> dict[type[r.Record], str]:
        lone = "it belongs to a prefill step"
        return dict.fromkeys(
            (
                r.Prefill, r.PrefillChunk, r.PrefillBatchChunk, r.MixedForward, r.MixedForwardBatch,
                r.NormalizeSsmStates, r.StreamWaitEvent, r.RestoreSequenceState, r.AcquireAdapterSlot,
                r.EpBroadcastTokens, r.EpSyncVisionEmbeds, r.EpBroadcastCmd, r.ArgmaxOnDevice, r.ArgmaxBatch,
                r.CopyLogitsToHost,
            ),
            lone,
        )  # fmt: skip
