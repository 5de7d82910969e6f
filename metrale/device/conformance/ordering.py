"""One program per ordering edge: its tokens are those of the immediate order, and wrong once the edge is taken out.

A program gets a device whose P and S work runs as late as the recorded events allow.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass

from metrale.core.io import DeviceError
from metrale.core.sequence import Sequence

from ..engine import EngineDevice
from .driver import chunk, follow, prefilled, rejected, start

Program = Callable[[EngineDevice], list[int]]

COUNT = 5


def _prompt(length: int, salt: int = 0) -> list[int]:
    return [(5 * i * i + 3 * i + 7 * salt + 1) % 61 for i in range(length)]


def on_prefill(device: EngineDevice, prompt: list[int], end: int | None = None) -> Sequence:
    """A new sequence with a chunk queued on P and nothing that waits for it."""
    seq = start(device, prompt)
    device.prefill_chunk(chunk(seq, prompt, 0, end), 1)
    return seq


def partly_kept(device: EngineDevice) -> tuple[Sequence, int]:
    """A sequence whose verify kept one row, the copy queued on S; and the pick after that row."""
    seq = prefilled(device, _prompt(9))
    return seq, rejected(device, seq, device.argmax_on_device(0, 0))


def _flush_prefill(device: EngineDevice) -> None:
    """Another client's chunk, ordered before D as the scheduler does: P runs up to here."""
    other = start(device, _prompt(3, 9), 90)
    device.prefill_chunk(chunk(other, _prompt(3, 9)), 1)
    device.record_event(2, 1)
    device.stream_wait_event(0, 2)


def _flush_secondary(device: EngineDevice) -> None:
    """Another client's partial verdict and next step: S runs up to here."""
    other = prefilled(device, _prompt(5, 8), 91)
    token = rejected(device, other, device.argmax_on_device(0, 0))
    follow(device, other, token, 1)


def event(device: EngineDevice) -> list[int]:
    """A chunk on P, ordered before the pick on D."""
    seq = on_prefill(device, _prompt(9))
    device.record_event(2, 1)
    device.stream_wait_event(0, 2)
    first = device.argmax_on_device(0, 0)
    return [first, *follow(device, seq, first, COUNT)]


def forward_after_secondary(device: EngineDevice) -> list[int]:
    """A partial verdict, then a decode."""
    seq, token = partly_kept(device)
    return [token, *follow(device, seq, token, COUNT)]


def forward_after_prefill(device: EngineDevice) -> list[int]:
    """A chunk on P, then a decode of a known token without an event."""
    return follow(device, on_prefill(device, _prompt(9)), 7, COUNT)


def _through_an_image(device: EngineDevice, seq: Sequence, token: int) -> list[int]:
    image = io.BytesIO()
    device.save_sequence_state(seq, image)
    image.seek(0)
    again = start(device, [], 50)
    device.restore_sequence_state(again, seq.num_blocks, image)
    again.tokens, again.seq_len = list(seq.tokens), seq.seq_len
    return follow(device, again, token, COUNT)


def event_on_host(device: EngineDevice) -> list[int]:
    """A chunk on P, for whose event the host waits before the pick."""
    seq = on_prefill(device, _prompt(9))
    device.record_event(2, 1)
    device.event_synchronize(2)
    first = device.argmax_on_device(0, 0)
    return [first, *follow(device, seq, first, COUNT)]


def stream_on_host(device: EngineDevice) -> list[int]:
    """A chunk on P, for which the host waits before the pick."""
    seq = on_prefill(device, _prompt(9))
    device.synchronize(1)
    first = device.argmax_on_device(0, 0)
    return [first, *follow(device, seq, first, COUNT)]


def propose_after_prefill(device: EngineDevice) -> list[int]:
    """A chunk on P, then drafts for a known token; the slot has held another sequence before."""
    device.free_sequence(prefilled(device, _prompt(9, 5), 2))
    return device.run_mtp_propose_multi(7, 9, 4, on_prefill(device, _prompt(9)), 0, False)


def rollback_after_secondary(device: EngineDevice) -> list[int]:
    """Two rows are kept on S, then only one on D."""
    seq = prefilled(device, _prompt(9))
    picks = device.decode_verify([3, 1, 4, 1], seq)
    device.commit_accepted_prefix(seq, 2, 4)
    device.rollback_ssm_states(seq, 1)
    seq.rewind(3)
    return follow(device, seq, picks[0], COUNT)


