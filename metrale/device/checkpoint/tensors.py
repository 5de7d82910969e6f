"""Weights from safetensors, one file or several with an index: names, shapes and sizes are checked before a byte of
weight is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ..errors import ModelError
from .config import LINEAR, ModelConfig
from .files import plain_name, read_json, regular

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
STEM, BARE = "model.", "embed_tokens.weight"
DTYPES = ("F32", "F16", "BF16")

EMBEDDINGS, HEAD = "model.embed_tokens.weight", "lm_head.weight"

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor stands: the file, and its name there."""

    file: Path
    name: str


def load_tensors(path: Path, config: ModelConfig) -> dict[str, torch.Tensor]:
    """Every tensor that ``config`` asks for, as fp32 on the host. Raises ModelError."""
    where = locate(path)
    if config.tied:
        return _load_tied(path, config, where)
    return read_named(where, model_shapes(config), path)


def _load_tied(path: Path, config: ModelConfig, where: dict[str, Place]) -> dict[str, torch.Tensor]:
    """One matrix serves as embeddings and as head; a folder may store it under either name, or under both."""
    shapes = model_shapes(config)
    if HEAD not in where:
        return read_named(where, shapes, path)
    if EMBEDDINGS not in where:
        return read_named(where | {EMBEDDINGS: where[HEAD]}, shapes, path)
    tensors = read_named(where, shapes | {HEAD: shapes[EMBEDDINGS]}, path)
    if not torch.equal(tensors.pop(HEAD), tensors[EMBEDDINGS]):
        raise ModelError(
            f"{path}: tie_word_embeddings is true, but {HEAD} is not {EMBEDDINGS}; "
            f"set it to false in config.json to use both"
        )
    return tensors


def locate(path: Path) -> dict[str, Place]:
    """Tensors by name. The index may name files of the folder only. A model saved without its head has no ``model.`` in
    front of its names."""
    index = path / INDEX
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ModelError(f"{index}: weight_map is missing; it maps tensor names to file names")
        where = {name: Place(path / plain_name(file, index), name) for name, file in weight_map.items()}
    else:
        file = path / SINGLE
        if not file.exists():
            raise ModelError(f"{path}: neither {SINGLE} nor {INDEX} is here; weights are read from safetensors only")
        where = {name: Place(file, name) for name in names_in(file)}
    if BARE in where and f"{STEM}{BARE}" not in where:
        where = {name if name == HEAD else f"{STEM}{name}": place for name, place in where.items()}
    return where


def names_in(file: Path) -> list[str]:
    """Names of the tensors in one file."""
    with open_file(file) as reader:
        return list(reader.keys())


def open_file(file: Path) -> Any:
    """A safetensors reader; the header's offsets are checked against the file's size by the library."""
    regular(file)
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(f"{file}: not a readable safetensors file ({str(error)[:120]}); fetch it again") from error


def read_named(where: dict[str, Place], shapes: Shapes, path: Path) -> dict[str, torch.Tensor]:
    """The tensors of ``shapes`` as fp32. All headers are checked first, then the data is read."""
    missing = [name for name in shapes if name not in where]
    if missing:
        raise ModelError(f"{path}: tensor {missing[0]} is missing ({len(missing)} in all); the folder is incomplete")
    by_file: dict[Path, list[str]] = {}
    for name in shapes:
        by_file.setdefault(where[name].file, []).append(name)
    for file, names in by_file.items():
        with open_file(file) as reader:
            present = set(reader.keys())
            for name in names:
                if where[name].name not in present:
                    raise ModelError(f"{file}: tensor {name} is missing, although the index places it here")
                _check(reader.get_slice(where[name].name), name, shapes[name], file)
    tensors: dict[str, torch.Tensor] = {}
    for file, names in by_file.items():
        with open_file(file) as reader:
            for name in names:
                tensors[name] = reader.get_tensor(where[name].name).to(torch.float32).contiguous()
    return tensors


def _check(header: Any, name: str, shape: tuple[int, ...], file: Path) -> None:
    found, dtype = tuple(header.get_shape()), header.get_dtype()
    if found != shape:
        raise ModelError(f"{file}: tensor {name} has shape {list(found)}, config.json asks for {list(shape)}")
    if dtype not in DTYPES:
        raise ModelError(f"{file}: tensor {name} is {dtype}; {', '.join(DTYPES)} can be read")


