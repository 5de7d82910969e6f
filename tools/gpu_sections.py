"""What the processes of the GPU check do. Each answers (section, name, value, failures), result by result.

torch, numba and the engine are imported inside, where something needs them: a machine without them can say so.
"""

from __future__ import annotations

import importlib.util
import math
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gpu_toolkit import REMEDY

ROOT = Path(__file__).parents[1]
PACKAGES = ("torch", "numba-cuda", "numba", "nvidia-nvvm", "nvidia-cuda-nvcc", "nvidia-nvjitlink", "cuda-bindings")
READER = ("pydantic", "pydantic_core", "annotated_types", "typing_inspection", "typing_extensions")
"""What reading a scenario needs."""
EXCLUSIVE = (1, 3)
"""Compute modes in which a GPU takes one process at a time."""
REHEARSED = 2
"""Forced scenarios of a rehearsal: the shortest ones."""

Result = tuple[str, str, Any, list[str]]


class LeftOut(Exception):
    """A section cannot run here: which, and what is missing."""

    def __init__(self, section: str, why: str) -> None:
        super().__init__(why)
        self.section = section


@dataclass(frozen=True, slots=True)
class Task:
    """One process's share: part i of n, whether it rehearses on the CPU, whether graphs work, and how many units of
    work are done already. ``turn`` waits until the process may go on, ``again`` starts it anew after so many units."""

    part: tuple[int, int]
    rehearse: bool
    graphs: bool
    turn: Callable[[], None]
    done: int = 0
    again: Callable[[int], None] = lambda done: None

    def device(self) -> Any:
        """Where tensors live."""
        import torch

        return torch.device("cpu" if self.rehearse else "cuda")

    def backend(self) -> Any:
        """The kernels; a rehearsal of whole models takes the reference, which is a thousand times faster."""
        from metrale.device.loading import backend

        return backend("torch" if self.rehearse else "cuda")


def why_not() -> tuple[str, str]:
    """What keeps the check from running, and why; two empty texts if nothing does. A ``reason``: there is nothing to
    run on. A ``problem``: torch sees a GPU, but Numba cannot compile for it or not reach it."""
    try:
        import torch
    except ImportError as error:
        return "reason", f"{error}; `pip install 'metrale[engine]'` installs what it needs"
    if not torch.cuda.is_available():
        return "reason", "torch sees no CUDA GPU here"
    try:
        from numba import cuda, float32

        # Needs libnvvm and libdevice, and an NVVM that knows this GPU.
        cuda.compile(_halved, (float32[::1],), cc=torch.cuda.get_device_capability(), output="ptx", abi="numba")
        if not cuda.is_available():
            return "problem", f"torch sees a GPU, numba-cuda sees none: {_one_line(cuda.cuda_error())}"
    except Exception as error:
        told = f"{type(error).__name__}: {_one_line(error)}"
        return "problem", f"torch sees a GPU, but Numba cannot compile: {told}; {REMEDY}"
    return "", ""


def _one_line(told: object) -> str:
    return " ".join(str(told or "no error is told").split())


def _halved(x: Any) -> None:
    """A kernel with a function of libdevice."""
    x[0] = math.exp(-x[0])


def probe(task: Task) -> Iterator[Result]:
    """What it runs on, one tiny kernel, and whether torch can capture Numba's launches."""
    kind, why = ("", "") if task.rehearse else why_not()
    if kind:
        yield "machine", kind, why, [why] if kind == "problem" else []
        return
    yield from (("machine", name, value, []) for name, value in machine(task.rehearse).items())
    found = smoke(task)
    yield "smoke", launches(), found, [found["fault"]] if found["fault"] else []
    for mode in ("thread_local", "relaxed"):
        found = graph_capture(task, mode)
        yield "graph capture", mode, found, []
        if found["captured"] == "yes":
            break


def launches() -> str:
    """Who converts the arguments of a launch: we ("packed") or Numba ("numba")."""
    from metrale.device.cuda import launch

    return "packed" if launch.PACKED else "numba"


def machine(rehearse: bool) -> dict[str, Any]:
    """Versions and the GPU."""
    import torch

    found: dict[str, Any] = {"python": platform.python_version(), "cores": len(os.sched_getaffinity(0))}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    if rehearse:
        return found | {"gpu": "none", "processes": "many"}
    from numba import cuda

    properties = torch.cuda.get_device_properties(0)
    exclusive = _asked(lambda: cuda.get_current_device().COMPUTE_MODE) in EXCLUSIVE
    return found | {
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory, GB": round(properties.total_memory / 1e9, 1),
        "L2 cache, MB": _asked(lambda: round(properties.L2_cache_size / 1e6, 1)),
        "torch's CUDA": torch.version.cuda,
        "driver's CUDA": _asked(lambda: ".".join(map(str, cuda.cudadrv.driver.driver.get_version()))),
        "processes": "one" if exclusive else "many",
    }


