"""The ten scenarios that S4 section 21 derives from the rules; no reference trace shows them."""

# ruff: noqa: E501

from __future__ import annotations

from spec_lines import PROPOSER, bootstrap, capacities, commit, head, opening, propose, save, trim
from testkit import END_LINES, E, between, compact, count, finish, lines_of, marker, outs, req, run, toks


def test_1_k3_partial_accept() -> None:
    result = run(req(1, 5, toks(10, 15, E), draft_wrong_every=3), device=PROPOSER, use_speculative=True, num_drafts=2)
    assert result.calls == [
        *opening((1, 5, 10)),
        *capacities(0),
        "sync_secondary()",
        *bootstrap("s1@0", 6, fed=10, pick=11, n=2, drafts=[12, 14]),
        *marker(999, 2),
        *capacities(0),
        *head("s1@0", 6, [11, 12, 14], [12, 13, 1]),
        trim("s1@0", 8, 1),
        commit("s1@0", 8, na=2, k=3),
        save(1),
        propose("s1@0", 8, 13, 2, [14, 15]),
        *marker(999, 3),
        *capacities(0),
        *head("s1@0", 8, [13, 14, 15], [14, 15, 63]),
        *finish("s1@0:11", 1),
        *marker(1000, 4),
        *END_LINES,
    ]
    assert "ep_broadcast_cmd(0x1)" in between(result, 2)
    assert outs(result) == ["T10 T11 T12 T13 T14 T15 Done(stop, n=7, think=0, cached=0, acc=3, guard=None)"]


def test_2_length_stop_in_an_accepted_run() -> None:
    result = run(req(1, 5, toks(10, 17)), device=PROPOSER, use_speculative=True, num_drafts=3)
    assert between(result, 1, 4)[11:] == [
        *capacities(0),
        "sync_secondary()",
        *bootstrap("s1@0", 6, fed=10, pick=11, n=3, drafts=[12, 13, 14]),
        *marker(999, 2),
        *capacities(0),
        *head("s1@0", 6, [11, 12, 13, 14], [12, 13, 14, 15]),
        commit("s1@0", 10, na=4, k=4),
        save(3),
        trim("s1@0", 10, 3),
        propose("s1@0", 10, 15, 3, [16, 17, 17]),
        *marker(999, 3),
        *capacities(0),
        *head("s1@0", 10, [15, 16, 17, 17], [16, 17, 17, 17]),
        *finish("s1@0:14", 1),
        *marker(1000, 4),
        *END_LINES,
    ]
    assert outs(result) == ["T10 T11 T12 T13 T14 T15 T16 T17 Done(length, n=8, think=0, cached=0, acc=6, guard=None)"]