def model_shapes(config: ModelConfig) -> Shapes:
    """Name and shape of every tensor of a model, in the names of the public implementations."""
    shapes: Shapes = {
        EMBEDDINGS: (config.vocab_size, config.hidden_size),
        "model.norm.weight": (config.hidden_size,),
    }
    if not config.tied:
        shapes[HEAD] = (config.vocab_size, config.hidden_size)
    for index, kind in enumerate(config.layer_types):
        shapes |= layer_shapes(config, f"model.layers.{index}.", kind, index in config.sparse_layers)
    if config.draft_head:
        hidden = config.hidden_size
        shapes["mtp.fc.weight"] = (hidden, 2 * hidden)
        for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            shapes[f"mtp.{norm}.weight"] = (hidden,)
        shapes |= layer_shapes(config, "mtp.layers.0.", "full_attention", False)
    return shapes


def layer_shapes(config: ModelConfig, prefix: str, kind: str, sparse: bool) -> Shapes:
    """One decoder layer."""
    hidden = config.hidden_size
    shapes: Shapes = {
        f"{prefix}input_layernorm.weight": (hidden,),
        f"{prefix}post_attention_layernorm.weight": (hidden,),
    }
    mixer = _delta_shapes(config) if kind == LINEAR else _attention_shapes(config)
    mlp = _expert_shapes(config) if sparse else _mlp_shapes("mlp.", hidden, config.intermediate_size, config.mlp_bias)
    return shapes | {prefix + name: shape for name, shape in (mixer | mlp).items()}


def _attention_shapes(config: ModelConfig) -> Shapes:
    hidden, dim = config.hidden_size, config.head_dim
    widths = {"q": config.heads * dim * (2 if config.output_gate else 1), "k": config.kv_heads * dim}
    widths["v"] = widths["k"]
    shapes: Shapes = {f"self_attn.{n}_proj.weight": (width, hidden) for n, width in widths.items()}
    shapes["self_attn.o_proj.weight"] = (hidden, config.heads * dim)
    if config.qkv_bias:
        shapes |= {f"self_attn.{n}_proj.bias": (width,) for n, width in widths.items()}
    if config.o_bias:
        shapes["self_attn.o_proj.bias"] = (hidden,)
    if config.qk_norm:
        shapes |= {"self_attn.q_norm.weight": (dim,), "self_attn.k_norm.weight": (dim,)}
    return shapes


def _delta_shapes(config: ModelConfig) -> Shapes:
    linear, hidden = config.linear, config.hidden_size
    assert linear is not None
    return {
        "linear_attn.in_proj_qkvz.weight": (2 * linear.keys + 2 * linear.values, hidden),
        "linear_attn.in_proj_ba.weight": (2 * linear.value_heads, hidden),
        "linear_attn.conv1d.weight": (linear.channels, 1, linear.taps),
        "linear_attn.dt_bias": (linear.value_heads,),
        "linear_attn.A_log": (linear.value_heads,),
        "linear_attn.norm.weight": (linear.value_dim,),
        "linear_attn.out_proj.weight": (hidden, linear.values),
    }


def _mlp_shapes(prefix: str, hidden: int, width: int, bias: bool = False) -> Shapes:
    shapes: Shapes = {
        f"{prefix}gate_proj.weight": (width, hidden),
        f"{prefix}up_proj.weight": (width, hidden),
        f"{prefix}down_proj.weight": (hidden, width),
    }
    if bias:
        shapes |= {f"{prefix}{n}_proj.bias": (hidden if n == "down" else width,) for n in ("gate", "up", "down")}
    return shapes


def _expert_shapes(config: ModelConfig) -> Shapes:
    experts, hidden = config.experts, config.hidden_size
    assert experts is not None
    shapes: Shapes = {"mlp.gate.weight": (experts.count, hidden), "mlp.shared_expert_gate.weight": (1, hidden)}
    shapes |= _mlp_shapes("mlp.shared_expert.", hidden, experts.shared_width)
    for index in range(experts.count):
        shapes |= _mlp_shapes(f"mlp.experts.{index}.", hidden, experts.width)
    return shapes
