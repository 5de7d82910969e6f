"""Forced runs: a scenario on the real engine, with the scripted token substituted at the pick.

Every kernel really runs on a small random model with the scenario's vocabulary; what the script, the scripted faults
and the cancel hooks of the scenario decide is taken from the scenario, everything else from the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

from metrale.core.io import KvExhausted, Unsupported
from metrale.core.request import Request
from metrale.core.sequence import PrefillSlice, RowMask, Sequence, blocks_for
from metrale.device.checkpoint.lora import LoraAdapter
from metrale.device.engine import EngineDevice, EngineOptions, Streams
from metrale.device.errors import ModelError
from metrale.device.loading import Backend, backend, limit_threads
from metrale.sim.harness import build_client
from metrale.sim.mock import MockConfig, MockDevice, Script
from metrale.sim.mock.drafting import REJECTED
from metrale.sim.runner import mock_config

from .errors import ConformError
from .tiny import random_weights, tiny_config

if TYPE_CHECKING:
    from metrale.sim.scenario import RequestTable, Scenario

MAX_POSITIONS = 1 << 22
"""K/V positions of the largest pool that a forced run allocates."""


class ScriptPicks:
    """The answers of the requests' scripts, as the mock device gives them (S1 section 2)."""

    def __init__(self, vocab: int) -> None:
        self.vocab = vocab

    def after(self, seq: Sequence, position: int) -> int:
        """The script's pick after ``position``."""
        return _script(seq).after(position)

    def verify(self, seq: Sequence, tokens: list[int]) -> list[int]:
        """Scripted picks up to the first input that is not the script's, then a refusal; the first input is right."""
        script = _script(seq)
        answers = script.window(seq.seq_len + 1 - script.prompt_len, len(tokens))
        for row in range(1, len(tokens)):
            if tokens[row] != answers[row - 1]:
                return answers[:row] + [REJECTED] * (len(tokens) - row)
        return answers

    def drafts(self, seq: Sequence, pos: int, count: int) -> list[int]:
        """Scripted drafts, spoilt on schedule."""
        return _script(seq).drafts(pos + 1, count, self.vocab)

    def beam(self, request: Request) -> list[int]:
        """The scripted hypothesis."""
        script = request.handle
        return list(script.beam_hyp or []) if isinstance(script, Script) else []


def _script(seq: Sequence) -> Script:
    assert seq.request is not None
    script = seq.request.handle
    assert isinstance(script, Script)
    return script


class ForcedDevice(EngineDevice):
    """An engine whose picks, faults and completion order are a scenario's. Faults strike before anything changed."""

    scripted: MockDevice

    # -- the scenario's books count the blocks: they may be overdrawn, as the mock device's may (S1 section 2)

    def _extend(self, seq: Sequence, blocks: list[int]) -> None:
        super()._extend(seq, blocks)
        self.scripted.blocks.used += len(blocks)

    def drop_blocks(self, seq: Sequence, count: int) -> None:
        before = seq.num_blocks
        super().drop_blocks(seq, count)
        books = self.scripted.blocks
        books.used = max(0, books.used - before + seq.num_blocks)

    def num_free_blocks(self) -> int:
        return self.scripted.num_free_blocks()

    def reclaim_prefix_blocks(self, count: int) -> int:
        return self.scripted.reclaim_prefix_blocks(count)

    def reserve_decode_block(self, seq: Sequence) -> int:
        if blocks_for(seq.seq_len + 1, self.facts.block_size) > seq.num_blocks and not self.num_free_blocks():
            raise KvExhausted("KV cache exhausted (no block to reserve)", "exhausted")
        return super().reserve_decode_block(seq)

    # -- scripted faults and cancels

    def _meet(self, call: str, seqs: list[Sequence] | None = None) -> None:
        self.scripted.config.faults.meet(call)
        for seq in seqs or []:
            script, request = _script(seq), seq.request
            reached = script.cancel_at is not None and len(seq.tokens) - script.prompt_len == script.cancel_at
            if reached and request is not None and request.cancel is not None:
                request.cancel.raised = True

    def save_sequence_state(self, seq: Sequence, writer: BinaryIO) -> None:
        self._meet("save_sequence_state")
        super().save_sequence_state(seq, writer)

    def restore_sequence_state(self, seq: Sequence, num_blocks: int, reader: BinaryIO) -> None:
        self._meet("restore_sequence_state")
        super().restore_sequence_state(seq, num_blocks, reader)

    def prefill(self, prompt: list[int], seq: Sequence, stream: int) -> None:
        self._meet("prefill")
        super().prefill(prompt, seq, stream)

    def prefill_chunk(self, piece: PrefillSlice, stream: int) -> None:
        self._meet("prefill_chunk")
        super().prefill_chunk(piece, stream)

    def prefill_batch_chunk(self, pieces: list[PrefillSlice], stream: int) -> None:
        self._meet("prefill_batch_chunk")
        super().prefill_batch_chunk(pieces, stream)

    def prefill_twophase(self, prompt: list[int], seq: Sequence, chunk: int, stream: int) -> None:
        if not self.scripted.config.twophase_ok:
            raise Unsupported("two-phase prefill is unsupported")
        self.prefill(prompt, seq, stream)

    def decode(self, token: int, seq: Sequence, stream: int) -> None:
        self._meet("decode", [seq])
        super().decode_batch([token], [seq], stream)

    def decode_batch(self, tokens: list[int], seqs: list[Sequence], stream: int) -> None:
        self._meet("decode_batch", seqs)
        super().decode_batch(tokens, seqs, stream)

    def decode_batch_fed(self, sources: list[int], seqs: list[Sequence], stream: int) -> None:
        self._meet("decode_batch", seqs)
        super().decode_batch_fed(sources, seqs, stream)

    def mixed_forward(self, tokens: list[int], seqs: list[Sequence], piece: PrefillSlice, stream: int) -> None:
        self._meet("mixed_forward")
        super().mixed_forward(tokens, seqs, piece, stream)

    def mixed_forward_batch(
        self, tokens: list[int], seqs: list[Sequence], pieces: list[PrefillSlice], stream: int
    ) -> None:
        self._meet("mixed_forward_batch")
        super().mixed_forward_batch(tokens, seqs, pieces, stream)

    # -- verify

    def decode_verify(self, tokens: list[int], seq: Sequence) -> list[int]:
        self._meet("decode_verify", [seq])
        return super().decode_verify(tokens, seq)

    def decode_verify_graphed(self, tokens: list[int], seq: Sequence) -> list[int]:
        self._meet("decode_verify_graphed", [seq])
        return super().decode_verify_graphed(tokens, seq)

    def decode_verify_graphed_k3(self, tokens: list[int], seq: Sequence) -> list[int]:
        self._meet("decode_verify_graphed_k3", [seq])
        return super().decode_verify_graphed_k3(tokens, seq)

    def decode_verify_graphed_k4(self, tokens: list[int], seq: Sequence) -> list[int]:
        self._meet("decode_verify_graphed_k4", [seq])
        return super().decode_verify_graphed_k4(tokens, seq)

    def decode_verify_dflash(self, tokens: list[int], seq: Sequence) -> list[int]:
        self._meet("decode_verify_dflash", [seq])
        return super().decode_verify_dflash(tokens, seq)

    def decode_and_verify_fused(self, tokens: list[int], seq: Sequence) -> list[int]:
        self._meet("decode_and_verify_fused", [seq])
        return super().decode_and_verify_fused(tokens, seq)

    def decode_verify_batched(
        self, tokens: list[int], rows: list[int], seqs: list[Sequence], stream: int, write_on_accept: bool
    ) -> list[int]:
        self._meet("decode_verify_batched")
        return super().decode_verify_batched(tokens, rows, seqs, stream, write_on_accept)

    # -- events of the token feed complete as the scenario says

    def argmax_batch_to_feed(self, row: int, masks: list[RowMask], buffer: int, event: int, stream: int) -> None:
        super().argmax_batch_to_feed(row, masks, buffer, event, stream)
        self.scripted.argmax_batch_to_feed(0, [], buffer, event, stream)

    def event_query(self, event: int) -> bool:
        return self.scripted.event_query(event)

    def event_synchronize(self, event: int) -> None:
        self.scripted.event_synchronize(event)
        super().event_synchronize(event)

    def destroy_event(self, event: int) -> None:
        self.scripted.destroy_event(event)
        super().destroy_event(event)


