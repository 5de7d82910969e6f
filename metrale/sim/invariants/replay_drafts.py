"""How the lines of the speculative lanes change the ghost (S4, S6 sections 3.4 to 3.7)."""

from __future__ import annotations

from metrale.trace import records as r

from .base import on
from .ghost import UNKNOWN, Ghost, Seq, Window

VERIFIES = (
    r.DecodeVerify,
    r.DecodeVerifyGraphed,
    r.DecodeVerifyGraphedK3,
    r.DecodeVerifyGraphedK4,
    r.DecodeVerifyDflash,
    r.DecodeAndVerifyFused,
)
"""Every verify of one sequence."""

Verify = (
    r.DecodeVerify
    | r.DecodeVerifyGraphed
    | r.DecodeVerifyGraphedK3
    | r.DecodeVerifyGraphedK4
    | r.DecodeVerifyDflash
    | r.DecodeAndVerifyFused
)


def accepted_drafts(inputs: tuple[int, ...], answers: tuple[int, ...]) -> int:
    """How many drafts (``inputs[1:]``) the answers confirm before the first that they do not (S4 section 10)."""
    count = 0
    for draft, answer in zip(inputs[1:], answers, strict=False):
        if draft != answer:
            break
        count += 1
    return count


class DraftReplay:
    """Single decodes, drafts, verifies and verdicts."""

    g: Ghost

    def feed(self, seq: Seq, token: int) -> None:
        raise NotImplementedError

    def grown(self, seq: Seq, length: int) -> None:
        raise NotImplementedError

    def _forward(self, rows: list[Seq]) -> None:
        raise NotImplementedError

    # -- single decodes

    @on(r.Decode)
    def decode(self, rec: r.Decode) -> None:
        seq = self.g.live.get(rec.seq.slot)
        self.g.uses_drafts = True
        if rec.error is not None or seq is None:
            return
        self.feed(seq, rec.token)
        seq.length = rec.seq.length
        self.grown(seq, seq.length)
        seq.drafting = 0
        self._forward([seq])
        self.g.rows_single = True

    def single_pick(self, seq: Seq, token: int) -> None:
        """The pick of a single decode is emitted at once; a finish may yet withdraw it."""
        if seq.life is not None:
            seq.life.run = [token]

    @on(r.DecodeDraft)
    def decode_draft(self, rec: r.DecodeDraft) -> None:
        seq = self.g.live.get(rec.seq.slot)
        if rec.error is not None or seq is None:
            return
        if not seq.drafting:
            seq.drafts = ()
        seq.drafting += 1
        seq.length = rec.seq.length
        self.grown(seq, seq.length)
        self._forward([seq])

    def draft_picked(self, seq: Seq, token: int) -> None:
        """A layer-skip draft: no output, a guess to be verified."""
        seq.drafts = (*seq.drafts, token)

    @on(r.CheckpointSsmStates)
    def rewound_drafts(self, rec: r.CheckpointSsmStates) -> None:
        seq = self.g.live.get(rec.seq.slot)
        if seq is not None:
            seq.length = rec.seq.length

    # -- verifies

    @on(*VERIFIES)
    def verify(self, rec: Verify) -> None:
        g = self.g
        seq = g.live.get(rec.seq.slot)
        if rec.error is not None or rec.result is None or seq is None:
            return
        self._forward([seq] * len(rec.tokens))
        g.rows_verified = True
        self._verified(seq, rec.call, rec.tokens, rec.result, rec.seq.length)

    @on(r.DecodeVerifyBatched)
    def verify_batched(self, rec: r.DecodeVerifyBatched) -> None:
        g = self.g
        if rec.error is not None or rec.result is None:
            return
        rows: list[Seq] = []
        windows = []
        at = 0
        for count, sid in zip(rec.ks, rec.seqs, strict=False):
            seq = g.live.get(sid.slot)
            if seq is not None:
                rows.extend([seq] * count)
                windows.append((seq, rec.tokens[at : at + count], rec.result[at : at + count], sid.length))
            at += count
        self._forward(rows)
        g.rows_verified = True
        for seq, inputs, answers, length in windows:
            self._verified(seq, rec.call, inputs, answers, length)

    def _verified(self, seq: Seq, call: str, inputs: tuple[int, ...], answers: tuple[int, ...], length: int) -> None:
        """The verdict that the answers give; lines that follow must agree with it."""
        life = seq.life
        self.g.uses_drafts = True
        own_draft = bool(seq.drafting)
        if life is not None and not own_draft:
            if life.run and life.run[-1] == UNKNOWN:
                life.run[-1] = inputs[0]
            elif life.kept and life.kept[-1] == UNKNOWN and not life.run:
                life.kept[-1] = inputs[0]
            life.flush()
        seq.window = Window(self.g.line, call, length - len(inputs), inputs, answers, accepted_drafts(inputs, answers))
        self.grown(seq, length)
        self.judge(seq, own_draft)
        seq.drafts, seq.fresh = (), False

    def judge(self, seq: Seq, own_draft: bool = False) -> None:
        """Emit what the window accepts: the accepted drafts and one more token; rejected rows are cut."""
        window, life = seq.window, seq.life
        assert window is not None
        end = window.start + window.rows
        kept = window.start + 1 + window.accepted
        extra = UNKNOWN if window.host else window.answers[window.accepted]
        first = list(window.tokens[:1]) if own_draft else []
        if life is not None:
            life.run = [*first, *window.tokens[1 : 1 + window.accepted], extra]
        seq.pending, seq.picked = extra, window.line
        if life is not None and seq.mtp and not own_draft:
            life.accepted += window.accepted - window.counted
            window.counted = window.accepted
        seq.length = kept
        seq.alternative = end if own_draft and end != kept else None
        seq.drafting = 0

    def host_verdict(self, seq: Seq) -> None:
        """The rows of the window go to the host: what it picks there is known from later lines only."""
        window = seq.window
        assert window is not None
        if not window.host:
            window.host = True
            if seq.life is not None:
                seq.life.host_picks += 1
                if seq.life.run:
                    seq.life.run[-1] = UNKNOWN
            seq.pending = UNKNOWN

    def told_accepted(self, seq: Seq, accepted: int) -> None:
        """A later line says how many drafts the host accepted."""
        window = seq.window
        if window is not None and window.host and 0 <= accepted < window.rows and accepted != window.accepted:
            window.accepted = accepted
            self.judge(seq)

    @on(r.EpBroadcastCmd)
    def result_word(self, rec: r.EpBroadcastCmd) -> None:
        rows = self.g.rows
        window = rows[0].window if self.g.rows_verified and rows else None
        if window is not None and not window.told and window.call.startswith(("decode_verify_g", "decode_and_v")):
            window.told = True
            self.told_accepted(rows[0], rec.cmd)

    @on(r.GdnFoldAccepted)
    def fold(self, rec: r.GdnFoldAccepted) -> None:
        for slot, count in zip(rec.slots, rec.accepted, strict=False):
            seq = self.g.live.get(slot)
            if seq is not None:
                self.told_accepted(seq, count - 1)

    @on(r.CommitAcceptedPrefix)
    def commit(self, rec: r.CommitAcceptedPrefix) -> None:
        seq = self.g.at(rec.seq)
        if seq is None or rec.error is not None:
            return
        if rec.na < rec.k:
            self._secondary(seq, "write")

    @on(r.RollbackSsmStates)
    def rollback(self, rec: r.RollbackSsmStates) -> None:
        seq = self.g.at(rec.seq)
        if seq is None or rec.error is not None:
            return
        if seq.window is not None and seq.window.host and rec.n >= 1:
            seq.window.accepted = rec.n - 1
            self.judge(seq, own_draft=True)
        seq.length, seq.alternative = rec.seq.length, None

    @on(r.StartCheckpointAsync)
    def checkpoint_async(self, rec: r.StartCheckpointAsync) -> None:
        seq = self.g.at(rec.seq)
        if seq is not None and rec.error is None:
            self._secondary(seq, "read")

    @on(r.StartRollbackAndCheckpointAsync)
    def rollback_async(self, rec: r.StartRollbackAndCheckpointAsync) -> None:
        seq = self.g.at(rec.seq)
        if seq is not None and rec.error is None:
            self._secondary(seq, "write")

    def _secondary(self, seq: Seq, what: str) -> None:
        seq.secondary, seq.secondary_line = what, self.g.line

    @on(r.MtpSlotDraftCapacity)
    def capacity(self, rec: r.MtpSlotDraftCapacity) -> None:
        self.g.uses_drafts = True

    @on(r.SyncSecondary)
    def synced(self, rec: r.SyncSecondary) -> None:
        if rec.error is None:
            for seq in self.g.live.values():
                seq.secondary = ""

    # -- drafts

    @on(r.RunMtpProposeMulti)
    def propose(self, rec: r.RunMtpProposeMulti) -> None:
        g = self.g
        seq = g.at(rec.seq)
        g.uses_mtp = True
        if seq is None:
            return
        seq.mtp = True
        if seq.mask is None:
            seq.mask = rec.mask
        if rec.result is not None:
            self._drafted(seq, rec.token, rec.result)

    @on(r.RunMtpProposeBatched)
    def propose_batched(self, rec: r.RunMtpProposeBatched) -> None:
        g = self.g
        g.uses_mtp = True
        if rec.result is None:
            return
        for token, index, drafts in zip(rec.tokens, rec.stash, rec.result, strict=False):
            if index < len(g.stash):
                g.stash[index].mtp = True
                self._drafted(g.stash[index], token, drafts)

    @on(r.StashVerifyHiddenRows)
    def stash(self, rec: r.StashVerifyHiddenRows) -> None:
        g = self.g
        g.stash = [g.rows[row] for row in rec.rows if row < len(g.rows)]
        g.stash_line = g.line

    def _drafted(self, seq: Seq, token: int, drafts: tuple[int, ...]) -> None:
        if seq.pending == UNKNOWN:
            seq.pending = token
            if seq.life is not None and seq.life.run and seq.life.run[-1] == UNKNOWN:
                seq.life.run[-1] = token
            elif seq.life is not None and seq.life.kept and seq.life.kept[-1] == UNKNOWN:
                seq.life.kept[-1] = token
        seq.drafts, seq.proposed = drafts, self.g.line

    # -- context

    @on(r.CommitCtx)
    def context(self, rec: r.CommitCtx) -> None:
        seq = self.g.live.get(rec.seq.slot)
        if seq is not None:
            seq.context_end = rec.base + rec.n

    # -- recurrent ring

    @on(r.SaveDecodeSsmSnapshot)
    def ring_save(self, rec: r.SaveDecodeSsmSnapshot) -> None:
        seq = self.g.at(rec.seq)
        if seq is not None and rec.error is None:
            seq.ring[rec.ring] = rec.seq.length

    @on(r.RestoreDecodeSsmSnapshot)
    def ring_restore(self, rec: r.RestoreDecodeSsmSnapshot) -> None:
        seq = self.g.at(rec.seq)
        if seq is None or rec.error is not None or rec.ring not in seq.ring:
            return
        token, looked_at = seq.pending, seq.fresh
        self.rewind(seq, seq.ring[rec.ring])
        if looked_at:
            # The content watchdog: the token it looked at is kept, the boundary before it is fed once more (S3 9.4).
            seq.length += 1
            seq.boundary, seq.pending, seq.fresh = seq.pending, token, True

    def rewind(self, seq: Seq, length: int) -> None:
        """A watchdog cut the row back: output and history beyond ``length`` are gone (S3 section 9)."""
        life = seq.life
        seq.length = length
        if life is not None:
            keep = max(0, length - life.prompt + 1)
            life.rewound += max(0, len(life.kept) - keep)
            del life.kept[keep:]
            seq.pending = life.kept[-1] if life.kept else UNKNOWN
        else:
            seq.pending = UNKNOWN
        seq.fresh = False
