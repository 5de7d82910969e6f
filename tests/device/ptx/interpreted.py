"""Runs one batch of kernel checks on the PTX machine, in a process of its own, where no coverage tracer slows the
compiler. Then again for every barrier of the kernels, each time without that one.

Prints one JSON object: pairs compared, faults, the kernels that ran, the barriers in them, those whose absence neither
the machine nor a result shows, and the bank conflicts of the first of these checks."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator

import torch

from metrale.device.cuda import checks
from metrale.device.cuda.checks import Inputs, Pair
from metrale.device.ptx import runner
from metrale.device.ptx.faults import KernelFault

Case = Callable[[], Iterator[Pair]]
CPU = torch.device("cpu")
FP32, BF16 = torch.float32, torch.bfloat16
LONG = [1, 256, 257, 700]
"""Contexts of one, two and three splits; the third row sees its last 18 positions."""
BARRIER = re.compile(r"bar\.sync[^;]*;")


def small() -> Iterator[Case]:
    for dtype in (FP32, BF16):
        for name, check in (checks.ROWS | checks.RECURRENT | checks.PICKS).items():
            if (name, dtype) != ("paged", BF16):
                yield lambda check=check, dtype=dtype: check(Inputs(CPU, dtype))


def attention() -> Iterator[Case]:
    for dtype, group, head in ((FP32, 1, 64), (BF16, 4, 128), (BF16, 8, 128)):
        yield lambda d=dtype, g=group, h=head: checks.check_decode(Inputs(CPU, d), g, h, contexts=LONG)
    yield lambda: checks.check_prefill(Inputs(CPU, FP32), 4, 64, alone=False)
    yield lambda: checks.check_prefill(Inputs(CPU, BF16), 8, 128)


def run(case: Case, edit: Callable[[str], str] | None = None) -> tuple[list[str], int]:
    """What is wrong, and how many pairs were compared."""
    with runner.interpreting(runner.Machine(edit=edit)) as machine:
        result = checks.faults(case())
        ran.update(machine.kernels())
    return result


def spare_turns(case: Case) -> int:
    """Turns of shared memory beyond the fewest: its bank conflicts."""
    with runner.interpreting(runner.Machine(profiles={})) as machine:
        checks.faults(case())
    totals = [profile.total("shared") for profile in (machine.profiles or {}).values()]
    assert sum(total.fewest for total in totals) > 0
    return sum(total.turns - total.fewest for total in totals)


def texts_of(case: Case) -> list[str]:
    """The PTX of the kernels of a check."""
    seen: list[str] = []
    run(case, lambda text: (seen.append(text), text)[1])
    return seen


def without(text: str, number: int) -> Callable[[str], str]:
    """Leaves the barrier out of one kernel."""
    found = list(BARRIER.finditer(text))[number]
    return lambda other: other[: found.start()] + other[found.end() :] if other == text else other


def barriers(cases: Iterator[Case]) -> Iterator[str | None]:
    """For every barrier what shows its absence."""
    for case in cases:
        for text in texts_of(case):
            for number in range(len(BARRIER.findall(text))):
                try:
                    faults, _ = run(case, without(text, number))
                except KernelFault as error:
                    faults = [str(error)]
                yield faults[0] if faults else None


def reductions() -> Iterator[Case]:
    """Of the small kernels those that have barriers."""
    for check in (checks.check_norms, checks.check_argmax, checks.check_masked):
        yield lambda check=check: check(Inputs(CPU, FP32))


BATCHES = {"small": (small, reductions), "attention": (attention, attention)}

if __name__ == "__main__":
    torch.set_num_threads(1)
    # Memory that torch hands out is NaN, or the greatest integer, until something is written there.
    torch.use_deterministic_algorithms(True)
    ran: set[str] = set()
    every, watched = BATCHES[sys.argv[1]]
    results = [run(case) for case in every()]
    shown = list(barriers(watched()))
    report = {
        "pairs": sum(count for _, count in results),
        "faults": [fault for faults, _ in results for fault in faults],
        "kernels": sorted(ran),
        "barriers": len(shown),
        "unseen": shown.count(None),
        "spare turns": spare_turns(next(watched())),
    }
    print(json.dumps(report))
