"""Compiles kernels in a process of its own, where no coverage tracer slows the compiler: one JSON object by name.

The argument is how their names end: fp32, bf16, or nothing for those that have no storage.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from metrale.device.cuda.budget import CAPABILITIES, Specialised, compile_kernel, kernels

STORAGES = ("fp32", "bf16")


def chosen(storage: str) -> list[Specialised]:
    return [kernel for kernel in kernels() if storage_of(kernel.name) == storage]


def storage_of(name: str) -> str:
    last = name.rpartition(", ")[2]
    return last if last in STORAGES else ""


if __name__ == "__main__":
    used = {
        kernel.name: [asdict(compile_kernel(kernel, capability)) for capability in CAPABILITIES]
        for kernel in chosen(sys.argv[1])
    }
    print(json.dumps(used))
