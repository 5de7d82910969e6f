"""Small steps on a device, for programs of calls without a scheduler."""

from __future__ import annotations

from metrale.core.request import Completion, Request
from metrale.core.sampling.record import LogprobRecord
from metrale.core.sequence import PrefillSlice, Sequence

from ..engine import EngineDevice


class NoClient:
    """A client that does not listen."""

    def token(self, token: int) -> bool:
        """Ignored."""
        return True

    def token_logprobs(self, token: int, record: LogprobRecord) -> bool:
        """Ignored."""
        return True

    def finish(self, completion: Completion) -> None:
        """Ignored."""

    def error(self, text: str) -> None:
        """Ignored."""


def start(device: EngineDevice, prompt: list[int], number: int = 1) -> Sequence:
    """A sequence whose prompt is not fed yet."""
    seq = device.alloc_sequence(Request(number, list(prompt), 1, NoClient()))
    seq.session_hash = number
    seq.adapter_id = device.adapter_id_for(-1)
    seq.acquired_adapter = device.acquire_adapter_slot(-1)
    return seq


def chunk(seq: Sequence, prompt: list[int], begin: int = 0, end: int | None = None) -> PrefillSlice:
    """Rows [begin, end) of a prompt."""
    end = len(prompt) if end is None else end
    return PrefillSlice(seq, prompt, begin, end - begin, end == len(prompt))


def prefilled(device: EngineDevice, prompt: list[int], number: int = 1) -> Sequence:
    """A sequence with its whole prompt fed on D."""
    seq = start(device, prompt, number)
    device.prefill(prompt, seq, 0)
    return seq


def follow(device: EngineDevice, seq: Sequence, first: int, count: int) -> list[int]:
    """Greedy tokens after ``first`` by single decodes."""
    tokens = [first]
    for _ in range(count):
        device.decode_batch([tokens[-1]], [seq], 0)
        tokens.append(device.argmax_on_device(0, 0))
    return tokens[1:]


def rejected(device: EngineDevice, seq: Sequence, token: int, count: int = 4) -> int:
    """Verify ``token`` and wrong drafts, keep the first row alone: cut, commit on S. Answers the pick after it."""
    vocab = device.config.vocab_size
    picks = device.decode_verify([token] + [(token + 1 + i) % vocab for i in range(count - 1)], seq)
    seq.rewind(count - 1)
    device.commit_accepted_prefix(seq, 1, count)
    return picks[0]
