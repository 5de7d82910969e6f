"""The golden suite: every pair to the byte, and what holds for all traces (cases 15 to 17)."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from metrale.sim.runner import run_scenario
from metrale.sim.scenario import load_scenario
from metrale.trace import format_trace, lint_grammar, read_trace

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.toml"))


def trace(name: str) -> str:
    return run_scenario(load_scenario(GOLDEN / f"{name}.toml")).text


def shows(name: str, *pieces: str) -> bool:
    """Whether the golden has ``pieces`` in this order."""
    text = (GOLDEN / f"{name}.trace").read_text()
    at = 0
    for piece in pieces:
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True


def test_every_scenario_has_its_golden_and_every_golden_its_scenario() -> None:
    assert len(NAMES) >= 100
    assert sorted(path.stem for path in GOLDEN.glob("*.trace")) == NAMES
    assert {path.suffix for path in GOLDEN.iterdir()} <= {".toml", ".trace", ".pending", ".md"}


@pytest.mark.parametrize("name", NAMES)
def test_golden(name: str) -> None:
    scenario = load_scenario(GOLDEN / f"{name}.toml")
    assert scenario.name == name
    assert scenario.about.endswith(".")
    golden = (GOLDEN / f"{name}.trace").read_bytes()
    same = run_scenario(scenario).text.encode() == golden
    assert same, f"metrale check golden/{name}.toml shows the difference"


@pytest.mark.parametrize("name", NAMES)
def test_golden_is_plain_text_without_floats_and_reads_back(name: str) -> None:
    data = (GOLDEN / f"{name}.trace").read_bytes()
    assert data.isascii()
    assert b"\r" not in data
    assert data.endswith(b"\n")
    assert not data.endswith(b"\n\n")
    lines = data.decode().split("\n")
    assert [line for line in lines if line != line.rstrip() and not re.fullmatch(r"out s\d+: ", line)] == []
    assert re.search(rb"\d\.\d", data) is None
    read = read_trace(data)
    assert format_trace(record for *_, record in read.lines).encode() == data
    assert lint_grammar(data).problems == ()


@pytest.mark.parametrize("name", NAMES)
def test_every_client_gets_one_terminal_event(name: str) -> None:
    outs = [line for line in (GOLDEN / f"{name}.trace").read_text().splitlines() if line.startswith("out ")]
    assert len(outs) == len(load_scenario(GOLDEN / f"{name}.toml").request)
    for line in outs:
        events = line.split(": ", 1)[1]
        assert len(re.findall(r"\bDone\(|\bError\(|^Response\(|^Err\(", events)) == 1
        assert events.endswith(")")


def test_same_bytes_after_two_hundred_other_runs() -> None:
    chosen = ["preempt_twice", "spill_into_a_free_slot", "dflash_batched", "async_kv_reconcile", "floor_at_temperature"]
    first = {name: trace(name) for name in chosen}
    draw = random.Random(15)
    small = [name for name in NAMES if (GOLDEN / f"{name}.trace").stat().st_size < 12_000]
    for name in draw.choices(small, k=200):
        trace(name)
    assert {name: trace(name) for name in chosen} == first
    assert all(first[name] == (GOLDEN / f"{name}.trace").read_text() for name in chosen)


def test_out_lines_follow_the_file_and_ids_decide_nothing() -> None:
    outs = re.findall(r"^out s(\d+)", (GOLDEN / "many_ids_one_tick.trace").read_text(), re.M)
    assert outs == ["8", "16", "24", "32", "40", "48", "56", "64"]
    assert shows("many_ids_one_tick", "-- tick 2", "free_sequence(s16@", "free_sequence(s40@", "-- tick 3")


# -- what a golden was recorded for: the lines that the specification promises

PROMISES = {
    "S1 19, spill of a row that is not the last": (
        "spill_hole_in_the_middle",
        "fx apply CompactSlot{target=0}\ncompact_sequence(s3@2:len=7, new_slot=0)\nfx apply DetachSlot\n"
        "detach_slot_for_reuse(s1@0:len=42)\nfx apply SaveSequenceState\n"
        "save_sequence_state(s1@18446744073709551615:len=42, blocks=3)\n"
        "fx apply ReleaseSeq{cache=false, spill_out_sequence}\n"
        "free_sequence(s1@18446744073709551615:len=42, blocks=3)\n"
        "ep_broadcast_cmd_for_seq(seq=4294967295, cmd=0xfffffff1)\n",
    ),
    "S2 16.2 A": (
        "batched_prefill",
        '-- tick 2\npoll_innerq()\nprefill_batch_chunk(streams=["s2@1:len=20 start=16 len=4 last=true", '
        '"s3@2:len=18 start=16 len=2 last=true"], stream=1)\nrecord_event(event=2, stream=1)\n'
        "stream_wait_event(stream=0, event=2)\nargmax_on_device(row=0, stream=0) -> 20\n"
        "argmax_on_device(row=1, stream=0) -> 30\nfx launch Decode{n=2, ctx=Unified, readback=Argmax}\n"
        'decode_batch(tokens=[20, 30], seqs=["s2@1:len=20", "s3@2:len=18"], stream=0)\n',
    ),
    "S2 16.2 B": (
        "speculative_long_prefill",
        "poll_innerq()\nep_broadcast_cmd_for_seq(seq=1, cmd=0xfffffff0)\nep_broadcast_cmd(0x8)\nep_broadcast_cmd(0x8)\n"
        "ep_broadcast_cmd(0x14)\nep_broadcast_tokens(n=20)\nep_sync_vision_embeds(n=20)\n"
        "prefill_chunk(start=8, len=8, last=false, s2@1:len=16, stream=1)\n"
        "normalize_ssm_states(s2@1:len=16, stream=1)\nrecord_event(event=2, stream=1)\n"
        "stream_wait_event(stream=0, event=2)\nmtp_slot_draft_capacity(0)\n",
    ),
    "S2 16.2 C": (
        "max_tokens_one",
        "prefill(n=5, s1@0:len=5, stream=0)\nargmax_on_device(row=0, stream=0) -> 10\n"
        "fx apply ReleaseSeq{cache=true, finish_sequence}\ncache_sequence(s1@0:len=5)\n"
        "free_sequence(s1@0:len=5, blocks=1)\nep_broadcast_cmd_for_seq(seq=0, cmd=0xfffffff1)\n"
        "alloc_sequence() -> slot 0\n",
        "out s1: T10 Done(length, n=1, think=0, cached=0, acc=0, guard=None)\n",
    ),
    "S2 16.2 D, decision D1": (
        "short_joins_long_prefill",
        "mixed_forward(decode=[12, 30], prefill=s2@1:len=16 start=8 len=8 last=false, stream=1)\n",
        "ep_broadcast_cmd_for_seq(seq=0, cmd=0xfffffff1)\nfx apply CompactSlot{target=0}\n"
        "compact_sequence(s3@2:len=7, new_slot=0)\n",
    ),
    "S2 16.2 E, decision D8": (
        "eos_first_token_whole",
        "argmax_on_device(row=0, stream=0) -> 63\nfx apply ReleaseSeq{cache=true, finish_sequence}\n",
        "copy_logits_to_host(row=0, off=0, bytes=128)\n",
        "out s1: Done(stop, n=1, think=0, cached=0, acc=0, guard=None)\nout s2: T0 T11 T12 Done(stop, n=4, ",
    ),
    "S3 5.4, a masked draw": ("floor_at_temperature", "out s1: T30 T58 T31 T32 Done(stop, n=5, "),
    "S3 13 A": (
        "content_loop_rollback",
        "-- tick 96\nfx launch Decode{n=1, ctx=Unified, readback=Argmax}\n"
        'decode_batch(tokens=[21], seqs=["s1@0:len=100"], stream=0)\n'
        "commit_ctx(s1@0:len=101, n=1, base=100, row=0)\nargmax_batch(row=0, n=1, stream=0) -> [22]\n"
        "fx apply MarconiCheckpoint\ndecode_marconi_checkpoint(s1@0:len=16)\n",
        'decode_batch(tokens=[12], seqs=["s1@0:len=16"], stream=0)\n',
        "argmax_batch(row=0, n=1, stream=0) -> [112]\n",
        "out s1: Response(tokens=[100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 12, 22, 112, 113, ",
        "], length, ",
    ),
    "S3 13 B": (
        "content_loop_streaming",
        ' T22 Done(length, n=97, think=0, cached=0, acc=0, guard=Some("content_loop_watchdog"))',
    ),
    "S3 13 F": ("watchdog_streaming", 'Done(length, n=119, think=0, cached=0, acc=0, guard=Some("fuzzy_repetition"))'),
    "D2, parked work returns in an idle tick": (
        "parked_returns_when_idle",
        "free_sequence(s2@0:len=96, blocks=7)",
        "restore_sequence_state(s0@0:len=0, blocks=3)",
        'decode_batch(tokens=[12], seqs=["s0@0:len=34"]',
        "-- tick 4",
        "out s1: T10 T11 T12 T13 T14 T15 T16 Done(stop, n=8, ",
    ),
    "D2 and D13, parked work that cannot return": (
        "parked_cannot_return",
        "out s1: T10 T11 Error(cannot resume: needs 2 KV blocks, 1 free and nothing left to wait for)\n",
    ),
    "D3, a fused chunk": (
        "later_chunk_fails",
        "-> ERR KV cache exhausted\nfree_sequence(s2@1:len=16, blocks=2)\n"
        "ep_broadcast_cmd_for_seq(seq=1, cmd=0xfffffff1)\n",
        "out s2: Error(prefill failed: KV cache exhausted ",
    ),
    "D3, a plain chunk": ("plain_chunk_fails", "out s2: Error(prefill_chunk failed: KV cache exhausted "),
    "D4, plain lane": ("cancel_plain", "out s1: T10 T11 T12 T13 T14 T15 T16 Done(cancelled, n=7, "),
    "D4, in the queue": ("cancel_queued", "out s2: Done(cancelled, n=0, "),
    "D4, in the prefill": (
        "cancel_prefilling",
        "free_sequence(s2@1:len=24, blocks=2)\nep_broadcast_cmd_for_seq(seq=1, cmd=0xfffffff1)\n"
        "num_free_blocks() -> 997\n-- tick 5\n",
        "out s2: Done(cancelled, n=0, ",
    ),
    "D4, spilled": ("cancel_spilled", "out s1: T10 T11 T12 Done(cancelled, n=3, "),
    "D4, requeued": ("cancel_requeued", "out s1: T10 T11 Done(cancelled, n=2, "),
    "D5, default": ("deadline_default_scope", "out s2: T20 Done(timeout, n=1, "),
    "D5, all": ("deadline_scope_all", "out s2: Done(timeout, n=0, ", "out s3: Done(timeout, n=0, "),
    "D5, parked": ("deadline_parked", "restore_sequence_state", "out s1: T10 T11 T12 T13 Done(timeout, n=4, "),
    "D5, parked, all": ("deadline_parked_scope_all", "out s1: T10 T11 T12 Done(timeout, n=3, "),
    "D6 and D7": (
        "arrivals_apart",
        "-- tick 3\nalloc_sequence() -> slot 1\n",
        "-- tick 4\nalloc_sequence() -> slot 1\n",
        "-- tick 6\nnum_free_blocks() -> 1000\n-- tick 7\n",
        "-- tick 12\nadapter_id_for(-1)\nadapter_id_for(-1)\nnum_free_blocks() -> 1000\n-- tick 13\n",
    ),
    "D7, no request": ("no_request", "num_free_blocks() -> 1000\n-- tick 1\nfx apply EpShutdown\n"),
    "D11 and D13": (
        "refusals",
        "out s2: Error(refused: prompt is empty)\nout s3: Error(refused: max_tokens is 0)\n"
        "out s4: Error(refused: token 64 is outside the vocabulary of 64)\n"
        "out s5: Err(refused: prompt needs 26 KV blocks but the pool has 20)\n"
        "out s1: Error(refused: request id 1 is in use)\n",
    ),
    "D14": (
        "oversized_behind_running",
        "-- tick 2",
        "adapter_id_for(-1)\nadapter_id_for(-1)\nnum_free_blocks() -> 9\n-- tick 3\nalloc_sequence() -> slot 1\n",
        "prefill(n=5, s3@1:len=5, stream=0)",
    ),
    "D16": ("reclaim_before_spill", "reclaim_prefix_blocks(3) -> 3\n", "-- tick 7"),
    "D18": ("one_id_three_requests", "in use)\nout s7: T30 T31 T32 T33 Done(stop, n=5, "),
    "D19": (
        "floor_under_speculation",
        "fx apply SyncSecondary\nsync_secondary()\nfx launch Decode{n=2, ctx=Unified, readback=HostLogits}\n",
        "-- tick 3\nmtp_slot_draft_capacity(0)\n",
    ),
    "D20": ("self_spec_without_device", "fx launch Decode{n=1, ctx=Unified, readback=Argmax}\n"),
    "D21": (
        "victims_with_grammar",
        "fx apply ReleaseSeq{cache=true, preempt_requeue}\ncache_sequence(s3@2:len=6)\n",
    ),
    "D25": (
        "spill_into_a_free_slot",
        "detach_slot_for_reuse(s3@2:len=49)\n",
        "alloc_sequence() -> slot 1\nrestore_sequence_state(s0@1:len=0, blocks=5)\n",
        "alloc_sequence() -> slot 2\nrestore_sequence_state(s0@2:len=0, blocks=4)\n",
    ),
    "D26": (
        "restored_row_keeps_its_script",
        "s0@0:len=34",
        "out s1: T10 TL11:2 TL12:2 TL13:2 TL14:2 TL15:2 TL16:2 TL17:2 Done(cancelled, n=8, ",
    ),
    "D28": (
        "parked_and_queue_wait",
        "out s1: T10 T11 Error(cannot resume: needs 2 KV blocks, 1 free and nothing left to wait for)\n",
        "out s3: T30 T31 Done(stop, n=3, ",
    ),
    "D30": ("unlimited_first_chunk", "prefill_chunk(start=0, len=40, last=true, s1@0:len=40, stream=1)\n"),
    "D32": (
        "device_lost",
        "out s1: T10 T11 T12 Error(scripted device fault)\nout s2: Error(server shutting down: device lost)\n"
        "out s3: Err(server shutting down: device lost)\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("promise", list(PROMISES))
def test_promise(promise: str) -> None:
    name, *pieces = PROMISES[promise]
    assert shows(name, *pieces)


def test_what_must_not_be_there() -> None:
    text = {name: (GOLDEN / f"{name}.trace").read_text() for name in NAMES}
    # D1: nothing moves between the start of the long prefill and the end of request 1
    between = text["short_joins_long_prefill"].split("-- tick 3\n")[1].split("free_sequence(s1@")[0]
    assert "compact_sequence" not in between
    # D4: no restore of a cancelled row, no call for a queued one
    assert "restore_sequence_state" not in text["cancel_spilled"]
    assert "s2@" not in text["cancel_queued"]
    # D5: nothing is restored to be told that it is late
    assert "restore_sequence_state" not in text["deadline_parked_scope_all"]
    # D20: no call of a speculative lane
    assert "mtp_slot_draft_capacity" not in text["self_spec_without_device"]
    # S3 13 D, E, F: no restore without a usable snapshot, without SSM layers, for a streaming client
    for name in ("watchdog_ring_of_two", "watchdog_without_ssm", "watchdog_streaming", "watchdog_off"):
        assert "SsmSnapshotRestore" not in text[name]


def outputs(name: str) -> list[int]:
    """The tokens of the only client's Response."""
    found = re.search(r"Response\(tokens=\[([^\]]*)\]", (GOLDEN / f"{name}.trace").read_text())
    assert found is not None
    return [int(token) for token in found[1].split(", ")]


