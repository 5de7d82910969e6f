"""Small random models, the same in every process."""

from __future__ import annotations

from typing import Any

import torch

from metrale.device.checkpoint.config import ModelConfig, parse_config
from metrale.device.checkpoint.fields import Fields
from metrale.device.checkpoint.tensors import model_shapes
from metrale.device.conformance.ordering import Case
from metrale.device.engine import EngineDevice, EngineOptions, Streams
from metrale.device.loading import build_device

ATTENTION: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 1 << 20,
}
HYBRID = ATTENTION | {
    "model_type": "qwen3_next",
    "layer_types": ["linear_attention", "full_attention"],
    "num_hidden_layers": 2,
    "head_dim": 16,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "num_nextn_predict_layers": 1,
}


def tiny_config(vocab: int, hybrid: bool) -> ModelConfig:
    """The model of a forced run."""
    values = (HYBRID if hybrid else ATTENTION) | {"vocab_size": vocab}
    return parse_config(Fields(values, "the forced model"))


def random_weights(config: ModelConfig, seed: int = 20, scale: float = 0.2) -> dict[str, torch.Tensor]:
    """The same weights in every process, on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) * scale for name, shape in model_shapes(config).items()}


def edge_device(case: Case, streams: Streams) -> EngineDevice:
    """A small engine for one program of :mod:`metrale.device.conformance.ordering`."""
    config = tiny_config(64, case.hybrid)
    options = EngineOptions(
        block_size=4, total_blocks=64, max_sequences=8, max_seq_len=128, prefix_cache=case.prefix_cache
    )
    return build_device(config, random_weights(config, seed=5, scale=0.6), options, streams)
