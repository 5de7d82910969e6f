"""The first difference of two traces: its kind, its place, the arguments that differ; linear and bounded."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from trace_samples import TRACE

from metrale.trace import diff_traces
from metrale.trace.diff import FieldDifference

LINES = TRACE.split(b"\n")[:-1]

BYTES_ONLY = {
    "bom": (b"\xef\xbb\xbf" + TRACE, "b has a UTF-8 byte order mark"),
    "crlf": (TRACE.replace(b"\n", b"\r\n"), "b has CRLF line ends (25 against 0)"),
    "final newline": (TRACE[:-1], "b has no final newline"),
    "trailing blanks": (TRACE.replace(b"()\n", b"()  \n"), "b has blanks at line ends (2 against 0)"),
    "empty line": (TRACE + b"\n", "b has empty lines (1 against 0)"),
    "cut blank of an empty stream": (TRACE[:-2] + b"\n", "the first byte that differs is 742"),
}

CHANGES = {
    "token": (
        b"decode_batch(tokens=[10]",
        b"decode_batch(tokens=[11]",
        ("line", 12, "tick 1", 1, 23),
        [FieldDifference("tokens[0]", "10", "11")],
        "a and b differ at line 12 (tick 1), column 23: tokens[0] of `decode_batch`",
    ),
    "longer list and length": (
        b'decode_batch(tokens=[10], seqs=["s1@0:len=5"]',
        b'decode_batch(tokens=[10, 9], seqs=["s1@0:len=6"]',
        ("line", 12, "tick 1", 1, 24),
        [FieldDifference("tokens[1]", "nothing", "9"), FieldDifference("seqs[0].length", "5", "6")],
        "a and b differ at line 12 (tick 1), column 24: tokens[1], seqs[0].length of `decode_batch`",
    ),
    "hex word": (
        b"cmd=0xfffffff1",
        b"cmd=0xfffffff0",
        ("line", 19, "tick 2", 2, 46),
        [FieldDifference("cmd", "0xfffffff1", "0xfffffff0")],
        "a and b differ at line 19 (tick 2), column 46: cmd of `ep_broadcast_cmd_for_seq`",
    ),
    "boolean": (
        b"cache=true",
        b"cache=false",
        ("line", 16, "tick 2", 2, 27),
        [FieldDifference("cache", "true", "false")],
        "a and b differ at line 16 (tick 2), column 27: cache of `fx_release_seq`",
    ),
    "failure": (
        b"stream=0) -> [63]",
        b"stream=0) -> ERR device lost",
        ("line", 13, "tick 1", 1, 39),
        [FieldDifference("error", "nothing", "device lost"), FieldDifference("result", "[63]", "nothing")],
        "a and b differ at line 13 (tick 1), column 39: error, result of `argmax_batch`",
    ),
    "another call": (
        b"cache_sequence(",
        b"decode_marconi_checkpoint(",
        ("line", 17, "tick 2", 2, 1),
        [],
        "a and b differ at line 17 (tick 2), column 1: `cache_sequence` became `decode_marconi_checkpoint`",
    ),
    "a malformed line": (
        b"cache_sequence(s1",
        b"cache_sequence(t1",
        ("line", 17, "tick 2", 2, 16),
        [],
        "a and b differ at line 17 (tick 2), column 16: the text differs, the second line is malformed",
    ),
    "start-up": (
        b"create_event() -> 2",
        b"create_event() -> 5",
        ("line", 4, "start-up", None, 19),
        [FieldDifference("result", "2", "5")],
        "a and b differ at line 4 (start-up), column 19: result of `create_event`",
    ),
    "tick marker": (
        b"-- tick 2",
        b"-- tick 3",
        ("line", 15, "tick 1", 1, 9),
        [FieldDifference("tick", "2", "3")],
        "a and b differ at line 15 (tick 1), column 9: tick of `tick`",
    ),
    "client": (
        b"n=2, think=0, cached=0, acc=0, guard=None",
        b'n=2, think=0, cached=0, acc=1, guard=Some("fuzzy_repetition")',
        ("line", 23, "clients", None, 52),
        [FieldDifference("events[1].acc", "0", "1"), FieldDifference("events[1].guard", "None", "fuzzy_repetition")],
        "a and b differ at line 23 (clients), column 52: events[1].acc, events[1].guard of `out`",
    ),
    "another kind of event": (
        b"out s1: T10 Done(stop, n=2, think=0, cached=0, acc=0, guard=None)",
        b"out s1: T10 Error(x)",
        ("line", 23, "clients", None, 13),
        [
            FieldDifference(
                "events[1]", "Done(reason='stop', n=2, think=0, cached=0, acc=0, guard=None)", "Error(message='x')"
            )
        ],
        "a and b differ at line 23 (clients), column 13: events[1] of `out`",
    ),
    "another request": (
        b"out s3: ",
        b"out s4: ",
        ("line", 25, "clients", None, 6),
        [FieldDifference("id", "3", "4")],
        "a and b differ at line 25 (clients), column 6: id of `out`",
    ),
}


def test_equal() -> None:
    diff = diff_traces(TRACE, TRACE)
    assert (diff.equal, diff.exit_status, diff.kind, str(diff)) == (True, 0, "equal", "a and b are equal")


@pytest.mark.parametrize("name", BYTES_ONLY)
def test_differences_of_bytes_alone_are_named(name: str) -> None:
    data, mark = BYTES_ONLY[name]
    diff = diff_traces(TRACE, data)
    assert (diff.kind, diff.exit_status, diff.line_a) == ("bytes", 1, None)
    assert str(diff) == f"a and b differ in their bytes only\n  {mark}"
    assert diff_traces(data, TRACE).marks == (mark.replace("b has", "a has"),)


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_line(name: str) -> None:
    old, new, place, changed, summary = CHANGES[name]
    assert TRACE.count(old) == 1
    diff = diff_traces(TRACE, TRACE.replace(old, new))
    assert (diff.kind, diff.line_a, diff.where, diff.tick, diff.column) == place
    assert diff.line_b == diff.line_a
    assert list(diff.fields) == changed
    assert diff.summary == summary
    assert diff.marks == ()


def test_ten_lines_of_context() -> None:
    diff = diff_traces(TRACE, TRACE.replace(b"cache=true", b"cache=false"))
    assert [number for number, _ in diff.context] == list(range(6, 16))
    assert [text.encode() for _, text in diff.context] == LINES[5:15]
    assert len(diff_traces(TRACE, TRACE.replace(b"create_event() -> 2", b"create_event() -> 3")).context) == 3


def test_the_report_as_text() -> None:
    expected = """\
