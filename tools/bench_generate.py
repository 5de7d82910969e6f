"""Tokens per second of ``metrale generate`` on the shipped model, by batch size, with and without drafts.

    python tools/bench_generate.py [--tokens 200] [--json]

Runs the whole way: scheduler, router, engine. EOS does not end a text here. The best of three runs counts.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from metrale.conform.serving import TextSink, serve
from metrale.core.config import SchedulerConfig
from metrale.core.request import Request
from metrale.device.checkpoint import load_config, load_tensors, load_tokenizer
from metrale.device.engine import EngineOptions
from metrale.device.loading import build_device, limit_threads, shipped_model

BATCHES = (1, 2, 4, 8)
PROMPTS = ("In tick 4, the scheduler admits request", "Q: What is a block table?", "A scheduler decides", "Count: one")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=shipped_model())
    parser.add_argument("--tokens", type=int, default=200, help="tokens per prompt")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    config = load_config(args.model)
    limit_threads(config.hidden_size)
    tensors = load_tensors(args.model, config)
    tokenizer = load_tokenizer(args.model, config.vocab_size)
    rows = []
    for drafts in (0, 3) if config.draft_head else (0,):
        for batch in BATCHES:
            prompts = [tokenizer.encode(PROMPTS[i % len(PROMPTS)]) for i in range(batch)]
            best = min(timed(config, tensors, prompts, args.tokens, drafts) for _ in range(3))
            rows.append({"drafts": drafts, "batch": batch, "tokens_per_second": round(batch * args.tokens / best, 1)})
            if not args.json:
                print(
                    "drafts {drafts}  batch {batch}  {tokens_per_second:8.1f} tokens/s".format(**rows[-1]), flush=True
                )
    if args.json:
        print(json.dumps(rows))


def timed(config, tensors, prompts: list[list[int]], tokens: int, drafts: int) -> float:
    """Seconds of one run."""
    reach = max(map(len, prompts)) + tokens
    options = EngineOptions(
        total_blocks=len(prompts) * (reach // 16 + 3), max_sequences=len(prompts) + 1, max_seq_len=reach + 8
    )
    device = build_device(config, tensors, options)
    requests = [Request(i, prompt, tokens, TextSink()) for i, prompt in enumerate(prompts)]
    knobs = SchedulerConfig(
        max_batch_size=len(prompts), use_speculative=drafts > 0, num_drafts=max(1, drafts), eos_tokens=()
    )
    started = time.perf_counter()
    serve(device, knobs, requests)
    spent = time.perf_counter() - started
    assert all(len(request.sink.tokens) == tokens for request in requests)
    return spent


if __name__ == "__main__":
    main()
