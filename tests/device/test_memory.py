"""Blocks, slots, spill images, teardown: nothing is lost, nothing changes on failure."""

from __future__ import annotations

import gc
import io
import random
import resource

import pytest
import torch

from metrale.core.io import DeviceFault, KvExhausted, SlotsExhausted
from metrale.core.sequence import NO_SLOT
from metrale.device.conformance.driver import chunk, follow, prefilled, start

from .support import HYBRID, LLAMA, device_for, greedy, prompt_of


def picture(device, *seqs):
    """Everything a failed call must leave as it was."""
    facts = [(s.slot, s.seq_len, tuple(s.tokens), s.num_blocks, s.state.rec, tuple(s.state.blocks)) for s in seqs]
    states = [(device.memory.h[s.state.slot].clone(), device.memory.conv[s.state.slot].clone()) for s in seqs]
    return facts, states, device.num_free_blocks()


def same(one, two):
    return (
        one[0] == two[0]
        and one[2] == two[2]
        and all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(one[1], two[1], strict=True))
    )


def test_labels_are_the_smallest_free_and_memory_stays_private():
    device = device_for(HYBRID)
    seqs = [prefilled(device, prompt_of(5, salt=i), i) for i in range(4)]
    assert [s.slot for s in seqs] == [0, 1, 2, 3]
    device.free_sequence(seqs[1])
    device.free_sequence(seqs[0])
    assert seqs[1].slot == 1
    assert start(device, [1], 9).slot == 0
    wanted = follow(device, seqs[3], 3, 4)
    again = prefilled(device, prompt_of(5, salt=3), 5)
    assert again.slot == 1
    device.compact_sequence(again, 7)
    assert again.slot == 7
    assert start(device, [1], 10).slot == 1
    device.detach_slot_for_reuse(again)
    assert again.slot == NO_SLOT
    assert follow(device, again, 3, 4) == wanted


def test_a_detach_after_a_move_into_the_slot_leaves_it_taken():
    device = device_for()
    one, two = start(device, [1], 1), start(device, [1], 2)
    device.compact_sequence(two, 0)
    device.detach_slot_for_reuse(one)
    assert [start(device, [1], 3).slot, start(device, [1], 4).slot] == [1, 2]


def test_slots_run_out_with_a_text_the_core_knows():
    device = device_for(max_sequences=2)
    seqs = [start(device, [1], i) for i in range(2)]
    with pytest.raises(SlotsExhausted, match="pool exhausted"):
        start(device, [1], 3)
    device.free_sequence(seqs[0])
    assert start(device, [1], 4).slot == 0


@pytest.mark.parametrize("family", [LLAMA, HYBRID], ids=["llama", "qwen3_next"])
def test_a_dry_pool_changes_nothing(family):
    """S6 3.1: all blocks of all rows first; a failed step may be repeated with fewer rows (10.2 trap 11)."""
    device = device_for(family, total_blocks=6)
    one, two = prefilled(device, prompt_of(7), 1), prefilled(device, prompt_of(8, salt=1), 2)
    late = start(device, prompt_of(9), 3)
    follow(device, one, 3, 1)
    assert [one.num_blocks, two.num_blocks, device.num_free_blocks()] == [3, 3, 0]
    follow(device, one, 3, 4)
    follow(device, two, 3, 4)
    before = picture(device, one, two, late)
    calls = [
        lambda: device.decode_batch([1, 2], [one, two], 0),
        lambda: device.decode(1, one, 0),
        lambda: device.decode_verify([1, 2], one),
        lambda: device.decode_verify_batched([1, 2, 3, 4], [2, 2], [two, one], 0, True),
        lambda: device.decode_draft(1, one, 0),
        lambda: device.prefill(prompt_of(9), late, 0),
        lambda: device.prefill_chunk(chunk(late, prompt_of(9), 0, 4), 1),
        lambda: device.mixed_forward([1], [two], chunk(late, prompt_of(9)), 1),
    ]
    for call in calls:
        with pytest.raises(KvExhausted, match="KV cache exhausted"):
            call()
        assert same(picture(device, one, two, late), before)
    device.free_sequence(one)
    history, calm = list(two.tokens), device_for(family)
    assert follow(device, two, 5, 3) == follow(calm, prefilled(calm, history), 5, 3)


def test_repeating_a_chunk_after_exhaustion():
    device = device_for(HYBRID, total_blocks=4)
    holder = prefilled(device, prompt_of(8), 1)
    late = start(device, prompt_of(12), 2)
    device.prefill_chunk(chunk(late, prompt_of(12), 0, 4), 1)
    with pytest.raises(KvExhausted):
        device.prefill_chunk(chunk(late, prompt_of(12), 4, 12), 1)
    device.free_sequence(holder)
    device.prefill_chunk(chunk(late, prompt_of(12), 4, 12), 1)
    assert device.argmax_on_device(0, 0) == greedy(device_for(HYBRID), prompt_of(12), 1)[0]


