"""Train the shipped model: a tiny hybrid of the qwen3_next family with a one-layer draft head.

    python tools/train_tiny.py --out metrale/device/checkpoints/tiny-hybrid

A few minutes on two CPU cores. Needs the ``transformers`` package, whose implementation of the family is trained, and
writes what the engine reads: config.json, model.safetensors (bf16), tokenizer.json.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from tiny_corpus import documents
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextDecoderLayer, Qwen3NextRMSNorm

END = "<|end|>"
VOCAB = 512
LENGTH = 96
BATCH = 10
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "full_attention_interval": 4,
}
LIMIT = 4 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    texts = documents(6000)
    tokenizer = train_tokenizer(texts)
    stream = torch.tensor([i for text in texts for i in (*tokenizer.encode(text).ids, end_id(tokenizer))])
    model, head = train(stream, args.steps)
    write(args.out, tokenizer, model, head)


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Byte-level BPE: every text has ids, nothing is unknown."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def end_id(tokenizer: Tokenizer) -> int:
    """The id that ends a document."""
    return tokenizer.token_to_id(END)


class DraftHead(torch.nn.Module):
    """Embedding of token p + 1 and hidden row p, fused, through one attention layer, to a guess of token p + 2."""

    def __init__(self, config: Qwen3NextConfig) -> None:
        super().__init__()
        own = Qwen3NextConfig(**{**config.to_dict(), "layer_types": ["full_attention"], "num_hidden_layers": 1,
                                 "mlp_only_layers": [0]})  # fmt: skip
        own._attn_implementation = "sdpa"
        width = config.hidden_size
        self.fc = torch.nn.Linear(2 * width, width, bias=False)
        self.pre_fc_norm_embedding = Qwen3NextRMSNorm(width)
        self.pre_fc_norm_hidden = Qwen3NextRMSNorm(width)
        self.layers = torch.nn.ModuleList([Qwen3NextDecoderLayer(own, 0)])
        self.norm = Qwen3NextRMSNorm(width)

    def forward(self, model: Qwen3NextForCausalLM, hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Logits [batch, n, V] for hidden rows [batch, n, W] and the tokens one place later [batch, n]."""
        embedded = self.pre_fc_norm_embedding(model.model.embed_tokens(tokens))
        x = self.fc(torch.cat([embedded, self.pre_fc_norm_hidden(hidden)], dim=-1))
        positions = torch.arange(1, x.shape[1] + 1)[None]
        rotary = model.model.rotary_emb(x, positions)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()[None, None]
        x = self.layers[0](x, position_embeddings=rotary, attention_mask=mask)
        return torch.nn.functional.linear(self.norm(x), model.model.embed_tokens.weight)


def train(stream: torch.Tensor, steps: int) -> tuple[Qwen3NextForCausalLM, DraftHead]:
    """Model and head together; the head's loss does not reach the model's hidden rows."""
    config = Qwen3NextConfig(**SIZES, eos_token_id=0)
    model = Qwen3NextForCausalLM(config)
    head = DraftHead(config)
    seen: dict[str, torch.Tensor] = {}
    model.model.norm.register_forward_pre_hook(lambda _, inputs: seen.update(hidden=inputs[0]))
    weights = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=3e-3, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.1)
    started = time.monotonic()
    for step in range(steps):
        at = torch.randint(len(stream) - LENGTH - 2, (BATCH,))
        batch = torch.stack([stream[i : i + LENGTH + 2] for i in at.tolist()])
        logits = model(batch[:, :LENGTH], use_cache=False).logits
        loss = loss_of(logits, batch[:, 1 : LENGTH + 1])
        drafts = head(model, seen["hidden"].detach(), batch[:, 1 : LENGTH + 1])
        draft_loss = loss_of(drafts, batch[:, 2:])
        optimizer.zero_grad()
        (loss + draft_loss).backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            spent = time.monotonic() - started
            print(f"step {step}: loss {loss.item():.3f}, draft {draft_loss.item():.3f}, {spent:.0f} s", flush=True)
    return model, head


def loss_of(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy."""
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())


def write(out: Path, tokenizer: Tokenizer, model: Qwen3NextForCausalLM, head: DraftHead) -> None:
    """The three files of a model folder."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = published_names(model.state_dict())
    tensors |= {f"mtp.{name}": weight for name, weight in head.state_dict().items()}
    save_file({name: weight.to(torch.bfloat16).contiguous() for name, weight in tensors.items()},
              out / "model.safetensors", metadata={"format": "pt"})  # fmt: skip
    config = {"model_type": "qwen3_next", **SIZES, "eos_token_id": end_id(tokenizer), "num_nextn_predict_layers": 1}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    size = sum(file.stat().st_size for file in out.iterdir())
    print(f"{out}: {size} bytes")
    if size > LIMIT:
        raise SystemExit(f"{out}: {size} bytes, more than {LIMIT}")


def published_names(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Names as in published checkpoints: experts one by one, tied head left out."""
    tensors: dict[str, torch.Tensor] = {}
    for name, weight in state.items():
        if name == "lm_head.weight":
            continue
        if name.endswith("experts.gate_up_proj"):
            for index, both in enumerate(weight):
                gate, up = both.chunk(2)
                tensors[name.replace("gate_up_proj", f"{index}.gate_proj.weight")] = gate
                tensors[name.replace("gate_up_proj", f"{index}.up_proj.weight")] = up
        elif name.endswith("experts.down_proj"):
            for index, down in enumerate(weight):
                tensors[name.replace("down_proj", f"{index}.down_proj.weight")] = down
        else:
            tensors[name] = weight
    return tensors


if __name__ == "__main__":
    main()
