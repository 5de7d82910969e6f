"""Check the engine and its Numba-CUDA kernels on a GPU: right, and how fast. One command, at most five minutes.

    python tools/gpu_check.py                  # writes gpu_check.json and gpu_check.md here
    python tools/gpu_check.py --out results    # or there
    python tools/gpu_check.py --rehearse       # every section on tiny inputs on the CPU; the numbers mean nothing

It runs from a checkout, nothing has to be installed but torch, numba-cuda, numpy, safetensors and tokenizers. Sections:
the machine; one small kernel; whether torch captures Numba's launches in a graph; every kernel against its reference;
free and forced mode of `metrale conform`; bandwidth of the memory-bound kernels and of decode attention as shares of a
copy measured in the same run; decode steps a second beside plain torch; steps of the engine itself. Each section is a
process (or several) that is killed when its time is over, and the report is rewritten after every result.

Forced mode reads scenarios with pydantic. Where that is not installed the section says so and the rest goes on. To
have it on a machine without a network, fetch wheels for that machine's Python on another one, and name the folder:

    pip download pydantic -d wheels --only-binary=:all: --python-version 3.12 --platform manylinux2014_x86_64
    python tools/gpu_check.py --wheels wheels

Numba needs NVVM to compile. Where neither CUDA_HOME nor CUDA_PATH is set, that of /usr/local/cuda or of the toolkit of
`nvcc` is taken; wheels of nvidia-nvvm in the folder of --wheels come before it.

Without a GPU it says so and exits 0. Exit status 1 if a kernel is wrong, conform fails, a section crashes or hangs, or
there is a GPU and Numba cannot compile; speeds below their aims are reported, not failed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_jobs import Job, Jobs, Running
from gpu_report import Report
from gpu_toolkit import compilers

TOOLS = Path(__file__).resolve().parent
ROOT = TOOLS.parent
LIMIT = 290.0
LONGEST = 86400.0
RESERVE = 4.0
"""Seconds kept for ending processes and for the last report."""
MANY_CORES = 12
"""So many cores run everything that is not measured at once, and prepare the measurements meanwhile."""
CHECKED = ("kernel checks", "conform free", "conform forced", "conform free, as served")
MEASURED = ("bandwidth", "decode steps", "engine")
SECTIONS = ("machine", "smoke", "graph capture", *CHECKED, *MEASURED)
LIMITS = {"probe": 75.0, "checked": 140.0, "bandwidth": 70.0, "decode steps": 50.0, "engine": 60.0}
"""Most seconds of a process once it may go on."""
QUIET = 40.0
"""Most seconds to wait, before anything is measured, for processes that compile or do not end."""


def parts(cores: int, many: bool, rehearse: bool) -> dict[str, int]:
    """How many processes share each of the sections that are not measured."""
    if rehearse:
        return {"kernel checks": 2, "conform free": 1, "conform forced": 1, "conform free, as served": 1}
    if not many or cores < MANY_CORES:
        return dict.fromkeys(CHECKED, 1)
    return {"kernel checks": 7, "conform free": 3, "conform forced": 2, "conform free, as served": 2}


class Check:
    """One run of the whole."""

    def __init__(self, report: Report, jobs: Jobs, rehearse: bool) -> None:
        self.report, self.jobs, self.rehearse = report, jobs, rehearse
        self.graphs = False

    def run(self) -> None:
        """Everything, the most valuable first."""
        self._finish([self._start("probe", SECTIONS[:3])], LIMITS["probe"])
        facts, smoke = (self.report.sections[name]["results"] for name in ("machine", "smoke"))
        if "reason" in facts:
            self.report.not_run(facts["reason"])
            return
        if "problem" in facts:
            for section in SECTIONS[1:]:
                self.report.leave_out(section, "Numba cannot work here, see machine")
            return
        if smoke.get("packed", {"fault": "no answer"})["fault"] and self.left > 0:
            # Launches that we pack ourselves do not work here; Numba's own may.
            self.jobs.environment["METRALE_LAUNCH"] = "numba"
            self._finish([self._start("probe", SECTIONS[:3])], LIMITS["probe"])
        if "gpu" not in facts:
            for section in (*CHECKED, *MEASURED):
                self.report.leave_out(section, "the machine section did not get so far", unreached=True)
            return
        captures = self.report.sections["graph capture"]["results"]
        self.graphs = captures.get("thread_local", {}).get("captured") == "yes"
        many = facts["processes"] == "many"
        at_once = many and (facts["cores"] >= MANY_CORES or self.rehearse)
        shares = parts(facts["cores"], many, self.rehearse)
        checks = {name: [(name, (i, shares[name])) for i in range(shares[name])] for name in CHECKED}
        if at_once:
            started = [self._start(name, (name,), part) for group in checks.values() for name, part in group]
            waiting = {name: self._start(name, (name,)) for name in MEASURED}
            self._finish(started, LIMITS["checked"])
        else:
            waiting = {}
            for name, group in checks.items():
                self._finish_new(name, [part for _, part in group], LIMITS["checked"])
        busy = self.jobs.settle(list(waiting.values()), QUIET)
        for name in MEASURED:
            if busy:
                self.report.note(name, f"not alone at the start of the measurements: {', '.join(busy)}")
            if name in waiting:
                self._finish([waiting[name]], LIMITS[name])
            else:
                self._finish_new(name, [(0, 1)], LIMITS[name])

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self.jobs.left

    def _finish_new(self, name: str, shares: list[tuple[int, int]], limit: float) -> None:
        if self.left <= 0:
            self.report.leave_out(name, "the time was over", unreached=True)
            return
        self._finish([self._start(name, (name,), part) for part in shares], limit)

    def _start(self, name: str, sections: tuple[str, ...], part: tuple[int, int] = (0, 1)) -> Running:
        label = name if part[1] == 1 else f"{name}, part {part[0] + 1} of {part[1]}"
        command = [sys.executable, str(Path(__file__).resolve()), "--task", name, "--part", f"{part[0]}/{part[1]}"]
        command += ["--rehearse"] * self.rehearse + ["--graphs"] * self.graphs
        return self.jobs.start(Job(label, sections, tuple(command)))

    def _finish(self, running: list[Running], limit: float) -> None:
        names = dict.fromkeys(section for one in running for section in one.job.sections)
        if self.left <= 0:
            for name in names:
                self.report.leave_out(name, "the time was over", unreached=True)
            return
        print(f"{self.report.spent:6.1f} s  {', '.join(names)}", flush=True)
        for one in running:
            self.report.open(one.job.sections)
        self.jobs.finish(running, limit)


# -- the processes


def turn() -> Callable[[], None]:
    """A function that waits for a line on standard input. When that is closed, because the check is gone, so is this
    process."""
    told = threading.Event()

    def listen() -> None:
        while os.read(0, 16):
            told.set()
        os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    return lambda: told.wait() and None


def start_again(done: int) -> None:
    """Become a new process of the same number, which goes on behind ``done`` units of work."""
    kept = sys.argv[: sys.argv.index("--done")] if "--done" in sys.argv else sys.argv
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *kept, "--done", str(done)])


def work(name: str, part: tuple[int, int], rehearse: bool, graphs: bool, records: Path, done: int | None) -> None:
    """Do one task and write its results down, line by line."""
    import gpu_sections

    with records.open("a") as file:

        def write(record: dict[str, Any]) -> None:
            file.write(json.dumps(record) + "\n")
            file.flush()

        try:
            waits = turn()

            def prepared() -> None:
                write({"ready": True})
                waits()

            told = prepared if done is None else lambda: None
            task = gpu_sections.Task(part, rehearse, graphs, told, done or 0, start_again)
            for section, label, value, failures in gpu_sections.TASKS[name](task):
                write({"section": section, "name": label, "value": value, "failures": failures})
        except gpu_sections.LeftOut as why:
            write({"section": why.section, "left_out": str(why)})
        write({"end": True})


# -- the command


def environment(rehearse: bool, links: Path, extra: str = "") -> dict[str, str]:
    """What the processes see: this checkout first, then wheels, one thread each unless they say otherwise, and where
    Numba's compiler is (``links`` as in :func:`gpu_toolkit.compilers`)."""
    paths = [str(ROOT), str(TOOLS), extra, os.environ.get("PYTHONPATH", "")]
    found = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    for name in ("NUMBA_ENABLE_CUDASIM", "METRALE_LAUNCH"):
        found.pop(name, None)
    found |= compilers(found, links, Path(extra) if extra else None)
    return found | ({"NUMBA_ENABLE_CUDASIM": "1", "CUDA_VISIBLE_DEVICES": ""} if rehearse else {})