def test_3_four_sequences_prune_the_fourth_to_one_draft() -> None:
    requests = [req(i, 5, toks(10 * i, 10 * i + 9, E)) for i in (1, 2, 3, 4)]
    result = run(*requests, device=PROPOSER, use_speculative=True, num_drafts=3)
    assert between(result, 2) == lines_of("""
        mtp_slot_draft_capacity(0)
        mtp_slot_draft_capacity(1)
        mtp_slot_draft_capacity(2)
        mtp_slot_draft_capacity(3)
        can_batch_verify([4, 4, 4, 2]) -> true
        sync_secondary()
        decode_verify_batched(tokens=[11, 12, 13, 14, 21, 22, 23, 24, 31, 32, 33, 34, 41, 42], ks=[4, 4, 4, 2], seqs=["s1@0:len=10", "s2@1:len=10", "s3@2:len=10", "s4@3:len=8"], stream=0, woa=true) -> [12, 13, 14, 15, 22, 23, 24, 25, 32, 33, 34, 35, 42, 43]
        stash_verify_hidden_rows([3, 7, 11, 13], stream=0)
        stash_verify_catchup_rows([(0, 0), (1, 1), (2, 2), (4, 4), (5, 5), (6, 6), (8, 8), (9, 9), (10, 10), (12, 12)])
        gdn_fold_accepted(slots=[0, 1, 2, 3], accepted=[4, 4, 4, 2], k=4) -> true
        commit_accepted_prefix(s1@0:len=10, na=4, k=4)
        trim_proposer_state(s1@0:len=10, na=3, stream=0)
        commit_accepted_prefix(s2@1:len=10, na=4, k=4)
        trim_proposer_state(s2@1:len=10, na=3, stream=0)
        commit_accepted_prefix(s3@2:len=10, na=4, k=4)
        trim_proposer_state(s3@2:len=10, na=3, stream=0)
        commit_accepted_prefix(s4@3:len=8, na=2, k=2)
        trim_proposer_state(s4@3:len=8, na=1, stream=0)
        run_mtp_catchup_batched(tokens=[[12, 13, 14], [22, 23, 24], [32, 33, 34], [42]], slots=[0, 4, 8, 12], pos=[7, 7, 7, 7]) -> 0
        run_mtp_propose_batched(tokens=[15, 25, 35, 43], positions=[10, 10, 10, 8], stash=[0, 1, 2, 3], n=3, stream=0) -> [[16, 17, 18], [26, 27, 28], [36, 37, 38], [44, 45, 46]]
        num_free_blocks() -> 996
        """)  # fmt: skip
    assert count(result, "can_batch_verify([4, 4, 4, 2]) -> true") == 3
    assert between(result, 4)[6:] == lines_of("""
        decode_verify_batched(tokens=[19, 63, 63, 63, 29, 63, 63, 63, 39, 63, 63, 63, 45, 46], ks=[4, 4, 4, 2], seqs=["s1@0:len=18", "s2@1:len=18", "s3@2:len=18", "s4@3:len=12"], stream=0, woa=true) -> [63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 46, 47]
        stash_verify_hidden_rows([3, 7, 11, 13], stream=0)
        stash_verify_catchup_rows([(0, 0), (1, 1), (2, 2), (4, 4), (5, 5), (6, 6), (8, 8), (9, 9), (10, 10), (12, 12)])
        gdn_fold_accepted(slots=[0, 1, 2, 3], accepted=[4, 4, 4, 2], k=4) -> true
        commit_accepted_prefix(s4@3:len=12, na=2, k=2)
        trim_proposer_state(s4@3:len=12, na=1, stream=0)
        run_mtp_catchup_batched(tokens=[[46]], slots=[12], pos=[11]) -> 0
        save_hidden_for_mtp_from_stash(3, stream=0)
        run_mtp_propose_multi(token=47, pos=12, n=3, s4@3:len=12, stream=0, mask=false) -> [48, 49, 63]
        """) + finish("s1@0:18", 2) + finish("s2@1:18", 2) + finish("s3@2:18", 2) + compact("s4@3:12", 0) + [
        "num_free_blocks() -> 999"
    ]  # fmt: skip
    assert between(result, 5)[1:] == [
        *head("s4@0", 12, [47, 48, 49, 63], [48, 49, 63, 63]),
        *finish("s4@0:16", 2),
        "num_free_blocks() -> 1000",
    ]
    ends = [out.split("Done")[1] for out in outs(result)]
    assert ends == ["(stop, n=11, think=0, cached=0, acc=9, guard=None)"] * 3 + [
        "(stop, n=11, think=0, cached=0, acc=6, guard=None)"
    ]


NO_BATCHES = {"has_proposer": True, "can_batch_verify": False}


