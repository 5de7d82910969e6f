"""``metrale generate`` on the shipped model."""

from __future__ import annotations

import json
import random
import shutil

import click
import pytest
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models

from metrale.cli.errors import BadInput
from metrale.cli.generate import OrderedOutput, generate
from metrale.device.checkpoint import Tokenizer, load_config, load_tokenizer
from metrale.device.checkpoint.tokenizer import TextStream
from metrale.device.loading import shipped_model

from .support import LLAMA


def run(*args: str) -> int:
    return generate.main(args=list(args), standalone_mode=False)


def objects(capsys, *args: str) -> list[dict]:
    assert run("--json", *args) == 0
    out, err = capsys.readouterr()
    assert f"{len(out.splitlines())} prompts" in err
    return [json.loads(line) for line in out.splitlines()]


PROMPTS = ("A scheduler decides", "Q: What is a slot?", "In tick 4, request", "x")


def test_the_shipped_model_says_something_it_was_taught(capsys):
    assert run("Q: What is a slot? A:") == 0
    out, err = capsys.readouterr()
    assert out == " A slot is a label.\n" or out.startswith(" A slot is a label.")
    assert "1 prompts" in err


def test_the_shipped_model_is_small():
    assert sum(file.stat().st_size for file in shipped_model().iterdir()) <= 4 << 20
    assert load_config(shipped_model()).family == "qwen3_next"


def test_the_cpu_computes_in_fp32():
    with pytest.raises(BadInput, match="backend torch: weights and caches are float32, not bfloat16"):
        run("--dtype", "bfloat16", "x")
    assert run("--dtype", "float32", "--max-tokens", "1", "x") == 0


@pytest.mark.parametrize("option", ["--temperature", "--top-p"])
def test_nan_is_no_number(option):
    with pytest.raises(click.BadParameter, match="'nan' is not a number"):
        run(option, "nan", "x")


def test_drafts_serve_greedy_text():
    with pytest.raises(BadInput, match=r"--drafts 3: drafts serve greedy text; leave --temperature 0\.5 or them out"):
        run("--drafts", "3", "--temperature", "0.5", "x")


def test_objects(capsys):
    (answer,) = objects(capsys, "--max-tokens", "5", "A scheduler decides")
    tokenizer = load_tokenizer(shipped_model(), 512)
    assert sorted(answer) == ["finish_reason", "prompt_tokens", "text", "tokens"]
    assert answer["prompt_tokens"] == tokenizer.encode("A scheduler decides")
    assert len(answer["tokens"]) == 5
    assert answer["text"] == tokenizer.decode(answer["tokens"])
    assert answer["finish_reason"] == "length"


def test_several_prompts_at_once_say_what_each_says_alone(capsys):
    together = objects(capsys, "--max-tokens", "24", *PROMPTS)
    for prompt, answer in zip(PROMPTS, together, strict=True):
        assert objects(capsys, "--max-tokens", "24", prompt) == [answer]
    for extra in (["--batch", "1"], ["--batch", "2", "--drafts", "0"], ["--drafts", "1"], ["--drafts", "6"]):
        assert objects(capsys, "--max-tokens", "24", *extra, *PROMPTS) == together


def test_an_adapter_changes_the_text_and_the_base_model_stays(capsys, tmp_path):
    import torch
    from safetensors.torch import save_file

    name = "base_model.model.model.layers.3.self_attn.v_proj"
    weights = {f"{name}.lora_A.weight": torch.ones(2, 128) * 0.1, f"{name}.lora_B.weight": torch.ones(64, 2) * 0.1}
    save_file(weights, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 64}')
    base = objects(capsys, "--max-tokens", "12", *PROMPTS)
    adapted = objects(capsys, "--max-tokens", "12", "--lora", str(tmp_path), *PROMPTS)
    assert [answer["tokens"] for answer in adapted] != [answer["tokens"] for answer in base]
    assert objects(capsys, "--max-tokens", "12", "--lora", str(tmp_path), "--drafts", "3", *PROMPTS) == adapted
    assert objects(capsys, "--max-tokens", "12", *PROMPTS) == base


def test_streams_of_several_prompts_come_in_order(capsys):
    together = objects(capsys, "--max-tokens", "12", *PROMPTS)
    assert run("--max-tokens", "12", *PROMPTS) == 0
    wanted = "".join(f"==> {p} <==\n{a['text']}\n" for p, a in zip(PROMPTS, together, strict=True))
    assert capsys.readouterr().out == wanted


