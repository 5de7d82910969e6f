"""``metrale report`` and ``metrale check --report``: pages on traces and on checks."""

from __future__ import annotations

import json
from pathlib import Path

from .conftest import GOLDEN, Run, one_error

TRACE = GOLDEN / "spill_swap_out_in.trace"


def test_one_trace(metrale: Run, tmp_path: Path) -> None:
    done = metrale("report", TRACE)
    assert (done.returncode, done.stdout) == (0, "spill_swap_out_in.trace.html\n")
    assert done.stderr.endswith("open spill_swap_out_in.trace.html in a browser\n")
    page = (tmp_path / "spill_swap_out_in.trace.html").read_text()
    assert "10 ticks, 2 requests, 137 lines" in page


def test_two_traces(metrale: Run, tmp_path: Path) -> None:
    other = tmp_path / "other.trace"
    other.write_text(TRACE.read_text().replace("-> [21]", "-> [22]"))
    done = metrale("report", TRACE, other, "-o", tmp_path / "page.html")
    assert done.returncode == 0
    assert "First divergence" in (tmp_path / "page.html").read_text()
    done = metrale("report", TRACE, other, "--perfetto", "x.json")
    assert done.returncode == 2
    assert "--perfetto takes one trace" in done.stderr
    assert not (tmp_path / "x.json").exists()


def test_perfetto(metrale: Run, tmp_path: Path) -> None:
    done = metrale("report", TRACE, "-o", "page.html", "--perfetto", "trace.json")
    assert (done.returncode, done.stdout) == (0, "page.html\ntrace.json\n")
    document = json.loads((tmp_path / "trace.json").read_text())
    assert document["otherData"]["trace"] == str(TRACE)
    assert len(document["traceEvents"]) > 137


def test_what_is_no_trace(metrale: Run, tmp_path: Path) -> None:
    done = metrale("report", tmp_path / "none")
    assert (done.returncode, done.stdout) == (2, "")
    assert one_error(done.stderr) == f"{tmp_path / 'none'}: no such file; expected a trace"
    done = metrale("report", TRACE, "-o", tmp_path / "no" / "page.html")
    assert done.returncode == 2
    assert "cannot be written" in one_error(done.stderr)


def test_the_page_of_a_check(metrale: Run, pair: Path) -> None:
    done = metrale("check", "suite", "--report", "good.html")
    assert done.returncode == 0
    assert "1 checked: 1 passed (same bytes)" in (pair.parent.parent / "good.html").read_text()
    golden = pair.with_suffix(".trace")
    golden.write_text(golden.read_text().replace("readback=Argmax", "readback=HostLogits", 1))
    done = metrale("check", "suite", "--report", "bad.html", CI="1")
    assert done.returncode == 1
    page = (pair.parent.parent / "bad.html").read_text()
    assert "suite/small" in page
    assert "this run" in page
    assert "readback.kind: HostLogits -&gt; Argmax" in page
