"""Runs one batch of kernel checks on the PTX machine, in a process of its own, where no coverage tracer slows the
compiler. Prints one JSON object: pairs compared, faults, and the kernels that ran."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator

import torch

from metrale.device.cuda import checks
from metrale.device.cuda.checks import Inputs, Pair
from metrale.device.ptx import runner

Pairs = Callable[[], Iterator[Pair]]
CPU = torch.device("cpu")
FP32, BF16 = torch.float32, torch.bfloat16
LONG = [1, 256, 257, 700]
"""Contexts of one, two and three splits; the third row sees its last 18 positions."""


def small() -> Iterator[Pair]:
    for dtype in (FP32, BF16):
        for check in (checks.ROWS | checks.RECURRENT | checks.PICKS).values():
            yield from check(Inputs(CPU, dtype))


def attention() -> Iterator[Pair]:
    for dtype, group, head in ((FP32, 1, 64), (BF16, 4, 128), (FP32, 8, 64)):
        yield from checks.check_decode(Inputs(CPU, dtype), group, head, contexts=LONG)
    yield from checks.check_prefill(Inputs(CPU, FP32), 4, 64, alone=False)
    yield from checks.check_prefill(Inputs(CPU, BF16), 8, 128)


BATCHES: dict[str, Pairs] = {"small": small, "attention": attention}

if __name__ == "__main__":
    torch.set_num_threads(1)
    # Memory that torch hands out is NaN, or the greatest integer, until something is written there.
    torch.use_deterministic_algorithms(True)
    machine = runner.enable()
    found, compared = checks.faults(BATCHES[sys.argv[1]]())
    print(json.dumps({"pairs": compared, "faults": found, "kernels": machine.kernels()}))
