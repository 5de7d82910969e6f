"""Whole files: blocks, byte-level problems by name, pages, order of the blocks, bounded reports."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
from reader_agreement import GOLDEN
from trace_samples import TRACE

from metrale.trace import TickBlock, TraceError, TraceScan, format_trace, read_trace, records

LINES = TRACE.split(b"\n")[:-1]
PAGE = b"Some Engine 1.0\n\nA page about traces: 3 files.\n"
COLUMN = b"".join(b"%d\n" % number for number in range(1, len(LINES) + 1))


def found(data: bytes, *, fragment: bool = False) -> list[str]:
    """The problems of a file, as text."""
    scan = TraceScan(BytesIO(data), fragment=fragment)
    for _ in scan:
        pass
    return [str(problem) for problem in scan.problems]


def joined(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


# ---------------------------------------------------------------- good files


def test_the_blocks_of_a_trace() -> None:
    trace = read_trace(TRACE)
    assert trace.problems == []
    assert trace.name == "<bytes>"
    assert trace.scenario == "two_streams"
    assert [line.number for line in trace] == list(range(1, 26))
    assert [line.text.encode() for line in trace.lines] == LINES
    assert trace.records[0] == records.Header("two_streams")
    assert (trace.calls[0].number, trace.calls[-1].number) == (2, 21)
    assert trace.rotation_ack == records.RotationDone()
    assert [(out.id, out.ended) for out in trace.outs] == [(1, True), (2, True), (3, False)]


def test_the_ticks_of_a_trace() -> None:
    trace = read_trace(TRACE)
    assert trace.ticks() == [TickBlock(0, 1, 5), TickBlock(1, 5, 14), TickBlock(2, 14, 21)]
    assert trace.lines[14].record == records.Tick(2)


def test_the_goldens() -> None:
    for path in sorted(GOLDEN.glob("*.trace")):
        trace = read_trace(path)
        assert trace.problems == []
        assert trace.scenario is not None
        assert format_trace(trace.records).encode() == path.read_bytes()
        assert [block.tick for block in trace.ticks()] == list(range(len(trace.ticks())))


def test_a_path_and_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "a.trace"
    path.write_bytes(TRACE)
    for source in (path, str(path)):
        assert read_trace(source).name == str(path)
    with path.open("rb") as stream:
        assert read_trace(stream).scenario == "two_streams"
        assert not stream.closed
    with pytest.raises(FileNotFoundError):
        read_trace(tmp_path / "no.trace")


def test_a_run_without_requests_is_a_trace() -> None:
    quiet = joined(LINES[:4] + LINES[19:21])
    assert found(quiet) == []
    assert read_trace(quiet).outs == []
    assert read_trace(quiet).rotation_ack is None


def test_a_fragment_may_lack_everything_else() -> None:
    piece = joined(LINES[7:10])
    assert found(piece, fragment=True) == []
    trace = read_trace(piece, fragment=True)
    assert (trace.scenario, len(trace.lines)) == (None, 3)
    assert trace.ticks() == [TickBlock(0, 0, 3)]
    assert found(joined(LINES[21:]), fragment=True) == []
    assert read_trace(joined(LINES[21:]), fragment=True).ticks() == []
    assert found(TRACE + TRACE, fragment=True) == []


# ---------------------------------------------------------------- bytes

BYTE_PROBLEMS = {
    "bom": (b"\xef\xbb\xbf" + TRACE, ["1: warning: the file starts with a UTF-8 byte order mark"]),
    "crlf": (TRACE.replace(b"\n", b"\r\n"), ["1: warning: CRLF line ends: 25 lines, the first is line 1"]),
    "one crlf": (TRACE.replace(b"tick 2\n", b"tick 2\r\n"), ["15: warning: CRLF line ends: line 15"]),
    "no final newline": (
        TRACE[:-1] + b"T1 Done(stop, n=1, think=0, cached=0, acc=0, guard=None)",
        ["25: warning: the last line (line 25) has no line end"],
    ),
    "no final newline, empty stream": (TRACE[:-1], ["25: warning: the last line (line 25) has no line end"]),
    "trailing blanks": (
        TRACE.replace(b"()\n", b"() \n"),
        ["2: warning: blanks at the line end: 2 lines, the first is line 2"],
    ),
    "trailing tab": (TRACE.replace(b"tick 2\n", b"tick 2 \t\n"), ["15: warning: blanks at the line end: line 15"]),
    "trailing blanks, empty stream": (TRACE[:-1] + b"  \n", ["25: warning: blanks at the line end: line 25"]),
    "empty line": (TRACE.replace(b"-- tick 2\n", b"\n-- tick 2\n"), ["15: warning: extra empty line: line 15"]),
    "empty lines": (
        b"\n" + TRACE + b"\n \n",
        ["1: warning: extra empty lines: 3 lines, the first is line 1"],
    ),
}

BROKEN = {
    "empty": (b"", ["error: the file is empty"]),
    "blank": (b"\n\n \n", ["error: the file is empty"]),
    "nul": (
        TRACE.replace(b"tick 2", b"tick\0 2"),
        ["15: error: line 15 holds NUL bytes: binary data, or text in UTF-16"],
    ),
    "utf-16": (
        TRACE.decode().encode("utf-16"),
        ["1: error: line 1 holds NUL bytes: binary data, or text in UTF-16"],
    ),
    "latin-1": (
        TRACE.replace(b"prompt is empty", b"pr\xf6mpt"),
        ["24: error: line 24: not UTF-8"],
    ),
    "all latin-1": (b"\xf6\n\xf6\n", ["1: error: 2 lines, the first is line 1: not UTF-8"]),
    "cut in a call": (
        joined(LINES[:11]) + LINES[11][:30],
        [
            "11: error: the calls end without `teardown()`: the trace is not complete",
            "12:31: error: the file ends inside line 12: expected `, seqs=`, found the end of the line"
            ' (the line is decode_batch(tokens=[<n>, ..], seqs=["<seq>", ..], stream=<n>))',
        ],
    ),
    "cut in a terminal event": (
        joined(LINES[:22]) + LINES[22][:30],
        [
            "23:31: error: the file ends inside line 23: expected `, think=`, found the end of the line"
            " (the line is out s<id>: <events>)"
        ],
    ),
    "cut between events": (
        joined(LINES[:22]) + LINES[22][:11],
        ["23: error: the file ends inside line 23: no terminal event, no line end"],
    ),
    "no header": (joined(LINES[1:]), ["1: error: `# scenario <name>` is missing: a trace starts with it"]),
    "two traces": (TRACE + TRACE, ["26: error: another trace starts at line 26: one trace a file"]),
    "a call behind the clients": (
        TRACE + b"sync_secondary()\n",
        ["26: error: line 26: out of order (header, calls, rotation ack, out lines)"],
    ),
    "two acks": (
        TRACE.replace(b"rotation ack: Done\n", b"rotation ack: Done\nrotation ack: dropped\n"),
        ["23: error: line 23: out of order (header, calls, rotation ack, out lines)"],
    ),
    "no teardown": (
        joined(LINES[:19] + LINES[21:]),
        ["20: error: the calls end without `teardown()`: the trace is not complete"],
    ),
    "no clients": (
        joined(LINES[:21]),
        ["21: error: sequences were served, but no `out` line follows: the trace is not complete"],
    ),
    "cut at a line end": (
        joined(LINES[:15]),
        ["15: error: the calls end without `teardown()`: the trace is not complete"],
    ),
    "no trace at all": (
        b"Dear reader,\n\nthis is no trace.\n",
        ["1: error: no line of the file belongs to a trace; line 1: expected a trace line, found `Dear reader,`"],
    ),
}


@pytest.mark.parametrize("name", BYTE_PROBLEMS)
def test_odd_bytes_are_named_and_read(name: str) -> None:
    data, problems = BYTE_PROBLEMS[name]
    assert found(data) == problems
    trace = read_trace(data)
    assert [str(problem) for problem in trace.problems] == problems
    assert trace.records[:-1] == read_trace(TRACE).records[:-1]


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_refused_with_few_words(name: str) -> None:
    data, problems = BROKEN[name]
    assert found(data) == problems
    with pytest.raises(TraceError) as caught:
        read_trace(data)
    assert [str(problem) for problem in caught.value.problems] == problems
    assert str(caught.value) == "\n".join(problem.in_file("<bytes>") for problem in caught.value.problems)


def test_a_malformed_first_line_does_not_hide_the_rest() -> None:
    problems = found(b"# scenari x\n" + joined(LINES[1:]))
    assert problems == [
        "1:10: error: expected `# scenario `, found ` x` (did you mean # scenario?)",
        "2: error: `# scenario <name>` is missing: a trace starts with it",
    ]


# ---------------------------------------------------------------- pages

LAST = len(LINES)
PAGES = {
    "banner": (PAGE + TRACE, 4),
    "column of numbers before": (PAGE + COLUMN + b"\n" + TRACE, 5 + LAST),
    "column only": (COLUMN + TRACE, 1 + LAST),
    "text behind": (PAGE + TRACE + b"\nCopyright, 2 pages\nrotation and out of it\n", 4),
    "blank lines around": (b"\n\nbanner\n\n" + TRACE + b"\n\n", 5),
    "numbers in front": (PAGE + joined([b"%4d  %s" % pair for pair in enumerate(LINES, 1)]) + b"\nFooter 3\n", 4),
    "numbers and colons": (joined([b"%d: %s" % pair for pair in enumerate(LINES, 1)]), 1),
    "numbers and tabs": (joined([b"%d\t%s" % pair for pair in enumerate(LINES, 1)]), 1),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_trace_in_a_page_is_found(name: str) -> None:
    data, first = PAGES[name]
    trace = read_trace(data)
    assert [str(problem) for problem in trace.problems] == [
        f"{first}: warning: trace found at lines {first}-{first + LAST - 1} of the page"
    ]
    assert trace.records == read_trace(TRACE).records
    assert trace.lines[0].number == first


def test_a_number_line_before_each_line() -> None:
    page = PAGE + joined([b"%d\n%s" % pair for pair in enumerate(LINES, 1)]) + b"footer\n"
    trace = read_trace(page)
    assert [str(problem) for problem in trace.problems] == ["5: warning: trace found at lines 5-53 of the page"]
    assert trace.records == read_trace(TRACE).records
    assert [line.number for line in trace][:3] == [5, 7, 9]


def test_a_page_that_ends_in_the_trace() -> None:
    assert found(PAGE + TRACE[:-1]) == [
        "4: warning: trace found at lines 4-28 of the page",
        "28: warning: the last line (line 28) has no line end",
    ]


def test_a_page_of_a_run_without_requests() -> None:
    quiet = joined(LINES[:4] + LINES[19:21])
    assert found(PAGE + quiet + b"footer\n") == ["4: warning: trace found at lines 4-9 of the page"]


def test_a_damaged_line_is_not_taken_for_the_end_of_the_page() -> None:
    page = PAGE + TRACE.replace(b"out s2: Err", b"out s2; Err").replace(b"-- tick 2", b"-- tock 2") + b"footer\n"
    assert found(page) == [
        "4: warning: trace found at lines 4-28 of the page",
        "18:5: error: expected `-- tick `, found `ock 2` (did you mean -- tick?)",
        "27:7: error: expected `: `, found `; Err(refused: promp` (the line is out s<id>: <events>)",
    ]


def test_two_traces_in_a_page() -> None:
    assert found(PAGE + TRACE + b"\nand the second one:\n" + TRACE)[1:] == [
        "31: error: another trace starts at line 31: one trace a file"
    ]


# ---------------------------------------------------------------- size


def test_a_flood_of_malformed_lines_is_counted() -> None:
    scan = TraceScan(BytesIO(LINES[0] + b"\n" + b"sync_secondary() -> 1\n" * 5000 + joined(LINES[1:])))
    assert sum(1 for _ in scan) == LAST
    assert (scan.lines, scan.records, scan.malformed, len(scan.problems)) == (5000 + LAST, LAST, 5000, 20)
    assert [problem.line for problem in scan.problems] == list(range(2, 22))


class Endless(BytesIO):
    """A stream of many lines that exist one at a time."""

    def __iter__(self) -> Iterator[bytes]:  # type: ignore[override]
        yield LINES[0] + b"\n"
        for tick in range(1, 50_001):
            yield b"-- tick %d\n" % tick
        yield from (line + b"\n" for line in LINES[19:21])


def test_memory_is_bounded() -> None:
    scan = TraceScan(Endless())
    next(iter(TraceScan(BytesIO(TRACE))))
    tracemalloc.start()
    for _ in scan:
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (scan.records, scan.problems) == (50_003, [])
    assert peak < 100_000


@pytest.mark.parametrize(
    "line",
    [
        b'decode_batch(tokens=[%s1], seqs=["s1@0:len=5"], stream=0)' % (b"1, " * 1_700_000),
        b"decode_batch(tokens=[%s1, seqs=[], stream=0)" % (b"1, " * 1_700_000),
        b"x" * 5_000_000,
        b"(" * 5_000_000,
        b"9" * 5_000_000,
        b"out s1: Error(%s x" % (b")" * 5_000_000),
        b"sync_secondary() -> ERR x%sy" % (b" " * 5_000_000),
    ],
    ids=["list", "broken list", "letters", "parentheses", "digits", "closed text", "blanks"],
)
def test_one_line_of_five_megabytes_does_not_hang(line: bytes) -> None:
    start = time.perf_counter()
    problems = found(line + b"\n", fragment=True)
    assert time.perf_counter() - start < 10
    assert len(problems) <= 1
    assert sum(map(len, problems)) < 500
