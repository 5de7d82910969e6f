"""Records of live work: a row decodes, a prefill is on its way there, parked work waits (S1 section 22)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .config import SPONTANEOUS_THINK_BUDGET, SchedulerConfig
from .request import Request
from .sequence import Sequence
from .snapshot_ring import SnapshotRing

if TYPE_CHECKING:
    from .sampling.record import LogprobRecord


def stop_set(request: Request, config: SchedulerConfig) -> frozenset[int]:
    """The ids that end this request: the server's EOS list joined with its own stop tokens (S2 section 2.2)."""
    return frozenset(config.eos_tokens).union(request.stop_tokens)


@dataclass(slots=True)
class Thinking:
    """Thinking state of one row (S3 section 6.3, S4 section 4)."""

    inside: bool = False
    over: bool = False
    budget: int | None = None
    tokens: int = 0
    force_end: bool = False
    deferrals: int = 0
    just_ended: bool = False
    stray_ends: int = 0
    loop_fires: int = 0
    confident_run: int = 0
    emitted_after: int = 0


@dataclass(slots=True, eq=False)
class Row:
    """One decoding request. Between ticks its sequence holds prompt + outputs[:-1]; ``last_token`` is the next input.

    ``device_pick`` is what never changes of the argmax rule (S3 section 4.1): greedy, no grammar, no logprobs wanted.
    ``accepted`` is the ``acc=`` number; ``immune_until`` spares a resumed row from preemption while it has fewer
    outputs; ``echo_free`` and ``echo_known`` belong to the fuzzy watchdog. ``in_flight``: its newest input is booked,
    but the step that reads it is not settled (depth 2).
    """

    request: Request
    seq: Sequence
    eos: frozenset[int]
    last_token: int
    outputs: list[int]
    remaining: int
    last_token_time: int
    ring: SnapshotRing
    think: Thinking
    floor: int = 0
    device_pick: bool = True
    finished: bool = False
    cancelled: bool = False
    error: str | None = None
    guard: str | None = None
    content_tokens: int = 0
    echo_free: int = 0
    echo_known: int = 0
    rewinds: int = 0
    logprobs: list[LogprobRecord] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    draft_confidences: list[float] = field(default_factory=list)
    accepted: int = 0
    cached: int = 0
    immune_until: int = 0
    in_flight: bool = False

    def drop_drafts(self) -> None:
        """Forget the pending drafts and their confidences."""
        if self.drafts:
            self.drafts = []
        if self.draft_confidences:
            self.draft_confidences = []

    @property
    def below_floor(self) -> bool:
        """Fewer outputs than min_tokens: no speculative lane takes the row (decision D19)."""
        return len(self.outputs) < self.floor


def born(request: Request, seq: Sequence, first: int, config: SchedulerConfig, ring_slots: int, now: int) -> Row:
    """The row of a request whose prompt is fed and whose first token is picked (S2 section 5.3)."""
    spontaneous = not request.thinking and first == config.think_start_token
    thinks = request.thinking and config.think_end_token is not None
    return Row(
        request=request,
        seq=seq,
        eos=stop_set(request, config),
        last_token=first,
        outputs=[] if spontaneous else [first],
        remaining=max(0, request.max_tokens - 1),
        last_token_time=now,
        ring=SnapshotRing(ring_slots),
        think=Thinking(
            inside=spontaneous or thinks,
            over=not spontaneous and not request.thinking and config.think_end_token is not None,
            budget=SPONTANEOUS_THINK_BUDGET if spontaneous else request.thinking_budget,
        ),
        floor=request.min_tokens,
        device_pick=request.sampling.temperature == 0.0 and not request.grammar and request.top_logprobs is None,
        cached=seq.cached_tokens,
    )


@dataclass(slots=True, eq=False)
class Prefill:
    """One begun, unfinished prefill; ``offset`` prompt tokens are fed."""

    request: Request
    seq: Sequence
    offset: int


@dataclass(slots=True, eq=False)
class Requeued:
    """A preempted row without a device sequence: ``history`` is re-prefilled when it resumes."""

    row: Row
    history: list[int]


@dataclass(slots=True, eq=False)
class Spilled:
    """A row whose K/V lies in spill file ``file_id``."""

    row: Row
    file_id: int
    tokens: list[int]
    seq_len: int
    num_blocks: int
