"""LoRA adapters in PEFT's layout: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch

from ..errors import ModelError
from .config import ModelConfig
from .fields import Fields
from .files import folder, read_json, shorten
from .lora_config import MAX_RANK, LoraSettings
from .tensors import Place, Shapes, model_shapes, open_file, read_named

FILE = "adapter_model.safetensors"
NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.[^.]+)?\.weight")
"""Name of the adapted module, half of the pair; some files keep the adapter's own name before the end."""
STACKED = re.compile(r"(model\.layers\.(\d+)\.mlp\.experts)(?:\.base_layer)*")
"""One pair for all experts of a layer, as PEFT stores it for models that keep their experts in one tensor."""
NOT_LINEAR = ("model.embed_tokens.weight", "lm_head.weight")

Deltas = dict[str, tuple[torch.Tensor, torch.Tensor, float]]


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """``deltas`` maps the name of a weight matrix to (A, B, scale): y += scale * (x A^T) B^T with A [rank, in]."""

    name: str
    deltas: Deltas

    def to(self, device: torch.device, dtype: torch.dtype = torch.float32) -> LoraAdapter:
        """The same adapter with its matrices on ``device``, stored as ``dtype``."""
        moved = {name: (a.to(device, dtype), b.to(device, dtype), scale) for name, (a, b, scale) in self.deltas.items()}
        return LoraAdapter(self.name, moved)


@dataclass(frozen=True, slots=True)
class Pair:
    """The two matrices of a module: where they stand, and their shapes."""

    module: str
    places: tuple[Place, Place]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Target:
    """What a pair adapts: ``weights`` of the model, [out, in] one above the other, of ``experts`` experts or of one
    layer (0). The settings know it as ``key``."""

    key: str
    weights: tuple[str, ...]
    out: int
    into: int
    rank: int
    experts: int = 0

    @property
    def shapes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Of A and of B."""
        inner = self.rank * max(1, self.experts)
        return (inner, self.into), (self.out, inner)

    def deltas(self, a: torch.Tensor, b: torch.Tensor, scale: float) -> Deltas:
        """Each weight with its own matrices. A of experts is expert by expert, B is rank by rank."""
        if not self.experts:
            return {self.weights[0]: (a, b, scale)}
        names = len(self.weights) // self.experts
        found: Deltas = {}
        for index in range(self.experts):
            first = a.view(self.experts, self.rank, self.into)[index].contiguous()
            second = b.view(self.out, self.rank, self.experts)[:, :, index].chunk(names)
            for name, half in zip(self.weights[index * names : (index + 1) * names], second, strict=True):
                found[name] = (first, half.contiguous(), scale)
        return found


def load_lora(path: Path, config: ModelConfig) -> LoraAdapter:
    """The adapter of folder ``path``, checked against the model. Raises ModelError."""
    settings_file, file = folder(path, "an adapter") / "adapter_config.json", path / FILE
    settings = LoraSettings(Fields(read_json(settings_file), str(settings_file)))
    model = model_shapes(config)
    pairs = _pairs(file)
    targets = [_stacked(pair, config, file) or _plain(pair, model, file) for pair in pairs]
    where: dict[str, Place] = {}
    shapes: Shapes = {}
    for pair, target in zip(pairs, targets, strict=True):
        _check_rank(target, settings, file)
        for place, shape in zip(pair.places, target.shapes, strict=True):
            where[place.name], shapes[place.name] = place, shape
    tensors = read_named(where, shapes, path)
    deltas: Deltas = {}
    for pair, target in zip(pairs, targets, strict=True):
        if not deltas.keys().isdisjoint(target.weights):
            raise _twice(file, pair.module)
        a, b = (tensors[place.name] for place in pair.places)
        deltas |= target.deltas(a, b, settings.scale(target.key, target.rank))
    return LoraAdapter(path.name, deltas)


def _pairs(file: Path) -> list[Pair]:
    """The header's matrices, two by two."""
    halves: dict[str, dict[str, Place]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    with open_file(file) as reader:
        for name in reader.keys():  # noqa: SIM118 (a reader is no mapping)
            match = NAME.fullmatch(name)
            if match is None:
                raise _stranger(file, name)
            pair = halves.setdefault(match[1], {})
            if match[2] in pair:
                raise _twice(file, match[1])
            pair[match[2]] = Place(file, name)
            shapes[name] = tuple(reader.get_slice(name).get_shape())
    if not halves:
        raise ModelError(f"{file}: holds no LoRA matrices")
    pairs = []
    for module, pair in halves.items():
        if len(pair) < 2:
            raise ModelError(f"{file}: {shorten(module)} has one of lora_A and lora_B only; fetch the file again")
        places = pair["A"], pair["B"]
        pairs.append(Pair(module, places, (shapes[places[0].name], shapes[places[1].name])))
    return pairs


def _plain(pair: Pair, model: Shapes, file: Path) -> Target:
    """A linear layer."""
    name = f"{pair.module}.weight"
    base = model.get(name)
    if base is None or len(base) != 2 or name in NOT_LINEAR:
        raise _stranger(file, pair.places[0].name)
    rank = pair.shapes[0][0] if len(pair.shapes[0]) == 2 else 0
    return Target(pair.module, (name,), base[0], base[1], rank)


def _stacked(pair: Pair, config: ModelConfig, file: Path) -> Target | None:
    """The experts of one layer; which of their matrices, the shapes tell."""
    match, experts = STACKED.fullmatch(pair.module), config.experts
    if match is None:
        return None
    if experts is None or int(match[2]) not in config.sparse_layers:
        raise _stranger(file, pair.places[0].name)
    wide = pair.shapes[0][1:] == (config.hidden_size,) and pair.shapes[1][:1] == (2 * experts.width,)
    parameter = "gate_up_proj" if wide else "down_proj"
    out, into = (2 * experts.width, config.hidden_size) if wide else (config.hidden_size, experts.width)
    names = ("gate_proj", "up_proj") if wide else ("down_proj",)
    weights = tuple(f"{match[1]}.{index}.{name}.weight" for index in range(experts.count) for name in names)
    rank, rest = divmod(pair.shapes[0][0] if len(pair.shapes[0]) == 2 else 0, experts.count)
    return Target(f"{match[1]}.{parameter}", weights, out, into, 0 if rest else rank, experts.count)


def _check_rank(target: Target, settings: LoraSettings, file: Path) -> None:
    if not 1 <= target.rank <= MAX_RANK:
        raise ModelError(f"{file}: {target.key} needs a lora_A of two dimensions with a rank from 1 to {MAX_RANK}")
    said = settings.rank(target.key, target.rank)
    if said != target.rank:
        raise ModelError(f"{file}: {target.key} has rank {target.rank}, adapter_config.json says {said}")


def _stranger(file: Path, name: str) -> ModelError:
    return ModelError(f"{file}: {shorten(name)} adapts nothing that is a linear layer of this model's decoder")


def _twice(file: Path, module: str) -> ModelError:
    return ModelError(f"{file}: {shorten(module)} is adapted twice; keep one adapter")
