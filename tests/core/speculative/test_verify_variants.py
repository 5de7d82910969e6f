"""Windows, picks, logprobs, grammar, batched bootstrap: what no reference trace shows (S4 sections 5, 8, 10)."""

# ruff: noqa: E501

from __future__ import annotations

from typing import Any

import pytest
from spec_lines import PROPOSER, capacities, commit, head, last_tick, propose, save, trim
from testkit import Bench, E, between, count, finish, lines_of, outs, req, run, run_failing, scenario, toks

from metrale.core.io import DeviceFault
from metrale.core.speculative.verdict import Window, leading_matches
from metrale.sim.runner import RunResult

MTP: dict[str, Any] = {"device": PROPOSER, "use_speculative": True}
TEN = toks(10, 19, E)


# -- the window -------------------------------------------------------------------------------------------------------


def test_a_window_counts_leading_matches_only() -> None:
    assert leading_matches([], [5]) == 0
    assert leading_matches([5, 6, 7], [5, 9, 7, 8]) == 1
    window = Window(10, [5, 6, 7], [5, 6, 9, 8])
    assert (window.rows, window.accepted, window.full, window.extra, window.tokens) == (4, 2, False, 9, [5, 6, 9])
    full = Window(10, [5, 6], [5, 6, 9])
    assert (full.full, full.extra, full.tokens) == (True, 9, [5, 6, 9])


@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
def test_every_outcome_of_four_rows(accepted: int) -> None:
    """s1 drafts for script indices 2, 3, 4; a wrong one among them cuts the run: lengths, words and tail order."""
    wrong = {0: 2, 1: 3, 2: 4, 3: 0}[accepted]
    result = run(req(1, 5, toks(10, 24, E), draft_wrong_every=wrong), **MTP, num_drafts=3)
    drafts = [12, 13, 14]
    if wrong:
        drafts[wrong - 2] += 1
    if wrong == 2:
        drafts[2] += 1
    picks = [12, *([13, 14, 15][:accepted]), *[1] * (3 - accepted)]
    length = 7 + accepted
    tail = between(result, 2)[9:-1]
    assert between(result, 2)[1:9] == head("s1@0", 6, [11, *drafts], picks)
    if accepted == 3:
        assert tail[:3] == [commit("s1@0", 10, 4, 4), save(3), trim("s1@0", 10, 3)]
    else:
        assert tail[:3] == [trim("s1@0", length, accepted), commit("s1@0", length, accepted + 1, 4), save(accepted)]
    assert tail[3].startswith(f"run_mtp_propose_multi(token={12 + accepted}, pos={length}, n=3, s1@0:len={length}, ")
    assert len(tail) == 4


# -- picks and logprobs (5) -------------------------------------------------------------------------------------------


def copies(result: RunResult, tick: int) -> list[str]:
    return [line for line in between(result, tick) if line.startswith("copy_logits_to_host")]


def copy(row: int, rows: int) -> str:
    return f"copy_logits_to_host(row={row}, off=0, bytes={rows * 128})"


@pytest.mark.parametrize("drafts", [1, 2, 3])
def test_copies_of_a_serial_verify(drafts: int) -> None:
    """None at temperature 0; one for a host pick; one for logprobs; two for both, between forward and result word."""
    for keys, wanted in (
        ({}, 0),
        ({"temperature": 0.7}, 1),
        ({"top_logprobs": 2}, 1),
        ({"temperature": 0.7, "top_logprobs": 2}, 2),
        ({"grammar_active": True}, 1),
    ):
        result = run(req(1, 5, TEN, **keys), **MTP, num_drafts=drafts)
        rows = 2 if "grammar_active" in keys else drafts + 1
        assert copies(result, 2) == [copy(0, rows)] * wanted
        lines = between(result, 2)
        if wanted:
            at = lines.index(copy(0, rows))
            assert lines[at - 1].startswith("decode_verify_graphed")
            assert lines[at + wanted].startswith("ep_broadcast_cmd(")


def test_copies_of_a_bootstrap() -> None:
    """Greedy: the device's argmax; else a host pick; logprobs cost one more copy after the pick."""
    assert copies(run(req(1, 5, TEN), **MTP), 1) == []
    assert copies(run(req(1, 5, TEN, temperature=0.7), **MTP), 1) == [copy(0, 1)] * 2, "first token and bootstrap"
    both = run(req(1, 5, TEN, temperature=0.7, top_logprobs=0), **MTP)
    assert copies(both, 1) == [copy(0, 1)] * 3
    assert outs(both)[0].startswith("T10 TL11:0 TL12:0 TL13:0")
    greedy = run(req(1, 5, TEN, top_logprobs=3), **MTP)
    assert between(greedy, 1)[15:17] == ["argmax_on_device(row=0, stream=0) -> 11", copy(0, 1)]


