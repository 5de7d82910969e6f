"""Time of one decode-only scheduler step, beside a feature-free floor measured in the same run.

    python tools/bench_step.py            # table of medians, microseconds per step
    python tools/bench_step.py --check    # exit status 1 when a target is missed

A step is one whole tick: plan, lanes, end of tick. Four variants of the scheduler take turns with the floor, round by
round, so that a noisy moment hits all of them:

* ``plain``: the scheduler with its default knobs, call log off;
* ``logged``: the same, with every call line written to a list;
* ``all knobs``: spill store, loop watchdog, boundary ring on a recurrent model, think ids, deadline scope "all" and a
  deadline on every request, so that no shortcut of the commit applies; log off;
* ``floor``: :class:`FloorScheduler`, about a hundred lines that know requests, a batch, a block pool and an EOS, and
  nothing else (no slots to compact, no preemption, no cancel, no deadline, no checkpoint, no trace).
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from metrale.core.config import SchedulerConfig
from metrale.core.io import Batch, DeviceFacts, Rotation, Router, SchedIo, Wait
from metrale.core.request import CancelFlag, Request
from metrale.core.routers.sync import SyncRouter
from metrale.core.scheduler import Flow, Scheduler
from metrale.sim.harness import StandingClock, StreamingSink
from metrale.sim.instruments import Silent
from metrale.sim.mock import MockConfig, MockDevice, Script
from metrale.trace.recording import RecordingDevice
from metrale.trace.tracing_router import TracingRouter

SIZES = (8, 64, 256)
TARGET_US = {8: 25.0, 64: 130.0, 256: 500.0}
AIM_US = {8: 12.0, 64: 60.0, 256: 250.0}
LOGGED_FACTOR = 3.0
PROMPT = 16
EOS = 63
VOCAB = 4096
FAR_DEADLINE = 1 << 62
WARM_UP = 100
"""Steps before the clock starts: the fuzzy watchdog looks at nothing before 90 outputs."""


class BenchInbox(Silent):
    """An inbox that hands over one batch and stays open; also the telemetry, which looks at nothing."""

    def __init__(self, requests: list[Request]) -> None:
        self._requests = requests
        self._rotations: list[Rotation] = []

    def receive(self, wait: Wait) -> Batch:
        """Everything at once, then nothing."""
        requests, self._requests = self._requests, []
        return Batch(requests, [], False)

    def arrivals_ahead(self) -> bool:
        """A server's inbox: always maybe."""
        return True

    def close(self) -> list[Request]:
        """Never used here."""
        return []

    def snapshot(self, tick: int, free_blocks: int) -> None:
        """Nothing to publish."""


class MarkerInbox(BenchInbox):
    """Writes the tick marker, as the simulator does."""

    def __init__(self, requests: list[Request], write: Callable[[str], None]) -> None:
        super().__init__(requests)
        self._write = write

    def snapshot(self, tick: int, free_blocks: int) -> None:
        """The marker line."""
        self._write(f"-- tick {tick}")


def script_tokens(index: int, count: int) -> list[int]:
    """No EOS, no loop that a watchdog would see within ``count`` tokens."""
    return [64 + (index * 131 + i * i * 7 + i * 13) % (VOCAB - 64) for i in range(count)]


def bench_requests(size: int, steps: int, deadline: int | None) -> list[Request]:
    """``size`` streaming requests that outlive ``steps`` decodes."""
    requests = []
    for index in range(size):
        prompt = [index, *(2 + i % 7 for i in range(1, PROMPT))]
        script = Script(tokens=script_tokens(index, steps + 200), prompt_len=PROMPT)
        requests.append(
            Request(
                id=index,
                prompt=prompt,
                max_tokens=steps + 200,
                sink=StreamingSink(),
                prompt_is_explicit=False,
                deadline=deadline,
                cancel=CancelFlag(),
                handle=script,
            )
        )
    return requests


