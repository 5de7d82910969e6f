"""What a failing device call does to the rows of a speculative step (S4 section 19)."""

# ruff: noqa: E501

from __future__ import annotations

from typing import Any

import pytest
from spec_lines import PROPOSER, capacities, commit, head, save, trim
from testkit import E, between, count, finish, outs, release, req, run, run_failing, scenario, tick_of, toks

from metrale.core.io import DeviceFault
from metrale.sim.runner import RunResult

K4_CALL = "decode_verify_graphed_k4"
TOKENS = toks(10, 24, E)
WHOLE = " ".join(f"T{token}" for token in TOKENS[:-1])


def fault(text: str = "bus error") -> DeviceFault:
    return DeviceFault(text, text)


def failing(
    call: str, *indices: int, drafts: int = 3, requests: tuple[dict[str, Any], ...] = (), **knobs: Any
) -> RunResult:
    """One MTP request (or ``requests``), with the calls of ``call`` at ``indices`` failing."""
    device = knobs.pop("device", PROPOSER)
    knobs.setdefault("use_speculative", True)
    wanted = requests or (req(1, 5, TOKENS),)
    sc = scenario(*wanted, device=device, num_drafts=drafts, **knobs)
    return run_failing(sc, {call: {index: fault() for index in indices}})


def send_error(place: str, blocks: int) -> list[str]:
    return release(place, blocks, "send_error", cache=False)


# -- serial verifies: the row fails with the error's text -------------------------------------------------------------


@pytest.mark.parametrize("drafts", [1, 2, 3])
@pytest.mark.parametrize("call", ["sync_secondary", "ep_broadcast_cmd", "forward"])
def test_sync_words_and_forward_of_a_serial_verify_fail_the_row(drafts: int, call: str) -> None:
    """Index 1 of the syncs is the verify's own; the prefill broadcasts three words before the verify's first."""
    forward = "decode_verify_graphed" + {1: "", 2: "_k3", 3: "_k4"}[drafts]
    name, index = {"sync_secondary": (call, 1), "ep_broadcast_cmd": (call, 3), "forward": (forward, 0)}[call]
    result = failing(name, index, drafts=drafts)
    assert outs(result) == ["T10 T11 Error(bus error)"]
    assert between(result, 2)[-5].endswith(" -> ERR bus error")
    assert between(result, 2)[-4:] == [*send_error("s1@0:6", 1), "num_free_blocks() -> 1000"]


def test_the_command_word_too() -> None:
    """Word 0 announces the prefill, word 1 the bootstrap, word 2 the verify."""
    assert outs(failing("ep_broadcast_cmd_for_seq", 2)) == ["T10 T11 Error(bus error)"]


def test_a_failed_copy_fails_the_row() -> None:
    """At temperature 0.7: copy 0 is the first token's, 1 the bootstrap's, 2 the window's."""
    result = failing("copy_logits_to_host", 2, requests=(req(1, 5, TOKENS, temperature=0.7),))
    assert outs(result) == ["T10 T11 Error(bus error)"]


@pytest.mark.parametrize("drafts", [1, 2])
@pytest.mark.parametrize("wrong", [0, 1], ids=["full", "reject"])
def test_commit_of_k2_and_k3_fails_the_row(drafts: int, wrong: int) -> None:
    result = failing("commit_accepted_prefix", 0, drafts=drafts, requests=(req(1, 5, TOKENS, draft_wrong_every=wrong),))
    told = {(1, 0): "T12 T13 ", (2, 0): "T12 T13 T14 "}.get((drafts, wrong), "")
    assert outs(result) == [f"T10 T11 {told}Error(bus error)"]
    assert count(result, "cache_sequence") == 0


@pytest.mark.parametrize("wrong", [0, 1], ids=["full", "reject"])
def test_commit_of_k4_ends_the_row_like_any_other(wrong: int) -> None:
    result = failing("commit_accepted_prefix", 0, requests=(req(1, 5, TOKENS, draft_wrong_every=wrong),))
    if wrong:
        assert outs(result) == ["T10 T11 Done(stop, n=2, think=0, cached=0, acc=0, guard=None)"]
        assert finish("s1@0:7", 1) == between(result, 2)[-5:-1]
    else:
        assert outs(result) == ["T10 T11 T12 T13 T14 T15 Done(stop, n=6, think=0, cached=0, acc=3, guard=None)"]
        assert finish("s1@0:10", 1) == between(result, 2)[-5:-1]


