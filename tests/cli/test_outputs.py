"""No output option of any command costs the user a golden, a scenario or an input."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from metrale.cli.errors import BadInput
from metrale.cli.files import Outputs, write_whole

from .conftest import SCENARIO

GOLDEN = "is the golden of small.toml, which only `metrale accept` and `metrale run` of that scenario write"
INPUT = "is an input of this command as well"
THERE = "is there already, and a scenario is never overwritten"


@pytest.fixture
def suite(pair: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the pair as the working directory, with another scenario, a log, and a folder below."""
    monkeypatch.chdir(pair.parent)
    Path("other.toml").write_text(SCENARIO)
    Path("log").write_bytes(Path("small.trace").read_bytes())
    Path("sub").mkdir()
    Path("sub", "x.toml").write_text(SCENARIO)
    return pair.parent


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


REFUSED = [
    ("report log -o small.trace", GOLDEN),
    ("report log -o page.html --perfetto small.trace", GOLDEN),
    ("report log -o log", INPUT),
    ("report log -o page --perfetto page", "is an output of this command as well"),
    ("diff log small.trace --html small.trace", INPUT),
    ("diff log log --html sub/../small.trace", GOLDEN),
    ("check small.toml --junit small.trace", INPUT),
    ("check sub --junit small.trace", GOLDEN),
    ("check sub --report other.toml", THERE),
    ("shrink other.toml -o small.trace", GOLDEN),
    ("shrink other.toml -o small.toml", THERE),
    ("shrink other.toml -o other.toml", INPUT),
    ("mutants -o small.trace", GOLDEN),
    ("run sub/x.toml -o sub/../small.trace", GOLDEN),
    ("run small.toml -o ./small.toml", INPUT),
    ("run small.toml -o other.toml", THERE),
    ("run small.toml -o small.trace.pending", "is a pending trace"),
]


@pytest.mark.parametrize("ci", ["", "true"])
@pytest.mark.parametrize(("command", "said"), REFUSED)
def test_refused_before_anything_is_done(
    command: str, said: str, ci: str, suite: Path, inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", ci)
    before = contents(suite)
    status, out, err = inside(*command.split())
    assert (status, out) == (2, "")
    assert err.startswith("Error: ")
    assert said in err
    assert err.endswith("; name another file to write\n")
    assert len(err.splitlines()) == 1
    assert contents(suite) == before


def test_a_run_writes_its_own_golden_except_in_ci(suite: Path, inside, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Path("small.trace").read_bytes()
    Path("small.trace").write_text("old")
    monkeypatch.setenv("CI", "1")
    assert inside("run", "sub/../small.toml", "-o", "small.trace")[0] == 2
    assert Path("small.trace").read_text() == "old"
    monkeypatch.delenv("CI")
    assert inside("run", "sub/../small.toml", "-o", "small.trace")[0] == 0
    assert Path("small.trace").read_bytes() == right


def test_a_name_that_the_command_gave_may_be_written_again(suite: Path) -> None:
    assert Outputs().claim(Path("other.toml"), own=True) == Path("other.toml")
    with pytest.raises(BadInput, match="an input"):
        Outputs(Path("other.toml")).claim(Path("other.toml"), own=True)


def test_the_test_beside_a_shrunk_scenario_is_not_overwritten(suite: Path, inside) -> None:
    Path("test_new.py").write_text("mine")
    status, _, err = inside("shrink", "other.toml", "-o", "new.toml")
    assert status == 2
    assert err.startswith("Error: test_new.py: is there already")
    assert Path("test_new.py").read_text() == "mine"


def test_a_link_is_replaced_and_what_it_led_to_stays(suite: Path, inside) -> None:
    Path("link").symlink_to("small.trace")
    before = Path("small.trace").read_bytes()
    assert inside("run", "sub/x.toml", "-o", "link")[0] == 0
    assert not Path("link").is_symlink()
    assert Path("small.trace").read_bytes() == before


def test_a_device_and_a_fifo_are_written_to(suite: Path, inside) -> None:
    assert inside("run", "small.toml", "-o", "/dev/null")[0] == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    os.mkfifo("fifo")
    reader = os.open("fifo", os.O_RDONLY | os.O_NONBLOCK)
    write_whole(Path("fifo"), b"text")
    assert os.read(reader, 10) == b"text"
    assert stat.S_ISFIFO(os.stat("fifo").st_mode)
    os.close(reader)
