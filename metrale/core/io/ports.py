"""The ports beside the device: request inbox, clock, spill store, telemetry (S5 sections 2.6 to 2.10)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import BinaryIO, Protocol

from ..request import Request


class Wait(Enum):
    """How long a receive may wait (S5 section 2.7)."""

    NO_WAIT = "no-wait"
    BOUNDED = "bounded"
    BLOCK = "block"


@dataclass(slots=True)
class Rotation:
    """A queued LoRA command with the channel for its acknowledgement."""

    name: str
    ack: RotationAck


class RotationAck(Protocol):
    """Where the answer to a rotation goes."""

    def done(self) -> None:
        """The rotation was applied."""

    def failed(self, text: str) -> None:
        """The device refused the rotation."""


@dataclass(slots=True)
class Batch:
    """What one receive handed over: everything queued, in arrival order. ``closed`` is never cleared once true."""

    requests: list[Request] = field(default_factory=list)
    rotations: list[Rotation] = field(default_factory=list)
    closed: bool = False


class Inbox(Protocol):
    """Where requests and rotations come from."""

    def receive(self, wait: Wait) -> Batch:
        """Take everything queued. ``BOUNDED`` waits at most the parked wait (10 ms), ``BLOCK`` until something is
        there or the inbox is closed; a closed inbox never waits. A simulated inbox may answer a ``BLOCK`` with an
        empty batch while an arrival still lies ahead (decision D7): the caller then goes on with its tick."""

    def arrivals_ahead(self) -> bool:
        """Whether a request may still arrive in a later tick. A server's inbox says True until it is closed."""

    def close(self) -> list[Request]:
        """Refuse newcomers from now on; hands over every request that nobody has received yet."""


class Clock(Protocol):
    """The only time the core knows."""

    def now(self) -> int:
        """Monotonic time in nanoseconds."""


class SpillStore(Protocol):
    """Files of spilled sequences (S5 section 2.9). Ids count up from 0 and are never reused."""

    def create(self) -> tuple[int, BinaryIO]:
        """A new file: its id and a writer. Raises OSError."""

    def record_usage(self, file_id: int) -> None:
        """Add the closed file's size to the usage ledger."""

    def open(self, file_id: int) -> BinaryIO:
        """A reader over a closed file. Raises OSError."""

    def remove(self, file_id: int) -> None:
        """Delete the file and subtract its size from the ledger. Raises OSError."""


class Telemetry(Protocol):
    """What an operator watches. Nothing here may change a call or a client's output (S5 section 2.10).

    Only :meth:`snapshot` is always called; the rest only while ``enabled``.
    """

    enabled: bool

    def step_begin(self) -> None:
        """First thing in every plan."""

    def phase_begin(self, name: str) -> None:
        """A phase of planning starts (``drain``)."""

    def phase_end(self, name: str) -> None:
        """The phase is over."""

    def lane_begin(self, index: int) -> None:
        """Lane 0 (start), 1 (continue) or 2 (decode) starts."""

    def lane_end(self, index: int) -> None:
        """The lane is over."""

    def tokens(self, count: int) -> None:
        """Output tokens that the last lane added; a rollback counts zero, never less."""

    def decode_batch(self, rows: int) -> None:
        """Rows of a plain decode launch."""

    def draft_width(self, drafts: int) -> None:
        """Drafts per sequence that a speculative step asks for."""

    def spec_verified(self, drafts: int, accepted: int) -> None:
        """One verified window."""

    def request_finished(self, outputs: int) -> None:
        """A terminal frame of a normal end, with its number of output tokens."""

    def snapshot(self, tick: int, free_blocks: int) -> None:
        """The statistics snapshot of tick ``tick``, after admission and before any lane (S1 section 9)."""
