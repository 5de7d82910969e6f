"""Which lane a tick takes, how speculation gives way to plain decode, and which drafts survive (S4 sections 3 and 14)."""

# ruff: noqa: E501

from __future__ import annotations

from typing import Any

import pytest
from spec_lines import PROPOSER, bootstrap, capacities, commit, head, propose, save, trim
from testkit import Bench, E, between, count, finish, lines_of, marker, outs, req, run, scenario, tick_of, toks

from metrale.core.config import SchedulerConfig, modes_for
from metrale.core.io import DeviceFacts

MTP: dict[str, Any] = {"device": PROPOSER, "use_speculative": True}
SYNC = ["fx apply SyncSecondary", "sync_secondary()"]


# -- start-up (section 1) ---------------------------------------------------------------------------------------------


def modes(facts: dict[str, Any], **knobs: Any) -> Any:
    return modes_for(SchedulerConfig(**knobs), DeviceFacts(**facts))


def test_a_mode_needs_its_knob_and_its_device_fact() -> None:
    off = modes({}, use_speculative=True, dflash=True, self_speculative=True, num_drafts=3)
    assert (off.mtp, off.dflash, off.self_spec, off.ngram, off.num_drafts) == (False, False, False, False, 0)
    facts = {"has_proposer": True, "has_self_speculative": True}
    assert not modes(facts, dflash=True).speculative
    on = modes(facts, use_speculative=True, dflash=True, self_speculative=True, ngram_speculative=True, num_drafts=3)
    assert (on.mtp, on.dflash, on.self_spec, on.ngram, on.num_drafts) == (True, True, True, True, 3)
    assert modes({}, ngram_speculative=True, num_drafts=0).num_drafts == 1


def test_slots_that_may_speculate() -> None:
    assert modes({}, max_batch_size=64).spec_slot_cap == 64
    assert modes({"has_ssm_layers": True}, max_batch_size=64).spec_slot_cap == 32
    assert modes({"has_ssm_layers": True}, max_batch_size=32).spec_slot_cap == 32
    assert modes({"has_ssm_layers": True}, max_batch_size=7).spec_slot_cap == 7


def test_without_a_proposer_decode_is_plain_and_nothing_is_synchronised() -> None:
    result = run(req(1, 5, toks(10, 13, E)), use_speculative=True, num_drafts=3)
    assert count(result, "fx launch Decode{") == 4
    assert count(result, "sync_secondary") == 0


# -- the order of the lanes (section 3) -------------------------------------------------------------------------------


def first_decode_call(result: Any, tick: int) -> str:
    """The call that says which lane ran, without its arguments."""
    names = ("decode(", "mtp_slot_draft_capacity(", "fx launch Decode", "decode_verify_graphed")
    return next(line for line in between(result, tick) if line.startswith(names))


def test_ngram_goes_before_self_speculation_before_mtp_when_one_is_active() -> None:
    device = {"has_proposer": True, "has_self_speculative": True}
    everything = {"ngram_speculative": True, "self_speculative": True, "use_speculative": True}
    one = [req(1, 5, toks(10, 15, E))]
    ngram = run(*one, device=device, **everything)
    assert count(ngram, "mtp_slot_draft_capacity") == 0
    self_spec = run(*one, device=device, **(everything | {"ngram_speculative": False}))
    assert count(self_spec, "decode_draft") > 0
    assert count(self_spec, "run_mtp_propose") == 0
    mtp = run(*one, device=device, use_speculative=True)
    assert count(mtp, "run_mtp_propose_multi") > 0