def test_copies_of_a_batched_verify_start_at_the_rows_of_their_sequence() -> None:
    result = run(
        req(1, 5, TEN, temperature=0.7, top_logprobs=2), req(2, 5, toks(30, 39, E)),
        req(3, 5, toks(40, 49, E), top_logprobs=1), **MTP, num_drafts=3,
    )  # fmt: skip
    lines = between(result, 2)
    at = next(index for index, line in enumerate(lines) if line.startswith("decode_verify_batched"))
    assert lines[at + 1 : at + 4] == [copy(0, 4), copy(0, 4), copy(8, 3)]
    assert lines[at + 4].startswith("stash_verify_hidden_rows")
    assert outs(result)[0].startswith("T10 TL11:2 TL12:2 TL13:2 TL14:2 TL15:2 TL16:2")
    assert outs(result)[2].startswith("T40 TL41:1 TL42:1")


def test_blocking_logprob_counts_per_lane() -> None:
    """One entry per token handled with a record: the EOS is one, the first token none (S3 section 5.6)."""
    request = req(1, 5, TEN, top_logprobs=2, streaming=False)
    mtp = run(request, **MTP, num_drafts=3)
    assert outs(mtp) == [f"Response(tokens={TEN}, stop, think=0, cached=0, acc=9, logprobs=10)"]
    ngram = run(request, ngram_speculative=True)
    assert outs(ngram) == [f"Response(tokens={TEN}, stop, think=0, cached=0, acc=0, logprobs=0)"]
    block = run(request, **MTP, dflash=True, num_drafts=5)
    assert outs(block) == [f"Response(tokens={TEN}, stop, think=0, cached=0, acc=8, logprobs=4)"]


def test_a_dflash_stream_shows_the_last_record_once_the_block_verify_brings_none() -> None:
    result = run(req(1, 5, TEN, top_logprobs=2, draft_wrong_every=3), **MTP, dflash=True, num_drafts=4)
    assert outs(result)[0].startswith("T10 TL11:2 TL12:2 TL13:2 TL14:2")
    assert copies(result, 1) == [copy(0, 4)]
    assert copies(result, 2) == []


def test_dflash_judges_on_the_raw_argmax_at_any_temperature() -> None:
    warm = run(req(1, 5, TEN, temperature=0.7), **MTP, dflash=True, num_drafts=5)
    cold = run(req(1, 5, TEN), **MTP, dflash=True, num_drafts=5)
    assert warm.clients == cold.clients
    assert count(warm, "copy_logits_to_host") == 1, "the first token alone"


def test_ngram_and_self_speculation_decode_by_argmax_at_any_temperature_and_verify_by_host_pick() -> None:
    result = run(req(1, 4, [9] * 8 + [E], temperature=0.7), ngram_speculative=True)
    assert copies(result, 1) == [copy(0, 1)]
    assert copies(result, 4) == [copy(0, 2)]
    own = run(
        req(1, 5, TEN, temperature=0.7), self_speculative=True, num_drafts=2, device={"has_self_speculative": True}
    )
    assert copies(own, 2) == [copy(0, 3)]
    assert count(own, "argmax_on_device") == 3 * 3


THINKS = {"think_start_token": 60, "think_end_token": 61}


def test_thinking_windows_are_picked_on_the_host_and_the_state_is_put_back() -> None:
    """Self-speculation runs inside thinking; the window's closing id switches thinking off for its own later rows
    only, so the post-close mask does not act inside the pick (S4 section 5.1)."""
    tokens = [10, 60, *toks(11, 16), 61, 17, 61, 18, 19, E]
    result = run(
        req(1, 5, tokens), self_speculative=True, num_drafts=3, device={"has_self_speculative": True}, **THINKS
    )
    windows = [line for line in result.calls if line.startswith("decode_verify(")]
    assert windows[:2] == [
        "decode_verify(tokens=[60, 11, 12, 13], s1@0:len=10) -> [11, 12, 13, 14]",
        "decode_verify(tokens=[15, 16, 61, 17], s1@0:len=15) -> [16, 61, 17, 61]",
    ]
    assert [copies(result, tick) for tick in (1, 2, 3)] == [[], [copy(0, 4)], []]
    assert outs(result) == ["T10 T61 T17 T18 T19 Done(stop, n=12, think=6, cached=0, acc=0, guard=None)"]


