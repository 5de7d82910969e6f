"""Forced mode: a scenario on the engine, with its scripted tokens, against its golden or against the mock device."""

from __future__ import annotations

from pathlib import Path

from metrale.device.engine import Streams
from metrale.device.loading import Backend
from metrale.sim.fuzz.draw import draw_scenario
from metrale.sim.runner import RunError, run_scenario
from metrale.sim.scenario import Scenario, ScenarioError, load_scenario, scenario_from

from .checks import Check
from .devices import SHORT
from .errors import ConformError
from .faults import FAULTS, told
from .forced_device import forced_device

EXCEPTIONS: dict[str, str] = {}
"""Scenarios whose forced trace may differ from the golden, each with its reason."""
LARGER_IMAGES = "spill_capacity is in bytes, and images of a real sequence are larger than the mock device's"


def suite(folder: Path, short: bool = False) -> list[Path]:
    """The scenarios of a folder that have a golden, the shortest golden first; ``short`` keeps those of up to
    :data:`SHORT` bytes."""
    sizes = {path: _golden(path).stat().st_size for path in folder.rglob("*.toml") if _golden(path).is_file()}
    return sorted((path for path in sizes if not short or sizes[path] <= SHORT), key=lambda path: (sizes[path], path))


def _golden(scenario: Path) -> Path:
    return scenario.with_suffix(".trace")


def forced_check(scenario: Path, stream_mode: str = "immediate", on: Backend | None = None) -> Check:
    """The scenario NAME.toml against the golden NAME.trace beside it. Raises ConformError if one cannot be used."""
    golden = _golden(scenario)
    try:
        if not golden.is_file():
            raise ConformError(f"{golden}: no such file; `metrale accept {scenario}` records it")
        loaded, wanted = load_scenario(scenario), golden.read_bytes().decode()
    except (ScenarioError, OSError, UnicodeDecodeError) as error:
        raise ConformError(f"{scenario.with_suffix('')}: {error}") from error
    name, excuse = str(scenario.with_suffix("")), EXCEPTIONS.get(scenario.stem, "")
    return _check(name, loaded, wanted, Streams(stream_mode), on, excuse)


def drawn_check(seed: int, on: Backend | None = None) -> Check:
    """One drawn scenario on the engine against the mock, in one of the three stream orders."""
    scenario = scenario_from(draw_scenario(seed), f"seed {seed}")
    order = ("immediate", "late", "random")[seed % 3]
    excuse = "" if scenario.device.spill_capacity is None else LARGER_IMAGES
    return _check(f"seed {seed}", scenario, run_scenario(scenario).text, Streams(order, seed), on, excuse)


def _check(name: str, scenario: Scenario, wanted: str, streams: Streams, on: Backend | None, excuse: str) -> Check:
    """``excuse`` is for a trace that differs, never for a kernel's fault."""
    try:
        return Check("forced", name, _problem(scenario, wanted, streams, on), excuse)
    except FAULTS as error:
        return Check("forced", name, told(error))


def _problem(scenario: Scenario, wanted: str, streams: Streams, on: Backend | None) -> str:
    device = forced_device(scenario, hybrid=scenario.scheduler.router != "async", streams=streams, on=on)
    try:
        return first_difference(wanted, run_scenario(scenario, device=device).text)
    except RunError as error:
        return f"the run did not end: {error}"


def first_difference(golden: str, got: str) -> str:
    """The first line that differs, in words; nothing if none does."""
    if golden == got:
        return ""
    left, right = golden.split("\n"), got.split("\n")
    for number, (wanted, found) in enumerate(zip(left, right, strict=False), 1):
        if wanted != found:
            return f"line {number}: {found!r} instead of {wanted!r}"
    return f"{len(right) - 1} lines instead of {len(left) - 1}"
