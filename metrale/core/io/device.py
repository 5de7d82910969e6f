"""The direct device calls (S6 section 3): what each does, what it needs, what it promises.

Conventions. Lengths and counts are in tokens, ``stream`` 0 is the default stream and 1 the prefill stream. A "row" of a
forward is one input position; rows of the latest forward stay readable until the next one. A call that raises a
:class:`~.errors.DeviceError` has changed no sequence it names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO, Protocol

from ..request import Request
from ..sequence import PrefillSlice, RowMask, Sequence


@dataclass(slots=True, frozen=True)
class DeviceFacts:
    """Constants of one device (S6 section 3.12). ``total_blocks`` 0 means no paging and disables the reservation."""

    vocab_size: int = 64
    block_size: int = 16
    total_blocks: int = 1000
    has_proposer: bool = False
    has_self_speculative: bool = False
    supports_beam: bool = False
    has_ssm_layers: bool = False
    ring_slots: int = 0
    supports_token_feed: bool = True
    propose_batch_max: int = 32
    capture_band: int = 1


class Device(Protocol):
    """One accelerator with one model."""

    facts: DeviceFacts

    # -- life cycle and memory (S6 3.1) ---------------------------------------------------------------------------

    def bind_gpu_to_thread(self) -> None:
        """Make the device context current on the scheduler thread; the first call of a run."""

    def alloc_sequence(self, request: Request) -> Sequence:
        """A fresh sequence on the smallest free slot, bound to ``request``. Raises SlotsExhausted."""

    def alloc_sequence_for(self, request: Request, budget: int) -> Sequence:
        """The same; ``budget`` is the most tokens the request can reach."""

    def cache_sequence(self, seq: Sequence) -> None:
        """Offer the fed tokens to the prefix cache, before the free. Never fails."""

    def free_sequence(self, seq: Sequence) -> None:
        """Give back slot, blocks and adapter reference; length and slot stay readable in the object."""

    def compact_sequence(self, seq: Sequence, new_slot: int) -> None:
        """Move the sequence to ``new_slot``, which nobody owns; its old slot becomes free."""

    def detach_slot_for_reuse(self, seq: Sequence) -> None:
        """The sequence gives its slot up: it goes back to the free slots unless another sequence has taken it (D25)."""

    def save_sequence_state(self, seq: Sequence, writer: BinaryIO) -> None:
        """Write the image of K/V and recurrent state; frees nothing."""

    def restore_sequence_state(self, seq: Sequence, num_blocks: int, reader: BinaryIO) -> None:
        """Take exactly ``num_blocks`` blocks and fill them from an image; tokens and length are set after it."""

    def num_free_blocks(self) -> int:
        """Blocks on the free list, never below 0."""

    def reclaim_prefix_blocks(self, count: int) -> int:
        """Evict prefix-cache blocks until ``count`` are freed; the number freed, 0 when nothing more can be."""

    def poll_innerq(self) -> None:
        """Hook of a KV quantiser's calibration, once per prefill step."""

    def teardown(self) -> None:
        """Free device memory."""

    # -- forwards (S6 3.2) ----------------------------------------------------------------------------------------

    def prefill(self, prompt: list[int], seq: Sequence, stream: int) -> None:
        """The whole prompt in one pass; logits of the last position in row 0."""

    def prefill_chunk(self, piece: PrefillSlice, stream: int) -> None:
        """One chunk; only a last one gives logits (row 0). Repeatable after KvExhausted."""

    def prefill_batch_chunk(self, pieces: list[PrefillSlice], stream: int) -> None:
        """One chunk of each piece; row i of the result belongs to piece i."""

    def prefill_twophase(self, prompt: list[int], seq: Sequence, chunk: int, stream: int) -> None:
        """The whole prompt with chunked recurrent layers. Raises Unsupported and leaves the sequence untouched."""

    def normalize_ssm_states(self, seq: Sequence, stream: int) -> None:
        """Clamp the recurrent state after a plain later chunk."""

    def decode(self, token: int, seq: Sequence, stream: int) -> None:
        """One token of one sequence; logits in row 0."""

    def decode_batch(self, tokens: list[int], seqs: list[Sequence], stream: int) -> None:
        """One token per sequence. Raises KvExhausted or DeviceFault with every row unchanged."""

    def mixed_forward(self, tokens: list[int], seqs: list[Sequence], piece: PrefillSlice, stream: int) -> None:
        """Decode rows and one chunk in one pass; the chunk's row follows the decode rows."""

    def mixed_forward_batch(
        self, tokens: list[int], seqs: list[Sequence], pieces: list[PrefillSlice], stream: int
    ) -> None:
        """Decode rows and one chunk each in one pass; chunk rows follow the decode rows, in order."""

    def generate_beam_batch(self, requests: list[Request]) -> list[list[int]]:
        """A whole beam search per request: one hypothesis each."""

    # -- logits (S6 3.3) ------------------------------------------------------------------------------------------

    def argmax_on_device(self, row: int, stream: int) -> int:
        """The id of the maximum of one row of the latest forward."""

    def argmax_batch(self, row: int, count: int, stream: int) -> list[int]:
        """The same for ``count`` rows from ``row`` on."""

    def copy_logits_to_host(self, row: int, offset: int, nbytes: int) -> bytes:
        """``nbytes`` of bf16 logits, from byte ``offset`` of ``row`` on; may span rows."""

    # -- recurrent state (S6 3.4) ---------------------------------------------------------------------------------

    def checkpoint_ssm_states(self, seq: Sequence) -> None:
        """Keep the live recurrent state as the pre-verify checkpoint."""

    def rollback_ssm_states(self, seq: Sequence, count: int) -> None:
        """Set the live state to what it was after ``count`` rows of the latest verify."""

    def start_checkpoint_async(self, seq: Sequence) -> None:
        """Checkpoint on the secondary stream."""

    def start_rollback_and_checkpoint_async(self, seq: Sequence, accepted: int) -> None:
        """Rollback to ``accepted`` rows, then checkpoint, on the secondary stream."""

    def commit_accepted_prefix(self, seq: Sequence, accepted: int, rows: int) -> None:
        """Keep ``accepted`` of the ``rows`` rows of the latest verify (1 <= accepted <= rows)."""

    def sync_secondary(self) -> None:
        """The default stream waits for all work of the secondary stream so far."""

    def save_decode_ssm_snapshot(self, seq: Sequence, ring: int) -> None:
        """Copy the live recurrent state to decode ring slot ``ring``."""

    def restore_decode_ssm_snapshot(self, seq: Sequence, ring: int) -> None:
        """Load the live recurrent state from ring slot ``ring``; the scheduler cuts the length right after."""

    def decode_marconi_checkpoint(self, seq: Sequence) -> None:
        """Maybe keep a prefix-cache snapshot at the present length. Never fails."""

    # -- verify (S6 3.5) ------------------------------------------------------------------------------------------

    def decode_verify(self, tokens: list[int], seq: Sequence) -> list[int]:
        """Feed k rows; answer j is the pick after row j."""

    def decode_verify_graphed(self, tokens: list[int], seq: Sequence) -> list[int]:
        """:meth:`decode_verify` with 2 rows."""

    def decode_verify_graphed_k3(self, tokens: list[int], seq: Sequence) -> list[int]:
        """:meth:`decode_verify` with 3 rows."""

    def decode_verify_graphed_k4(self, tokens: list[int], seq: Sequence) -> list[int]:
        """:meth:`decode_verify` with 4 rows."""

    def decode_verify_dflash(self, tokens: list[int], seq: Sequence) -> list[int]:
        """:meth:`decode_verify` that also captures hidden rows for the DFlash drafter."""

    def decode_and_verify_fused(self, tokens: list[int], seq: Sequence) -> list[int]:
        """:meth:`decode_verify_dflash` for the DFlash-flavoured K2, K3 and K4."""

    def can_batch_verify(self, rows: list[int]) -> bool:
        """Whether one forward can verify sequences of these row counts."""

    def decode_verify_batched(
        self, tokens: list[int], rows: list[int], seqs: list[Sequence], stream: int, write_on_accept: bool
    ) -> list[int]:
        """Verify several sequences at once; ``tokens`` is flat, sequence after sequence. Answers flat."""

    def gdn_fold_accepted(self, seqs: list[Sequence], accepted: list[int], rows: int) -> bool:
        """Fold the recurrent state of each sequence to its accepted row count. False: nothing was done."""

    def mtp_slot_draft_capacity(self, slot: int) -> int:
        """The most drafts a verify on this slot can roll back."""

    # -- drafter (S6 3.6, 3.7) ------------------------------------------------------------------------------------

    def decode_draft(self, token: int, seq: Sequence, stream: int) -> None:
        """A decode that skips the recurrent layers; logits in row 0."""

    def save_hidden_for_mtp(self, row: int, stream: int) -> None:
        """Keep the hidden row ``row`` of the latest forward as the drafter's input."""

    def stash_verify_hidden_rows(self, rows: list[int], stream: int) -> None:
        """Keep one hidden row per verified sequence before a propose overwrites them."""

    def save_hidden_for_mtp_from_stash(self, index: int, stream: int) -> None:
        """Use stash entry ``index`` as the drafter's input."""

    def stash_verify_catchup_rows(self, pairs: list[tuple[int, int]]) -> None:
        """Keep hidden rows of accepted drafts: (catch-up slot, row) pairs."""

    def run_mtp_catchup_batched(self, tokens: list[list[int]], slots: list[int], positions: list[int]) -> int:
        """Append drafter rows for accepted drafts; the number of rows written."""

    def run_mtp_propose_multi(
        self, token: int, pos: int, count: int, seq: Sequence, stream: int, mask: bool
    ) -> list[int]:
        """At most ``count`` chained drafts after ``token`` at position ``pos``."""

    def run_mtp_propose_batched(
        self, tokens: list[int], positions: list[int], stash: list[int], count: int, seqs: list[Sequence], stream: int
    ) -> tuple[list[list[int]], list[list[float]]] | None:
        """Drafts and log-confidences for several sequences, inputs from the stash; None: declined."""

    def trim_proposer_state(self, seq: Sequence, accepted: int, stream: int) -> None:
        """The latest verify accepted ``accepted`` drafts: drop the rest from the drafter's state."""

    def save_hidden_for_catchup(self, row: int, pos: int) -> None:
        """Keep a hidden row of a serial decode for the drafter's catch-up."""

    def commit_ctx(self, seq: Sequence, count: int, base: int, row: int) -> None:
        """Append ``count`` captured rows from ``row`` on to the drafter's context, at positions from ``base`` on."""

    def dflash_eagle_accept_append(self, seq: Sequence) -> None:
        """Append the two captured rows of a full K2 accept to the drafter's context."""

    def dflash_eagle_kgamma_append(self, seq: Sequence, accepted: int, base: int) -> None:
        """Append the captured rows of a DFlash verify (unified context off)."""

    def dflash_serial_ctx_append(self, seq: Sequence) -> None:
        """Append the one captured row of a serial decode (unified context off)."""

    # -- adapters, expert parallelism (S6 3.8, 6) -----------------------------------------------------------------

    def adapter_id_for(self, adapter_slot: int) -> int:
        """The cache identity of an adapter slot; -1 is the active adapter, id 0 the base model."""

    def acquire_adapter_slot(self, adapter_slot: int) -> int:
        """Resolve the slot and take a reference; the free gives it back."""

    def set_active_lora(self, name: str) -> None:
        """Make a resident adapter the active one. Raises DeviceError when it is unknown or in use."""

    def ep_broadcast_cmd_for_seq(self, seq: int, cmd: int) -> None:
        """A command word for the mirror of slot ``seq``."""

    def ep_broadcast_cmd(self, cmd: int) -> None:
        """A follow-up word."""

    def ep_broadcast_tokens(self, tokens: list[int]) -> None:
        """The prompt's tokens for the workers."""

    def ep_sync_vision_embeds(self, tokens: list[int]) -> None:
        """Vision rows for the workers."""

    # -- streams and events (S6 3.10) -----------------------------------------------------------------------------

    def create_stream(self) -> int:
        """The prefill stream."""

    def create_event(self) -> int:
        """A reusable event."""

    def record_event(self, event: int, stream: int) -> None:
        """Mark the present end of a stream; recording again moves the mark."""

    def stream_wait_event(self, stream: int, event: int) -> None:
        """Later work of ``stream`` waits for the mark as it is now."""

    def synchronize(self, stream: int) -> None:
        """The host waits for all work of a stream."""

    # -- device token feed (S6 3.11) ------------------------------------------------------------------------------

    def decode_batch_fed(self, sources: list[int], seqs: list[Sequence], stream: int) -> None:
        """A decode whose inputs are read from the feed cells on the device; tokens and lengths stay as they are."""

    def argmax_batch_to_feed(self, row: int, masks: list[RowMask], buffer: int, event: int, stream: int) -> None:
        """Masked picks into the feed cells and, asynchronously, into readback buffer ``buffer``; records ``event``."""

    def feed_cells(self, count: int) -> list[int]:
        """The first ``count`` feed cells as a fed step will see them: for call logs alone, so it may wait."""

    def read_feed(self, buffer: int, count: int) -> list[int]:
        """The first ``count`` ids of a readback buffer whose event has completed."""

    def reserve_decode_block(self, seq: Sequence) -> int:
        """Make sure the next position has a block; blocks added. Raises KvExhausted."""

    def release_decode_blocks(self, seq: Sequence, count: int) -> None:
        """Give the last ``count`` blocks back."""

    def fed_step_settled(self) -> None:
        """The oldest fed step is done."""

    def event_query(self, event: int) -> bool:
        """Whether an event has completed. Raises DeviceFault."""

    def event_synchronize(self, event: int) -> None:
        """The host waits for an event. Raises DeviceFault."""

    def destroy_event(self, event: int) -> None:
        """Free an event."""
