"""Terminal, plain, Markdown and JSON: what they say, in which order, and that they stay small."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console

from metrale.trace.align import compare
from metrale.trace.report import (
    SCHEMA,
    comparison_document,
    markdown_report,
    plain_report,
    print_report,
    short_report,
    verdict,
)
from metrale.trace.report.document import MOST_RANGES, ranges_of
from metrale.trace.report.outline import outline

from .planting import GOLDEN, golden
from .test_explanations import rerun

A = golden("preempt_requeue")
B = rerun("preempt_requeue", "a later decode is refused")
FOUND = compare(A.encode(), B.encode(), ("a.trace", "b.trace"))

ORDER = [
    "Verdict",
    "First divergence",
    "In words",
    "Before it",
    "State",
    "Causes and what follows from them",
    "Differences by kind",
    "What the clients saw",
]


def test_the_order() -> None:
    assert [section.title for section in outline(FOUND)] == ORDER
    text = plain_report(FOUND)
    places = [text.index(f"{title}:") for title in ORDER[1:]]
    assert places == sorted(places)
    assert text.startswith("a.trace and b.trace differ: 1 cause, 78 differing lines, 76 of them folded")
    assert verdict(FOUND).endswith("0 not explained by it")


def test_the_divergence_is_shown_with_both_sides() -> None:
    lines = plain_report(FOUND).splitlines()
    assert "tick 2, decode_batch, error: result changed" in lines
    assert any(
        line.startswith("A     59  decode_batch(") and line.endswith("-> ERR KV cache exhausted") for line in lines
    )
    assert any(line.startswith("B     59  decode_batch(") and line.endswith("stream=0)") for line in lines)
    assert "error: KV cache exhausted -> nothing" in lines
    assert "      58  fx launch Decode{n=3, ctx=Unified, readback=Argmax}" in lines


def test_the_states_are_shown() -> None:
    text = plain_report(FOUND)
    assert "at the divergence, A and B:\n  tick 2; free blocks 997 (last answer); 3 held by sequences\n" in text
    assert "at the end of its tick, A:\n  tick 2; free blocks 998" in text
    assert "s1 in slot 2, 6 tokens, 1 block" in text


def test_equal_and_bytes_only() -> None:
    data = A.encode()
    equal = compare(data, data, ("x", "y"))
    assert plain_report(equal) == "x and y are equal"
    crlf = compare(data, data.replace(b"\n", b"\r\n"), ("x", "y"))
    assert plain_report(crlf) == "x and y differ in their bytes only\ny has CRLF line ends (162 against 0)"
    assert markdown_report(crlf) == "### x and y differ in their bytes only\n\n* y has CRLF line ends (162 against 0)\n"


def test_the_terminal_has_colours_and_the_pipe_has_none() -> None:
    for terminal in (True, False):
        stream = io.StringIO()
        print_report(
            FOUND, Console(file=stream, force_terminal=terminal, color_system="truecolor" if terminal else None)
        )
        assert ("\x1b[" in stream.getvalue()) is terminal
        plain = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
        assert "A     59  decode_batch(tokens=[11, 21, 31], seqs=[" in plain


def test_the_short_report_is_short() -> None:
    lines = short_report(FOUND).splitlines()
    assert len(lines) == 6
    assert lines[-1].startswith("  At tick 2 the decode launch was refused")


def test_markdown() -> None:
    text = markdown_report(FOUND)
    assert text.startswith("### a.trace and b.trace differ")
    assert text.count("```") % 2 == 0
    assert text.count("<details>") == text.count("</details>") == 4
    assert "\n- A     59  decode_batch(" in text
    assert "\n+ B     59  decode_batch(" in text


def test_markdown_cannot_be_broken_out_of() -> None:
    bad = A.replace("-- tick 3\n", "``` <b>*x*\n")
    text = markdown_report(compare(A.encode(), bad.encode()))
    assert "````diff" in text
    assert "<b>" not in text.replace("`", "").split("**In words**")[1].split("<details>")[0].replace("\\<b>", "")


def test_control_characters_are_spelled_out() -> None:
    bad = A.replace("-- tick 3\n", "-- tick \x1b[31m3\n")
    assert "-- tick \\x1b[31m3" in plain_report(compare(A.encode(), bad.encode()))


def test_json() -> None:
    document = comparison_document(FOUND)
    assert json.loads(json.dumps(document)) == document
    assert document["schema"] == SCHEMA == "metrale-diff/1"
    assert document["equal"] is False
    assert document["unexplained"] == 0
    first = document["first_divergence"]
    assert (first["line_a"], first["line_b"], first["tick"]) == (59, 59, 2)
    assert (first["call"], first["argument"]) == ("decode_batch", "error")
    (cause,) = document["causes"]
    assert (cause["lines_a"], cause["lines_b"], cause["folded"]) == ([[59, 59]], [[59, 59]], 76)
    assert sum(cause["why"].values()) == 76
    folded = [sum(last - first + 1 for first, last in cause[key]) for key in ("folded_a", "folded_b")]
    assert sum(folded) == 76
    assert document["lines"]["same"] + folded[0] + 1 == document["lines"]["a"]
    assert [client["same"] for client in document["clients"]] == [True, True, True]
    assert document["state_before"][0]["rows"][0] == {
        "request": 1,
        "phase": "active",
        "slot": 0,
        "length": 6,
        "blocks": 1,
        "next_input": 11,
    }
    equal = comparison_document(compare(A.encode(), A.encode()))
    assert equal["equal"] is True
    assert equal["first_divergence"] is None
    assert equal["causes"] == []


def test_the_documentation_names_every_key() -> None:
    text = (GOLDEN.parent / "docs" / "diff-json.md").read_text()
    document = comparison_document(FOUND)
    keys = {
        *document,
        *document["first_divergence"],
        *document["causes"][0],
        *document["lines"],
        *document["clients"][0],
    }
    keys |= {*document["state_before"][0], *document["state_before"][0]["rows"][0]}
    assert SCHEMA in text
    assert [key for key in sorted(keys) if f"`{key}`" not in text] == []


def test_ranges() -> None:
    assert list(ranges_of([1, 2, 3, 7, 9, 10])) == [[1, 3], [7, 7], [9, 10]]
    assert list(ranges_of([])) == []


@pytest.mark.parametrize("lines", [1_000, 10_000])
def test_reports_are_bounded(lines: int) -> None:
    """Every second line differs in its own way: few causes are shown, few ranges, few clients."""
    a = ["# scenario x", *(f"decode_marconi_checkpoint(s{i}@0:len={i})" for i in range(lines))]
    a += [f"out s{i}: T{i} Done(stop, n=2, think=0, cached=0, acc=0, guard=None)" for i in range(lines)]
    b = [line.replace("len=", f"len={i * 7}") if i % 2 else line.replace("T1", "T2") for i, line in enumerate(a)]
    found = compare("\n".join(a).encode(), "\n".join(b).encode())
    assert len(plain_report(found)) < 12_000
    assert len(markdown_report(found)) < 12_000
    document = comparison_document(found)
    assert len(json.dumps(document)) < 200_000
    assert len(document["causes"]) <= 50
    assert all(len(cause["folded_a"]) <= MOST_RANGES for cause in document["causes"])
    assert document["clients_left_out"] == lines - 200
