"""The GPU check's report: one JSON and one Markdown file, written anew after every result."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]
STATES = ("waiting", "running", "done", "killed", "crashed", "not run")
"""States of a section; of several processes that share one, the worst counts. A section that was not run is neither
good nor bad."""


class Report:
    """Results by section, and what went wrong."""

    def __init__(self, folder: Path, sections: tuple[str, ...], rehearsal: bool) -> None:
        self.folder, self.began = folder, time.monotonic()
        self.failures: list[str] = []
        self.content: dict[str, Any] = {"status": "run", "rehearsal": rehearsal}
        self.sections: dict[str, Row] = {name: {"state": "waiting", "results": {}} for name in sections}
        self._open = dict.fromkeys(sections, 0)
        self._worst = dict.fromkeys(sections, "done")

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    def open(self, sections: tuple[str, ...]) -> None:
        """A process that fills these sections has been told to go on."""
        for name in sections:
            self._open[name] += 1
            self.sections[name].setdefault("from", round(self.spent, 1))
            self.sections[name]["state"] = "running"
        self.write()

    def take(self, record: Row) -> None:
        """One result: section, name, value, failures; or why a process leaves its section out."""
        section = record["section"]
        if "left_out" in record:
            self.leave_out(section, record["left_out"])
            return
        self.sections[section]["results"][record["name"]] = record["value"]
        self.failures += [f"{section}: {failure}" for failure in record["failures"]]
        self.write()

    def told(self, section: str, state: str, why: str) -> None:
        """How one process of a section ended."""
        entry = self.sections[section]
        self._open[section] -= 1
        if why:
            entry.setdefault("notes", []).append(why)
            self.failures.append(f"{section}: {why}")
        worst = self._worst[section] = max(self._worst[section], state, key=STATES.index)
        entry["state"] = "running" if self._open[section] and worst == "done" else worst
        entry["until"] = round(self.spent, 1)
        self.write()

    def note(self, section: str, text: str) -> None:
        """Something to know about a section's results."""
        self.sections[section].setdefault("notes", []).append(text)
        self.write()

    def leave_out(self, section: str, why: str, unreached: bool = False) -> None:
        """A section, or what is left of it, is not run; one that was not reached counts as failed."""
        entry = self.sections[section]
        if unreached:
            self.failures.append(f"{section}: not run: {why}")
        entry.setdefault("notes", []).append(why)
        if entry["state"] in ("waiting", "running"):
            self._worst[section] = entry["state"] = "not run"
        self.write()

    def not_run(self, reason: str) -> None:
        """Nothing to run on."""
        self.content = {"status": "not run", "reason": reason}
        self.sections = {}
        self.write()

    def write(self) -> None:
        """Both files, each whole or not at all."""
        content = self.content | ({"sections": self.sections} if self.sections else {}) | {"failures": self.failures}
        if self.sections:
            content["seconds"] = round(self.spent, 1)
        _replace(self.folder / "gpu_check.json", json.dumps(content, indent=2) + "\n")
        _replace(self.folder / "gpu_check.md", markdown(content))


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text)
    os.replace(beside, path)


def markdown(content: Row) -> str:
    """The report for people."""
    lines = ["# GPU check", ""]
    if content["status"] == "not run":
        return "\n".join([*lines, f"Not run: {content['reason']}", ""])
    if content["rehearsal"]:
        lines += ["A rehearsal on the CPU: the numbers mean nothing.", ""]
    sections = content["sections"]
    lines += ["| section | state | from s | to s | notes |", "| --- | --- | ---: | ---: | --- |"]
    lines += [_section_line(name, entry) for name, entry in sections.items()]
    left_out = {name: entry for name, entry in sections.items() if entry["state"] == "not run"}
    lines += ["", *(f"* {name}: not run: {'; '.join(entry['notes'])}" for name, entry in left_out.items())]
    lines += ["", f"{len(content['failures'])} failures", "", *(f"* {text}" for text in content["failures"])]
    for name, entry in sections.items():
        if entry["results"]:
            lines += ["", f"## {name}", "", *WRITERS.get(name, _pairs)(entry["results"])]
    return "\n".join([*lines, ""])


def _section_line(name: str, entry: Row) -> str:
    notes = "; ".join(entry.get("notes", [])).replace("|", "\\|").replace("\n", " ")
    return f"| {name} | {entry['state']} | {entry.get('from', '')} | {entry.get('until', '')} | {notes} |"


