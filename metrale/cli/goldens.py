"""Golden pairs on disk: NAME.toml with NAME.trace beside it, and NAME.trace.pending while they differ.

Equality is equality of bytes. A golden changes only through :func:`accept_pending` and :func:`record`.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from io import BytesIO
from pathlib import Path
from typing import Any

from metrale.cli.errors import BadInput
from metrale.cli.files import broken_link, read_regular, unreadable, write_whole
from metrale.cli.text import plain, quoted
from metrale.sim.runner import RunError, RunResult, run_scenario
from metrale.sim.scenario import ScenarioError, load_scenario
from metrale.trace import TraceDiff, diff_traces

SUITE = Path("golden")
SCENARIO, TRACE, PENDING = ".toml", ".trace", ".trace.pending"


class Verdict(StrEnum):
    """What a check found for one pair."""

    PASSED = "passed"
    DIFFERENT = "different"
    DAMAGED = "damaged"
    MISSING = "missing"
    ORPHAN = "orphan"
    INVALID = "invalid"
    STUCK = "stuck"


MEANING = {
    Verdict.PASSED: "same bytes",
    Verdict.DIFFERENT: "the scheduler does something else",
    Verdict.DAMAGED: "same lines, other bytes",
    Verdict.MISSING: "scenario without a golden",
    Verdict.ORPHAN: "golden without a scenario",
    Verdict.INVALID: "a file that cannot be used",
    Verdict.STUCK: "the run does not end",
}


@dataclass(frozen=True, slots=True)
class Pair:
    """One scenario and its golden; ``stem`` is their common path without a suffix."""

    stem: Path

    @property
    def name(self) -> str:
        """The scenario's name: the last part of the path."""
        return self.stem.name

    @property
    def scenario(self) -> Path:
        """NAME.toml."""
        return self._with(SCENARIO)

    @property
    def golden(self) -> Path:
        """NAME.trace."""
        return self._with(TRACE)

    @property
    def pending(self) -> Path:
        """NAME.trace.pending: what the last check got instead of the golden."""
        return self._with(PENDING)

    def _with(self, suffix: str) -> Path:
        return self.stem.with_name(self.stem.name + suffix)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict on one pair; ``message`` is one line, empty if it passed."""

    pair: Pair
    verdict: Verdict
    message: str = ""
    diff: TraceDiff | None = None
    run: RunResult | None = None
    pending: bool = False
    unwritten: str = ""
    """Why the pending trace could not be left."""

    @property
    def ticks(self) -> int:
        """Ticks of the run; 0 without one."""
        return 0 if self.run is None else self.run.ticks

    @property
    def lines(self) -> int:
        """Lines of the run's trace; 0 without one."""
        return 0 if self.run is None else len(self.run.lines)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.pair.name,
            "scenario": str(self.pair.scenario),
            "golden": str(self.pair.golden),
            "verdict": self.verdict.value,
            "message": self.message,
            "pending": str(self.pair.pending) if self.pending else None,
            "ticks": self.ticks,
            "lines": self.lines,
            "unwritten": self.unwritten or None,
            "diff": None if self.diff is None else asdict(self.diff),
        }


# -- finding pairs ----------------------------------------------------------------------------------------------------


def find_pairs(paths: Sequence[Path]) -> list[Pair]:
    """The pairs that ``paths`` name: files of a pair, names of the suite, folders with all below. Raises BadInput."""
    found: dict[Path, Pair] = {}
    for path in paths:
        pairs = _below(path) if path.is_dir() else [pair_of(path)]
        if not pairs:
            raise BadInput(f"{path}: no scenario in this folder; expected NAME.toml with NAME.trace beside it")
        for pair in pairs:
            found.setdefault(pair.stem, pair)
    return list(found.values())


def pair_of(path: Path) -> Pair:
    """The pair that ``path`` names: one of its files, the path without suffix, or the bare name of one in the suite.

    Raises BadInput if there is none.
    """
    stem = _stem(path)
    if path.exists():
        if stem is None:
            raise BadInput(f"{path}: not a file of a golden pair; expected NAME{SCENARIO}, NAME{TRACE} or a folder")
        return Pair(stem)
    for candidate in (Pair(stem or path), Pair(SUITE / (stem or path))):
        if candidate.scenario.exists() or candidate.golden.exists():
            return candidate
    if broken := broken_link(path):
        raise BadInput(f"{path}: {broken}")
    raise BadInput(f"{path}: no such file or folder{_meant(path)}")


def _stem(path: Path) -> Path | None:
    for suffix in (PENDING, TRACE, SCENARIO):
        if path.name.endswith(suffix) and path.name != suffix:
            return path.with_name(path.name.removesuffix(suffix))
    return None


def _meant(path: Path) -> str:
    """A file with nearly this name, for the error."""
    for folder in (path.parent, SUITE):
        names = [entry.name for entry in folder.glob("*")] if folder.is_dir() else []
        close = difflib.get_close_matches(path.name, names, n=1)
        if close:
            return f"; did you mean {folder / close[0]}?"
    return ""


