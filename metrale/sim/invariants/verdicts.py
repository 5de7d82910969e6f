"""The speculative lanes: what must surround a draft, a verify and its verdict (S4, S6 section 5)."""

from __future__ import annotations

from metrale.trace import records as r

from .base import on, plural
from .ghost import Ghost, Seq, Window
from .protocol import Wish, may, starts, want
from .replay_drafts import VERIFIES, accepted_drafts
from .verdicts_batched import BatchedVerdicts

TOKEN_WORDS = 0xFFFFFFE0
EP_VERIFY = 0xFFFFFFF0
SINGLE = {2: r.DecodeVerifyGraphed, 3: r.DecodeVerifyGraphedK3, 4: r.DecodeVerifyGraphedK4}


class Verdicts(BatchedVerdicts):
    """See ``sentence``."""

    name = "verdict-order"
    sentence = (
        "A verify follows a wait for the secondary stream, and its verdict keeps exactly the accepted rows: "
        "commit, trim, hidden rows and the next draft in their order, unless the request ends."
    )

    def __init__(self, ghost: Ghost) -> None:
        super().__init__(ghost)
        self.must_end: list[tuple[Seq, int]] = []
        self.asked_tick = 0
        self.allowed_tick = 0
        self.width: tuple[int, int, int] = (0, 0, 0)

    # -- before a step

    @starts(r.MtpSlotDraftCapacity)
    def capacities(self, rec: r.MtpSlotDraftCapacity) -> Wish:
        """One question per active sequence, in batch order."""
        slots = [seq.slot for seq in self.g.active]
        self.asked_tick = self.g.tick
        asked = [rec.slot]
        while len(asked) < len(slots):
            more = yield want(r.MtpSlotDraftCapacity, why=f"each of {plural(len(slots), 'sequence')} is asked for")
            asked.append(more.slot)
        if asked != slots:
            self.fail(f"draft capacity is asked for slots {asked}, the batch stands on {slots}")
        next_ = yield want(
            r.SyncSecondary, r.CanBatchVerify, r.EpBroadcastCmdForSeq, why="a speculative step follows the capacities"
        )
        if isinstance(next_, r.SyncSecondary):
            yield from self.synced(next_)
        elif isinstance(next_, r.CanBatchVerify):
            yield from self.can_batch(next_)
        else:
            yield from self._self_speculation(next_)

    @starts(r.CanBatchVerify)
    def can_batch(self, rec: r.CanBatchVerify) -> Wish:
        g, at = self.g, self.g.line
        if len(rec.ks) > len(g.active):
            self.fail(f"{plural(len(rec.ks), 'row count')} for {plural(len(g.active), 'sequence')}")
        if not rec.result:
            return
        self.allowed_tick = g.tick
        next_ = yield want(r.SyncSecondary, r.DecodeBatch, why="a batched verify was allowed")
        if isinstance(next_, r.DecodeBatch):
            yield from self._batched_bootstrap(next_)
            return
        batch = yield want(r.DecodeVerifyBatched, why="a batched verify was allowed")
        if list(batch.ks) != list(rec.ks)[: len(batch.ks)]:
            self.fail(f"rows {list(rec.ks)} were allowed, {list(batch.ks)} are verified", at)
        yield from self._batched(batch)

    @starts(r.SyncSecondary)
    def synced(self, rec: r.SyncSecondary) -> Wish:
        if rec.error is not None:
            return
        next_ = yield want(
            r.EpBroadcastCmdForSeq,
            r.DecodeVerifyDflash,
            r.DecodeVerifyBatched,
            r.RunMtpProposeMulti,
            r.CanBatchVerify,
            why="the secondary stream is waited for before a bootstrap or a verify",
        )
        if isinstance(next_, r.EpBroadcastCmdForSeq):
            yield from (self._single(next_) if next_.cmd >= TOKEN_WORDS else self._bootstrap(next_))
        elif isinstance(next_, r.DecodeVerifyDflash):
            yield from self._dflash(next_)
        elif isinstance(next_, r.DecodeVerifyBatched):
            if self.allowed_tick != self.g.tick:
                self.fail("a batched verify runs, but nobody asked whether the device can")
            yield from self._batched(next_)
        elif isinstance(next_, r.CanBatchVerify):
            yield from self.can_batch(next_)
        else:
            yield from self.dflash_bootstrap(next_)

    @starts(r.EpBroadcastCmdForSeq)
    def word(self, rec: r.EpBroadcastCmdForSeq) -> Wish:
        """A command word outside a prefill and a release: a bootstrap decode, or a verify that nobody waited for."""
        if rec.cmd < TOKEN_WORDS:
            yield from self._bootstrap(rec)
        elif EP_VERIFY + 2 <= rec.cmd <= EP_VERIFY + 4:
            self.fail("a verify is announced, but nothing waited for the secondary stream before it")
            yield from self._single(rec)
        else:
            self.g.report("ep-words", f"the word {rec.cmd:#x} announces nothing here")

    # -- bootstraps

    def _bootstrap(self, word: r.EpBroadcastCmdForSeq) -> Wish:
        """One decode; with MTP the first draft, with n-gram perhaps a checkpoint (S4 sections 8.1 and 12)."""
        g, at = self.g, self.g.line
        step = yield want(r.Decode, why="a single decode was announced")
        self._same_word(word, step.token, step.seq.slot, at)
        if step.error is not None:
            return
        seq = g.live.get(step.seq.slot)
        read = yield want(r.ArgmaxOnDevice, r.CopyLogitsToHost, why="a single decode is read back")
        self._first_row(read, at)
        while (yield may(r.CopyLogitsToHost)) is not None:
            continue
        next_ = yield may(r.SaveHiddenForMtp, r.StartCheckpointAsync, r.CommitCtx)
        if next_ is None:
            if seq is not None and seq.mtp:
                self.must_end.append((seq, at))
            elif seq is not None:
                seq.undrafted = at
            return
        if isinstance(next_, r.StartCheckpointAsync):
            self._names(next_.seq, seq, 0)
            if seq is not None:
                seq.undrafted = 0
            return
        self._capacities_known(at)
        if isinstance(next_, r.CommitCtx):
            next_ = yield want(r.SaveHiddenForMtp, why="a bootstrap keeps the drafter's input")
        if next_.row != 0:
            g.report("drafts", f"the hidden row of a single decode is row 0, not {next_.row}", (at,))
        proposed = yield may(r.RunMtpProposeMulti)
        if proposed is not None:
            self._proposal(proposed, seq, at)
        kept = yield want(r.StartCheckpointAsync, why="a bootstrap ends with a checkpoint")
        self._names(kept.seq, seq, 0)

    def _batched_bootstrap(self, rec: r.DecodeBatch) -> Wish:
        if rec.error is not None:
            return
        while (yield may(r.ArgmaxBatch, r.ArgmaxOnDevice, r.CopyLogitsToHost)) is not None:
            continue
        stashed = yield may(r.StashVerifyHiddenRows)
        if stashed is not None:
            yield from self._proposals()
        kept = yield may(r.StartCheckpointAsync)
        while kept is not None:
            kept = yield may(r.StartCheckpointAsync)

    def _self_speculation(self, word: r.EpBroadcastCmdForSeq) -> Wish:
        """One decode, layer-skip drafts, one verify, all in one step (S4 section 13)."""
        g, at = self.g, self.g.line
        if word.cmd >= TOKEN_WORDS:
            self.fail("a verify is announced, but nothing waited for the secondary stream before it")
            yield from self._single(word)
            return
        step = yield want(r.Decode, why="a single decode was announced")
        self._same_word(word, step.token, step.seq.slot, at)
        if step.error is not None:
            return
        seq = g.live.get(step.seq.slot)
        read = yield want(r.ArgmaxOnDevice, why="a single decode is read back")
        self._first_row(read, at)
        drafts: list[int] = []
        last = read.result
        length = step.seq.length
        while (draft := (yield may(r.DecodeDraft))) is not None:
            length += 1
            if draft.token != last or draft.seq.length != length:
                g.report(
                    "drafts", f"the draft must feed {last} up to length {length}, not {draft.token}", (g.line - 1,)
                )
            if draft.error is not None:
                break
            read = yield want(r.ArgmaxOnDevice, why="a layer-skip draft is read back")
            self._first_row(read, g.line - 1)
            last = read.result
            drafts.append(-1 if last is None else last)
        if not drafts:
            return
        kept = yield want(r.CheckpointSsmStates, why="recurrent state is kept before a self-speculative verify")
        if kept.seq.length != step.seq.length:
            self.fail(f"the drafts are cut back to length {step.seq.length}, not {kept.seq.length}", at)
        verify = yield want(r.DecodeVerify, why="layer-skip drafts are verified")
        if list(verify.tokens[1:]) != drafts:
            g.report("drafts", f"drafts {drafts} were made, {list(verify.tokens[1:])} are verified", (at,))
        yield from self._cut_after_self_speculation(verify, seq, g.line)

    def _cut_after_self_speculation(self, verify: r.DecodeVerify, seq: Seq | None, at: int) -> Wish:
        if verify.result is None:
            return
        host = False
        while (yield may(r.CopyLogitsToHost)) is not None:
            host = True
        accepted = accepted_drafts(verify.tokens, verify.result)
        cut = yield may(r.RollbackSsmStates)
        if cut is None:
            if accepted < len(verify.tokens) - 1 and not host and seq is not None:
                self.must_end.append((seq, at))
            return
        if not host and (cut.n != accepted + 1 or accepted == len(verify.tokens) - 1):
            self.fail(f"{accepted} drafts were accepted: {accepted + 1} rows stay, not {cut.n}", at)

    # -- one sequence

    def _single(self, word: r.EpBroadcastCmdForSeq) -> Wish:
        """A verify of 2, 3 or 4 rows, announced word by word (S4 section 10)."""
        g, at = self.g, self.g.line
        rows = word.cmd - EP_VERIFY
        if not 2 <= rows <= 4:
            g.report("ep-words", f"the word {word.cmd:#x} announces no verify")
            return
        words = []
        for _ in range(rows):
            words.append((yield want(r.EpBroadcastCmd, why=f"the {rows} tokens of the verify are announced")).cmd)
        rec = yield want(SINGLE[rows], r.DecodeAndVerifyFused, why=f"a verify of {rows} rows was announced")
        if list(rec.tokens) != words or rec.seq.slot != word.seq:
            g.report(
                "ep-words",
                f"tokens {words} for slot {word.seq} were announced, {list(rec.tokens)} of {rec.seq} are verified",
                (at,),
            )
        if rec.result is None:
            return
        seq, line = g.live.get(rec.seq.slot), g.line
        if len(rec.tokens) != rows or len(rec.result) != rows:
            self.fail(f"{rows} rows were announced, {len(rec.tokens)} are fed and {len(rec.result)} answered", at)
            return
        drafting = seq is not None and seq.mtp
        if drafting:
            self._capacities_known(at)
        host = False
        while (yield may(r.CopyLogitsToHost)) is not None:
            host = True
        result = yield want(r.EpBroadcastCmd, why="workers are told how many drafts were accepted")
        accepted = accepted_drafts(rec.tokens, rec.result)
        if host:
            accepted = min(result.cmd, rows - 1)
        if result.cmd != accepted:
            g.report("ep-words", f"{accepted} drafts were accepted, workers are told {result.cmd}", (line,))
        if seq is None:
            return
        window = Window(line, rec.call, rec.seq.length - rows, rec.tokens, rec.result, accepted, host)
        if not drafting:
            yield from self._ngram_verdict(seq, window)
            return
        if isinstance(rec, r.DecodeAndVerifyFused):
            yield from self._commit_context(seq, window, 0)
        yield from self._serial_verdict(seq, window)

    def _ngram_verdict(self, seq: Seq, window: Window) -> Wish:
        undrafted, seq.undrafted = seq.undrafted, 0
        if undrafted:
            self.fail("an n-gram draft is verified, but the step that found it kept no checkpoint", undrafted)
        if not window.full:
            cut = yield want(r.StartRollbackAndCheckpointAsync, why="a rejected n-gram draft is rolled back")
            if cut.na != 1:
                self.fail(f"one row stays after a rejected n-gram draft, not {cut.na}", window.line)
            return
        kept = yield may(r.StartCheckpointAsync)
        if kept is None:
            self.must_end.append((seq, window.line))

    def _serial_verdict(self, seq: Seq, window: Window) -> Wish:
        rows, accepted = window.rows, window.accepted
        if window.full:
            commit = yield may(r.CommitAcceptedPrefix)
            if commit is None:
                self.must_end.append((seq, window.line))
                return
            self._commit(commit, window)
            if rows == 2:
                yield want(r.DflashEagleAcceptAppend, why="a full accept of two rows extends the drafter's context")
        else:
            trim = yield want(r.TrimProposerState, why="a partial accept trims the drafter first")
            self._trim(trim, window)
            self._commit((yield want(r.CommitAcceptedPrefix, why="the accepted rows are committed")), window)
        hidden = yield may(r.SaveHiddenForMtp)
        if hidden is None:
            if window.full:
                yield want(r.SaveHiddenForMtp, why="the drafter's next input is kept")
            self.must_end.append((seq, window.line))
            return
        if hidden.row != accepted:
            self.g.report("drafts", f"the hidden row to keep is {accepted}, not {hidden.row}", (window.line,))
        if window.full:
            self._trim((yield want(r.TrimProposerState, why="the drafter is trimmed once per verify")), window)
        self._proposal((yield want(r.RunMtpProposeMulti, why="the next drafts are made")), seq, window.line)
        if rows == 2:
            offered = yield want(r.DecodeMarconiCheckpoint, why="a verify of two rows ends with a checkpoint")
            self._names(offered.seq, seq, 0)

    def _dflash(self, rec: r.DecodeVerifyDflash) -> Wish:
        """Any number of rows, no words for workers; the cut comes first (S4 section 11.1)."""
        seq, line = self.g.live.get(rec.seq.slot), self.g.line
        if rec.result is None or seq is None:
            return
        self._capacities_known(line)
        accepted = accepted_drafts(rec.tokens, rec.result)
        window = Window(line, rec.call, rec.seq.length - len(rec.tokens), rec.tokens, rec.result, accepted)
        yield from self._commit_context(seq, window, 0)
        commit = yield may(r.CommitAcceptedPrefix)
        if commit is None:
            self.must_end.append((seq, line))
            return
        self._commit(commit, window)
        hidden = yield want(r.SaveHiddenForMtp, why="the drafter's next input is kept")
        if hidden.row != accepted:
            self.g.report("drafts", f"the hidden row to keep is {accepted}, not {hidden.row}", (line,))
        self._trim((yield want(r.TrimProposerState, why="the drafter is trimmed once per verify")), window)
        self._proposal((yield want(r.RunMtpProposeMulti, why="the next drafts are made")), seq, line)

    # -- pieces

    def _capacities_known(self, line: int) -> None:
        """Every step that drafts asks each slot first what it can roll back (S4 section 6)."""
        if self.asked_tick != self.g.tick:
            self.fail("a step that drafts runs, but nobody asked for the draft capacity of its slots", line)
            self.asked_tick = self.g.tick

    def _one_width(self, n: int, masked: bool) -> None:
        """All drafts of a tick are asked for in one number; a grammar asks for one."""
        tick, width, line = self.width
        if masked:
            return
        if tick == self.g.tick and width != n:
            self.g.report("drafts", f"{width} drafts are asked for in this tick, {n} here", (line,))
        self.width = (self.g.tick, n, self.g.line)

    def _same_word(self, word: r.EpBroadcastCmdForSeq, token: int, slot: int, at: int) -> None:
        if (word.cmd, word.seq) != (token, slot):
            self.g.report(
                "ep-words",
                f"a decode of {word.cmd} in slot {word.seq} is announced, {token} in slot {slot} is decoded",
                (at,),
            )

    def _first_row(self, read: r.ArgmaxOnDevice | r.CopyLogitsToHost, at: int) -> None:
        if read.row != 0:
            self.g.report("batch-rows", f"the forward has one row, row {read.row} is read", (at,))
        if isinstance(read, r.CopyLogitsToHost) and (read.off or (self.g.vocab and read.bytes != 2 * self.g.vocab)):
            self.g.report(
                "batch-rows", f"one row of logits has {2 * (self.g.vocab or 0)} bytes, not {read.bytes}", (at,)
            )

    def _names(self, sid: r.SeqId, seq: Seq | None, line: int) -> None:  # type: ignore[name-defined]
        if seq is not None and sid.slot != seq.slot:
            self.fail(f"the step is of s{seq.hash}@{seq.slot}, the call names {sid}", line)

    def _commit(self, rec: r.CommitAcceptedPrefix, window: Window) -> None:
        keep = window.accepted + 1
        if (rec.na, rec.k) != (keep, window.rows):
            self.fail(
                f"{window.accepted} of {window.rows - 1} drafts were accepted: the commit keeps na={keep} of "
                f"k={window.rows} rows, not na={rec.na} of k={rec.k}",
                window.line,
            )
        self._at_end(rec.seq.length, window)

    def _trim(self, rec: r.TrimProposerState, window: Window) -> None:
        if rec.na != window.accepted:
            self.fail(f"{window.accepted} drafts were accepted, the drafter keeps {rec.na}", window.line)
        self._at_end(rec.seq.length, window)

    def _at_end(self, length: int, window: Window) -> None:
        end = window.start + window.accepted + 1
        if length != end:
            self.fail(f"the verify started at {window.start} and keeps rows up to {end}, not {length}", window.line)

    def _fold(self, rec: r.GdnFoldAccepted, verdicts: list[tuple[Seq | None, Window]]) -> None:
        slots = [seq.slot if seq is not None else -1 for seq, _ in verdicts]
        accepted = [window.accepted + 1 for _, window in verdicts]
        rows = max(window.rows for _, window in verdicts)
        if (list(rec.slots), list(rec.accepted), rec.k) != (slots, accepted, rows):
            self.fail(
                f"the verify keeps rows {accepted} of slots {slots}, widest {rows}; the fold says "
                f"{list(rec.accepted)} of {list(rec.slots)}, k={rec.k}",
                verdicts[0][1].line,
            )

    def _commit_context(self, seq: Seq, window: Window, row: int) -> Wish:
        """The accepted rows join the drafter's context, unless the run has no unified context (S4 section 2)."""
        context = yield may(r.CommitCtx, r.DflashEagleKgammaAppend)
        unified = isinstance(context, r.CommitCtx)
        if self.g.unified not in (None, unified):
            yield want(r.CommitCtx, why="DFlash commits the context of the accepted rows")
        self.g.unified = unified
        if isinstance(context, r.CommitCtx):
            self._context(context, seq, window, row)
        elif context is not None and (context.na, context.base) != (window.accepted, window.start):
            self.g.report(
                "context-commit", f"{window.accepted} drafts from {window.start} on were accepted", (window.line,)
            )

    def _context(self, rec: r.CommitCtx, seq: Seq | None, window: Window, row: int) -> None:
        right = (window.accepted + 1, window.start, row)
        other = seq is not None and (rec.seq.slot, rec.seq.hash) != (seq.slot, seq.hash)
        if (rec.n, rec.base, rec.row) != right or other:
            self.g.report(
                "context-commit",
                f"the verify keeps {right[0]} rows from {right[1]} on, in row {row}; the commit says n={rec.n}, "
                f"base={rec.base}, row={rec.row} of {rec.seq}",
                (window.line,),
            )

    def _proposal(self, rec: r.RunMtpProposeMulti, seq: Seq | None, line: int) -> None:
        g = self.g
        if seq is None:
            return
        self._names(rec.seq, seq, line)
        self._one_width(rec.n, rec.mask)
        if rec.pos != rec.seq.length or seq.pending not in (rec.token, -1):
            g.report(
                "drafts",
                f"drafts follow token {seq.pending} at {rec.seq.length}, not token {rec.token} at {rec.pos}",
                (seq.picked,),
            )
        if seq.mask is not None and seq.mask != rec.mask:
            g.report("drafts", f"s{seq.hash} had mask={str(seq.mask).lower()} before", (seq.proposed,))
        if rec.result is not None and len(rec.result) > rec.n:
            g.report("drafts", f"at most {rec.n} drafts were asked for, {len(rec.result)} are given")

    @starts(r.RunMtpProposeMulti)
    def dflash_bootstrap(self, rec: r.RunMtpProposeMulti) -> Wish:
        """DFlash drafts without a decode and verifies at once, after a wait of its own (S4 section 8.2)."""
        self._proposal(rec, self.g.at(rec.seq), 0)
        if not rec.result:
            next_ = yield want(r.EpBroadcastCmdForSeq, why="without drafts the sequence bootstraps by a decode")
            yield from self._bootstrap(next_)
            return
        waited = yield want(r.SyncSecondary, why="the verify of the first drafts waits for the secondary stream")
        yield from self.synced(waited)

    def close(self) -> None:
        """At a tick's marker: whoever broke a verdict off must have been released."""
        for seq, line in self.must_end:
            if seq.phase.name == "READY" and seq in self.g.active:
                self.fail(
                    f"s{seq.hash}@{seq.slot} left its step of line {line} unfinished, as a request does that ends, "
                    "but it was not released",
                    line,
                )
        self.must_end = []

    @on(r.Tick)
    def marker(self, rec: r.Tick) -> None:
        """A tick is over."""
        if self.must_end:
            self.close()

    def strays(self) -> dict[type[r.Record], str]:
        lone = "it belongs to a speculative step"
        return dict.fromkeys(
            (
                *VERIFIES, r.DecodeVerifyBatched, r.Decode, r.DecodeDraft, r.CommitAcceptedPrefix,
                r.TrimProposerState, r.GdnFoldAccepted, r.StashVerifyHiddenRows, r.StashVerifyCatchupRows,
                r.RunMtpCatchupBatched, r.RunMtpProposeBatched, r.SaveHiddenForMtp, r.SaveHiddenForMtpFromStash,
                r.CheckpointSsmStates, r.RollbackSsmStates, r.StartCheckpointAsync,
                r.StartRollbackAndCheckpointAsync, r.DflashEagleAcceptAppend, r.DecodeMarconiCheckpoint, r.CommitCtx,
            ),
            lone,
        )  # fmt: skip
