"""``metrale conform``: does the real engine keep what the mock promises?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from metrale.cli.errors import DIFFERENT, BadInput
from metrale.cli.files import print_json
from metrale.cli.goldens import SUITE, find_pairs
from metrale.cli.text import plain, quoted, say
from metrale.conform.devices import DEVICES, MODES
from metrale.conform.errors import ConformError

if TYPE_CHECKING:
    from metrale.conform.checks import Check


@click.command(epilog="Example: metrale conform --mode forced golden/spill_swap_out_in.toml")
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path(path_type=Path))
@click.option("--mode", "modes", multiple=True, type=click.Choice(MODES), help="Only this mode; may be repeated.")
@click.option("--seeds", type=click.IntRange(0), default=0, help="Forced mode: also so many drawn scenarios.")
@click.option(
    "--device", type=click.Choice(list(DEVICES)), default="torch", show_default=True, help="Whose kernels run."
)
@click.option(
    "--races/--no-races", default=True, show_default=True, help="cuda-ptx: look for races of the kernels as well."
)
@click.option("--model", type=click.Path(path_type=Path), help="Model folder of the free and late modes.")
@click.option("--json", "as_json", is_flag=True, help="Write every check as JSON.")
@click.option("-v", "--verbose", is_flag=True, help="List the checks that hold as well.")
def conform(
    paths: tuple[Path, ...],
    modes: tuple[str, ...],
    seeds: int,
    device: str,
    races: bool,
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
    --device cuda offers forced and free mode. There two tokens whose logits tie to
    within rounding may change places: such a text is listed with its margin and
    does not count as failed.

    \b
    --device cuda-sim offers forced mode, in which a step takes seconds; without
    PATH it runs the shortest scenarios only. --device cuda-ptx as well, in half a
    minute; `golden` as PATH takes 3 minutes, free mode 8 where `--mode free` asks
    for it. A kernel that does what none may do there is a failed check.

    Exit status 1 if anything differs, 2 if a file cannot be used.
    """
    try:
        modes = modes or DEVICES[device].unasked
        _fit(paths, modes, seeds, model)
        checks = list(_checks(paths, modes, seeds, device, races, model))
    except ConformError as error:
        raise BadInput(str(error)) from error
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
        say(f"next: metrale run {quoted(forced.name + '.toml')} --device {device} -o engine.trace")
        say(f"      metrale diff {quoted(forced.name + '.trace')} engine.trace")
    elif failed:
        given = f" --model {quoted(model)}" if model is not None else ""
        say(f"next: metrale conform --mode {failed[0].mode}{given} --verbose")
    counts = ", ".join(
        f"{mode} {sum(c.mode == mode and not c.failed for c in checks)}/{sum(c.mode == mode for c in checks)}"
        for mode in modes
    )
    say(f"{len(checks)} checks, {len(failed)} failed: {counts}")
    return DIFFERENT if failed else 0


def _fit(paths: tuple[Path, ...], modes: tuple[str, ...], seeds: int, model: Path | None) -> None:
    """Raises BadInput for what no chosen mode looks at."""
    if "forced" not in modes and (paths or seeds):
        what = quoted(paths[0]) if paths else f"--seeds {seeds}"
        raise BadInput(f"{what}: only forced mode runs scenarios; add `--mode forced`")
    if model is not None and not {"free", "late"} & set(modes):
        raise BadInput(f"--model {quoted(model)}: forced mode has a model of its own; add `--mode free`")


def _checks(
    paths: tuple[Path, ...], modes: tuple[str, ...], seeds: int, device: str, races: bool, model: Path | None
) -> Iterator[Check]:
    from metrale.conform.checks import edge_checks, free_checks
    from metrale.device.errors import ModelError
    from metrale.device.loading import backend, limit_threads

    facility = DEVICES[device]
    for mode in modes:
        if mode not in facility.modes:
            offered = " and ".join(facility.modes)
            raise BadInput(f"--device {device}: no {mode} mode there, {facility.why}; it offers {offered}")
    if not races and not facility.races:
        raise BadInput(f"--no-races: --device {device} looks for no races; cuda-ptx does")
    limit_threads(0)
    try:
        on = backend(device)
        if not races:
            from metrale.device.ptx.runner import Machine, enable

            enable(Machine(races=False))
        if "forced" in modes:
            from metrale.conform.forced import drawn_check, forced_check

            for scenario in _scenarios(paths, facility.short):
                yield forced_check(scenario, on=on)
            for seed in range(seeds):
                yield drawn_check(seed, on)
        if "free" in modes or "late" in modes:
            yield from free_checks(modes, on, model, facility.rounding)
        if "late" in modes:
            yield from edge_checks()
    except ModelError as error:
        raise BadInput(str(error)) from error


def _scenarios(paths: tuple[Path, ...], short: bool) -> list[Path]:
    """The scenarios to run; of the whole suite only the short ones where steps are slow."""
    from metrale.conform.forced import suite

    if not paths and not SUITE.is_dir():
        raise BadInput(f"{SUITE}: no such folder here; name the scenarios or folders to conform to")
    if not paths and short:
        return suite(SUITE, short=True)
    return [pair.scenario for pair in find_pairs(list(paths) or [SUITE])]
