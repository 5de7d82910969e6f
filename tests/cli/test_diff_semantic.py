"""``metrale diff`` and ``metrale explain``: the aligned comparison as the user gets it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import GOLDEN, Run, environment, one_error

TRACE = GOLDEN / "preempt_requeue.trace"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The golden with another token in tick 3 and another victim's release in tick 2."""
    path = tmp_path / "other.trace"
    path.write_text(TRACE.read_text().replace("-> [33, 23, 12]", "-> [33, 24, 12]"))
    return path


def test_the_report_and_its_summary(metrale: Run, other: Path) -> None:
    done = metrale("diff", TRACE, other)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    summary = f"{TRACE} and {other} differ: 1 cause, 2 differing lines, 0 of them folded as consequences of the first, "
    assert lines[0] == f"{summary}0 not explained by it"
    assert "tick 3, argmax_batch, result[1]: result changed" in lines
    assert "result[1]: 23 -> 24" in lines
    assert "3 clients saw the same on both sides" in lines
    assert done.stderr.splitlines() == [f"next: metrale diff --html diff.html {TRACE} {other}", lines[0]]
    assert "\x1b" not in done.stdout


def test_json(metrale: Run, other: Path) -> None:
    done = metrale("diff", "--json", TRACE, other)
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert (found["schema"], found["equal"], found["unexplained"]) == ("metrale-diff/1", False, 0)
    first = found["first_divergence"]
    assert (first["line_a"], first["line_b"], first["tick"], first["call"], first["argument"]) == (
        92,
        92,
        3,
        "argmax_batch",
        "result[1]",
    )
    assert json.loads(metrale("diff", "--json", TRACE, TRACE).stdout)["first_divergence"] is None


def test_swapped_sides(metrale: Run, other: Path) -> None:
    there, back = (json.loads(metrale("diff", "--json", *pair).stdout) for pair in ((TRACE, other), (other, TRACE)))
    for key in ("line", "value", "text", "call"):
        assert there["first_divergence"][f"{key}_a"] == back["first_divergence"][f"{key}_b"]
    assert there["causes"][0]["lines_a"] == back["causes"][0]["lines_b"]
    assert there["changes"] == back["changes"]


def test_markdown_and_html(metrale: Run, other: Path, tmp_path: Path) -> None:
    done = metrale("diff", "--markdown", "--html", tmp_path / "page.html", TRACE, other)
    assert done.returncode == 1
    assert done.stdout.startswith(f"### {TRACE} and {other}".replace("_", "\\_"))
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    both = metrale("diff", "--markdown", "--json", TRACE, other)
    assert (both.returncode, both.stdout) == (2, "")
    assert "--json and --markdown exclude each other" in both.stderr


def test_bytes_only(metrale: Run, tmp_path: Path) -> None:
    crlf = tmp_path / "crlf.trace"
    crlf.write_bytes(TRACE.read_bytes().replace(b"\n", b"\r\n"))
    done = metrale("diff", TRACE, crlf)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f"{TRACE} and {crlf} differ in their bytes only",
        f"{crlf} has CRLF line ends (162 against 0)",
    ]
    assert done.stderr.splitlines()[0] == f"next: metrale lint {crlf}"
    assert metrale("explain", TRACE, crlf).stdout.startswith("A and B hold the same lines in other bytes.")


def test_a_damaged_log_is_compared_and_prose_is_refused(metrale: Run, tmp_path: Path) -> None:
    cut = tmp_path / "cut.trace"
    cut.write_bytes(TRACE.read_bytes()[:3000])
    done = metrale("diff", TRACE, cut)
    assert done.returncode == 1
    assert "B     90  commit_ctx(s2@" in done.stdout.splitlines()
    assert "1. replaced: commit_ctx commit_ctx -> text; tick 3" in done.stdout
    assert "no client is answered in B" in done.stdout
    prose = tmp_path / "prose"
    prose.write_text("Dear reader,\nthis is no trace.\n")
    for arguments in ((TRACE, prose), (prose, TRACE)):
        done = metrale("diff", *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        said = f"{prose}: no line of the file belongs to a trace; `metrale lint {prose}` says more"
        assert one_error(done.stderr) == said


def test_explain(metrale: Run, other: Path) -> None:
    done = metrale("explain", TRACE, other)
    assert done.returncode == 1
    assert done.stdout == ("At tick 3 the device answers token 23 for s2 in A and 24 in B. Nothing follows from it.\n")
    assert done.stderr.startswith(f"next: metrale diff {TRACE} {other}\n")
    found = json.loads(metrale("explain", "--json", TRACE, other).stdout)
    assert found["what"] == "At tick 3 the device answers token 23 for s2 in A and 24 in B."
    equal = metrale("explain", TRACE, TRACE)
    assert (equal.returncode, equal.stdout, equal.stderr) == (0, "A and B are equal. Nothing follows.\n", "")


def test_colours_on_a_terminal(other: Path) -> None:
    control, terminal = pty.openpty()
    command = [sys.executable, "-m", "metrale", "diff", str(TRACE), str(other)]
    env = environment(TERM="xterm-256color")
    env.pop("NO_COLOR", None)
    with subprocess.Popen(command, stdout=terminal, stderr=subprocess.DEVNULL, env=env) as process:
        os.close(terminal)
        seen = b""
        while b"saw the same" not in seen:
            seen += os.read(control, 1 << 16)
        process.wait(timeout=20)
    os.close(control)
    assert b"\x1b[31mA     92" in seen
    assert b"\x1b[32mB     92" in seen
