"""Greedy text is the same on drawn ways through the scheduler: knobs, pools, arrivals, lanes and stream orders."""

from __future__ import annotations

import random

import pytest

from metrale.conform.free import Way, Weights, alone, run_way
from metrale.conform.tiny import random_weights, tiny_config
from metrale.device.engine import Streams

LENGTHS = (1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 20, 33, 40)
LANES = {
    "plain": {},
    "mtp": {"use_speculative": True},
    "dflash": {"use_speculative": True, "dflash": True},
    "n-gram": {"ngram_speculative": True},
    "self": {"self_speculative": True},
}


def drawn_model(draw: random.Random) -> tuple[Weights, bool]:
    hybrid = draw.random() < 0.75
    config = tiny_config(64, hybrid)
    common = [draw.randrange(1, 60) for _ in range(max(LENGTHS))]
    prompts = []
    for _ in range(draw.randrange(2, 7)):
        length = draw.choice(LENGTHS)
        own = [draw.randrange(1, 60) for _ in range(length)]
        prompts.append(common[:length] if draw.random() < 0.5 else own)
    tensors = random_weights(config, draw.randrange(5), draw.choice((0.2, 0.5)))
    return Weights("drawn", config, tensors, prompts), hybrid


def drawn_way(draw: random.Random, prompts: list[list[int]], hybrid: bool) -> Way:
    lane = draw.choice(("plain", "plain", "mtp", "mtp", "dflash", "n-gram", "self"))
    knobs = LANES[lane] | {"max_batch_size": draw.choice((1, 2, 3, 8)), "num_drafts": draw.randrange(1, 8)}
    if draw.random() < 0.5:
        chunk = draw.choice((1, 3, 4, 8, 16))
        knobs |= {"max_prefill_tokens": chunk, "max_batch_tokens": draw.choice((chunk, 8, 64))}
    options: dict[str, object] = {}
    if draw.random() < 0.4:
        options = {"prefix_cache": True, "snapshots": draw.choice((0, 1, 4, 32))}
    tight = lane == "plain" and draw.random() < 0.5
    if tight:
        options["total_blocks"] = max(14, sum(len(p) // 4 + 1 for p in prompts) + draw.randrange(1, 6))
    pipelined = lane == "plain" and not hybrid and draw.random() < 0.6
    return Way(
        f"{lane} {knobs} {options}",
        (),
        knobs,
        options,
        gap=draw.choice((0, 0, 1, 2, 5)),
        router="async" if pipelined else "sync",
        swap=draw.random() < 0.4,
        reserve=not tight,
    )


@pytest.mark.parametrize("seed", range(24))
def test_drawn_ways_say_what_each_request_says_alone(seed):
    draw = random.Random(seed)
    model, hybrid = drawn_model(draw)
    count = draw.choice((1, 2, 5, 12))
    way = drawn_way(draw, model.prompts, hybrid)
    order = draw.choice(("immediate", "late", "random"))
    texts, _, _ = run_way(model, way, model.prompts, count, Streams(order, seed))
    assert texts == alone(model, count), f"{way.name}, {order}"
