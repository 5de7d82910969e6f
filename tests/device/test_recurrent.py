"""Recurrent state: every restoring call lands exactly where single decodes stand (S6 sections 3.4, 3.5)."""

from __future__ import annotations

import pytest
import torch

from metrale.core.io import DeviceFault
from metrale.device.conformance.driver import follow, prefilled

from .support import HYBRID, LLAMA, device_for, prompt_of

PROMPT = prompt_of(11)
ROWS = [5, 9, 2, 33]


def state(device, seq):
    return device.memory.h[seq.state.slot].clone(), device.memory.conv[seq.state.slot].clone()


def fresh(device, count):
    """State and next tokens of a sequence that decoded ``count`` rows one by one."""
    seq = prefilled(device, PROMPT, 9)
    for token in ROWS[:count]:
        device.decode_batch([token], [seq], 0)
    found = state(device, seq)
    tokens = follow(device, seq, 17, 5)
    device.free_sequence(seq)
    return found, tokens


WAYS = {
    "commit": lambda d, s, m: d.commit_accepted_prefix(s, m, 4),
    "rollback": lambda d, s, m: d.rollback_ssm_states(s, m),
    "rollback-async": lambda d, s, m: d.start_rollback_and_checkpoint_async(s, m),
    "fold-commit": lambda d, s, m: (d.gdn_fold_accepted([s], [m], 4), d.commit_accepted_prefix(s, m, 4)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kept", [1, 2, 3, 4])
def test_keeping_some_rows_of_a_verify(way, kept):
    device = device_for(HYBRID)
    wanted, tokens = fresh(device, kept)
    seq = prefilled(device, PROMPT)
    device.decode_verify_graphed_k4(ROWS, seq)
    assert seq.state.rec == seq.seq_len == 15
    seq.rewind(4 - kept)
    WAYS[way](device, seq, kept)
    assert seq.state.rec == seq.seq_len == 11 + kept
    got = state(device, seq)
    assert torch.equal(got[0], wanted[0])
    assert torch.equal(got[1], wanted[1])
    assert follow(device, seq, 17, 5) == tokens


def test_a_batched_verify_is_the_single_ones():
    device = device_for(HYBRID)
    prompts = [prompt_of(6, salt=i) for i in range(3)]
    rows = [[1, 2], [3, 4, 5, 6, 7, 8, 9], [10, 11, 12]]
    alone = []
    for prompt, mine in zip(prompts, rows, strict=True):
        seq = prefilled(device, prompt)
        alone += device.decode_verify(mine, seq)
        device.free_sequence(seq)
    seqs = [prefilled(device, prompt, i) for i, prompt in enumerate(prompts)]
    assert device.can_batch_verify([2, 7, 3])
    flat = [token for mine in rows for token in mine]
    assert device.decode_verify_batched(flat, [2, 7, 3], seqs, 0, True) == alone
    assert [seq.seq_len for seq in seqs] == [8, 13, 9]


def test_checkpoint_and_rollback_to_it():
    device = device_for(HYBRID)
    wanted, tokens = fresh(device, 0)
    seq = prefilled(device, PROMPT)
    device.checkpoint_ssm_states(seq)
    device.decode_verify(ROWS, seq)
    seq.rewind(4)
    device.rollback_ssm_states(seq, 0)
    assert torch.equal(state(device, seq)[0], wanted[0])
    assert follow(device, seq, 17, 5) == tokens


def test_the_decode_ring_survives_a_compaction():
    """S6 10.2 trap 3: a ring addressed by slot would hand out a stranger's state."""
    device = device_for(HYBRID)
    wanted, tokens = fresh(device, 2)
    other, seq = prefilled(device, prompt_of(5), 1), prefilled(device, PROMPT, 2)
    device.save_decode_ssm_snapshot(other, 3)
    for token in ROWS[:2]:
        device.decode_batch([token], [seq], 0)
    device.save_decode_ssm_snapshot(seq, 3)
    follow(device, seq, 40, 7)
    device.free_sequence(other)
    device.compact_sequence(seq, 0)
    device.restore_decode_ssm_snapshot(seq, 3)
    seq.rewind(7)
    assert seq.state.rec == seq.seq_len == 13
    assert torch.equal(state(device, seq)[0], wanted[0])
    assert follow(device, seq, 17, 5) == tokens


def test_ring_slots_that_do_not_exist_or_were_never_saved():
    device = device_for(HYBRID, ring_slots=4)
    seq = prefilled(device, PROMPT)
    with pytest.raises(DeviceFault, match="ring slot 4 does not exist"):
        device.save_decode_ssm_snapshot(seq, 4)
    with pytest.raises(DeviceFault, match="ring slot 2 was never saved"):
        device.restore_decode_ssm_snapshot(seq, 2)


def test_more_rows_than_the_verify_had():
    device = device_for(HYBRID)
    seq = prefilled(device, PROMPT)
    device.decode_verify(ROWS, seq)
    for count, rows in ((0, 4), (5, 4), (2, 3)):
        with pytest.raises(DeviceFault, match="commit of"):
            device.commit_accepted_prefix(seq, count, rows)
    with pytest.raises(DeviceFault, match="5 rows kept of a verify of 4"):
        device.rollback_ssm_states(seq, 5)


def test_self_speculation_skips_recurrent_layers_alone():
    device = device_for(HYBRID)
    wanted, tokens = fresh(device, 0)
    seq = prefilled(device, PROMPT)
    for token in ROWS:
        device.decode_draft(token, seq, 0)
    assert (seq.seq_len, seq.state.rec) == (15, 11)
    assert torch.equal(state(device, seq)[0], wanted[0])
    seq.rewind(4)
    assert follow(device, seq, 17, 5) == tokens


def test_a_model_without_recurrent_state_needs_no_copies():
    device = device_for(LLAMA)
    seq = prefilled(device, PROMPT)
    device.decode_verify(ROWS, seq)
    seq.rewind(2)
    device.commit_accepted_prefix(seq, 2, 4)
    device.start_checkpoint_async(seq)
    rest = follow(device, seq, 17, 5)
    device.free_sequence(seq)
    assert rest == fresh(device, 2)[1]