def test_two_active_fall_through_to_mtp_and_the_one_that_stays_goes_back_to_ngram() -> None:
    """The n-gram lane takes the first of the row's pending MTP drafts and drops the rest."""
    result = run(
        req(1, 5, toks(10, 13, E)),
        req(2, 5, toks(30, 44, E)),
        device=PROPOSER,
        use_speculative=True,
        ngram_speculative=True,
        num_drafts=3,
    )
    assert first_decode_call(result, 1) == "mtp_slot_draft_capacity(0)"
    assert finish("s1@0:10", 1) == between(result, 2)[-7:-3]
    assert propose("s2@1", 9, 34, 3, [35, 36, 37]) in between(result, 2)
    assert between(result, 3) == [
        *head("s2@0", 9, [34, 35], [35, 36]),
        "start_checkpoint_async(s2@0:len=11)",
        "num_free_blocks() -> 999",
    ]
    assert outs(result)[1].endswith("Done(stop, n=16, think=0, cached=0, acc=2, guard=None)")


def test_an_ngram_draft_enters_an_mtp_step_alone() -> None:
    """One draft is fewer than the step's width, so the row is verified by itself."""
    result = run(
        req(1, 4, [9] * 12 + [E]),
        req(2, 5, toks(30, 40, E), at=4),
        device=PROPOSER,
        use_speculative=True,
        ngram_speculative=True,
        num_drafts=3,
    )
    assert between(result, 4)[-1] == "num_free_blocks() -> 999"
    assert between(result, 5)[11:-1] == [
        *capacities(0, 1),
        "sync_secondary()",
        *bootstrap("s2@1", 6, fed=30, pick=31, n=3, drafts=[32, 33, 34]),
        *head("s1@0", 9, [9, 9], [9, 9]),
        commit("s1@0", 11, na=2, k=2),
        "dflash_eagle_accept_append(s1@0:len=11)",
        save(1),
        trim("s1@0", 11, 1),
        propose("s1@0", 11, 9, 3, [9, 9, 9]),
        "decode_marconi_checkpoint(s1@0:len=11)",
    ]


def test_more_than_32_active_decode_plainly() -> None:
    requests = [req(i, 3, toks(10, 13, E)) for i in range(1, 34)]
    result = run(*requests, **MTP, max_batch_size=40, num_drafts=3)
    assert count(result, "mtp_slot_draft_capacity") == 0
    assert count(result, "fx apply SyncSecondary") == count(result, "fx launch Decode{n=33,") == 4
    assert count(run(*requests[:32], **MTP, max_batch_size=40, num_drafts=3), "fx launch Decode") == 0


def test_a_slot_beyond_the_cap_keeps_the_batch_plain_until_compaction() -> None:
    """Recurrent layers and more than 32 seats: slot 32 may not speculate. 33 rows are too many anyway; one ends and
    the row on slot 32 is moved down."""
    device = {"has_proposer": True, "has_ssm_layers": True}
    requests = [req(i, 3, [10, E] if i == 5 else toks(10, 14, E)) for i in range(1, 34)]
    result = run(*requests, device=device, use_speculative=True, max_batch_size=40, num_drafts=1)
    assert tick_of(result, "compact_sequence(s33@32:len=4, new_slot=4)") == 1
    assert tick_of(result, "mtp_slot_draft_capacity(31)") == 2


@pytest.mark.parametrize("mode", ["use_speculative", "ngram_speculative", "self_speculative"])
def test_an_uncovered_slot_keeps_every_lane_away(mode: str) -> None:
    device = {"has_ssm_layers": True, "has_proposer": True, "has_self_speculative": True}
    bench = Bench(scenario(req(1, 5, toks(10, 20, E)), device=device, max_batch_size=64, **{mode: True}))
    bench.tick()
    bench.state.active[0].seq.slot = 32
    before = len(bench.calls)
    bench.tick()
    assert "fx launch Decode{n=1, ctx=Unified, readback=Argmax}" in bench.calls[before:]


# -- falling back from MTP --------------------------------------------------------------------------------------------