def test_watchdog_variants_end_where_they_should() -> None:
    assert outputs("watchdog_without_ssm") == outputs("watchdog_rollback")
    assert len(outputs("watchdog_rollback")) == 119
    assert len(outputs("watchdog_ring_of_two")) == 119
    assert len(outputs("content_loop_too_short")) == 49
    assert len(outputs("watchdog_off")) == 200
    slots = re.findall(r"SsmSnapshotSave\{slot=(\d)\}", (GOLDEN / "watchdog_off.trace").read_text())
    assert slots == ["0", "1", "2", "3", "4", "5", "6", "7"]
    ring_of_two = re.findall(r"SsmSnapshotSave\{slot=(\d)\}", (GOLDEN / "watchdog_ring_of_two.trace").read_text())
    assert ring_of_two == ["0", "1", "0"]


CLIENT_LINES = [
    ("plain_decode", "async_plain_decode"),
    ("preempt_requeue", "async_preempt_requeue"),
    ("request_timeout", "async_request_timeout"),
    ("mixed_prefill", "async_mixed_prefill"),
    ("spill_swap_out_in", "async_spill"),
]


@pytest.mark.parametrize(("flat", "deep"), CLIENT_LINES)
def test_clients_see_the_same_at_both_depths(flat: str, deep: str) -> None:
    def clients(name: str) -> list[str]:
        return [line for line in (GOLDEN / f"{name}.trace").read_text().splitlines() if line.startswith("out ")]

    assert clients(deep) == clients(flat)


def test_without_a_token_feed_depth_two_is_depth_one() -> None:
    scenario = load_scenario(GOLDEN / "async_without_token_feed.toml")
    assert run_scenario(scenario, router="sync").text == (GOLDEN / "async_without_token_feed.trace").read_text()
