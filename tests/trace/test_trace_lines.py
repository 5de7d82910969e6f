"""Every kind of line: records, identity of text and record, strictness, agreement of the two readers."""

from __future__ import annotations

import os
import re
from dataclasses import FrozenInstanceError, fields

import pytest
from reader_agreement import damaged, lines, verdict
from trace_samples import SAMPLES

from metrale.trace import (
    LineError,
    Readback,
    SeqId,
    Slice,
    format_record,
    format_trace,
    parse_line,
    read_line,
    records,
)
from metrale.trace.codecs import CODECS, write_token
from metrale.trace.fast import fast_reader
from metrale.trace.language import shapes
from metrale.trace.values import DETACHED_SLOT

S1 = SeqId(1, 0, 5)
S2 = SeqId(2, 1, 5)

EXAMPLES = {
    "# scenario a b (c)": records.Header("a b (c)"),
    "-- tick 12": records.Tick(12),
    "fx launch Decode{n=3, ctx=Unified, readback=ArgmaxMasked{n=3}}": records.FxLaunchDecode(
        3, "Unified", Readback("ArgmaxMasked", 3)
    ),
    "fx launch Decode{n=1, ctx=None, readback=Argmax}": records.FxLaunchDecode(1, "None", Readback("Argmax")),
    "fx apply ReleaseSeq{cache=false, send_error}": records.FxReleaseSeq(False, "send_error"),
    "fx lora LoadIntoSlot(adapter x, 2)": records.FxLoadIntoSlot("adapter x", 2),
    "sync_secondary()": records.SyncSecondary(),
    "teardown() -> ERR device lost": records.Teardown(error="device lost"),
    "alloc_sequence() -> slot 3": records.AllocSequence(3),
    "alloc_sequence() -> ERR pool exhausted": records.AllocSequence(error="pool exhausted"),
    "adapter_id_for(-1)": records.AdapterIdFor(-1),
    "ep_broadcast_cmd_for_seq(seq=0, cmd=0xfffffff1)": records.EpBroadcastCmdForSeq(0, 0xFFFFFFF1),
    "ep_broadcast_cmd(0x0)": records.EpBroadcastCmd(0),
    'decode_batch(tokens=[10, 20], seqs=["s1@0:len=5", "s2@1:len=5"], stream=0)': records.DecodeBatch(
        (10, 20), (S1, S2), 0
    ),
    'decode_batch(tokens=[10], seqs=["s1@0:len=5"], stream=0) -> ERR KV cache exhausted': records.DecodeBatch(
        (10,), (S1,), 0, error="KV cache exhausted"
    ),
    "decode_batch(tokens=[], seqs=[], stream=0)": records.DecodeBatch((), (), 0),
    "free_sequence(s1@18446744073709551615:len=5, blocks=3)": records.FreeSequence(SeqId(1, DETACHED_SLOT, 5), 3),
    "mixed_forward(decode=[7], prefill=s2@1:len=5 start=0 len=5 last=true, stream=1)": records.MixedForward(
        (7,), Slice(S2, 0, 5, True), 1
    ),
    'prefill_batch_chunk(streams=["s1@0:len=5 start=1 len=4 last=false", "s2@1:len=5 start=0 len=5 last=true"], '
    "stream=1)": records.PrefillBatchChunk((Slice(S1, 1, 4, False), Slice(S2, 0, 5, True)), 1),
    "argmax_batch(row=0, n=1, stream=0) -> [63]": records.ArgmaxBatch(0, 1, 0, (63,)),
    "argmax_batch(row=0, n=1, stream=0) -> ERR lost": records.ArgmaxBatch(0, 1, 0, error="lost"),
    "can_batch_verify([4, 3]) -> false": records.CanBatchVerify((4, 3), False),
    "generate_beam_batch(n=2) -> [[10, 11], []]": records.GenerateBeamBatch(2, ((10, 11), ())),
    "stash_verify_catchup_rows([(0, 0), (4, 2)])": records.StashVerifyCatchupRows(((0, 0), (4, 2))),
    "argmax_batch_to_feed(row=0, n=1, masks=[[1, 2]], event=2, stream=0) -> [3]": records.ArgmaxBatchToFeed(
        0, 1, ((1, 2),), 2, 0, (3,)
    ),
    "event_query(event=2) -> ERR scripted device fault": records.EventQuery(2, error="scripted device fault"),
    "run_mtp_propose_batched(tokens=[1], positions=[2], stash=[0], n=1, stream=0) -> declined": (
        records.RunMtpProposeBatched((1,), (2,), (0,), 1, 0, None)
    ),
    "rotation ack: Promoted { slot: 1, evicted: None }": records.RotationPromoted(1, None),
    'rotation ack: Promoted { slot: 1, evicted: Some("y") }': records.RotationPromoted(1, "y"),
    "rotation ack: Err(a (b))": records.RotationErr("a (b)"),
    "out s1: ": records.Out(1, ()),
    "out s1: T1 TL2:0 PL3": records.Out(1, (records.Token(1), records.TokenLogprobs(2, 0), records.PromptLogprobs(3))),
    "out s1: T1 Done(stop, n=2, think=3, cached=4, acc=5, guard=None)": records.Out(
        1, (records.Token(1), records.Done("stop", 2, 3, 4, 5, None))
    ),
    'out s1: Done(length, n=0, think=0, cached=0, acc=0, guard=Some("fuzzy_repetition"))': records.Out(
        1, (records.Done("length", 0, 0, 0, 0, "fuzzy_repetition"),)
    ),
    "out s1: Error(a) b) (c)": records.Out(1, (records.Error("a) b) (c"),)),
    "out s1: Error() T5": records.Out(1, (records.Error(""), records.Token(5))),
    "out s1: Response(tokens=[9], tool_calls, think=1, cached=2, acc=3, logprobs=4)": records.Out(
        1, (records.Response((9,), "tool_calls", 1, 2, 3, 4),)
    ),
    "out s1: Err(T1)": records.Out(1, (records.Err("T1"),)),
    "out s1: dropped": records.Out(1, (records.Dropped(),)),
}

