"""The mock device's token feed: fed decodes, feed cells, events that complete late or backwards (S5 section 12)."""

from __future__ import annotations

from metrale.core.io import DeviceFault, KvExhausted
from metrale.core.sequence import NO_ID, RowMask, Sequence, blocks_for

from .books import BlockBook
from .script import MockConfig, Script

FIRST_EVENT = 2


class FeedMixin:
    """Feed cells and completion events."""

    config: MockConfig
    blocks: BlockBook
    rows: list[int]

    def _init_feed(self) -> None:
        self._cells: list[int] = []
        self._buffers: dict[int, list[int]] = {}
        self._next_event = FIRST_EVENT
        self._pending: list[list[int]] = []
        self._queries = 0

    def _cancel_hook(self, seq: Sequence) -> None:
        raise NotImplementedError

    def create_event(self) -> int:
        """Numbers from 2 on."""
        self._next_event += 1
        return self._next_event - 1

    def decode_batch_fed(self, sources: list[int], seqs: list[Sequence], stream: int) -> None:
        """Blocks and answers as of a decode; tokens and lengths stay."""
        self.config.faults.meet("decode_batch")
        block_size = self.config.facts.block_size
        rows = []
        for seq in seqs:
            script: Script = seq.state
            self._cancel_hook(seq)
            self.blocks.grow(seq, blocks_for(seq.seq_len + 1, block_size))
            rows.append(script.after(seq.seq_len))
        self.rows = rows

    def argmax_batch_to_feed(self, row: int, masks: list[RowMask], buffer: int, event: int, stream: int) -> None:
        """Scripted tokens, or the highest unmasked id where a mask hits; the event goes to the end of the line."""
        ids = [self._masked(self.rows[row + index], mask) for index, mask in enumerate(masks)]
        self._cells = ids
        self._buffers[buffer] = list(ids)
        self._pending = [entry for entry in self._pending if entry[0] != event]
        self._pending.append([event, 0])

    def _masked(self, token: int, mask: RowMask) -> int:
        if token == NO_ID or token not in mask:
            return token
        return next(i for i in range(self.config.facts.vocab_size - 1, -1, -1) if i not in mask)

    def feed_cells(self, count: int) -> list[int]:
        """The cells as the latest step left them."""
        return self._cells[:count]

    def read_feed(self, buffer: int, count: int) -> list[int]:
        """The ids that the step copied out."""
        return self._buffers[buffer][:count]

    def reserve_decode_block(self, seq: Sequence) -> int:
        """Room for the next position; a dry pool changes nothing."""
        blocks = blocks_for(seq.seq_len + 1, self.config.facts.block_size)
        if blocks > seq.num_blocks and self.blocks.free == 0:
            raise KvExhausted("KV cache exhausted (no block to reserve)", "exhausted")
        return self.blocks.grow(seq, blocks)

    def release_decode_blocks(self, seq: Sequence, count: int) -> None:
        """Back to the pool."""
        self.blocks.give_back(seq, count)

    def fed_step_settled(self) -> None:
        """No captured graphs."""

    def event_query(self, event: int) -> bool:
        """True at once unless the event is pending; then after ``event_lag`` queries, or, reversed, once no later
        event is pending."""
        self._queries += 1
        if self._queries == self.config.faults.event_query_at:
            raise DeviceFault("scripted device fault", "scripted device fault")
        at = next((i for i, entry in enumerate(self._pending) if entry[0] == event), None)
        if at is None:
            return True
        self._pending[at][1] += 1
        if self.config.reversed_completion and at < len(self._pending) - 1:
            return False
        if self._pending[at][1] <= self.config.event_lag:
            return False
        del self._pending[at]
        return True

    def event_synchronize(self, event: int) -> None:
        """Completes the event and all recorded before it."""
        at = next((i for i, entry in enumerate(self._pending) if entry[0] == event), None)
        if at is not None:
            del self._pending[: at + 1]

    def destroy_event(self, event: int) -> None:
        """Forget it."""
        self._pending = [entry for entry in self._pending if entry[0] != event]