def test_below_the_floor_the_batch_is_plain_with_a_sync_every_tick() -> None:
    """s1 has min_tokens 3 (decision D19); s2 holds drafts of nobody yet. Both bootstrap in the tick that follows."""
    result = run(req(1, 5, toks(10, 15, E), min_tokens=3), req(2, 5, toks(30, 35, E)), **MTP, num_drafts=2)

    def plain(lengths: int, fed: list[int], tick: int) -> list[str]:
        return [
            *SYNC,
            "fx launch Decode{n=2, ctx=Unified, readback=HostLogits}",
            f'decode_batch(tokens={fed}, seqs=["s1@0:len={lengths}", "s2@1:len={lengths}"], stream=0)',
            f"commit_ctx(s1@0:len={lengths + 1}, n=1, base={lengths}, row=0)",
            f"commit_ctx(s2@1:len={lengths + 1}, n=1, base={lengths}, row=1)",
            "copy_logits_to_host(row=0, off=0, bytes=256)",
            "fx apply MarconiCheckpoint",
            f"decode_marconi_checkpoint(s1@0:len={lengths + 1})",
            "fx apply MarconiCheckpoint",
            f"decode_marconi_checkpoint(s2@1:len={lengths + 1})",
            *marker(998, tick),
        ]

    assert between(result, 1, 3)[22:] == [
        *plain(5, [10, 30], 2),
        *plain(6, [11, 31], 3),
        *capacities(0, 1),
        "sync_secondary()",
        *bootstrap("s1@0", 8, fed=12, pick=13, n=2, drafts=[14, 15]),
        *bootstrap("s2@1", 8, fed=32, pick=33, n=2, drafts=[34, 35]),
        "num_free_blocks() -> 998",
    ]


def test_leaving_mtp_drops_everyones_drafts() -> None:
    """s3 arrives with a floor while s1 and s2 hold drafts; all three bootstrap once it is reached."""
    bench = Bench(
        scenario(
            req(1, 5, toks(10, 30, E)), req(2, 5, toks(30, 50, E)), req(3, 5, toks(50, 60, E), at=2, min_tokens=3),
            **MTP, num_drafts=2,
        )
    )  # fmt: skip
    bench.tick(2)
    assert [row.drafts for row in bench.state.active] == [[15, 16], [35, 36]]
    assert [row.draft_confidences for row in bench.state.active] == [[0.0, 0.0], [0.0, 0.0]]
    bench.tick()
    assert [row.drafts for row in bench.state.active] == [[], [], []]
    assert [row.draft_confidences for row in bench.state.active] == [[], [], []]
    bench.tick(2)
    assert [len(row.drafts) for row in bench.state.active] == [2, 2, 2]


def test_the_plain_fall_back_sorts_by_slot() -> None:
    """After the compaction of s4 to slot 0 the active order is s2, s3, s4 on slots 1, 2, 0; MTP keeps that order, a
    plain step does not."""
    requests = [req(1, 5, [10, 11, E]), req(2, 5, toks(20, 33)), req(3, 5, toks(30, 43)), req(4, 5, toks(40, 53))]
    result = run(*requests, req(5, 5, toks(10, 14, E), at=4, min_tokens=2), **MTP, num_drafts=1)
    assert between(result, 3)[:3] == capacities(1, 2, 0)
    assert between(result, 4)[:3] == capacities(1, 2, 0)
    assert '"s4@0:len=12", "s2@1:len=12", "s3@2:len=12", "s5@3:len=5"' in between(result, 5)[14]


def test_preemption_takes_the_drafts() -> None:
    """n-gram keeps stale drafts while two are active; the victim of an exhaustion loses its own."""
    bench = Bench(
        scenario(
            req(1, 4, [9] * 20), req(2, 5, toks(30, 50), at=5), device={"kv_exhaust_at": [1]}, ngram_speculative=True
        )
    )  # fmt: skip
    bench.tick(6)
    assert [(row.request.id, row.drafts) for row in bench.state.active] == [(1, [9]), (2, [])]
    bench.state.active[1].outputs.extend([31] * 30)
    bench.tick()
    assert [row.request.id for row in bench.state.active] == [2, 1], "s1 came back behind s2 within the tick"
    assert [row.drafts for row in bench.state.active] == [[], []]