REFUSED = [
    "",
    " ",
    "sync_secondary() ",
    " sync_secondary()",
    "sync_secondary( )",
    "Sync_secondary()",
    "sync_secondary",
    "sync_secondary() -> ERR ",
    "sync_secondary() -> ERR  x",
    "sync_secondary() -> ERR x ",
    "sync_secondary() -> 1",
    "sync_secondary()\n",
    "-- tick 0",
    "-- tick 01",
    "-- tick",
    "--  tick 1",
    "# scenario ",
    "# scenario  x",
    "# scenario x ",
    "num_free_blocks() -> -1",
    "num_free_blocks() -> 007",
    "num_free_blocks() -> 100000000000000000000",
    "num_free_blocks() -> \u0663",
    "num_free_blocks() -> ERR lost",
    "adapter_id_for(-0)",
    "adapter_id_for()",
    "ep_broadcast_cmd(0x05)",
    "ep_broadcast_cmd(0xF)",
    "ep_broadcast_cmd(5)",
    "ep_broadcast_cmd(0x)",
    "argmax_batch(row=0, n=1, stream=0)",
    "argmax_batch(n=1, row=0, stream=0) -> [63]",
    "argmax_batch(row=0, n=1, stream=0) -> [63, ]",
    "argmax_batch(row=0, n=1, stream=0) -> [63,64]",
    "argmax_batch(row=0, n=1, stream=0) -> [ ]",
    "argmax_batch(row=0, n=1, stream=0) -> 63",
    "decode_batch(tokens=[1], seqs=[s1@0:len=5], stream=0)",
    "decode_batch(tokens=[1], seqs=['s1@0:len=5'], stream=0)",
    'decode_batch(tokens=[1], seqs=["s1@0:len=05"], stream=0)',
    "decode_verify_graphed_k5(tokens=[1], s1@0:len=2) -> [1]",
    "cache_sequence(s1@0:len=10) -> ERR x",
    "can_batch_verify([1]) -> True",
    "event_query(event=2)",
    "reserve_decode_block(s1@0:len=6)",
    "fx apply ReleaseSeq{cache=true, finished}",
    "fx apply DetachSlot{}",
    "fx apply",
    "fx launch Decode{n=1, ctx=Unified, readback=ArgmaxMasked}",
    "fx launch Decode{n=1, ctx=unified, readback=Argmax}",
    "fx lora Rotate()",
    "fx lora Rotate(a,b)",
    "rotation ack: done",
    "rotation ack: Err(",
    "rotation ack: Promoted { slot: 1, evicted: Some(y) }",
    "out s1:",
    "out s1:  ",
    "out s01: T1",
    "out s1: T01",
    "out s1: T1  T2",
    "out s1: T1 ",
    "out s1: TL1",
    "out s1: T1 dropped",
    "out s1: T1 Response(tokens=[], stop, think=0, cached=0, acc=0, logprobs=0)",
    "out s1: Done(stopped, n=1, think=0, cached=0, acc=0, guard=None)",
    "out s1: Done(stop, n=1, think=0, cached=0, acc=0, guard=Some(timeout))",
    'out s1: Done(stop, n=1, think=0, cached=0, acc=0, guard=Some("timeout"))',
    "out s1: Done(stop, n=1.0, think=0, cached=0, acc=0, guard=None)",
    "out s1: Error(a) ",
    "out s1: Error(a",
    "out s1: Error(a)\n",
    "out s1: Err(a) T1",
]


@pytest.mark.parametrize(("line", "record"), EXAMPLES.items())
def test_line_and_record(line: str, record: records.Record) -> None:
    assert parse_line(line) == record
    assert read_line(line) == record
    assert type(parse_line(line)) is type(record)
    assert format_record(record) == line


