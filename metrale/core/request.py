"""What a client asks for, how it is told the answer, and how it takes the wish back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .sampling.record import LogprobRecord


class CancelFlag:
    """A client's cancel wish. Raised from outside the core, read by it; never lowered."""

    __slots__ = ("raised",)

    def __init__(self) -> None:
        self.raised = False


@dataclass(slots=True)
class Completion:
    """The terminal frame of a request that ended without an error (S1 section 20).

    ``reason`` is ``stop``, ``length``, ``timeout`` or ``cancelled``; ``tokens`` the outputs, a final EOS included;
    ``think`` tokens generated inside thinking; ``cached`` prompt tokens from the prefix cache; ``accepted`` accepted
    draft tokens; ``guard`` the server guard that cut the request, or None; ``logprobs`` the number of records.
    """

    reason: str
    tokens: list[int]
    think: int = 0
    cached: int = 0
    accepted: int = 0
    guard: str | None = None
    logprobs: int = 0


class ClientSink(Protocol):
    """One client's channel (S5 section 2.8). Nothing follows the terminal frame; a blocking sink ignores tokens."""

    def token(self, token: int) -> bool:
        """Queue one token. False: the reader is gone or its channel stayed full; the caller ends the request."""

    def token_logprobs(self, token: int, record: LogprobRecord) -> bool:
        """Queue one token with its logprob record; answers like :meth:`token`."""

    def finish(self, completion: Completion) -> None:
        """Send the terminal frame of a normal end."""

    def error(self, text: str) -> None:
        """Send the terminal frame of a failure."""


@dataclass(slots=True)
class SamplingParams:
    """How a token is drawn (S3 sections 2 and 5). The defaults are neutral: greedy, no penalty, no mask."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    top_n_sigma: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    lz_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 3
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 42

    @property
    def neutral(self) -> bool:
        """No penalty and no bias acts (S3 section 5b)."""
        return self.penalties_neutral and not self.logit_bias

    @property
    def penalties_neutral(self) -> bool:
        """No penalty acts; a bias may (S3 section 4.1 condition 6)."""
        return (
            self.repetition_penalty == 1.0
            and self.presence_penalty == 0.0
            and self.frequency_penalty == 0.0
            and self.lz_penalty == 0.0
            and self.dry_multiplier == 0.0
        )


@dataclass(slots=True, eq=False)
class Request:
    """One client request. Identity is the object, never ``id`` (decision D18); ``id`` is the session hash that prints.

    ``prompt_is_explicit`` says whether the vocabulary check applies (D17). ``deadline`` is in clock nanoseconds.
    ``cancel`` is None for a blocking request. ``handle`` is the device's own key to this request (a script, say);
    the core passes it on and never looks inside.
    """

    id: int
    prompt: list[int]
    max_tokens: int
    sink: ClientSink
    min_tokens: int = 0
    stop_tokens: tuple[int, ...] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    top_logprobs: int | None = None
    num_beams: int = 1
    adapter_slot: int = -1
    grammar: bool = False
    vision_pads: bool = False
    prompt_is_explicit: bool = True
    thinking: bool = False
    thinking_budget: int | None = None
    deadline: int | None = None
    cancel: CancelFlag | None = None
    streaming: bool = True
    handle: object = None

    @property
    def cancelled(self) -> bool:
        """Whether a cancel flag exists and is raised."""
        return self.cancel is not None and self.cancel.raised