def test_4_veto_sends_three_mtp_sequences_to_the_serial_verifies() -> None:
    requests = [req(i, 5, toks(10 * i, 10 * i + 9, E)) for i in (1, 2, 3)]
    result = run(*requests, device=NO_BATCHES, use_speculative=True, num_drafts=3)
    assert between(result, 2) == [
        *capacities(0, 1, 2),
        "can_batch_verify([4, 4, 3]) -> false",
        *head("s1@0", 6, [11, 12, 13, 14], [12, 13, 14, 15]),
        commit("s1@0", 10, na=4, k=4),
        save(3),
        trim("s1@0", 10, 3),
        propose("s1@0", 10, 15, 3, [16, 17, 18]),
        *head("s2@1", 6, [21, 22, 23, 24], [22, 23, 24, 25]),
        commit("s2@1", 10, na=4, k=4),
        save(3),
        trim("s2@1", 10, 3),
        propose("s2@1", 10, 25, 3, [26, 27, 28]),
        *head("s3@2", 6, [31, 32, 33], [32, 33, 34]),
        commit("s3@2", 9, na=3, k=3),
        save(2),
        trim("s3@2", 9, 2),
        propose("s3@2", 9, 34, 3, [35, 36, 37]),
        "num_free_blocks() -> 997",
    ]


def test_4_veto_splits_a_dflash_batch_down_to_singles() -> None:
    requests = [req(i, 5, toks(10 * i, 10 * i + 9, E)) for i in (1, 2, 3)]
    result = run(*requests, device=NO_BATCHES, use_speculative=True, dflash=True, num_drafts=5)
    assert between(result, 2) == [
        *capacities(0, 1, 2),
        *lines_of("""
        can_batch_verify([6, 6, 6]) -> false
        can_batch_verify([6, 6]) -> false
        sync_secondary()
        decode_verify_dflash(tokens=[14, 15, 16, 17, 18, 19], s1@0:len=15) -> [15, 16, 17, 18, 19, 63]
        commit_ctx(s1@0:len=15, n=6, base=9, row=0)
        sync_secondary()
        decode_verify_dflash(tokens=[24, 25, 26, 27, 28, 29], s2@1:len=15) -> [25, 26, 27, 28, 29, 63]
        commit_ctx(s2@1:len=15, n=6, base=9, row=0)
        sync_secondary()
        decode_verify_dflash(tokens=[34, 35, 36, 37, 38, 39], s3@2:len=15) -> [35, 36, 37, 38, 39, 63]
        commit_ctx(s3@2:len=15, n=6, base=9, row=0)
        """),
        *finish("s1@0:15", 1),
        *finish("s2@1:15", 1),
        *finish("s3@2:15", 1),
        "num_free_blocks() -> 1000",
    ]


def test_5_slot_capacity_one_makes_everything_k2() -> None:
    device = {"has_proposer": True, "slot_draft_capacity": 1}
    result = run(req(1, 5, toks(10, 14, E)), device=device, use_speculative=True, num_drafts=3)
    assert between(result, 1, 3)[11:] == [
        *capacities(0),
        "sync_secondary()",
        *bootstrap("s1@0", 6, fed=10, pick=11, n=1, drafts=[12]),
        *marker(999, 2),
        *capacities(0),
        *head("s1@0", 6, [11, 12], [12, 13]),
        commit("s1@0", 8, na=2, k=2),
        "dflash_eagle_accept_append(s1@0:len=8)",
        save(1),
        trim("s1@0", 8, 1),
        propose("s1@0", 8, 13, 1, [14]),
        "decode_marconi_checkpoint(s1@0:len=8)",
        *marker(999, 3),
        *capacities(0),
        *head("s1@0", 8, [13, 14], [14, 63]),
        *finish("s1@0:10", 1),
        "num_free_blocks() -> 1000",
    ]


