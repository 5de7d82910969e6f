"""One run of the scheduler: start-up, ticks, end (S1 sections 5, 6, 21)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

from .admission import absorb, drain, gate
from .clients import answer_error
from .config import SchedulerConfig
from .decode.lane import decode_lane
from .decode.pipeline import drain_flight
from .io import EffectFailed, SchedIo, Wait
from .parking import bring_back, discard, end_waiting, give_up_parked, spill_for
from .prefill.advance import continue_prefills
from .prefill.start import start_prefills
from .request import Request
from .retire import apply_marks, compact, finish, free_directly, retire, rows_to_compact, send_error, sweep
from .state import State, new_state

DEVICE_LOST = "server shutting down: device lost"
NEVER_STARTED = "server shut down before this request started"


class Lane(Enum):
    """The lanes of a tick, in the order in which they run."""

    START_PREFILLS = 0
    CONTINUE_PREFILLS = 1
    DECODE = 2


class Flow(Enum):
    """What a lane says about the rest of its tick."""

    PROCEED = 0
    SKIP_REST = 1


@dataclass(slots=True)
class TickPlan:
    """What one tick does: requests to start, lanes to run, or the end of the run."""

    new_requests: list[Request] = field(default_factory=list)
    lanes: tuple[Lane, ...] = (Lane.START_PREFILLS, Lane.CONTINUE_PREFILLS, Lane.DECODE)
    shutdown: bool = False


class Scheduler:
    """The core of :func:`drive`. Owns every decision; reaches the world through ``io`` alone."""

    def __init__(self, io: SchedIo, config: SchedulerConfig) -> None:
        self.state = new_state(io, config)

    def start(self) -> None:
        """Start-up calls (S1 section 5)."""
        s = self.state
        s.device.bind_gpu_to_thread()
        s.prefill_stream = s.device.create_stream()
        s.prefill_event = s.device.create_event()

    def plan(self) -> TickPlan:
        """Plan one tick: drain, gate, settle, snapshot, rotation, idle test, admission-time spill."""
        s = self.state
        s.tick += 1
        if s.io.telemetry.enabled:
            s.io.telemetry.step_begin()
        if s.device_lost:
            return self._plan_after_loss()
        admitted = gate(s, _timed_drain(s))
        if s.flight is not None and (admitted or s.prefilling or s.parked):
            drain_flight(s)
            retire(s)
            if s.device_lost:
                s.pending[:0] = admitted
                return self._plan_after_loss()
        end_waiting(s)
        s.io.telemetry.snapshot(s.tick, s.device.num_free_blocks())
        _rotate_if_quiescent(s, admitted)
        if not (admitted or s.running):
            absorb(s, s.io.inbox.receive(Wait.NO_WAIT))
            if s.closed:
                return TickPlan(shutdown=True)
        spill_for(s, admitted)
        return TickPlan(admitted)

    def execute(self, lane: Lane, plan: TickPlan) -> Flow:
        """Run one lane."""
        telemetry = self.state.io.telemetry
        if not telemetry.enabled:
            return self._execute(lane, plan)
        before = self.state.accounted_tokens
        telemetry.lane_begin(lane.value)
        flow = self._execute(lane, plan)
        telemetry.lane_end(lane.value)
        telemetry.tokens(max(0, self.state.accounted_tokens - before))
        return flow

    def _execute(self, lane: Lane, plan: TickPlan) -> Flow:
        s = self.state
        if lane is Lane.START_PREFILLS:
            start_prefills(s, plan.new_requests)
        elif lane is Lane.CONTINUE_PREFILLS:
            s.mixed_done = continue_prefills(s)
            if not s.active:
                return self._try_parked(plan)
        else:
            s.speculated = False
            decode_lane(s)
        return Flow.PROCEED

    def end_tick(self) -> None:
        """Sweep, settle, retire, compact, bring parked work back (S1 section 17)."""
        s = self.state
        marks = sweep(s)
        if s.flight is not None and (marks or any(row.finished for row in s.active) or rows_to_compact(s)):
            drain_flight(s)
        apply_marks(marks)
        retire(s)
        compact(s)
        if s.parked and not s.device_lost:
            bring_back(s)

    def finish(self) -> None:
        """The end sequence (S1 section 21)."""
        s = self.state
        drain_flight(s)
        rows, s.active = s.active, []
        for row in rows:
            finish(s, row)
        for entry in s.requeued:
            answer_error(s, entry.row.request, "server shutting down before preempted resume")
        for prefill in s.prefilling:
            answer_error(s, prefill.request, "server shut down during prefill")
            free_directly(s, prefill.seq)
        for image in s.spilled:
            answer_error(s, image.row.request, "server shut down while this request was swapped out to disk")
            discard(s, image.file_id)
        for request in s.pending + s.io.inbox.close():
            answer_error(s, request, DEVICE_LOST if s.device_lost else NEVER_STARTED)
        s.requeued, s.prefilling, s.spilled, s.pending = [], [], [], []
        s.router.ep_shutdown()
        for stream in (0, s.prefill_stream):
            with suppress(EffectFailed):
                s.router.quiesce(stream)
        with suppress(EffectFailed):
            s.router.teardown()

    def _try_parked(self, plan: TickPlan) -> Flow:
        """Nothing active after the prefill lanes: parked work comes back here, or ends when nothing can differ."""
        s = self.state
        if s.parked:
            waiting = len(s.spilled) + len(s.requeued)
            bring_back(s)
            moved = len(s.spilled) + len(s.requeued) != waiting
            stuck = not (moved or plan.new_requests or s.running or s.io.inbox.arrivals_ahead())
            if s.parked and stuck:
                give_up_parked(s)
        return Flow.PROCEED if s.active else Flow.SKIP_REST

    def _plan_after_loss(self) -> TickPlan:
        """The device is gone: everyone who waits is told, nothing more is launched (D32)."""
        s = self.state
        absorb(s, s.io.inbox.receive(Wait.NO_WAIT))
        for prefill in s.prefilling:
            answer_error(s, prefill.request, DEVICE_LOST)
            free_directly(s, prefill.seq)
        for image in s.spilled:
            answer_error(s, image.row.request, DEVICE_LOST)
            discard(s, image.file_id)
        for entry in s.requeued:
            answer_error(s, entry.row.request, DEVICE_LOST)
        for request in s.pending:
            answer_error(s, request, DEVICE_LOST)
        rows, s.active = s.active, []
        for row in rows:
            send_error(s, row, DEVICE_LOST)
        s.prefilling, s.spilled, s.requeued, s.pending = [], [], [], []
        s.io.telemetry.snapshot(s.tick, s.device.num_free_blocks())
        return TickPlan(shutdown=True)


def _timed_drain(s: State) -> list[Request]:
    telemetry = s.io.telemetry
    if not telemetry.enabled:
        return drain(s)
    telemetry.phase_begin("drain")
    candidates = drain(s)
    telemetry.phase_end("drain")
    return candidates


def _rotate_if_quiescent(s: State, admitted: list[Request]) -> None:
    """Apply every queued LoRA command, in order, once nothing is running, admitted or parked (S1 section 10)."""
    if not s.rotations or admitted or s.running or s.parked:
        return
    rotations, s.rotations = s.rotations, []
    for rotation in rotations:
        try:
            s.router.rotate_lora(rotation.name)
        except EffectFailed as error:
            rotation.ack.failed(error.text)
        else:
            rotation.ack.done()
