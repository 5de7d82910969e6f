"""Check the Numba-CUDA kernels on a GPU: right, and how fast. One command, at most five minutes.

    python tools/gpu_check.py                  # writes gpu_check.json and gpu_check.md here
    python tools/gpu_check.py --out results    # or there
    python tools/gpu_check.py --rehearse       # every step on tiny inputs in the simulator; the numbers mean nothing

Kernels against their references; ``metrale conform --device cuda``; bandwidth of the memory-bound kernels and of decode
attention as shares of a copy measured in the same run; decode steps a second beside plain torch. Without a GPU it says
so and exits 0. Exit status 1 if a kernel is wrong or conform fails; speeds below their aims are reported, not failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

LIMIT = 290.0
"""Seconds after which no further section starts."""
VARIANTS = [(256, 128), (128, 128), (512, 128), (256, 256)]
"""(split, threads) of the decode attention; the first is what the backend uses."""


class Report:
    """Results by section, and what went wrong."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.content: dict[str, Any] = {"status": "run"}
        self.failures: list[str] = []

    def section(self, name: str, work: Callable[[], Any]) -> None:
        """Run one section; an exception fails it and the others go on."""
        if time.monotonic() - self.started > LIMIT:
            self.content[name] = {"skipped": f"{LIMIT:.0f} s were over"}
            return
        begun = time.monotonic()
        print(f"{begun - self.started:6.1f} s  {name}", flush=True)
        try:
            self.content[name] = work()
        except Exception as error:
            traceback.print_exc()
            self.content[name] = {"error": f"{type(error).__name__}: {error}"}
            self.failures.append(f"{name}: {type(error).__name__}")
        self.content.setdefault("seconds", {})[name] = round(time.monotonic() - begun, 1)


def kernel_checks(report: Report, rehearse: bool) -> dict[str, Any]:
    """Every kernel in both storages against its reference."""
    import torch

    from metrale.device.cuda import checks

    on = torch.device("cpu" if rehearse else "cuda")
    results = {}
    for name, run in _checks(rehearse):
        for dtype in (torch.float32, torch.bfloat16):
            label = f"{name}, {str(dtype).removeprefix('torch.')}"
            try:
                faults, pairs = checks.faults(run(checks.Inputs(on, dtype, tiny=rehearse)))
            except Exception as error:
                faults, pairs = [f"{type(error).__name__}: {error}".splitlines()[0]], 0
            results[label] = {"pairs": pairs, "faults": faults}
            report.failures += [f"{label}: {fault}" for fault in faults]
    return results


def _checks(rehearse: bool) -> Iterator[tuple[str, Callable[[Any], Iterator[Any]]]]:
    from metrale.device.cuda import checks

    simple = checks.ROWS | checks.RECURRENT | checks.PICKS
    yield from ((name, simple[name]) for name in (("norms", "moves") if rehearse else simple))
    for group, head in [(2, 8)] if rehearse else [*checks.COMMON, *checks.ODD]:
        yield f"decode {group}x{head}", lambda i, g=group, h=head: checks.check_decode(i, g, h, kv_heads=2)
        yield f"prefill {group}x{head}", lambda i, g=group, h=head: checks.check_prefill(i, g, h, kv_heads=2)


def conform(report: Report, device: str) -> dict[str, Any]:
    """The scenarios on the engine, in a process of its own."""
    left = max(20.0, LIMIT - (time.monotonic() - report.started))
    command = [sys.executable, "-m", "metrale", "conform", "--device", device, "--json"]
    try:
        limits = {"timeout": min(100.0, left), "cwd": Path(__file__).parents[1]}
        run = subprocess.run(command, capture_output=True, text=True, check=False, **limits)
    except subprocess.TimeoutExpired:
        return {"skipped": "the time was over"}
    if run.returncode:
        report.failures.append(f"conform: exit status {run.returncode}")
    return {"exit": run.returncode, "summary": run.stderr.strip().splitlines()[-1:]}


def bandwidths(rehearse: bool) -> dict[str, Any]:
    """The copy, and every kernel as a share of it."""
    import gpu_bench
    import torch

    clock = gpu_bench.Clock(torch.device("cpu" if rehearse else "cuda"))
    sizes = gpu_bench.SMALL if rehearse else gpu_bench.FULL
    copy = gpu_bench.copy_rate(clock, sizes)
    variants = [(16, 32)] if rehearse else VARIANTS
    rows = [rate.row(copy) for rate in gpu_bench.kernel_rates(clock, sizes)]
    rows += [rate.row(copy) for rate in gpu_bench.attention_rates(clock, sizes, variants)]
    return {"copy_gigabytes_per_second": copy / 1e9, "graphs": clock.graphed, "reason": clock.reason, "kernels": rows}


