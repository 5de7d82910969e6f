"""The lint report: where, what was expected, the nearest call, and never too much of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trace_samples import TRACE

from metrale.trace import lint_grammar
from metrale.trace.diagnose import edit_distance, suggest

DECODE = 'the line is decode_batch(tokens=[<n>, ..], seqs=["<seq>", ..], stream=<n>)'

PLACES = {
    "decode_bach(tokens=[1], seqs=[], stream=0)": (
        10,
        "`decode_batch(tokens=` or `decode_batch_fed(inputs=`",
        "did you mean decode_batch?",
    ),
    "decode_batch(token=[1], seqs=[], stream=0)": (19, "`decode_batch(tokens=`", DECODE),
    "decode_batch(tokens=[1, 02], seqs=[], stream=0)": (26, "a list `[1, 2]`", DECODE),
    "decode_batch(tokens=[1,2], seqs=[], stream=0)": (24, "a list `[1, 2]`", DECODE),
    "decode_batch(tokens=1, seqs=[], stream=0)": (21, "a list `[1, 2]`", DECODE),
    "decode_batch(tokens=[1], stream=0)": (27, "`, seqs=`", DECODE),
    'decode_batch(tokens=[1], seqs=["s1@0:len=5", "s2@x:len=5"], stream=0)': (
        50,
        "a list of quoted sequences",
        DECODE,
    ),
    "decode_batch(tokens=[1], seqs=[], stream=0": (43, "`) -> ERR ` or `)`", DECODE),
    "decode_batch(tokens=[1], seqs=[], stream=0) -> [1]": (44, "the end of the line", DECODE),
    "decode_batch(tokens=[1], seqs=[], stream=0)x": (44, "the end of the line", DECODE),
    "prefill(n=5, s1@0:ln=5, stream=0)": (
        20,
        "a sequence `s<hash>@<slot>:len=<n>`",
        "the line is prefill(n=<n>, <seq>, stream=<n>)",
    ),
    "mixed_forward(decode=[], prefill=s1@0:len=5 start=1 len=2 last=yes, stream=1)": (
        64,
        "`<seq> start=<n> len=<n> last=<bool>`",
        "the line is mixed_forward(decode=[<n>, ..], prefill=<slice>, stream=<n>)",
    ),
    "stash_verify_catchup_rows([(0, 0), (4; 2)])": (
        38,
        "a list of pairs `[(0, 0), (4, 2)]`",
        "the line is stash_verify_catchup_rows([(<n>, <n>), ..])",
    ),
    "run_mtp_catchup_batched(tokens=[[1], 2], slots=[], pos=[]) -> 0": (
        38,
        "a list of lists `[[1, 2], [3]]`",
        "the line is run_mtp_catchup_batched(tokens=[[<n>, ..], ..], slots=[<n>, ..], pos=[<n>, ..]) -> <n>",
    ),
    "ep_broadcast_cmd(12)": (18, "a lower-case hex word `0x...`", "the line is ep_broadcast_cmd(<0x..>)"),
    "fx aply DetachSlot": (6, "`fx apply ...`", "did you mean fx apply DetachSlot?"),
    "fx apply ReleaseSeq{cache=true, done}": (
        33,
        "`finish_sequence`, `preempt_requeue`, `spill_out_sequence` or `send_error`",
        "the line is fx apply ReleaseSeq{cache=<bool>, <what>}",
    ),
    "-- tick 0": (9, "a whole number from 1", "the line is -- tick <n>"),
    "out s1: T1 Done(stopp, n=1)": (21, "`, n=`", "the line is out s<id>: <events>"),
    "num_total_blocks() -> 5": (5, "`num_free_blocks() -> `", "num_total_blocks writes no trace line"),
    "completely different(1)": (5, "`compact_sequence(`", None),
    "Hello": (1, "a trace line", None),
}


@pytest.mark.parametrize("line", PLACES)
def test_a_malformed_line_is_explained(line: str) -> None:
    column, expected, hint = PLACES[line]
    report = lint_grammar(f"{line}\n-- tick 1\n".encode(), fragment=True)
    (problem,) = report.problems
    assert (problem.kind, problem.line, problem.column) == ("malformed", 1, column)
    assert (problem.expected, problem.hint) == (expected, hint)
    rest = line[column - 1 :]
    assert problem.message == f"expected {expected}, found {f'`{rest[:20]}`' if rest else 'the end of the line'}"


def test_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "good.trace"
    path.write_bytes(TRACE)
    report = lint_grammar(path)
    assert (report.ok, report.exit_status, report.lines, report.records, report.malformed) == (True, 0, 25, 25, 0)
    assert str(report) == f"{path}: 25 lines, no problem"


def test_warnings_alone_are_no_failure() -> None:
    report = lint_grammar(TRACE.replace(b"\n", b"\r\n"))
    assert (report.ok, report.exit_status) == (True, 0)
    assert str(report) == (
        "<bytes>:1: warning: CRLF line ends: 25 lines, the first is line 1\n<bytes>: 25 lines, 0 malformed, 1 problem"
    )


def test_one_malformed_line_is_bad_input() -> None:
    report = lint_grammar(TRACE.replace(b"argmax_batch(row=0", b"argmax_batch(rows=0"))
    assert (report.ok, report.exit_status, report.malformed) == (False, 2, 1)
    assert str(report).splitlines() == [
        "<bytes>:13:17: error: expected `argmax_batch(row=`, found `s=0, n=1, stream=0) ` "
        "(the line is argmax_batch(row=<n>, n=<n>, stream=<n>) -> [<n>, ..])",
        "<bytes>: 25 lines, 1 malformed, 1 problem",
    ]
    assert json.loads(json.dumps(report.to_dict())) == {
        "file": "<bytes>",
        "ok": False,
        "lines": 25,
        "records": 24,
        "malformed": 1,
        "problems": [
            {
                "kind": "malformed",
                "severity": "error",
                "message": "expected `argmax_batch(row=`, found `s=0, n=1, stream=0) `",
                "line": 13,
                "column": 17,
                "count": 1,
                "expected": "`argmax_batch(row=`",
                "hint": "the line is argmax_batch(row=<n>, n=<n>, stream=<n>) -> [<n>, ..]",
            }
        ],
    }


def test_the_report_is_bounded() -> None:
    report = lint_grammar(TRACE + b"decode_bach(%s)\n" % (b"x" * 5000) * 3000)
    assert report.malformed == 3000
    assert len(report.problems) == 20
    assert len(str(report)) < 4000
    assert report.summary == "<bytes>: 3025 lines, 3000 malformed, 20 problems, 2980 more malformed lines not shown"


def test_a_problem_of_the_whole_file() -> None:
    assert str(lint_grammar(b"")) == "<bytes>: error: the file is empty\n<bytes>: 0 lines, 0 malformed, 1 problem"


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [("", "", 0), ("abc", "", 3), ("", "ab", 2), ("kitten", "sitting", 3), ("same", "same", 0), ("ab", "ba", 2)],
)
def test_edit_distance(a: str, b: str, distance: int) -> None:
    assert edit_distance(a, b) == distance


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("argmax_bach(row=0)", "did you mean argmax_batch?"),
        ("synk_secondary()", "did you mean sync_secondary?"),
        ("SYNC_SECONDARY()", None),
        ("rotation akc: Done", "did you mean rotation ack: Done?"),
        ("# senario x", "did you mean # scenario?"),
        ("", None),
    ],
)
def test_suggestions(line: str, hint: str | None) -> None:
    assert suggest(line) == hint