def speculates(scenario: Scenario) -> bool:
    """Whether the scenario's knobs and facts switch a speculative lane on."""
    knobs, facts = scenario.scheduler, scenario.device
    mtp = knobs.use_speculative and facts.has_proposer
    return mtp or knobs.ngram_speculative or (knobs.self_speculative and facts.has_self_speculative)


def run_device(scenario: Scenario, name: str) -> ForcedDevice:
    """What ``metrale run --device NAME`` runs on: a hybrid where recurrent state matters to the scenario.

    Raises ConformError where the backend cannot be had."""
    limit_threads(0)
    try:
        on = backend(name)
    except ModelError as error:
        raise ConformError(f"--device {name}: {error}") from error
    return forced_device(scenario, hybrid=scenario.device.has_ssm_layers or speculates(scenario), on=on)


def forced_device(
    scenario: Scenario, *, hybrid: bool, streams: Streams | None = None, on: Backend | None = None
) -> ForcedDevice:
    """A forced engine for one scenario. The pool holds what all requests together can reach, whatever the scenario's
    books say. Raises ConformError for requests whose K/V no machine should be asked for."""
    config = mock_config(scenario.device)
    facts = config.facts
    blocks = sum(_most_blocks(table, scenario) for table in scenario.request)
    if blocks * facts.block_size > MAX_POSITIONS:
        raise ConformError(
            f"scenario {scenario.name}: its requests reach {blocks * facts.block_size} positions; a forced run "
            f"allocates {MAX_POSITIONS} at most, `--device mock` has no limit"
        )
    model = tiny_config(facts.vocab_size, hybrid)
    options = EngineOptions(
        block_size=facts.block_size,
        total_blocks=blocks,
        max_sequences=len(scenario.request) + 8,
        max_seq_len=1024,
        ring_slots=facts.ring_slots,
        draft_capacity=config.slot_draft_capacity,
        batch_verify=config.can_batch_verify,
    )
    on = on or backend("torch")
    device = ForcedDevice(
        on.kernels,
        model,
        on.place(random_weights(model)),
        options,
        width=on.width,
        facts=facts,
        picks=ScriptPicks(facts.vocab_size),
        streams=streams,
    )
    device.scripted = MockDevice(MockConfig(**{name: getattr(config, name) for name in MockConfig.__slots__}))
    if scenario.scheduler.lora_rotation is not None:
        device.adapters.load(LoraAdapter(scenario.scheduler.lora_rotation, {}))
    return device


def _most_blocks(table: RequestTable, scenario: Scenario) -> int:
    """Blocks of the longest table one request can have: prompt, outputs, and the rows of one verify."""
    request = build_client(table).request
    length = len(request.prompt) + request.max_tokens
    ceiling = scenario.scheduler.max_seq_len
    if ceiling:
        length = min(length, max(ceiling, len(request.prompt)) + 1)
    return blocks_for(length + scenario.scheduler.num_drafts + 2, scenario.device.block_size) + 1