def _below(folder: Path) -> list[Pair]:
    """Every pair in ``folder`` and below, by path; hidden folders are not entered, FIFOs and devices left out."""
    stems: set[Path] = set()
    for directory, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            path = Path(directory, name)
            stem = _stem(path) if name.endswith((SCENARIO, TRACE)) else None
            if stem is not None and (path.is_file() or broken_link(path)):
                stems.add(stem)
    return [Pair(stem) for stem in sorted(stems)]


def find_pending(paths: Iterable[Path]) -> list[Pair]:
    """The pairs below the folders ``paths`` that have a pending trace."""
    return [pair for pair in find_pairs(list(paths)) if pair.pending.exists()]


# -- checking ---------------------------------------------------------------------------------------------------------


def check_pairs(pairs: Iterable[Pair], *, leave_pending: bool) -> Iterator[Outcome]:
    """Check pairs one by one."""
    for pair in pairs:
        yield check_pair(pair, leave_pending=leave_pending)


def check_pair(pair: Pair, *, leave_pending: bool) -> Outcome:
    """Run the scenario and compare with the golden, bytes first.

    With ``leave_pending`` a different trace is left in NAME.trace.pending, and a passed check removes an old one;
    otherwise nothing is written at all.
    """
    if not os.path.lexists(pair.scenario):
        return Outcome(pair, Verdict.ORPHAN, f"{pair.golden}: golden without a scenario; {pair.scenario} is missing")
    try:
        run = run_pair(pair)
    except ScenarioError as error:
        return Outcome(pair, Verdict.INVALID, str(error))
    except RunError as error:
        return Outcome(pair, Verdict.STUCK, f"{pair.scenario}: {error}")
    try:
        golden = read_regular(pair.golden)
    except OSError as error:
        return _no_golden(pair, run, error)
    if golden == run.text.encode():
        if leave_pending:
            with suppress(OSError):
                pair.pending.unlink()
        return Outcome(pair, Verdict.PASSED, run=run)
    return _different(pair, golden, run, leave_pending)


def _no_golden(pair: Pair, run: RunResult, error: OSError) -> Outcome:
    if not isinstance(error, FileNotFoundError) or broken_link(pair.golden):
        return Outcome(pair, Verdict.INVALID, unreadable(pair.golden, "a trace", error), run=run)
    text = f"{pair.golden}: the golden is missing; `metrale accept {quoted(pair.scenario)}` records it"
    return Outcome(pair, Verdict.MISSING, text, run=run)


def run_pair(pair: Pair) -> RunResult:
    """A fresh run of the scenario. Raises ScenarioError and RunError."""
    return run_scenario(load_scenario(pair.scenario))


def _different(pair: Pair, golden: bytes, run: RunResult, pending: bool) -> Outcome:
    fresh = run.text.encode()
    unwritten = _leave(pair.pending, fresh) if pending else ""
    pending = pending and not unwritten
    names = plain(str(pair.golden)), plain(str(pair.pending)) if pending else "this run"
    diff = diff_traces(named(golden, names[0]), named(fresh, names[1]))
    verdict, text = Verdict.DIFFERENT, diff.summary
    if diff.kind == "bytes":
        verdict, text = Verdict.DAMAGED, f"{pair.golden}: same lines, other bytes: {'; '.join(diff.marks)}"
    return Outcome(pair, verdict, text, diff, run, pending, unwritten)


def _leave(path: Path, data: bytes) -> str:
    """Write the pending trace, or say why not; a folder that nobody may write to is no reason to stop a check."""
    try:
        write_whole(path, data)
    except BadInput as problem:
        return problem.message
    return ""


def named(data: bytes, name: str) -> BytesIO:
    """A stream over ``data`` that messages call ``name``."""
    stream = BytesIO(data)
    stream.name = name
    return stream


# -- accepting --------------------------------------------------------------------------------------------------------


def accept_pending(pair: Pair) -> None:
    """The pending trace becomes the golden. Raises BadInput."""
    if pair.pending.is_symlink() or not pair.pending.is_file():
        raise BadInput(f"{pair.pending}: is no regular file; `metrale check {quoted(pair.scenario)}` leaves one")
    try:
        os.replace(pair.pending, pair.golden)
    except OSError as error:
        raise BadInput(f"{pair.golden}: cannot be written: {error.strerror or error}") from error


def record(pair: Pair) -> None:
    """Run a scenario that has no golden yet and keep its trace. Raises BadInput."""
    try:
        run = run_pair(pair)
    except (ScenarioError, RunError) as error:
        text = str(error)
        raise BadInput(text if text.startswith(str(pair.scenario)) else f"{pair.scenario}: {text}") from error
    write_whole(pair.golden, run.text.encode())
