"""The HTML page as a file: self-contained, small, and with all the calls in it."""

from __future__ import annotations

import base64
import json
import re
import zlib

import pytest

from metrale.trace.align import compare
from metrale.trace.report.html import Result, check_page, diff_page, trace_page
from metrale.trace.report.page_data import CHUNK

from .planting import NAMES, golden
from .test_explanations import rerun

LIMIT = 300 * 1024

_OUTSIDE = re.compile(
    r"""(?:src|href)\s*=\s*["']?(?!\#)|url\(|@import|https?:(?!//www\.w3\.org/2000/svg)|fetch\(|XMLHttp"""
)


def columns(page: str) -> list[list]:
    """The page's data, unpacked."""
    packed = re.findall(r'<script type="application/octet-stream" id="chunk\d+">([^<]*)</script>', page)
    chunks = [json.loads(zlib.decompress(base64.b64decode(text))) for text in packed]
    return [[*column[:3], [[*row, chunk["t"]] for row in column[3]]] for chunk in chunks for column in chunk["c"]]


@pytest.mark.parametrize("name", NAMES)
def test_pages_are_small_and_need_nothing_from_outside(name: str) -> None:
    changed = rerun(name, "smaller blocks")
    pages = [trace_page(name, golden(name).encode())]
    pages.append(diff_page(compare(golden(name).encode(), changed.encode(), (name, "changed"))))
    for page in pages:
        assert len(page.encode()) < LIMIT
        assert _OUTSIDE.search(page) is None
        assert "default-src 'none'" in page


def test_a_trace_page_holds_every_line() -> None:
    text = golden("preempt_requeue")
    lines = text.splitlines()
    seen = {row[0]: row[-1][row[1]] for column in columns(trace_page("x", text.encode())) for row in column[3]}
    calls = [number for number, line in enumerate(lines, 1) if not line.startswith("out")]
    assert sorted(seen) == calls
    assert all(lines[number - 1] == seen[number] for number in calls)


def test_a_diff_page_holds_every_line_of_both_sides_once() -> None:
    a, b = golden("spill_swap_out_in"), rerun("spill_swap_out_in", "the last request comes one tick later")
    page = diff_page(compare(a.encode(), b.encode()))
    rows = [row for column in columns(page) for row in column[3]]
    for which, text in ((0, a), (2, b)):
        numbers = [row[which] for row in rows if row[which]]
        assert numbers == [n for n, line in enumerate(text.splitlines(), 1) if not line.startswith("out")]


def test_ticks_of_both_sides_stand_side_by_side() -> None:
    a, b = golden("spill_swap_out_in"), rerun("spill_swap_out_in", "the last request comes one tick later")
    ticks = [
        [frame and frame[0] for frame in column[:2]] for column in columns(diff_page(compare(a.encode(), b.encode())))
    ]
    assert ticks[:5] == [[0, 0], [1, 1], [2, 2], [None, 3], [3, 4]]
    assert ticks[-1] == [10, 10]


def test_columns_are_marked() -> None:
    a = golden("preempt_requeue")
    b = a.replace("-> [33, 23, 12]", "-> [33, 24, 12]")
    marks = [column[2] for column in columns(diff_page(compare(a.encode(), b.encode())))]
    assert marks == [0, 0, 0, 1, 0, 0, 0, 0, 0]


def test_a_trace_page_says_what_the_clients_saw() -> None:
    outs = "".join(f"out s{i}: dropped\n" for i in range(300))
    page = trace_page("x", f"# scenario x\n-- tick 1\n{outs}".encode())
    assert "out s199: dropped" in page
    assert "out s200: dropped" not in page
    assert "… and 100 more" in page


def test_a_large_trace_comes_in_chunks() -> None:
    page = trace_page("x", golden("watchdog_rollback").encode())
    assert page.count('type="application/octet-stream"') == -(-256 // CHUNK)
    assert len(columns(page)) == 256


def test_text_cannot_become_markup() -> None:
    a = golden("beam")
    b = a.replace("-- tick 1", "<script>alert(1)</script>")
    page = diff_page(compare(a.encode(), b.encode(), ("<i>", "b")))
    assert "<script>alert" not in page
    assert "<i>" not in page
    assert "&lt;i&gt;" in page


def test_equal_traces_have_a_page_too() -> None:
    data = golden("beam").encode()
    assert "a and b are equal" in diff_page(compare(data, data))


def test_the_page_of_a_check() -> None:
    a = golden("beam")
    found = compare(
        a.encode(), a.replace("readback=Argmax", "readback=HostLogits").encode(), ("beam.trace", "this run")
    )
    results = [
        Result("golden/plain", True, "passed", ""),
        Result("golden/beam", False, "different", "readback", found),
    ]
    page = check_page(results, "2 checked")
    assert "<title>2 checked</title>" in page
    assert page.index("golden/plain") < page.index("golden/beam")
    assert "fx launch Decode" in page
    assert _OUTSIDE.search(page.replace('href="#', "")) is None
