"""``metrale lint`` and ``metrale diff``: what they say about a file, and what they do with files that are none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import GOLDEN, Run, environment, one_error

TRACE = GOLDEN / "preempt_requeue.trace"


def test_lint_of_good_files(metrale: Run) -> None:
    done = metrale("lint", TRACE, GOLDEN / "beam.trace")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "2 files, 218 lines, well-formed\n"


def test_lint_reads_standard_input() -> None:
    command = [sys.executable, "-m", "metrale", "lint", "--grammar-only", "-"]
    done = subprocess.run(command, input=TRACE.read_bytes(), env=environment(), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"1 file, 162 lines, well-formed\n")


def test_lint_names_line_column_and_remedy(inside, tmp_path: Path) -> None:
    bad = tmp_path / "bad.trace"
    bad.write_text(
        TRACE.read_text().replace("-- tick 2", "-- tock 2").replace("decode_batch(tokens", "decode_bach(tokens", 1)
    )
    status, out, err = inside("lint", bad, TRACE, "--json")
    assert status == 2
    report = json.loads(out)
    assert report["errors"] == []
    broken, good = report["files"]
    assert (broken["ok"], good["ok"]) == (False, True)
    assert [found["line"] for found in broken["problems"]] == [45, 57]
    assert "decode_batch" in broken["problems"][0]["hint"]
    status, out, err = inside("lint", bad)
    assert status == 2
    first, second = out.splitlines()
    assert first.startswith(f"{bad}:45:")
    assert second.startswith(f"{bad}:57:")
    assert err.splitlines()[-1] == "1 of 1 file cannot be used as a trace, 162 lines read"


def test_lint_goes_on_after_a_file_it_cannot_read(inside, tmp_path: Path) -> None:
    status, out, err = inside("lint", "nowhere.trace", tmp_path, TRACE)
    assert (status, out) == (2, "")
    assert err.splitlines() == [
        "Error: nowhere.trace: no such file; expected a trace",
        f"Error: {tmp_path}: is a folder; expected a trace",
        "next: correct what is named above, then metrale lint again",
        "2 of 3 files cannot be used as traces, 162 lines read",
    ]


def test_lint_names_broken_invariants(inside, tmp_path: Path) -> None:
    broken = tmp_path / "broken.trace"
    broken.write_text(
        TRACE.read_text().replace("num_free_blocks() -> 998\n-- tick 5", "num_free_blocks() -> 997\n-- tick 5")
    )
    status, out, err = inside("lint", broken, TRACE)
    assert status == 1
    assert out.startswith(f"{broken}: line 117: ")
    assert len(out.splitlines()) == 1
    assert err.splitlines() == [
        f"next: metrale lint --json {broken}",
        "1 of 2 files breaks invariants, 324 lines read",
    ]
    status, out, err = inside("lint", "--json", broken)
    assert status == 1
    (findings,) = json.loads(out)["files"]
    assert findings["ok"] is False
    assert [found["lines"] for found in findings["violations"]] == [[117]]
    assert inside("lint", "--grammar-only", broken) == (0, "", "1 file, 162 lines, well-formed\n")


def test_lint_with_the_scenario(inside, tmp_path: Path) -> None:
    scenario = TRACE.with_suffix(".toml")
    assert inside("lint", "--scenario", scenario, TRACE)[0] == 0
    other = tmp_path / "other.toml"
    other.write_text(scenario.read_text().replace("tokens = [10, 11,", "tokens = [10, 9,"))
    status, out, _ = inside("lint", "--scenario", other, TRACE)
    assert status == 1
    assert out.startswith(f"{TRACE}: ")
    status, out, err = inside("lint", "--scenario", tmp_path / "no.toml", TRACE)
    assert (status, out) == (2, "")
    assert one_error(err).startswith(f"{tmp_path / 'no.toml'}: ")
    status, out, err = inside("lint", "--scenario", scenario, "--grammar-only", TRACE)
    assert (status, out) == (2, "")
    assert "which --grammar-only leaves out" in err


@pytest.mark.parametrize("data", [b"", b"\0\1\2" * 50, b"hello\n"], ids=["empty", "binary", "no trace"])
def test_lint_of_what_is_no_trace(data: bytes, inside, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(data)
    status, out, err = inside("lint", file)
    assert status == 2
    assert out.startswith(f"{file}:")
    assert len(out.splitlines()) == 1
    assert "Traceback" not in err


def test_diff_of_equal_files(metrale: Run) -> None:
    done = metrale("diff", TRACE, TRACE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{TRACE} and {TRACE} are equal\n"


def test_diff_shows_tick_arguments_and_ten_lines_before(metrale: Run, tmp_path: Path) -> None:
    other = tmp_path / "other.trace"
    other.write_text(TRACE.read_text().replace("tokens=[32, 22, 11]", "tokens=[32, 22, 12]"))
    done = metrale("diff", TRACE, other)
    assert done.returncode == 1
    assert "tick 3" in done.stdout
    assert "tokens[2]: 11 -> 12" in done.stdout
    assert sum(line.startswith("      ") for line in done.stdout.splitlines()) == 10
    assert done.stderr.splitlines()[0] == f"next: metrale diff --html diff.html {TRACE} {other}"
    found = json.loads(metrale("diff", "--json", TRACE, other).stdout)["first_divergence"]
    assert (found["tick"], found["line_a"], found["line_b"]) == (3, 88, 88)
    assert (found["argument"], found["value_a"], found["value_b"]) == ("tokens[2]", "11", "12")


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"", "the file is empty"), (b" \n", "the file is empty"), (b"a\0b", "not a text file (NUL byte at offset 1)")],
)
def test_diff_of_what_is_no_text(data: bytes, said: str, inside, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(data)
    for arguments in ((TRACE, file), (file, TRACE)):
        status, out, err = inside("diff", *arguments)
        assert (status, out) == (2, "")
        assert one_error(err) == f"{file}: {said}; expected a trace"


def test_diff_of_missing_files_and_folders(inside, tmp_path: Path) -> None:
    for path, said in ((tmp_path / "no", "no such file"), (tmp_path, "is a folder")):
        status, out, err = inside("diff", TRACE, path)
        assert (status, out) == (2, "")
        assert one_error(err) == f"{path}: {said}; expected a trace"