# -- bootstrap --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("call", "index"), [("ep_broadcast_cmd_for_seq", 1), ("decode", 0), ("argmax_on_device", 1)])
def test_a_failed_bootstrap_is_an_ordinary_end(call: str, index: int) -> None:
    result = failing(call, index)
    assert outs(result) == ["T10 Done(stop, n=1, think=0, cached=0, acc=0, guard=None)"]
    assert count(result, "cache_sequence") == 1
    assert count(result, "run_mtp_propose") == 0


def test_a_failed_logprob_copy_of_a_bootstrap_is_an_ordinary_end() -> None:
    result = failing("copy_logits_to_host", 0, requests=(req(1, 5, TOKENS, top_logprobs=1),))
    assert outs(result) == ["T10 Done(stop, n=1, think=0, cached=0, acc=0, guard=None)"]


# -- only a matter for a log ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0, 2])
@pytest.mark.parametrize(
    "call", ["trim_proposer_state", "start_checkpoint_async", "dflash_eagle_accept_append", "decode_marconi_checkpoint"]
)
def test_housekeeping_of_a_serial_step_may_fail(call: str, wrong: int) -> None:
    request = req(1, 5, TOKENS, draft_wrong_every=wrong)
    calm = run(request, device=PROPOSER, use_speculative=True)
    result = failing(call, *range(20), drafts=1, requests=(request,))
    assert result.clients == calm.clients
    assert [line.split(" -> ERR")[0] for line in result.calls if not line.startswith("decode_marconi")] == [
        line for line in calm.calls if not line.startswith("decode_marconi")
    ]


def test_the_steps_own_sync_may_fail() -> None:
    result = failing("sync_secondary", 0)
    assert outs(result) == [f"{WHOLE} Done(stop, n=16, think=0, cached=0, acc=12, guard=None)"]


@pytest.mark.parametrize("drafts", [1, 3])
def test_a_failed_propose_means_a_bootstrap_next_tick(drafts: int) -> None:
    result = failing("run_mtp_propose_multi", 0, 2, drafts=drafts)
    assert tick_of(result, "decode(token=11,") == 2, "the bootstrap of tick 1 got no drafts"
    assert "start_checkpoint_async(s1@0:len=6)" in between(result, 1)
    assert between(result, 4)[0:2] == [*capacities(0), "sync_secondary()"]
    assert any(line.startswith("decode(") for line in between(result, 4))
    assert outs(result)[0].startswith(f"{WHOLE} Done(stop, n=16")


def test_a_failed_save_ends_a_bootstrap_without_drafts_and_without_a_checkpoint() -> None:
    result = failing("save_hidden_for_mtp", 0)
    assert between(result, 1)[-2:] == ["save_hidden_for_mtp(0, stream=0) -> ERR bus error", "num_free_blocks() -> 999"]
    assert outs(result)[0].startswith(f"{WHOLE} Done(stop, n=16")


@pytest.mark.parametrize("drafts", [1, 2, 3])
def test_a_failed_save_of_a_verify_leaves_the_row_without_drafts(drafts: int) -> None:
    """A full accept then makes no trim, no propose and, with one draft, no prefix checkpoint."""
    result = failing("save_hidden_for_mtp", 1, drafts=drafts)
    after = between(result, 2)
    at = after.index(f"{save(drafts)} -> ERR bus error")
    assert after[at + 1 :] == ["num_free_blocks() -> 999"]
    assert any(line.startswith("decode(") for line in between(result, 3))
    rejected = failing("save_hidden_for_mtp", 1, drafts=drafts, requests=(req(1, 5, TOKENS, draft_wrong_every=1),))
    assert between(rejected, 2)[-2:] == [f"{save(0)} -> ERR bus error", "num_free_blocks() -> 999"]
    for one in (result, rejected):
        assert outs(one)[0].startswith(f"{WHOLE} Done(stop, n=16")


# -- the batched MTP verify -------------------------------------------------------------------------------------------

