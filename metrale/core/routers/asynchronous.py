"""The asynchronous router: picks stay on the device, the host reads them a step later (S5 section 10)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from ..io import (
    Decode,
    DecodeFed,
    Device,
    DeviceError,
    EffectFailed,
    ForwardFailed,
    HostLogits,
    Plan,
    Readback,
    ReadbackFailed,
    Ticket,
)
from ..sequence import U32, RowMask, Sequence
from .sync import SyncRouter, commit_context

RING_SLOTS = 3
LEAST_ROWS = 16
POLLS = 2000


@dataclass(slots=True)
class Issued:
    """A step whose ids are on their way to ring slot ``slot``."""

    slot: int
    rows: int
    fed: bool


@dataclass(slots=True)
class LedgerEntry:
    """Blocks reserved for one issued step: (sequence slot, blocks) in the order of reservation."""

    ticket: Ticket
    reserved: list[tuple[int, int]]
    awaited: bool = False


@dataclass(slots=True)
class Counters:
    """Diagnostics of one run."""

    fed_launches: int = 0
    blocks_reserved: int = 0
    rollbacks: int = 0
    blocks_handed_back: int = 0


@dataclass(slots=True)
class Ring:
    """Readback slots, one completion event each. ``rows`` is the width; it grows with the widest step (D29)."""

    events: list[int]
    rows: int
    busy: list[bool] = field(default_factory=lambda: [False] * RING_SLOTS)

    def take(self) -> int:
        """The lowest slot that nobody reads from. Raises ForwardFailed."""
        for slot, busy in enumerate(self.busy):
            if not busy:
                self.busy[slot] = True
                return slot
        raise ForwardFailed(f"readback ring exhausted: {len(self.busy)} steps unread")


class AsyncRouter(SyncRouter):
    """Masked and fed steps are issued and awaited later; everything else is the synchronous router's."""

    max_depth = 2

    def __init__(self, device: Device, max_batch_size: int) -> None:
        if not device.facts.supports_token_feed:
            raise ValueError("the model has no device token feed")
        super().__init__(device)
        events = [device.create_event() for _ in range(RING_SLOTS)]
        self.ring = Ring(events, max(max_batch_size, LEAST_ROWS))
        self.counters = Counters()
        self._in_flight: dict[Ticket, Issued] = {}
        self._pending: list[tuple[int, int]] = []
        self._ledger: list[LedgerEntry] = []

    def launch(self, plan: Plan, seqs: list[Sequence]) -> Ticket:
        """Issue a masked or fed step; a plain one settles at once."""
        if isinstance(plan, DecodeFed):
            self._forward_fed(plan, seqs)
            commit_context(self.device, plan.ctx, seqs, [seq.seq_len for seq in seqs])
            self.counters.fed_launches += 1
            return self._issue(plan.masks, fed=True)
        if plan.readback is not Readback.ARGMAX_MASKED:
            return super().launch(plan, seqs)
        self._forward(plan, seqs)
        commit_context(self.device, plan.ctx, seqs)
        return self._issue(plan.masks or [], fed=False)

    def await_result(self, ticket: Ticket) -> list[int] | HostLogits:
        """Wait for a step's event. Ring slot and ledger are settled whatever the wait says."""
        step = self._in_flight.pop(ticket, None)
        if step is None:
            return super().await_result(ticket)
        failure: DeviceError | None = None
        try:
            self._wait_for(self.ring.events[step.slot])
        except DeviceError as error:
            failure = error
        self.ring.busy[step.slot] = False
        for entry in self._ledger:
            if entry.ticket == ticket:
                entry.awaited = True
        if step.fed:
            with suppress(DeviceError):
                self.device.fed_step_settled()
        if failure is not None:
            raise ReadbackFailed(failure.text, failure) from failure
        return self.device.read_feed(step.slot, step.rows)

    def reserve_kv(self, seq: Sequence) -> int | None:
        """As the synchronous router's, entered for the next issued step."""
        blocks = super().reserve_kv(seq)
        if blocks is not None:
            self._pending.append((seq.slot, blocks))
            self.counters.blocks_reserved += blocks
        return blocks

    def rollback(self, seq: Sequence) -> None:
        """Hand back what the newest step reserved for this sequence, also when that is nothing."""
        blocks = self._withdraw(seq.slot)
        self.counters.rollbacks += 1
        self.counters.blocks_handed_back += blocks
        try:
            self.device.release_decode_blocks(seq, blocks)
        except DeviceError as error:
            raise EffectFailed(error.text, error) from error

    def teardown(self) -> None:
        """The ring's events first."""
        for event in self.ring.events:
            with suppress(DeviceError):
                self.device.destroy_event(event)
        super().teardown()

    def _forward(self, plan: Decode, seqs: list[Sequence]) -> None:
        try:
            self.device.decode_batch(plan.tokens, seqs, 0)
        except DeviceError as error:
            raise ForwardFailed(error.text, error) from error

    def _forward_fed(self, plan: DecodeFed, seqs: list[Sequence]) -> None:
        try:
            self.device.decode_batch_fed(plan.sources, seqs, 0)
        except DeviceError as error:
            raise ForwardFailed(error.text, error) from error

    def _issue(self, masks: list[RowMask], fed: bool) -> Ticket:
        """Picks into the feed cells and a ring slot. A failure frees the slot again (guard H4)."""
        self.ring.rows = max(self.ring.rows, len(masks))
        slot = self.ring.take()
        try:
            self.device.argmax_batch_to_feed(0, masks, slot, self.ring.events[slot], 0)
        except DeviceError as error:
            self.ring.busy[slot] = False
            raise ReadbackFailed(error.text, error) from error
        self._ticket = (self._ticket + 1) & U32
        self._in_flight[self._ticket] = Issued(slot, len(masks), fed)
        self._ledger = [entry for entry in self._ledger if not entry.awaited]
        self._ledger.append(LedgerEntry(self._ticket, self._pending))
        self._pending = []
        return self._ticket

    def _wait_for(self, event: int) -> None:
        for _ in range(POLLS):
            if self.device.event_query(event):
                return
        self.device.event_synchronize(event)

    def _withdraw(self, slot: int) -> int:
        for entry in reversed(self._ledger):
            for pair in entry.reserved:
                if pair[0] == slot:
                    entry.reserved.remove(pair)
                    return pair[1]
        return 0
