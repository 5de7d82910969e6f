"""The world around a simulated run: arrivals at markers, client sinks, a clock that stands still (S1 section 3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from metrale.core.io import Batch, Rotation, Wait
from metrale.core.request import CancelFlag, Completion, Request, SamplingParams
from metrale.core.sampling.record import LogprobRecord

from .instruments import Silent
from .mock import Script

if TYPE_CHECKING:
    from .scenario import RequestTable, Scenario


class HarnessError(Exception):
    """The run cannot go on: it waits for something that will never come."""


class StandingClock:
    """Time never passes: no trace depends on it. Expired deadlines lie at this very instant."""

    NOW = 0

    def now(self) -> int:
        """Always the same nanosecond."""
        return self.NOW


def optional_text(value: str | None) -> str:
    """``None`` or ``Some("...")``."""
    return "None" if value is None else f'Some("{value}")'


class StreamingSink:
    """Collects a stream as events; tokens stay numbers until they are rendered."""

    def __init__(self) -> None:
        self.events: list[int | str] = []
        self.ended = False

    def token(self, token: int) -> bool:
        """``T<id>``."""
        self.events.append(token)
        return True

    def token_logprobs(self, token: int, record: LogprobRecord) -> bool:
        """``TL<id>:<count>``."""
        self.events.append(f"TL{token}:{len(record.top)}")
        return True

    def finish(self, completion: Completion) -> None:
        """``Done(...)``, at most once."""
        c = completion
        counts = f"n={len(c.tokens)}, think={c.think}, cached={c.cached}, acc={c.accepted}"
        self._end(f"Done({c.reason}, {counts}, guard={optional_text(c.guard)})")

    def error(self, text: str) -> None:
        """``Error(...)``, at most once."""
        self._end(f"Error({text})")

    def _end(self, event: str) -> None:
        if not self.ended:
            self.events.append(event)
            self.ended = True

    def render(self) -> str:
        """The events joined by blanks."""
        return " ".join([f"T{event}" if isinstance(event, int) else event for event in self.events])


class LossySink(StreamingSink):
    """A reader that is gone, or whose full queue nobody empties, after ``reads`` events: later sends fail."""

    def __init__(self, reads: int) -> None:
        super().__init__()
        self.reads = reads

    def token(self, token: int) -> bool:
        """``T<id>`` while the reader reads."""
        return len(self.events) < self.reads and super().token(token)

    def token_logprobs(self, token: int, record: LogprobRecord) -> bool:
        """``TL<id>:<count>`` while the reader reads."""
        return len(self.events) < self.reads and super().token_logprobs(token, record)


class BlockingSink:
    """Takes the first terminal frame and drops the rest."""

    def __init__(self) -> None:
        self.answer: str | None = None

    @property
    def ended(self) -> bool:
        """Whether the client has its answer."""
        return self.answer is not None

    def token(self, token: int) -> bool:
        """A blocking client gets no tokens."""
        return True

    def token_logprobs(self, token: int, record: LogprobRecord) -> bool:
        """A blocking client gets no tokens."""
        return True

    def finish(self, completion: Completion) -> None:
        """``Response(...)``."""
        c = completion
        if self.answer is None:
            counts = f"think={c.think}, cached={c.cached}, acc={c.accepted}, logprobs={c.logprobs}"
            self.answer = f"Response(tokens={c.tokens}, {c.reason}, {counts})"

    def error(self, text: str) -> None:
        """``Err(...)``."""
        if self.answer is None:
            self.answer = f"Err({text})"

    def render(self) -> str:
        """The answer, or that there was none."""
        return "dropped" if self.answer is None else self.answer


@dataclass(slots=True)
class Ack:
    """The acknowledgement of the scenario's rotation."""

    text: str | None = None

    def done(self) -> None:
        """The rotation was applied."""
        self.text = "Done"

    def failed(self, text: str) -> None:
        """The device refused it."""
        self.text = f"Err({text})"

    def render(self) -> str:
        """What the trace shows."""
        return "dropped" if self.text is None else self.text


@dataclass(slots=True)
class Client:
    """One request of the scenario and its channel."""

    table: RequestTable
    request: Request
    sink: StreamingSink | BlockingSink


def build_client(table: RequestTable) -> Client:
    """The request that a scenario entry describes; temperature is the only float."""
    sink = _sink(table)
    prompt = table.prompt_tokens
    script = Script(
        tokens=list(table.tokens),
        prompt_len=len(prompt),
        wrong_every=table.draft_wrong_every,
        cancel_at=table.cancel_at,
        beam_hyp=table.beam_hyp,
    )
    request = Request(
        id=table.id,
        prompt=prompt,
        max_tokens=len(table.tokens) if table.max_tokens is None else table.max_tokens,
        sink=sink,
        min_tokens=table.min_tokens,
        stop_tokens=tuple(table.stop_tokens),
        sampling=SamplingParams(temperature=table.temperature),
        top_logprobs=table.top_logprobs,
        num_beams=table.num_beams,
        grammar=table.grammar_active,
        vision_pads=table.vision_pads,
        prompt_is_explicit=table.prompt is not None,
        deadline=StandingClock.NOW if table.expired_deadline else None,
        cancel=CancelFlag() if table.streaming else None,
        streaming=table.streaming,
        handle=script,
    )
    return Client(table, request, sink)


