"""The driver loop: the same for every router and device (S5 section 3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from .scheduler import Flow


class Plan(Protocol):
    """What the driver reads of a plan."""

    @property
    def lanes(self) -> Iterable[Any]:
        """Lanes in order."""

    @property
    def shutdown(self) -> bool:
        """Whether the run ends instead; the plan's lanes are then not run."""


class Core(Protocol):
    """What the driver asks of a scheduler core."""

    def plan(self) -> Any:
        """Plan one tick."""

    def execute(self, lane: Any, plan: Any) -> Flow:
        """Run one lane of a plan."""

    def end_tick(self) -> None:
        """After the last lane of a tick."""

    def finish(self) -> None:
        """Once, after the last tick."""


def drive(core: Core) -> None:
    """Tick until a plan says shutdown. A lane that answers SKIP_REST ends its tick, the end-of-tick phase included."""
    while not (plan := core.plan()).shutdown:
        for lane in plan.lanes:
            if core.execute(lane, plan) is Flow.SKIP_REST:
                break
        else:
            core.end_tick()
    core.finish()
