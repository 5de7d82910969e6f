"""One scenario, judged: it runs to its end, keeps every invariant, heals, and its relatives agree with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from metrale.sim.invariants import TraceCheck, Violation
from metrale.sim.invariants.own_script import own_answer
from metrale.sim.runner import RunError, RunResult, run_scenario
from metrale.sim.scenario import Scenario
from metrale.trace import read_line
from metrale.trace.records import Done, Err, Error, Out, Record, Response, Tick

MAX_TICKS = 20_000
CACHE_LINES = 200_000


@dataclass(frozen=True, slots=True)
class Failure:
    """What is wrong with one scenario. ``kind`` says what makes two failures the same; ``rule`` names it."""

    rule: str
    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


class LineCache:
    """Lines of different runs are much the same: each is parsed once."""

    def __init__(self) -> None:
        self._known: dict[str, Record] = {}

    def read(self, line: str) -> Record:
        """The record of a line."""
        record = self._known.get(line)
        if record is None:
            if len(self._known) >= CACHE_LINES:
                self._known.clear()
            record = self._known[line] = read_line(line)
        return record

    def read_all(self, lines: list[str]) -> list[Record]:
        """The records of many lines."""
        known = self._known
        return [known.get(line) or self.read(line) for line in lines]


_CACHE = LineCache()


@dataclass(slots=True)
class Judged:
    """A scenario's run, its records and the failures found in them."""

    scenario: Scenario
    result: RunResult | None
    records: list[Record]
    failures: list[Failure]
    check: TraceCheck | None = None


def judge(scenario: Scenario, run: Callable[..., RunResult] = run_scenario) -> Judged:
    """Run a scenario and check its trace; a run that dies is a failure like any other."""
    try:
        result = run(scenario, max_ticks=MAX_TICKS)
    except RunError as error:
        return Judged(scenario, None, [], [Failure("run-error", f"run-error: {_shape(str(error))}", str(error))])
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return Judged(scenario, None, [], [Failure("crash", f"crash: {type(error).__name__}", text)])
    records = _CACHE.read_all(result.lines)
    check = TraceCheck(scenario)
    violations = check.run(enumerate(records, 1))
    failures = [_failure(violation) for violation in violations]
    if not failures:
        failures = heal_failures(scenario, records)
    return Judged(scenario, result, records, failures, check)


def _failure(violation: Violation) -> Failure:
    return Failure(violation.invariant, violation.kind, str(violation))


def _shape(text: str) -> str:
    return "".join("#" if letter.isdigit() else letter for letter in text)[:60]


# -- the second phase: everything heals -------------------------------------------------------------------------------


def heal_failures(scenario: Scenario, records: list[Record]) -> list[Failure]:
    """Requests that arrive after the last fault must end as if there had been none.

    Exempt: a lost device, a closed inbox, requests that are refused or end themselves early, and work that was parked
    and no pool can hold.
    """
    if scenario.scheduler.close_inbox_at_tick is not None or scenario.device.device_lost_at:
        return []
    last_fault = tick = 0
    outs: list[Out] = []
    for record in records:
        if isinstance(record, Tick):
            tick = record.tick
        elif isinstance(record, Out):
            outs.append(record)
        elif getattr(record, "error", None) is not None:
            last_fault = tick
    if not last_fault:
        return []
    failures = []
    ids = [request.id for request in scenario.request]
    for request, out in zip(scenario.request, outs, strict=False):
        if (request.arrive_at_tick or 0) <= last_fault or ids.count(request.id) > 1 or not out.events:
            continue
        if request.expired_deadline or request.deadline_at_tick is not None or request.cancel_at is not None:
            continue
        if request.cancel_at_tick is not None:
            continue
        end = out.events[-1]
        own = own_answer(request, scenario)
        if isinstance(end, Error | Err):
            if not end.message.startswith(("refused: ", "cannot resume: ", "preempted sequence needs ")):
                failures.append(_unhealed(request.id, f"ends with {end.message!r}", last_fault))
        elif own is not None and isinstance(end, Done | Response) and end.reason in ("timeout", "cancelled"):
            failures.append(_unhealed(request.id, f"ends with {end.reason}", last_fault))
    return failures


def _unhealed(id_: int, what: str, tick: int) -> Failure:
    text = f"s{id_} arrives after the last fault (tick {tick}) and {what}"
    return Failure("heal", "heal", text)
