"""Verdicts of a batched verify, the other half of :mod:`.verdicts` (S4 sections 11.2 and 11.3)."""

from __future__ import annotations

from itertools import accumulate

from metrale.trace import records as r

from .base import plural
from .ghost import Seq, Window
from .protocol import Protocol, Wish, may, want
from .replay_drafts import accepted_drafts

CATCHUP_ROWS = 4
Verdict = tuple[Seq | None, Window]


class BatchedVerdicts(Protocol):
    """What follows a verify of several sequences."""

    must_end: list[tuple[Seq, int]]

    def _commit(self, rec: r.CommitAcceptedPrefix, window: Window) -> None:
        raise NotImplementedError

    def _trim(self, rec: r.TrimProposerState, window: Window) -> None:
        raise NotImplementedError

    def _fold(self, rec: r.GdnFoldAccepted, verdicts: list[Verdict]) -> None:
        raise NotImplementedError

    def _names(self, sid: r.SeqId, seq: Seq | None, line: int) -> None:  # type: ignore[name-defined]
        raise NotImplementedError

    def _context(self, rec: r.CommitCtx, seq: Seq | None, window: Window, row: int) -> None:
        raise NotImplementedError

    def _one_width(self, n: int, masked: bool) -> None:
        raise NotImplementedError

    def _proposal(self, rec: r.RunMtpProposeMulti, seq: Seq | None, line: int) -> None:
        raise NotImplementedError

    def _batched(self, rec: r.DecodeVerifyBatched) -> Wish:
        g, line = self.g, self.g.line
        if not rec.woa:
            self.fail("a batched verify leaves recurrent state to the fold: woa must be true")
        if rec.result is None:
            return
        if not (len(rec.ks) == len(rec.seqs) and sum(rec.ks) == len(rec.tokens) == len(rec.result)):
            self.fail(
                f"row counts {list(rec.ks)} for {plural(len(rec.seqs), 'sequence')}, "
                f"{plural(len(rec.tokens), 'token')} and {plural(len(rec.result), 'answer')}"
            )
            return
        offsets = [0, *accumulate(rec.ks)][: len(rec.ks)]
        verdicts: list[Verdict] = []
        for sid, rows, at in zip(rec.seqs, rec.ks, offsets, strict=True):
            inputs, answers = rec.tokens[at : at + rows], rec.result[at : at + rows]
            start = sid.length - rows
            window = Window(line, rec.call, start, inputs, answers, accepted_drafts(inputs, answers))
            verdicts.append((g.live.get(sid.slot), window))
        host = False
        while (yield may(r.CopyLogitsToHost)) is not None:
            host = True
        context = yield may(r.CommitCtx, r.GdnFoldAccepted)
        if context is not None:
            yield from self._batched_dflash(context, verdicts, offsets)
        else:
            yield from self._batched_mtp(verdicts, offsets, host)

    def _batched_mtp(self, verdicts: list[Verdict], offsets: list[int], host: bool) -> Wish:
        line = verdicts[0][1].line
        stash = yield want(r.StashVerifyHiddenRows, why="a batched verify stashes its hidden rows")
        rows = list(stash.rows)
        if host:
            for (_, window), at, row in zip(verdicts, offsets, rows, strict=False):
                window.accepted, window.host = max(0, min(row - at, window.rows - 1)), True
        accepted = [window.accepted for _, window in verdicts]
        if rows != [at + count for at, count in zip(offsets, accepted, strict=True)]:
            self.fail(f"the hidden rows behind {accepted} accepted drafts are not {rows}", line)
        pairs = [
            (CATCHUP_ROWS * index + row, at + row)
            for index, (at, count) in enumerate(zip(offsets, accepted, strict=True))
            for row in range(min(count, CATCHUP_ROWS))
        ]
        if pairs:
            caught = yield want(r.StashVerifyCatchupRows, why="hidden rows of accepted drafts are kept")
            if list(caught.rows) != pairs:
                self.fail(f"the catch-up rows of {accepted} accepted drafts are {pairs}", line)
        self._fold((yield want(r.GdnFoldAccepted, why="the verify is folded before any verdict")), verdicts)
        survivors: list[tuple[int, Seq, Window]] = []
        for index, (seq, window) in enumerate(verdicts):
            alive = yield from self._batched_verdict(seq, window)
            if alive and seq is not None:
                survivors.append((index, seq, window))
        yield from self._catchup(survivors, line)
        yield from self._proposals([(index, seq) for index, seq, _ in survivors], line)

    def _batched_verdict(self, seq: Seq | None, window: Window) -> Wish:
        """Gives whether the sequence may live on: a full accept that ends it shows neither commit nor trim."""
        if seq is None:
            return False

        def own(rec: r.CommitAcceptedPrefix | r.TrimProposerState) -> bool:
            return rec.seq.slot == seq.slot

        if window.full:
            commit = yield may(r.CommitAcceptedPrefix, fits=own)
            if commit is None:
                self.must_end.append((seq, window.line))
                return False
            self._commit(commit, window)
            self._trim((yield want(r.TrimProposerState, why="the drafter is trimmed once per verify")), window)
        else:
            trim = yield want(r.TrimProposerState, why="a partial accept trims the drafter first")
            self._names(trim.seq, seq, 0)
            self._trim(trim, window)
            self._commit((yield want(r.CommitAcceptedPrefix, why="the accepted rows are committed")), window)
        return True

    def _catchup(self, survivors: list[tuple[int, Seq, Window]], line: int) -> Wish:
        """Accepted drafts enter the drafter's own cache. A row that a partial accept ended is no survivor."""
        caught = yield may(r.RunMtpCatchupBatched)
        if caught is None:
            if any(window.accepted for _, _, window in survivors):
                self.must_end.extend((seq, line) for _, seq, window in survivors if window.accepted)
            return
        rows = {
            CATCHUP_ROWS * index: (list(window.tokens[1 : 1 + min(window.accepted, CATCHUP_ROWS)]), seq, window)
            for index, seq, window in survivors
        }
        for slot, tokens, position in zip(caught.slots, caught.tokens, caught.pos, strict=False):
            if slot not in rows:
                self.fail(f"catch-up row {slot} belongs to no sequence that goes on", line)
                continue
            drafts, seq, window = rows.pop(slot)
            end = window.start + 1 + window.accepted
            if list(tokens) != drafts or position != end - len(drafts):
                self.fail(f"s{seq.hash} accepted {drafts} up to {end}, the catch-up has {list(tokens)} at {position}")
        self.must_end.extend((seq, line) for _, seq, _ in rows.values())
        total = sum(map(len, caught.tokens))
        if caught.result not in (None, 0, total):
            self.fail(f"a catch-up of {plural(total, 'token')} cannot write {caught.result} rows")

    def _batched_dflash(
        self, context: r.CommitCtx | r.GdnFoldAccepted, verdicts: list[Verdict], offsets: list[int]
    ) -> Wish:
        """Contexts first, then the fold, all commits, the stash; trims for who goes on (S4 section 11.2)."""
        line = verdicts[0][1].line
        unified = isinstance(context, r.CommitCtx)
        if self.g.unified not in (None, unified):
            self.fail("a run commits contexts always or never")
        self.g.unified = unified
        if isinstance(context, r.GdnFoldAccepted):
            fold = context
        else:
            for index, (seq, window) in enumerate(verdicts):
                if index:
                    context = yield want(r.CommitCtx, why="each sequence of the batch commits its context")
                self._context(context, seq, window, index)
            fold = yield want(r.GdnFoldAccepted, why="the verify is folded after the contexts")
        self._fold(fold, verdicts)
        for _, window in verdicts:
            self._commit((yield want(r.CommitAcceptedPrefix, why="the accepted rows are committed")), window)
        stash = yield want(r.StashVerifyHiddenRows, why="a batched verify stashes its hidden rows")
        rows = [at + window.accepted for at, (_, window) in zip(offsets, verdicts, strict=True)]
        if list(stash.rows) != rows:
            self.fail(f"the hidden rows to stash are {rows}, not {list(stash.rows)}", line)
        survivors = []
        for index, (seq, window) in enumerate(verdicts):
            slot = seq.slot if seq is not None else None
            trim = yield may(r.TrimProposerState, fits=lambda rec, slot=slot: rec.seq.slot == slot)
            if trim is not None and seq is not None:
                self._trim(trim, window)
                survivors.append((index, seq))
            elif seq is not None:
                self.must_end.append((seq, line))
        yield from self._proposals(survivors, line)

    def _proposals(self, survivors: list[tuple[int, Seq]] | None = None, line: int = 0) -> Wish:
        """The next drafts of everybody who goes on: in groups, or one by one from the stash."""
        served: set[int] = set()
        while True:
            next_ = yield may(r.RunMtpProposeBatched, r.SaveHiddenForMtpFromStash)
            if next_ is None:
                break
            again = served & set(next_.stash if isinstance(next_, r.RunMtpProposeBatched) else (next_.index,))
            if again:
                self.g.report("drafts", f"stash row {min(again)} drafts twice", (line,))
            if isinstance(next_, r.RunMtpProposeBatched):
                served.update(next_.stash if next_.result is not None or next_.error is not None else ())
                self._group(next_, line)
                continue
            served.add(next_.index)
            proposed = yield want(r.RunMtpProposeMulti, why="a stash row is taken for the next drafts")
            seq = self.g.stash[next_.index] if next_.index < len(self.g.stash) else None
            if seq is None or proposed.seq.slot != seq.slot:
                self.g.report("drafts", f"stash row {next_.index} is not of {proposed.seq}", (self.g.line - 1,))
            self._proposal(proposed, seq, line)
        for index, seq in survivors or ():
            if index not in served:
                self.must_end.append((seq, line))

    def _group(self, rec: r.RunMtpProposeBatched, line: int) -> None:
        g = self.g
        self._one_width(rec.n, False)
        for token, position, index in zip(rec.tokens, rec.positions, rec.stash, strict=False):
            seq = g.stash[index] if index < len(g.stash) else None
            if seq is None:
                g.report("drafts", f"stash row {index} was not filled", (g.stash_line,))
            elif position != seq.length or seq.pending not in (token, -1):
                right = f"token {seq.pending} at {seq.length}"
                g.report(
                    "drafts", f"stash row {index} is s{seq.hash}: {right}, not token {token} at {position}", (line,)
                )
        if rec.result is not None and any(len(drafts) > rec.n for drafts in rec.result):
            g.report("drafts", f"at most {rec.n} drafts were asked for")
