"""The engine itself on a GPU: decode steps a second through the calls that a scheduler makes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from gpu_bench import Row

from metrale.device.checkpoint import ModelConfig, load_config
from metrale.device.checkpoint.config import parse_config
from metrale.device.checkpoint.fields import Fields
from metrale.device.checkpoint.tensors import model_shapes
from metrale.device.conformance.driver import prefilled
from metrale.device.engine import EngineDevice, EngineOptions
from metrale.device.loading import Backend, Weights, backend, build_device, limit_threads, open_model, shipped_model

MIDDLE: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 4096,
}
TOY = MIDDLE | {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


@dataclass(frozen=True, slots=True)
class Variant:
    """How an engine stores its numbers, and whether it may record its steps. Name an option here to measure it."""

    dtype: torch.dtype
    graphs: bool

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}, {'recorded' if self.graphs else 'launched'}"


VARIANTS = tuple(Variant(dtype, graphs) for dtype in (torch.bfloat16, torch.float32) for graphs in (True, False))


@dataclass(frozen=True, slots=True)
class Load:
    """Prompt tokens of a sequence, steps before time counts, steps that count, and the batches."""

    prompt: int
    warm: int
    steps: int
    batches: tuple[int, ...]


FULL = Load(130, 6, 64, (1, 8, 32))
SMALL = Load(2, 0, 1, (2,))


def engine_rates(on: Backend, full: bool) -> Iterator[tuple[str, Row]]:
    """The model of middle size in every variant, then the model that is shipped."""
    config = parse_config(Fields(MIDDLE if full else TOY, "the measured model"))
    tensors = random_tensors(config, on.device)
    load = FULL if full else SMALL
    for variant in VARIANTS if full else VARIANTS[-1:]:
        for batch in load.batches:
            placed = replace(on, dtype=variant.dtype)
            device = build_device(config, tensors, _options(batch, load, variant.graphs), on=placed)
            yield f"{variant}, batch {batch}", _tried(device, batch, load)
    limit_threads(load_config(shipped_model()).hidden_size)
    for batch in (1, 8) if full else (2,):
        device = open_model(shipped_model(), _options(batch, load, True), on=on if full else backend("torch"))
        yield f"shipped model, batch {batch}", _tried(device, batch, load)


def warm_engine(on: Backend) -> None:
    """Compile what the variants need, on a model of one layer."""
    config = parse_config(Fields(MIDDLE | {"num_hidden_layers": 1}, "the measured model"))
    tensors = random_tensors(config, on.device)
    for dtype in {variant.dtype for variant in VARIANTS}:
        device = build_device(config, tensors, _options(1, FULL, False), on=replace(on, dtype=dtype))
        rate(device, 1, replace(FULL, steps=1))


def random_tensors(config: ModelConfig, on: torch.device) -> Weights:
    """Weights of a size that keeps numbers in range, the same in every run; norms are ones."""
    torch.manual_seed(1)
    made = {}
    for name, shape in model_shapes(config).items():
        made[name] = (
            torch.randn(shape, device=on) * shape[-1] ** -0.5 if len(shape) > 1 else torch.ones(shape, device=on)
        )
    return made


def _options(batch: int, load: Load, graphs: bool) -> EngineOptions:
    longest = load.prompt + load.warm + load.steps + 1
    return EngineOptions(
        total_blocks=batch * (longest // 16 + 2), max_sequences=batch, max_seq_len=longest, graphs=graphs
    )


def _tried(device: EngineDevice, batch: int, load: Load) -> Row:
    try:
        return rate(device, batch, load)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}


def rate(device: EngineDevice, batch: int, load: Load) -> Row:
    """Steps of ``decode_batch`` and ``argmax_batch``, as a scheduler without a token feed makes them."""
    vocab = device.config.vocab_size
    prompts = [[(7 * i + 3 * row + 1) % vocab for i in range(load.prompt)] for row in range(batch)]
    seqs = [prefilled(device, prompt, number) for number, prompt in enumerate(prompts)]
    tokens = [1] * batch
    for _ in range(load.warm):
        device.decode_batch(tokens, seqs, 0)
        tokens = device.argmax_batch(0, batch, 0)
    started = time.perf_counter()
    for _ in range(load.steps):
        device.decode_batch(tokens, seqs, 0)
        tokens = device.argmax_batch(0, batch, 0)
    spent = (time.perf_counter() - started) / load.steps
    graphs: Any = device.decoder.graphs
    row: Row = {
        "steps_per_second": 1 / spent,
        "tokens_per_second": batch / spent,
        "recordings": 0 if graphs is None else len(graphs),
        "reason": "" if graphs is None else graphs.reason,
    }
    for seq in seqs:
        device.free_sequence(seq)
    device.teardown()
    return row
