"""One program per ordering edge: its tokens are those of the immediate order, and wrong once the edge is taken out.

A program gets a device whose P and S work runs as late as the recorded events allow.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass

from metrale.core.io import DeviceError

from ..engine import EngineDevice
from .driver import chunk, follow, prefilled, rejected, start

Program = Callable[[EngineDevice], list[int]]

COUNT = 5


def _prompt(length: int, salt: int = 0) -> list[int]:
    return [(5 * i * i + 3 * i + 7 * salt + 1) % 61 for i in range(length)]


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
    seq = start(device, _prompt(9))
    device.prefill_chunk(chunk(seq, _prompt(9)), 1)
    device.record_event(2, 1)
    device.stream_wait_event(0, 2)
    first = device.argmax_on_device(0, 0)
    return [first, *follow(device, seq, first, COUNT)]


def forward_after_secondary(device: EngineDevice) -> list[int]:
    """A partial verdict, then a decode."""
    seq = prefilled(device, _prompt(9))
    token = rejected(device, seq, device.argmax_on_device(0, 0))
    return [token, *follow(device, seq, token, COUNT)]


def forward_after_prefill(device: EngineDevice) -> list[int]:
    """A chunk on P, then a decode of a known token without an event."""
    seq = start(device, _prompt(9))
    device.prefill_chunk(chunk(seq, _prompt(9)), 1)
    return follow(device, seq, 7, COUNT)


def _through_an_image(device: EngineDevice, seq: object, token: int) -> list[int]:
    image = io.BytesIO()
    device.save_sequence_state(seq, image)  # type: ignore[arg-type]
    image.seek(0)
    again = start(device, [], 50)
    device.restore_sequence_state(again, seq.num_blocks, image)  # type: ignore[attr-defined]
    again.tokens, again.seq_len = list(seq.tokens), seq.seq_len  # type: ignore[attr-defined]
    return follow(device, again, token, COUNT)


def copy_after_secondary(device: EngineDevice) -> list[int]:
    """A partial verdict, then the image."""
    seq = prefilled(device, _prompt(9))
    token = rejected(device, seq, device.argmax_on_device(0, 0))
    return _through_an_image(device, seq, token)


def copy_after_prefill(device: EngineDevice) -> list[int]:
    """A chunk on P, then the image."""
    seq = start(device, _prompt(9))
    device.prefill_chunk(chunk(seq, _prompt(9)), 1)
    return _through_an_image(device, seq, 7)


def free_after_secondary(device: EngineDevice) -> list[int]:
    """A partial verdict of a sequence that ends; its slot goes to another."""
    gone = prefilled(device, _prompt(9))
    rejected(device, gone, device.argmax_on_device(0, 0))
    device.free_sequence(gone)
    seq = prefilled(device, _prompt(7, 2), 2)
    first = device.argmax_on_device(0, 0)
    _flush_secondary(device)
    return [first, *follow(device, seq, first, COUNT)]


def free_after_prefill(device: EngineDevice) -> list[int]:
    """A chunk on P of a sequence that is given up; its blocks go to another."""
    gone = start(device, _prompt(9))
    device.prefill_chunk(chunk(gone, _prompt(9), 0, 8), 1)
    device.free_sequence(gone)
    seq = prefilled(device, _prompt(7, 2), 2)
    first = device.argmax_on_device(0, 0)
    _flush_prefill(device)
    return [first, *follow(device, seq, first, COUNT)]


def prefix_from_prefill_stream(device: EngineDevice) -> list[int]:
    """A prompt cached by a chunk on P, then used by a prefill on D."""
    prompt = _prompt(2 * device.options.block_size)
    early = start(device, prompt)
    device.prefill_chunk(chunk(early, prompt), 1)
    longer = [*prompt, 3, 4, 5]
    seq = prefilled(device, longer, 2)
    first = device.argmax_on_device(0, 0)
    return [seq.cached_tokens, first, *follow(device, seq, first, COUNT)]


def teardown(device: EngineDevice) -> list[int]:
    """Work of P that nobody asked for is not left behind."""
    seq = start(device, _prompt(9))
    device.prefill_chunk(chunk(seq, _prompt(9), 0, 4), 1)
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
    Case("forward-after-secondary", forward_after_secondary),
    Case("forward-after-prefill", forward_after_prefill),
    Case("copy-after-secondary", copy_after_secondary),
    Case("copy-after-prefill", copy_after_prefill),
    Case("free-after-secondary", free_after_secondary),
    Case("free-after-prefill", free_after_prefill),
    Case("share-after-write", prefix_from_prefill_stream, hybrid=False, prefix_cache=True),
    Case("restore-after-save", prefix_from_prefill_stream, prefix_cache=True),
    Case("teardown", teardown),
)