# -- n-gram and self-speculation give way without a word --------------------------------------------------------------


def test_a_stale_ngram_draft_is_kept_and_verified_with_the_newest_token() -> None:
    """A run of nines; the draft of tick 3 waits through two plain steps with s2 and is still right."""
    result = run(req(1, 4, [9] * 8 + [20, 21, E]), req(2, 5, [30, 31, E], at=3), ngram_speculative=True)
    assert between(result, 3)[-4] == "start_checkpoint_async(s1@0:len=7)"
    for tick in (4, 5):
        assert "fx launch Decode{n=2, ctx=Unified, readback=Argmax}" in between(result, tick)
    assert count(result, "fx apply SyncSecondary") == 0
    assert between(result, 6) == [
        *head("s1@0", 9, [9, 9], [9, 9]),
        "start_checkpoint_async(s1@0:len=11)",
        "num_free_blocks() -> 999",
    ]


def test_a_stale_draft_that_no_longer_fits_is_rejected() -> None:
    result = run(req(1, 4, [9] * 5 + [20, 21, 22, E]), req(2, 5, [30, 31, E], at=3), ngram_speculative=True)
    assert between(result, 6)[:7] == [
        *head("s1@0", 9, [20, 9], [21, 1]),
        "start_rollback_and_checkpoint_async(s1@0:len=10, na=1)",
    ]
    assert outs(result)[0] == "T9 T9 T9 T9 T9 T20 T21 T22 Done(stop, n=9, think=0, cached=0, acc=0, guard=None)"


@pytest.mark.parametrize(
    ("knobs", "device"),
    [({"ngram_speculative": True}, {}), ({"self_speculative": True}, {"has_self_speculative": True})],
    ids=["ngram", "self_spec"],
)
def test_grammar_and_floor_keep_a_row_out_of_the_lanes_for_one(knobs: dict[str, bool], device: dict[str, bool]) -> None:
    guided = run(req(1, 4, [9] * 6 + [E], grammar_active=True), device=device, **knobs)
    assert count(guided, "fx launch Decode") == 6
    assert count(guided, "sync_secondary") == count(guided, "mtp_slot_draft_capacity") == 0
    floor = run(req(1, 4, [9] * 9 + [E], min_tokens=4), device=device, **knobs)
    assert count(floor, "fx launch Decode") == 3
    assert count(floor, "fx apply SyncSecondary") == 0
    assert tick_of(floor, "decode(token=9, s1@0:len=8") == 4


# -- prefills beside speculation --------------------------------------------------------------------------------------


def test_one_speculating_row_is_never_fused_with_a_chunk() -> None:
    result = run(
        req(1, 5, toks(10, 21, E)), req(2, 20, toks(30, 41, E), at=2), **MTP, num_drafts=2, max_prefill_tokens=8
    )
    assert count(result, "mixed_forward") == 0
    assert between(result, 3)[12:] == [
        "poll_innerq()",
        *lines_of("""
        ep_broadcast_cmd_for_seq(seq=1, cmd=0xfffffff0)
        ep_broadcast_cmd(0x8)
        ep_broadcast_cmd(0x8)
        ep_broadcast_cmd(0x14)
        ep_broadcast_tokens(n=20)
        ep_sync_vision_embeds(n=20)
        prefill_chunk(start=8, len=8, last=false, s2@1:len=16, stream=1)
        normalize_ssm_states(s2@1:len=16, stream=1)
        record_event(event=2, stream=1)
        stream_wait_event(stream=0, event=2)
        """),
        *capacities(0),
        *head("s1@0", 9, [14, 15, 16], [15, 16, 17]),
        commit("s1@0", 12, na=3, k=3),
        save(2),
        trim("s1@0", 12, 2),
        propose("s1@0", 12, 17, 2, [18, 19]),
        "num_free_blocks() -> 997",
    ]