def test_a_later_prompt_is_live_once_those_before_it_have_ended(monkeypatch):
    """Pieces reach the output as their tokens come, and none waits for the end of all prompts."""
    import click

    tokenizer = load_tokenizer(shipped_model(), 512)
    out: list[str] = []
    monkeypatch.setattr(click, "echo", lambda text="", nl=True: out.append(text + "\n" * nl))
    streams = OrderedOutput(tokenizer, ("a", "b", "c"), quiet=False)
    one, two, three = (streams.writer(i) for i in range(3))
    first, second, third = tokenizer.encode("x"), tokenizer.encode("y"), tokenizer.encode("z")
    two(second[0])
    three(third[0])
    one(first[0])
    assert "".join(out) == "==> a <==\nx"
    streams.ender(1)()
    assert "".join(out) == "==> a <==\nx"
    streams.ender(0)()
    assert "".join(out) == "==> a <==\nx\n==> b <==\ny\n==> c <==\nz"
    three(first[0])
    assert "".join(out).endswith("zx")
    streams.ender(2)()
    assert "".join(out) == "==> a <==\nx\n==> b <==\ny\n==> c <==\nzx\n"


def test_the_token_that_ends_a_text_is_streamed_if_it_has_a_text(capsys, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(shipped_model(), folder)
    (plain,) = objects(capsys, "--max-tokens", "12", "In tick 4, request")
    last = plain["tokens"][6]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": last}))
    (answer,) = objects(capsys, "--max-tokens", "12", "--model", str(folder), "In tick 4, request")
    assert answer["finish_reason"] == "stop"
    assert answer["tokens"] == plain["tokens"][: plain["tokens"].index(last) + 1]
    assert run("--max-tokens", "12", "--model", str(folder), "In tick 4, request") == 0
    assert capsys.readouterr().out == answer["text"] + "\n"
    assert load_tokenizer(folder, 512).decode([last])


def test_sampling_is_seeded(capsys):
    def once(seed: str) -> list[dict]:
        return objects(capsys, "--temperature", "1.5", "--seed", seed, "--max-tokens", "20", "In tick")

    assert once("1") == once("1")
    assert once("1") != once("2")


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--model", "/nonexistent/model", "x"], "no such directory"),
        (["--lora", "/nonexistent/adapter", "x"], "no such directory"),
        (["--lora", str(shipped_model()), "x"], r"adapter_config\.json: no such file"),
        ([""], "prompt 1 is empty"),
        (["a", ""], "prompt 2 is empty"),
        (["word " * 5000], "this model takes 4095 at most"),
        (["a", "caf\udce9"], "prompt 2 is not valid UTF-8"),
    ],
)
def test_bad_input_is_one_line(args, text):
    with pytest.raises(BadInput, match=text) as caught:
        run(*args)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_a_prompt_past_the_length_of_its_frequencies(kind, tmp_path):
    scaling = {"rope_type": kind, "factor": 2.0, "short_factor": [1.0] * 4, "original_max_position_embeddings": 8}
    (tmp_path / "config.json").write_text(
        json.dumps(LLAMA | {"vocab_size": 512, "max_position_embeddings": 8, "rope_scaling": scaling})
    )
    (tmp_path / "tokenizer.json").write_bytes((shipped_model() / "tokenizer.json").read_bytes())
    text = rf"prompt 1 has \d+ tokens; this model takes 7 at most \({kind} scaling takes other frequencies past that\)"
    with pytest.raises(BadInput, match=text):
        run("--model", str(tmp_path), "abcdefgh ijklmnop qrstuvwx yz")


def test_memory_that_does_not_suffice(monkeypatch):
    def no_room(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 512004608 bytes.")

    monkeypatch.setattr("metrale.cli.generate.serve", no_room)
    with pytest.raises(BadInput, match="take fewer prompts or a smaller --max-tokens"):
        run("x")


def test_pieces_add_up_to_the_text_of_all_tokens():
    """Also for decoders that drop a space at the start, that need a run of byte tokens whole, that skip special ids."""
    words = ["<s>", "▁", "▁the", "b", "é", "日", "▁🙂", "\ufffd", "▁▁", "'", "s"]
    vocab = {word: i for i, word in enumerate(words + [f"<0x{byte:02X}>" for byte in range(256)])}
    raw = RawTokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    raw.add_special_tokens(["<s>"])
    strip = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    shipped = load_tokenizer(shipped_model(), 512)
    rng = random.Random(7)
    for decoder in (decoders.Sequence(strip), decoders.Metaspace(), decoders.WordPiece(), None):
        raw.decoder = decoder
        for tokenizer in (Tokenizer(raw, len(vocab), shipped.where), shipped):
            for _ in range(60):
                top = rng.choice((len(words), tokenizer.raw.get_vocab_size()))
                ids = [rng.randrange(top) for _ in range(rng.randrange(1, 60))]
                stream = TextStream(tokenizer)
                assert "".join([stream.push(i) for i in ids] + [stream.flush()]) == tokenizer.decode(ids)


def test_text_comes_in_whole_characters():
    tokenizer = load_tokenizer(shipped_model(), 512)
    for text in ("plain", "naïve café", "日本語 text", "🙂🙃 end", "a\nb"):
        stream = TextStream(tokenizer)
        pieces = [stream.push(token) for token in tokenizer.encode(text)]
        assert "".join(pieces) + stream.flush() == text
        assert all("\ufffd" not in piece for piece in pieces)
