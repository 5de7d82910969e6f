"""Small models and a small driver for tests of the engine."""

from __future__ import annotations

from pathlib import Path

import torch

from metrale.core.request import Completion, Request
from metrale.device.checkpoint.config import ModelConfig, parse_config
from metrale.device.checkpoint.fields import Fields
from metrale.device.checkpoint.tensors import model_shapes
from metrale.device.engine import EngineDevice, EngineOptions, Streams
from metrale.device.loading import build_device

LLAMA = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
HYBRID = LLAMA | {
    "model_type": "qwen3_next",
    "num_hidden_layers": 4,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "num_nextn_predict_layers": 1,
}


class Sink:
    """A client that keeps everything."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.completion: Completion | None = None
        self.failure: str | None = None

    def token(self, token: int) -> bool:
        self.tokens.append(token)
        return True

    def token_logprobs(self, token: int, record: object) -> bool:
        return self.token(token)

    def finish(self, completion: Completion) -> None:
        self.completion = completion

    def error(self, text: str) -> None:
        self.failure = text


def config_of(values: dict) -> ModelConfig:
    return parse_config(Fields(values, "config"))


def random_tensors(config: ModelConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in model_shapes(config).items():
        scale = 0.3 if len(shape) > 1 else 0.1
        tensors[name] = torch.randn(shape, generator=generator) * scale
        if "norm" in name and not config.norm_offset:
            tensors[name] += 1.0
    return tensors


def device_for(values: dict = LLAMA, seed: int = 0, streams: Streams | None = None, **options: object) -> EngineDevice:
    config = config_of(values)
    sizes = {"block_size": 4, "total_blocks": 256, "max_sequences": 16, "max_seq_len": 256} | options
    return build_device(config, random_tensors(config, seed), EngineOptions(**sizes), streams)  # type: ignore[arg-type]


def request_for(number: int, prompt: list[int], max_tokens: int = 8) -> Request:
    return Request(number, list(prompt), max_tokens, Sink())


def start(device: EngineDevice, prompt: list[int], number: int = 1):
    """A sequence whose prompt is not fed yet."""
    request = request_for(number, prompt)
    seq = device.alloc_sequence(request)
    seq.session_hash = number
    seq.adapter_id = device.adapter_id_for(-1)
    seq.acquired_adapter = device.acquire_adapter_slot(-1)
    return seq


def greedy(device: EngineDevice, prompt: list[int], count: int) -> list[int]:
    """``count`` greedy tokens by prefill and single decodes."""
    seq = start(device, prompt)
    device.prefill(prompt, seq, 0)
    tokens = [device.argmax_on_device(0, 0)]
    while len(tokens) < count:
        device.decode_batch([tokens[-1]], [seq], 0)
        tokens.append(device.argmax_on_device(0, 0))
    device.free_sequence(seq)
    return tokens


def prompt_of(length: int, vocab: int = 64, salt: int = 0) -> list[int]:
    return [(7 * i * i + 3 * i + salt) % vocab for i in range(length)]


def folder_of(tmp_path: Path, name: str) -> Path:
    path = tmp_path / name
    path.mkdir()
    return path
