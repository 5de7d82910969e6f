"""A folder that somebody else wrote gets one clear error and nothing else."""

from __future__ import annotations

import json
import os
import random

import pytest
import torch
from safetensors.torch import save_file

from metrale.device.checkpoint import load_config, load_tensors, load_tokenizer
from metrale.device.errors import ModelError
from metrale.device.loading import shipped_model

from .support import HYBRID, LLAMA, config_of, random_tensors


def write(path, values, tensors=None):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(values))
    if tensors is None:
        tensors = random_tensors(config_of(values))
    save_file(tensors, path / "model.safetensors")
    return path


def error_of(path) -> str:
    with pytest.raises(ModelError) as caught:
        load_tensors(path, load_config(path))
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text
    return text


def test_a_good_folder_loads(tmp_path):
    tensors = load_tensors(write(tmp_path, LLAMA), load_config(tmp_path))
    assert tensors["model.embed_tokens.weight"].shape == (64, 32)


@pytest.mark.parametrize("cut", [0, 4, 100, -64])
def test_truncated_weights(tmp_path, cut):
    file = write(tmp_path, LLAMA) / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:cut])
    assert "model.safetensors: not a readable safetensors file" in error_of(tmp_path)


def test_a_header_that_claims_more_than_the_file(tmp_path):
    file = write(tmp_path, LLAMA) / "model.safetensors"
    file.write_bytes((2**62).to_bytes(8, "little") + file.read_bytes()[8:])
    assert "not a readable safetensors file" in error_of(tmp_path)


def test_wrong_shape(tmp_path):
    tensors = random_tensors(config_of(LLAMA))
    tensors["model.norm.weight"] = torch.zeros(31)
    write(tmp_path, LLAMA, tensors)
    assert "model.norm.weight has shape [31], config.json asks for [32]" in error_of(tmp_path)


def test_wrong_type(tmp_path):
    tensors = random_tensors(config_of(LLAMA))
    tensors["model.norm.weight"] = torch.zeros(32, dtype=torch.int64)
    write(tmp_path, LLAMA, tensors)
    assert "model.norm.weight is I64; F32, F16, BF16 can be read" in error_of(tmp_path)


def test_missing_tensor(tmp_path):
    tensors = random_tensors(config_of(HYBRID))
    del tensors["model.layers.1.linear_attn.A_log"]
    write(tmp_path, HYBRID, tensors)
    assert "tensor model.layers.1.linear_attn.A_log is missing (1 in all)" in error_of(tmp_path)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", 7, "C:\\x"])