def _asked(fact: Callable[[], Any]) -> Any:
    """A fact that is nice to know, or why it is not known."""
    try:
        return fact()
    except Exception as error:
        return f"unknown ({type(error).__name__})"


def smoke(task: Task) -> dict[str, Any]:
    """Three small kernels, which take every kind of argument: are they right, and how long does a launch take?"""
    import torch

    from metrale.device.cuda import backend
    from metrale.device.kernels import reference

    on = task.device()
    started = time.perf_counter()
    cells, fed = torch.arange(4, device=on) * 10, torch.tensor([True, False, True], device=on)
    ids = backend.feed_ids(torch.tensor([3, 7, 1], device=on), fed, cells).tolist()
    x = torch.linspace(-2, 2, 3 * 64, device=on).view(3, 64)
    normed = backend.rms_norm(x, x[1], 1e-3)
    half = x.to(torch.bfloat16)
    mixed = backend.swiglu(half, half)
    wrong = {
        "feed_ids": ids != [30, 7, 10],
        "rms_norm": not torch.allclose(normed, reference.rms_norm(x, x[1], 1e-3), rtol=1e-5, atol=1e-6),
        "swiglu": not torch.allclose(mixed.float(), reference.swiglu(half.float(), half.float()), rtol=1e-2),
    }
    first = time.perf_counter() - started
    count = 3 if task.rehearse else 2000
    started = time.perf_counter()
    for _ in range(count):
        backend.swiglu(half, half)
    each = (time.perf_counter() - started) / count
    if not task.rehearse:
        torch.cuda.synchronize()
    fault = ", ".join(name for name, bad in wrong.items() if bad)
    fault = f"wrong results of {fault}" if fault else ""
    return {"fault": fault, "first results, s": round(first, 2), "µs a launch": round(each * 1e6, 1)}


def graph_capture(task: Task, mode: str) -> dict[str, str]:
    """Whether a captured launch, replayed, reads the inputs of that moment and writes what another launch writes."""
    if task.rehearse:
        return {"captured": "no", "reason": "a rehearsal"}
    import torch
    from gpu_clock import captured, warm

    from metrale.device.cuda import backend

    gate, up = torch.randn(8, 1024, device="cuda"), torch.randn(8, 1024, device="cuda")
    out = torch.empty_like(gate)
    call = lambda: out.copy_(backend.swiglu(backend.swiglu(gate, up), up))  # noqa: E731
    warm([call])
    before = out.clone()
    try:
        graph = captured([call], mode)
    except Exception as error:
        return {"captured": "no", "reason": f"{type(error).__name__}: {error}".splitlines()[0]}
    gate.copy_(torch.randn(8, 1024, device="cuda"))
    graph.replay()
    torch.cuda.synchronize()
    replayed = out.clone()
    call()
    torch.cuda.synchronize()
    if torch.equal(replayed, before):
        return {"captured": "no", "reason": "the replay did not see the changed input"}
    if not torch.equal(replayed, out):
        return {"captured": "no", "reason": "the replay differs from a launch of its own"}
    return {"captured": "yes", "reason": "the replay of changed inputs equals a launch, bit for bit"}


def kernel_checks(task: Task) -> Iterator[Result]:
    """Every kernel in both storages against its reference; the units of work are dealt out in turn."""
    import torch

    from metrale.conform.checks import full_products
    from metrale.device.cuda import checks

    full_products()
    dtypes = (torch.float32, torch.bfloat16)
    units = [(name, run, dtype) for name, run in _checks(task.rehearse) for dtype in dtypes]
    mine = units[task.part[0] :: task.part[1]]
    task.turn()
    for number, (name, run, dtype) in enumerate(mine[task.done :], task.done + 1):
        label = f"{name}, {str(dtype).removeprefix('torch.')}"
        try:
            faults, pairs = checks.faults(run(checks.Inputs(task.device(), dtype, tiny=task.rehearse)))
        except Exception as error:
            faults, pairs = [f"{type(error).__name__}: {error}".splitlines()[0]], 0
        value = {"pairs": pairs, "faults": faults}
        yield "kernel checks", label, value, [f"{label}: {fault}" for fault in faults]
        if not pairs and lost():
            task.again(number)
            return


def lost() -> bool:
    """Whether a kernel has broken this process's GPU context, so that everything after it would fail as well."""
    import torch

    try:
        torch.cuda.synchronize()
    except Exception:
        return torch.cuda.is_available()
    return False


