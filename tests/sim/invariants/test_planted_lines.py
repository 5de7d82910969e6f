"""One line of a good log is changed; the invariant that guards it says so, names the line, and says why."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from testkit import E, req, scenario, toks

from metrale.sim.invariants import INVARIANTS, Violation, check_text
from metrale.sim.runner import run_scenario
from metrale.sim.scenario import Scenario

THREE = (req(1, 5, toks(10, 15, E)), req(2, 5, toks(20, 23, E)), req(3, 5, toks(30, 34, E)))

WORLDS: dict[str, Scenario] = {
    "plain": scenario(*THREE),
    "preempted": scenario(*THREE, device={"kv_exhaust_at": [1]}),
    "chunked": scenario(
        req(1, 4, toks(10, 19, E)), req(2, 20, toks(20, 23, E), at=2), req(3, 18, toks(30, 33, E), at=2),
        max_prefill_tokens=8,
    ),
    "spilled": scenario(
        req(1, 32, toks(10, 15, E)), req(2, 96, toks(20, 22, E), at=2),
        device={"total_blocks": 10, "held_blocks": 4}, swap_space_gb=1,
    ),
    "drafts": scenario(
        req(1, 5, toks(10, 19, E), draft_wrong_every=3), device={"has_proposer": True},
        use_speculative=True, num_drafts=2,
    ),
    "together": scenario(
        req(1, 5, toks(10, 21, E)), req(2, 6, toks(20, 31, E), draft_wrong_every=3), req(3, 7, toks(30, 41, E)),
        device={"has_proposer": True}, use_speculative=True, num_drafts=3,
    ),
    "dflash": scenario(
        req(1, 5, toks(10, 25, E), draft_wrong_every=5), device={"has_proposer": True},
        use_speculative=True, dflash=True, num_drafts=5,
    ),
    "ngram": scenario(req(1, 9, [8, 2, 3, 4, 9, 5, 6, 7, 8, 2, 3, 4, 9, E]), ngram_speculative=True),
    "layers": scenario(
        req(1, 5, toks(10, 19, E)), device={"has_self_speculative": True}, self_speculative=True, num_drafts=2
    ),
    "ahead": scenario(*THREE, router="async"),
    "snapshots": scenario(
        req(1, 5, [*toks(100, 149), 12, *toks(20, 38), *[12, *toks(20, 38)] * 6], streaming=False),
        device={"vocab": 256, "has_ssm_layers": True, "ring_slots": 8}, loop_watchdog=True, boundary_tokens=[12],
    ),
    "rotation": scenario(req(1, 5, toks(10, 12, E)), lora_rotation="adapter-b"),
    "beam": scenario(
        req(1, 5, [10, E], streaming=False, num_beams=4, beam_hyp=[10, 11, E]), device={"supports_beam": True}
    ),
}  # fmt: skip

Edit = Callable[[list[str]], list[str]]


def lines_of(world: str) -> list[str]:
    """The trace of a world, line by line."""
    return run_scenario(WORLDS[world], max_ticks=2000).lines


def at(lines: list[str], pattern: str, nth: int = 1) -> int:
    """The index of the nth line that matches."""
    hits = [index for index, line in enumerate(lines) if re.search(pattern, line)]
    return hits[nth - 1]


def drop(pattern: str, nth: int = 1) -> Edit:
    """Leave the nth matching line out."""
    return lambda lines: [line for index, line in enumerate(lines) if index != at(lines, pattern, nth)]


def twice(pattern: str, nth: int = 1) -> Edit:
    """Write the nth matching line twice."""

    def edit(lines: list[str]) -> list[str]:
        index = at(lines, pattern, nth)
        return [*lines[: index + 1], *lines[index:]]

    return edit


def say(pattern: str, new: str, nth: int = 1) -> Edit:
    """Replace what matched in the nth matching line."""

    def edit(lines: list[str]) -> list[str]:
        index = at(lines, pattern, nth)
        return [*lines[:index], re.sub(pattern, new, lines[index], count=1), *lines[index + 1 :]]

    return edit


def swap(pattern: str, nth: int = 1) -> Edit:
    """Exchange the nth matching line with the one behind it."""

    def edit(lines: list[str]) -> list[str]:
        index = at(lines, pattern, nth)
        return [*lines[:index], lines[index + 1], lines[index], *lines[index + 2 :]]

    return edit


FAULTS: list[tuple[str, str, Edit, str]] = [
    ("a tick is missing", "plain", drop(r"^-- tick 3"), "ticks"),
    ("a tick is renumbered", "plain", say(r"-- tick 3", "-- tick 4"), "ticks"),
    ("an event has another number", "plain", say(r"create_event\(\) -> 2", "create_event() -> 3"), "ticks"),
    ("the end is missing", "plain", drop(r"^teardown"), "router-calls"),
    ("a stream is not waited for", "plain", drop(r"^synchronize\(stream=1"), "router-calls"),
    ("launch for another number of rows", "plain", say(r"Decode\{n=3", "Decode{n=2"), "router-calls"),
    ("a checkpoint is lost", "plain", drop(r"^decode_marconi", 2), "router-calls"),
    ("a context commit is lost", "plain", drop(r"^commit_ctx", 2), "router-calls"),
    ("a context commit of another row", "plain", say(r"row=1\)", "row=2)"), "context-commit"),
    ("a context commit at another base", "plain", say(r"base=6", "base=5"), "context-commit"),
    ("a row is missing", "plain", say(r', "s3@2:len=5"\]', "]"), "router-calls"),
    ("one row too few is read", "plain", say(r"argmax_batch\(row=0, n=3", "argmax_batch(row=0, n=2"), "batch-rows"),
    ("the pending token is lost", "plain", say(r"tokens=\[11, ", "tokens=[10, "), "pending-token"),
    ("a history is one longer", "plain", say(r"s2@1:len=6\"", 's2@1:len=7"'), "history-length"),
    ("a double release", "plain", twice(r"^free_sequence"), "router-calls"),
    ("a leaked sequence", "plain", lambda ls: ls[: at(ls, "^fx apply ReleaseSeq", 3)]
     + ls[at(ls, "^fx apply ReleaseSeq", 3) + 4 :], "ticks"),
    ("a block too many is freed", "preempted", say(r"blocks=1\)", "blocks=2)"), "blocks"),
    ("a leaked block", "plain", say(r"num_free_blocks\(\) -> 998", "num_free_blocks() -> 997"), "blocks"),
    ("a slot is given away twice", "plain",
     say(r"alloc_sequence\(\) -> slot 1", "alloc_sequence() -> slot 0"), "slots"),
    ("a slot is left out", "plain", say(r"alloc_sequence\(\) -> slot 1", "alloc_sequence() -> slot 4"), "slots"),
    ("compaction to a wrong slot", "plain", say(r"new_slot=\d", "new_slot=0"), "router-calls"),
    ("workers free another slot", "plain", say(r"seq=1, cmd=0xfffffff1", "seq=2, cmd=0xfffffff1"), "ep-words"),
    ("workers hear another length", "plain", say(r"ep_broadcast_cmd\(0x5\)", "ep_broadcast_cmd(0x6)"), "ep-words"),
    ("an adapter that was not asked for", "plain", say(r"acquire_adapter_slot\(-1\)", "acquire_adapter_slot(0)"),
     "prefill-calls"),
    ("a start without a gate", "plain", drop(r"^adapter_id_for"), "admission"),
    ("the history of a resume is short", "preempted", say(r"prefill\(n=6, s1@2:len=6", "prefill(n=5, s1@2:len=5"),
     "ep-words"),
    ("a resume without a look for blocks", "preempted", drop(r"^num_free_blocks", 3), "parked-work"),
    ("a missing wait", "chunked", drop(r"^stream_wait_event", 2), "prefill-calls"),
    ("a wait for another event", "chunked",
     say(r"stream_wait_event\(stream=0, event=2", "stream_wait_event(stream=0, event=3"),
     "stream-order"),
    ("a chunk that starts too late", "chunked", say(r"start=8 len=8", "start=7 len=8"), "prefill-calls"),
    ("a chunk that is not the last", "chunked", say(r"last=true\", \"s3", 'last=false", "s3'), "prefill-calls"),
    ("restore without save", "spilled",
     say(r"restore_sequence_state\(s0@0:len=0, blocks=3", "restore_sequence_state(s0@0:len=0, blocks=2"),
     "parked-work"),
    ("saved blocks differ from freed ones", "spilled",
     say(r"save_sequence_state\((.*), blocks=3", r"save_sequence_state(\1, blocks=4"),
     "blocks"),
    ("too much is asked back", "spilled",
     say(r"reclaim_prefix_blocks\(3\)", "reclaim_prefix_blocks(4)"), "free-queries"),
    ("a wrong verdict word", "drafts", say(r"^ep_broadcast_cmd\(0x2\)$", "ep_broadcast_cmd(0x1)"), "ep-words"),
    ("a verify nobody waited for", "drafts", drop(r"^sync_secondary", 2), "verdict-order"),
    ("a commit of one row too few", "drafts", say(r"na=3, k=3", "na=2, k=3"), "verdict-order"),
    ("a trim that keeps too much", "drafts", say(r"trim_proposer_state\((.*), na=1", r"trim_proposer_state(\1, na=2"),
     "verdict-order"),
    ("commit before trim", "drafts", swap(r"^trim_proposer_state.*na=1"), "verdict-order"),
    ("a lost commit", "drafts", drop(r"^commit_accepted_prefix"), "verdict-order"),
    ("the wrong hidden row", "drafts", say(r"save_hidden_for_mtp\(2", "save_hidden_for_mtp(1"), "drafts"),
    ("drafts at a wrong position", "drafts", say(r"pos=11, n=2", "pos=10, n=2"), "drafts"),
    ("a draft that was not made", "drafts", say(r"\(tokens=\[11, 12, ", "(tokens=[11, 15, "), "ep-words"),
    ("capacities not asked for", "drafts", drop(r"^mtp_slot_draft_capacity", 2), "verdict-order"),
    ("a fold that keeps too much", "together", say(r"accepted=\[4, ", "accepted=[3, "), "verdict-order"),
    ("a stash of the wrong row", "together",
     say(r"stash_verify_hidden_rows\(\[3", "stash_verify_hidden_rows([2"), "verdict-order"),
    ("a catch-up that is too late", "together", say(r"pos=\[7", "pos=[8"), "verdict-order"),
    ("a batched verify nobody asked for", "together", drop(r"^can_batch_verify"), "verdict-order"),
    ("drafts from another's stash", "together", say(r"stash=\[0, 1, 2\]", "stash=[1, 0, 2]"), "drafts"),
    ("a lost context of accepted rows", "dflash", drop(r"^commit_ctx", 2), "verdict-order"),
    ("a context of too many rows", "dflash",
     say(r"commit_ctx\((.*), n=5, base=10", r"commit_ctx(\1, n=4, base=11"), "context-commit"),
    ("a rollback that is missing", "ngram", drop(r"^start_rollback_and_checkpoint_async"), "verdict-order"),
    ("layer-skip drafts left in", "layers",
     say(r"checkpoint_ssm_states\(s1@0:len=6", "checkpoint_ssm_states(s1@0:len=8"),
     "verdict-order"),
    ("a fed step that is never settled", "ahead", drop(r"^fed_step_settled"), "token-feed"),
    ("a fed token of another step", "ahead", say(r"inputs=\[11, ", "inputs=[10, "), "pending-token"),
    ("a block that was not reserved", "ahead", lambda ls: [x for i, x in enumerate(ls)
     if i not in (at(ls, "^fx apply ReserveKv"), at(ls, "^fx apply ReserveKv") + 1)], "token-feed"),
    ("a snapshot of another ring slot", "snapshots", say(r"ring=1\)", "ring=2)"), "router-calls"),
    ("a rotation nobody acknowledged", "rotation", drop(r"^rotation ack"), "rotation"),
    ("a beam that was not found", "beam", say(r"tokens=\[10, 11", "tokens=[10, 12"), "clients"),
    ("a token is lost on its way", "plain", say(r"T21 T22", "T22"), "clients"),
    ("a token is sent twice", "plain", say(r"T21 ", "T21 T21 "), "clients"),
    ("a count that does not fit", "plain", say(r"stop, n=7", "stop, n=6"), "clients"),
    ("a reason that does not fit", "plain", say(r"Done\(stop, n=7", "Done(length, n=7"), "clients"),
    ("accepted drafts that were not", "drafts", say(r"acc=\d+", "acc=1"), "clients"),
    ("a guard without its reason", "plain", say(r"guard=None", 'guard=Some("request_timeout")'), "clients"),
    ("no terminal event", "plain", say(r" Done\(.*", ""), "clients"),
    ("an answer that is missing", "plain", drop(r"^out s2"), "clients"),
    ("an answer to nobody", "plain", twice(r"^out s2"), "clients"),
]  # fmt: skip


@pytest.mark.parametrize(("world", "edit", "rule"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS])
def test_a_planted_fault_is_found(world: str, edit: Edit, rule: str) -> None:
    good = lines_of(world)
    assert check_text("\n".join(good)) == []
    bad = edit(good)
    assert bad != good
    found = check_text("\n".join(bad))
    assert rule in {violation.invariant for violation in found}, [str(violation) for violation in found]


def test_every_rule_that_the_log_alone_can_break_is_tried() -> None:
    tried = {rule for *_, rule in FAULTS}
    by_hand = {"victims", "progress", "live-sequence", "slots", "snapshot-ring", "batch-rows"}
    assert {one.name for one in INVARIANTS if not one.needs_scenario} - tried <= by_hand


def test_a_message_names_the_lines_and_says_why() -> None:
    lines = lines_of("plain")
    bad = say(r"tokens=\[11, ", "tokens=[10, ")(lines)
    found = check_text("\n".join(bad))[0]
    line = at(bad, r"decode_batch\(tokens=\[10, 21", 1) + 1
    assert found == Violation("pending-token", "s1@0 was to be fed 11, it is fed 10", (found.lines[0], line))
    assert lines[found.lines[0] - 1].startswith("argmax_batch")
    assert str(found) == f"lines {found.lines[0]}, {line}: s1@0 was to be fed 11, it is fed 10 [pending-token]"


def test_one_fault_is_a_few_reports() -> None:
    bad = say(r"alloc_sequence\(\) -> slot 1", "alloc_sequence() -> slot 4")(lines_of("plain"))
    by_rule: dict[str, int] = {}
    for violation in check_text("\n".join(bad)):
        by_rule[violation.invariant] = by_rule.get(violation.invariant, 0) + 1
    assert max(by_rule.values()) <= 3


def test_each_invariant_has_a_name_and_a_sentence() -> None:
    names = [one.name for one in INVARIANTS]
    assert len(set(names)) == len(names) >= 20
    for one in INVARIANTS:
        assert one.sentence.endswith(".")
        assert one.__doc__