def test_5_slot_capacity_does_not_bind_dflash() -> None:
    device = {"has_proposer": True, "slot_draft_capacity": 1}
    result = run(req(1, 5, toks(10, 17, E)), device=device, use_speculative=True, dflash=True, num_drafts=5)
    assert between(result, 1, 2)[11:] == [
        *capacities(0),
        "sync_secondary()",
        propose("s1@0", 5, 10, 5, [11, 12, 13, 14, 15]),
        *head("s1@0", 5, [10, 11, 12, 13], [11, 12, 13, 14], call="decode_and_verify_fused"),
        "commit_ctx(s1@0:len=9, n=4, base=5, row=0)",
        commit("s1@0", 9, na=4, k=4),
        save(3),
        trim("s1@0", 9, 3),
        propose("s1@0", 9, 14, 5, [15, 16, 17, 63, 63]),
        *marker(999, 2),
        *capacities(0),
        "sync_secondary()",
        "decode_verify_dflash(tokens=[14, 15, 16, 17, 63, 63], s1@0:len=15) -> [15, 16, 17, 63, 63, 63]",
        "commit_ctx(s1@0:len=15, n=6, base=9, row=0)",
        *finish("s1@0:15", 1),
        "num_free_blocks() -> 1000",
    ]


def test_5_slot_capacity_zero_bootstraps_for_ever() -> None:
    """Width 0: a propose of nothing prints ``n=0`` and an empty list (S4 section 7.4)."""
    device = {"has_proposer": True, "slot_draft_capacity": 0}
    result = run(req(1, 5, toks(10, 12, E)), device=device, use_speculative=True, num_drafts=3)
    assert between(result, 1, 3)[11:] == [
        *capacities(0),
        "sync_secondary()",
        *bootstrap("s1@0", 6, fed=10, pick=11, n=0, drafts=[]),
        *marker(999, 2),
        *capacities(0),
        "sync_secondary()",
        *bootstrap("s1@0", 7, fed=11, pick=12, n=0, drafts=[]),
        *marker(999, 3),
        *capacities(0),
        "sync_secondary()",
        "ep_broadcast_cmd_for_seq(seq=0, cmd=0xc)",
        "decode(token=12, s1@0:len=8, stream=0)",
        "argmax_on_device(row=0, stream=0) -> 63",
        *finish("s1@0:8", 1),
        "num_free_blocks() -> 1000",
    ]
    assert outs(result) == ["T10 T11 T12 Done(stop, n=4, think=0, cached=0, acc=0, guard=None)"]


def test_6_ngram_accepts_a_run_of_one_token() -> None:
    result = run(req(1, 4, [9] * 8 + [E]), ngram_speculative=True)

    def boot(length: int) -> list[str]:
        return [
            "ep_broadcast_cmd_for_seq(seq=0, cmd=0x9)",
            f"decode(token=9, s1@0:len={length}, stream=0)",
            "argmax_on_device(row=0, stream=0) -> 9",
        ]

    assert result.calls == [
        *opening((1, 4, 9)),
        *boot(5),
        *marker(999, 2),
        *boot(6),
        *marker(999, 3),
        *boot(7),
        "start_checkpoint_async(s1@0:len=7)",
        *marker(999, 4),
        *head("s1@0", 7, [9, 9], [9, 9]),
        "start_checkpoint_async(s1@0:len=9)",
        *marker(999, 5),
        *head("s1@0", 9, [9, 9], [9, 9]),
        "start_checkpoint_async(s1@0:len=11)",
        *marker(999, 6),
        *head("s1@0", 11, [9, 9], [63, 1]),
        "start_rollback_and_checkpoint_async(s1@0:len=12, na=1)",
        *finish("s1@0:12", 1),
        *marker(1000, 7),
        *END_LINES,
    ]
    assert "ep_broadcast_cmd(0x1)" in between(result, 5)
    assert "ep_broadcast_cmd(0x0)" in between(result, 6)
    assert outs(result) == ["T9 T9 T9 T9 T9 T9 T9 T9 Done(stop, n=9, think=0, cached=0, acc=0, guard=None)"]


