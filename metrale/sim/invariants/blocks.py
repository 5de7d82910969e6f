"""KV blocks (S1 section 2, S6 sections 3.1 and 9)."""

from __future__ import annotations

from metrale.trace import records as r

from .base import Invariant, Violation, on
from .ghost import Ghost, Seq


class Blocks(Invariant):
    """See ``sentence``."""

    name = "blocks"
    sentence = (
        "Blocks are conserved: every printed count is the pool less what live sequences hold, "
        "length // block size + 1 each, and all of them come back."
    )

    def __init__(self, ghost: Ghost) -> None:
        super().__init__(ghost)
        self.shortages: list[Violation] = []

    @on(r.NumFreeBlocks)
    def free_blocks(self, rec: r.NumFreeBlocks) -> None:
        pool = self.g.pool
        free = rec.result
        if pool.total is None:
            return
        if pool.blind:
            pool.believe(free)
            return
        if pool.total - pool.used_low == free == pool.total - pool.used_high:
            return
        fewest, most = pool.free_range()
        if free == fewest == most:
            return
        if fewest <= free <= most and pool.low < pool.high and pool.learn_free(free):
            return
        expected = str(most) if fewest == most else f"{fewest} to {most}"
        holders = ", ".join(f"s{seq.hash}@{seq.slot}: {seq.low}" for seq in pool.holders.values()) or "nobody"
        message = f"{free} blocks are free, but {expected} should be: of {pool.total} are held by {holders}"
        if free < fewest:
            self._short(message)
        else:
            self.fail(message)

    def _short(self, message: str) -> None:
        """Fewer free blocks than that: a prefix cache may hold them, which the client lines tell (``cached=``)."""
        before = len(self.g.violations)
        self.fail(message)
        self.shortages += self.g.violations[before:]

    @on(r.FreeSequence)
    def freed(self, rec: r.FreeSequence) -> None:
        seq = self.g.at(rec.seq)
        if seq is not None:
            self._holds(seq, rec.blocks)

    @on(r.SaveSequenceState)
    def saved(self, rec: r.SaveSequenceState) -> None:
        seq = self.g.at(rec.seq)
        if seq is not None and rec.error is None:
            self._holds(seq, rec.blocks)

    def _holds(self, seq: Seq, blocks: int) -> None:
        pool = self.g.pool
        if seq.low == seq.high:
            if blocks == seq.low:
                return
        elif pool.learn_blocks(seq, blocks):
            return
        held = str(seq.low) if seq.low == seq.high else f"{seq.high} to {seq.low}"
        longest = f" ({max(seq.peak, seq.length)} tokens at most)"
        self.fail(f"s{seq.hash}@{seq.slot} holds {held} blocks{longest}, the call says {blocks}", seq.born)

    @on(r.ReclaimPrefixBlocks)
    def reclaimed(self, rec: r.ReclaimPrefixBlocks) -> None:
        if rec.result > rec.n:
            self.fail(f"{rec.n} blocks are asked back, {rec.result} come")

    @on(r.ReserveDecodeBlock)
    def reserved(self, rec: r.ReserveDecodeBlock) -> None:
        pool, seq = self.g.pool, self.g.at(rec.seq)
        if seq is None or rec.result is None:
            return
        if pool.low != pool.high:
            self._reserved_some(seq, rec)
            return
        added = max(0, (rec.seq.length + 1) // pool.low + 1 - seq.low)
        if rec.result != added:
            self.fail(f"the position after {rec.seq.length} needs {added} more blocks, {rec.result} are reserved")

    def _reserved_some(self, seq: Seq, rec: r.ReserveDecodeBlock) -> None:
        """The block size is not known yet: a block is added only where one may begin."""
        pool, position = self.g.pool, rec.seq.length + 1
        begins = any(position % size == 0 for size in range(pool.low, min(pool.high, position) + 1))
        if rec.result and not (rec.result == 1 and begins):
            self.fail(f"no block begins at position {position}, but {rec.result} are reserved")

    @on(r.ReleaseDecodeBlocks)
    def handed_back(self, rec: r.ReleaseDecodeBlocks) -> None:
        seq = self.g.at(rec.seq)
        if seq is not None and rec.n != (seq.reserved or 0):
            self.fail(f"{seq.reserved or 0} blocks were reserved for the discarded row, {rec.n} go back")

    def finish(self) -> None:
        cached = any(getattr(event, "cached", 0) for _, out in self.g.outs for event in out.events)
        if cached and self.shortages:
            self.g.violations[:] = [found for found in self.g.violations if found not in self.shortages]
