"""Token for token what the public implementation of each family says, in fp32 on the CPU."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from metrale.conform.serving import TextSink, serve
from metrale.core.config import SchedulerConfig
from metrale.core.request import Request
from metrale.device.checkpoint import load_config
from metrale.device.checkpoint.config import parse_config
from metrale.device.checkpoint.fields import Fields
from metrale.device.engine import EngineOptions
from metrale.device.loading import open_model
from metrale.device.model.rope import attention_factor, inverse_frequencies

from .support import greedy, prompt_of

transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
NEXT = SMALL | {
    "num_hidden_layers": 5,
    "head_dim": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 8,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 28,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.5, 2.0, 2.0, 3.5],
    "long_factor": [4.0] * 6,
    "original_max_position_embeddings": 96,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}

CASES = {
    "llama": ("Llama", SMALL),
    "llama-tied": ("Llama", SMALL | {"tie_word_embeddings": True}),
    "llama-biases": ("Llama", SMALL | {"attention_bias": True, "mlp_bias": True}),
    "llama-mqa": ("Llama", SMALL | {"num_key_value_heads": 1, "head_dim": 16}),
    "llama-llama3": ("Llama", SMALL | {"rope_parameters": LLAMA3}),
    "llama-linear": ("Llama", SMALL | {"rope_parameters": LINEAR}),
    "llama-dynamic": ("Llama", SMALL | {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}),
    "llama-longrope": ("Llama", SMALL | {"rope_parameters": LONG}),
    "qwen2": ("Qwen2", SMALL),
    "qwen2-tied-yarn": ("Qwen2", SMALL | {"tie_word_embeddings": True, "rope_parameters": YARN}),
    "qwen2-sliding": ("Qwen2", SMALL | {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "qwen3": ("Qwen3", SMALL | {"head_dim": 16}),
    "qwen3-all-heads-tied": ("Qwen3", SMALL | {"head_dim": 32, "num_key_value_heads": 4, "tie_word_embeddings": True}),
    "qwen3-yarn": ("Qwen3", SMALL | {"head_dim": 16, "rope_parameters": YARN}),
    "qwen3_next": ("Qwen3Next", NEXT),
    "qwen3_next-odd-share": ("Qwen3Next", NEXT | {"head_dim": 20, "linear_conv_kernel_dim": 2}),
    "qwen3_next-dense-layer": ("Qwen3Next", NEXT | {"mlp_only_layers": [1], "norm_topk_prob": False}),
    "qwen3_next-every-other-sparse": ("Qwen3Next", NEXT | {"decoder_sparse_step": 2, "tie_word_embeddings": True}),
}


def reference_model(kind: str, values: dict):
    torch.manual_seed(7)
    config = getattr(transformers, f"{kind}Config")(**values)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1 and "A_log" not in name:
                weight.add_(torch.randn_like(weight) * 0.1)
    return model


def reference_tokens(model, prompt: list[int], count: int) -> list[int]:
    """Greedy without a cache: each token from a forward over everything before it."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("name", CASES)
def test_tokens_of_the_public_implementation(name, tmp_path):
    kind, values = CASES[name]
    model = reference_model(kind, values)
    size = "20KB" if name in ("llama", "qwen3_next") else "1GB"
    model.save_pretrained(tmp_path, max_shard_size=size)
    assert (tmp_path / "model.safetensors.index.json").exists() == (size == "20KB")
    device = open_model(tmp_path, EngineOptions(block_size=4, total_blocks=64, max_sequences=2, max_seq_len=128))
    for prompt in (prompt_of(1, 97, 5), prompt_of(7, 97), prompt_of(53, 97, 3)):
        assert greedy(device, prompt, 12) == reference_tokens(model, prompt, 12)


def test_logits_are_close_to_the_public_ones(tmp_path):
    model = reference_model("Qwen3Next", NEXT)
    model.save_pretrained(tmp_path)
    device = open_model(tmp_path, EngineOptions(total_blocks=16, max_sequences=1, max_seq_len=128))
    prompt = prompt_of(40, 97)
    greedy(device, prompt, 1)
    with torch.no_grad():
        wanted = model(torch.tensor([prompt]), use_cache=False).logits[0, -1]
    torch.testing.assert_close(device.logits[0], wanted, rtol=1e-4, atol=1e-4)


def edited(path, change) -> None:
    """config.json with some values changed."""
    values = json.loads((path / "config.json").read_text())
    change(values)
    (path / "config.json").write_text(json.dumps(values))


def older(values: dict) -> None:
    """The keys of older files: the base beside the scaling, the kind under ``type``."""
    new = values.pop("rope_parameters")
    values["rope_theta"] = new.pop("rope_theta")
    new["type"] = new.pop("rope_type")
    values["rope_scaling"] = new