def test_7_late_arrival_bootstraps_first_and_joins_a_tick_later() -> None:
    result = run(
        req(1, 5, toks(10, 21, E)),
        req(2, 5, toks(30, 41, E)),
        req(3, 5, toks(50, 56, E), at=3),
        device=PROPOSER,
        use_speculative=True,
        num_drafts=3,
    )
    assert between(result, 4)[11:] == [
        *capacities(0, 1, 2),
        "sync_secondary()",
        *bootstrap("s3@2", 6, fed=50, pick=51, n=3, drafts=[52, 53, 54]),
        *lines_of("""
        can_batch_verify([4, 3]) -> true
        sync_secondary()
        decode_verify_batched(tokens=[19, 20, 21, 63, 37, 38, 39], ks=[4, 3], seqs=["s1@0:len=18", "s2@1:len=15"], stream=0, woa=true) -> [20, 21, 63, 63, 38, 39, 40]
        stash_verify_hidden_rows([3, 6], stream=0)
        stash_verify_catchup_rows([(0, 0), (1, 1), (2, 2), (4, 4), (5, 5)])
        gdn_fold_accepted(slots=[0, 1], accepted=[4, 3], k=4) -> true
        commit_accepted_prefix(s2@1:len=15, na=3, k=3)
        trim_proposer_state(s2@1:len=15, na=2, stream=0)
        run_mtp_catchup_batched(tokens=[[38, 39]], slots=[4], pos=[13]) -> 0
        save_hidden_for_mtp_from_stash(1, stream=0)
        run_mtp_propose_multi(token=40, pos=15, n=3, s2@1:len=15, stream=0, mask=false) -> [41, 63, 63]
        """),
        *finish("s1@0:18", 2),
        *compact("s3@2:6", 0),
        "num_free_blocks() -> 998",
    ]  # fmt: skip
    assert between(result, 5)[:3] == [*capacities(1, 0), "can_batch_verify([4, 3]) -> true"]
    assert '"s2@1:len=19", "s3@0:len=9"' in between(result, 5)[4]


def test_8_think_start_sends_the_whole_batch_to_plain_decode_until_thinking_ends() -> None:
    """Script index 4 of s1 opens thinking, index 8 closes it; 60 and 61 are the ids."""
    result = run(
        req(1, 5, [10, 11, 12, 13, 60, 14, 15, 16, 61, 17, 18, 19, 20, 21, E]),
        req(2, 5, toks(30, 44, E)),
        device=PROPOSER,
        use_speculative=True,
        num_drafts=3,
        think_start_token=60,
        think_end_token=61,
    )
    verify = between(result, 2)
    assert verify[4:5] == lines_of(
        'decode_verify_batched(tokens=[11, 12, 13, 60, 31, 32, 33], ks=[4, 3], seqs=["s1@0:len=10", "s2@1:len=9"], '
        "stream=0, woa=true) -> [12, 13, 60, 14, 32, 33, 34]"
    )
    assert commit("s1@0", 10, na=4, k=4) in verify
    assert (
        "run_mtp_propose_batched(tokens=[14, 34], positions=[10, 9], stash=[0, 1], n=3, stream=0) "
        "-> [[15, 16, 61], [35, 36, 37]]"
    ) in verify

    def plain(tokens: list[int], lengths: tuple[int, int], s1_too: bool) -> list[str]:
        a, b = lengths
        checkpoints = ["fx apply MarconiCheckpoint", f"decode_marconi_checkpoint(s1@0:len={a + 1})"] if s1_too else []
        return [
            "fx apply SyncSecondary",
            "sync_secondary()",
            "fx launch Decode{n=2, ctx=Unified, readback=HostLogits}",
            f'decode_batch(tokens={tokens}, seqs=["s1@0:len={a}", "s2@1:len={b}"], stream=0)',
            f"commit_ctx(s1@0:len={a + 1}, n=1, base={a}, row=0)",
            f"commit_ctx(s2@1:len={b + 1}, n=1, base={b}, row=1)",
            "copy_logits_to_host(row=0, off=0, bytes=256)",
            *checkpoints,
            "fx apply MarconiCheckpoint",
            f"decode_marconi_checkpoint(s2@1:len={b + 1})",
        ]

    assert between(result, 3, 6) == [
        *plain([14, 34], (10, 9), s1_too=False),
        *marker(998, 4),
        *plain([15, 35], (11, 10), s1_too=False),
        *marker(998, 5),
        *plain([16, 36], (12, 11), s1_too=True),
        *marker(998, 6),
        *capacities(0, 1),
        "sync_secondary()",
        *bootstrap("s1@0", 14, fed=61, pick=17, n=3, drafts=[18, 19, 20]),
        *bootstrap("s2@1", 13, fed=37, pick=38, n=3, drafts=[39, 40, 41]),
        "num_free_blocks() -> 998",
    ]
    assert outs(result)[0].startswith(
        "T10 T11 T12 T13 T61 T17 T18 T19 T20 T21 Done(stop, n=14, think=3, cached=0, acc="
    )


