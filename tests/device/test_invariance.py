"""A row's numbers depend on nothing but the row: bit for bit on the CPU, for every kernel and for the whole model."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from metrale.core.sequence import PrefillSlice
from metrale.device.kernels import reference as k

from .support import HYBRID, LLAMA, device_for, prompt_of, start

GENERATOR = torch.Generator().manual_seed(11)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=GENERATOR)


def shuffled(function, *tensors: torch.Tensor) -> None:
    """Rows moved about and strangers changed: the watched row's result keeps every bit."""
    wanted = function(*tensors)
    for turn in range(4):
        order = torch.randperm(k.TILE, generator=GENERATOR)
        moved = [t[order].contiguous() for t in tensors]
        got = function(*moved)
        assert torch.equal(got, wanted[order])
        mine = int((order == 0).nonzero()[0])
        for t in moved:
            keep = t[mine].clone()
            t.normal_(generator=GENERATOR).mul_(10.0**turn)
            t[mine] = keep
        assert torch.equal(function(*moved)[mine], wanted[0])


@pytest.mark.parametrize("inner", [8, 24, 32, 100, 256, 896])
@pytest.mark.parametrize("outer", [1, 4, 33, 64, 600])
def test_matrix_products(inner, outer):
    weight, bias = random(outer, inner), random(outer)
    shuffled(lambda x: k.linear(x, weight, bias), random(k.TILE, inner))


@pytest.mark.parametrize("width", [1, 4, 20, 64, 100, 1000])
def test_elementwise_and_norms(width):
    weight = random(width)
    shuffled(lambda x: k.rms_norm(x, weight, 1e-6), random(k.TILE, width))
    shuffled(k.swiglu, random(k.TILE, width), random(k.TILE, width))
    shuffled(k.sigmoid, random(k.TILE, width))
    shuffled(lambda b, a: torch.cat(k.delta_gates(b, a, weight.exp(), weight), -1), random(8, width), random(8, width))
    shuffled(lambda x: k.route(x, 1, True)[0], random(k.TILE, width))
    shuffled(lambda x: k.argmax(x)[:, None], random(k.TILE, width))


def logits_of(device, prompt, cuts, strangers=()):
    """Logits after every position of ``prompt`` fed in the given pieces, with strangers decoding beside them."""
    seq = start(device, prompt)
    others = []
    for number, length in enumerate(strangers):
        other = start(device, prompt_of(length, salt=number), number + 2)
        device.prefill(prompt_of(length, salt=number), other, 0)
        others.append(other)
    edges = [0, *cuts, len(prompt)]
    for begin, end in pairwise(edges):
        piece = PrefillSlice(seq, prompt, begin, end - begin, end == len(prompt))
        if others:
            device.mixed_forward([3] * len(others), others, piece, 1)
        else:
            device.prefill_chunk(piece, 1)
    rows = [device.logits[len(others)].clone()]
    for step in range(5):
        at = step % (len(others) + 1)
        batch = [*others[:at], seq, *others[at:]]
        device.decode_batch([step + 1] * len(batch), batch, 0)
        rows.append(device.logits[at].clone())
    for one in [seq, *others]:
        device.free_sequence(one)
    return torch.stack(rows)


@pytest.mark.parametrize("family", [LLAMA, HYBRID], ids=["llama", "qwen3_next"])
def test_chunks_and_neighbours_change_no_bit(family):
    device = device_for(family)
    prompt = prompt_of(45)
    wanted = logits_of(device, prompt, [])
    for cuts in ([1], [44], [8, 16, 24], [3, 4, 20, 29], list(range(1, 45))):
        assert torch.equal(logits_of(device, prompt, cuts), wanted)
    for strangers in ([5], [1, 2, 30], [9] * 9):
        assert torch.equal(logits_of(device, prompt, [20], strangers), wanted)


@pytest.mark.parametrize("family", [LLAMA, HYBRID], ids=["llama", "qwen3_next"])
def test_a_verify_is_its_decodes(family):
    """S6 section 8: k rows at once and k single decodes agree in logits and, row by row, in recurrent state."""
    device = device_for(family)
    prompt, tokens = prompt_of(13), [5, 9, 2, 33, 1, 8, 60, 7, 11, 3]
    one, many = start(device, prompt), start(device, prompt, 2)
    for seq in (one, many):
        device.prefill(prompt, seq, 0)
    device.decode_verify(tokens, many)
    block = device.logits[: len(tokens)].clone()
    for i, token in enumerate(tokens):
        device.decode_batch([token], [one], 0)
        assert torch.equal(device.logits[0], block[i])
        inter = many.state.window[i]
        for layer in range(len(device.config.linear_layers)):
            assert torch.equal(inter.h[layer], device.memory.h[one.state.slot, layer])
            assert torch.equal(inter.conv[layer], device.memory.conv[one.state.slot, layer])
