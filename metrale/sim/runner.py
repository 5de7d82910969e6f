"""One scenario, one run, one trace."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from metrale.core.config import SchedulerConfig
from metrale.core.driver import drive
from metrale.core.io import Device, DeviceFacts, Router, SchedIo, Telemetry
from metrale.core.routers.sync import SyncRouter
from metrale.core.scheduler import Scheduler, TickPlan
from metrale.trace.recording import RecordingDevice
from metrale.trace.tracing_router import TracingRouter

from .harness import Harness, HarnessError, StandingClock
from .mock import Faults, MockConfig, MockDevice
from .spill_store import FileSpillStore

if TYPE_CHECKING:
    from .scenario import DeviceTable, Scenario, SchedulerTable

MAX_TICKS = 1_000_000
GIB = 1 << 30


@dataclass(slots=True)
class RunResult:
    """What a run left: call lines, client lines, the ticks it took."""

    name: str
    calls: list[str]
    clients: list[str]
    ticks: int

    @property
    def lines(self) -> list[str]:
        """The trace file's lines."""
        return [f"# scenario {self.name}", *self.calls, *self.clients]

    @property
    def text(self) -> str:
        """The trace file: LF line ends, a final newline."""
        return "\n".join(self.lines) + "\n"


class RunError(Exception):
    """A run that cannot end as a run should."""


class BoundedScheduler(Scheduler):
    """A scheduler that may plan only so many ticks: no run spins for ever."""

    max_ticks = MAX_TICKS

    def plan(self) -> TickPlan:
        """Plan one tick, within the bound."""
        if self.state.tick >= self.max_ticks:
            raise RunError(f"the run passed {self.max_ticks} ticks; an earlier arrive_at_tick or a larger limit helps")
        return super().plan()


def run_scenario(
    scenario: Scenario,
    *,
    router: str | None = None,
    log: bool = True,
    max_ticks: int = MAX_TICKS,
    device: Device | None = None,
    wrap: Callable[[Router], Router] | None = None,
    instrument: Callable[[Telemetry], Telemetry] | None = None,
) -> RunResult:
    """Run a scenario to its end.

    ``router`` overrides the scenario's ("sync" or "async"); ``log`` off leaves the call lines out; ``device`` replaces
    the mock; ``wrap`` puts a router between the device router and the tracing one; ``instrument`` wraps the telemetry.
    Raises RunError.
    """
    harness = Harness(scenario)
    lines: list[str] = []
    backend: Device = device or MockDevice(mock_config(scenario.device))
    if log:
        backend = RecordingDevice(backend, lines.append)
    depth = router or scenario.scheduler.router
    stack: Router = device_router(backend, depth, scenario.scheduler.max_batch_size)
    if wrap is not None:
        stack = wrap(stack)
    if log:
        stack = TracingRouter(stack, lines.append)
        harness.write = lines.append
    store = None
    if scenario.scheduler.swap_space_gb > 0:
        store = spill_store(scenario)
    try:
        telemetry: Telemetry = harness if instrument is None else instrument(harness)
        io = SchedIo(stack, harness, StandingClock(), telemetry, store)
        scheduler = BoundedScheduler(io, scheduler_config(scenario.scheduler))
        scheduler.max_ticks = max_ticks
        scheduler.start()
        drive(scheduler)
    except HarnessError as error:
        raise RunError(str(error)) from error
    finally:
        if store is not None:
            store.close()
            shutil.rmtree(store.directory.parent, ignore_errors=True)
    return RunResult(scenario.name, lines, harness.out_lines(), scheduler.state.tick)


def device_router(device: Device, depth: str, max_batch_size: int) -> Router:
    """The router of a run; "async" on a device without a token feed falls back to the synchronous one (D24)."""
    if depth == "async" and device.facts.supports_token_feed:
        from metrale.core.routers.asynchronous import AsyncRouter

        return AsyncRouter(device, max_batch_size)
    return SyncRouter(device)


def spill_store(scenario: Scenario) -> FileSpillStore:
    """A store in a fresh directory; its budget binds only when the scenario sets ``spill_capacity``."""
    capacity = scenario.device.spill_capacity
    directory = Path(tempfile.mkdtemp(prefix="metrale-")) / "spill"
    budget = scenario.scheduler.swap_space_gb * GIB
    return FileSpillStore(directory, budget if capacity is None else capacity, enforce=capacity is not None)


def mock_config(table: DeviceTable) -> MockConfig:
    """The mock device that a scenario describes."""
    exhaust = {call: frozenset(indices) for call, indices in table.exhaust_at.items()}
    exhaust["decode_batch"] = exhaust.get("decode_batch", frozenset()).union(table.kv_exhaust_at)
    return MockConfig(
        facts=DeviceFacts(
            vocab_size=table.vocab,
            block_size=table.block_size,
            total_blocks=table.total_blocks,
            has_proposer=table.has_proposer,
            has_self_speculative=table.has_self_speculative,
            supports_beam=table.supports_beam,
            has_ssm_layers=table.has_ssm_layers,
            ring_slots=table.ring_slots,
            supports_token_feed=table.device_token_feed,
        ),
        held_blocks=table.held_blocks,
        reclaimable=table.reclaimable,
        twophase_ok=table.twophase_ok,
        can_batch_verify=table.can_batch_verify,
        slot_draft_capacity=table.slot_draft_capacity,
        event_lag=table.event_lag,
        reversed_completion=table.reversed_completion,
        faults=Faults(
            exhaust_at=exhaust,
            fatal_at=frozenset(table.fatal_at),
            lost_at=frozenset(table.device_lost_at),
            save_at=frozenset(table.spill_fail_at),
            restore_at=frozenset(table.restore_fail_at),
            event_query_at=table.event_query_fault_at,
        ),
    )


def scheduler_config(table: SchedulerTable) -> SchedulerConfig:
    """The knobs that a scenario sets."""
    return SchedulerConfig(
        max_batch_size=table.max_batch_size,
        max_prefill_tokens=table.max_prefill_tokens,
        max_batch_tokens=table.max_batch_tokens,
        max_seq_len=table.max_seq_len,
        use_speculative=table.use_speculative,
        num_drafts=table.num_drafts,
        dflash=table.dflash,
        self_speculative=table.self_speculative,
        ngram_speculative=table.ngram_speculative,
        dflash_unified_ctx=table.dflash_unified_ctx,
        dflash_serial_append=table.dflash_serial_append,
        policy=table.policy,
        slai_deadline_ns=table.slai_deadline_ms * 1_000_000,
        loop_watchdog=table.loop_watchdog,
        boundary_tokens=frozenset(table.boundary_tokens),
        think_start_token=table.think_start_token,
        think_end_token=table.think_end_token,
        deadline_scope_all=table.deadline_scope == "all",
    )
