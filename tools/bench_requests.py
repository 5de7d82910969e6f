"""Whole requests per second: 1,000 requests of 1,024 prompt and 128 output tokens, 256 in flight, chunks of 8,192.

    python tools/bench_requests.py             # median of three runs, call log off
    python tools/bench_requests.py --profile   # where the time goes
    python tools/bench_requests.py --check     # exit status 1 below the target

Building the requests is not counted; the run is, from start-up to teardown. The floor is the feature-free scheduler of
``bench_step`` on the same load.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench_step import FloorBlocks, FloorDevice, FloorScheduler, FloorSequence

from metrale.core.config import SchedulerConfig
from metrale.core.driver import drive
from metrale.core.io import Batch, DeviceFacts, SchedIo, Wait
from metrale.core.request import CancelFlag, Request
from metrale.core.routers.sync import SyncRouter
from metrale.core.scheduler import Scheduler
from metrale.sim.harness import StandingClock, StreamingSink
from metrale.sim.instruments import Silent
from metrale.sim.mock import MockConfig, MockDevice, Script
from metrale.trace.recording import RecordingDevice
from metrale.trace.tracing_router import TracingRouter

REQUESTS = 1000
PROMPT = 1024
OUTPUT = 128
IN_FLIGHT = 256
CHUNK = 8192
TARGET = 2000.0
AIM = 4000.0
EOS = 63
VOCAB = 4096


class ClosingInbox(Silent):
    """All requests at once; closed when everything is answered. Telemetry looks at nothing."""

    def __init__(self, requests: list[Request]) -> None:
        self._requests = requests

    def receive(self, wait: Wait) -> Batch:
        """Everything at the first receive; a blocking one on the emptied inbox closes it."""
        requests, self._requests = self._requests, []
        return Batch(requests, [], wait is Wait.BLOCK and not requests)

    def arrivals_ahead(self) -> bool:
        """Nothing comes later."""
        return False

    def close(self) -> list[Request]:
        """Nobody is left."""
        return []

    def snapshot(self, tick: int, free_blocks: int) -> None:
        """Nothing to publish."""


def script_tokens(index: int) -> list[int]:
    """127 tokens and an EOS."""
    return [64 + (index + i * 17) % (VOCAB - 64) for i in range(OUTPUT - 1)] + [EOS]


def prompt_tokens(index: int) -> list[int]:
    """A prompt that names its request."""
    return [index, *(2 + i % 7 for i in range(1, PROMPT))]


def build(log: bool) -> tuple[Scheduler, list[Request]]:
    """A scheduler with the whole load in its inbox."""
    requests = [
        Request(
            id=index,
            prompt=prompt_tokens(index),
            max_tokens=OUTPUT,
            sink=StreamingSink(),
            prompt_is_explicit=False,
            cancel=CancelFlag(),
            handle=Script(tokens=script_tokens(index), prompt_len=PROMPT),
        )
        for index in range(REQUESTS)
    ]
    facts = DeviceFacts(vocab_size=VOCAB, total_blocks=1 << 20)
    device = MockDevice(MockConfig(facts=facts))
    lines: list[str] = []
    if log:
        router = TracingRouter(SyncRouter(RecordingDevice(device, lines.append)), lines.append)
    else:
        router = SyncRouter(device)
    inbox = ClosingInbox(requests)
    config = SchedulerConfig(max_batch_size=IN_FLIGHT, max_prefill_tokens=CHUNK)
    scheduler = Scheduler(SchedIo(router, inbox, StandingClock(), inbox, None), config)  # type: ignore[arg-type]
    return scheduler, requests


def run(log: bool) -> float:
    """Seconds of one run."""
    scheduler, requests = build(log)
    gc.collect()
    start = time.perf_counter()
    scheduler.start()
    drive(scheduler)
    seconds = time.perf_counter() - start
    for request in requests:
        events = request.sink.events  # type: ignore[attr-defined]
        assert len(events) == OUTPUT
        assert events[-1] == f"Done(stop, n={OUTPUT}, think=0, cached=0, acc=0, guard=None)"
    return seconds


def run_floor() -> float:
    """Seconds of the floor on the same load."""
    floor = FloorScheduler(FloorDevice(), FloorBlocks(1 << 20, 16), IN_FLIGHT)
    sequences = [FloorSequence(PROMPT, prompt_tokens(index), script_tokens(index), OUTPUT) for index in range(REQUESTS)]
    gc.collect()
    start = time.perf_counter()
    for sequence in sequences:
        floor.add(sequence)
    while floor.waiting or floor.running:
        floor.step()
    seconds = time.perf_counter() - start
    assert all(sequence.done and sequence.generated == OUTPUT for sequence in sequences)
    return seconds


def profile() -> None:
    """Print the functions that cost most by themselves."""
    scheduler, _ = build(log=False)
    scheduler.start()
    profiler = cProfile.Profile()
    profiler.enable()
    drive(scheduler)
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(15)


def main() -> int:
    """Measure, print, and with ``--check`` compare with the target."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="runs of each variant (default 3)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--check", action="store_true", help="exit status 1 when the target is missed")
    parser.add_argument("--profile", action="store_true", help="profile one run instead")
    options = parser.parse_args()
    if options.profile:
        profile()
        return 0
    times: dict[str, list[float]] = {"floor": [], "plain": [], "logged": []}
    for _ in range(options.rounds):
        times["floor"].append(run_floor())
        times["plain"].append(run(log=False))
        times["logged"].append(run(log=True))
    rates = {name: REQUESTS / statistics.median(values) for name, values in times.items()}
    if options.json:
        print(json.dumps({"requests_per_s": rates, "target": TARGET, "aim": AIM}))
    else:
        print(f"{REQUESTS} requests, prompt {PROMPT}, output {OUTPUT}, {IN_FLIGHT} in flight, chunk {CHUNK}")
        for name, rate in rates.items():
            print(f"{name:>7} {rate:8.0f} requests/s ({rates['floor'] / rate:4.1f}x the floor's time)")
        print(f"target {TARGET:.0f}, aim {AIM:.0f} requests/s, call log off")
    missed = rates["plain"] < TARGET
    if missed:
        print(f"missed: {rates['plain']:.0f} requests/s, target {TARGET:.0f}", file=sys.stderr)
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
