"""``metrale conform``: does the real engine keep what the mock promises?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from metrale.cli.errors import DIFFERENT, BadInput
from metrale.cli.files import print_json, read_regular
from metrale.cli.goldens import SUITE, find_pairs
from metrale.cli.text import plain, quoted, say

if TYPE_CHECKING:
    from metrale.cli.goldens import Pair
    from metrale.device.loading import Backend
    from metrale.sim.scenario import Scenario

MODES = ("forced", "free", "late")
LATE_SEEDS = (1, 2)
TOKENS = 24
BACKENDS = ("torch", "cuda-sim", "cuda")
SHORT = 2300
"""Bytes of the longest golden that the simulator runs unasked."""

EXCEPTIONS: dict[str, str] = {}
"""Scenarios whose forced trace may differ from the golden, each with its reason."""
LARGER_IMAGES = "spill_capacity is in bytes, and images of a real sequence are larger than the mock device's"


@dataclass(slots=True)
class Check:
    """One comparison: ``problem`` is empty when it holds; ``excused`` is the declared reason of a known difference."""

    mode: str
    name: str
    problem: str = ""
    excused: str = ""

    @property
    def failed(self) -> bool:
        """Whether it counts."""
        return bool(self.problem) and not self.excused


@click.command(epilog="Example: metrale conform --mode forced golden/spill_swap_out_in.toml")
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path(path_type=Path))
@click.option("--mode", "modes", multiple=True, type=click.Choice(MODES), help="Only this mode; may be repeated.")
@click.option("--seeds", type=click.IntRange(0), default=0, help="Forced mode: also so many drawn scenarios.")
@click.option("--device", type=click.Choice(BACKENDS), default="torch", show_default=True, help="Whose kernels run.")
@click.option("--model", type=click.Path(path_type=Path), help="Model folder of the free and late modes.")
@click.option("--json", "as_json", is_flag=True, help="Write every check as JSON.")
@click.option("-v", "--verbose", is_flag=True, help="List the checks that hold as well.")
def conform(
    paths: tuple[Path, ...],
    modes: tuple[str, ...],
    seeds: int,
    device: str,
    model: Path | None,
    as_json: bool,
    verbose: bool,
) -> int:
    """Run the real engine behind the scheduler and compare.

    \b
    forced  every scenario (PATH..., default golden/) with its scripted tokens
            substituted at the pick: the trace equals the golden, byte for byte;
            with --seeds also drawn scenarios, against the mock's trace
    free    greedy text of each request is the same alone, in any batch, chunked,
            preempted, spilled, from the prefix cache and on every speculative lane
    late    the free runs with work of the prefill and secondary streams as late
            as the events allow and in random legal order, and one program for
            every wait of the engine, which goes wrong without it

    \b
    --device cuda-sim runs the forced mode alone, in a simulator that takes seconds
    a step: without PATH the shortest scenarios only. Free and late mode compare
    bit for bit, which holds on the CPU.

    Exit status 1 if anything differs, 2 if a file cannot be used.
    """
    try:
        modes = modes or (MODES if device == "torch" else MODES[:1])
        checks = list(_checks(paths, modes, seeds, device, model))
    except ImportError as error:
        raise BadInput(f"conform: {error}; `pip install 'metrale[engine]'` installs what it needs") from error
    failed = [check for check in checks if check.failed]
    if as_json:
        print_json({"ok": not failed, "checks": [asdict(check) for check in checks]})
    else:
        for check in checks:
            if verbose or check.problem:
                verdict = check.problem or "holds"
                excuse = f" (declared: {check.excused})" if check.excused else ""
                click.echo(plain(f"{check.mode:7} {check.name}: {verdict}{excuse}"))
    forced = next((check for check in failed if check.mode == "forced"), None)
    if forced is not None:
        say(f"next: metrale run {quoted(forced.name + '.toml')} --device torch -o engine.trace")
        say(f"      metrale diff {quoted(forced.name + '.trace')} engine.trace")
    elif failed:
        say(f"next: metrale conform --mode {failed[0].mode} --verbose")
    counts = ", ".join(
        f"{mode} {sum(c.mode == mode and not c.failed for c in checks)}/{sum(c.mode == mode for c in checks)}"
        for mode in modes
    )
    say(f"{len(checks)} checks, {len(failed)} failed: {counts}")
    return DIFFERENT if failed else 0


def _checks(
    paths: tuple[Path, ...], modes: tuple[str, ...], seeds: int, device: str, model: Path | None
) -> Iterator[Check]:
    from metrale.device.errors import ModelError
    from metrale.device.loading import backend, limit_threads

    if device != "torch" and modes != ("forced",):
        raise BadInput(f"--device {device}: the forced mode alone; `--mode forced`")
    limit_threads(0)
    try:
        if "forced" in modes:
            on = backend(device)
            for pair in _scenarios(paths, short=device == "cuda-sim"):
                yield forced_check(pair, on=on)
            for seed in range(seeds):
                yield drawn_check(seed, on)
        if "free" in modes or "late" in modes:
            yield from _free_checks(modes, model)
        if "late" in modes:
            yield from _edge_checks()
    except ModelError as error:
        raise BadInput(str(error)) from error


def _scenarios(paths: tuple[Path, ...], short: bool) -> list[Pair]:
    """The pairs to run; of the whole suite only the short ones where steps are slow."""
    if not paths and not SUITE.is_dir():
        raise BadInput(f"{SUITE}: no such folder here; name the scenarios or folders to conform to")
    pairs = find_pairs(list(paths) or [SUITE])
    if paths or not short:
        return pairs
    return [pair for pair in pairs if pair.golden.exists() and pair.golden.stat().st_size <= SHORT]


def forced_check(pair: Pair, stream_mode: str = "immediate", on: Backend | None = None) -> Check:
    """One scenario on the engine, with its scripted tokens, against its golden."""
    from metrale.sim.scenario import ScenarioError, load_scenario

    try:
        scenario = load_scenario(pair.scenario)
        golden = read_regular(pair.golden).decode()
    except (ScenarioError, OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{pair.stem}: {error}") from error
    problem = _forced_problem(scenario, golden, stream_mode, 0, on)
    return Check("forced", str(pair.stem), problem, EXCEPTIONS.get(pair.name, ""))


def drawn_check(seed: int, on: Backend | None = None) -> Check:
    """One drawn scenario on the engine against the mock, in one of the three stream orders."""
    from metrale.sim.fuzz.draw import draw_scenario
    from metrale.sim.runner import run_scenario
    from metrale.sim.scenario import scenario_from

    scenario = scenario_from(draw_scenario(seed), f"seed {seed}")
    order = ("immediate", "late", "random")[seed % 3]
    problem = _forced_problem(scenario, run_scenario(scenario).text, order, seed, on)
    excuse = "" if scenario.device.spill_capacity is None else LARGER_IMAGES
    return Check("forced", f"seed {seed}", problem, excuse)


def _forced_problem(scenario: Scenario, wanted: str, order: str, seed: int, on: Backend | None) -> str:
    from metrale.cli.forced import forced_device
    from metrale.device.engine import Streams
    from metrale.sim.runner import RunError, run_scenario

    hybrid = scenario.scheduler.router != "async"
    device = forced_device(scenario, hybrid=hybrid, streams=Streams(order, seed), on=on)
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


def _free_checks(modes: tuple[str, ...], model: Path | None) -> Iterator[Check]:
    from metrale.cli.free_mode import alone, check_way, models
    from metrale.device.engine import Streams
    from metrale.device.loading import shipped_model

    orders = [("free", "immediate", 0)] if "free" in modes else []
    if "late" in modes:
        orders += [("late", "late", 0), *(("late", "random", seed) for seed in LATE_SEEDS)]
    for weights, ways in models(model or shipped_model()):
        wanted = alone(weights, TOKENS)
        for way in ways:
            for mode, order, seed in orders:
                suffix = "" if order == "immediate" else f", {order}" + (f" {seed}" if seed else "")
                problem = check_way(weights, way, wanted, TOKENS, Streams(order, seed))
                yield Check(mode, f"{weights.name}: {way.name}{suffix}", problem)


def _edge_checks() -> Iterator[Check]:
    """Each wait of the engine is needed: its program is right with it and wrong without it."""
    from metrale.cli.forced import edge_device
    from metrale.device.conformance.ordering import CASES
    from metrale.device.engine import Streams

    for case in CASES:
        wanted = case.outcome(edge_device(case, Streams()))
        for order in ("late", "random"):
            got = case.outcome(edge_device(case, Streams(order, 1)))
            problem = "" if got == wanted else f"{got} instead of {wanted}"
            yield Check("late", f"wait {case.edge}, {order}", problem)
        got = case.outcome(edge_device(case, Streams("late", 0, without=case.edge)))
        yield Check("late", f"without wait {case.edge}", "nothing went wrong" if got == wanted else "")
