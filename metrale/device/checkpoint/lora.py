"""LoRA adapters in PEFT's layout: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import torch

from ..errors import ModelError
from .config import ModelConfig
from .fields import Fields
from .files import folder, read_json, shorten
from .tensors import Place, Shapes, model_shapes, open_file, read_named

FILE = "adapter_model.safetensors"
MAX_RANK = 1 << 14
NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.[^.]+)?\.weight")
"""Name of the adapted module, half of the pair; some files keep the adapter's own name before the end."""

NOT_LINEAR = ("model.embed_tokens.weight", "lm_head.weight")
UNSUPPORTED = (
    "use_dora", "lora_bias", "use_qalora", "use_bdlora", "arrow_config", "kasa_config", "monteclora_config",
    "alora_invocation_tokens", "layer_replication", "megatron_config", "modules_to_save", "target_parameters",
    "trainable_token_indices",
)  # fmt: skip
"""Settings with which the answer is no longer that of plain LoRA on linear layers."""
CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Ways to start a training that also change the base model's weights; the adapter does not fit the published ones."""


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
            raise f.fail(key, "nothing; this engine reads plain LoRA on linear layers")
    if f.values.get("bias") not in (None, "none"):
        raise f.fail("bias", "none")
    start = f.values.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(CHANGED_BASE):
        raise f.fail("init_lora_weights", "a start that leaves the base model as it is; convert the adapter to LoRA")
    alphas, ranks = Pattern(f, "alpha_pattern"), Pattern(f, "rank_pattern")
    where, shapes, found = _adapter_shapes(path / FILE, model_shapes(config))
    tensors = read_named(where, shapes, path)
    deltas = {}
    for module, rank in found.items():
        said = ranks.of(module, "r", 1.0, MAX_RANK, float(rank))
        if said != rank:
            raise ModelError(f"{path / FILE}: {module} has rank {rank}, {file.name} says {said:g}")
        alpha = alphas.of(module, "lora_alpha", 0.0, 1e6, 8.0)
        scale = alpha / (math.sqrt(rank) if f.flag("use_rslora", False) else rank)
        deltas[f"{module}.weight"] = (tensors[_half(module, "A")], tensors[_half(module, "B")], scale)
    return LoraAdapter(path.name, deltas)


def _half(module: str, half: str) -> str:
    return f"{module}.lora_{half}"


def _adapter_shapes(file: Path, model: Shapes) -> tuple[dict[str, Place], Shapes, dict[str, int]]:
    """Place and shape of each matrix, and the rank of each adapted module, which the header of A gives."""
    where: dict[str, Place] = {}
    shapes: Shapes = {}
    ranks: dict[str, int] = {}
    with open_file(file) as reader:
        for name in reader.keys():  # noqa: SIM118 (a reader is no mapping)
            match = NAME.fullmatch(name)
            base = model.get(f"{match[1]}.weight") if match else None
            if match is None or base is None or len(base) != 2 or f"{match[1]}.weight" in NOT_LINEAR:
                raise ModelError(f"{file}: {shorten(name)} adapts nothing that is a linear layer of this model's stack")
            key = _half(match[1], match[2])
            if key in where:
                raise ModelError(f"{file}: {shorten(name)} is there twice; keep one adapter")
            where[key] = Place(file, name)
            ranks[match[1]] = 0
        for module in ranks:
            out, into = model[f"{module}.weight"]
            first, second = _half(module, "A"), _half(module, "B")
            size = reader.get_slice(where[first].name).get_shape() if first in where and second in where else []
            rank = ranks[module] = size[0] if size else 0
            if not 1 <= rank <= MAX_RANK:
                raise ModelError(f"{file}: {module} needs lora_A and lora_B with a rank from 1 to {MAX_RANK}")
            shapes |= {first: (rank, into), second: (out, rank)}
    if not ranks:
        raise ModelError(f"{file}: holds no LoRA matrices")
    return where, shapes, ranks


class Pattern:
    """``rank_pattern`` or ``alpha_pattern``: values for the modules whose name, or its end after a dot, matches a key.

    Keys are regular expressions. Those that could take very long on a short name are refused: a repeated group, more
    than two repetitions.
    """

    def __init__(self, f: Fields, key: str) -> None:
        self.f = f
        self.inner = f.inner(key) or Fields({}, f.where)
        self.keys = [(name, self._compiled(name)) for name in self.inner.values]

    def _compiled(self, name: str) -> re.Pattern[str]:
        repeats = len(re.findall(r"[*+?{]", name))
        allowed = "names of modules, as regular expressions of at most 500 characters and two repetitions"
        if len(name) > 500 or repeats > 2 or re.search(r"\)\s*[*+?{]", name):
            raise self.inner.fail(name, allowed)
        try:
            return re.compile(rf"(.*\.)?({name})$")
        except (re.error, RecursionError, OverflowError) as error:
            raise self.inner.fail(name, allowed) from error

    def of(self, module: str, general: str, low: float, high: float, default: float) -> float:
        """The value of the first key that matches ``module``, else that of the config's key ``general``."""
        for name, pattern in self.keys:
            if pattern.match(module):
                return self.inner.real(name, low, high)
        return self.f.real(general, low, high, default)
