"""All invariants, in the order in which they look at a line."""

from __future__ import annotations

from .admission import Admission
from .base import Invariant
from .batch_rows import BatchRows
from .blocks import Blocks
from .clients import Clients
from .context_commit import ContextCommit
from .drafts import Drafts
from .endings import Endings
from .ep_words import EpWords
from .free_queries import FreeQueries
from .history_length import HistoryLength
from .live_sequence import LiveSequence
from .own_script import OwnScript
from .parked import ParkedWork
from .pending import PendingToken
from .prefill_calls import PrefillCalls
from .progress import Progress
from .rotation import Rotations
from .router_calls import RouterCalls
from .slots import Slots
from .snapshot_ring import SnapshotRing
from .stream_order import StreamOrder
from .ticks import Ticks
from .token_feed import TokenFeed
from .verdicts import Verdicts
from .victims import Victims

INVARIANTS: tuple[type[Invariant], ...] = (
    ParkedWork, Ticks, RouterCalls, PrefillCalls, Verdicts, LiveSequence, HistoryLength, Slots, Blocks, FreeQueries,
    PendingToken, BatchRows, StreamOrder, Drafts, ContextCommit, EpWords, TokenFeed, SnapshotRing, Admission, Victims,
    Rotations, Progress, Clients, OwnScript, Endings,
)  # fmt: skip
