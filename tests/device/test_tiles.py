"""Rows of a forward, cut into tiles."""

from __future__ import annotations

import pytest
import torch

from metrale.device.engine import EngineDevice, EngineOptions
from metrale.device.kernels import reference
from metrale.device.model import experts, rows
from metrale.device.model.rows import InputRow, tiles

from .support import HYBRID, LLAMA, config_of, greedy, prompt_of, random_tensors

CPU = torch.device("cpu")


def cut(count: int, width: int) -> list[tuple[int, list[int]]]:
    """Live rows and flat positions of each tile of one sequence in blocks 5, 6, 7 of four positions."""
    table = torch.tensor([5, 6, 7])
    made = [InputRow(i, i, table, 0) for i in range(count)]
    return [(len(tile.rows), tile.where.tolist()) for tile in tiles(made, width, 4, 99, 4, CPU)]


def test_tiles_of_fixed_width_are_padded_with_the_dummy_position():
    assert cut(5, 4) == [(4, [20, 21, 22, 23]), (1, [24, 99, 99, 99])]


def test_tiles_of_any_width_are_bounded(monkeypatch):
    assert cut(5, 0) == [(5, [20, 21, 22, 23, 24])]
    monkeypatch.setattr(rows, "MOST_ROWS", 3)
    assert cut(5, 0) == [(3, [20, 21, 22]), (2, [23, 24])]


def free_width(values: dict) -> EngineDevice:
    config = config_of(values)
    options = EngineOptions(block_size=4, total_blocks=32, max_sequences=2, max_seq_len=64)
    return EngineDevice(reference, config, random_tensors(config), options, width=0)


@pytest.mark.parametrize("family", [LLAMA, HYBRID], ids=["llama", "hybrid"])
def test_a_prompt_in_several_tiles_says_the_same(family, monkeypatch):
    device = free_width(family)
    wanted = greedy(device, prompt_of(11), 6)
    logits = device.logits[:1].clone()
    monkeypatch.setattr(rows, "MOST_ROWS", 3)
    device = free_width(family)
    assert greedy(device, prompt_of(11), 6) == wanted
    torch.testing.assert_close(device.logits[:1], logits)


def test_gathered_experts_say_what_shared_ones_say(monkeypatch):
    device = free_width(HYBRID)
    gathered = greedy(device, prompt_of(11), 6)
    logits = device.logits[:1].clone()
    monkeypatch.setattr(experts, "GATHERED", 0)
    device = free_width(HYBRID)
    assert greedy(device, prompt_of(11), 6) == gathered
    torch.testing.assert_close(device.logits[:1], logits)


def test_what_can_be_recorded():
    config = config_of(HYBRID | {"num_experts": 40, "num_experts_per_tok": 10})
    assert [experts.can_be_recorded(config, count) for count in (1, 6, 7)] == [True, True, False]
    assert experts.can_be_recorded(config_of(HYBRID), 1000)
    assert experts.can_be_recorded(config_of(LLAMA), 1000)