def test_a_self_speculation_window_cut_by_a_host_pick() -> None:
    """A draft that only the host refuses: the forced end of thinking replaces the second row's pick."""
    bench = Bench(
        scenario(
            req(1, 5, toks(10, 29), max_tokens=40), self_speculative=True, num_drafts=3,
            device={"has_self_speculative": True}, boundary_tokens=[15], **THINKS,
        )
    )  # fmt: skip
    bench.tick()
    row = bench.state.active[0]
    assert row.outputs == toks(10, 15)
    row.think.inside, row.think.over, row.think.force_end, row.think.budget = True, False, True, 100
    assert last_tick(bench)[-3:] == [
        "decode_verify(tokens=[16, 17, 18, 19], s1@0:len=15) -> [17, 18, 19, 20]",
        "copy_logits_to_host(row=0, off=0, bytes=512)",
        "rollback_ssm_states(s1@0:len=12, n=1)",
    ]
    assert row.outputs == toks(10, 16, 61)
    assert (row.last_token, row.think.inside, row.think.over) == (61, False, True)
    assert row.seq.seq_len == len(row.seq.tokens) == 12
    assert row.seq.tokens[-2:] == [15, 16]


# -- grammar (8.1, 8.2, 9) --------------------------------------------------------------------------------------------


def test_a_grammar_row_asks_for_one_draft_and_is_verified_after_the_batch() -> None:
    result = run(
        req(1, 5, TEN, grammar_active=True), req(2, 5, toks(30, 39, E)), req(3, 5, toks(40, 49, E)), **MTP, num_drafts=3
    )
    assert propose("s1@0", 6, 11, 1, [12], mask="true") in between(result, 1)
    lines = between(result, 2)
    assert lines[3] == "can_batch_verify([4, 3]) -> true"
    assert "gdn_fold_accepted(slots=[1, 2], accepted=[4, 3], k=4) -> true" in lines
    serial = head("s1@0", 6, [11, 12], [12, 13])
    assert lines[-14:] == [
        *serial[:-1],
        copy(0, 2),
        serial[-1],
        commit("s1@0", 8, 2, 2),
        "dflash_eagle_accept_append(s1@0:len=8)",
        save(1),
        trim("s1@0", 8, 1),
        propose("s1@0", 8, 13, 1, [14], mask="true"),
        "decode_marconi_checkpoint(s1@0:len=8)",
        "num_free_blocks() -> 997",
    ]


def test_a_dflash_grammar_row_bootstraps_with_k2_and_stays_out_of_the_batch() -> None:
    """Its block verify asks for the full count again (section 11.1 has no grammar clause)."""
    result = run(
        req(1, 5, TEN, grammar_active=True), req(2, 5, toks(30, 39, E)), req(3, 5, toks(40, 49, E)),
        **MTP, dflash=True, num_drafts=4,
    )  # fmt: skip
    first = between(result, 1)
    assert propose("s1@0", 5, 10, 1, [11], mask="true") in first
    assert "decode_and_verify_fused(tokens=[10, 11], s1@0:len=7) -> [11, 12]" in first
    assert propose("s1@0", 7, 12, 1, [13], mask="true") in first
    assert between(result, 2)[3] == "can_batch_verify([5, 5]) -> true"
    assert between(result, 2)[-8:-1] == [
        "sync_secondary()",
        "decode_verify_dflash(tokens=[12, 13], s1@0:len=9) -> [13, 14]",
        "commit_ctx(s1@0:len=9, n=2, base=7, row=0)",
        commit("s1@0", 9, 2, 2),
        save(1),
        trim("s1@0", 9, 1),
        propose("s1@0", 9, 14, 4, [15, 16, 17, 18], mask="true"),
    ]


# -- batched bootstrap (8.3) ------------------------------------------------------------------------------------------

TOGETHER: dict[str, Any] = {**MTP, "num_drafts": 2, "dflash_unified_ctx": False}
THREE = (req(1, 5, TEN), req(2, 5, toks(30, 39, E)), req(3, 5, toks(40, 49, E)))


def test_three_bootstrap_together() -> None:
    result = run(*THREE, **TOGETHER)
    assert between(result, 1)[33:] == [
        *capacities(0, 1, 2),
        *lines_of("""
        sync_secondary()
        can_batch_verify([2, 2, 2]) -> true
        decode_batch(tokens=[10, 30, 40], seqs=["s1@0:len=5", "s2@1:len=5", "s3@2:len=5"], stream=0)
        argmax_batch(row=0, n=3, stream=0) -> [11, 31, 41]
        stash_verify_hidden_rows([0, 1, 2], stream=0)
        run_mtp_propose_batched(tokens=[11, 31, 41], positions=[6, 6, 6], stash=[0, 1, 2], n=2, stream=0) -> [[12, 13], [32, 33], [42, 43]]
        start_checkpoint_async(s1@0:len=6)
        start_checkpoint_async(s2@1:len=6)
        start_checkpoint_async(s3@2:len=6)
        num_free_blocks() -> 997
        """),
    ]