def _checks(rehearse: bool) -> Iterator[tuple[str, Callable[[Any], Iterator[Any]]]]:
    """Attention first, whose kernels take longest to compile."""
    from metrale.device.cuda import checks

    kv = 1 if rehearse else 2
    for group, head in [(1, 8)] if rehearse else [*checks.COMMON, *checks.ODD]:
        yield f"prefill {group}x{head}", lambda i, g=group, h=head: checks.check_prefill(i, g, h, kv_heads=kv)
        yield f"decode {group}x{head}", lambda i, g=group, h=head: checks.check_decode(i, g, h, kv_heads=kv)
    simple = checks.ROWS | checks.RECURRENT | checks.PICKS
    yield from ((name, simple[name]) for name in (("moves",) if rehearse else simple))


def _conformed(section: str, checks: Iterator[Any]) -> Iterator[Result]:
    for check in checks:
        value = {"problem": check.problem, "excused": check.excused}
        yield section, check.name, value, [f"{check.name}: {check.problem}"] if check.failed else []


def free(task: Task, section: str = "conform free", fixed: bool = True) -> Iterator[Result]:
    """Every way of free mode, dealt out in turn."""
    from metrale.conform.checks import TOKENS, free_checks, full_products
    from metrale.conform.devices import DEVICES
    from metrale.device.loading import limit_threads

    limit_threads(0)
    full_products()
    on, rounding = task.backend(), DEVICES["cuda"].rounding
    part = (20 + task.part[0], 25) if task.rehearse else task.part
    task.turn()
    count = 4 if task.rehearse else TOKENS
    yield from _conformed(section, free_checks(("free",), on, None, rounding, part, count, fixed))


def served(task: Task) -> Iterator[Result]:
    """The same with the engine as it serves: tiles as large as the batch, recorded steps."""
    yield from free(task, "conform free, as served", fixed=False)


def forced(task: Task) -> Iterator[Result]:
    """The scenarios with their scripted tokens, the shortest first, dealt out in turn."""
    missing = [name for name in READER if not _installed(name)]
    if missing:
        raise LeftOut("conform forced", f"needs {', '.join(missing)}: not installed, see --wheels in --help")
    from metrale.conform.checks import full_products
    from metrale.conform.forced import forced_check, suite
    from metrale.device.loading import limit_threads

    limit_threads(0)
    full_products()
    on, paths = task.backend(), suite(ROOT / "golden")
    task.turn()
    chosen = paths[:REHEARSED] if task.rehearse else paths
    yield from _conformed(
        "conform forced",
        (_named(forced_check(path, on=on), path.stem) for path in chosen[task.part[0] :: task.part[1]]),
    )


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _named(check: Any, name: str) -> Any:
    check.name = name
    return check


def bandwidth(task: Task) -> Iterator[Result]:
    """The memory-bound kernels, alone on the GPU."""
    import gpu_bench
    from gpu_clock import Clock

    clock = Clock(task.device(), task.graphs)
    for _ in gpu_bench.bandwidths(clock, gpu_bench.SMALL if task.rehearse else gpu_bench.WARM):
        pass
    task.turn()
    if not task.rehearse:
        clock = Clock(task.device(), task.graphs)
    for name, value in gpu_bench.bandwidths(clock, gpu_bench.SMALL if task.rehearse else gpu_bench.FULL):
        yield _measured("bandwidth", name, value)


def steps(task: Task) -> Iterator[Result]:
    """Whole decode steps, alone on the GPU."""
    import gpu_steps

    gpu_steps.warm_steps(task.device(), not task.rehearse)
    task.turn()
    for name, value in gpu_steps.step_rates(task.device(), task.graphs, not task.rehearse):
        yield _measured("decode steps", name, value)


def engine(task: Task) -> Iterator[Result]:
    """The engine's own steps, alone on the GPU."""
    import gpu_engine

    from metrale.device.loading import backend

    on = backend("cuda-sim" if task.rehearse else "cuda")
    if not task.rehearse:
        gpu_engine.warm_engine(on)
    task.turn()
    for name, value in gpu_engine.engine_rates(on, not task.rehearse):
        yield _measured("engine", name, value)


def _measured(section: str, name: str, value: Any) -> Result:
    failed = isinstance(value, dict) and "error" in value
    return section, name, value, [f"{name}: {value['error']}"] if failed else []


TASKS: dict[str, Callable[[Task], Iterator[Result]]] = {
    "probe": probe,
    "kernel checks": kernel_checks,
    "conform free": free,
    "conform free, as served": served,
    "conform forced": forced,
    "bandwidth": bandwidth,
    "decode steps": steps,
    "engine": engine,
}
