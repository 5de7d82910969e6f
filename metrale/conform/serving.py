"""The scheduler core in front of a real engine, for a fixed list of requests that are all there from the start."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from metrale.core.config import SchedulerConfig
from metrale.core.driver import drive
from metrale.core.io import Batch, Device, SchedIo, SpillStore, Wait
from metrale.core.request import Completion, Request
from metrale.core.sampling.record import LogprobRecord
from metrale.core.scheduler import Scheduler
from metrale.sim.harness import StandingClock
from metrale.sim.instruments import Silent
from metrale.sim.runner import device_router
from metrale.sim.spill_store import FileSpillStore


@dataclass(slots=True)
class TextSink:
    """One client. ``on_token`` is told each token as it comes; the terminal frame is kept."""

    on_token: Callable[[int], None] = lambda token: None
    tokens: list[int] = field(default_factory=list)
    completion: Completion | None = None
    failure: str | None = None

    def token(self, token: int) -> bool:
        """Pass one token on."""
        self.tokens.append(token)
        self.on_token(token)
        return True

    def token_logprobs(self, token: int, record: LogprobRecord) -> bool:
        """Pass one token on."""
        return self.token(token)

    def finish(self, completion: Completion) -> None:
        """A normal end."""
        self.completion = completion

    def error(self, text: str) -> None:
        """A failure."""
        self.failure = text


class FixedInbox(Silent):
    """Requests by the tick at which they enter; closed once the scheduler waits for one and none is to come."""

    def __init__(self, requests: list[tuple[int, Request]]) -> None:
        self.waiting = sorted(requests, key=lambda pair: pair[0])
        self.tick = 0

    def receive(self, wait: Wait) -> Batch:
        """Everybody whose tick has come."""
        ready = [request for tick, request in self.waiting if tick <= self.tick]
        self.waiting = [pair for pair in self.waiting if pair[0] > self.tick]
        return Batch(ready, [], wait is Wait.BLOCK and not ready and not self.waiting)

    def arrivals_ahead(self) -> bool:
        """Whether somebody is still to come."""
        return bool(self.waiting)

    def close(self) -> list[Request]:
        """Whoever never got in."""
        left, self.waiting = [request for _, request in self.waiting], []
        return left

    def snapshot(self, tick: int, free_blocks: int) -> None:
        """The tick marker moves the clock of arrivals."""
        self.tick = tick


def serve(
    device: Device,
    config: SchedulerConfig,
    requests: list[Request],
    *,
    arrive_at: list[int] | None = None,
    router: str = "sync",
    swap_bytes: int = 0,
) -> None:
    """Run all requests to their ends; their sinks have the answers. ``swap_bytes`` > 0 lets rows be spilled to disk."""
    inbox = FixedInbox(list(zip(arrive_at or [0] * len(requests), requests, strict=True)))
    store: SpillStore | None = None
    folder = Path(tempfile.mkdtemp(prefix="metrale-")) if swap_bytes else None
    if folder is not None:
        store = FileSpillStore(folder / "spill", swap_bytes)
    try:
        stack = device_router(device, router, config.max_batch_size)
        scheduler = Scheduler(SchedIo(stack, inbox, StandingClock(), inbox, store), config)
        scheduler.start()
        drive(scheduler)
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