a and b differ at line 4 (start-up), column 19: result of `create_event`
  b has CRLF line ends (1 against 0)
         1  # scenario two_streams
         2  bind_gpu_to_thread()
         3  create_stream() -> 1
  -      4  create_event() -> 2
  +      4  create_event() -> 5
  result: 2 -> 5"""
    assert str(diff_traces(TRACE, TRACE.replace(b"create_event() -> 2", b"create_event() -> 5\r"))) == expected


def test_the_report_as_json() -> None:
    report = json.loads(json.dumps(diff_traces(TRACE, TRACE.replace(b"tick 2", b"tick 3")).to_dict()))
    assert report["fields"] == [{"path": "tick", "a": "2", "b": "3"}]
    assert (report["kind"], report["tick"], report["line_a"], report["text_b"]) == ("line", 1, 15, "-- tick 3")
    assert report["context"][-1] == [14, "num_free_blocks() -> 999"]


def test_one_trace_is_the_start_of_the_other() -> None:
    start = b"".join(line + b"\n" for line in LINES[:18])
    diff = diff_traces(TRACE, start)
    assert (diff.kind, diff.line_a, diff.line_b, diff.text_b, diff.tick) == ("end", 19, None, None, 2)
    assert diff.summary == "b ends where a goes on with line 19 (tick 2)"
    assert str(diff).splitlines()[-1] == "  -     19  ep_broadcast_cmd_for_seq(seq=0, cmd=0xfffffff1)"
    diff = diff_traces(start, TRACE)
    assert (diff.kind, diff.line_a, diff.line_b, diff.text_a, diff.exit_status) == ("end", None, 19, None, 1)
    assert diff.summary == "a ends where b goes on with line 19 (tick 2)"
    assert diff_traces(b"", TRACE).summary == "a ends where b goes on with line 1 (start-up)"


def test_line_numbers_are_those_of_each_file() -> None:
    diff = diff_traces(TRACE, b"\n" + TRACE.replace(b"cache=true", b"cache=false"))
    assert (diff.line_a, diff.line_b) == (16, 17)
    place = "line 16 of a and line 17 of b (tick 2), column 27"
    assert diff.summary == f"a and b differ at {place}: cache of `fx_release_seq`"
    assert diff.marks == ("b has empty lines (1 against 0)",)


def test_two_malformed_lines_and_no_utf8() -> None:
    diff = diff_traces(b"\xf6\n", b"\xf7\n")
    assert diff.summary == "a and b differ at line 1 (start-up), column 4: the text differs, both lines are malformed"
    assert (diff.text_a, diff.text_b) == ("\\xf6", "\\xf7")
    assert "the first line is malformed" in diff_traces(b"x\n", b"-- tick 1\n").summary


def test_names_of_files(tmp_path: Path) -> None:
    for name in ("old.trace", "new.trace"):
        (tmp_path / name).write_bytes(TRACE)
    diff = diff_traces(tmp_path / "old.trace", str(tmp_path / "new.trace"))
    assert (diff.a, diff.b) == (str(tmp_path / "old.trace"), str(tmp_path / "new.trace"))


BODY = b"".join(b'decode_batch(tokens=[%d], seqs=["s1@0:len=5"], stream=0)\n' % n for n in range(200_000))


@pytest.mark.parametrize(
    ("other", "kind"),
    [
        (bytes(bytearray(BODY)), "equal"),
        (BODY[BODY.index(b"\n") + 1 :], "line"),
        (BODY.replace(b"len=5", b"len=6"), "line"),
        (b"-- tick 1\n" * 200_000, "line"),
        (b"\n".join(reversed(BODY.split(b"\n"))), "line"),
        (BODY[:-20], "line"),
        (BODY + b"sync_secondary()\n", "end"),
    ],
    ids=["itself", "one line less", "every line", "other lines", "reversed", "cut", "one line more"],
)
def test_two_hundred_thousand_lines(other: bytes, kind: str) -> None:
    start = time.perf_counter()
    diff = diff_traces(BODY, other)
    assert time.perf_counter() - start < 2
    assert diff.kind == kind
    assert len(str(diff)) < 3000


def test_a_huge_line_is_clipped_around_the_difference() -> None:
    row = b"decode_batch(tokens=[%s], seqs=[], stream=0)\n"
    ones = [b"1"] * 1_000_000
    a, b = row % b", ".join(ones), row % b", ".join([*ones[:500_000], b"2", *ones[500_001:]])
    start = time.perf_counter()
    diff = diff_traces(a, b)
    assert time.perf_counter() - start < 5
    assert diff.fields == (FieldDifference("tokens[500000]", "1", "2"),)
    assert diff.text_b is not None
    assert diff.text_b.startswith("...")
    assert ", 2, " in diff.text_b
    assert len(str(diff)) < 1000


def test_few_of_many_different_arguments_are_shown() -> None:
    row = b"decode_batch(tokens=[%s], seqs=[], stream=0)\n"
    diff = diff_traces(row % b", ".join([b"1"] * 100), row % b", ".join([b"2"] * 100))
    assert len(diff.fields) == 20
    assert diff.summary.endswith("tokens[0], tokens[1], tokens[2] of `decode_batch`")