def return_after_secondary(device: EngineDevice) -> list[int]:
    """A checkpoint on S is loaded at once."""
    seq = prefilled(device, _prompt(9))
    device.start_checkpoint_async(seq)
    device.rollback_ssm_states(seq, 0)
    return follow(device, seq, 7, COUNT)


def fold_after_secondary(device: EngineDevice) -> list[int]:
    """A checkpoint on S after a verify, a fold on D, and the checkpoint is loaded."""
    seq = prefilled(device, _prompt(9))
    device.decode_verify([3, 1, 4, 1], seq)
    device.start_checkpoint_async(seq)
    device.gdn_fold_accepted([seq], [1], 4)
    device.rollback_ssm_states(seq, 0)
    return follow(device, seq, 7, COUNT)


def _back_to_checkpoint(device: EngineDevice, seq: Sequence) -> list[int]:
    """A verify that keeps nothing, and on from the checkpoint."""
    device.decode_verify([3, 1, 4], seq)
    seq.rewind(3)
    device.rollback_ssm_states(seq, 0)
    return follow(device, seq, 7, COUNT)


def checkpoint_after_secondary(device: EngineDevice) -> list[int]:
    """A partial verdict, a checkpoint on D, and back to it."""
    seq, _ = partly_kept(device)
    device.checkpoint_ssm_states(seq)
    return _back_to_checkpoint(device, seq)


def checkpoint_after_prefill(device: EngineDevice) -> list[int]:
    """A chunk on P, a checkpoint on D, and back to it."""
    seq = on_prefill(device, _prompt(9))
    device.checkpoint_ssm_states(seq)
    return _back_to_checkpoint(device, seq)


def checkpoint_on_secondary_after_prefill(device: EngineDevice) -> list[int]:
    """A chunk on P, a checkpoint on S, and back to it."""
    seq = on_prefill(device, _prompt(9))
    device.start_checkpoint_async(seq)
    return _back_to_checkpoint(device, seq)


def _back_to_ring(device: EngineDevice, seq: Sequence) -> list[int]:
    """Two decodes, and on from ring entry 0."""
    follow(device, seq, 3, 2)
    seq.rewind(2)
    device.restore_decode_ssm_snapshot(seq, 0)
    return follow(device, seq, 7, COUNT)


def ring_save_after_secondary(device: EngineDevice) -> list[int]:
    """A partial verdict, a ring entry, and back to it."""
    seq, _ = partly_kept(device)
    device.save_decode_ssm_snapshot(seq, 0)
    return _back_to_ring(device, seq)


def ring_save_after_prefill(device: EngineDevice) -> list[int]:
    """A chunk on P, a ring entry, and back to it."""
    seq = on_prefill(device, _prompt(9))
    device.save_decode_ssm_snapshot(seq, 0)
    return _back_to_ring(device, seq)


def ring_restore_after_secondary(device: EngineDevice) -> list[int]:
    """A ring entry, a partial verdict, and back to the entry."""
    seq = prefilled(device, _prompt(9))
    device.save_decode_ssm_snapshot(seq, 0)
    rejected(device, seq, 3)
    seq.rewind(1)
    device.restore_decode_ssm_snapshot(seq, 0)
    return follow(device, seq, 7, COUNT)


def ring_restore_after_prefill(device: EngineDevice) -> list[int]:
    """A ring entry between two chunks on P, and back to it."""
    seq = on_prefill(device, _prompt(9), 4)
    device.save_decode_ssm_snapshot(seq, 0)
    device.prefill_chunk(chunk(seq, _prompt(9), 4), 1)
    seq.rewind(5)
    device.restore_decode_ssm_snapshot(seq, 0)
    return follow(device, seq, 7, COUNT)


def image_after_secondary(device: EngineDevice) -> list[int]:
    """A partial verdict, then the image."""
    return _through_an_image(device, *partly_kept(device))


def image_after_prefill(device: EngineDevice) -> list[int]:
    """A chunk on P, then the image."""
    return _through_an_image(device, on_prefill(device, _prompt(9)), 7)


def _from_the_cache(device: EngineDevice, seq: Sequence) -> list[int]:
    """The fed tokens go to the prefix cache; another sequence starts with them."""
    device.cache_sequence(seq)
    prompt = [*seq.tokens, 3, 4, 5]
    device.free_sequence(seq)
    again = prefilled(device, prompt, 2)
    first = device.argmax_on_device(0, 0)
    return [again.cached_tokens, first, *follow(device, again, first, COUNT)]


