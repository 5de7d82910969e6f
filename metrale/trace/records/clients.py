"""What the clients saw: rotation acknowledgement and ``out`` lines (S1 section 1, S5 section 2.8)."""

from __future__ import annotations

from ..values import Ints
from .base import Event, Record, Stage, record


class RotationAck(Record):
    """The answer to the scenario's adapter rotation; at most one such line in a trace."""

    __slots__ = ()
    stage = Stage.ROTATION


@record
class RotationDone(RotationAck):
    """The adapter was made active."""


@record
class RotationPromoted(RotationAck):
    """The adapter was promoted into adapter slot ``slot``; ``evicted`` names the one that made room."""

    slot: int
    evicted: str | None


@record
class RotationErr(RotationAck):
    """The device refused."""

    message: str


@record
class RotationDropped(RotationAck):
    """Nobody answered."""


@record
class Out(Record):
    """All that the client of request ``id`` saw, in order; empty for a stream on which nothing was sent."""

    stage = Stage.OUT

    id: int
    events: tuple[Event, ...]

    @property
    def ended(self) -> bool:
        """Whether the client saw a terminal event."""
        return any(event.terminal for event in self.events)


@record
class Token(Event):
    """``T<id>``: a streamed token."""

    terminal = False

    id: int


@record
class TokenLogprobs(Event):
    """``TL<id>:<k>``: a streamed token with ``k`` top log-probabilities (S3 section 5.6)."""

    terminal = False

    id: int
    k: int


@record
class PromptLogprobs(Event):
    """``PL<n>``: log-probabilities of ``n`` prompt tokens."""

    terminal = False

    n: int


@record
class Done(Event):
    """End of a stream (S1 section 20). Counts are tokens; ``guard`` names the guard that cut the request."""

    reason: str
    n: int
    think: int
    cached: int
    acc: int
    guard: str | None


@record
class Error(Event):
    """A stream that failed. ``message`` is free text and runs to the end of the line."""

    message: str


@record
class Response(Event):
    """The whole answer to a blocking client; ``logprobs`` counts entries (S1 section 20)."""

    tokens: Ints
    reason: str
    think: int
    cached: int
    acc: int
    logprobs: int


@record
class Err(Event):
    """A blocking client's failure."""

    message: str


@record
class Dropped(Event):
    """A blocking client that nobody answered."""