def test_an_index_that_leaves_the_folder(tmp_path, name):
    write(tmp_path, LLAMA)
    index = {"weight_map": dict.fromkeys(random_tensors(config_of(LLAMA)), name)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "is not the name of a file in this folder" in error_of(tmp_path)


def test_an_index_that_lies(tmp_path):
    write(tmp_path, LLAMA)
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    index = {"weight_map": dict.fromkeys(random_tensors(config_of(LLAMA)), "other.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "although the index places it here" in error_of(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    assert "weight_map is missing" in error_of(tmp_path)


def test_a_pipe_in_place_of_a_file(tmp_path):
    write(tmp_path, LLAMA)
    (tmp_path / "model.safetensors").unlink()
    os.mkfifo(tmp_path / "model.safetensors")
    assert "not a regular file" in error_of(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("model_type", "gpt2", "llama, qwen2, qwen3, qwen3_next"),
        ("model_type", None, "llama, qwen2, qwen3, qwen3_next"),
        ("hidden_act", "gelu", "silu"),
        ("hidden_size", 10**18, "a whole number from 1 to 131072"),
        ("hidden_size", -1, "a whole number"),
        ("hidden_size", "32", "a whole number"),
        ("hidden_size", True, "a whole number"),
        ("num_hidden_layers", 10**9, "a whole number from 1 to 512"),
        ("num_hidden_layers", 0, "a whole number"),
        ("num_attention_heads", 6, "a divisor of hidden_size"),
        ("num_key_value_heads", 3, "a divisor of num_attention_heads"),
        ("vocab_size", 2**40, "a whole number"),
        ("rms_norm_eps", float("nan"), "a number"),
        ("rope_theta", float("inf"), "a number"),
        ("rope_theta", 10**400, "a number from 1.0"),
        ("rope_scaling", {"rope_type": "mrope"}, "default, linear, llama3, yarn, dynamic, longrope"),
        ("rope_scaling", {"rope_type": "longrope", "short_factor": [1.0]}, "a list of 4 numbers"),
        ("rope_scaling", {"rope_type": "longrope", "short_factor": [1.0, 0.0, 1.0, 1.0]}, "a number from 1e-06"),
        ("rope_scaling", {"rope_type": "dynamic"}, "a number"),
        ("rope_scaling", {"rope_type": "llama3", "factor": 8.0}, "a number"),
        ("rope_scaling", {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1.0}, "more than 1"),
        ("rope_scaling", {"rope_type": "yarn", "factor": 2.0, "beta_fast": 5e-324}, "0 or a number from"),
        ("rope_parameters", {"full_attention": {"rope_type": "default"}}, "one set of values serves all layers"),
        ("rope_parameters", {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}, "whole heads"),
        ("head_dim", 7, "an even number where a whole head (7) is rotated"),
        ("quantization_config", {"bits": 4}, "F32, F16 or BF16"),
        ("rope_scaling", [1], "an object"),
        ("layer_types", ["full_attention"], "2 entries"),
        ("layer_types", ["full_attention", "linear_attention"], "2 entries, each one of full_attention"),
        ("eos_token_id", 64, "whole numbers from 0 to 63"),
        ("tie_word_embeddings", "yes", "true or false"),
    ],
)
def test_absurd_configs(tmp_path, key, value, allowed):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {key: value}))
    text = error_of(tmp_path)
    assert "config.json" in text
    assert allowed in text


def test_sizes_are_compared_before_memory_is_asked_for(tmp_path):
    write(tmp_path, LLAMA)
    big = LLAMA | {"hidden_size": 1 << 17, "intermediate_size": 1 << 17, "vocab_size": 1 << 20}
    (tmp_path / "config.json").write_text(json.dumps(big))
    assert "has shape [64, 32], config.json asks for [1048576, 131072]" in error_of(tmp_path)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"num_hidden_layers": 512, "num_experts": 4096, "full_attention_interval": 1}, "at most 256 with 512 layers"),
        (
            {"linear_num_value_heads": 1024, "linear_value_head_dim": 1024, "linear_key_head_dim": 1024},
            "at most 16 with",
        ),
        ({"num_attention_heads": 1024, "num_key_value_heads": 1, "head_dim": 4096}, "at most 32 heads of 4096"),
    ],
)
def test_sizes_that_are_absurd_together(tmp_path, values, text):
    """Each is allowed alone; what they ask for together would be made before a file is looked at."""
    (tmp_path / "config.json").write_text(json.dumps(HYBRID | values))
    assert text in error_of(tmp_path)


def test_values_are_shown_in_short(tmp_path):
    deep: list = []
    for _ in range(300):
        deep = [deep]
    for value in (deep, "9" * 100_000, "\x1b[31m\n" * 1000, {"a": ["b"] * 10_000}):
        (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"hidden_size": value}))
        text = error_of(tmp_path)
        assert "\x1b" not in text
        assert len(text) < 200 + len(str(tmp_path))


def test_names_that_the_system_refuses(tmp_path):
    write(tmp_path, LLAMA)
    with pytest.raises(ModelError, match="File name too long"):
        load_config(tmp_path / ("x" * 5000))
    index = {"weight_map": dict.fromkeys(random_tensors(config_of(LLAMA)), "x" * 5000)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="File name too long"):
        load_tensors(tmp_path, load_config(tmp_path))


