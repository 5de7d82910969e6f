"""Compile every kernel for the compute capabilities we care for and write the table in docs/kernels.md.

    python tools/kernel_table.py            # rewrite the table
    python tools/kernel_table.py --check    # exit 1 if a kernel uses local memory; write nothing

Needs no GPU: NVVM and nvJitLink come with numba-cuda[cu13].
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from pathlib import Path

from metrale.device.cuda.budget import CAPABILITIES, Usage, compile_kernel, kernels

DOCUMENT = Path(__file__).parents[1] / "docs" / "kernels.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def table(used: dict[str, tuple[int, list[Usage]]]) -> str:
    """Markdown."""
    tools = ", ".join(f"{name} {version(name)}" for name in ("numba-cuda", "nvidia-nvvm", "nvidia-nvjitlink"))
    names = [f"{major}.{minor}" for major, minor in CAPABILITIES]
    lines = [
        f"Made by `python tools/kernel_table.py` with {tools}.",
        "",
        f"| kernel | threads | {' | '.join(f'registers {name}' for name in names)} | shared, bytes | local, bytes |",
        f"| --- | ---: | {' | '.join('---:' for _ in names)} | ---: | ---: |",
    ]
    for name, (threads, usages) in used.items():
        registers = " | ".join(str(usage.registers) for usage in usages)
        lines.append(f"| {name} | {threads} | {registers} | {usages[-1].shared} | {local(usages)} |")
    return "\n".join(lines)


def local(usages: list[Usage]) -> int:
    """Bytes of local memory, the most of all capabilities."""
    return max(usage.stack + usage.spills for usage in usages)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    used = {}
    for kernel in kernels():
        used[kernel.name] = (kernel.threads, [compile_kernel(kernel, capability) for capability in CAPABILITIES])
    spilling = [name for name, (_, usages) in used.items() if local(usages)]
    if not options.check:
        text = DOCUMENT.read_text()
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        DOCUMENT.write_text(f"{before}{BEGIN}\n{table(used)}\n{END}{after}")
    print(f"{len(used)} kernels, {len(spilling)} use local memory{': ' if spilling else ''}{', '.join(spilling)}")
    return 1 if spilling else 0


if __name__ == "__main__":
    sys.exit(main())