@pytest.mark.parametrize("line", REFUSED)
def test_refused(line: str) -> None:
    assert not verdict(line)
    with pytest.raises(LineError):
        read_line(line)


def test_samples_cover_every_form() -> None:
    unseen = {shape for of_rule in shapes().values() for shape in of_rule}
    for shape in list(unseen):
        if any(shape.pattern.search(line) for line in SAMPLES):
            unseen.remove(shape)
    assert {shape.signature for shape in unseen} == set()


@pytest.mark.parametrize("line", SAMPLES)
def test_identity_and_strictness(line: str) -> None:
    """The line itself is taken; each one-character change is taken and spelled back, or refused inside the line."""
    assert verdict(line)
    for at in range(len(line) + 1):
        for changed in (line[:at] + line[at + 1 :], line[:at] + "0" + line[at:], line[:at] + "," + line[at + 1 :]):
            verdict(changed)


def test_all_lines_of_the_goldens() -> None:
    for line in lines():
        assert verdict(line)


def test_readers_agree_on_damaged_lines() -> None:
    count = int(os.environ.get("METRALE_FUZZ_LINES", "20000"))
    taken = sum(map(verdict, damaged(lines(), count, seed=20)))
    assert count * 0.02 < taken < count * 0.6, "the damage is too weak or too strong to tell much"


def test_every_rule_has_a_record_and_every_record_a_rule() -> None:
    tokens = {"token", "token_logprobs", "prompt_logprobs"}
    assert set(records.RULES) == set(shapes()) | {"out"} | tokens
    assert {name for name, cls in records.RULES.items() if issubclass(cls, records.Call)} == set(records.CALLS)
    assert len(records.CALLS) == 82


def test_fields_are_named_as_printed() -> None:
    for rule, of_rule in shapes().items():
        names = [field.name for field in fields(records.RULES[rule]) if field.name != "error"]  # type: ignore[arg-type]
        shape = of_rule[0]
        values = shape.values[:-1] if shape.failed else shape.values
        assert len(names) == len(values), rule
        for text, name in zip(shape.texts, names, strict=False):
            printed = re.search(r"(\w+)(?:=|: )$", text)
            if printed and not text.endswith("rotation ack: ") and rule not in ("header", "out"):
                assert printed[1] == name, rule


def test_codecs_invert() -> None:
    for line in SAMPLES:
        for shape in (shape for of_rule in shapes().values() for shape in of_rule):
            match = shape.pattern.fullmatch(line)
            for name, text in zip(shape.values, match.groups() if match else (), strict=False):
                assert CODECS[name].write(CODECS[name].read(text)) == text
    text = "T1 TL2:3 PL4"
    assert CODECS["TOKENS"].write(CODECS["TOKENS"].read(text)) == text


def test_heads_send_each_line_to_few_shapes() -> None:
    assert max(map(len, fast_reader()._forms.values())) <= 4


def test_records_are_frozen_slotted_and_typed() -> None:
    record = read_line("commit_ctx(s1@0:len=6, n=1, base=5, row=0)")
    assert isinstance(record, records.CommitCtx)
    assert (record.call, record.rule, record.stage) == ("commit_ctx", "commit_ctx", records.Stage.CALLS)
    assert record.seq == SeqId(hash=1, slot=0, length=6)
    assert not hasattr(record, "__dict__")
    with pytest.raises(FrozenInstanceError):
        record.row = 1  # type: ignore[misc]
    assert len({record, read_line("commit_ctx(s1@0:len=6, n=1, base=5, row=0)")}) == 1
    assert records.CALLS["commit_ctx"] is records.CommitCtx


def test_equal_values_of_different_calls_are_different_records() -> None:
    assert read_line("detach_slot_for_reuse(s1@0:len=6)") != read_line("cache_sequence(s1@0:len=6)")


def test_out_knows_whether_it_ended() -> None:
    ended = [read_line(line).ended for line in ("out s1: ", "out s1: T1", "out s1: T1 Error(x)", "out s1: dropped")]  # type: ignore[attr-defined]
    assert ended == [False, False, True, True]


def test_format_trace_ends_every_line() -> None:
    assert format_trace([records.Header("x"), records.Tick(1)]) == "# scenario x\n-- tick 1\n"


def test_only_token_events_are_written_as_tokens() -> None:
    with pytest.raises(TypeError, match="not a token event"):
        write_token(records.Dropped())


def test_error_of_a_refused_line_says_where() -> None:
    with pytest.raises(LineError) as caught:
        parse_line("decode_batch(tokens=[1]; seqs=[], stream=0)")
    assert (caught.value.position, caught.value.line[:12]) == (23, "decode_batch")
    assert str(caught.value) == "not a trace line (column 24)"