PAIR = (req(1, 5, toks(10, 24, E)), req(2, 5, toks(30, 44, E)))


@pytest.mark.parametrize(
    ("call", "index"), [("sync_secondary", 1), ("decode_verify_batched", 0), ("gdn_fold_accepted", 0)]
)
def test_sync_forward_and_fold_of_a_batch_end_everybody(call: str, index: int) -> None:
    result = failing(call, index, requests=PAIR)
    verified = call == "gdn_fold_accepted"
    acc = (3, 2) if verified else (0, 0)
    assert outs(result) == [
        f"T10 T11 Done(stop, n=2, think=0, cached=0, acc={acc[0]}, guard=None)",
        f"T30 T31 Done(stop, n=2, think=0, cached=0, acc={acc[1]}, guard=None)",
    ]
    assert count(result, "cache_sequence") == 2
    assert count(result, "commit_accepted_prefix") == 0
    assert count(result, "stash_verify_hidden_rows") == int(verified)


def test_a_commit_of_a_batch_ends_its_own_row() -> None:
    result = failing("commit_accepted_prefix", 0, requests=PAIR)
    first, second = outs(result)
    assert first == "T10 T11 T12 T13 T14 T15 Done(stop, n=6, think=0, cached=0, acc=3, guard=None)"
    assert second.startswith("T30 T31 T32 T33")
    assert "Done(stop, n=16" in second
    assert "save_hidden_for_mtp_from_stash(1, stream=0)" in between(result, 2), "one survivor is asked alone"


@pytest.mark.parametrize(
    "call", ["stash_verify_hidden_rows", "stash_verify_catchup_rows", "run_mtp_catchup_batched", "trim_proposer_state"]
)
def test_housekeeping_of_a_batch_may_fail(call: str) -> None:
    calm = run(*PAIR, device=PROPOSER, use_speculative=True, num_drafts=3)
    assert failing(call, *range(20), requests=PAIR).clients == calm.clients


def test_a_failed_group_gets_no_drafts_and_a_declined_one_is_asked_one_by_one() -> None:
    failed = failing("run_mtp_propose_batched", 0, requests=PAIR)
    assert not any(line.startswith("save_hidden_for_mtp_from_stash") for line in between(failed, 2))
    assert [line.split("(")[0] for line in between(failed, 3) if line.startswith("decode")] == ["decode", "decode"]
    sc = scenario(*PAIR, device=PROPOSER, use_speculative=True, num_drafts=3)
    declined = run_failing(sc, {}, run_mtp_propose_batched=lambda *_: None)
    assert between(declined, 2)[-6:] == [
        "run_mtp_propose_batched(tokens=[15, 34], positions=[10, 9], stash=[0, 1], n=3, stream=0) -> declined",
        "save_hidden_for_mtp_from_stash(0, stream=0)",
        "run_mtp_propose_multi(token=15, pos=10, n=3, s1@0:len=10, stream=0, mask=false) -> [16, 17, 18]",
        "save_hidden_for_mtp_from_stash(1, stream=0)",
        "run_mtp_propose_multi(token=34, pos=9, n=3, s2@1:len=9, stream=0, mask=false) -> [35, 36, 37]",
        "num_free_blocks() -> 998",
    ]
    unsaved = run_failing(sc, {"save_hidden_for_mtp_from_stash": {0: fault()}}, run_mtp_propose_batched=lambda *_: None)
    assert between(unsaved, 2)[-4] == "save_hidden_for_mtp_from_stash(0, stream=0) -> ERR bus error"
    assert between(unsaved, 3)[2:4] == ["sync_secondary()", "ep_broadcast_cmd_for_seq(seq=0, cmd=0xf)"]


# -- DFlash -----------------------------------------------------------------------------------------------------------

BLOCK = {"dflash": True, "drafts": 5}