def test_weights_in_another_format(tmp_path):
    (write(tmp_path, LLAMA) / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    assert "neither model.safetensors nor model.safetensors.index.json is here" in error_of(tmp_path)


def test_a_tied_head_that_is_another_matrix(tmp_path):
    tensors = random_tensors(config_of(LLAMA))
    write(tmp_path, LLAMA | {"tie_word_embeddings": True}, tensors)
    assert "tie_word_embeddings is true, but lm_head.weight is not model.embed_tokens.weight" in error_of(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[1]", "nul", '{"a":' * 100_000])
def test_a_config_that_is_no_object(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    assert "config.json" in error_of(tmp_path)


def test_an_id_outside_the_vocabulary_ends_no_text(tmp_path):
    write(tmp_path, LLAMA | {"eos_token_id": 5})
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [64]}')
    assert "generation_config.json: eos_token_id = [64]; allowed: whole numbers from 0 to 63" in error_of(tmp_path)


def test_no_folder_and_no_files(tmp_path):
    with pytest.raises(ModelError, match="no such directory"):
        load_config(tmp_path / "absent")
    with pytest.raises(ModelError, match=r"config\.json: no such file"):
        load_config(tmp_path)


@pytest.mark.parametrize("text", ["", "{}", '{"model": 3}', "\x00" * 10])
def test_a_tokenizer_that_is_none(tmp_path, text):
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ModelError, match="not a readable tokenizer"):
        load_tokenizer(tmp_path, 64)


def shipped_tokenizer(tmp_path, **changes):
    """The shipped tokenizer with some parts replaced."""
    values = json.loads((shipped_model() / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(values | changes))
    return tmp_path


def test_a_tokenizer_that_fails_later_says_so_in_one_line(tmp_path, capfd):
    """The library's panics print by themselves; nothing of that comes through."""
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    tokenizer = load_tokenizer(shipped_tokenizer(tmp_path, pre_tokenizer=split), 512)
    with pytest.raises(ModelError, match=r"tokenizer\.json: fails on this text \(.*retry-limit") as caught:
        tokenizer.encode("a" * 40 + "b")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


def test_a_tokenizer_that_swells_a_text(tmp_path):
    swell = {"type": "Replace", "pattern": {"String": "x"}, "content": "x" * 10}
    normalizer = {"type": "Sequence", "normalizers": [swell] * 9}
    with pytest.raises(ModelError, match="its normalizer makes a text 1000000000 times longer"):
        load_tokenizer(shipped_tokenizer(tmp_path, normalizer=normalizer), 512)
    normalizer["normalizers"] = [swell | {"content": "yz"}] * 2
    assert load_tokenizer(shipped_tokenizer(tmp_path, normalizer=normalizer), 512).encode("x")


def test_a_tokenizer_neither_pads_nor_cuts(tmp_path):
    """As in the public implementation, whatever the file was saved with; a huge padding would end the process."""
    padding = {
        "strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "x",
    }  # fmt: skip
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    plain = load_tokenizer(shipped_model(), 512).encode("In tick 4, request")
    folder = shipped_tokenizer(tmp_path, padding=padding, truncation=truncation)
    assert load_tokenizer(folder, 512).encode("In tick 4, request") == plain


def scrambled(data: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, cut out or doubled."""
    block = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(block))
        match rng.randrange(4):
            case 0:
                block[at] = rng.randrange(256)
            case 1:
                del block[at : at + rng.randrange(1, 40)]
            case 2:
                block[at:at] = block[at : at + rng.randrange(1, 40)]
            case 3:
                block[at] = rng.choice(b'0123456789-,.:"{}[]etfn')
    return bytes(block)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_scrambled_files_load_or_are_refused(tmp_path, name):
    """Whatever the bytes are: a model, or one line. Weights are scrambled in their header, where the structure is."""
    rng = random.Random(9)
    values = HYBRID | {
        "vocab_size": 512,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rope_theta": 1e4,
    }
    write(tmp_path, values)
    (tmp_path / "tokenizer.json").write_bytes((shipped_model() / "tokenizer.json").read_bytes())
    good = (tmp_path / name).read_bytes()
    refusals, head = [], len(good)
    if name == "model.safetensors":
        head = 8 + int.from_bytes(good[:8], "little")
    for _ in range(120):
        (tmp_path / name).write_bytes(scrambled(good[:head], rng) + good[head:])
        try:
            config = load_config(tmp_path)
            load_tensors(tmp_path, config)
            load_tokenizer(tmp_path, config.vocab_size)
        except ModelError as error:
            refusals.append(str(error))
    assert len(refusals) > 60
    assert all("\n" not in text and len(text) < 400 + len(str(tmp_path)) for text in refusals)
