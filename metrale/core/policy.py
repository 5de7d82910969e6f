"""Admission policies: whether to prefill now, and whom first (S1 section 7, S2 section 13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from .config import SchedulerConfig

if TYPE_CHECKING:
    from .row import Row


class Policy(Protocol):
    """Two questions per tick; times in clock nanoseconds."""

    def should_prefill(self, now: int, active: list[Row]) -> bool:
        """Whether new requests and prefill chunks may run beside ``active``."""

    def select(self, prompt_lengths: list[int], cap: int) -> list[int]:
        """At most ``cap`` queue indices, in the order in which the requests start."""


class Fifo:
    """First come, first served."""

    def should_prefill(self, now: int, active: list[Row]) -> bool:
        """Always."""
        return True

    def select(self, prompt_lengths: list[int], cap: int) -> list[int]:
        """The front of the queue."""
        return list(range(min(len(prompt_lengths), cap)))


class Slai:
    """Holds prefills back when a decoding row nears its deadline; admits the queue head, then the shortest prompts."""

    def __init__(self, deadline: int) -> None:
        self.deadline = deadline

    def should_prefill(self, now: int, active: list[Row]) -> bool:
        """False once some row's last token is at least 0.8 deadlines old."""
        return not any(10 * (now - row.last_token_time) >= 8 * self.deadline for row in active)

    def select(self, prompt_lengths: list[int], cap: int) -> list[int]:
        """Index 0 (it cannot starve), then by prompt length, equal lengths in queue order."""
        if cap <= 0 or not prompt_lengths:
            return []
        rest = sorted(range(1, len(prompt_lengths)), key=prompt_lengths.__getitem__)
        return [0, *rest[: cap - 1]]


def policy_for(config: SchedulerConfig) -> Policy:
    """The policy that a configuration names."""
    return Slai(config.slai_deadline_ns) if config.policy == "slai" else Fifo()
