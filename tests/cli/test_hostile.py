"""Hostile surroundings: closed and narrow streams, files without end, names and keys full of control characters."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from metrale.cli.files import read_regular
from metrale.cli.text import plain, plain_lines, quoted
from metrale.sim.scenario import MAX_FILE_BYTES, ScenarioError, parse_scenario

from .conftest import GOLDEN, SCENARIO, Run, environment, one_error

TRACE = GOLDEN / "beam.trace"


def shell(command: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = command.replace("metrale", f"{sys.executable} -m metrale", 1)
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment(**env),
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


# -- streams


@pytest.mark.parametrize("command", [f"run {GOLDEN / 'beam.toml'}", "--help", f"explain {TRACE} {TRACE}"])
def test_a_closed_standard_output(command: str, tmp_path: Path) -> None:
    done = shell(f"metrale {command} >&-", tmp_path)
    assert done.returncode == 2
    assert done.stderr == "Error: standard output cannot be written: Bad file descriptor\n"


def test_a_closed_standard_input(tmp_path: Path) -> None:
    done = shell("metrale lint - <&-", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: -: cannot be read: standard input is closed\n")


def test_names_that_the_terminal_cannot_show(pair: Path, metrale: Run) -> None:
    for suffix in (".toml", ".trace"):
        pair.with_suffix(suffix).rename(pair.with_name(f"ünï{suffix}"))
    done = metrale("check", "-v", "suite/ünï.toml", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "1 checked: 1 passed (same bytes)\n")
    assert "suite/\\xfcn\\xef" in done.stdout
    out = metrale("run", "suite/ünï.toml", PYTHONIOENCODING="ascii").stdout
    assert out == pair.with_name("ünï.trace").read_text()


# -- files that are none, or have no end


def test_fifos_and_devices_are_no_scenarios(pair: Path, inside) -> None:
    fifo = pair.with_name("fifo.toml")
    os.mkfifo(fifo)
    os.mkfifo(pair.with_name("lone.trace"))
    for path in (fifo, Path("/dev/zero")):
        status, out, err = inside("run", path)
        assert (status, out) == (2, "")
        assert one_error(err) == f"{path}: is no regular file; a scenario is a small TOML file"
    assert inside("check", pair.parent)[2] == "1 checked: 1 passed (same bytes)\n"
    assert inside("check", fifo)[0] == 2
    golden = pair.with_suffix(".trace")
    golden.unlink()
    os.mkfifo(golden)
    status, out, _ = inside("check", pair, "--json")
    assert status == 2
    assert f"{golden}: is a FIFO; expected a trace" in out
    pair.with_name("small.trace.pending").symlink_to(TRACE)
    status, _, err = inside("accept", pair)
    assert status == 2
    assert "small.trace.pending: is no regular file" in one_error(err)


def test_a_trace_without_end(inside) -> None:
    status, out, _ = inside("lint", "/dev/zero")
    assert status == 2
    assert "holds NUL bytes" in out
    status, _, err = inside("diff", "/dev/zero", TRACE)
    assert status == 2
    assert one_error(err) == "/dev/zero: not a text file (NUL byte at offset 0); expected a trace"


def test_lint_of_a_line_without_end(inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metrale.cli.lint.LONGEST_LINE", 1 << 20)
    long = tmp_path / "long"
    long.write_bytes(b"x" * (1 << 21))
    status, _, err = inside("lint", long)
    assert status == 2
    assert err.startswith(f"Error: {long}: cannot be read: line 1 is longer than 1 MiB\n")


def test_a_trace_from_a_pipe(tmp_path: Path) -> None:
    assert shell(f"metrale diff <(cat {TRACE}) {TRACE}", tmp_path).returncode == 0
    assert shell(f"metrale lint <(cat {TRACE})", tmp_path).returncode == 0


def test_huge_files(tmp_path: Path, inside, monkeypatch: pytest.MonkeyPatch) -> None:
    huge = tmp_path / "huge.toml"
    with huge.open("wb") as stream:
        stream.truncate(MAX_FILE_BYTES + 1)
    status, _, err = inside("run", huge)
    assert status == 2
    assert one_error(err) == f"{huge}: larger than 64 MiB; a scenario is a small TOML file"
    monkeypatch.setattr("metrale.cli.files.MAX_BYTES", 1 << 20)
    with pytest.raises(OSError, match="larger than 1 MiB"):
        read_regular(huge)


@pytest.mark.parametrize("command", ["run", "check", "lint", "report"])
def test_links_that_lead_nowhere(command: str, inside, tmp_path: Path) -> None:
    dangling, loop = tmp_path / "a.toml", tmp_path / "b.toml"
    dangling.symlink_to("nowhere")
    loop.symlink_to("b.toml")
    for path, said in ((dangling, "is a symlink to nowhere, which does not exist"), (loop, "is a symlink in a loop")):
        status, out, err = inside(command, path)
        assert (status, out) == (2, "")
        assert err.startswith(f"Error: {path}: {said}")


# -- scenarios that are cruel to the TOML reader

REQUEST = "[[request]]\nid = 1\nprompt_len = 5\ntokens = [10, 63]\n"
LONG = "a" * 100_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (".".join("a" * 20_000) + " = 1", "line 2: a key has more than 64 parts"),
        ("x = {" + ".".join(['"a.b"'] * 70) + " = 1}", "line 2: a key has more than 64 parts"),
        ("[device]\nkv_exhaust_at = " + "[" * 9000 + "]" * 9000, "not valid TOML: nested too deeply"),
        ("[device]\nvocab = 1" + "0" * 5000, "not valid TOML: a number has too many digits; numbers go up to 2^63-1"),
        (
            "[device]\nvocab = 0x" + "f" * 6000,
            "[device]: key vocab must be 2 to 1048576, not a number of thousands of digits",
        ),
        (
            f"{LONG} = 1",
            f"top level: key {'a' * 40}...{'a' * 17} is unknown; allowed: name, about, device, scheduler, request",
        ),
        (
            r'"\u001b[31mred\n" = 1',
            r"top level: key \x1b[31mred\n is unknown; allowed: name, about, device, scheduler, request",
        ),
    ],
)
def test_cruel_scenarios(text: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(f'name = "x"\n{text}\n{REQUEST if "]" not in text else ""}'.encode(), "x.toml")
    assert str(caught.value) == f"x.toml: {said}"


def test_long_text_and_comments_are_no_long_keys() -> None:
    dots = ".".join("a" * 200)
    assert parse_scenario(f'name = "x"\nabout = "{dots}" # {dots}\n{REQUEST}'.encode()).about == dots


# -- what is shown


def test_text_is_shown_and_not_obeyed() -> None:
    assert plain("a\x1b[31m\nb\x9b\u2028\u202e\udc80é") == "a\\x1b[31m\\nb\\x9b\\u2028\\u202e\\udc80é"
    assert plain_lines("a\n\tb\x1b\r") == "a\n\tb\\x1b\\r"


@pytest.mark.parametrize("name", ["a.toml", "a b", "-o", "$(x)", "it's", "ünï", "e\x1b[31m\nvil\\", "tab\t'"])
def test_suggested_paths_can_be_pasted(name: str) -> None:
    word = quoted(name)
    assert plain(word) == word
    shown = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True).stdout.decode()
    assert shown == ("./-o" if name == "-o" else name)


def test_suggestions_are_quoted(pair: Path, metrale: Run) -> None:
    pair.parent.rename(pair.parent.with_name("a b"))
    golden = pair.parent.with_name("a b") / "small.trace"
    golden.write_text(golden.read_text().replace("readback=Argmax", "readback=HostLogits", 1))
    done = metrale("check", "a b")
    assert done.stderr.splitlines()[:2] == [
        "next: metrale diff 'a b/small.trace' 'a b/small.trace.pending'",
        "      metrale accept 'a b/small.toml'    if the new behaviour is right",
    ]
    assert metrale("explain", golden, f"{golden}.pending").stderr.startswith(f"next: metrale diff '{golden}' '")


def test_an_evil_name_is_one_line(inside, tmp_path: Path) -> None:
    evil = tmp_path / "e\x1b[31m\nvil.toml"
    evil.write_text("x")
    for command in ("run", "lint", "check", "diff", "shrink"):
        arguments = [command, evil, evil] if command == "diff" else [command, evil]
        _, out, err = inside(*arguments)
        assert "\x1b" not in out + err
        assert "e\\x1b[31m" in out + err
        assert "\nvil" not in out + err


def test_lines_of_a_trace_are_shown_escaped(inside, tmp_path: Path) -> None:
    evil = tmp_path / "evil.trace"
    evil.write_text(TRACE.read_text().replace("-- tick 2", "\x1b[31m-- tick 2"))
    for command in (
        ("lint", evil),
        ("diff", TRACE, evil),
        ("diff", "--markdown", TRACE, evil),
        ("explain", TRACE, evil),
    ):
        _, out, err = inside(*command)
        assert "\x1b" not in out + err
        assert "\\x1b[31m-- tick 2" in out


# -- the rest


def test_an_empty_file_is_named_with_a_blank(inside, tmp_path: Path) -> None:
    (tmp_path / "zero.trace").write_bytes(b"")
    assert inside("lint", tmp_path / "zero.trace")[1] == f"{tmp_path / 'zero.trace'}: error: the file is empty\n"


def test_a_pending_trace_that_cannot_be_written(pair: Path, inside) -> None:
    golden = pair.with_suffix(".trace")
    golden.write_text(golden.read_text().replace("readback=Argmax", "readback=HostLogits", 1))
    pending = pair.with_name("small.trace.pending")
    pending.mkdir()
    status, out, err = inside("check", pair)
    assert status == 1
    assert "this run" in out
    assert err.splitlines() == [
        f"{pending}: cannot be written: Is a directory",
        f"next: metrale check {pair}    where the pending trace can be written",
        "1 checked: 1 different (the scheduler does something else)",
    ]


@pytest.mark.parametrize("late", [False, True])
def test_a_run_past_its_bound_says_what_helps(late: bool, inside, tmp_path: Path) -> None:
    scenario = tmp_path / "x.toml"
    scenario.write_text(SCENARIO + ("arrive_at_tick = 50\n" if late else ""))
    status, _, err = inside("run", scenario, "--max-ticks", "2" if late else "1")
    assert status == 2
    remedy = "a larger --max-ticks" + (" or an earlier arrive_at_tick" if late else "")
    assert one_error(err) == f"{scenario}: the run passed {2 if late else 1} ticks; {remedy} helps"


DAMAGED = {
    "cut": (lambda text: text[: len(text) // 2], "the trace is not complete"),
    "two": (lambda text: text + text, "another trace starts at line 57"),
    "CR": (lambda text: text.replace("\n", "\r"), "error: "),
}


@pytest.mark.parametrize("case", list(DAMAGED))
def test_a_report_on_a_damaged_trace_warns(case: str, inside, tmp_path: Path) -> None:
    change, said = DAMAGED[case]
    trace, page = tmp_path / "x.trace", tmp_path / "page.html"
    trace.write_text(change(TRACE.read_text()))
    status, out, err = inside("report", trace, "-o", page)
    assert (status, out) == (1, f"{page}\n")
    first, then, _ = err.splitlines()
    assert first.startswith(f"{trace}:")
    assert said in first
    assert then == f"next: metrale lint {trace}"
    assert page.read_text().startswith("<!")
    trace.write_text(TRACE.read_text().replace("\n", "\r\n"))
    assert inside("report", trace, "-o", page)[0] == 0


@pytest.mark.parametrize("command", ["fuzz", "mutants"])
@pytest.mark.parametrize("value", ["nan", "inf", "1e400", "-1", "0"])
def test_seconds_that_are_no_time(command: str, value: str, inside) -> None:
    status, out, err = inside(command, "--seconds", value)
    assert (status, out) == (2, "")
    assert "Invalid value for '--seconds'" in err


def test_explore_shows_how_far_it_is() -> None:
    control, terminal = pty.openpty()
    command = [sys.executable, "-m", "metrale", "explore", "--world", "plain"]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=terminal, env=environment(TERM="xterm"))
    os.close(terminal)
    shown = b""
    with suppress(OSError):
        while block := os.read(control, 1 << 12):
            shown += block
    os.close(control)
    assert run.wait(timeout=60) == 0
    assert b"exploring plain, world 1 of 1: " in shown
