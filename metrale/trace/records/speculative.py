"""Device calls of the speculative lanes and of recurrent state (S4, S6 sections 3.4 to 3.7)."""

from __future__ import annotations

from ..values import Ints, Lists, Pairs, SeqId, Seqs
from .base import Call, Fallible, record

# ---------------------------------------------------------------- recurrent state (S6 section 3.4)


@record
class CheckpointSsmStates(Fallible):
    """Recurrent state is copied before a self-speculative verify."""

    seq: SeqId


@record
class RollbackSsmStates(Fallible):
    """Recurrent state goes back to the state after ``n`` rows of the verify."""

    seq: SeqId
    n: int


@record
class StartCheckpointAsync(Fallible):
    """Recurrent state is copied on the secondary stream."""

    seq: SeqId


@record
class StartRollbackAndCheckpointAsync(Fallible):
    """Roll back to ``na`` rows, then copy, both on the secondary stream."""

    seq: SeqId
    na: int


@record
class CommitAcceptedPrefix(Fallible):
    """``na`` of the ``k`` rows of the verify stay: accepted drafts and one (S4 section 10)."""

    seq: SeqId
    na: int
    k: int


@record
class SyncSecondary(Fallible):
    """The default stream waits for the secondary one."""


@record
class SaveDecodeSsmSnapshot(Fallible):
    """Recurrent state goes into ring slot ``ring`` (S3 section 9)."""

    seq: SeqId
    ring: int


@record
class RestoreDecodeSsmSnapshot(Fallible):
    """Recurrent state comes back from ring slot ``ring``; ``seq`` shows the length before the rewind."""

    seq: SeqId
    ring: int


@record
class DecodeMarconiCheckpoint(Call):
    """The sequence may be worth a prefix-cache snapshot at its present length."""

    seq: SeqId


# ---------------------------------------------------------------- verify (S6 section 3.5)


@record
class DecodeVerify(Fallible):
    """The last token and the drafts in one pass; ``result`` answers row by row, ``seq`` counts all rows."""

    tokens: Ints
    seq: SeqId
    result: Ints | None = None


@record
class DecodeVerifyGraphed(Fallible):
    """Verify of 2 rows (S4 section 10)."""

    tokens: Ints
    seq: SeqId
    result: Ints | None = None


@record
class DecodeVerifyGraphedK3(Fallible):
    """Verify of 3 rows."""

    tokens: Ints
    seq: SeqId
    result: Ints | None = None


@record
class DecodeVerifyGraphedK4(Fallible):
    """Verify of 4 rows."""

    tokens: Ints
    seq: SeqId
    result: Ints | None = None


@record
class DecodeVerifyDflash(Fallible):
    """DFlash verify of any width (S4 section 11.1)."""

    tokens: Ints
    seq: SeqId
    result: Ints | None = None


@record
class DecodeAndVerifyFused(Fallible):
    """DFlash's bootstrap verify of 2, 3 or 4 rows (S4 section 8.2)."""

    tokens: Ints
    seq: SeqId
    result: Ints | None = None


@record
class CanBatchVerify(Call):
    """May sequences with these row counts be verified in one pass?"""

    ks: Ints
    result: bool


@record
class DecodeVerifyBatched(Fallible):
    """Verify of several sequences, ``ks`` rows each, sequence after sequence (S4 sections 11.2, 11.3)."""

    tokens: Ints
    ks: Ints
    seqs: Seqs
    stream: int
    woa: bool
    result: Ints | None = None


@record
class GdnFoldAccepted(Fallible):
    """Recurrent state of each slot moves to the state after its accepted rows."""

    slots: Ints
    accepted: Ints
    k: int
    result: bool | None = None


@record
class MtpSlotDraftCapacity(Call):
    """How many drafts can ``slot`` roll back? The answer is not printed."""

    slot: int


# ---------------------------------------------------------------- drafter (S6 section 3.6)


@record
class SaveHiddenForMtp(Fallible):
    """Hidden row ``row`` becomes the drafter's input."""

    row: int
    stream: int


@record
class StashVerifyHiddenRows(Fallible):
    """Hidden rows are kept before a propose overwrites them."""

    rows: Ints
    stream: int


@record
class SaveHiddenForMtpFromStash(Fallible):
    """Stash row ``index`` becomes the drafter's input."""

    index: int
    stream: int


@record
class StashVerifyCatchupRows(Fallible):
    """Hidden rows of accepted drafts are kept: pairs (catch-up row, hidden row)."""

    rows: Pairs


@record
class RunMtpCatchupBatched(Fallible):
    """Accepted drafts enter the drafter's own cache; ``result`` is the number of rows written."""

    tokens: Lists
    slots: Ints
    pos: Ints
    result: int | None = None


@record
class SaveHiddenForCatchup(Fallible):
    """Hidden row ``row`` of position ``pos`` is kept for the drafter."""

    row: int
    pos: int


@record
class RunMtpProposeMulti(Fallible):
    """``n`` drafts after ``token`` at ``pos``; ``mask`` is true for a row with a grammar."""

    token: int
    pos: int
    n: int
    seq: SeqId
    stream: int
    mask: bool
    result: Ints | None = None


@record
class RunMtpProposeBatched(Fallible):
    """``n`` drafts for each of several sequences, inputs from the stash; ``result`` is None if it was declined."""

    tokens: Ints
    positions: Ints
    stash: Ints
    n: int
    stream: int
    result: Lists | None = None


@record
class TrimProposerState(Fallible):
    """The drafter drops all but ``na`` accepted drafts."""

    seq: SeqId
    na: int
    stream: int


# ---------------------------------------------------------------- self-speculation, DFlash context (S6 section 3.7)


@record
class DecodeDraft(Fallible):
    """A decode that skips recurrent layers (S4 section 13)."""

    token: int
    seq: SeqId
    stream: int


@record
class CommitCtx(Fallible):
    """``n`` rows from scratch row ``row`` on join the drafter's context at position ``base``."""

    seq: SeqId
    n: int
    base: int
    row: int


@record
class DflashEagleAcceptAppend(Fallible):
    """Two context rows after a full accept of 2 rows."""

    seq: SeqId


@record
class DflashEagleKgammaAppend(Fallible):
    """Context rows of ``na`` accepted drafts without the unified context (S4 section 11.1)."""

    seq: SeqId
    na: int
    base: int


@record
class DflashSerialCtxAppend(Fallible):
    """One context row after a serial decode without the unified context (S5 section 4)."""

    seq: SeqId