def _pairs(results: Row) -> Iterator[str]:
    yield from (f"* {name}: {_value(value)}" for name, value in results.items())


def _value(value: Any) -> str:
    return ", ".join(f"{name} {part}" for name, part in value.items()) if isinstance(value, dict) else str(value)


def _checks(results: Row) -> Iterator[str]:
    pairs = sum(result["pairs"] for result in results.values())
    wrong = {name: result["faults"] for name, result in results.items() if result["faults"]}
    yield f"{len(results)} checks, {pairs} comparisons, {len(wrong)} checks with faults."
    picks = [name for name in results if name.startswith(("argmax", "masked"))]
    if picks:
        held = "no" if any(name in wrong for name in picks) else "yes"
        yield f"Argmax: the lowest index on ties, the same bits in three runs: {held}."
    yield from (f"* {name}: {'; '.join(faults)}" for name, faults in wrong.items())


def _conform(results: Row) -> Iterator[str]:
    checks = {name: result for name, result in results.items() if isinstance(result, dict)}
    failed = [name for name, result in checks.items() if result["problem"] and not result["excused"]]
    excused = {name: result["excused"] for name, result in checks.items() if result["excused"]}
    yield f"{len(checks)} checks, {len(failed)} failed, {len(excused)} excused."
    yield from (f"* {name}: {checks[name]['problem']}" for name in failed)
    yield from (f"* {name}: excused: {reason}" for name, reason in excused.items())
    yield from (f"* {name}: {value}" for name, value in results.items() if name not in checks)


def _table(titles: tuple[str, ...], rows: Iterator[list[str]] | list[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield f"| --- |{' ---: |' * (len(titles) - 1)}"
    yield from (f"| {' | '.join(cells)} |" for cells in rows)


def _bandwidth(results: Row) -> Iterator[str]:
    copies = {name: value for name, value in results.items() if isinstance(value, float)}
    yield from (f"* {name}: {value:.0f} GB/s" for name, value in copies.items())
    if "timed by" in results:
        yield f"* timed by {results['timed by']}"
    yield ""
    titles = ("kernel", "MB", "µs", "GB/s", "share of copy", "aim", "met")
    yield from _table(titles, [_rate(name, row) for name, row in results.items() if isinstance(row, dict)])


def _rate(name: str, row: Row) -> list[str]:
    if "error" in row:
        return [name, "", "", "", "", "", row["error"].replace("|", "\\|")]
    aim, share = row["aim"], row["share_of_copy"]
    met = "" if not aim else "met" if share >= aim else "not met"
    shown = [f"{row['bytes'] / 1e6:.1f}", f"{row['seconds'] * 1e6:.1f}", f"{row['gigabytes_per_second']:.0f}"]
    return [name, *shown, f"{share:.0%}", f"{aim:.0%}" if aim else "", met]


def _steps(results: Row) -> Iterator[str]:
    titles = ("batch, context", "kernels", "kernels, graph", "torch", "torch, graph", "same picks")
    yield "Steps a second."
    yield ""
    names = [f"{path}{kind}_steps_per_second" for path in ("kernels", "torch") for kind in ("", "_graph")]
    rows = []
    for name, row in results.items():
        cells = [f"{row[key]:.0f}" if row.get(key) else "not captured" for key in names]
        rows.append([name, *cells, f"{row['same_picks']:.0%}"] if "error" not in row else [name, row["error"]])
    yield from _table(titles, rows)


def _engine(results: Row) -> Iterator[str]:
    titles = ("engine", "steps/s", "tokens/s", "recordings", "reason")
    rows = []
    for name, row in results.items():
        if "error" in row:
            rows.append([name, row["error"]])
            continue
        speed = [f"{row['steps_per_second']:.1f}", f"{row['tokens_per_second']:.0f}"]
        rows.append([name, *speed, str(row["recordings"]), row["reason"]])
    yield from _table(titles, rows)


WRITERS: dict[str, Callable[[Row], Iterator[str]]] = {
    "kernel checks": _checks,
    "conform free": _conform,
    "conform free, as served": _conform,
    "conform forced": _conform,
    "bandwidth": _bandwidth,
    "decode steps": _steps,
    "engine": _engine,
}
