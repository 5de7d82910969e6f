"""LoRA adapters in PEFT's layout: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import ModelError
from .config import ModelConfig
from .fields import Fields
from .files import folder, read_json
from .tensors import model_shapes, names_in, read_named

PREFIX = "base_model.model."
UNSUPPORTED = ("use_dora", "lora_bias", "alora_invocation_tokens", "layer_replication", "megatron_config", "eva_config")
FILE = "adapter_model.safetensors"


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """``deltas`` maps the name of a weight matrix to (A, B, scale): y += scale * (x A^T) B^T with A [rank, in]."""

    name: str
    deltas: dict[str, tuple[torch.Tensor, torch.Tensor, float]]

    def to(self, device: torch.device) -> LoraAdapter:
        """The same adapter with its matrices on ``device``."""
        moved = {name: (a.to(device), b.to(device), scale) for name, (a, b, scale) in self.deltas.items()}
        return LoraAdapter(self.name, moved)


def load_lora(path: Path, config: ModelConfig) -> LoraAdapter:
    """The adapter of folder ``path``, checked against the model. Raises ModelError."""
    file = folder(path, "an adapter") / "adapter_config.json"
    f = Fields(read_json(file), str(file))
    f.word("peft_type", ("LORA",))
    for key in UNSUPPORTED:
        if f.values.get(key):
            raise f.fail(key, "nothing; this engine reads plain LoRA")
    if f.values.get("bias", "none") != "none":
        raise f.fail("bias", "none")
    weights = path / FILE
    shapes, ranks = _adapter_shapes(weights, model_shapes(config))
    tensors = read_named(dict.fromkeys(shapes, weights), shapes, path)
    deltas = {
        target: (
            tensors[f"{PREFIX}{_module(target)}.lora_A.weight"],
            tensors[f"{PREFIX}{_module(target)}.lora_B.weight"],
            _scale(f, _module(target), rank),
        )
        for target, rank in ranks.items()
    }
    return LoraAdapter(path.name, deltas)


def _module(target: str) -> str:
    return target.removesuffix(".weight")


def _adapter_shapes(file: Path, model: dict[str, tuple[int, ...]]) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
    """What each adapter tensor must look like; its own header gives the rank."""
    from .tensors import open_file

    shapes: dict[str, tuple[int, ...]] = {}
    ranks: dict[str, int] = {}
    with open_file(file) as reader:
        for name in names_in(file):
            match = re.fullmatch(re.escape(PREFIX) + r"(.+)\.lora_([AB])\.weight", name)
            target = f"{match[1]}.weight" if match else ""
            base = model.get(target)
            if match is None or base is None or len(base) != 2 or target in NOT_LINEAR:
                raise ModelError(f"{file}: {name} adapts nothing that this model has as a linear layer")
            rank = (
                reader.get_slice(f"{PREFIX}{match[1]}.lora_A.weight").get_shape()[0] if _paired(reader, match[1]) else 0
            )
            if not 1 <= rank <= min(base):
                raise ModelError(f"{file}: {name} needs a partner matrix and a rank from 1 to {min(base)}")
            ranks[target] = rank
            shapes[name] = (rank, base[1]) if match[2] == "A" else (base[0], rank)
    if not ranks:
        raise ModelError(f"{file}: holds no LoRA matrices")
    return shapes, ranks


NOT_LINEAR = ("model.embed_tokens.weight", "lm_head.weight")


def _paired(reader: Any, module: str) -> bool:
    present = set(reader.keys())
    return all(f"{PREFIX}{module}.lora_{half}.weight" in present for half in "AB")


def _scale(f: Fields, module: str, rank: int) -> float:
    """alpha / rank, or alpha / sqrt(rank); ``alpha_pattern`` may set alpha for some modules."""
    alpha = f.real("lora_alpha", 0.0, 1e6, 8.0)
    patterns = f.values.get("alpha_pattern") or {}
    if not isinstance(patterns, dict):
        raise f.fail("alpha_pattern", "an object")
    for suffix, value in patterns.items():
        if module == suffix or module.endswith(f".{suffix}"):
            alpha = Fields({suffix: value}, f.where).real(suffix, 0.0, 1e6)
    return alpha / (math.sqrt(rank) if f.flag("use_rslora", False) else rank)
