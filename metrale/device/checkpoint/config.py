"""config.json of the supported families, checked before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from .fields import Fields
from .files import folder, read_json

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_next")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")

MAX_WIDTH = 1 << 17
MAX_VOCAB = 1 << 20
MAX_LAYERS = 512
MAX_HEADS = 1024
MAX_POSITIONS = 1 << 24

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding: ``dim`` rotated dimensions of each head, base ``theta``, and how frequencies are scaled."""

    kind: str
    theta: float
    dim: int
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 0
    attention_factor: float | None = None
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class LinearAttentionConfig:
    """Gated delta-rule layers: heads and head sizes of keys and values, taps of the causal convolution."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int

    @property
    def keys(self) -> int:
        """Width of all keys."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Width of all values."""
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys, values."""
        return 2 * self.keys + self.values


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """Mixture of experts: ``chosen`` of ``count`` experts per token, one shared expert beside them."""

    count: int
    chosen: int
    width: int
    shared_width: int
    normalise: bool


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What the engine needs of a config.json. Widths in elements, ``window`` in tokens (0: no sliding window)."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layer_types: tuple[str, ...]
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    max_positions: int
    rope: RopeConfig
    tied: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    output_gate: bool = False
    norm_offset: float = 0.0
    window: int = 0
    linear: LinearAttentionConfig | None = None
    experts: ExpertsConfig | None = None
    sparse_layers: frozenset[int] = frozenset()
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    draft_head: bool = False

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        return len(self.layer_types)

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """Indices of the layers with paged K/V."""
        return tuple(i for i, kind in enumerate(self.layer_types) if kind != LINEAR)

    @property
    def linear_layers(self) -> tuple[int, ...]:
        """Indices of the recurrent layers."""
        return tuple(i for i, kind in enumerate(self.layer_types) if kind == LINEAR)


def load_config(path: Path) -> ModelConfig:
    """The configuration of the model folder ``path``; generation_config.json may add ids that end a text. Raises
    ModelError."""
    file = folder(path, "a model") / "config.json"
    config = parse_config(Fields(read_json(file), str(file)))
    generation = path / "generation_config.json"
    if not generation.exists():
        return config
    more = Fields(read_json(generation), str(generation)).wholes("eos_token_id", 0, config.vocab_size - 1)
    return replace(config, eos_ids=tuple(sorted({*config.eos_ids, *more})))


def parse_config(f: Fields) -> ModelConfig:
    """Check every value that the engine uses."""
    family = f.word("model_type", FAMILIES)
    f.word("hidden_act", ("silu",), "silu")
    hidden = f.whole("hidden_size", 1, MAX_WIDTH)
    heads = f.whole("num_attention_heads", 1, MAX_HEADS)
    kv_heads = f.whole("num_key_value_heads", 1, heads, heads)
    if heads % kv_heads:
        raise f.fail("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    if not f.has("head_dim") and hidden % heads:
        raise f.fail("num_attention_heads", f"a divisor of hidden_size ({hidden}) where head_dim is not given")
    head_dim = f.whole("head_dim", 2, 4096, hidden // heads)
    kinds = _layer_types(f, family)
    vocab = f.whole("vocab_size", 2, MAX_VOCAB)
    hybrid = family == "qwen3_next"
    experts, sparse = _experts(f, len(kinds)) if hybrid else (None, frozenset())
    bias = f.flag("attention_bias", False)
    bos = f.wholes("bos_token_id", 0, vocab - 1)
    return ModelConfig(
        family=family,
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=f.whole("intermediate_size", 1, MAX_WIDTH),
        layer_types=kinds,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        eps=f.real("rms_norm_eps", 0.0, 1.0, 1e-6),
        max_positions=f.whole("max_position_embeddings", 1, MAX_POSITIONS, 2048),
        rope=_rope(f, head_dim, 0.25 if hybrid else 1.0),
        tied=f.flag("tie_word_embeddings", False),
        qkv_bias=family == "qwen2" or bias,
        o_bias=family != "qwen2" and bias,
        mlp_bias=family == "llama" and f.flag("mlp_bias", False),
        qk_norm=family in ("qwen3", "qwen3_next"),
        output_gate=hybrid,
        norm_offset=1.0 if hybrid else 0.0,
        window=f.whole("sliding_window", 1, MAX_POSITIONS) if SLIDING in kinds else 0,
        linear=_linear(f) if LINEAR in kinds else None,
        experts=experts,
        sparse_layers=sparse,
        eos_ids=f.wholes("eos_token_id", 0, vocab - 1),
        bos_id=bos[0] if bos else None,
        draft_head=hybrid and f.whole("num_nextn_predict_layers", 0, 1, 0) == 1,
    )


def _layer_types(f: Fields, family: str) -> tuple[str, ...]:
    count = f.whole("num_hidden_layers", 1, MAX_LAYERS)
    allowed = {"llama": (FULL,), "qwen3_next": (FULL, LINEAR)}.get(family, (FULL, SLIDING))
    kinds = f.values.get("layer_types")
    if kinds is None:
        return _implied_types(f, family, count)
    if not isinstance(kinds, list) or len(kinds) != count or any(kind not in allowed for kind in kinds):
        raise f.fail("layer_types", f"{count} entries, each one of {', '.join(allowed)}")
    return tuple(kinds)


def _implied_types(f: Fields, family: str, count: int) -> tuple[str, ...]:
    if family == "qwen3_next":
        every = f.whole("full_attention_interval", 1, MAX_LAYERS, 4)
        return tuple(LINEAR if (i + 1) % every else FULL for i in range(count))
    if family == "llama" or not f.flag("use_sliding_window", False):
        return (FULL,) * count
    first = f.whole("max_window_layers", 0, MAX_LAYERS, 28)
    return tuple(SLIDING if i >= first and f.has("sliding_window") else FULL for i in range(count))


def _linear(f: Fields) -> LinearAttentionConfig:
    key_heads = f.whole("linear_num_key_heads", 1, MAX_HEADS, 16)
    value_heads = f.whole("linear_num_value_heads", 1, MAX_HEADS, 32)
    if value_heads % key_heads:
        raise f.fail("linear_num_value_heads", f"a multiple of linear_num_key_heads ({key_heads})")
    return LinearAttentionConfig(
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=f.whole("linear_key_head_dim", 1, 1024, 128),
        value_dim=f.whole("linear_value_head_dim", 1, 1024, 128),
        taps=f.whole("linear_conv_kernel_dim", 2, 16, 4),
    )


def _experts(f: Fields, layers: int) -> tuple[ExpertsConfig | None, frozenset[int]]:
    count = f.whole("num_experts", 0, 4096, 512)
    step = f.whole("decoder_sparse_step", 1, MAX_LAYERS, 1)
    dense = set(f.wholes("mlp_only_layers", 0, MAX_LAYERS))
    sparse = frozenset(i for i in range(layers) if i not in dense and count > 0 and (i + 1) % step == 0)
    if not sparse:
        return None, sparse
    chosen = f.whole("num_experts_per_tok", 1, count, min(10, count))
    width = f.whole("moe_intermediate_size", 1, MAX_WIDTH, 512)
    shared = f.whole("shared_expert_intermediate_size", 1, MAX_WIDTH, 512)
    return ExpertsConfig(count, chosen, width, shared, f.flag("norm_topk_prob", True)), sparse


def _rope(f: Fields, head_dim: int, default_share: float) -> RopeConfig:
    """``rope_parameters`` of newer files, ``rope_theta`` and ``rope_scaling`` of older ones."""
    new = f.inner("rope_parameters")
    scaling = new or f.inner("rope_scaling") or Fields({}, f"{f.where}: rope_scaling")
    base = new if new is not None and new.has("rope_theta") else f
    share_of = new if new is not None and new.has("partial_rotary_factor") else f
    key = "rope_type" if scaling.has("rope_type") else "type"
    kind = scaling.word(key, ROPE_TYPES, "default")
    dim = int(head_dim * share_of.real("partial_rotary_factor", 0.0, 1.0, default_share))
    if dim < 2 or dim % 2:
        raise share_of.fail(
            "partial_rotary_factor", f"a share that rotates an even number of the {head_dim} dimensions"
        )
    theta = base.real("rope_theta", 1.0, 1e15, 10000.0)
    if kind == "default":
        return RopeConfig(kind, theta, dim)
    positions = f.whole("max_position_embeddings", 1, MAX_POSITIONS, 2048)
    if kind == "llama3" and not scaling.has("original_max_position_embeddings"):
        raise scaling.fail("original_max_position_embeddings", f"a whole number from 1 to {MAX_POSITIONS}")
    original = scaling.whole("original_max_position_embeddings", 1, MAX_POSITIONS, positions)
    default_factor = positions / original if kind == "yarn" else None
    low = scaling.real("low_freq_factor", 1e-6, 1e6) if kind == "llama3" else 1.0
    high = scaling.real("high_freq_factor", 1e-6, 1e6) if kind == "llama3" else 4.0
    if low >= high:
        raise scaling.fail("high_freq_factor", f"more than low_freq_factor ({low})")
    return RopeConfig(
        kind=kind,
        theta=theta,
        dim=dim,
        factor=scaling.real("factor", 1e-6, 1e6, default_factor),
        low_freq_factor=low,
        high_freq_factor=high,
        original_positions=original,
        attention_factor=scaling.real("attention_factor", 0.0, 1e6) if scaling.has("attention_factor") else None,
        mscale=scaling.real("mscale", 0.0, 1e6, 0.0),
        mscale_all_dim=scaling.real("mscale_all_dim", 0.0, 1e6, 0.0),
        beta_fast=scaling.real("beta_fast", 0.0, 1e6, 0.0) or 32.0,
        beta_slow=scaling.real("beta_slow", 0.0, 1e6, 0.0) or 1.0,
        truncate=scaling.flag("truncate", True),
    )