@pytest.mark.parametrize(
    ("call", "index"), [("sync_secondary", 2), ("decode_verify_dflash", 0), ("commit_accepted_prefix", 1)]
)
def test_a_dflash_failure_is_an_ordinary_end(call: str, index: int) -> None:
    """Sync 0 is the step's, 1 the bootstrap verify's, 2 that of the block verify."""
    result = failing(call, index, **BLOCK)
    told = {"commit_accepted_prefix": ("T15 T16 T17 T18 T19 T20 ", 11, 8)}.get(call, ("", 5, 3))
    assert outs(result) == [
        f"T10 T11 T12 T13 T14 {told[0]}Done(stop, n={told[1]}, think=0, cached=0, acc={told[2]}, guard=None)"
    ]


def test_a_failed_dflash_bootstrap_propose_falls_back_to_a_decode() -> None:
    result = failing("run_mtp_propose_multi", 0, **BLOCK)
    assert between(result, 1)[11:16] == [
        *capacities(0),
        "sync_secondary()",
        "ep_broadcast_cmd_for_seq(seq=0, cmd=0xa)",
        "decode(token=10, s1@0:len=6, stream=0)",
        "argmax_on_device(row=0, stream=0) -> 11",
    ]
    assert ", n=5, s1@0:len=6" in between(result, 1)[-3]
    assert outs(result)[0].startswith(f"{WHOLE} Done(stop, n=16")


@pytest.mark.parametrize("call", ["save_hidden_for_mtp", "trim_proposer_state", "commit_ctx", "run_mtp_propose_multi"])
def test_dflash_housekeeping_may_fail(call: str) -> None:
    """In the block verify even a failed save is only logged: trim and propose follow."""
    result = failing(call, 1, **BLOCK)
    assert outs(result)[0].startswith(f"{WHOLE} Done(stop, n=16")
    if call == "save_hidden_for_mtp":
        assert between(result, 2)[-4:-1] == [
            "save_hidden_for_mtp(5, stream=0) -> ERR bus error",
            trim("s1@0", 15, 5),
            "run_mtp_propose_multi(token=20, pos=15, n=5, s1@0:len=15, stream=0, mask=false) -> [21, 22, 23, 24, 63]",
        ]


@pytest.mark.parametrize(("call", "index"), [("sync_secondary", 3), ("gdn_fold_accepted", 0)])
def test_sync_and_fold_of_a_dflash_batch_end_everybody(call: str, index: int) -> None:
    result = failing(call, index, requests=PAIR, **BLOCK)
    n, acc = (11, 8) if call == "gdn_fold_accepted" else (5, 3)
    assert [out.split("Done")[1] for out in outs(result)] == [
        f"(stop, n={n}, think=0, cached=0, acc={acc}, guard=None)"
    ] * 2
    assert count(result, "cache_sequence") == 2


def test_a_short_answer_of_a_dflash_batch_ends_everybody() -> None:
    sc = scenario(*PAIR, device=PROPOSER, use_speculative=True, dflash=True, num_drafts=5)
    result = run_failing(sc, {}, decode_verify_batched=lambda tokens, *_: tokens[:-1])
    assert [out.split("Done")[1] for out in outs(result)] == ["(stop, n=5, think=0, cached=0, acc=3, guard=None)"] * 2
    assert count(result, "gdn_fold_accepted") == 0


def test_a_failed_forward_of_a_dflash_batch_is_retried_with_the_same_drafts() -> None:
    result = failing("decode_verify_batched", 0, requests=PAIR, **BLOCK)
    tried, again = (next(line for line in between(result, tick) if "verify_batched" in line) for tick in (2, 3))
    assert tried.startswith(
        "decode_verify_batched(tokens=[14, 15, 16, 17, 18, 19, 34, 35, 36, 37, 38, 39], ks=[6, 6], "
    )
    assert tried.split(", seqs=")[0] == again.split(", seqs=")[0]
    assert tried.endswith('seqs=["s1@0:len=9", "s2@1:len=9"], stream=0, woa=true) -> ERR bus error')
    assert between(result, 2)[-2:] == [tried, "num_free_blocks() -> 998"]
    assert outs(result)[0].startswith(f"{WHOLE} Done(stop, n=16")


