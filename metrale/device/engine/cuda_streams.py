"""The three streams on a GPU (S6 sections 7.1 and 7.4).

D is torch's current stream, P and S have streams of their own. Work on P or S starts after everything that was queued
on D before it; D waits for P and S only where the engine says so. That is the order which late mode on the CPU
(:class:`.streams.Streams`) drives to its latest, so a wait that late mode does not miss is not missing here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch

from .streams import DEFAULT, FIRST_EVENT, PREFILL, SECONDARY, Mark


@dataclass(frozen=True, slots=True)
class Queued:
    """A piece of work that may still run: its number in its stream, the event after it, and what it works on.

    Holding ``work`` keeps its tensors: torch would give the memory of a dropped one to the next caller on the stream
    that allocated it, while another stream still uses it."""

    count: int
    done: torch.cuda.Event
    work: Callable[[], object]


class CudaStreams:
    """Streams and events of one GPU, with the names of :class:`.streams.Streams`."""

    mode, without = "cuda", ""

    def __init__(self, on: torch.device) -> None:
        self._default = torch.cuda.current_stream(on)
        self._streams = {
            DEFAULT: self._default,
            PREFILL: torch.cuda.Stream(on),
            SECONDARY: torch.cuda.Stream(on),
        }
        self._count = {DEFAULT: 0, PREFILL: 0, SECONDARY: 0}
        self._done = {PREFILL: 0, SECONDARY: 0}
        self._queued: dict[int, deque[Queued]] = {PREFILL: deque(), SECONDARY: deque()}
        self._events: dict[int, torch.cuda.Event] = {}
        self._next_event = FIRST_EVENT

    def run(self, stream: int, work: Callable[[], object]) -> Mark:
        """Queue ``work``; the mark after it."""
        self._count[stream] += 1
        if stream == DEFAULT:
            work()
        else:
            own = self._streams[stream]
            own.wait_stream(self._default)
            with torch.cuda.stream(own):
                work()
            self._forget_done(stream)
            self._queued[stream].append(Queued(self._count[stream], own.record_event(), work))
        return Mark(stream, self._count[stream])

    def wait(self, stream: int, mark: Mark | None, edge: str) -> None:
        """Later work of ``stream`` runs after ``mark``."""
        if mark is None or mark.stream in (stream, DEFAULT) or mark.count <= self._done[mark.stream]:
            return
        for piece in self._queued[mark.stream]:
            if piece.count >= mark.count:
                self._streams[stream].wait_event(piece.done)
                return

    def end_of(self, stream: int) -> Mark:
        """The present end of a stream."""
        return Mark(stream, self._count[stream])

    def synchronize(self, stream: int, edge: str = "stream-on-host") -> None:
        """The host waits for a stream."""
        self._streams[stream].synchronize()
        if stream != DEFAULT:
            self._forget_done(stream)

    def _forget_done(self, stream: int) -> None:
        queue = self._queued[stream]
        while queue and queue[0].done.query():
            self._done[stream] = queue.popleft().count

    @property
    def waiting(self) -> int:
        """Pieces of work not run yet."""
        for stream in self._queued:
            self._forget_done(stream)
        return sum(len(queue) for queue in self._queued.values())

    # -- events

    def create_event(self) -> int:
        """Numbers from 2 on."""
        self._next_event += 1
        return self._next_event - 1

    def record(self, event: int, stream: int) -> None:
        """Move the event to the present end of a stream; earlier waits stay where they were."""
        self._events[event] = self._streams[stream].record_event()

    def wait_event(self, stream: int, event: int) -> None:
        """Wait for an event's mark as it is now; one never recorded is no wait."""
        if event in self._events:
            self._streams[stream].wait_event(self._events[event])

    def host_wait_event(self, event: int) -> None:
        """The host waits for an event."""
        if event in self._events:
            self._events[event].synchronize()

    def query(self, event: int) -> bool:
        """Whether everything before an event's mark has run."""
        return event not in self._events or self._events[event].query()

    def destroy_event(self, event: int) -> None:
        """Forget it."""
        self._events.pop(event, None)
