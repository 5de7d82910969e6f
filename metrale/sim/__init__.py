"""The simulator, and the public test kit: mock device, scripted router, scenarios, runner.

``run_scenario`` runs one scenario to its end; ``ScriptedRouter`` answers from a script and fails launches on cue.
"""

from .mock import Faults, MockConfig, MockDevice, Script
from .runner import RunError, RunResult, run_scenario
from .scenario import Scenario, ScenarioError, load_scenario, parse_scenario, scenario_from
from .scripted_router import Fault, ScriptedRouter

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