def test_tables_grow_one_block_ahead_and_never_shrink_on_a_rewind():
    device = device_for()
    seq = prefilled(device, prompt_of(7))
    assert seq.num_blocks == 2
    device.decode_batch([1], [seq], 0)
    assert seq.num_blocks == 3
    seq.rewind(6)
    device.decode_batch([1], [seq], 0)
    assert seq.num_blocks == 3
    assert device.num_free_blocks() == 256 - 3
    device.free_sequence(seq)
    device.free_sequence(seq)
    assert [seq.seq_len, seq.slot, seq.num_blocks, device.num_free_blocks()] == [3, 0, 0, 256]


@pytest.mark.parametrize("family", [LLAMA, HYBRID], ids=["llama", "qwen3_next"])
def test_a_spilled_sequence_goes_on_where_it_stopped(family):
    device = device_for(family)
    seq = prefilled(device, prompt_of(10))
    image = io.BytesIO()
    device.save_sequence_state(seq, image)
    per_block = 2 * 4 * 4 * device.config.kv_heads * device.config.head_dim * len(device.config.attention_layers)
    slot = seq.state.slot
    recurrent = 4 * (device.memory.h[slot].numel() + device.memory.conv[slot].numel()) if family is HYBRID else 0
    assert len(image.getvalue()) == seq.num_blocks * per_block + recurrent
    wanted = follow(device, seq, 3, 6)
    device.free_sequence(seq)
    prefilled(device, prompt_of(20, salt=4), 2)
    again = start(device, [], 3)
    image.seek(0)
    device.restore_sequence_state(again, 3, image)
    assert again.num_blocks == 3
    again.tokens, again.seq_len = prompt_of(10), 10
    again.state.rec = 10
    assert follow(device, again, 3, 6) == wanted


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"x", lambda data: b""])
def test_an_image_that_does_not_fit_is_a_fault(change):
    device = device_for(HYBRID)
    seq = prefilled(device, prompt_of(10))
    image = io.BytesIO()
    device.save_sequence_state(seq, image)
    again = start(device, [], 2)
    with pytest.raises(DeviceFault, match="spill image"):
        device.restore_sequence_state(again, seq.num_blocks, io.BytesIO(change(image.getvalue())))
    device.free_sequence(again)
    device.free_sequence(seq)
    assert device.num_free_blocks() == 256


def test_restore_takes_all_blocks_or_none():
    device = device_for(total_blocks=4)
    seq = prefilled(device, prompt_of(5))
    image = io.BytesIO()
    device.save_sequence_state(seq, image)
    again = start(device, [], 2)
    with pytest.raises(KvExhausted):
        device.restore_sequence_state(again, 3, io.BytesIO(image.getvalue()))
    assert [again.num_blocks, device.num_free_blocks()] == [0, 2]


def test_a_freed_sequence_is_refused():
    device = device_for()
    seq = prefilled(device, [1, 2])
    device.free_sequence(seq)
    with pytest.raises(DeviceFault, match="not alive"):
        device.decode_batch([1], [seq], 0)


def test_teardown_leaves_nothing_and_names_who_was_alive():
    device = device_for(HYBRID, prefix_cache=True)
    seq = prefilled(device, prompt_of(9))
    with pytest.raises(DeviceFault, match="1 sequences were alive"):
        device.teardown()
    assert [device.num_free_blocks(), device.slots.free, seq.num_blocks] == [256, 16, 0]
    assert device.memory.h.numel() == device.logits.numel() == 0
    assert device.memory.keys == device.memory.values == []
    device.teardown()


def test_a_thousand_random_requests_leave_the_pool_full():
    rng = random.Random(4)
    small = HYBRID | {"num_hidden_layers": 2, "full_attention_interval": 2, "num_experts": 0}
    device = device_for(small, prefix_cache=True, total_blocks=64, snapshots=8)
    live: list = []
    grown = []
    for number in range(1000):
        prompt = prompt_of(rng.randrange(1, 16), salt=rng.randrange(3))
        try:
            seq = prefilled(device, prompt, number)
            live.append(seq)
            follow(device, seq, 1, rng.randrange(2))
        except (KvExhausted, SlotsExhausted):
            if device.live and device.live[-1] not in live:
                device.free_sequence(device.live[-1])
        while len(live) > 6 or (live and rng.random() < 0.5):
            gone = live.pop(rng.randrange(len(live)))
            if rng.random() < 0.5:
                device.cache_sequence(gone)
            device.free_sequence(gone)
        if number in (499, 999):
            gc.collect()
            grown.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    for seq in live:
        device.free_sequence(seq)
    held = 64 - device.num_free_blocks()
    assert device.reclaim_prefix_blocks(1000) == held
    assert device.num_free_blocks() == 64
    assert device.slots.free == 16
    assert device.live == []
    assert [device.pool.references(b) for b in range(64)] == [0] * 64
    assert grown[1] - grown[0] < 20_000