def test_a_commit_of_a_dflash_batch_ends_its_own_row() -> None:
    """Commits 0 and 1 are those of the two bootstraps."""
    result = failing("commit_accepted_prefix", 2, requests=PAIR, **BLOCK)
    assert outs(result)[0].endswith("T20 Done(stop, n=11, think=0, cached=0, acc=8, guard=None)")
    assert outs(result)[1].endswith("T44 Done(stop, n=16, think=0, cached=0, acc=13, guard=None)")
    after = between(result, 2)
    assert commit("s2@1", 15, 6, 6) in after
    assert trim("s1@0", 15, 5) not in after
    assert trim("s2@1", 15, 5) in after
    assert "save_hidden_for_mtp_from_stash(1, stream=0)" in after


@pytest.mark.parametrize("how", ["declined", "failed"])
def test_a_dflash_batch_without_a_batched_propose_asks_everybody_alone(how: str) -> None:
    sc = scenario(*PAIR, device=PROPOSER, use_speculative=True, dflash=True, num_drafts=5)
    if how == "failed":
        result = run_failing(sc, {"run_mtp_propose_batched": {0: fault()}})
    else:
        result = run_failing(sc, {}, run_mtp_propose_batched=lambda *_: None)
    assert between(result, 2)[-5:-1] == [
        "save_hidden_for_mtp_from_stash(0, stream=0)",
        "run_mtp_propose_multi(token=20, pos=15, n=5, s1@0:len=15, stream=0, mask=false) -> [21, 22, 23, 24, 63]",
        "save_hidden_for_mtp_from_stash(1, stream=0)",
        "run_mtp_propose_multi(token=40, pos=15, n=5, s2@1:len=15, stream=0, mask=false) -> [41, 42, 43, 44, 63]",
    ]
    assert outs(result)[0].startswith(f"{WHOLE} Done(stop, n=16")


@pytest.mark.parametrize("call", ["stash_verify_hidden_rows", "trim_proposer_state", "commit_ctx"])
def test_housekeeping_of_a_dflash_batch_may_fail(call: str) -> None:
    calm = run(*PAIR, device=PROPOSER, use_speculative=True, dflash=True, num_drafts=5)
    assert failing(call, *range(20), requests=PAIR, **BLOCK).clients == calm.clients


# -- n-gram and self-speculation --------------------------------------------------------------------------------------

NINES = (req(1, 4, [9] * 12 + [E]),)


@pytest.mark.parametrize(
    ("call", "index", "n"),
    [
        ("ep_broadcast_cmd_for_seq", 1, 1),
        ("decode", 1, 2),
        ("argmax_on_device", 2, 2),
        ("sync_secondary", 0, 4),
        ("ep_broadcast_cmd", 4, 4),
        ("decode_verify_graphed", 1, 6),
    ],
)
def test_an_ngram_failure_is_an_ordinary_end(call: str, index: int, n: int) -> None:
    result = failing(call, index, requests=NINES, use_speculative=False, ngram_speculative=True, device={})
    nines = " ".join(["T9"] * n)
    assert outs(result) == [f"{nines} Done(stop, n={n}, think=0, cached=0, acc=0, guard=None)"]
    assert count(result, "cache_sequence") == 1


def test_a_failed_ngram_rollback_ends_the_row_and_a_failed_checkpoint_does_not() -> None:
    knobs = {"use_speculative": False, "ngram_speculative": True, "device": {}}
    rollback = failing("start_rollback_and_checkpoint_async", 0, requests=NINES, **knobs)
    assert outs(rollback) == [" ".join(["T9"] * 12) + " Done(stop, n=12, think=0, cached=0, acc=0, guard=None)"]
    checkpoint = failing("start_checkpoint_async", *range(9), requests=NINES, **knobs)
    assert outs(checkpoint) == [" ".join(["T9"] * 12) + " Done(stop, n=13, think=0, cached=0, acc=0, guard=None)"]


SELF: dict[str, Any] = {"use_speculative": False, "self_speculative": True, "device": {"has_self_speculative": True}}


@pytest.mark.parametrize(
    ("call", "index"),
    [
        ("ep_broadcast_cmd_for_seq", 1),
        ("decode", 0),
        ("argmax_on_device", 1),
        ("checkpoint_ssm_states", 0),
        ("decode_verify", 0),
    ],
)
def test_a_self_speculation_failure_is_an_ordinary_end(call: str, index: int) -> None:
    assert outs(failing(call, index, **SELF)) == ["T10 Done(stop, n=1, think=0, cached=0, acc=0, guard=None)"]


