"""``metrale review``, ``pending`` and ``accept --cause``: goldens that changed for one reason are one decision."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from .conftest import SCENARIO, Run, environment, one_error

Inside = Callable[..., tuple[int, str, str]]


@pytest.fixture
def suite(tmp_path: Path, inside: Inside, monkeypatch: pytest.MonkeyPatch) -> Path:
    """golden/: ``one`` and ``two`` changed in the same way, ``three`` in another, ``four`` not at all."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "golden"
    folder.mkdir()
    for name in ("one", "two", "three", "four"):
        scenario = folder / f"{name}.toml"
        scenario.write_text(SCENARIO.replace('"small"', f'"{name}"'))
        assert inside("run", scenario, "-o", folder / f"{name}.trace")[0] == 0
    for name, old, new in (
        ("one", "readback=Argmax", "readback=HostLogits"),
        ("two", "readback=Argmax", "readback=HostLogits"),
        ("three", "cache_sequence(s1@0:len=7)\n", ""),
    ):
        golden = folder / f"{name}.trace"
        assert old in golden.read_text()
        golden.write_text(golden.read_text().replace(old, new, 1))
    assert inside("check")[0] == 1
    return folder


def causes(inside: Inside) -> dict[str, list[str]]:
    """Pending goldens by cause."""
    status, out, _ = inside("pending", "--json")
    assert status == 0
    groups = json.loads(out)["causes"]
    return {group["cause"]: [Path(entry["golden"]).stem for entry in group["pending"]] for group in groups}


def test_pending_by_cause(suite: Path, inside: Inside) -> None:
    groups = causes(inside)
    assert sorted(groups.values()) == [["one", "two"], ["three"]]
    status, out, err = inside("pending")
    assert status == 0
    assert "argument changed: fx launch Decode, readback.kind HostLogits -> Argmax\n" in out
    assert "extra: cache_sequence\n" in out
    assert err.startswith("3 pending, 2 causes; next: metrale review, or metrale accept --cause ")


def test_the_cause_is_the_same_on_every_machine(suite: Path, inside: Inside) -> None:
    assert list(causes(inside)) == list(causes(inside))
    assert all(len(cause) == 8 for cause in causes(inside))


def test_accept_one_cause_with_its_reason(suite: Path, inside: Inside) -> None:
    (cause,) = [cause for cause, names in causes(inside).items() if "one" in names]
    fresh = (suite / "one.trace.pending").read_bytes()
    status, out, err = inside("accept", "--cause", cause[:5], "--why", "argmax  on the device\nagain")
    assert (status, out) == (0, "golden/one.trace\ngolden/two.trace\n")
    assert err == "2 accepted; next: git diff, then commit\n"
    assert (suite / "one.trace").read_bytes() == fresh
    assert not (suite / "one.trace.pending").exists()
    assert (suite / "three.trace.pending").exists()
    text = (suite / "CHANGES.md").read_text()
    assert text.startswith("# Accepted changes\n")
    assert text.endswith(
        "## argument changed: fx launch Decode, readback.kind HostLogits -> Argmax\n\n"
        "argmax on the device again\n\n* one.trace\n* two.trace\n"
    )
    (other,) = causes(inside)
    assert inside("accept", "--cause", other, "--why", "cached", "--json")[0] == 0
    assert (suite / "CHANGES.md").read_text().count("\n## ") == 2
    assert inside("pending")[2] == "nothing is pending\n"