def test_a_mixed_step_drops_the_drafts_and_waits_once() -> None:
    """The sync is a plain call right before the forward, made only while somebody holds drafts."""
    result = run(
        req(1, 5, toks(10, 21, E)), req(3, 5, toks(50, 61, E)), req(2, 20, toks(30, 41, E), at=2), **MTP,
        num_drafts=2, max_prefill_tokens=8,
    )  # fmt: skip
    assert between(result, 3, 4)[12:] == lines_of("""
        poll_innerq()
        sync_secondary()
        mixed_forward(decode=[14, 54], prefill=s2@2:len=16 start=8 len=8 last=false, stream=1)
        record_event(event=2, stream=1)
        stream_wait_event(stream=0, event=2)
        argmax_batch(row=0, n=2, stream=0) -> [15, 55]
        fx apply MarconiCheckpoint
        decode_marconi_checkpoint(s1@0:len=10)
        fx apply MarconiCheckpoint
        decode_marconi_checkpoint(s3@1:len=10)
        num_free_blocks() -> 996
        -- tick 4
        poll_innerq()
        mixed_forward(decode=[15, 55], prefill=s2@2:len=20 start=16 len=4 last=true, stream=1)
        record_event(event=2, stream=1)
        stream_wait_event(stream=0, event=2)
        argmax_on_device(row=2, stream=0) -> 30
        record_event(event=2, stream=1)
        stream_wait_event(stream=0, event=2)
        argmax_batch(row=0, n=2, stream=0) -> [16, 56]
        fx apply MarconiCheckpoint
        decode_marconi_checkpoint(s1@0:len=11)
        fx apply MarconiCheckpoint
        decode_marconi_checkpoint(s3@1:len=11)
        num_free_blocks() -> 996
        """)
    assert count(result, "fx apply SyncSecondary") == 0
    assert between(result, 5)[:5] == [
        *capacities(0, 1, 2),
        "sync_secondary()",
        "ep_broadcast_cmd_for_seq(seq=0, cmd=0x10)",
    ]


def test_a_batched_mixed_step_keeps_the_drafts_and_they_are_rejected_later() -> None:
    result = run(
        req(1, 5, toks(10, 21, E)), req(3, 5, toks(50, 61, E)), req(2, 20, toks(30, 41, E), at=2),
        req(4, 20, toks(30, 41, E), at=2), **MTP, num_drafts=2, max_prefill_tokens=8,
    )  # fmt: skip
    assert between(result, 3)[24] == "poll_innerq()"
    assert between(result, 3)[25].startswith("mixed_forward_batch(decode=[14, 54], ")
    assert count(result, "fx apply SyncSecondary") == 0
    later = between(result, 5)
    assert later[:5] == [*capacities(0, 1, 3, 2), "sync_secondary()"]
    assert later[17:28] == lines_of("""
        can_batch_verify([3, 3]) -> true
        sync_secondary()
        decode_verify_batched(tokens=[16, 15, 16, 56, 55, 56], ks=[3, 3], seqs=["s1@0:len=14", "s3@1:len=14"], stream=0, woa=true) -> [17, 1, 1, 57, 1, 1]
        stash_verify_hidden_rows([0, 3], stream=0)
        gdn_fold_accepted(slots=[0, 1], accepted=[1, 1], k=3) -> true
        trim_proposer_state(s1@0:len=12, na=0, stream=0)
        commit_accepted_prefix(s1@0:len=12, na=1, k=3)
        trim_proposer_state(s3@1:len=12, na=0, stream=0)
        commit_accepted_prefix(s3@1:len=12, na=1, k=3)
        run_mtp_propose_batched(tokens=[17, 57], positions=[12, 12], stash=[0, 1], n=2, stream=0) -> [[18, 19], [58, 59]]
        num_free_blocks() -> 994
        """)
