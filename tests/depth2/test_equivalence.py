"""Depth 1 and depth 2 are the same to a client: random scenarios from fixed seeds (S5 section 11.8)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from metrale.sim import run_scenario, scenario_from

E = 63
SEEDS_PER_TEST = 250


def draw_device(rng: Random) -> dict[str, Any]:
    total = rng.choice([20, 40, 200, 1000])
    device: dict[str, Any] = {
        "block_size": rng.choice([1, 2, 4, 16]),
        "total_blocks": total,
        "event_lag": rng.choice([0, 0, 1, 3]),
        "reversed_completion": rng.random() < 0.3,
        "vocab": rng.choice([64, 128]),
    }
    if rng.random() < 0.3:
        device["held_blocks"] = rng.randrange(total // 2)
    if rng.random() < 0.15:
        device |= {"has_ssm_layers": True, "ring_slots": 4}
    return device


def draw_scheduler(rng: Random) -> dict[str, Any]:
    knobs: dict[str, Any] = {"max_batch_size": rng.choice([1, 2, 3, 8])}
    chances: list[tuple[float, dict[str, Any]]] = [
        (0.4, {"max_prefill_tokens": rng.choice([3, 4, 8])}),
        (0.3, {"swap_space_gb": 1}),
        (0.3, {"policy": "slai"}),
        (0.2, {"max_seq_len": rng.choice([12, 20, 30])}),
        (0.2, {"think_start_token": 5}),
        (0.2, {"think_end_token": 6}),
        (0.2, {"loop_watchdog": True, "boundary_tokens": [12]}),
    ]
    for chance, keys in chances:
        if rng.random() < chance:
            knobs |= keys
    return knobs


def draw_request(rng: Random, id: int) -> dict[str, Any]:
    count = rng.randrange(1, 14)
    tokens = [rng.choice([5, 6, 12, *range(8, 40)]) if rng.random() < 0.5 else 10 + i for i in range(count)]
    request: dict[str, Any] = {"id": id, "prompt_len": rng.randrange(1, 30), "tokens": tokens}
    if rng.random() < 0.7:
        tokens.append(E)
    chances: list[tuple[float, dict[str, Any]]] = [
        (0.5, {"max_tokens": rng.randrange(1, 18)}),
        (0.2, {"min_tokens": rng.randrange(6)}),
        (0.2, {"streaming": False}),
        (0.15, {"temperature": 0.7}),
        (0.1, {"top_logprobs": 2}),
        (0.4, {"arrive_at_tick": rng.randrange(1, 10)}),
        (0.1, {"expired_deadline": True}),
        (0.1, {"grammar_active": True}),
        (0.2, {"stop_tokens": [11, 20]}),
    ]
    for chance, keys in chances:
        if rng.random() < chance:
            request |= keys
    return request


def draw(seed: int) -> dict[str, Any]:
    rng = Random(seed)
    return {
        "name": f"seed {seed}",
        "device": draw_device(rng),
        "scheduler": draw_scheduler(rng),
        "request": [draw_request(rng, index + 1) for index in range(rng.randrange(1, 7))],
    }


@pytest.mark.parametrize("block", range(8))
def test_two_thousand_random_scenarios_give_the_same_client_lines(block: int) -> None:
    ahead_runs = 0
    for seed in range(block * SEEDS_PER_TEST, (block + 1) * SEEDS_PER_TEST):
        scenario = scenario_from(draw(seed))
        ahead = run_scenario(scenario, router="async", max_ticks=20_000)
        plain = run_scenario(scenario, router="sync", log=False, max_ticks=20_000)
        assert ahead.clients == plain.clients, f"seed {seed}"
        ahead_runs += any(line.startswith("fx launch DecodeFed") for line in ahead.calls)
        frees = [line for line in ahead.calls if line.startswith("num_free_blocks")]
        assert frees[0] == frees[-1], f"seed {seed}: blocks do not balance"
    assert ahead_runs > SEEDS_PER_TEST // 4
