"""Picks and logits copies (S6 sections 3.3, 3.11)."""

from __future__ import annotations

import struct

import pytest
import torch

from metrale.core.io import DeviceFault, KvExhausted
from metrale.core.sequence import NO_ID
from metrale.device.conformance.driver import follow, prefilled
from metrale.device.kernels import reference as k

from .support import HYBRID, LLAMA, device_for, prompt_of

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("row", "pick"),
    [
        ([0.0, 3.0, 1.0], 1),
        ([2.0, 3.0, 3.0], 1),
        ([NAN, 1.0, 0.5], 1),
        ([NAN, NAN, NAN], 0),
        ([-INF, -INF, -INF], 0),
        ([-2e30, -2e30, -3e30], 0),
        ([-INF, -5.0, -INF], 1),
        ([1.0, INF, INF], 1),
    ],
)
def test_argmax_takes_the_lowest_index_and_never_nan(row, pick):
    assert k.argmax(torch.tensor([row, row])).tolist() == [pick, pick]


@pytest.mark.parametrize(
    ("row", "mask", "pick"),
    [
        ([0.0, 5.0, 1.0, 1.0], (NO_ID, NO_ID), 1),
        ([0.0, 5.0, 1.0, 1.0], (1, NO_ID), 3),
        ([0.0, 5.0, 4.0, 1.0], (1, 2), 3),
        ([0.0, 5.0, 4.0, 1.0], (2, 3), 1),
        ([0.0, 5.0, 4.0, 1.0], (NO_ID, 1), 2),
        ([0.0, 5.0, 4.0, 1.0], (1, 999), 2),
    ],
)
def test_a_masked_pick_is_the_last_maximum_of_the_rest(row, mask, pick):
    assert k.masked_argmax(torch.tensor([row]), torch.tensor([mask])).tolist() == [pick]


def test_logits_come_as_bf16_from_any_byte():
    device = device_for()
    device.logits[:3] = torch.linspace(-3, 7.3, 3 * 64).view(3, 64)
    device.logits[1, 5] = 1.00390625
    data = device.copy_logits_to_host(1, 0, 256)
    words = struct.unpack("<128H", data)
    wanted = device.logits[1:3].flatten().to(torch.bfloat16)
    assert [struct.unpack("<f", struct.pack("<I", w << 16))[0] for w in words] == wanted.tolist()
    assert device.copy_logits_to_host(1, 10, 200) == data[10:210]


def test_fed_steps_say_what_plain_steps_say():
    """Depth 2: inputs from the cells, lengths booked by the core afterwards."""
    device = device_for(LLAMA)
    prompts = [prompt_of(6, salt=i) for i in range(3)]
    wanted = []
    for prompt in prompts:
        seq = prefilled(device, prompt)
        wanted.append(follow(device, seq, device.argmax_on_device(0, 0), 6))
        device.free_sequence(seq)
    seqs = [prefilled(device, prompt, i) for i, prompt in enumerate(prompts)]
    firsts = []
    for i, prompt in enumerate(prompts):
        device.free_sequence(seqs[i])
        seqs[i] = prefilled(device, prompt, i)
        firsts.append(device.argmax_on_device(0, 0))
    event = device.create_event()
    masks = [(NO_ID, NO_ID)] * 3
    device.decode_batch(firsts, seqs, 0)
    device.argmax_batch_to_feed(0, masks, 0, event, 0)
    got = [device.read_feed(0, 3)]
    for _ in range(5):
        assert device.event_query(event)
        inputs = got[-1]
        for seq in seqs:
            device.reserve_decode_block(seq)
        device.decode_batch_fed([0, 1, 2], seqs, 0)
        device.argmax_batch_to_feed(0, masks, 0, event, 0)
        for seq, token in zip(seqs, inputs, strict=True):
            seq.tokens.append(token)
            seq.seq_len += 1
        got.append(device.read_feed(0, 3))
    assert [list(column) for column in zip(*got, strict=True)] == wanted
    assert device.feed_cells(3) == got[-1]


def test_reserving_and_handing_back():
    device = device_for(LLAMA, total_blocks=4)
    seq = prefilled(device, prompt_of(6))
    assert device.reserve_decode_block(seq) == 0
    seq.tokens, seq.seq_len = prompt_of(7), 7
    assert [device.reserve_decode_block(seq), seq.num_blocks] == [1, 3]
    device.release_decode_blocks(seq, 1)
    assert [seq.num_blocks, device.num_free_blocks()] == [2, 2]
    prefilled(device, prompt_of(7, salt=1), 2)
    assert device.num_free_blocks() == 0
    with pytest.raises(KvExhausted) as caught:
        device.reserve_decode_block(seq)
    assert [caught.value.short, seq.num_blocks] == ["exhausted", 2]


def test_a_hybrid_takes_no_fed_steps():
    device = device_for(HYBRID)
    assert device.facts.supports_token_feed is False
    seq = prefilled(device, [1, 2])
    with pytest.raises(DeviceFault, match="cannot take fed steps back"):
        device.decode_batch_fed([0], [seq], 0)
