"""Sections of the GPU check as processes of their own: run together or in turn, and killed when their time is over.

A process writes its results to a file, one JSON object a line, as soon as each is there. So a process that crashes or
hangs loses nothing that it had, and does not touch the others. Nothing here imports torch: this process never holds a
GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

POLL = 0.05
"""Seconds between looks at the processes."""
LAST_LINES = 3
"""Lines of a crashed process's errors that are reported."""

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Job:
    """One process: a name for people, the sections that it fills, and its command."""

    name: str
    sections: tuple[str, ...]
    command: tuple[str, ...]


@dataclass(slots=True)
class Running:
    """A started job. ``read`` bytes of its records have been looked at; ``ready`` once it said that it was prepared and
    waits, ``ended`` once it said that it was through."""

    job: Job
    process: subprocess.Popen[bytes]
    records: Path
    log: Path
    read: int = 0
    ready: bool = False
    ended: bool = False
    found: list[Record] = field(default_factory=list)

    def look(self) -> list[Record]:
        """Whole lines that came since the last look."""
        if not self.records.exists():
            return []
        with self.records.open("rb") as file:
            file.seek(self.read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self.read += len(whole)
        found = [json.loads(line) for line in whole.splitlines()]
        self.ready = self.ready or any("ready" in record for record in found)
        self.ended = self.ended or any("end" in record for record in found)
        return [record for record in found if "section" in record]

    def last_words(self) -> str:
        """The end of what it wrote to its log, in one line."""
        lines = self.log.read_text(errors="replace").split("\n") if self.log.exists() else []
        return " | ".join([line.strip() for line in lines if line.strip()][-LAST_LINES:])

    def kill(self) -> None:
        """End it and whatever it started. One that does not go, because its GPU hangs, is left behind."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2)


class Jobs:
    """The processes of one check. ``take`` gets every record, ``told`` a section, its state and why."""

    def __init__(
        self,
        folder: Path,
        environment: dict[str, str],
        deadline: float,
        take: Callable[[Record], None],
        told: Callable[[str, str, str], None],
    ) -> None:
        self.folder, self.environment, self.deadline = folder, environment, deadline
        self.take, self.told = take, told
        self.started: list[Running] = []

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    def start(self, job: Job) -> Running:
        """Start a process. It may prepare itself, but measures only after :meth:`finish` has told it to go on."""
        number = len(self.started)
        records, log = self.folder / f"{number}.jsonl", self.folder / f"{number}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*job.command, "--records", str(records)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                env=self.environment,
                start_new_session=True,
            )
        running = Running(job, process, records, log)
        self.started.append(running)
        return running

    def finish(self, jobs: Iterable[Running], limit: float) -> None:
        """Let jobs go on together and wait for them, ``limit`` seconds at most and never past the deadline."""
        begun = time.monotonic()
        until = min(begun + limit, self.deadline)
        left = list(jobs)
        for running in left:
            with contextlib.suppress(OSError):
                assert running.process.stdin is not None
                running.process.stdin.write(b"go\n")
                running.process.stdin.flush()
        while left and time.monotonic() < until:
            left = [running for running in left if not self._over(running)]
            if left:
                time.sleep(POLL)
        for running in left:
            running.kill()
            self._collect(running)
            why = f"{running.job.name}: killed after {time.monotonic() - begun:.0f} s"
            for section in running.job.sections:
                self.told(section, "killed", why)

    def settle(self, waiting: list[Running], limit: float) -> list[str]:
        """Wait until nobody is busy, ``limit`` seconds at most and never past the deadline: those that wait for their
        turn are prepared, all others are gone. Names of those that are still busy."""
        until = min(time.monotonic() + limit, self.deadline)
        while busy := [running.job.name for running in self.started if self._busy(running, waiting)]:
            if time.monotonic() >= until:
                break
            time.sleep(POLL)
        return busy

    def _busy(self, running: Running, waiting: list[Running]) -> bool:
        if running.process.poll() is not None:
            return False
        self._collect(running)
        return not (running.ready and running in waiting)

    def _over(self, running: Running) -> bool:
        status = running.process.poll()
        self._collect(running)
        if status is None and not running.ended:
            return False
        if running.ended:
            running.kill()
        for section in running.job.sections:
            if running.ended:
                self.told(section, "done", "")
            else:
                self.told(section, "crashed", f"{running.job.name}: exit status {status}: {running.last_words()}")
        return True

    def _collect(self, running: Running) -> None:
        for record in running.look():
            self.take(record)

    def end(self) -> None:
        """Kill whatever still runs."""
        for running in self.started:
            if running.process.poll() is None:
                running.kill()