def test_rows_of_a_batched_bootstrap_pick_for_themselves() -> None:
    """Two greedy rows take the batched argmax, the warm one its own host pick; grammar rows are asked alone; a row that
    ends makes the stash indices shift."""
    result = run(
        req(1, 5, [10, E]), req(2, 5, toks(30, 39, E), temperature=0.7, top_logprobs=1),
        req(3, 5, toks(40, 49, E), grammar_active=True), req(4, 5, TEN), **TOGETHER,
    )  # fmt: skip
    lines = between(result, 1)
    assert lines[lines.index("can_batch_verify([2, 2, 2, 2]) -> true") + 1 : -7] == lines_of("""
        decode_batch(tokens=[10, 30, 40, 10], seqs=["s1@0:len=5", "s2@1:len=5", "s3@2:len=5", "s4@3:len=5"], stream=0)
        argmax_batch(row=0, n=4, stream=0) -> [63, 31, 41, 11]
        copy_logits_to_host(row=1, off=0, bytes=128)
        copy_logits_to_host(row=1, off=0, bytes=128)
        stash_verify_hidden_rows([1, 2, 3], stream=0)
        run_mtp_propose_batched(tokens=[31, 11], positions=[6, 6], stash=[0, 2], n=2, stream=0) -> [[32, 33], [12, 13]]
        save_hidden_for_mtp_from_stash(1, stream=0)
        run_mtp_propose_multi(token=41, pos=6, n=1, s3@2:len=6, stream=0, mask=true) -> [42]
        start_checkpoint_async(s2@1:len=6)
        start_checkpoint_async(s3@2:len=6)
        start_checkpoint_async(s4@3:len=6)
        """)
    assert lines[-7:-3] == finish("s1@0:6", 1)


def test_one_greedy_row_is_not_worth_a_batched_argmax() -> None:
    warm = [req(2, 5, toks(30, 39, E), temperature=0.7), req(3, 5, toks(40, 49, E), temperature=0.7)]
    result = run(req(1, 5, TEN), *warm, **TOGETHER)
    lines = between(result, 1)
    at = next(index for index, line in enumerate(lines) if line.startswith("decode_batch"))
    assert lines[at + 1 : at + 4] == ["argmax_on_device(row=0, stream=0) -> 11", copy(1, 1), copy(2, 1)]


def test_everybody_ends_in_a_batched_bootstrap() -> None:
    result = run(req(1, 5, [10, E]), req(2, 5, [30, E]), **TOGETHER)
    assert count(result, "stash_verify_hidden_rows") == count(result, "run_mtp_propose") == 0
    assert outs(result) == [
        "T10 Done(stop, n=2, think=0, cached=0, acc=0, guard=None)",
        "T30 Done(stop, n=2, think=0, cached=0, acc=0, guard=None)",
    ]


@pytest.mark.parametrize(
    "knobs",
    [{"dflash_unified_ctx": True}, {"dflash_serial_append": True}, {"dflash": True}, {"device": PROPOSER | {"can_batch_verify": False}}],
    ids=["unified", "serial_append", "dflash", "veto"],
)  # fmt: skip
def test_what_keeps_bootstraps_apart(knobs: dict[str, Any]) -> None:
    result = run(*THREE, **{**TOGETHER, **knobs})
    asked = [line for line in between(result, 1) if line.startswith("can_batch_verify")]
    assert asked == (["can_batch_verify([2, 2, 2]) -> false"] if "device" in knobs else [])
    assert not any(line.startswith("decode_batch") for line in between(result, 1))


def test_a_failed_batched_bootstrap_ends_everybody_without_preemption() -> None:
    result = run(*THREE, **{**TOGETHER, "device": PROPOSER | {"kv_exhaust_at": [0]}})
    assert [out.split("Done")[1] for out in outs(result)] == ["(stop, n=1, think=0, cached=0, acc=0, guard=None)"] * 3
    assert count(result, "cache_sequence") == 3


def test_a_failed_stash_of_a_batched_bootstrap_is_only_logged() -> None:
    calm = run(*THREE, **TOGETHER)
    result = run_failing(scenario(*THREE, **TOGETHER), {"stash_verify_hidden_rows": {0: DeviceFault("x", "x")}})
    assert result.clients == calm.clients


def test_batched_bootstrap_goes_by_slot() -> None:
    """After a compaction the active order is slots 1, 0; the batch is sorted, the capacity lines are not."""
    device = PROPOSER | {"slot_draft_capacity": 0}
    result = run(
        req(1, 5, [10, 11, E]), req(2, 5, toks(30, 39, E)), req(3, 5, toks(40, 49, E)), **{**TOGETHER, "device": device}
    )
    lines = between(result, 3)
    assert lines[:4] == [*capacities(1, 0), "sync_secondary()", "can_batch_verify([2, 2]) -> true"]
    assert lines[4].startswith('decode_batch(tokens=[42, 32], seqs=["s3@0:len=7", "s2@1:len=7"]')
