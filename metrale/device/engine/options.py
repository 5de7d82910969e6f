"""How large an engine is and what it offers."""

from __future__ import annotations

from dataclasses import dataclass

from metrale.core.io import DeviceFacts

from ..checkpoint.config import ModelConfig


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Sizes of one engine. ``held_blocks`` are pinned outside any sequence; ``snapshots`` bounds the recurrent
    snapshots of the prefix cache; ``draft_capacity`` is the most drafts one verify can roll back; ``max_seq_len``
    bounds what the drafter remembers of a sequence; ``graphs`` lets a GPU record its decode steps."""

    block_size: int = 16
    total_blocks: int = 1024
    held_blocks: int = 0
    max_sequences: int = 64
    max_seq_len: int = 4096
    ring_slots: int = 8
    draft_capacity: int = 8
    prefix_cache: bool = False
    snapshots: int = 32
    batch_verify: bool = True
    graphs: bool = True


def facts_of(config: ModelConfig, options: EngineOptions) -> DeviceFacts:
    """What the model behind an engine can do (S6 section 3.12). The token feed is off on a hybrid: a discarded fed
    step could not be taken out of its recurrent state."""
    hybrid = config.linear is not None
    return DeviceFacts(
        vocab_size=config.vocab_size,
        block_size=options.block_size,
        total_blocks=options.total_blocks,
        has_proposer=True,
        has_self_speculative=hybrid,
        supports_beam=False,
        has_ssm_layers=hybrid,
        ring_slots=options.ring_slots if hybrid else 0,
        supports_token_feed=not hybrid,
    )
