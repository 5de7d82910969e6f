"""config.json of the supported families, checked before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from .fields import Fields
from .files import folder, read_json
from .rope_config import MAX_POSITIONS, RopeConfig, parse_rope

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_next")

MAX_WIDTH = 1 << 17
MAX_VOCAB = 1 << 20
MAX_LAYERS = 512
MAX_HEADS = 1024
MAX_EXPERTS = 1 << 17
"""Of all layers together; the names of their tensors are made before a file is opened."""
MAX_STATE = 1 << 24
"""Elements of one layer's recurrent state of one sequence."""
USUAL_WINDOW = 4096

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"


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


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a family's public implementation takes for keys that config.json leaves out; None: see ``parse_config``."""

    positions: int = 32768
    kv_heads: int | None = None
    head_dim: int | None = None
    rotary_share: float | None = None


DEFAULTS = {
    "llama": Defaults(positions=2048),
    "qwen2": Defaults(kv_heads=32),
    "qwen3": Defaults(kv_heads=32, head_dim=128),
    "qwen3_next": Defaults(kv_heads=2, head_dim=256, rotary_share=0.25),
}


def load_config(path: Path) -> ModelConfig:
    """The configuration of the model folder ``path``. Where generation_config.json exists, its ids end a text and those
    of config.json do not, as in the public implementation. Raises ModelError."""
    file = folder(path, "a model") / "config.json"
    config = parse_config(Fields(read_json(file), str(file)))
    generation = path / "generation_config.json"
    if not generation.exists():
        return config
    ids = Fields(read_json(generation), str(generation)).wholes("eos_token_id", 0, config.vocab_size - 1)
    return replace(config, eos_ids=ids)


def parse_config(f: Fields) -> ModelConfig:
    """Check every value that the engine uses."""
    family = f.word("model_type", FAMILIES)
    usual = DEFAULTS[family]
    f.word("hidden_act", ("silu",), "silu")
    if f.has("quantization_config"):
        raise f.fail("quantization_config", "nothing; weights are read as F32, F16 or BF16")
    hidden = f.whole("hidden_size", 1, MAX_WIDTH)
    heads, kv_heads, head_dim = _heads(f, hidden, usual)
    kinds = _layer_types(f, family)
    vocab = f.whole("vocab_size", 2, MAX_VOCAB)
    hybrid = family == "qwen3_next"
    experts, sparse = _experts(f, len(kinds)) if hybrid else (None, frozenset())
    bias = f.flag("attention_bias", False)
    bos = f.wholes("bos_token_id", 0, vocab - 1)
    positions = f.whole("max_position_embeddings", 1, MAX_POSITIONS, usual.positions)
    rope = parse_rope(f, head_dim, positions, usual.rotary_share)
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
        max_positions=min(positions, rope.longest or positions),
        rope=rope,
        tied=f.flag("tie_word_embeddings", False),
        qkv_bias=family == "qwen2" or bias,
        o_bias=family != "qwen2" and bias,
        mlp_bias=family == "llama" and f.flag("mlp_bias", False),
        qk_norm=family in ("qwen3", "qwen3_next"),
        output_gate=hybrid,
        norm_offset=1.0 if hybrid else 0.0,
        window=f.whole("sliding_window", 1, MAX_POSITIONS, USUAL_WINDOW) if SLIDING in kinds else 0,
        linear=_linear(f) if LINEAR in kinds else None,
        experts=experts,
        sparse_layers=sparse,
        eos_ids=f.wholes("eos_token_id", 0, vocab - 1),
        bos_id=bos[0] if bos else None,
        draft_head=hybrid and f.whole("num_nextn_predict_layers", 0, 1, 0) == 1,
    )


def _heads(f: Fields, hidden: int, usual: Defaults) -> tuple[int, int, int]:
    """Query heads, K/V heads and the size of a head."""
    heads = f.whole("num_attention_heads", 1, MAX_HEADS)
    absent = "num_key_value_heads" not in f.values and usual.kv_heads is not None
    kv_heads = f.whole("num_key_value_heads", 1, heads, usual.kv_heads if absent else heads)
    if heads % kv_heads:
        raise f.fail("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    absent = "head_dim" not in f.values and usual.head_dim is not None
    if not f.has("head_dim") and not absent and hidden % heads:
        raise f.fail("num_attention_heads", f"a divisor of hidden_size ({hidden}) where head_dim is not given")
    head_dim = f.whole("head_dim", 2, 4096, usual.head_dim if absent else hidden // heads)
    if heads * head_dim > MAX_WIDTH:
        raise f.fail("num_attention_heads", f"at most {MAX_WIDTH // head_dim} heads of {head_dim} elements")
    return heads, kv_heads, head_dim


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
    windowed = "sliding_window" not in f.values or f.has("sliding_window")
    return tuple(SLIDING if windowed and i >= first else FULL for i in range(count))


def _linear(f: Fields) -> LinearAttentionConfig:
    key_heads = f.whole("linear_num_key_heads", 1, MAX_HEADS, 16)
    value_heads = f.whole("linear_num_value_heads", 1, MAX_HEADS, 32)
    if value_heads % key_heads:
        raise f.fail("linear_num_value_heads", f"a multiple of linear_num_key_heads ({key_heads})")
    key_dim = f.whole("linear_key_head_dim", 1, 1024, 128)
    value_dim = f.whole("linear_value_head_dim", 1, 1024, 128)
    if value_heads * key_dim * value_dim > MAX_STATE:
        raise f.fail("linear_num_value_heads", f"at most {MAX_STATE // (key_dim * value_dim)} with heads of this size")
    return LinearAttentionConfig(
        key_heads, value_heads, key_dim, value_dim, taps=f.whole("linear_conv_kernel_dim", 2, 16, 4)
    )


def _experts(f: Fields, layers: int) -> tuple[ExpertsConfig | None, frozenset[int]]:
    count = f.whole("num_experts", 0, 4096, 512)
    step = f.whole("decoder_sparse_step", 1, MAX_LAYERS, 1)
    dense = set(f.wholes("mlp_only_layers", 0, MAX_LAYERS))
    sparse = frozenset(i for i in range(layers) if i not in dense and count > 0 and (i + 1) % step == 0)
    if not sparse:
        return None, sparse
    if count * len(sparse) > MAX_EXPERTS:
        raise f.fail("num_experts", f"at most {MAX_EXPERTS // len(sparse)} with {len(sparse)} layers of experts")
    chosen = f.whole("num_experts_per_tok", 1, count, min(10, count))
    width = f.whole("moe_intermediate_size", 1, MAX_WIDTH, 512)
    shared = f.whole("shared_expert_intermediate_size", 1, MAX_WIDTH, 512)
    return ExpertsConfig(count, chosen, width, shared, f.flag("norm_topk_prob", True)), sparse
