"""How many drafts a batch width deserves: the static ladder and the adaptive rung above it (S4 sections 7.1 and 7.2).

Shares are kept as whole numbers in units of 2**-32, so that no float decides how wide a step is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

LADDER = ((4, 3), (8, 3), (16, 1), (32, 1))
"""(widest batch, drafts) steps; a wider batch takes the last."""

ADAPTIVE_WIDTHS = range(9, 17)
BUCKET_RECORDS = 128
FLUSH_WITHIN_NS = 5 * 1_000_000_000
PROBE_INTERVAL = 2048

ONE = 1 << 32
ENTER = 132 * ONE // 100
LEAVE = 130 * ONE // 100
P1_TRIGGER = 8 * ONE // 100
ALPHA = (1, 2)
ALPHA_SLOW = (3, 20)


def ladder(active: int, num_drafts: int) -> int:
    """Drafts for ``active`` sequences, in 1..num_drafts."""
    drafts = next((drafts for width, drafts in LADDER if active <= width), LADDER[-1][1])
    return max(1, min(drafts, num_drafts))


@dataclass(slots=True)
class Bucket:
    """Verify records of one batch width, until there are enough to learn from."""

    since: int
    count: int = 0
    first_hits: int = 0
    accepted: int = 0
    deepest: int = 0


@dataclass(slots=True)
class RungController:
    """Learns from verify outcomes whether a second draft pays at 9 to 16 sequences; until it knows, it tries."""

    p1: int | None = None
    p1_slow: int | None = None
    p2: int | None = None
    at_depth: bool = False
    flushes: int = 0
    last_probe: int = 0
    p1_at_decision: int = 0
    buckets: dict[int, Bucket] = field(default_factory=dict)

    def width(self, active: int, num_drafts: int) -> int:
        """Drafts per sequence for this step."""
        base = ladder(active, num_drafts)
        if active not in ADAPTIVE_WIDTHS or num_drafts < 2 or not self._two_drafts():
            return base
        return max(base, min(2, num_drafts))

    def _two_drafts(self) -> bool:
        return (
            self.at_depth
            or self.p2 is None
            or (self.p1_slow or 0) - self.p1_at_decision >= P1_TRIGGER
            or self.flushes - self.last_probe >= PROBE_INTERVAL
        )

    def record(self, batch: int, drafts: int, accepted: int, now: int) -> None:
        """One verified sequence: batch size of its call, drafts verified, drafts accepted; ``now`` in nanoseconds.

        Only the adaptive widths ever count, so nothing is kept of the others.
        """
        if batch not in ADAPTIVE_WIDTHS:
            return
        bucket = self.buckets.get(batch)
        if bucket is None:
            bucket = self.buckets[batch] = Bucket(since=now)
        bucket.count += 1
        bucket.first_hits += accepted > 0
        bucket.accepted += accepted
        bucket.deepest = max(bucket.deepest, drafts)
        if bucket.count >= BUCKET_RECORDS:
            del self.buckets[batch]
            if now - bucket.since <= FLUSH_WITHIN_NS:
                self._learn(bucket)

    def _learn(self, bucket: Bucket) -> None:
        share = bucket.first_hits * ONE // bucket.count
        self.p1 = _average(self.p1, share, ALPHA)
        self.p1_slow = _average(self.p1_slow, share, ALPHA_SLOW)
        self.flushes += 1
        if bucket.deepest < 2:
            return
        self.last_probe = self.flushes
        self.p1_at_decision = self.p1_slow
        if share > 0:
            mean = bucket.accepted * ONE // bucket.count
            sample = min(ONE, max(0, (mean - share) * ONE // share))
            self.p2 = _average(self.p2, sample, ALPHA)
            ratio = ONE
            if self.p1 > 0:
                ratio += self.p1 * self.p2 // (ONE + self.p1)
            self.at_depth = ratio >= (LEAVE if self.at_depth else ENTER)


def _average(old: int | None, new: int, alpha: tuple[int, int]) -> int:
    """alpha * new + (1 - alpha) * old; the first sample seeds."""
    if old is None:
        return new
    up, down = alpha
    return (up * new + (down - up) * old) // down
