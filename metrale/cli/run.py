"""``metrale run``: one scenario, its trace on standard output."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from metrale.cli.errors import DIFFERENT, BadInput
from metrale.cli.files import Outputs, write_whole
from metrale.cli.text import quoted, say
from metrale.conform.devices import DEVICES
from metrale.conform.errors import ConformError
from metrale.conform.faults import FAULTS, told
from metrale.core.io import Device
from metrale.sim.harness import HarnessError
from metrale.sim.runner import MAX_TICKS, RunError, RunResult, run_scenario
from metrale.sim.scenario import Scenario, ScenarioError, load_scenario


@click.command(epilog="Example: metrale run golden/plain_decode.toml | less")
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write the trace to this file, whole or not at all."
)
@click.option("--device", type=click.Choice(["mock", *DEVICES]), default="mock", help="What stands behind the core.")
@click.option("--router", type=click.Choice(["sync", "async"]), help="Overrides the router that the scenario names.")
@click.option("--max-ticks", type=click.IntRange(min=1), default=MAX_TICKS, show_default=True, help="End a longer run.")
def run(scenario: Path, output: Path | None, device: str, router: str | None, max_ticks: int) -> int:
    """Run SCENARIO and write its trace: every call of the scheduler, then what each client got.

    The trace is the same bytes in every process and on every machine. The summary goes to standard error.
    """
    if output is not None:
        Outputs(scenario).claim(output, golden_of=scenario)
    try:
        loaded = load_scenario(scenario)
        result = run_scenario(loaded, router=router, max_ticks=max_ticks, device=open_device(device, loaded))
    except ScenarioError as error:
        raise BadInput(str(error)) from error
    except RunError as error:
        return _not_ended(scenario, loaded, error, max_ticks)
    except FAULTS as error:
        say(f"{scenario}: {told(error)}")
        return DIFFERENT
    _write(result, output)
    where = "" if output is None else f", written to {output}"
    say(f"{result.name}: {len(result.lines)} lines, {result.ticks} ticks, {len(loaded.request)} requests{where}")
    return 0


def open_device(name: str, scenario: Scenario) -> Device | None:
    """The device called ``name``; None is the mock, which the runner makes itself. Raises BadInput."""
    if name == "mock":
        return None
    try:
        from metrale.conform.forced_device import run_device
    except ImportError as error:
        text = f"--device {name}: not available ({error}); `pip install 'metrale[engine]'` installs what it needs"
        raise BadInput(text) from error
    try:
        return run_device(scenario, name)
    except ConformError as error:
        raise BadInput(str(error)) from error


def _write(result: RunResult, output: Path | None) -> None:
    data = result.text.encode()
    if output is not None:
        write_whole(output, data)
        return
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _not_ended(path: Path, scenario: Scenario, error: RunError, max_ticks: int) -> int:
    """A scheduler that hangs is a violation; a scenario that asks for too many ticks is bad input."""
    if not isinstance(error.__cause__, HarnessError):
        late = any(request.arrive_at_tick is not None for request in scenario.request)
        remedy = "a larger --max-ticks" + (" or an earlier arrive_at_tick" if late else "")
        raise BadInput(f"{path}: the run passed {max_ticks} ticks; {remedy} helps") from error
    say(f"{path}: {error}")
    say(f"next: metrale run --max-ticks N {quoted(path)}, with N the last tick to look at")
    return DIFFERENT
