"""The engine behind :class:`metrale.core.io.device.Device`: logits, feed, adapters, streams; the rest is inherited."""

from __future__ import annotations

import torch

from metrale.core.io import DeviceFault, KvExhausted
from metrale.core.sequence import RowMask, Sequence

from ..kernels import dispatch
from ..kernels.transfer import send
from .drafting import Drafting
from .forwards import Forwards
from .lifecycle import Lifecycle
from .recurrent import Recurrent
from .state import state_of
from .streams import DEFAULT
from .verify import Verify

LOGIT_BYTES = 2


class EngineDevice(Lifecycle, Forwards, Recurrent, Verify, Drafting):
    """One model on one device. All calls come from one thread."""

    # -- logits (S6 3.3)

    def argmax_on_device(self, row: int, stream: int) -> int:
        """Lowest index of the maximum."""
        return self.argmax_batch(row, 1, stream)[0]

    def argmax_batch(self, row: int, count: int, stream: int) -> list[int]:
        """The same for several rows; in a forced run a token that has no logit is answered all the same."""
        picks = self.k.argmax(self.logits[row : row + count]).tolist()
        return [self._outside(row + i, pick) for i, pick in enumerate(picks)]

    def _outside(self, row: int, pick: int) -> int:
        token = self.forced.get(row, pick)
        return token if token >= self.config.vocab_size else pick

    def copy_logits_to_host(self, row: int, offset: int, nbytes: int) -> bytes:
        """bf16, little-endian, round to nearest even."""
        width = LOGIT_BYTES * self.config.vocab_size
        rows = (offset + nbytes + width - 1) // width
        block = self.logits[row : row + rows].to(torch.bfloat16).contiguous().cpu()
        data = block.view(torch.int16).numpy().astype("<i2").tobytes()
        return data[offset : offset + nbytes]

    # -- device token feed (S6 3.11)

    def decode_batch_fed(self, sources: list[int], seqs: list[Sequence], stream: int) -> None:
        """Inputs from the feed cells; tokens and lengths stay."""
        if self.config.linear is not None:
            raise DeviceFault("a model with recurrent state cannot take fed steps back")
        self.take_blocks([self.blocks_before(seq, 1) for seq in seqs])
        rows = []
        forced: dict[int, int] = {}
        for i, (seq, source) in enumerate(zip(seqs, sources, strict=True)):
            row = self.rows_of(seq, [0], seq.seq_len)[0]
            row.token, row.fed = source, True
            row.logits = row.hidden = i
            if self.picks is not None:
                forced[i] = self.picks.after(seq, seq.seq_len)
            rows.append(row)
        self.launch(DEFAULT, seqs, rows, forced)
        for seq in seqs:
            self._one_ahead(seq, seq.seq_len + 1)

    def argmax_batch_to_feed(self, row: int, masks: list[RowMask], buffer: int, event: int, stream: int) -> None:
        """Masked picks to the cells and to a readback buffer."""
        count = len(masks)
        on_device = send([list(mask) for mask in masks], self.on)
        picks = dispatch.picks_to_feed(self.k, self.logits[row : row + count], on_device, self.cells)
        for i in range(count):
            token = self._outside(row + i, -1)
            if token >= self.config.vocab_size:
                picks[i] = self.cells[i] = token
        if buffer not in self.buffers or len(self.buffers[buffer]) < count:
            self.buffers[buffer] = torch.empty(count, dtype=torch.int64, pin_memory=self.on.type == "cuda")
        self.buffers[buffer][:count].copy_(picks, non_blocking=True)
        self.streams.record(event, DEFAULT)

    def feed_cells(self, count: int) -> list[int]:
        """The cells as they stand."""
        return self.cells[:count].tolist()

    def read_feed(self, buffer: int, count: int) -> list[int]:
        """Ids of a finished step."""
        return self.buffers[buffer][:count].tolist()

    def reserve_decode_block(self, seq: Sequence) -> int:
        """Room for the next position and the one after a full boundary (S6 section 9)."""
        missing = (seq.seq_len + 1) // self.options.block_size + 1 - len(state_of(seq).blocks)
        if missing <= 0:
            return 0
        try:
            self._extend(seq, self.pool.take(missing))
        except KvExhausted as error:
            raise KvExhausted(error.text, "exhausted") from error
        return missing

    def release_decode_blocks(self, seq: Sequence, count: int) -> None:
        """Back to the pool."""
        self.drop_blocks(seq, count)

    def fed_step_settled(self) -> None:
        """No captured graphs."""

    # -- adapters, expert parallelism (S6 3.8, 6)

    def adapter_id_for(self, adapter_slot: int) -> int:
        """0 for the base model."""
        return self.adapters.identity(adapter_slot)

    def acquire_adapter_slot(self, adapter_slot: int) -> int:
        """A reference that the free gives back."""
        return self.adapters.acquire(adapter_slot)

    def set_active_lora(self, name: str) -> None:
        """A resident adapter becomes the one that -1 means."""
        self.adapters.activate(name)

    def ep_broadcast_cmd_for_seq(self, seq: int, cmd: int) -> None:
        """One rank."""

    def ep_broadcast_cmd(self, cmd: int) -> None:
        """One rank."""

    def ep_broadcast_tokens(self, tokens: list[int]) -> None:
        """One rank."""

    def ep_sync_vision_embeds(self, tokens: list[int]) -> None:
        """One rank."""

    # -- streams and events (S6 3.10)

    def create_stream(self) -> int:
        """The prefill stream."""
        return 1

    def create_event(self) -> int:
        """Numbers from 2 on."""
        return self.streams.create_event()

    def record_event(self, event: int, stream: int) -> None:
        """Mark the end of a stream."""
        self.streams.record(event, stream)

    def stream_wait_event(self, stream: int, event: int) -> None:
        """Later work of the stream waits for the mark as it is now."""
        self.streams.wait_event(stream, event)

    def synchronize(self, stream: int) -> None:
        """The host waits for a stream."""
        self.streams.synchronize(stream)

    def event_query(self, event: int) -> bool:
        """Whether everything before the event has run."""
        return self.streams.query(event)

    def event_synchronize(self, event: int) -> None:
        """The host waits for an event."""
        self.streams.host_wait_event(event)

    def destroy_event(self, event: int) -> None:
        """Forget it."""
        self.streams.destroy_event(event)