def _sink(table: RequestTable) -> StreamingSink | BlockingSink:
    if not table.streaming:
        return BlockingSink()
    bounds = [bound for bound in (table.drop_reader_after, table.stall_reader) if bound is not None]
    return LossySink(min(bounds)) if bounds else StreamingSink()


@dataclass(slots=True)
class Harness(Silent):
    """Inbox and telemetry of one run: what happens at each tick's marker, and when the inbox closes.

    Every tick marker is a barrier: the arrivals of tick t enter the inbox inside it, then the cancels and deadlines of
    tick t act (D6, D12). The inbox closes once every client is answered and the rotation acknowledged.
    """

    scenario: Scenario
    clients: list[Client] = field(default_factory=list)
    ack: Ack | None = None
    write: Callable[[str], None] | None = None
    tick: int = 0
    _queued: list[Request] = field(default_factory=list)
    _rotations: list[Rotation] = field(default_factory=list)
    _arrivals: list[Client] = field(default_factory=list)
    _refused: list[Request] = field(default_factory=list)
    _timed: list[Client] = field(default_factory=list)
    _closed: bool = False

    def __post_init__(self) -> None:
        self.clients = [build_client(table) for table in self.scenario.request]
        for client in self.clients:
            if client.table.arrive_at_tick is None:
                self._queued.append(client.request)
        late = [client for client in self.clients if client.table.arrive_at_tick is not None]
        self._arrivals = sorted(late, key=lambda client: client.table.arrive_at_tick or 0)
        self._timed = [
            client
            for client in self.clients
            if client.table.cancel_at_tick is not None or client.table.deadline_at_tick is not None
        ]
        name = self.scenario.scheduler.lora_rotation
        if name is not None:
            self.ack = Ack()
            self._rotations.append(Rotation(name, self.ack))

    # -- telemetry: the marker alone

    def snapshot(self, tick: int, free_blocks: int) -> None:
        """The marker of ``tick``, and the barrier inside it."""
        self.tick = tick
        if self.write is not None:
            self.write(f"-- tick {tick}")
        while self._arrivals and (self._arrivals[0].table.arrive_at_tick or 0) <= tick:
            client = self._arrivals.pop(0)
            (self._refused if self._closed else self._queued).append(client.request)
        self._timed = [client for client in self._timed if not self._act(client, tick)]
        if self.scenario.scheduler.close_inbox_at_tick == tick:
            self._closed = True

    def _act(self, client: Client, tick: int) -> bool:
        """Cancel and deadline of a tick: they wait for the request's arrival and do nothing after its end. True once
        nothing of this request is left to act."""
        table, request = client.table, client.request
        if client.sink.ended:
            return True
        if (table.arrive_at_tick or 0) > tick:
            return False
        left = 0
        if table.cancel_at_tick is not None and request.cancel is not None:
            if table.cancel_at_tick <= tick:
                request.cancel.raised = True
            else:
                left += 1
        if table.deadline_at_tick is not None:
            if table.deadline_at_tick <= tick:
                request.deadline = StandingClock.NOW
            else:
                left += 1
        return not left

    # -- inbox

    def receive(self, wait: Wait) -> Batch:
        """Everything queued; a blocking receive with nothing queued closes the inbox once all is answered."""
        batch = Batch(self._queued, self._rotations, self._closed)
        self._queued, self._rotations = [], []
        if wait is not Wait.BLOCK or batch.requests or batch.rotations or batch.closed or self._arrivals:
            return batch
        waiting = [f"s{client.request.id}" for client in self.clients if not client.sink.ended]
        if waiting or (self.ack is not None and self.ack.text is None):
            what = ", ".join(waiting) or "the rotation"
            raise HarnessError(f"the scheduler waits for a new request at tick {self.tick} while {what} is unanswered")
        self._closed = batch.closed = True
        return batch

    def arrivals_ahead(self) -> bool:
        """Whether a request of the scenario is still to come."""
        return bool(self._arrivals) and not self._closed

    def close(self) -> list[Request]:
        """The run ends: whoever never got in is handed over to be told."""
        self._closed = True
        left = self._queued + self._refused + [client.request for client in self._arrivals]
        self._queued, self._refused, self._arrivals = [], [], []
        return left

    def out_lines(self) -> list[str]:
        """The rotation ack, if a rotation was queued, then one line per request in file order."""
        lines = [] if self.ack is None else [f"rotation ack: {self.ack.render()}"]
        return lines + [f"out s{client.request.id}: {client.sink.render()}" for client in self.clients]
