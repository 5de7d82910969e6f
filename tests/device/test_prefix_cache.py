"""Prefix cache: faster, never different (S6 section 4)."""

from __future__ import annotations

import pytest

from metrale.device.conformance.driver import chunk, follow, prefilled, start

from .support import HYBRID, LLAMA, device_for, greedy, prompt_of

FAMILIES = pytest.mark.parametrize("family", [LLAMA, HYBRID], ids=["llama", "qwen3_next"])


def finish(device, seq):
    device.cache_sequence(seq)
    device.free_sequence(seq)


@FAMILIES
def test_a_prompt_that_extends_another(family):
    device = device_for(family, prefix_cache=True)
    base = prompt_of(18)
    finish(device, prefilled(device, base))
    longer = [*base, 9, 8, 7, 6, 5]
    wanted = greedy(device_for(family), longer, 8)
    seq = prefilled(device, longer, 2)
    assert seq.cached_tokens == (16 if family is LLAMA else 12)
    first = device.argmax_on_device(0, 0)
    assert [first, *follow(device, seq, first, 7)] == wanted


@FAMILIES
def test_the_last_prompt_token_is_never_skipped(family):
    device = device_for(family, prefix_cache=True)
    prompt = prompt_of(16)
    wanted = greedy(device_for(family), prompt, 6)
    for number in range(3):
        seq = prefilled(device, prompt, number)
        assert seq.cached_tokens == (0 if number == 0 else 15 if family is LLAMA else 8)
        first = device.argmax_on_device(0, 0)
        assert [first, *follow(device, seq, first, 5)] == wanted
        finish(device, seq)


@FAMILIES
def test_a_conversation_goes_on_from_its_own_answer(family):
    """cache_sequence at the end takes a snapshot at n; the next turn starts there."""
    device = device_for(family, prefix_cache=True)
    seq = prefilled(device, prompt_of(10))
    first = device.argmax_on_device(0, 0)
    answer = [first, *follow(device, seq, first, 6)]
    finish(device, seq)
    turn = [*prompt_of(10), *answer, 3, 2, 1]
    again = prefilled(device, turn, 2)
    assert again.cached_tokens == 16
    first = device.argmax_on_device(0, 0)
    assert [first, *follow(device, again, first, 7)] == greedy(device_for(family), turn, 8)


@FAMILIES
def test_chunks_below_the_cached_part_compute_nothing(family):
    device = device_for(family, prefix_cache=True)
    base = prompt_of(24)
    finish(device, prefilled(device, base))
    longer = [*base, 1, 2, 3]
    seq = start(device, longer, 2)
    for begin, end in ((0, 8), (8, 16), (16, 27)):
        device.prefill_chunk(chunk(seq, longer, begin, end), 1)
        assert seq.seq_len == end
    first = device.argmax_on_device(0, 0)
    assert [first, *follow(device, seq, first, 5)] == greedy(device_for(family), longer, 6)


def test_two_sequences_share_blocks_and_neither_writes_them():
    device = device_for(LLAMA, prefix_cache=True)
    base = prompt_of(16)
    finish(device, prefilled(device, base))
    shared = [device.pool.references(b) for b in range(256)]
    assert shared.count(1) == 4
    one, two = prefilled(device, [*base, 1], 1), prefilled(device, [*base, 2], 2)
    assert one.state.blocks[:4] == two.state.blocks[:4]
    assert [device.pool.references(b) for b in one.state.blocks] == [3, 3, 3, 3, 1]
    before = [device.memory.keys[0][b].clone() for b in one.state.blocks[:4]]
    follow(device, one, 5, 9)
    follow(device, two, 6, 9)
    after = [device.memory.keys[0][b] for b in one.state.blocks[:4]]
    assert all((a == b).all() for a, b in zip(before, after, strict=True))


def test_held_leaves_stay_and_others_are_evicted_oldest_first():
    device = device_for(LLAMA, prefix_cache=True, total_blocks=12)
    for salt in (1, 2):
        finish(device, prefilled(device, prompt_of(8, salt=salt)))
    assert device.num_free_blocks() == 8
    holder = prefilled(device, [*prompt_of(8, salt=2), 7], 3)
    assert holder.cached_tokens == 8
    assert device.reclaim_prefix_blocks(5) == 2
    assert device.reclaim_prefix_blocks(5) == 0
    device.free_sequence(holder)
    assert device.reclaim_prefix_blocks(1) == 1
    assert device.num_free_blocks() == 11


def test_growth_evicts_before_it_fails():
    device = device_for(HYBRID, prefix_cache=True, total_blocks=6)
    finish(device, prefilled(device, prompt_of(12, salt=1)))
    assert device.num_free_blocks() == 3
    seq = prefilled(device, prompt_of(20, salt=2), 2)
    assert seq.num_blocks == 5
    assert device.reclaim_prefix_blocks(9) == 1


def test_snapshots_are_bounded_and_replaced():
    device = device_for(HYBRID, prefix_cache=True, snapshots=2)
    for salt in range(5):
        finish(device, prefilled(device, prompt_of(9, salt=salt)))
        assert len(device.cache.snapshots) <= 2
    device = device_for(HYBRID, prefix_cache=True, snapshots=0)
    finish(device, prefilled(device, prompt_of(9)))
    assert len(device.cache.snapshots) == 0


def test_no_snapshot_of_a_state_that_absorbed_refused_rows():
    """S6 10.2 trap 1: cut and released without commit."""
    device = device_for(HYBRID, prefix_cache=True)
    seq = prefilled(device, prompt_of(9))
    known = dict(device.cache.snapshots)
    device.decode_verify([1, 2, 3], seq)
    seq.rewind(1)
    device.cache_sequence(seq)
    assert device.cache.snapshots.keys() == known.keys()


def test_decode_checkpoints_at_every_fourth_block():
    device = device_for(HYBRID, prefix_cache=True)
    seq = prefilled(device, prompt_of(3))
    marks = []
    for token in range(40):
        device.decode_batch([token % 60], [seq], 0)
        before = len(device.cache.snapshots)
        device.decode_marconi_checkpoint(seq)
        if len(device.cache.snapshots) > before:
            marks.append(seq.seq_len)
    assert marks == [16, 32]


def test_image_prompts_and_other_adapters_are_not_matched():
    device = device_for(LLAMA, prefix_cache=True)
    finish(device, prefilled(device, prompt_of(12)))
    seq = start(device, prompt_of(12), 2)
    seq.request.vision_pads = True
    device.prefill(prompt_of(12), seq, 0)
    assert seq.cached_tokens == 0
    other = start(device, prompt_of(12), 3)
    other.adapter_id = 77
    device.prefill(prompt_of(12), other, 0)
    assert other.cached_tokens == 0