class NoSpill:
    """A spill store that is there and never used."""

    def __getattr__(self, name: str) -> Callable[..., object]:
        raise AssertionError(f"the benchmark never spills, yet {name} was asked for")


def build(size: int, steps: int, *, log: bool, all_knobs: bool) -> tuple[Scheduler, list[str]]:
    """A scheduler whose ``size`` requests are prefilled and decoding."""
    ring = 4 if all_knobs else 0
    facts = DeviceFacts(vocab_size=VOCAB, total_blocks=1 << 22, has_ssm_layers=all_knobs, ring_slots=ring)
    device = MockDevice(MockConfig(facts=facts))
    lines: list[str] = []
    requests = bench_requests(size, steps, FAR_DEADLINE if all_knobs else None)
    router: Router
    if log:
        router = TracingRouter(SyncRouter(RecordingDevice(device, lines.append)), lines.append)
        inbox: BenchInbox = MarkerInbox(requests, lines.append)
    else:
        router = SyncRouter(device)
        inbox = BenchInbox(requests)
    config = SchedulerConfig(max_batch_size=size, max_seq_len=0)
    if all_knobs:
        config = SchedulerConfig(
            max_batch_size=size,
            max_seq_len=1 << 40,
            loop_watchdog=True,
            boundary_tokens=frozenset({65}),
            think_start_token=1,
            think_end_token=2,
            deadline_scope_all=True,
        )
    spill = NoSpill() if all_knobs else None
    scheduler = Scheduler(SchedIo(router, inbox, StandingClock(), inbox, spill), config)  # type: ignore[arg-type]
    scheduler.start()
    tick(scheduler)
    assert len(scheduler.state.active) == size
    return scheduler, lines


def tick(scheduler: Scheduler) -> None:
    """One turn of the driver loop."""
    plan = scheduler.plan()
    for lane in plan.lanes:
        if scheduler.execute(lane, plan) is Flow.SKIP_REST:
            return
    scheduler.end_tick()


# -- the floor --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class FloorSequence:
    """A request of the floor: its tokens, its blocks, where it stops."""

    prompt_len: int
    tokens: list[int]
    script: list[int]
    max_tokens: int
    blocks: list[int] = field(default_factory=list)
    done: bool = False

    @property
    def generated(self) -> int:
        """Tokens beyond the prompt."""
        return len(self.tokens) - self.prompt_len


class FloorBlocks:
    """A free list of KV block ids."""

    def __init__(self, count: int, block_size: int) -> None:
        self.free = deque(range(count))
        self.block_size = block_size

    def grow(self, seq: FloorSequence) -> bool:
        """One more block when the next token needs it; False when the pool is dry."""
        needed = len(seq.tokens) // self.block_size + 1
        while len(seq.blocks) < needed:
            if not self.free:
                return False
            seq.blocks.append(self.free.popleft())
        return True

    def release(self, seq: FloorSequence) -> None:
        """All blocks back."""
        self.free.extend(seq.blocks)
        seq.blocks = []


class FloorDevice:
    """Answers the next script token of every row."""

    def step(self, batch: list[FloorSequence]) -> list[int]:
        """One token per row."""
        return [seq.script[seq.generated] for seq in batch]


class FloorScheduler:
    """The least that serves a batch: admit, prefill all at once, decode one token per row, retire."""

    def __init__(self, device: FloorDevice, blocks: FloorBlocks, max_batch: int) -> None:
        self.device = device
        self.blocks = blocks
        self.max_batch = max_batch
        self.waiting: deque[FloorSequence] = deque()
        self.running: list[FloorSequence] = []

    def add(self, seq: FloorSequence) -> None:
        """Queue a request."""
        self.waiting.append(seq)

    def schedule(self) -> list[FloorSequence]:
        """Admit while seats and blocks last, then everything that runs and has a block for its next token."""
        while self.waiting and len(self.running) < self.max_batch and self.blocks.grow(self.waiting[0]):
            self.running.append(self.waiting.popleft())
        return [seq for seq in self.running if self.blocks.grow(seq)]

    def step(self) -> list[tuple[FloorSequence, int]]:
        """One tick: what each row of the batch emitted."""
        batch = self.schedule()
        tokens = self.device.step(batch)
        emitted = []
        finished = False
        for seq, token in zip(batch, tokens, strict=True):
            seq.tokens.append(token)
            emitted.append((seq, token))
            if token == EOS or seq.generated >= seq.max_tokens:
                seq.done = finished = True
                self.blocks.release(seq)
        if finished:
            self.running = [seq for seq in self.running if not seq.done]
        return emitted


