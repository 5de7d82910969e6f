"""Check every kernel without a GPU, at a GPU's shapes: run the PTX that a GPU would get, and count what it does.

    python tools/ptx_check.py                    # every check in fp32 and bf16, some minutes
    python tools/ptx_check.py --tiny             # the same checks on tiny shapes
    python tools/ptx_check.py norms "decode 4"   # those whose names begin so
    python tools/ptx_check.py --capability 8.0   # PTX for another compute capability; 9.0 unless said

Each check compares with the reference, and the machine looks for accesses outside of arrays, misaligned ones, memory
and registers that nobody set, races, and barriers or shuffles that not everybody reaches. Then a table of what the
kernels did, and the instructions that move much more memory than they use. Exit status 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator

import torch

from metrale.device.cuda import checks
from metrale.device.cuda.checks import Check, Inputs
from metrale.device.ptx import runner
from metrale.device.ptx.faults import KernelFault, PtxError
from metrale.device.ptx.profile import Profile, Traffic

STORAGES = {"fp32": torch.float32, "bf16": torch.bfloat16}
WASTE = 2.0
"""Sectors, or turns, beyond this many times the fewest are worth a line."""
SMALL = 32
"""Accesses of fewer warps are not."""


def every_check(tiny: bool) -> Iterator[tuple[str, Check]]:
    """Names and checks, as on a GPU."""
    heads = 1 if tiny else 2
    yield from (checks.ROWS | checks.RECURRENT | checks.PICKS).items()
    for group, head in (*checks.COMMON, *checks.ODD):
        yield f"decode {group}x{head}", lambda i, g=group, h=head: checks.check_decode(i, g, h, heads)
        yield f"prefill {group}x{head}", lambda i, g=group, h=head: checks.check_prefill(i, g, h, heads)


def run(name: str, check: Callable[[], Iterator[checks.Pair]], machine: runner.Machine) -> list[str]:
    """What is wrong."""
    begun = time.monotonic()
    try:
        faults, pairs = checks.faults(check())
    except (KernelFault, PtxError) as error:
        faults, pairs = [str(error)], 0
    print(f"{name}: {pairs} comparisons, {len(faults)} faults, {time.monotonic() - begun:.1f} s", flush=True)
    for fault in faults:
        print(f"  {fault}")
    return faults


def line(check: str, kernel: str, profile: Profile) -> str:
    """A row of the table."""
    memory, shared = profile.total("global"), profile.total("shared")
    cells = [
        check,
        kernel,
        str(profile.launches),
        str(profile.threads),
        f"{profile.instructions / profile.threads:.0f}",
        f"{memory.useful / 1024:.1f}",
        f"{memory.sectors * 32 / 1024:.1f}",
        ratio(memory.sectors, memory.fewest),
        ratio(shared.turns, shared.fewest),
    ]
    return f"| {' | '.join(cells)} |"


def ratio(found: int, fewest: int) -> str:
    """How many times the least."""
    return f"{found / fewest:.2f}" if fewest else ""


def wasteful(profile: Profile) -> Iterator[tuple[Traffic, str]]:
    """Instructions that touch many more sectors, or take many more turns, than they need."""
    for one in profile.traffic.values():
        count = one.sectors if one.space == "global" else one.turns
        if one.requests >= SMALL and count > WASTE * one.fewest:
            yield one, ratio(count, one.fewest)


def report(profiles: dict[tuple[str, str], Profile]) -> None:
    """The table, and what is wasteful."""
    titles = ("check", "kernel", "launches", "threads", "instructions a thread", "KiB used", "KiB of sectors")
    titles = (*titles, "sectors to fewest", "shared turns to fewest")
    print(f"\n| {' | '.join(titles)} |\n| --- | --- |{' ---: |' * (len(titles) - 2)}")
    for (check, kernel), profile in profiles.items():
        print(line(check, kernel, profile))
    print("\nInstructions that touch more than twice the sectors, or take more than twice the turns, that they need:")
    for (check, kernel), profile in profiles.items():
        for one, times in wasteful(profile):
            print(f"  {check}, {kernel}: `{one.text}` {times} times the fewest, {one.requests} accesses of warps")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="checks to run: beginnings of their names; all of them unless said")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes")
    parser.add_argument(
        "--capability", default="9.0", choices=("8.0", "9.0"), help="compute capability; 9.0 unless said"
    )
    options = parser.parse_args()
    chosen = [
        entry for entry in every_check(options.tiny) if not options.names or entry[0].startswith(tuple(options.names))
    ]
    if not chosen:
        parser.error(f"no check begins with {' or '.join(options.names)}")
    torch.set_num_threads(1)
    # Memory that torch hands out is NaN, or the greatest integer, until something is written there.
    torch.use_deterministic_algorithms(True)
    major, minor = options.capability.split(".")
    machine = runner.enable(runner.Machine((int(major), int(minor))))
    profiles: dict[tuple[str, str], Profile] = {}
    wrong = 0
    for name, check in chosen:
        for storage, dtype in STORAGES.items():
            machine.profiles = {}
            label = f"{name}, {storage}"
            wrong += bool(
                run(label, lambda d=dtype, c=check: c(Inputs(torch.device("cpu"), d, tiny=options.tiny)), machine)
            )
            profiles |= {(label, kernel): profile for kernel, profile in machine.profiles.items()}
    report(profiles)
    print(f"\nptx check: {len(chosen) * len(STORAGES)} checks, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
