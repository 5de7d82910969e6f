"""Device calls that run the model and read its logits (S6 sections 3.2, 3.3, 3.11)."""

from __future__ import annotations

from ..values import Ints, Lists, Pairs, SeqId, Seqs, Slice, Slices
from .base import Call, Fallible, record

# ---------------------------------------------------------------- forwards (S6 section 3.2)


@record
class Prefill(Fallible):
    """A whole prompt of ``n`` tokens; ``seq`` shows the length after it."""

    n: int
    seq: SeqId
    stream: int


@record
class PrefillChunk(Fallible):
    """``len`` prompt tokens from position ``start``; ``seq`` shows the length after it (S2 section 4.2)."""

    start: int
    len: int
    last: bool
    seq: SeqId
    stream: int


@record
class PrefillBatchChunk(Fallible):
    """One chunk of each of several prompts (S2 section 9)."""

    streams: Slices
    stream: int


@record
class PrefillTwophase(Fallible):
    """A whole prompt of ``n`` tokens, recurrent layers in chunks (S2 section 8.1)."""

    n: int
    chunk: int
    seq: SeqId
    stream: int


@record
class NormalizeSsmStates(Fallible):
    """Recurrent state is clamped after a plain later chunk (S2 section 8.2)."""

    seq: SeqId
    stream: int


@record
class Decode(Fallible):
    """One token through one sequence; ``seq`` shows the length after it."""

    token: int
    seq: SeqId
    stream: int


@record
class DecodeBatch(Fallible):
    """One token per row; ``seqs`` show the lengths before it (S1 section 2)."""

    tokens: Ints
    seqs: Seqs
    stream: int


@record
class MixedForward(Fallible):
    """One token per decode row and one prompt chunk in one pass (S2 section 8.2)."""

    decode: Ints
    prefill: Slice
    stream: int


@record
class MixedForwardBatch(Fallible):
    """One token per decode row and one chunk of each of several prompts (S2 section 10)."""

    decode: Ints
    prefills: Slices
    stream: int


@record
class GenerateBeamBatch(Fallible):
    """Beam search over ``n`` requests; ``result`` holds one hypothesis per request (S2 section 12)."""

    n: int
    result: Lists | None = None


# ---------------------------------------------------------------- logits (S6 section 3.3)


@record
class ArgmaxOnDevice(Fallible):
    """The token id with the largest logit of one row."""

    row: int
    stream: int
    result: int | None = None


@record
class ArgmaxBatch(Fallible):
    """The same for ``n`` rows from ``row`` on."""

    row: int
    n: int
    stream: int
    result: Ints | None = None


@record
class CopyLogitsToHost(Fallible):
    """``bytes`` bytes of logits from byte ``off`` of ``row`` on; may span rows."""

    row: int
    off: int
    bytes: int


# ---------------------------------------------------------------- device token feed (S6 section 3.11, S5 section 12)


@record
class DecodeBatchFed(Fallible):
    """A decode whose inputs are resolved on the device; lengths do not change yet."""

    inputs: Ints
    seqs: Seqs
    stream: int


@record
class ArgmaxBatchToFeed(Fallible):
    """Argmax of ``n`` rows into the feed cells, two masked ids per row (4294967295 masks nothing)."""

    row: int
    n: int
    masks: Pairs
    event: int
    stream: int
    result: Ints | None = None


@record
class ReserveDecodeBlock(Fallible):
    """Room for the next position of the sequence; ``result`` is the number of blocks added."""

    seq: SeqId
    result: int | None = None


@record
class ReleaseDecodeBlocks(Fallible):
    """The last ``n`` blocks of the sequence go back."""

    seq: SeqId
    n: int


@record
class FedStepSettled(Call):
    """The oldest fed step is done."""
