"""Adapters: token for token what PEFT says, and rows of several adapters in one batch."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from metrale.core.io import DeviceError
from metrale.device.checkpoint import load_config, load_lora
from metrale.device.engine import EngineOptions
from metrale.device.errors import ModelError
from metrale.device.loading import open_model

from .support import greedy, prompt_of, start
from .test_families import NEXT, SMALL, reference_model, reference_tokens

peft = pytest.importorskip("peft")

OPTIONS = EngineOptions(block_size=4, total_blocks=64, max_sequences=4, max_seq_len=128)


def with_adapter(tmp_path, kind: str, values: dict, targets: list[str] | str, seed: int = 3, **settings):
    model = reference_model(kind, values)
    model.save_pretrained(tmp_path / "model")
    config = peft.LoraConfig(**{"r": 4, "lora_alpha": 16, "target_modules": targets} | settings)
    adapted = peft.get_peft_model(model, config)
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_" in name:
                weight.copy_(torch.randn_like(weight) * 0.3)
    adapted.save_pretrained(tmp_path / "adapter")
    return adapted.eval()


CASES = {
    "llama": ("Llama", SMALL, ["q_proj", "v_proj", "down_proj"], {}),
    "qwen2-rslora": ("Qwen2", SMALL, ["k_proj", "o_proj", "gate_proj", "up_proj"], {"use_rslora": True}),
    "llama-patterns": (
        "Llama",
        SMALL,
        r".*\.(q|o|gate)_proj",
        {
            "r": 32,
            "rank_pattern": {"^model.layers.0.mlp.gate_proj": 5, r"layers\.[12]\.self_attn\.q_proj": 7, "o_proj": 2},
            "alpha_pattern": {"gate_proj": 40, r"layers\.\d+\.mlp\.gate_proj": 2, "o_proj": 90, "self_attn.o_proj": 9},
        },
    ),
    "llama-one-layer": ("Llama", SMALL, ["down_proj"], {"r": 1, "layers_to_transform": [1], "fan_in_fan_out": True}),
    "qwen3_next-all-linear": ("Qwen3Next", NEXT, "all-linear", {"r": 3, "alpha_pattern": {"gate": 30}}),
    "qwen3_next-experts": ("Qwen3Next", NEXT, ["down_proj", "v_proj"], {"r": 8}),
    "qwen3_next-router": ("Qwen3Next", NEXT, ["gate", "in_proj_ba", "shared_expert_gate"], {"use_rslora": True}),
    "qwen3_next": ("Qwen3Next", NEXT, ["q_proj", "o_proj", "in_proj_qkvz", "out_proj"], {}),
}


@pytest.mark.parametrize("name", CASES)
def test_tokens_of_peft(name, tmp_path):
    kind, values, targets, settings = CASES[name]
    adapted = with_adapter(tmp_path, kind, values, targets, **settings)
    if kind == "Qwen3Next":
        adapted.base_model.model.set_experts_implementation("eager")
    device = open_model(tmp_path / "model", OPTIONS, tmp_path / "adapter")
    prompt = prompt_of(11, 97)
    wanted = reference_tokens(adapted, prompt, 10)
    assert greedy(device, prompt, 10) == wanted
    device.adapters.active = None
    with adapted.disable_adapter():
        assert greedy(device, prompt, 10) == reference_tokens(adapted, prompt, 10)


def test_rows_of_one_batch_carry_their_own_adapters(tmp_path):
    with_adapter(tmp_path, *CASES["llama"][:3])
    device = open_model(tmp_path / "model", OPTIONS)
    slot = device.adapters.load(load_lora(tmp_path / "adapter", device.config))
    alone = {}
    for adapter in (-1, slot):
        device.adapters.active = None if adapter < 0 else adapter
        alone[adapter] = greedy(device, prompt_of(6, 97), 6)
    assert alone[-1] != alone[slot]
    device.adapters.active = None
    seqs = []
    for adapter in (slot, -1):
        seq = start(device, prompt_of(6, 97))
        seq.acquired_adapter = device.acquire_adapter_slot(adapter)
        device.prefill(prompt_of(6, 97), seq, 0)
        seqs.append((seq, [device.argmax_on_device(0, 0)]))
    for _ in range(5):
        device.decode_batch([tokens[-1] for _, tokens in seqs], [seq for seq, _ in seqs], 0)
        for (_, tokens), pick in zip(seqs, device.argmax_batch(0, 2, 0), strict=True):
            tokens.append(pick)
    assert [tokens for _, tokens in seqs] == [alone[slot], alone[-1]]
    assert device.adapters.slots[slot].references == 1
    for seq, _ in seqs:
        device.free_sequence(seq)
    assert device.adapters.slots[slot].references == 0


def test_rotation_is_refused_while_the_active_adapter_is_in_use(tmp_path):
    with_adapter(tmp_path, *CASES["llama"][:3])
    device = open_model(tmp_path / "model", OPTIONS, tmp_path / "adapter")
    with pytest.raises(DeviceError, match="no adapter 'other' is resident"):
        device.set_active_lora("other")
    seq = start(device, [1, 2])
    with pytest.raises(DeviceError, match="'adapter' is in use"):
        device.set_active_lora("adapter")
    device.free_sequence(seq)
    device.set_active_lora("adapter")
    assert device.adapter_id_for(-1) == device.adapter_id_for(0) != 0


def broken(tmp_path, change):
    file = tmp_path / "adapter" / "adapter_config.json"
    values = json.loads(file.read_text())
    change(values)
    file.write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda v: v.update(peft_type="IA3"), "peft_type = 'IA3'; allowed: LORA"),
        (lambda v: v.update(use_dora=True), "use_dora = True; allowed: nothing"),
        (lambda v: v.update(bias="all"), "bias = 'all'; allowed: none"),
        (lambda v: v.update(lora_alpha="x"), "lora_alpha = 'x'; allowed: a number"),
        (lambda v: v.update(modules_to_save=["lm_head"]), r"modules_to_save = \['lm_head'\]; allowed: nothing"),
        (
            lambda v: v.update(init_lora_weights="pissa_niter_4"),
            "init_lora_weights = 'pissa_niter_4'; allowed: a start",
        ),
        (lambda v: v.update(r=8), "down_proj has rank 4, adapter_config.json says 8"),
        (lambda v: v.update(rank_pattern={"q_proj": 3}), "q_proj has rank 4, adapter_config.json says 3"),
        (lambda v: v.update(alpha_pattern=[1]), r"alpha_pattern = \[1\]; allowed: an object"),
        (lambda v: v.update(alpha_pattern={"(": 1}), r"alpha_pattern: \( = 1; allowed: names of modules"),
        (lambda v: v.update(alpha_pattern={"(a+)+b": 1}), "allowed: names of modules, as regular expressions"),
        (lambda v: v.update(alpha_pattern={"q_proj": "x"}), "alpha_pattern: q_proj = 'x'; allowed: a number"),
    ],
)
def test_adapters_that_are_not_plain_lora(change, text, tmp_path):
    with_adapter(tmp_path, *CASES["llama"][:3])
    broken(tmp_path, change)
    with pytest.raises(ModelError, match=text):
        open_model(tmp_path / "model", OPTIONS, tmp_path / "adapter")


def test_an_adapter_of_another_model(tmp_path):
    with_adapter(tmp_path, *CASES["llama"][:3])
    other = reference_model("Llama", SMALL | {"hidden_size": 64})
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(ModelError, match=r"config\.json asks for"):
        open_model(tmp_path / "other", OPTIONS, tmp_path / "adapter")


def renamed(tmp_path, change):
    """The adapter's matrices under other names."""
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    save_file({change(name): weight for name, weight in load_file(file).items()}, file)


