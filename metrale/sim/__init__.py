"""The simulator, and the public test kit: mock device, scripted router, scenarios, runner.

``run_scenario`` runs one scenario to its end; ``ScriptedRouter`` answers from a script and fails launches on cue.

Names load their modules when they are first used, so that parts which need no scenario file need no file reader.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .mock import Faults, MockConfig, MockDevice, Script
    from .runner import RunError, RunResult, run_scenario
    from .scenario import Scenario, ScenarioError, load_scenario, parse_scenario, scenario_from
    from .scripted_router import Fault, ScriptedRouter

_HOMES = {
    "Fault": "scripted_router",
    "Faults": "mock",
    "MockConfig": "mock",
    "MockDevice": "mock",
    "RunError": "runner",
    "RunResult": "runner",
    "Scenario": "scenario",
    "ScenarioError": "scenario",
    "Script": "mock",
    "ScriptedRouter": "scripted_router",
    "load_scenario": "scenario",
    "parse_scenario": "scenario",
    "run_scenario": "runner",
    "scenario_from": "scenario",
}
"""Where each name is defined."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


__all__ = [
    "Fault",
    "Faults",
    "MockConfig",
    "MockDevice",
    "RunError",
    "RunResult",
    "Scenario",
    "ScenarioError",
    "Script",
    "ScriptedRouter",
    "load_scenario",
    "parse_scenario",
    "run_scenario",
    "scenario_from",
]
