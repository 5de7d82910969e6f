"""Sequences, slots, blocks, spill images, the prefix cache's ends of life (S6 section 3.1)."""

from __future__ import annotations

from typing import BinaryIO

import torch

from metrale.core.io import DeviceFault
from metrale.core.request import Request
from metrale.core.sequence import NO_SLOT, Sequence

from .core import EngineCore
from .state import EngineState, state_of
from .streams import DEFAULT, PREFILL, SECONDARY


class Lifecycle(EngineCore):
    """Every sequence has a private physical slot from birth to free; ``slot`` is a label that may move."""

    def bind_gpu_to_thread(self) -> None:
        """Make the GPU current on the calling thread; the CPU needs no binding."""
        if self.on.type == "cuda":
            torch.cuda.set_device(self.on)

    def alloc_sequence(self, request: Request) -> Sequence:
        """Zeroed recurrent state, empty tables, the smallest free label. Raises SlotsExhausted."""
        slot = self.slots.take()
        state = EngineState(slot)
        if self.head is not None:
            state.draft = self.head.new_memory(slot)

        def work() -> None:
            self.memory.h[slot] = 0.0
            self.memory.conv[slot] = 0.0

        self.streams.run(DEFAULT, work)
        seq = Sequence(slot=self.labels.take(), request=request, state=state)
        self.labels.assign(seq.slot, seq)
        self.live.append(seq)
        return seq

    def alloc_sequence_for(self, request: Request, budget: int) -> Sequence:
        """The budget sizes nothing here: the pools stand from the start."""
        return self.alloc_sequence(request)

    def cache_sequence(self, seq: Sequence) -> None:
        """Whole blocks of the fed tokens, and a snapshot where the recurrent state has absorbed exactly them."""
        if self.cache is None or not isinstance(seq.state, EngineState):
            return
        state = state_of(seq)
        request = seq.request
        if seq.seq_len < self.options.block_size or not state.blocks or (request is not None and request.vision_pads):
            return
        if self.cache.recurrent and state.rec != seq.seq_len:
            return
        self.cache.insert(seq.adapter_id, seq.tokens, state.blocks, state.prefill or self.streams.end_of(DEFAULT))
        self.remember(seq, list(seq.tokens), DEFAULT)

    def free_sequence(self, seq: Sequence) -> None:
        """Label, adapter reference, prefix holds, blocks, drafter, slot; a second free finds nothing to do."""
        state = seq.state
        if not isinstance(state, EngineState):
            return
        self.streams.wait(DEFAULT, state.secondary, "free-after-secondary")
        self.streams.wait(DEFAULT, state.prefill, "free-after-prefill")
        self.labels.release(seq)
        self.adapters.release(seq.acquired_adapter)
        seq.acquired_adapter = -1
        if state.match is not None and self.cache is not None:
            self.cache.let_go(state.match)
        self.drop_blocks(seq, len(state.blocks))
        self.slots.release(state.slot)
        self.live.remove(seq)
        seq.state = None

    def compact_sequence(self, seq: Sequence, new_slot: int) -> None:
        """A label moves; memory does not."""
        self.labels.move(seq, new_slot)

    def detach_slot_for_reuse(self, seq: Sequence) -> None:
        """The label goes back unless another sequence has taken it; the state stays readable."""
        self.labels.release(seq)
        seq.slot = NO_SLOT

    # -- spill images

    def save_sequence_state(self, seq: Sequence, writer: BinaryIO) -> None:
        """For each block in table order, each attention layer: K bytes, V bytes; then each recurrent layer: h, conv."""
        state = state_of(seq)
        if self.config.linear is not None and state.rec != seq.seq_len:
            raise DeviceFault(
                f"the recurrent state has absorbed {state.rec} of {seq.seq_len} tokens", "state not whole"
            )
        self.wait_for_copies(state, "image")
        for block in state.blocks:
            for keys, values in zip(self.memory.keys, self.memory.values, strict=True):
                writer.write(_bytes_of(keys[block]))
                writer.write(_bytes_of(values[block]))
        for layer in range(len(self.config.linear_layers)):
            writer.write(_bytes_of(self.memory.h[state.slot, layer]))
            writer.write(_bytes_of(self.memory.conv[state.slot, layer]))

    def restore_sequence_state(self, seq: Sequence, num_blocks: int, reader: BinaryIO) -> None:
        """Exactly ``num_blocks`` blocks, filled from an image of exactly their size."""
        state = state_of(seq)
        self.take_blocks([(seq, num_blocks)])
        for block in state.blocks:
            for keys, values in zip(self.memory.keys, self.memory.values, strict=True):
                _fill(keys[block], reader)
                _fill(values[block], reader)
        for layer in range(len(self.config.linear_layers)):
            _fill(self.memory.h[state.slot, layer], reader)
            _fill(self.memory.conv[state.slot, layer], reader)
        if reader.read(1):
            raise DeviceFault("the spill image is longer than this sequence's state", "bad image")
        state.history_from = num_blocks * self.options.block_size

    # -- pool

    def num_free_blocks(self) -> int:
        """The free list; blocks that only the prefix cache holds are not on it."""
        return self.pool.free

    def reclaim_prefix_blocks(self, count: int) -> int:
        """Evict prefix leaves until so many blocks are free."""
        return self.cache.reclaim(count) if self.cache is not None else 0

    def poll_innerq(self) -> None:
        """No K/V quantiser."""

    def teardown(self) -> None:
        """Drop pools, caches and weights; a sequence still alive is an error, told after everything is gone."""
        for stream in (DEFAULT, PREFILL, SECONDARY):
            self.streams.synchronize(stream, "teardown")
        left = len(self.live)
        for seq in list(self.live):
            self.free_sequence(seq)
        if self.cache is not None:
            self.cache.clear()
        self.decoder.release()
        self.head = None
        nothing = torch.empty(0)
        self.memory.keys, self.memory.values = [], []
        self.memory.h = self.memory.conv = nothing
        self.memory.history = None
        self.logits = self.hidden = self.saved = self.stash = self.cells = nothing
        self.buffers.clear()
        if left:
            raise DeviceFault(f"{left} sequences were alive at teardown")


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().cpu().view(torch.uint8).numpy().tobytes()


def _fill(target: torch.Tensor, reader: BinaryIO) -> None:
    size = target.numel() * target.element_size()
    data = reader.read(size)
    if len(data) != size:
        raise DeviceFault("the spill image is shorter than this sequence's state", "bad image")
    target.copy_(torch.frombuffer(bytearray(data), dtype=target.dtype).view(target.shape))