@pytest.mark.parametrize(
    ("rope", "change"),
    [
        (LLAMA3, older),
        (YARN | {"truncate": False, "mscale": 0.7, "mscale_all_dim": 0.9, "beta_fast": 8, "beta_slow": 2.0}, older),
        (YARN | {"attention_factor": 1.3, "factor": None}, older),
        (LONG, older),
        (LLAMA3, lambda values: values["rope_parameters"].pop("original_max_position_embeddings")),
        (YARN, lambda values: values.update(original_max_position_embeddings=64)),
        (LINEAR, lambda values: values.update(rope_scaling={"type": "yarn", "factor": 3.0})),
        (LINEAR, lambda values: values.update(partial_rotary_factor=1.0, rope_scaling={})),
    ],
)
def test_where_a_file_says_how_to_rotate(rope, change, tmp_path):
    """Frequencies and factor of the public implementation, whichever way a file puts them."""
    config = transformers.LlamaConfig(**SMALL | {"rope_parameters": rope})
    config.save_pretrained(tmp_path)
    edited(tmp_path, change)
    public = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(
        transformers.LlamaConfig.from_pretrained(tmp_path)
    )
    ours = load_config(tmp_path).rope
    assert torch.equal(inverse_frequencies(ours), public.inv_freq)
    assert attention_factor(ours) == public.attention_scaling


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3", "Qwen3Next"])
def test_keys_that_a_file_leaves_out(kind):
    """What config.json does not say is what the public implementation takes for it."""
    few = {
        "vocab_size": 97, "hidden_size": 512, "intermediate_size": 80, "num_hidden_layers": 30,
        "num_attention_heads": 64,
    }  # fmt: skip
    if kind in ("Qwen2", "Qwen3"):
        few["use_sliding_window"] = True
    public = getattr(transformers, f"{kind}Config")(**few)
    ours = parse_config(Fields(few | {"model_type": public.model_type}, "config.json"))
    head_dim = getattr(public, "head_dim", 512 // 64)
    assert [ours.kv_heads, ours.head_dim, ours.eps] == [public.num_key_value_heads, head_dim, public.rms_norm_eps]
    assert [ours.max_positions, ours.tied] == [public.max_position_embeddings, public.tie_word_embeddings]
    assert ours.layer_types == tuple(getattr(public, "layer_types", None) or ["full_attention"] * 30)
    assert ours.window == (getattr(public, "sliding_window", None) or 0)
    assert ours.rope.dim == int(head_dim * public.rope_parameters.get("partial_rotary_factor", 1.0))


def test_longrope_holds_up_to_its_first_length(tmp_path):
    """Longer sequences take other frequencies from their first token on, which cached keys cannot follow."""
    model = reference_model("Llama", SMALL | {"rope_parameters": LONG | {"original_max_position_embeddings": 32}})
    model.save_pretrained(tmp_path)
    device = open_model(tmp_path, EngineOptions(block_size=4, total_blocks=64, max_sequences=2, max_seq_len=64))
    assert device.config.max_positions == 32
    request = Request(1, prompt_of(20, 97), 40, TextSink())
    serve(device, SchedulerConfig(max_seq_len=device.config.max_positions, eos_tokens=()), [request])
    done = request.sink.completion
    assert done.reason == "length"
    assert 11 <= len(done.tokens) <= 13
    assert done.tokens == reference_tokens(model, prompt_of(20, 97), len(done.tokens))


@pytest.mark.parametrize("stored", ["embeddings", "head", "both", "bare"])
def test_names_under_which_tied_weights_are_stored(stored, tmp_path):
    model = reference_model("Llama", SMALL | {"tie_word_embeddings": True})
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    embeddings = weights.pop("model.embed_tokens.weight")
    if stored != "head":
        weights["model.embed_tokens.weight"] = embeddings
    if stored in ("head", "both"):
        weights["lm_head.weight"] = embeddings.clone()
    if stored == "bare":
        weights = {name.removeprefix("model."): weight for name, weight in weights.items()}
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(6)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    device = open_model(tmp_path, EngineOptions(total_blocks=16, max_sequences=1, max_seq_len=128))
    public = transformers.LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert greedy(device, prompt_of(7, 97), 8) == reference_tokens(public, prompt_of(7, 97), 8)


@pytest.mark.parametrize(
    ("config", "generation"),
    [
        (5, None),
        ([5, 6], None),
        (5, {"eos_token_id": [9, 7]}),
        (5, {"eos_token_id": 9}),
        (5, {}),
        (None, {"eos_token_id": [8]}),
    ],
)
def test_ids_that_end_a_text(config, generation, tmp_path):
    """generation_config.json, where there is one, has the last word."""
    values = SMALL | {"eos_token_id": config}
    reference_model("Llama", values).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    public = transformers.LlamaForCausalLM.from_pretrained(tmp_path).generation_config.eos_token_id
    wanted = public if isinstance(public, list) else [public] if public is not None else []
    assert list(load_config(tmp_path).eos_ids) == wanted
