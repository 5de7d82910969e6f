"""The mock device: life cycle, forwards, logits (verifies and drafts: ``drafting``, the token feed: ``feed``)."""

from __future__ import annotations

import json
from typing import BinaryIO

from metrale.core.io import DeviceFault, Unsupported
from metrale.core.request import Request
from metrale.core.sequence import NO_SLOT, PrefillSlice, Sequence, blocks_for
from metrale.core.slots import SlotBook

from .books import BlockBook
from .drafting import DraftingMixin
from .feed import FeedMixin
from .script import MockConfig, Script

HOT_BF16 = b"\xf0\x41"
"""30.0 in bf16, little-endian: the logit of the scripted token; every other logit is 0."""

IMAGE_MAGIC = b"metrale mock image\n"


class MockDevice(DraftingMixin, FeedMixin):
    """Answers every forward from the request's own script (found through the request, decisions D18 and D26)."""

    def __init__(self, config: MockConfig) -> None:
        self.config = config
        self.facts = config.facts
        self.slots = SlotBook()
        self.blocks = BlockBook(config.facts.total_blocks, config.held_blocks, config.reclaimable)
        self.rows: list[int] = []
        self._init_feed()

    # -- life cycle and memory

    def bind_gpu_to_thread(self) -> None:
        """Nothing to bind."""

    def alloc_sequence(self, request: Request) -> Sequence:
        """The smallest free slot, else the next never used."""
        seq = Sequence(slot=self.slots.take(), request=request, state=request.handle)
        self.slots.assign(seq.slot, seq)
        return seq

    def alloc_sequence_for(self, request: Request, budget: int) -> Sequence:
        """The budget sizes nothing here."""
        return self.alloc_sequence(request)

    def cache_sequence(self, seq: Sequence) -> None:
        """There is no prefix cache."""

    def free_sequence(self, seq: Sequence) -> None:
        """Blocks and slot go back; tokens, length and slot stay in the object."""
        self.blocks.give_back(seq, seq.num_blocks)
        self.slots.release(seq)

    def compact_sequence(self, seq: Sequence, new_slot: int) -> None:
        """The old slot becomes free."""
        self.slots.move(seq, new_slot)

    def detach_slot_for_reuse(self, seq: Sequence) -> None:
        """The slot goes back unless another sequence has taken it."""
        self.slots.release(seq)
        seq.slot = NO_SLOT

    def save_sequence_state(self, seq: Sequence, writer: BinaryIO) -> None:
        """A small real image: block count, length and fed tokens."""
        self.config.faults.meet("save_sequence_state")
        writer.write(IMAGE_MAGIC)
        writer.write(json.dumps({"blocks": seq.num_blocks, "tokens": seq.tokens}).encode())

    def restore_sequence_state(self, seq: Sequence, num_blocks: int, reader: BinaryIO) -> None:
        """Takes ``num_blocks`` blocks; an image that does not fit is a fault."""
        self.config.faults.meet("restore_sequence_state")
        data = reader.read()
        if not data.startswith(IMAGE_MAGIC) or json.loads(data[len(IMAGE_MAGIC) :])["blocks"] != num_blocks:
            raise DeviceFault("the spill image does not hold this sequence", "bad image")
        self.blocks.grow(seq, num_blocks)

    def num_free_blocks(self) -> int:
        """Total minus used minus held, not below 0."""
        return self.blocks.free

    def reclaim_prefix_blocks(self, count: int) -> int:
        """What the scenario declared reclaimable."""
        return self.blocks.reclaim(count)

    def poll_innerq(self) -> None:
        """No quantiser."""

    def teardown(self) -> None:
        """Nothing to free."""

    # -- forwards

    def prefill(self, prompt: list[int], seq: Sequence, stream: int) -> None:
        """The whole prompt."""
        self.config.faults.meet("prefill")
        seq.tokens.extend(prompt)
        seq.seq_len = len(seq.tokens)
        seq.prompt_len = len(prompt)
        self._grow(seq)
        self.rows = [self._answer(seq)]

    def prefill_chunk(self, piece: PrefillSlice, stream: int) -> None:
        """One chunk."""
        self.config.faults.meet("prefill_chunk")
        self._feed_slice(piece)
        self.rows = [self._answer(piece.seq)]

    def prefill_batch_chunk(self, pieces: list[PrefillSlice], stream: int) -> None:
        """One chunk of each piece."""
        self.config.faults.meet("prefill_batch_chunk")
        for piece in pieces:
            self._feed_slice(piece)
        self.rows = [self._answer(piece.seq) for piece in pieces]

    def prefill_twophase(self, prompt: list[int], seq: Sequence, chunk: int, stream: int) -> None:
        """Unsupported unless the scenario says otherwise."""
        if not self.config.twophase_ok:
            raise Unsupported("two-phase prefill is unsupported")
        self.prefill(prompt, seq, stream)

    def normalize_ssm_states(self, seq: Sequence, stream: int) -> None:
        """No recurrent state."""

    def decode(self, token: int, seq: Sequence, stream: int) -> None:
        """One token of one sequence."""
        self.config.faults.meet("decode")
        self._cancel_hook(seq)
        self._push(seq, token)
        self.rows = [self._answer(seq)]

    def decode_batch(self, tokens: list[int], seqs: list[Sequence], stream: int) -> None:
        """One token per sequence; the hot path of a simulation."""
        self.config.faults.meet("decode_batch")
        block_size = self.facts.block_size
        rows: list[int] = []
        for seq, token in zip(seqs, tokens, strict=True):
            script: Script = seq.state
            if script.cancel_at is not None:
                self._cancel_hook(seq)
            seq.tokens.append(token)
            length = seq.seq_len + 1
            seq.seq_len = length
            if length // block_size >= seq.num_blocks:
                self._grow(seq)
            answers = script.tokens
            index = length - script.prompt_len
            rows.append(answers[index] if index < len(answers) else answers[-1])
        self.rows = rows

    def mixed_forward(self, tokens: list[int], seqs: list[Sequence], piece: PrefillSlice, stream: int) -> None:
        """Decode rows and one chunk."""
        self.config.faults.meet("mixed_forward")
        self._mix(tokens, seqs, [piece])

    def mixed_forward_batch(
        self, tokens: list[int], seqs: list[Sequence], pieces: list[PrefillSlice], stream: int
    ) -> None:
        """Decode rows and one chunk of each piece."""
        self.config.faults.meet("mixed_forward_batch")
        self._mix(tokens, seqs, pieces)

    def generate_beam_batch(self, requests: list[Request]) -> list[list[int]]:
        """The scripted hypotheses; a request without one answers an empty list."""
        return [list(request.handle.beam_hyp or []) for request in requests]  # type: ignore[attr-defined]

    # -- logits

    def argmax_on_device(self, row: int, stream: int) -> int:
        """The row's scripted token."""
        return self.rows[row]

    def argmax_batch(self, row: int, count: int, stream: int) -> list[int]:
        """The rows' scripted tokens."""
        return self.rows[row : row + count]

    def copy_logits_to_host(self, row: int, offset: int, nbytes: int) -> bytes:
        """One-hot bf16 rows; all zeros where the scripted token lies outside the vocabulary (decision D17)."""
        width = 2 * self.facts.vocab_size
        first, count = row, (offset + nbytes + width - 1) // width
        block = bytearray(width * count)
        for index, token in enumerate(self.rows[first : first + count]):
            if 0 <= token < self.facts.vocab_size:
                at = index * width + 2 * token
                block[at : at + 2] = HOT_BF16
        return bytes(block[offset : offset + nbytes])

    # -- adapters, expert parallelism, streams: nothing to do but answer

    def adapter_id_for(self, adapter_slot: int) -> int:
        """Every slot holds the base model."""
        return 0

    def acquire_adapter_slot(self, adapter_slot: int) -> int:
        """Any slot can be had."""
        return adapter_slot

    def set_active_lora(self, name: str) -> None:
        """Any adapter is resident."""

    def ep_broadcast_cmd_for_seq(self, seq: int, cmd: int) -> None:
        """No workers."""

    def ep_broadcast_cmd(self, cmd: int) -> None:
        """No workers."""

    def ep_broadcast_tokens(self, tokens: list[int]) -> None:
        """No workers."""

    def ep_sync_vision_embeds(self, tokens: list[int]) -> None:
        """No workers."""

    def create_stream(self) -> int:
        """The prefill stream."""
        return 1

    def record_event(self, event: int, stream: int) -> None:
        """Work is done when it is called."""

    def stream_wait_event(self, stream: int, event: int) -> None:
        """Work is done when it is called."""

    def synchronize(self, stream: int) -> None:
        """Work is done when it is called."""

    # -- shared pieces

    def _answer(self, seq: Sequence) -> int:
        script: Script = seq.state
        return script.after(seq.seq_len - 1)

    def _push(self, seq: Sequence, token: int) -> None:
        seq.tokens.append(token)
        seq.seq_len += 1
        self._grow(seq)

    def _grow(self, seq: Sequence) -> None:
        self.blocks.grow(seq, blocks_for(seq.seq_len, self.facts.block_size))

    def _feed_slice(self, piece: PrefillSlice) -> None:
        seq = piece.seq
        end = piece.start + piece.length
        seq.tokens.extend(piece.prompt[piece.start : end])
        seq.seq_len = end
        if piece.start == 0:
            seq.prompt_len = len(piece.prompt)
        self._grow(seq)

    def _mix(self, tokens: list[int], seqs: list[Sequence], pieces: list[PrefillSlice]) -> None:
        for seq, token in zip(seqs, tokens, strict=True):
            self._push(seq, token)
        for piece in pieces:
            self._feed_slice(piece)
        self.rows = [self._answer(seq) for seq in [*seqs, *(piece.seq for piece in pieces)]]

    def _cancel_hook(self, seq: Sequence) -> None:
        """Raise the request's own cancel flag when exactly ``cancel_at`` tokens are generated."""
        script: Script = seq.state
        request = seq.request
        if script.cancel_at is None or request is None or request.cancel is None:
            return
        if len(seq.tokens) - script.prompt_len == script.cancel_at:
            request.cancel.raised = True
