"""DFlash outcomes, batches and propose groups that no reference trace shows (S4 sections 8.2, 9.1, 10, 11)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from spec_lines import PROPOSER, capacities, commit, head, last_tick, propose, save, trim
from testkit import Bench, E, between, count, finish, outs, req, run, run_failing, scenario, toks

MTP: dict[str, Any] = {"device": PROPOSER, "use_speculative": True}
TEN = toks(10, 19, E)


@pytest.mark.parametrize(("drafts", "rows"), [(1, 2), (2, 3), (3, 4), (5, 4)])
def test_the_bootstrap_verify_takes_three_drafts_at_most(drafts: int, rows: int) -> None:
    result = run(req(1, 5, toks(10, 30, E)), **MTP, dflash=True, num_drafts=drafts)
    asked = toks(11, 10 + drafts)
    window = [10, *asked[: rows - 1]]
    assert between(result, 1)[13:][:1] == [propose("s1@0", 5, 10, drafts, asked)]
    body = between(result, 1)[14:]
    assert (
        body[: 5 + rows]
        == [
            *head("s1@0", 5, window, [token + 1 for token in window], call="decode_and_verify_fused"),
            f"commit_ctx(s1@0:len={5 + rows}, n={rows}, base=5, row=0)",
        ][: 5 + rows]
    )
    assert body[-2 - (rows == 2)].startswith(f"run_mtp_propose_multi(token={10 + rows}, pos={5 + rows}, n={drafts}, ")


@pytest.mark.parametrize(("drafts", "call"), [(3, "decode_and_verify_fused"), (4, "decode_verify_dflash")])
def test_the_only_verify_of_a_step_takes_the_block_call_from_four_drafts_on(drafts: int, call: str) -> None:
    result = run(req(1, 5, toks(10, 30, E)), **MTP, dflash=True, num_drafts=drafts)
    assert any(line.startswith(call) for line in between(result, 2))
    words = [line for line in between(result, 2) if line.startswith("ep_broadcast")]
    assert len(words) == (6 if drafts == 3 else 0)


def test_dflash_partial_accept_in_the_bootstrap_verify() -> None:
    """The context commit stands between the rewind and the trim (section 10 row 7)."""
    result = run(req(1, 5, TEN, draft_wrong_every=3), **MTP, dflash=True, num_drafts=4)
    assert between(result, 1)[13:-1] == [
        propose("s1@0", 5, 10, 4, [11, 12, 14, 14]),
        *head("s1@0", 5, [10, 11, 12, 14], [11, 12, 13, 1], call="decode_and_verify_fused"),
        "commit_ctx(s1@0:len=8, n=3, base=5, row=0)",
        trim("s1@0", 8, 2),
        commit("s1@0", 8, 3, 4),
        save(2),
        propose("s1@0", 8, 13, 4, [14, 15, 17, 17]),
    ]


@pytest.mark.parametrize("wrong", [0, 3], ids=["full", "partial"])
def test_dflash_bootstrap_verify_that_ends_the_row_still_commits_the_context(wrong: int) -> None:
    result = run(req(1, 5, [10, 11, E], draft_wrong_every=wrong, max_tokens=9), **MTP, dflash=True, num_drafts=4)
    lines = between(result, 1)
    if wrong:
        assert (
            lines[-8:-1]
            == [
                "ep_broadcast_cmd(0x2)",
                "commit_ctx(s1@0:len=8, n=3, base=5, row=0)",
                trim("s1@0", 8, 2),
                commit("s1@0", 8, 3, 4),
                *finish("s1@0:8", 1),
            ][-7:]
        )
    else:
        assert lines[-6:-1] == ["commit_ctx(s1@0:len=9, n=4, base=5, row=0)", *finish("s1@0:9", 1)]


def test_dflash_without_unified_context() -> None:
    """The block verify appends to the eagle head instead; the fixed widths commit nothing."""
    result = run(req(1, 5, toks(10, 24, E)), **MTP, dflash=True, num_drafts=5, dflash_unified_ctx=False)
    assert count(result, "commit_ctx") == 0
    assert between(result, 2)[:4] == [
        *capacities(0),
        "sync_secondary()",
        "decode_verify_dflash(tokens=[14, 15, 16, 17, 18, 19], s1@0:len=15) -> [15, 16, 17, 18, 19, 20]",
        "dflash_eagle_kgamma_append(s1@0:len=15, na=5, base=9)",
    ]


def unequal(bench: Bench, counts: dict[int, int]) -> None:
    """Cut the drafts of requests to so many."""
    for row in bench.state.active:
        row.drafts = row.drafts[: counts[row.request.id]]


def test_a_dflash_batch_takes_rows_of_the_first_ones_count() -> None:
    requests = [req(i, 5, toks(10 + i, 40 + i)) for i in range(1, 5)]
    bench = Bench(scenario(*requests, **MTP, dflash=True, num_drafts=5))
    bench.tick()
    unequal(bench, {1: 4, 2: 5, 3: 4, 4: 1})
    lines = last_tick(bench)
    assert "can_batch_verify([5, 5]) -> true" in lines
    verifies = [line.split("(")[0] for line in lines if line.startswith("decode_verify")]
    assert verifies == ["decode_verify_batched", "decode_verify_dflash", "decode_verify_dflash"]
    assert any(line.startswith("decode_verify_dflash(tokens=[18, 19], s4@3:") for line in lines), "one draft is enough"


def test_a_dflash_batch_is_cut_to_what_the_device_takes() -> None:
    """The device takes two at a time: five rows make two batches and a single at the end of the serial list."""
    requests = [req(i, 5, toks(10 + i, 40 + i)) for i in range(1, 6)]
    sc = scenario(*requests, **MTP, dflash=True, num_drafts=4)
    result = run_failing(sc, {}, can_batch_verify=lambda rows: len(rows) <= 2)
    lines = between(result, 2)
    assert [line for line in lines if line.startswith("can_batch_verify")] == [
        "can_batch_verify([5, 5, 5, 5, 5]) -> false",
        "can_batch_verify([5, 5, 5, 5]) -> false",
        "can_batch_verify([5, 5, 5]) -> false",
        "can_batch_verify([5, 5]) -> true",
    ]
    batches = [line for line in lines if line.startswith("decode_verify_batched")]
    assert ['"s1@0' in batches[0], '"s2@1' in batches[0], '"s3@2' in batches[1], '"s4@3' in batches[1]] == [True] * 4
    assert sum(line.startswith("decode_verify_dflash(") and "s5@4" in line for line in lines) == 1


def test_one_survivor_of_a_dflash_batch_is_asked_alone() -> None:
    result = run(req(1, 5, TEN), req(2, 5, toks(30, 50, E)), **MTP, dflash=True, num_drafts=5)
    lines = between(result, 2)
    at = lines.index("stash_verify_hidden_rows([5, 11], stream=0)")
    assert lines[at + 1 : at + 4] == [
        trim("s2@1", 15, 5),
        "save_hidden_for_mtp_from_stash(1, stream=0)",
        propose("s2@1", 15, 40, 5, [41, 42, 43, 44, 45]),
    ]
    assert commit("s1@0", 15, 6, 6) in lines, "the finished one is committed too"


def test_a_cancelled_row_of_a_dflash_batch_gets_no_bonus() -> None:
    """cancel_at_tick raises the flag before the batch; nothing of the run is delivered, the bonus neither."""
    result = run(req(1, 5, toks(10, 30), cancel_at_tick=2), req(2, 5, toks(30, 50)), **MTP, dflash=True, num_drafts=5)
    assert outs(result)[0] == "T10 T11 T12 T13 T14 Done(stop, n=5, think=0, cached=0, acc=8, guard=None)"


class TestProposeGroups:
    """Batched proposes go out in groups of at most what the device takes (here 2)."""

    @staticmethod
    def bench(rows: int, **knobs: Any) -> Bench:
        requests = [req(i, 5, toks(10 + i, 40 + i)) for i in range(1, rows + 1)]
        bench = Bench(scenario(*requests, **MTP, num_drafts=1, **knobs))
        bench.device.facts = replace(bench.device.facts, propose_batch_max=2)
        bench.state.device.facts = bench.device.facts  # type: ignore[misc]
        bench.tick()
        return bench

    @staticmethod
    def asked(lines: list[str]) -> list[str]:
        picked = []
        for line in lines:
            if line.startswith("run_mtp_propose_batched"):
                picked.append("group " + line.split("stash=")[1].split("]")[0] + "]")
            elif line.startswith("save_hidden_for_mtp_from_stash"):
                picked.append("alone " + line.split("(")[1].split(",")[0])
        return picked

    def test_mtp_asks_the_trailing_one_alone(self) -> None:
        assert self.asked(last_tick(self.bench(4))) == ["group [0, 1]", "group [2, 3]"]
        assert self.asked(last_tick(self.bench(5))) == ["group [0, 1]", "group [2, 3]", "alone 4"]

    def test_dflash_asks_everybody_alone_as_soon_as_a_group_is_too_small(self) -> None:
        assert self.asked(last_tick(self.bench(4, dflash=True))) == ["group [0, 1]", "group [2, 3]"]
        assert self.asked(last_tick(self.bench(3, dflash=True))) == ["group [0, 1]", "alone 0", "alone 1", "alone 2"]
