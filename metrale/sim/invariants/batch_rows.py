"""Rows of a step: who decodes, and which rows come back (S1 section 14, S6 sections 3.2 and 3.3)."""

from __future__ import annotations

from metrale.trace import records as r

from .base import Invariant, on, plural
from .ghost import Ghost


class BatchRows(Invariant):
    """See ``sentence``."""

    name = "batch-rows"
    sentence = (
        "A decode step has one row for every sequence that can decode, sorted by slot, and reads back those rows."
    )

    def __init__(self, ghost: Ghost) -> None:
        super().__init__(ghost)
        self.launched = False

    @on(r.FxLaunchDecode)
    def launch(self, rec: r.FxLaunchDecode) -> None:
        self.launched = True

    @on(r.DecodeBatch)
    def decode(self, rec: r.DecodeBatch) -> None:
        """Without a launch it is a bootstrap of the rows that have no drafts."""
        if self.launched:
            self._rows(rec, rec.tokens)
        else:
            self._streams(rec.stream)
        self.launched = False

    @on(r.DecodeBatchFed)
    def decode_fed(self, rec: r.DecodeBatchFed) -> None:
        self._rows(rec, rec.inputs)

    def _rows(self, rec: r.DecodeBatch | r.DecodeBatchFed, inputs: tuple[int, ...]) -> None:
        active = self.g.active
        if len(inputs) != len(rec.seqs):
            self.fail(f"{plural(len(inputs), 'input token')} for {plural(len(rec.seqs), 'row')}")
        if len(rec.seqs) == len(active):
            for sid, seq in zip(rec.seqs, active, strict=True):
                if sid.slot != seq.slot:
                    break
            else:
                self._streams(rec.stream)
                return
        theirs, ours = [sid.slot for sid in rec.seqs], sorted(seq.slot for seq in active)
        missing = [f"s{seq.hash}@{seq.slot}" for seq in active if seq.slot not in theirs]
        if missing:
            self.fail(f"the step leaves out {', '.join(missing)}", max(seq.born for seq in active))
        elif theirs != ours:
            self.fail(f"the rows stand on slots {theirs}; the batch, in slot order, stands on {ours}")

    def _streams(self, stream: int) -> None:
        if stream != 0:
            self.fail(f"a decode runs on stream 0, not {stream}")

    @on(r.MixedForward, r.MixedForwardBatch)
    def mixed(self, rec: r.MixedForward | r.MixedForwardBatch) -> None:
        if rec.stream != self.g.prefill_stream:
            self.fail(f"a mixed step is called on stream {self.g.prefill_stream}, not {rec.stream}")

    @on(r.Decode, r.DecodeDraft, r.DecodeVerifyBatched, r.RunMtpProposeMulti, r.RunMtpProposeBatched,
        r.SaveHiddenForMtp, r.SaveHiddenForMtpFromStash, r.StashVerifyHiddenRows, r.TrimProposerState)  # fmt: skip
    def default_stream(self, rec: r.Decode) -> None:
        if rec.stream != 0:
            self.fail(f"`{rec.call}` runs on stream 0, not {rec.stream}")

    @on(r.PrefillBatchChunk)
    def batch_prefill(self, rec: r.PrefillBatchChunk) -> None:
        if rec.stream != self.g.prefill_stream:
            self.fail(f"a batched prefill runs on stream {self.g.prefill_stream}, not {rec.stream}")

    @on(r.ArgmaxBatch)
    def argmax(self, rec: r.ArgmaxBatch) -> None:
        count = self.g.row_count
        if rec.row + rec.n > count:
            self.fail(f"rows up to {rec.row + rec.n - 1} are read, the forward has {count}", self.g.rows_line)
        elif rec.row or (rec.n != count and not self.g.rows_mixed):
            self.fail(f"{plural(count, 'row')} must be read back, not {rec.n} from row {rec.row}", self.g.rows_line)
        self._answers(rec.n, rec.result, rec.stream)

    @on(r.ArgmaxBatchToFeed)
    def argmax_feed(self, rec: r.ArgmaxBatchToFeed) -> None:
        count = self.g.row_count
        if rec.row or rec.n != count or len(rec.masks) != count:
            shown = f"{rec.n} from row {rec.row} with {len(rec.masks)} masks"
            self.fail(f"{plural(count, 'row')} must be read back, not {shown}", self.g.rows_line)
        self._answers(rec.n, rec.result, rec.stream)

    def _answers(self, count: int, result: tuple[int, ...] | None, stream: int) -> None:
        if result is not None and len(result) != count:
            self.fail(f"{plural(count, 'row')} give {plural(len(result), 'id')}")
        if stream != 0:
            self.fail(f"logits are read on stream 0, not {stream}")

    @on(r.ArgmaxOnDevice)
    def argmax_one(self, rec: r.ArgmaxOnDevice) -> None:
        if rec.row >= self.g.row_count:
            self.fail(f"row {rec.row} is read, the forward has {plural(self.g.row_count, 'row')}", self.g.rows_line)
        if rec.stream != 0:
            self.fail(f"logits are read on stream 0, not {rec.stream}")

    @on(r.CopyLogitsToHost)
    def copy(self, rec: r.CopyLogitsToHost) -> None:
        g = self.g
        if rec.row >= g.row_count:
            self.fail(f"row {rec.row} is copied, the forward has {plural(g.row_count, 'row')}", g.rows_line)
        elif g.vocab is not None:
            rows, rest = divmod(rec.bytes, 2 * g.vocab)
            if rest or not rows or rec.off or rec.row + rows > g.row_count:
                self.fail(
                    f"{rec.bytes} bytes from row {rec.row} on are no whole rows of {2 * g.vocab} bytes "
                    f"of the {g.row_count} there are",
                    g.rows_line,
                )
            elif rows != g.row_count and not (g.rows_mixed or g.rows_verified or g.rows_single):
                self.fail(f"{plural(g.row_count, 'row')} must be copied, not {rows}", g.rows_line)