def unpack(wheels: Path, target: Path) -> str:
    """Install a folder's wheels into ``target`` without a network; what went wrong, if anything did."""
    found = sorted(map(str, wheels.glob("*.whl")))
    if not found:
        return f"--wheels {wheels}: no wheel is there"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    done = subprocess.run([*pip, "--target", str(target), *found], capture_output=True, text=True, check=False)
    return f"--wheels {wheels}: {' | '.join(done.stderr.strip().splitlines()[-2:])}" if done.returncode else ""


def seconds(text: str) -> float:
    """A time limit."""
    value = float(text)
    if not 0 < value <= LONGEST:
        raise ValueError
    return value


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of gpu_check.json and gpu_check.md")
    parser.add_argument("--rehearse", action="store_true", help="tiny inputs on the CPU")
    parser.add_argument("--limit", type=seconds, default=LIMIT, help="seconds it may take (default %(default)s)")
    parser.add_argument("--wheels", type=Path, help="folder of wheels that are put on the path first")
    for name in ("--task", "--part", "--records"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--graphs", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--done", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if options.task:
        first, count = map(int, options.part.split("/"))
        try:
            records = Path(options.records)
            work(options.task, (first, count), options.rehearse, options.graphs, records, options.done)
        except Exception:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(f"gpu check: --out {options.out}: {error.strerror}; name a folder", file=sys.stderr)
        return 2
    report = Report(options.out, SECTIONS, options.rehearse)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="gpu_check.", ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        if options.wheels is not None and (wrong := unpack(options.wheels, place / "wheels")):
            report.failures.append(wrong)
        seen = environment(options.rehearse, place / "nvvm", str(place / "wheels") if options.wheels else "")
        deadline = report.began + options.limit - RESERVE
        jobs = Jobs(place, seen, deadline, report.take, report.told)
        try:
            Check(report, jobs, options.rehearse).run()
        finally:
            jobs.end()
            report.write()
    for failure in report.failures:
        print(f"failed: {failure}")
    reason = report.content.get("reason")
    told = f"not run: {reason}" if reason else f"{len(report.failures)} failures, {report.spent:.0f} s"
    print(f"gpu check: {told}; see {options.out / 'gpu_check.md'}")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
