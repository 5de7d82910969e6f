"""Device calls for memory, streams, adapters and expert-parallel words (S6 sections 3.1, 3.8, 3.10, 6)."""

from __future__ import annotations

from ..values import SeqId
from .base import Call, Fallible, record

# ---------------------------------------------------------------- life cycle and memory (S6 section 3.1)


@record
class BindGpuToThread(Fallible):
    """The device context is made current; the first call of a run."""


@record
class AllocSequence(Fallible):
    """A new sequence takes ``slot``, the smallest free one."""

    slot: int | None = None


@record
class AllocSequenceFor(Fallible):
    """The same for a request that can reach ``budget`` tokens (chunked prefill)."""

    budget: int
    slot: int | None = None


@record
class CacheSequence(Call):
    """The sequence's tokens are offered to the prefix cache."""

    seq: SeqId


@record
class FreeSequence(Fallible):
    """The sequence gives back its slot and ``blocks`` KV blocks."""

    seq: SeqId
    blocks: int


@record
class CompactSequence(Fallible):
    """The sequence (printed with its old slot) moves to ``new_slot``."""

    seq: SeqId
    new_slot: int


@record
class DetachSlotForReuse(Call):
    """The sequence (printed with its old slot) gives its slot up."""

    seq: SeqId


@record
class SaveSequenceState(Fallible):
    """``blocks`` KV blocks of the sequence are written to its spill file."""

    seq: SeqId
    blocks: int


@record
class RestoreSequenceState(Fallible):
    """``blocks`` KV blocks are read back into a fresh sequence."""

    seq: SeqId
    blocks: int


@record
class NumFreeBlocks(Call):
    """Free KV blocks at this moment."""

    result: int


@record
class ReclaimPrefixBlocks(Call):
    """``n`` blocks are asked back from the prefix cache, ``result`` of them came."""

    n: int
    result: int


@record
class PollInnerq(Call):
    """Hook before each prefill step (S2 section 8.2)."""


@record
class Teardown(Fallible):
    """Device memory is freed; the last call of a run."""


# ---------------------------------------------------------------- streams and events (S6 section 3.10)


@record
class CreateStream(Fallible):
    """A new stream, numbered ``result``."""

    result: int | None = None


@record
class CreateEvent(Fallible):
    """A new event, numbered ``result``."""

    result: int | None = None


@record
class RecordEvent(Fallible):
    """The event marks the current end of the stream."""

    event: int
    stream: int


@record
class StreamWaitEvent(Fallible):
    """Later work of the stream waits for the event's mark."""

    stream: int
    event: int


@record
class Synchronize(Fallible):
    """The host waits for all work of the stream."""

    stream: int


@record
class EventQuery(Fallible):
    """A query of the event that failed; a query that succeeds prints nothing (S5 section 12)."""

    event: int


@record
class EventSynchronize(Fallible):
    """The host waits for the event."""

    event: int


@record
class DestroyEvent(Fallible):
    """The event is freed."""

    event: int


# ---------------------------------------------------------------- adapters (S6 section 3.8, S5 section 4.2)


@record
class AdapterIdFor(Call):
    """The cache identity of adapter slot ``slot`` is asked; -1 is the active adapter."""

    slot: int


@record
class AcquireAdapterSlot(Call):
    """A sequence takes a reference on adapter slot ``slot``; -1 is the active adapter."""

    slot: int


@record
class SetActiveLora(Fallible):
    """Resident adapter ``name`` becomes the active one."""

    name: str


@record
class SwapLoraFromDisk(Fallible):
    """Adapter ``name`` in directory ``dir`` is loaded into adapter slot ``slot``."""

    dir: str
    name: str
    slot: int


@record
class PromoteLoraFromDisk(Fallible):
    """Adapter ``name`` in directory ``dir`` is loaded into a slot of the device's choice."""

    dir: str
    name: str


@record
class PromoteLoraFromPeer(Fallible):
    """Adapter ``name`` is fetched from ``peer``."""

    peer: str
    adapter_id: int
    name: str


# ---------------------------------------------------------------- expert-parallel words (S2 section 3.5, S6 section 6)


@record
class EpBroadcastCmd(Fallible):
    """A follow-up word: a count, a position or a token id."""

    cmd: int


@record
class EpBroadcastCmdForSeq(Fallible):
    """A command word for the sequence in slot ``seq``; 4294967295 stands for a detached one."""

    seq: int
    cmd: int


@record
class EpBroadcastTokens(Fallible):
    """``n`` prompt tokens are sent to the workers."""

    n: int


@record
class EpSyncVisionEmbeds(Fallible):
    """Image rows of a prompt of ``n`` tokens are sent to the workers."""

    n: int