def test_the_adapters_own_name_inside_the_names(tmp_path):
    with_adapter(tmp_path, *CASES["llama"][:3])
    config = load_config(tmp_path / "model")
    wanted = load_lora(tmp_path / "adapter", config).deltas
    renamed(tmp_path, lambda name: name.replace(".weight", ".default.weight"))
    found = load_lora(tmp_path / "adapter", config).deltas
    assert found.keys() == wanted.keys()
    for name, (a, b, scale) in wanted.items():
        assert torch.equal(found[name][0], a)
        assert torch.equal(found[name][1], b)
        assert found[name][2] == scale


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda name: name.replace("base_model.model.", ""), "adapts nothing that is a linear layer"),
        (lambda name: name.replace("layers.2.", "layers.3."), "adapts nothing that is a linear layer"),
        (lambda name: name.replace("layers.2.mlp.down_proj", "embed_tokens"), "adapts nothing that is a linear layer"),
        (lambda name: name.replace("layers.2.mlp.down_proj", "layers.2.mlp.experts"), "adapts nothing"),
        (lambda name: name.replace("lora_A", "lora_embedding_A"), "adapts nothing that is a linear layer"),
        (lambda name: name.replace("q_proj.lora_B", "k_proj.lora_B"), "has one of lora_A and lora_B only"),
    ],
)
def test_names_that_fit_no_layer(change, text, tmp_path):
    with_adapter(tmp_path, *CASES["llama"][:3])
    renamed(tmp_path, change)
    with pytest.raises(ModelError, match=text):
        load_lora(tmp_path / "adapter", load_config(tmp_path / "model"))
