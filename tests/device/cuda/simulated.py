"""Runs one batch of checks under Numba's simulator, in a process of its own: the switch is read when numba is imported.

Prints one JSON object: pairs compared, and the faults.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from metrale.device.cuda import attention, backend, checks, paged, picking
from metrale.device.cuda.checks import Inputs, Pair

torch.set_num_threads(1)
Pairs = Callable[[], Iterator[Pair]]
CPU = torch.device("cpu")
FP32, BF16 = torch.float32, torch.bfloat16


def inputs(dtype: torch.dtype) -> Inputs:
    return Inputs(CPU, dtype)


def small() -> Iterator[Pair]:
    """In fp32: bf16 runs on the PTX machine, which has the real thing."""
    for check in (checks.ROWS | checks.RECURRENT | checks.PICKS).values():
        yield from check(inputs(FP32))


def decode() -> Iterator[Pair]:
    for group, head in (*checks.COMMON, *checks.ODD):
        yield from checks.check_decode(inputs(FP32), group, head, alone=False)
    for group, head in checks.COMMON:
        yield from checks.check_decode(inputs(BF16), group, head, alone=False)
    yield from checks.check_decode(inputs(FP32), 2, 16, kv_heads=3)
    # Six splits: the merge takes four at a time.
    yield from checks.check_decode(inputs(FP32), 2, 16, alone=False, contexts=[1, 90, 37])


def prefill() -> Iterator[Pair]:
    """One storage each: what differs between them is the same loads that the decode kernel has."""
    for number, (group, head) in enumerate(checks.COMMON):
        yield from checks.check_prefill(inputs((FP32, BF16)[number % 2]), group, head, alone=False)
    yield from checks.check_prefill(inputs(BF16), 2, 16, kv_heads=3)


def engine() -> Iterator[Pair]:
    """Whole models with these kernels: the reference's tokens, and its logits."""
    from device.support import HYBRID, LLAMA, config_of, greedy, prompt_of, random_tensors
    from metrale.device.engine import EngineDevice, EngineOptions
    from metrale.device.kernels import reference

    for family in (LLAMA, HYBRID):
        config = config_of(family)
        options = EngineOptions(block_size=4, total_blocks=16, max_sequences=2, max_seq_len=64)
        made = [
            EngineDevice(kernels, config, random_tensors(config), options, width=width)
            for kernels, width in ((reference, reference.TILE), (backend, 0))
        ]
        want, got = (torch.tensor(greedy(device, prompt_of(5), 2)) for device in made)
        yield Pair(f"{family['model_type']} tokens", got, want, exact=True)
        yield Pair(f"{family['model_type']} logits", made[1].logits[:1], made[0].logits[:1].double())


def planted() -> Iterator[Pair]:
    """Each bug must be found: one that no check sees stands here as a difference."""
    with mock.patch.object(paged, "_combine", return_value=None):
        yield missed("splits that are not merged", checks.check_decode(inputs(FP32), 1, 16))
    attention._parts.cache_clear()
    for made in (attention._piece, attention.decode_kernel, attention.prefill_kernel, picking.choose_kernel):
        made.cache_clear()
    with mock.patch.object(attention, "SOFTMAX_LANES", 4), mock.patch.object(attention, "max_lanes", lambda v, *_: v):
        yield missed("a maximum of one lane", checks.check_decode(inputs(FP32), 1, 16))
    picking._block_pick.cache_clear()
    picking.pick_kernel.cache_clear()
    with mock.patch.object(picking, "_last", picking._first):
        yield missed("the first masked maximum", checks.check_masked(inputs(FP32)))
    with mock.patch.object(backend, "write_kv", return_value=None):
        yield missed("K/V that is not written", checks.check_rotary(inputs(FP32)))


def missed(name: str, pairs: Iterator[Pair]) -> Pair:
    found, _ = checks.faults(pairs)
    return Pair(f"planted: {name}", torch.tensor(bool(found)), torch.tensor(True), exact=True)


BATCHES: dict[str, Pairs] = {
    "small": small,
    "decode": decode,
    "prefill": prefill,
    "engine": engine,
    "planted": planted,
}

if __name__ == "__main__":
    found, compared = checks.faults(BATCHES[sys.argv[1]]())
    print(json.dumps({"pairs": compared, "faults": found}))
