"""Everything one run of the scheduler knows, and nothing that does anything."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .config import Modes, SchedulerConfig, modes_for
from .io import Device, Rotation, Router, SchedIo
from .policy import Policy, policy_for
from .request import Request
from .row import Prefill, Requeued, Row, Spilled
from .speculative.rung import RungController

if TYPE_CHECKING:
    from .decode.pipeline import Flight


@dataclass(slots=True)
class State:
    """Lists are in the order the specification names; ``owners`` maps a live request id to its owner (D18).

    ``keep_overrun`` is a planted fault for the negative control of the depth-2 lane: over-runs are then not discarded.
    """

    io: SchedIo
    config: SchedulerConfig
    device: Device
    router: Router
    modes: Modes
    policy: Policy
    rung: RungController
    pending: list[Request] = field(default_factory=list)
    rotations: list[Rotation] = field(default_factory=list)
    unseen: int = 0
    closed: bool = False
    active: list[Row] = field(default_factory=list)
    prefilling: list[Prefill] = field(default_factory=list)
    spilled: list[Spilled] = field(default_factory=list)
    requeued: list[Requeued] = field(default_factory=list)
    owners: dict[int, Request] = field(default_factory=dict)
    tick: int = 0
    prefill_stream: int = 1
    prefill_event: int = 2
    mixed_done: bool = False
    speculated: bool = False
    device_lost: bool = False
    last_free: int = 0
    finished_tokens: int = 0
    flight: Flight | None = None
    keep_overrun: bool = False

    @property
    def accounted_tokens(self) -> int:
        """Output tokens of all held rows and of all finished requests (S5 section 2.10)."""
        held = [*self.active, *(entry.row for entry in self.requeued), *(image.row for image in self.spilled)]
        return self.finished_tokens + sum(len(row.outputs) for row in held)

    @property
    def idle_inbox(self) -> bool:
        """Nothing queued and not closed (S1 section 7)."""
        return not (self.pending or self.rotations or self.closed)

    @property
    def parked(self) -> bool:
        """Whether spilled or requeued work waits."""
        return bool(self.spilled or self.requeued)

    @property
    def running(self) -> bool:
        """Whether anything is active or prefilling."""
        return bool(self.active or self.prefilling)


def new_state(io: SchedIo, config: SchedulerConfig) -> State:
    """The state before start-up."""
    return State(
        io=io,
        config=config,
        device=io.router.device,
        router=io.router,
        modes=modes_for(config, io.router.device.facts),
        policy=policy_for(config),
        rung=RungController(),
    )