def build_floor(size: int, steps: int) -> FloorScheduler:
    """The floor with ``size`` requests running."""
    floor = FloorScheduler(FloorDevice(), FloorBlocks(1 << 20, 16), size)
    for index in range(size):
        prompt = [index, *(2 + i % 7 for i in range(1, PROMPT))]
        floor.add(FloorSequence(PROMPT, prompt, script_tokens(index, steps + 200), steps + 200))
    floor.step()
    return floor


# -- measuring --------------------------------------------------------------------------------------------------------


def timed(step: Callable[[], object], count: int) -> float:
    """Median microseconds of ``count`` steps after the warm-up."""
    for _ in range(WARM_UP):
        step()
    clock = time.perf_counter_ns
    samples = []
    for _ in range(count):
        start = clock()
        step()
        samples.append(clock() - start)
    return statistics.median(samples) / 1000


def measure(size: int, steps: int, rounds: int) -> dict[str, float]:
    """Median of the rounds' medians, in microseconds per step, by variant."""
    results: dict[str, list[float]] = {}

    def note(name: str, step: Callable[[], object]) -> None:
        gc.collect()
        results.setdefault(name, []).append(timed(step, steps))

    for _ in range(rounds):
        floor = build_floor(size, steps)
        note("floor", floor.step)
        for name, log, all_knobs in (("plain", False, False), ("all knobs", False, True), ("logged", True, False)):
            scheduler, lines = build(size, steps, log=log, all_knobs=all_knobs)
            note(name, lambda s=scheduler: tick(s))
            active = scheduler.state.active
            assert len(active) == size, f"{name}: {size - len(active)} of {size} requests ended early"
            assert bool(lines) is log
    return {name: statistics.median(values) for name, values in results.items()}


def main() -> int:
    """Measure, print, and with ``--check`` compare with the targets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150, help="steps per round and variant (default 150)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--check", action="store_true", help="exit status 1 when a target is missed")
    options = parser.parse_args()
    table = {size: measure(size, options.steps, options.rounds) for size in SIZES}
    missed = []
    for size, row in table.items():
        if row["plain"] > TARGET_US[size]:
            missed.append(f"plain step of {size}: {row['plain']:.1f} us, target {TARGET_US[size]:.0f}")
        if row["logged"] > LOGGED_FACTOR * TARGET_US[size]:
            limit = LOGGED_FACTOR * TARGET_US[size]
            missed.append(f"logged step of {size}: {row['logged']:.1f} us, target {limit:.0f}")
    if options.json:
        print(json.dumps({"us_per_step": table, "missed": missed}))
    else:
        print("decode-only step, median microseconds (ratio to the floor of the same run)")
        heads = " ".join(f"{name:>17}" for name in ("plain", "all knobs", "logged"))
        print(f"{'rows':>5} {'floor':>9} {heads} {'log/plain':>10} {'target':>7} {'aim':>5}")
        for size, row in table.items():
            cells = " ".join(f"{row[k]:9.1f} ({row[k] / row['floor']:4.1f}x)" for k in ("plain", "all knobs", "logged"))
            ratio = row["logged"] / row["plain"]
            print(f"{size:>5} {row['floor']:9.1f} {cells} {ratio:9.1f}x {TARGET_US[size]:7.0f} {AIM_US[size]:5.0f}")
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