@pytest.mark.parametrize(("call", "index"), [("decode_draft", 2), ("argmax_on_device", 4)])
def test_an_error_stops_the_drafting_of_self_speculation(call: str, index: int) -> None:
    result = failing(call, index, **SELF)
    assert between(result, 1)[-3:-1] == [
        "checkpoint_ssm_states(s1@0:len=6)",
        "decode_verify(tokens=[11, 12, 13], s1@0:len=9) -> [12, 13, 14]",
    ]
    assert outs(result)[0].startswith(f"{WHOLE} Done(stop, n=16")


def test_no_draft_at_all_is_a_plain_token() -> None:
    result = failing("decode_draft", *range(99), **SELF)
    assert between(result, 1)[11:] == [
        "mtp_slot_draft_capacity(0)",
        "ep_broadcast_cmd_for_seq(seq=0, cmd=0xa)",
        "decode(token=10, s1@0:len=6, stream=0)",
        "argmax_on_device(row=0, stream=0) -> 11",
        "decode_draft(token=11, s1@0:len=6, stream=0) -> ERR bus error",
        "num_free_blocks() -> 999",
    ]
    assert outs(result) == [f"{WHOLE} Done(stop, n=16, think=0, cached=0, acc=0, guard=None)"]


# -- scripted exhaustion (no preemption on these lanes) ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "knobs", "told"),
    [
        ("decode_verify_graphed", {"use_speculative": True, "num_drafts": 1}, "Error(KV cache exhausted (scripted at decode_verify_graphed #0))"),
        ("decode_verify_graphed_k3", {"use_speculative": True, "num_drafts": 2}, "Error(KV cache exhausted (scripted at decode_verify_graphed_k3 #0))"),
        ("decode_verify_graphed_k4", {"use_speculative": True, "num_drafts": 3}, "Error(KV cache exhausted (scripted at decode_verify_graphed_k4 #0))"),
        ("decode", {"use_speculative": True, "num_drafts": 3}, "Done(stop, n=1"),
        ("decode_and_verify_fused", {"use_speculative": True, "dflash": True, "num_drafts": 5}, "Error(KV cache exhausted (scripted at decode_and_verify_fused #0))"),
        ("decode_verify_dflash", {"use_speculative": True, "dflash": True, "num_drafts": 5}, "Done(stop, n=5"),
        ("decode_verify", {"self_speculative": True, "num_drafts": 3}, "Done(stop, n=1"),
        ("decode_verify_graphed", {"ngram_speculative": True}, "Done(stop, n=4"),
    ],
)  # fmt: skip
def test_exhaustion_inside_a_speculative_call(call: str, knobs: dict[str, Any], told: str) -> None:
    device = {"has_proposer": True, "has_self_speculative": True, "exhaust_at": {call: [0]}}
    tokens = [9] * 12 + [E] if "ngram_speculative" in knobs else TOKENS
    result = run(req(1, 4 if "ngram_speculative" in knobs else 5, tokens), device=device, **knobs)
    assert told in outs(result)[0]
    assert between(result, tick_of(result, f"{call}("))[-1] == "num_free_blocks() -> 1000"


def test_exhaustion_of_a_batched_verify() -> None:
    device = PROPOSER | {"exhaust_at": {"decode_verify_batched": [0]}}
    mtp = run(*PAIR, device=device, use_speculative=True, num_drafts=3)
    assert [out.split("Done")[1][:9] for out in outs(mtp)] == ["(stop, n="] * 2
    dflash = run(*PAIR, device=device, use_speculative=True, dflash=True, num_drafts=5)
    assert outs(dflash)[0].startswith(f"{WHOLE} Done(stop, n=16")


def test_heads_of_failed_verifies_show_what_was_sent() -> None:
    result = failing(K4_CALL, 0)
    sent = head("s1@0", 6, [11, 12, 13, 14], [12, 13, 14, 15])[:-2]
    assert between(result, 2)[1 : 1 + len(sent)] == sent
    assert between(result, 2)[1 + len(sent)] == f"{K4_CALL}(tokens=[11, 12, 13, 14], s1@0:len=6) -> ERR bus error"