def decode_steps(rehearse: bool) -> list[dict[str, object]]:
    """Our kernels beside plain torch, in whole decode steps."""
    import gpu_bench
    import torch

    clock = gpu_bench.Clock(torch.device("cpu" if rehearse else "cuda"))
    return list(gpu_bench.step_rates(clock, full=not rehearse))


def machine(rehearse: bool) -> dict[str, Any]:
    """What it ran on."""
    import torch

    found = {"torch": torch.__version__, "numba_cuda": version("numba-cuda")}
    if rehearse:
        return found | {"gpu": "none: a rehearsal in the simulator"}
    properties = torch.cuda.get_device_properties(0)
    return found | {
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_gigabytes": round(properties.total_memory / 1e9, 1),
        "driver_cuda": torch.version.cuda,
    }


def markdown(report: Report) -> str:
    """The report for people."""
    content = report.content
    lines = ["# GPU check", ""]
    if content["status"] == "not run":
        return "\n".join([*lines, f"Not run: {content['reason']}", ""])
    lines += [f"* {name}: {value}" for name, value in content.get("machine", {}).items()]
    checks = content.get("kernel checks", {})
    pairs = sum(result.get("pairs", 0) for result in checks.values() if isinstance(result, dict))
    lines += [f"* kernel checks: {len(checks)}, {pairs} comparisons", f"* failures: {len(report.failures)}"]
    lines += [f"  * {failure}" for failure in report.failures]
    lines += [f"* conform: {content.get('conform')}", ""]
    rates = content.get("bandwidth", {})
    if "kernels" in rates:
        graph = "graph replays" if rates["graphs"] else f"single launches ({rates['reason']})"
        lines += [f"A copy moves {rates['copy_gigabytes_per_second']:.0f} GB/s. Timed by {graph}.", ""]
        lines += ["| kernel | MB | µs | GB/s | share of copy | aim |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
        lines += [_rate_line(row) for row in rates["kernels"]]
    steps = content.get("decode steps")
    if isinstance(steps, list):
        titles = ("batch", "context", "kernels", "kernels, graph", "torch", "torch, graph", "same picks")
        lines += ["", "Decode steps a second:", "", f"| {' | '.join(titles)} |"]
        lines += [f"|{' ---: |' * len(titles)}", *(_step_line(row) for row in steps)]
    return "\n".join([*lines, ""])


def _rate_line(row: dict[str, Any]) -> str:
    aim = f"{row['aim']:.0%}" if row["aim"] else ""
    size, spent = row["bytes"] / 1e6, row["seconds"] * 1e6
    return (
        f"| {row['kernel']} | {size:.1f} | {spent:.1f} | {row['gigabytes_per_second']:.0f} "
        f"| {row['share_of_copy']:.0%} | {aim} |"
    )


def _step_line(row: dict[str, Any]) -> str:
    names = [f"{path}{kind}_steps_per_second" for path in ("kernels", "torch") for kind in ("", "_graph")]
    cells = [f"{row[name]:.0f}" if row[name] else "not captured" for name in names]
    return f"| {row['batch']} | {row['context']} | {' | '.join(cells)} | {row['same_picks']:.0%} |"


def why_not() -> str | None:
    """Why there is nothing to run on, or None."""
    try:
        import torch
        from numba import cuda
    except ImportError as error:
        return f"{error}; `pip install 'metrale[engine]'` installs what it needs"
    if not torch.cuda.is_available():
        return "torch sees no CUDA GPU here"
    return None if cuda.is_available() else "numba-cuda sees no CUDA GPU here"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of gpu_check.json and gpu_check.md")
    parser.add_argument("--rehearse", action="store_true", help="tiny inputs in the simulator")
    options = parser.parse_args()
    if options.rehearse:
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    report = Report()
    reason = None if options.rehearse else why_not()
    if reason is not None:
        report.content = {"status": "not run", "reason": reason}
    else:
        run_sections(report, options.rehearse)
    options.out.mkdir(parents=True, exist_ok=True)
    report.content["failures"] = report.failures
    (options.out / "gpu_check.json").write_text(json.dumps(report.content, indent=2) + "\n")
    (options.out / "gpu_check.md").write_text(markdown(report))
    for failure in report.failures:
        print(f"failed: {failure}")
    spent = time.monotonic() - report.started
    told = f"not run: {reason}" if reason else f"{len(report.failures)} failures, {spent:.0f} s"
    print(f"gpu check: {told}; see {options.out / 'gpu_check.md'}")
    return 1 if report.failures else 0


def run_sections(report: Report, rehearse: bool) -> None:
    """Everything, the most important first."""
    report.section("machine", lambda: machine(rehearse))
    report.section("kernel checks", lambda: kernel_checks(report, rehearse))
    report.section("bandwidth", lambda: bandwidths(rehearse))
    report.section("decode steps", lambda: decode_steps(rehearse))
    if not rehearse:
        report.section("conform", lambda: conform(report, "cuda"))


if __name__ == "__main__":
    sys.exit(main())
