"""``metrale check`` and ``accept``: equality of bytes, pending traces, and who may change a golden."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from metrale.cli.files import in_ci

from .conftest import GOLDEN, SCENARIO, Run, environment, one_error


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def plant(golden: Path) -> None:
    """A golden that the scheduler no longer agrees with."""
    text = golden.read_text()
    assert "readback=Argmax" in text
    golden.write_text(text.replace("readback=Argmax", "readback=HostLogits", 1))


def test_everything_passes(metrale: Run, pair: Path) -> None:
    before = files(pair.parent)
    done = metrale("check", "suite")
    assert done.returncode == 0
    assert "suite" in done.stdout
    assert "passed" in done.stdout
    assert done.stderr == "1 checked: 1 passed (same bytes)\n"
    assert files(pair.parent) == before


def test_default_folder(metrale: Run, pair: Path) -> None:
    done = metrale("check")
    assert done.returncode == 2
    assert one_error(done.stderr) == "golden: no such folder here; name the scenarios or folders to check"
    pair.parent.rename(pair.parent.with_name("golden"))
    assert metrale("check").stderr == "1 checked: 1 passed (same bytes)\n"
    assert metrale("check", "small").returncode == 0


def test_a_difference_is_shown_and_left_pending_and_accepted(metrale: Run, pair: Path) -> None:
    golden = pair.with_suffix(".trace")
    right = golden.read_bytes()
    plant(golden)
    wrong = golden.read_bytes()
    done = metrale("check", "suite")
    assert done.returncode == 1
    assert "readback.kind of `fx_launch_decode`" in " ".join(done.stdout.split())
    assert "-     32  fx launch Decode{n=2, ctx=Unified, readback=HostLogits}" in done.stdout
    assert "+     32  fx launch Decode{n=2, ctx=Unified, readback=Argmax}" in done.stdout
    assert done.stderr.splitlines() == [
        "next: metrale diff suite/small.trace suite/small.trace.pending",
        "      metrale accept suite/small.toml    if the new behaviour is right",
        "1 checked: 1 different (the scheduler does something else)",
    ]
    assert golden.read_bytes() == wrong
    pending = pair.with_name("small.trace.pending")
    assert pending.read_bytes() == right

    accepted = metrale("accept", pair)
    assert (accepted.returncode, accepted.stdout) == (0, f"{golden}\n")
    assert accepted.stderr == "1 accepted; next: git diff, then commit\n"
    assert golden.read_bytes() == right
    assert not pending.exists()
    assert metrale("check", pair).returncode == 0


def test_a_pending_trace_goes_when_the_check_passes(inside, pair: Path) -> None:
    pending = pair.with_name("small.trace.pending")
    pending.write_text("old")
    assert inside("check", pair)[0] == 0
    assert not pending.exists()


@pytest.mark.parametrize("value", ["true", "1", "yes", "woodpecker"])
def test_ci_writes_nothing(value: str, inside, pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", value)
    golden = pair.with_suffix(".trace")
    plant(golden)
    pair.with_name("small.trace.pending").write_text("mine")
    before = files(pair.parent)
    status, out, err = inside("check", pair)
    assert status == 1
    assert "this run" in out
    assert err.startswith(f"next: metrale check {pair}    where CI is not set")
    status, out, err = inside("accept", pair)
    assert (status, out) == (2, "")
    assert one_error(err).startswith("accept: CI is set")
    assert files(pair.parent) == before


@pytest.mark.parametrize("value", ["", "0", "false", "False", "no", "off", None])
def test_ci_that_is_not_set(value: str | None) -> None:
    assert not in_ci({} if value is None else {"CI": value})


def test_ci_false_accepts(metrale: Run, pair: Path) -> None:
    plant(pair.with_suffix(".trace"))
    assert metrale("check", pair, CI="0").returncode == 1
    assert metrale("accept", pair, CI="false").returncode == 0


# -- damaged, missing and orphan goldens


DAMAGE = {
    "CRLF": (lambda data: data.replace(b"\n", b"\r\n"), "has CRLF line ends"),
    "BOM": (lambda data: b"\xef\xbb\xbf" + data, "has a UTF-8 byte order mark"),
    "no final newline": (lambda data: data[:-1], "has no final newline"),
    "blank at a line end": (lambda data: data.replace(b"teardown()\n", b"teardown() \n"), "has blanks at line ends"),
    "one more empty line": (lambda data: data.replace(b"-- tick 2\n", b"-- tick 2\n\n"), "has empty lines"),
    "empty line at the end": (lambda data: data + b"\n", "has empty lines"),
}


@pytest.mark.parametrize("case", list(DAMAGE))
def test_damage_is_named_in_one_message_and_is_a_failure(case: str, inside, pair: Path) -> None:
    change, said = DAMAGE[case]
    golden = pair.with_suffix(".trace")
    right = golden.read_bytes()
    golden.write_bytes(change(right))
    damaged = golden.read_bytes()
    assert damaged != right
    status, out, err = inside("check", pair, "--json")
    assert status == 1
    (outcome,) = json.loads(out)["outcomes"]
    assert outcome["verdict"] == "damaged"
    assert outcome["message"].startswith(f"{golden}: same lines, other bytes: ")
    assert said in outcome["message"]
    assert outcome["diff"]["line_a"] is None
    assert "1 damaged (same lines, other bytes)" in err
    assert golden.read_bytes() == damaged
    status, out, _ = inside("check", pair)
    assert status == 1
    assert said in " ".join(out.replace("│", " ").split())
    assert len(out) < 5000


def test_missing_golden_fails_and_writes_nothing_until_it_is_accepted(inside, pair: Path) -> None:
    golden = pair.with_suffix(".trace")
    right = golden.read_bytes()
    golden.unlink()
    status, out, err = inside("check", pair.parent)
    assert status == 1
    assert "the golden is missing" in " ".join(out.split())
    assert err.splitlines()[0].startswith(f"next: metrale accept {pair} ")
    assert sorted(files(pair.parent)) == ["small.toml"]
    assert inside("accept", "--all", pair.parent)[2] == "nothing is pending\n"
    assert sorted(files(pair.parent)) == ["small.toml"]
    status, out, err = inside("accept", pair)
    assert (status, out) == (0, f"{golden}\n")
    assert err.startswith("1 recorded; ")
    assert golden.read_bytes() == right


def test_orphan_golden_is_reported(inside, pair: Path) -> None:
    pair.unlink()
    status, out, err = inside("check", pair.parent, "--json")
    assert status == 1
    (outcome,) = json.loads(out)["outcomes"]
    assert outcome["verdict"] == "orphan"
    assert outcome["message"] == f"{pair.with_suffix('.trace')}: golden without a scenario; {pair} is missing"
    assert err.splitlines() == [
        f"next: bring {pair} back, or remove {pair.with_suffix('.trace')}; then metrale check",
        "1 checked: 1 orphan (golden without a scenario)",
    ]


def test_a_bad_scenario_is_reported_beside_the_others(inside, pair: Path) -> None:
    pair.with_name("bad.toml").write_text("name = 1\n")
    status, out, err = inside("check", pair.parent, "--json")
    assert status == 2
    report = json.loads(out)
    assert report["ok"] is False
    assert report["counts"]["passed"] == 1
    assert report["counts"]["invalid"] == 1
    bad, good = report["outcomes"]
    assert (bad["name"], good["name"]) == ("bad", "small")
    assert bad["message"].startswith(f"{pair.with_name('bad.toml')}: top level: key name must be text")
    assert f"next: metrale run {pair.with_name('bad.toml')}" in err


def test_a_golden_that_is_no_file(inside, pair: Path) -> None:
    golden = pair.with_suffix(".trace")
    golden.unlink()
    golden.mkdir()
    status, out, _ = inside("check", pair, "--json")
    assert status == 2
    assert json.loads(out)["outcomes"][0]["message"] == f"{golden}: is a folder; expected a trace"


def test_a_binary_or_empty_golden_is_a_difference(inside, pair: Path) -> None:
    golden = pair.with_suffix(".trace")
    for data in (b"", b"\0\xff\xfe" * 100):
        golden.write_bytes(data)
        status, out, _ = inside("check", pair, "--json")
        assert status == 1
        assert json.loads(out)["outcomes"][0]["verdict"] == "different"


def test_json_and_junit(inside, pair: Path, tmp_path: Path) -> None:
    other = pair.with_name("other.toml")
    other.write_text(SCENARIO.replace("small", "other"))
    plant(pair.with_suffix(".trace"))
    report = tmp_path / "report.xml"
    status, out, _ = inside("check", pair.parent, "--json", "--junit", report)
    assert status == 1
    found = json.loads(out)
    assert found["ok"] is False
    assert found["checked"] == 2
    missing, different = found["outcomes"]
    assert (missing["verdict"], different["verdict"]) == ("missing", "different")
    assert different["pending"] == str(pair.with_name("small.trace.pending"))
    assert different["diff"]["tick"] == 1
    assert different["diff"]["fields"] == [{"path": "readback.kind", "a": "HostLogits", "b": "Argmax"}]
    root = ET.parse(report).getroot()
    assert root.attrib == {"tests": "2", "failures": "2", "errors": "0"}
    cases = {case.get("name"): case for case in root.iter("testcase")}
    assert list(cases) == ["other", "small"]
    assert cases["small"].find("failure").get("type") == "different"
    assert "readback=Argmax" in cases["small"].find("failure").text
    bad = tmp_path / "no" / "report.xml"
    status, _, err = inside("check", pair, "--junit", bad)
    assert status == 2
    assert "cannot be written" in err


def test_verbose_lists_what_passed(inside, pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pair.parent)  # a long path would be folded
    assert "small" not in inside("check", "small.toml")[1]
    assert "small" in inside("check", "-v", "small.toml")[1]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nowhere.toml", "nowhere.toml: no such file or folder"),
        ("suite/smal.toml", "suite/smal.toml: no such file or folder; did you mean suite/small.toml?"),
        ("notes.txt", "notes.txt: not a file of a golden pair; expected NAME.toml, NAME.trace or a folder"),
        ("empty", "empty: no scenario in this folder; expected NAME.toml with NAME.trace beside it"),
    ],
)
@pytest.mark.parametrize("command", ["check", "accept"])
def test_paths_that_name_nothing(
    command: str, path: str, said: str, inside, pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("hello")
    Path("empty").mkdir()
    status, out, err = inside(command, path)
    assert (status, out) == (2, "")
    assert one_error(err) == said


def test_one_pair_named_in_several_ways_is_checked_once(inside, pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pair.parent.parent)
    status, _, err = inside("check", "suite", "suite/small.toml", "suite/small.trace", "suite/small")
    assert (status, err) == (0, "1 checked: 1 passed (same bytes)\n")


def test_folders_below_are_checked_and_hidden_ones_are_not(inside, pair: Path) -> None:
    for name in ("deeper", ".hidden"):
        folder = pair.parent / name
        folder.mkdir()
        (folder / "more.toml").write_text(SCENARIO)
    status, out, _ = inside("check", pair.parent, "--json")
    assert status == 1
    assert [outcome["name"] for outcome in json.loads(out)["outcomes"]] == ["more", "small"]


# -- accept


def test_accept_needs_a_name_or_all(inside) -> None:
    status, out, err = inside("accept")
    assert (status, out) == (2, "")
    assert "name what to accept, or --all" in err


def test_accept_refuses_what_is_not_pending(inside, pair: Path) -> None:
    before = files(pair.parent)
    status, out, err = inside("accept", pair)
    assert (status, out) == (2, "")
    assert one_error(err) == f"{pair.with_suffix('')}: nothing is pending; `metrale check {pair}` compares it first"
    assert files(pair.parent) == before


def test_accept_all_takes_the_pending_ones(inside, pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pair.parent.parent)
    pair.parent.rename("golden")
    Path("golden/new.toml").write_text(SCENARIO)
    plant(Path("golden/small.trace"))
    assert inside("check")[0] == 1
    status, out, err = inside("accept", "--all", "--json")
    assert status == 0
    assert json.loads(out) == {"accepted": ["golden/small.trace"], "recorded": []}
    assert err.startswith("1 accepted; ")
    assert not Path("golden/new.trace").exists()


def test_accept_refuses_a_pending_trace_without_a_scenario(inside, pair: Path) -> None:
    pair.unlink()
    pending = pair.with_name("small.trace.pending")
    pending.write_text("x")
    status, _, err = inside("accept", pending)
    assert status == 2
    assert one_error(err) == f"{pending}: belongs to no scenario; {pair} is missing"
    assert pending.exists()


def test_accept_of_a_bad_scenario_records_nothing(inside, tmp_path: Path) -> None:
    scenario = tmp_path / "bad.toml"
    scenario.write_text("name = 1\n")
    status, _, err = inside("accept", scenario)
    assert status == 2
    assert one_error(err).startswith(f"{scenario}: top level: key name")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.toml"]


def test_the_suite_itself_passes(metrale: Run) -> None:
    done = metrale("check", GOLDEN, CI="1")
    assert done.returncode == 0, done.stdout


def test_a_terminal_sees_progress_and_a_pipe_does_not(pair: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "metrale", "check", str(pair)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment(TERM="xterm")) as check:
        os.close(theirs)
        shown = b""
        with suppress(OSError):
            while piece := os.read(ours, 4096):
                shown += piece
        out, _ = check.communicate(timeout=60)
    os.close(ours)
    assert check.returncode == 0
    assert "━" in shown.decode()
    assert shown.endswith(b"1 checked: 1 passed (same bytes)\r\n")
    assert b"\x1b" not in out


def test_a_folder_that_nobody_may_write_to_does_not_stop_a_check(
    inside, pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "suite")

    plant(pair.with_suffix(".trace"))
    monkeypatch.setattr("metrale.cli.files.tempfile.mkstemp", refused)
    before = files(pair.parent)
    status, out, _ = inside("check", pair, "--json")
    assert status == 1
    assert json.loads(out)["outcomes"][0]["pending"] is None
    assert files(pair.parent) == before