def test_what_accept_refuses(suite: Path, inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    (cause, *_) = causes(inside)
    before = {path: path.read_bytes() for path in suite.iterdir()}
    for arguments in (("--cause", cause), ("--why", "x")):
        status, _, err = inside("accept", *arguments)
        assert status == 2
        assert "--cause CAUSE and --why TEXT go together" in err
    status, _, err = inside("accept", "--cause", cause, "--why", " ")
    assert (status, one_error(err)) == (2, "a reason is needed: --why TEXT says why the new behaviour is right")
    status, _, err = inside("accept", "--cause", "zz", "--why", "x")
    assert status == 2
    assert one_error(err).startswith("'zz': no such cause; pending causes are ")
    monkeypatch.setenv("CI", "true")
    for arguments in (("accept", "--cause", cause, "--why", "x"), ("pending", "--reject", cause), ("review",)):
        status, _, err = inside(*arguments)
        assert status == 2
        assert "in CI nothing writes a golden" in one_error(err)
    assert {path: path.read_bytes() for path in suite.iterdir()} == before


def test_reject_and_show(suite: Path, inside: Inside) -> None:
    (cause,) = [cause for cause, names in causes(inside).items() if "three" in names]
    status, out, _ = inside("pending", "--show", cause)
    assert status == 0
    assert out.startswith("golden/three.trace and golden/three.trace.pending differ: 1 cause")
    golden = (suite / "three.trace").read_bytes()
    status, out, err = inside("pending", "--reject", cause)
    assert (status, out, err) == (0, "", "1 rejected: three\n")
    assert (suite / "three.trace").read_bytes() == golden
    assert not (suite / "three.trace.pending").exists()
    assert inside("pending", "--reject", cause, "--show", cause)[0] == 2


def test_loose_ends_are_reported_and_kept(suite: Path, inside: Inside) -> None:
    (suite / "orphan.trace").write_bytes((suite / "four.trace").read_bytes())
    (suite / "lonely.toml").write_text(SCENARIO)
    out = inside("pending")[1]
    assert "golden/orphan.trace: golden without a scenario\n" in out
    assert "golden/lonely.toml: scenario without a golden; `metrale accept golden/lonely.toml` records it\n" in out
    assert json.loads(inside("pending", "--json")[1])["loose_ends"][1].startswith("golden/orphan.trace")
    assert (suite / "orphan.trace").exists()


def test_a_pending_trace_without_a_golden_and_one_that_equals_it(suite: Path, inside: Inside) -> None:
    (suite / "one.trace").unlink()
    (suite / "two.trace").write_bytes((suite / "two.trace.pending").read_bytes())
    (suite / "three.trace").write_bytes((suite / "three.trace.pending").read_bytes().replace(b"\n", b"\r\n"))
    out = inside("pending")[1]
    assert "there is no golden yet" in out
    assert "the pending trace equals the golden" in out
    assert "the golden holds the same lines in other bytes" in out


def test_no_folder(tmp_path: Path, inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command in ("pending", "review"):
        status, _, err = inside(command)
        assert status == 2
        assert one_error(err) == "golden: no such folder here; name the scenarios or folders to look at"


def test_review_without_a_terminal(suite: Path, metrale: Run) -> None:
    done = metrale("review")
    assert done.returncode == 2
    assert "needs a terminal" in one_error(done.stderr)


def _read(control: int, seen: str) -> str:
    """What the terminal shows next; an error if nothing comes for a long time."""
    ready, _, _ = select.select([control], [], [], 20)
    assert ready, f"the program waits after: {seen[-400:]!r}"
    data = os.read(control, 1 << 12)
    if not data:
        raise OSError
    return data.decode(errors="replace")


def _wait_until_it_reads(control: int, *, keys: bool) -> None:
    """Single keys are read from a raw terminal, and what was typed before is dropped; lines from one that is not."""
    deadline = time.monotonic() + 20
    while bool(termios.tcgetattr(control)[3] & termios.ICANON) is keys:
        assert time.monotonic() < deadline, "the program does not read"
        time.sleep(0.005)


def press(folder: Path, *keys: tuple[str, str]) -> tuple[int, str]:
    """Run the review on a terminal: wait for a text, send keys, and so on. Gives exit status and all that was shown."""
    control, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "metrale", "review"],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        cwd=folder,
        env=environment(TERM="dumb"),
        close_fds=True,
    )
    os.close(terminal)
    shown = ""
    for awaited, sent in keys:
        seen = ""
        while awaited not in seen:
            seen += _read(control, seen)
        shown += seen
        _wait_until_it_reads(control, keys=not sent.endswith("\n"))
        os.write(control, sent.encode())
    with suppress(OSError):
        while True:
            shown += _read(control, shown)
    os.close(control)
    return process.wait(timeout=20), shown


def test_keys(suite: Path) -> None:
    status, shown = press(
        suite.parent,
        ("q quit  ? ", "x"),
        ("q quit  ? ", "d"),
        ("q quit  ? ", "a"),
        ("why is it right: ", "\n"),
        ("q quit  ? ", "a"),
        ("why is it right: ", "meant so\n"),
        ("q quit  ? ", "r"),
    )
    assert status == 0
    assert "[1/2] argument changed: fx launch Decode" in shown
    assert "2 goldens: one, two" in shown
    assert "one of a, r, s, d, q" in shown
    assert "First divergence" in shown
    assert "not accepted: a reason is needed" in shown
    assert "[2/2] extra: cache_sequence" in shown
    assert "2 accepted, 1 rejected, 0 still pending" in shown
    assert "meant so" in (suite / "CHANGES.md").read_text()
    assert list(suite.glob("*.pending")) == []


def test_skip_and_quit(suite: Path) -> None:
    status, shown = press(suite.parent, ("q quit  ? ", "s"), ("q quit  ? ", "q"))
    assert status == 0
    assert "0 accepted, 0 rejected, 3 still pending" in shown
    assert len(list(suite.glob("*.pending"))) == 3
    assert not (suite / "CHANGES.md").exists()
