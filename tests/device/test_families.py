"""Token for token what the public implementation of each family says, in fp32 on the CPU."""

from __future__ import annotations

import pytest
import torch

from metrale.device.engine import EngineOptions
from metrale.device.loading import open_model

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
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}

CASES = {
    "llama": ("Llama", SMALL),
    "llama-tied": ("Llama", SMALL | {"tie_word_embeddings": True}),
    "llama-biases": ("Llama", SMALL | {"attention_bias": True, "mlp_bias": True}),
    "llama-mqa": ("Llama", SMALL | {"num_key_value_heads": 1, "head_dim": 16}),
    "llama-llama3": ("Llama", SMALL | {"rope_parameters": LLAMA3}),
    "llama-linear": ("Llama", SMALL | {"rope_parameters": LINEAR}),
    "qwen2": ("Qwen2", SMALL),
    "qwen2-tied-yarn": ("Qwen2", SMALL | {"tie_word_embeddings": True, "rope_parameters": YARN}),
    "qwen2-sliding": ("Qwen2", SMALL | {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "qwen3": ("Qwen3", SMALL | {"head_dim": 16}),
    "qwen3-all-heads-tied": ("Qwen3", SMALL | {"head_dim": 32, "num_key_value_heads": 4, "tie_word_embeddings": True}),
    "qwen3-yarn": ("Qwen3", SMALL | {"head_dim": 16, "rope_parameters": YARN}),
    "qwen3_next": ("Qwen3Next", NEXT),
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
