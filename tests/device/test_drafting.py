"""Drafts: guesses that depend on the sequence's own past and on nothing that was dropped."""

from __future__ import annotations

from metrale.device.conformance.driver import follow, prefilled
from metrale.device.model.drafter import lookup_drafts

from .support import HYBRID, device_for, prompt_of


def propose(device, seq, token, count=4):
    return device.run_mtp_propose_multi(token, seq.seq_len, count, seq, 0, False)


def plain_proposal(tokens, pending):
    """What a sequence that never drafted proposes at the same place."""
    device = device_for(HYBRID)
    seq = prefilled(device, tokens)
    device.save_hidden_for_mtp(0, 0)
    return propose(device, seq, pending)


def test_proposals_do_not_remember_dropped_drafts():
    device = device_for(HYBRID)
    seq = prefilled(device, prompt_of(9))
    device.save_hidden_for_mtp(0, 0)
    first = device.argmax_on_device(0, 0)
    drafts = propose(device, seq, first)
    assert drafts == plain_proposal(prompt_of(9), first)
    assert len(drafts) == 4
    propose(device, seq, 3)
    tokens = [first, *follow(device, seq, first, 3)]
    device.save_hidden_for_mtp(0, 0)
    assert propose(device, seq, tokens[-1]) == plain_proposal([*prompt_of(9), *tokens[:-1]], tokens[-1])


def test_proposals_after_a_verify_use_the_true_hidden_rows():
    device = device_for(HYBRID)
    seq = prefilled(device, prompt_of(9))
    device.save_hidden_for_mtp(0, 0)
    drafts = propose(device, seq, 5)
    device.decode_verify([5, *drafts[:3]], seq)
    seq.rewind(2)
    device.stash_verify_hidden_rows([1], 0)
    device.commit_accepted_prefix(seq, 2, 4)
    device.save_hidden_for_mtp_from_stash(0, 0)
    device.trim_proposer_state(seq, 1, 0)
    wanted = plain_proposal([*prompt_of(9), 5, drafts[0]], 8)
    assert propose(device, seq, 8) == wanted
    (batched,), (confidences,) = device.run_mtp_propose_batched([8], [seq.seq_len], [0], 4, [seq], 0)
    assert batched == wanted
    assert all(confidence < 0 for confidence in confidences)


def test_sequences_propose_together_what_they_propose_alone():
    """One of them has caught up before, one is new, one has room for two drafts only."""
    device = device_for(HYBRID, max_seq_len=24)
    lengths, pending = (9, 13, 21), [5, 8, 13]
    wanted = []
    for length, token in zip(lengths, pending, strict=True):
        seq = prefilled(device, prompt_of(length, salt=length))
        device.save_hidden_for_mtp(0, 0)
        wanted.append(propose(device, seq, token))
        device.free_sequence(seq)
    assert [len(drafts) for drafts in wanted] == [4, 4, 2]
    seqs = []
    for i, length in enumerate(lengths):
        seqs.append(prefilled(device, prompt_of(length, salt=length), i))
        device.save_hidden_for_mtp(0, 0)
        device.stash[i] = device.saved
    propose(device, seqs[2], 30, 1)
    drafts, confidences = device.run_mtp_propose_batched(pending, list(lengths), [0, 1, 2], 4, seqs, 0)
    assert drafts == wanted
    assert [len(found) for found in confidences] == [4, 4, 2]


def test_nothing_is_proposed_for_nothing():
    device = device_for(HYBRID, max_seq_len=16)
    seq = prefilled(device, prompt_of(15))
    device.save_hidden_for_mtp(0, 0)
    assert propose(device, seq, 5, 0) == []
    assert propose(device, seq, 5, 3) == []


def test_looking_up_drafts_in_the_past():
    assert lookup_drafts([1, 2, 3, 9, 1, 2], 3) == [3, 9, 1]
    assert lookup_drafts([4, 5, 6], 2) == [6, 6]
    assert lookup_drafts([7], 2) == [7, 7]


def test_a_restored_sequence_drafts_from_what_it_knows():
    """The drafter is not in the spill image: it starts anew and never reads rows that nobody wrote."""
    import io

    device = device_for(HYBRID)
    seq = prefilled(device, prompt_of(9))
    image = io.BytesIO()
    device.save_sequence_state(seq, image)
    blocks = seq.num_blocks
    device.free_sequence(seq)
    image.seek(0)
    again = prefilled(device, [1], 3)
    device.free_sequence(again)
    again = device.alloc_sequence(again.request)
    device.restore_sequence_state(again, blocks, image)
    again.tokens, again.seq_len = prompt_of(9), 9
    device.head.keys.fill_(float("nan"))
    token = follow(device, again, 7, 2)[-1]
    device.save_hidden_for_mtp(0, 0)
    for _ in range(2):
        drafts = propose(device, again, token, 2)
        assert len(drafts) == 2
        assert not device.logits.isnan().any()
        assert max(drafts) > 0
        token = follow(device, again, token, 1)[-1]
        device.save_hidden_for_mtp(0, 0)
