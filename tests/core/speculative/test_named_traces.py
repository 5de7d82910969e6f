"""The two reference traces that the specification names and that are not at hand, rebuilt from what it says of them.

Line numbers are those of the trace file, line 1 being ``# scenario ...`` (S4 sections 1, 8.2, 10, 11.2, 15).
"""

# ruff: noqa: E501

from __future__ import annotations

from spec_lines import PROPOSER, capacities, commit, head, opening, propose, save, trim
from testkit import E, finish, lines_of, outs, req, run, toks


def block(lines: list[str], first: int, last: int) -> list[str]:
    """Lines ``first`` to ``last`` of the file, both included."""
    return lines[first - 1 : last]


def test_verify_k3() -> None:
    """verify_k2 and verify_k4 with two drafts: 15 tokens, every fourth draft wrong."""
    result = run(req(1, 5, toks(10, 23, E), draft_wrong_every=4), device=PROPOSER, use_speculative=True, num_drafts=2)
    lines = result.lines
    full = [
        "-- tick 2",
        *capacities(0),
        *head("s1@0", 6, [11, 12, 13], [12, 13, 14]),
        commit("s1@0", 9, na=3, k=3),
        save(2),
        trim("s1@0", 9, 2),
        propose("s1@0", 9, 14, 2, [15, 16]),
        "num_free_blocks() -> 999",
    ]
    assert block(lines, 29, 42) == full
    assert block(lines, 57, 70) == [
        "-- tick 4",
        *capacities(0),
        *head("s1@0", 12, [17, 19, 19], [18, 1, 1]),
        trim("s1@0", 13, 0),
        commit("s1@0", 13, na=1, k=3),
        save(0),
        propose("s1@0", 13, 18, 2, [19, 20]),
        "num_free_blocks() -> 999",
    ]
    assert block(lines, 108, 111) == finish("s1@0:20", 2)
    free = [line for line in lines[28:] if line.startswith("num_free_blocks")]
    assert free == [f"num_free_blocks() -> {free}" for free in (999, 999, 999, 998, 998, 1000)]
    assert outs(result) == [
        " ".join(f"T{token}" for token in range(10, 24)) + " Done(stop, n=15, think=0, cached=0, acc=8, guard=None)"
    ]


def test_dflash_batched() -> None:
    """The dflash scenario with a second sequence: both bootstrap alone, then share every verify."""
    result = run(
        req(1, 5, toks(10, 25, E), draft_wrong_every=5),
        req(2, 5, toks(30, 45, E), draft_wrong_every=5),
        device=PROPOSER | {"dflash_gamma": 6},
        use_speculative=True,
        dflash=True,
        num_drafts=5,
    )
    lines = result.lines
    assert block(lines, 1, 31) == ["# scenario case", *opening((1, 5, 10), (2, 5, 30))]
    assert block(lines, 32, 62) == [
        *capacities(0, 1),
        "sync_secondary()",
        propose("s1@0", 5, 10, 5, [11, 12, 13, 14, 16]),
        *head("s1@0", 5, [10, 11, 12, 13], [11, 12, 13, 14], call="decode_and_verify_fused"),
        "commit_ctx(s1@0:len=9, n=4, base=5, row=0)",
        commit("s1@0", 9, na=4, k=4),
        save(3),
        trim("s1@0", 9, 3),
        propose("s1@0", 9, 14, 5, [16, 16, 17, 18, 19]),
        propose("s2@1", 5, 30, 5, [31, 32, 33, 34, 36]),
        *head("s2@1", 5, [30, 31, 32, 33], [31, 32, 33, 34], call="decode_and_verify_fused"),
        "commit_ctx(s2@1:len=9, n=4, base=5, row=0)",
        commit("s2@1", 9, na=4, k=4),
        save(3),
        trim("s2@1", 9, 3),
        propose("s2@1", 9, 34, 5, [36, 36, 37, 38, 39]),
    ]
    assert [number for number, line in enumerate(lines[:62], 1) if line == "sync_secondary()"] == [34, 36, 50]
    assert [number for number, line in enumerate(lines[:62], 1) if line.startswith("commit_ctx")] == [44, 58]
    assert block(lines, 64, 79) == lines_of("""
        -- tick 2
        mtp_slot_draft_capacity(0)
        mtp_slot_draft_capacity(1)
        can_batch_verify([6, 6]) -> true
        sync_secondary()
        decode_verify_batched(tokens=[14, 16, 16, 17, 18, 19, 34, 36, 36, 37, 38, 39], ks=[6, 6], seqs=["s1@0:len=15", "s2@1:len=15"], stream=0, woa=true) -> [15, 1, 1, 1, 1, 1, 35, 1, 1, 1, 1, 1]
        commit_ctx(s1@0:len=10, n=1, base=9, row=0)
        commit_ctx(s2@1:len=10, n=1, base=9, row=1)
        gdn_fold_accepted(slots=[0, 1], accepted=[1, 1], k=6) -> true
        commit_accepted_prefix(s1@0:len=10, na=1, k=6)
        commit_accepted_prefix(s2@1:len=10, na=1, k=6)
        stash_verify_hidden_rows([0, 6], stream=0)
        trim_proposer_state(s1@0:len=10, na=0, stream=0)
        trim_proposer_state(s2@1:len=10, na=0, stream=0)
        run_mtp_propose_batched(tokens=[15, 35], positions=[10, 10], stash=[0, 1], n=5, stream=0) -> [[16, 17, 18, 19, 21], [36, 37, 38, 39, 41]]
        num_free_blocks() -> 998
        """)
    assert block(lines, 112, 132) == [
        *lines_of("""
        -- tick 5
        mtp_slot_draft_capacity(0)
        mtp_slot_draft_capacity(1)
        can_batch_verify([6, 6]) -> true
        sync_secondary()
        decode_verify_batched(tokens=[25, 63, 63, 63, 63, 1, 45, 63, 63, 63, 63, 1], ks=[6, 6], seqs=["s1@0:len=26", "s2@1:len=26"], stream=0, woa=true) -> [63, 63, 63, 63, 63, 1, 63, 63, 63, 63, 63, 1]
        commit_ctx(s1@0:len=25, n=5, base=20, row=0)
        commit_ctx(s2@1:len=25, n=5, base=20, row=1)
        gdn_fold_accepted(slots=[0, 1], accepted=[5, 5], k=6) -> true
        commit_accepted_prefix(s1@0:len=25, na=5, k=6)
        commit_accepted_prefix(s2@1:len=25, na=5, k=6)
        stash_verify_hidden_rows([4, 10], stream=0)
        """),
        *finish("s1@0:25", 2),
        *finish("s2@1:25", 2),
        "num_free_blocks() -> 1000",
    ]
    assert [out.split("Done")[1] for out in outs(result)] == ["(stop, n=17, think=0, cached=0, acc=15, guard=None)"] * 2
