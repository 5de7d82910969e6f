"""Streams and events on the CPU: at once, as late as the recorded events allow, or in a seeded legal order.

The default stream D (0) runs work when it is queued. The prefill stream P (1) and the secondary stream S (2) do so too
in immediate mode. In late mode their work waits until something obliges it to have happened: D (or the host) waits for
it, or a later piece of the same stream is obliged. An ordering that nobody wrote down then shows as a wrong token.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

DEFAULT, PREFILL, SECONDARY = 0, 1, 2
FIRST_EVENT = 2

EDGES = {
    "event": "stream_wait_event: the waiting stream runs after the recorded mark (S6 7.2 rows 1, 2)",
    "event-on-host": "event_synchronize: the host goes on after the recorded mark (S6 7.2 row 13)",
    "stream-on-host": "synchronize: the host goes on after everything queued in a stream",
    "forward-after-secondary": "a forward runs after S work on its sequences' recurrent state (S6 7.2 rows 6, 7)",
    "forward-after-prefill": "a forward on D runs after P work on its sequences (S6 7.2 row 2)",
    "propose-after-prefill": "a proposal reads hidden rows after P work has left them",
    "rollback-after-secondary": "the state of a verify row comes back on D after S work on the live state (S6 7.3)",
    "return-after-secondary": "a checkpoint is loaded on D after S work has filled it (S6 7.3)",
    "fold-after-secondary": "matrix states are folded on D after S work on them (S6 7.3)",
    "checkpoint-after-secondary": "a checkpoint on D is taken after S work on the live state (S6 7.3)",
    "checkpoint-after-prefill": "a checkpoint on D is taken after P work on the live state",
    "checkpoint-on-secondary-after-prefill": "a checkpoint on S is taken after P work on the live state",
    "ring-save-after-secondary": "a ring entry is saved after S work on the live state (S6 7.3)",
    "ring-save-after-prefill": "a ring entry is saved after P work on the live state",
    "ring-restore-after-secondary": "a ring entry is loaded after S work on the live state (S6 7.3)",
    "ring-restore-after-prefill": "a ring entry is loaded after P work on the live state",
    "image-after-secondary": "a spill image is written after S work on the live state (S6 7.3)",
    "image-after-prefill": "a spill image is written after P work on its sequence",
    "snapshot-after-secondary": "a prefix-cache snapshot is taken after S work on the live state (S6 3.1)",
    "snapshot-after-prefill": "a prefix-cache snapshot is taken on D after P work on the live state",
    "free-after-secondary": "slot and blocks are reused after S work on them (S6 7.3)",
    "free-after-prefill": "slot and blocks are reused after P work on them (S6 7.3)",
    "share-after-write": "a shared block is read after it was written",
    "restore-after-save": "a snapshot is loaded after it was saved, on whatever stream (S6 7.2 row 8)",
    "teardown": "everything has run before memory goes (S6 7.2 row 14)",
}
"""Every wait of the engine. None is spare: ``conformance.ordering`` has a program that goes wrong without it."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The end of a stream at some moment: its first ``count`` pieces of work."""

    stream: int
    count: int


class Streams:
    """Three streams in program order each. ``without`` takes one named ordering edge out, for tests of the tests."""

    def __init__(self, mode: str = "immediate", seed: int = 0, without: str = "") -> None:
        if mode not in ("immediate", "late", "random"):
            raise ValueError(f"stream mode {mode!r}: immediate, late or random")
        self.mode, self.without = mode, without
        self._random = random.Random(seed)
        self._queues: dict[int, deque[Callable[[], object]]] = {PREFILL: deque(), SECONDARY: deque()}
        self._queued = {DEFAULT: 0, PREFILL: 0, SECONDARY: 0}
        self._events: dict[int, Mark] = {}
        self._next_event = FIRST_EVENT

    def run(self, stream: int, work: Callable[[], object]) -> Mark:
        """Queue ``work``; the mark after it."""
        self._queued[stream] += 1
        if self.mode == "immediate":
            work()
        elif stream == DEFAULT:
            self._maybe_advance()
            work()
        else:
            self._queues[stream].append(work)
        return Mark(stream, self._queued[stream])

    def wait(self, stream: int, mark: Mark | None, edge: str) -> None:
        """Later work of ``stream`` runs after ``mark``."""
        if mark is None or mark.stream == stream or mark.stream == DEFAULT or edge == self.without:
            return
        if self.mode == "immediate":
            return
        if stream == DEFAULT:
            self._reach(mark)
        else:
            self._queued[stream] += 1
            self._queues[stream].append(lambda: self._reach(mark))

    def end_of(self, stream: int) -> Mark:
        """The present end of a stream."""
        return Mark(stream, self._queued[stream])

    def synchronize(self, stream: int, edge: str = "stream-on-host") -> None:
        """The host waits for a stream."""
        if stream != DEFAULT and edge != self.without:
            self._reach(self.end_of(stream))

    # -- events

    def create_event(self) -> int:
        """Numbers from 2 on."""
        self._next_event += 1
        return self._next_event - 1

    def record(self, event: int, stream: int) -> None:
        """Move the event to the present end of a stream."""
        self._events[event] = self.end_of(stream)

    def wait_event(self, stream: int, event: int) -> None:
        """Wait for an event's mark as it is now; one never recorded is no wait."""
        self.wait(stream, self._events.get(event), "event")

    def host_wait_event(self, event: int) -> None:
        """The host waits for an event."""
        mark = self._events.get(event)
        if mark is not None and mark.stream != DEFAULT and self.without != "event-on-host":
            self._reach(mark)

    def query(self, event: int) -> bool:
        """Whether everything before an event's mark has run: what is queued on D has."""
        mark = self._events.get(event)
        if mark is None or mark.stream == DEFAULT:
            return True
        return self._queued[mark.stream] - len(self._queues[mark.stream]) >= mark.count

    def destroy_event(self, event: int) -> None:
        """Forget it."""
        self._events.pop(event, None)

    @property
    def waiting(self) -> int:
        """Pieces of work not run yet."""
        return sum(len(queue) for queue in self._queues.values())

    # -- late order

    def _reach(self, mark: Mark) -> None:
        queue = self._queues[mark.stream]
        while queue and self._queued[mark.stream] - len(queue) < mark.count:
            queue.popleft()()

    def _maybe_advance(self) -> None:
        """Random mode: before work of D, some of the other streams' work may happen."""
        if self.mode != "random":
            return
        for queue in self._queues.values():
            while queue and self._random.random() < 0.5:
                queue.popleft()()