def test_9_nine_sequences_run_two_drafts_unpruned_in_active_order() -> None:
    requests = [req(i, 5, toks(10 + i, 16 + i, E)) for i in range(1, 10)]
    result = run(*requests, device=PROPOSER, use_speculative=True, num_drafts=3, max_batch_size=9)
    assert count(result, "run_mtp_propose_multi(") == 9
    assert all(", n=2, " in line for line in result.calls if line.startswith("run_mtp_propose_multi("))
    rows = [[11 + i, 12 + i, 13 + i] for i in range(1, 10)]
    seqs = ", ".join(f'"s{i}@{i - 1}:len=9"' for i in range(1, 10))
    assert between(result, 2)[9:12] == [
        f"can_batch_verify({[3] * 9}) -> true",
        "sync_secondary()",
        f"decode_verify_batched(tokens={[token for row in rows for token in row]}, ks={[3] * 9}, seqs=[{seqs}], stream=0, woa=true) -> "
        f"{[token + 1 for row in rows for token in row]}",
    ]
    assert "stash=[0, 1, 2, 3, 4, 5, 6, 7, 8], n=2, stream=0)" in between(result, 2)[-2]


TWENTY = " ".join(f"T{token}" for token in range(10, 30))


def test_10_a_batched_verify_never_raises_the_cancel_flag() -> None:
    """Before the batched verify of tick 3 exactly five tokens are generated, but that call does not look."""
    result = run(
        req(1, 5, toks(10, 29), cancel_at=5),
        req(2, 5, toks(30, 49)),
        device=PROPOSER,
        use_speculative=True,
        num_drafts=3,
    )
    assert '"s1@0:len=14"' in between(result, 3)[4]
    assert count(result, "decode_verify_graphed") == 1
    assert "s2@0" in next(line for line in result.calls if line.startswith("decode_verify_graphed"))
    assert outs(result)[0] == f"{TWENTY} Done(length, n=20, think=0, cached=0, acc=15, guard=None)"


def test_10_several_tokens_at_once_step_over_the_flag_test() -> None:
    """The single verify looks at 1, 5, 9, ... generated tokens: 6 is never met, 5 is."""
    alone = {"device": PROPOSER, "use_speculative": True, "num_drafts": 3}
    missed = run(req(1, 5, toks(10, 29), cancel_at=6), **alone)
    assert outs(missed) == [f"{TWENTY} Done(length, n=20, think=0, cached=0, acc=15, guard=None)"]
    met = run(req(1, 5, toks(10, 29), cancel_at=5), **alone)
    assert outs(met) == ["T10 T11 T12 T13 T14 T15 Done(stop, n=6, think=0, cached=0, acc=6, guard=None)"]
    assert between(met, 3) == [
        *capacities(0),
        *head("s1@0", 10, [15, 16, 17, 18], [16, 17, 18, 19]),
        *finish("s1@0:14", 1),
        "num_free_blocks() -> 1000",
    ]
