"""Telemetry of a simulated run: nobody listens, or every counter is kept (S5 section 2.10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import perf_counter_ns

from metrale.core.io import Telemetry


class Silent:
    """Telemetry that listens to nothing; the base of one that adds a :meth:`snapshot`."""

    enabled = False

    def step_begin(self) -> None:
        """Nobody listens."""

    def phase_begin(self, name: str) -> None:
        """Nobody listens."""

    def phase_end(self, name: str) -> None:
        """Nobody listens."""

    def lane_begin(self, index: int) -> None:
        """Nobody listens."""

    def lane_end(self, index: int) -> None:
        """Nobody listens."""

    def tokens(self, count: int) -> None:
        """Nobody listens."""

    def decode_batch(self, rows: int) -> None:
        """Nobody listens."""

    def draft_width(self, drafts: int) -> None:
        """Nobody listens."""

    def spec_verified(self, drafts: int, accepted: int) -> None:
        """Nobody listens."""

    def request_finished(self, outputs: int) -> None:
        """Nobody listens."""


class Instruments:
    """Counts and times everything, and passes snapshots on to ``inner``. Times are wall-clock nanoseconds from
    ``clock``; they never reach a trace."""

    enabled = True

    def __init__(self, inner: Telemetry, clock: Callable[[], int] = perf_counter_ns) -> None:
        self.inner = inner
        self.clock = clock
        self.ticks = 0
        self.token_tally = 0
        self.finished_requests = 0
        self.finished_output_tokens = 0
        self.decode_rows: Counter[int] = Counter()
        self.draft_widths: Counter[int] = Counter()
        self.verified: Counter[tuple[int, int]] = Counter()
        self.spans: Counter[str] = Counter()
        self.nanoseconds: Counter[str] = Counter()
        self._open: dict[str, int] = {}

    def _begin(self, span: str) -> None:
        self._open[span] = self.clock()

    def _end(self, span: str) -> None:
        self.spans[span] += 1
        self.nanoseconds[span] += self.clock() - self._open.pop(span)

    def step_begin(self) -> None:
        """One more tick."""
        self.ticks += 1

    def phase_begin(self, name: str) -> None:
        """Start a span."""
        self._begin(name)

    def phase_end(self, name: str) -> None:
        """End it."""
        self._end(name)

    def lane_begin(self, index: int) -> None:
        """Start a span."""
        self._begin(f"lane {index}")

    def lane_end(self, index: int) -> None:
        """End it."""
        self._end(f"lane {index}")

    def tokens(self, count: int) -> None:
        """Add to the tally."""
        self.token_tally += count

    def decode_batch(self, rows: int) -> None:
        """One launch."""
        self.decode_rows[rows] += 1

    def draft_width(self, drafts: int) -> None:
        """One speculative step."""
        self.draft_widths[drafts] += 1

    def spec_verified(self, drafts: int, accepted: int) -> None:
        """One window."""
        self.verified[drafts, accepted] += 1

    def request_finished(self, outputs: int) -> None:
        """One request."""
        self.finished_requests += 1
        self.finished_output_tokens += outputs

    def snapshot(self, tick: int, free_blocks: int) -> None:
        """Passed on."""
        self.inner.snapshot(tick, free_blocks)