def snapshot_after_secondary(device: EngineDevice) -> list[int]:
    """A partial verdict of a sequence that goes to the prefix cache."""
    seq = prefilled(device, _prompt(2 * device.options.block_size - 1))
    rejected(device, seq, 3)
    return _from_the_cache(device, seq)


def snapshot_after_prefill(device: EngineDevice) -> list[int]:
    """A chunk on P of a sequence that goes to the prefix cache before its prompt ends."""
    size = device.options.block_size
    return _from_the_cache(device, on_prefill(device, _prompt(3 * size), 2 * size))


def free_after_secondary(device: EngineDevice) -> list[int]:
    """A partial verdict of a sequence that ends; its slot goes to another."""
    gone, _ = partly_kept(device)
    device.free_sequence(gone)
    seq = prefilled(device, _prompt(7, 2), 2)
    first = device.argmax_on_device(0, 0)
    _flush_secondary(device)
    return [first, *follow(device, seq, first, COUNT)]


def free_after_prefill(device: EngineDevice) -> list[int]:
    """A chunk on P of a sequence that is given up; its blocks go to another."""
    gone = on_prefill(device, _prompt(9), 8)
    device.free_sequence(gone)
    seq = prefilled(device, _prompt(7, 2), 2)
    first = device.argmax_on_device(0, 0)
    _flush_prefill(device)
    return [first, *follow(device, seq, first, COUNT)]


def prefix_from_prefill_stream(device: EngineDevice) -> list[int]:
    """A prompt cached by a chunk on P, then used by a prefill on D."""
    prompt = _prompt(2 * device.options.block_size)
    on_prefill(device, prompt)
    longer = [*prompt, 3, 4, 5]
    seq = prefilled(device, longer, 2)
    first = device.argmax_on_device(0, 0)
    return [seq.cached_tokens, first, *follow(device, seq, first, COUNT)]


def teardown(device: EngineDevice) -> list[int]:
    """Work of P that nobody asked for is not left behind."""
    seq = on_prefill(device, _prompt(9), 4)
    keep = seq.state
    seq.state.prefill = None
    device.free_sequence(seq)
    assert keep is not None
    device.teardown()
    return [device.streams.waiting]


@dataclass(frozen=True, slots=True)
class Case:
    """A program, the edge it needs, and the model and cache it runs on."""

    edge: str
    program: Program
    hybrid: bool = True
    prefix_cache: bool = False

    def outcome(self, device: EngineDevice) -> list[int] | str:
        """The program's tokens, or what it died of."""
        try:
            return self.program(device)
        except (DeviceError, RuntimeError, IndexError) as error:
            return type(error).__name__


CASES = (
    Case("event", event),
    Case("event-on-host", event_on_host),
    Case("stream-on-host", stream_on_host),
    Case("forward-after-secondary", forward_after_secondary),
    Case("forward-after-prefill", forward_after_prefill),
    Case("propose-after-prefill", propose_after_prefill),
    Case("rollback-after-secondary", rollback_after_secondary),
    Case("return-after-secondary", return_after_secondary),
    Case("fold-after-secondary", fold_after_secondary),
    Case("checkpoint-after-secondary", checkpoint_after_secondary),
    Case("checkpoint-after-prefill", checkpoint_after_prefill),
    Case("checkpoint-on-secondary-after-prefill", checkpoint_on_secondary_after_prefill),
    Case("ring-save-after-secondary", ring_save_after_secondary),
    Case("ring-save-after-prefill", ring_save_after_prefill),
    Case("ring-restore-after-secondary", ring_restore_after_secondary),
    Case("ring-restore-after-prefill", ring_restore_after_prefill),
    Case("image-after-secondary", image_after_secondary),
    Case("image-after-prefill", image_after_prefill),
    Case("snapshot-after-secondary", snapshot_after_secondary, prefix_cache=True),
    Case("snapshot-after-prefill", snapshot_after_prefill, prefix_cache=True),
    Case("free-after-secondary", free_after_secondary),
    Case("free-after-prefill", free_after_prefill),
    Case("share-after-write", prefix_from_prefill_stream, hybrid=False, prefix_cache=True),
    Case("restore-after-save", prefix_from_prefill_stream, prefix_cache=True),
    Case("teardown", teardown),
)
