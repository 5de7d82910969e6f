"""The checks of each mode, one after the other; they can be shared out among processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from metrale.device.conformance.ordering import CASES
from metrale.device.engine import Streams
from metrale.device.kernels.reference import TILE
from metrale.device.loading import Backend, shipped_model

from .faults import FAULTS, told
from .free import Finding, Way, Weights, alone, check_way, models
from .tiny import edge_device

LATE_SEEDS = (1, 2)
TOKENS = 24


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


def full_products() -> None:
    """From now on this process's matrix products are added up in fp32: no TF32 for fp32, and no bf16 between the parts
    of a product whose sum cuBLAS splits up. Whether and where it splits depends on the number of rows, so a comparison
    would otherwise measure that rounding too."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def fixed_tiles(on: Backend) -> Backend:
    """The backend with tiles of one width, so that the shape of a product does not change with the batch, and with
    :func:`full_products`. Then a row's numbers do not depend on its batch as far as the backend can help."""
    full_products()
    return replace(on, width=on.width or TILE)


def free_checks(
    modes: tuple[str, ...],
    on: Backend,
    folder: Path | None = None,
    rounding: float = 0.0,
    part: tuple[int, int] = (0, 1),
    count: int = TOKENS,
    fixed: bool = True,
) -> Iterator[Check]:
    """Every way of both models in the orders of ``modes`` (free, late); ``part`` (i, n) is every n-th way from i on.

    ``rounding`` as in :class:`metrale.conform.devices.Facility`. ``fixed``: with :func:`fixed_tiles`; without, the
    engine as it serves, with recorded steps where the backend has them. Raises ModelError for a folder that cannot be
    used.
    """
    on = fixed_tiles(on) if fixed else on
    orders = [("free", "immediate", 0)] if "free" in modes else []
    if "late" in modes:
        orders += [("late", "late", 0), *(("late", "random", seed) for seed in LATE_SEEDS)]
    ways = [(weights, way) for weights, every in models(folder or shipped_model()) for way in every]
    wanted: dict[str, list[list[int]]] = {}
    for weights, way in ways[part[0] :: part[1]]:
        for mode, order, seed in orders:
            suffix = "" if order == "immediate" else f", {order}" + (f" {seed}" if seed else "")
            found = _found(weights, way, wanted, count, Streams(order, seed), on, rounding)
            yield Check(mode, f"{weights.name}: {way.name}{suffix}", found.problem, found.excused)


def _found(
    weights: Weights,
    way: Way,
    wanted: dict[str, list[list[int]]],
    count: int,
    streams: Streams,
    on: Backend,
    rounding: float,
) -> Finding:
    """One way; the texts of a model alone are made for its first way and kept in ``wanted``. A kernel's fault is a
    finding that nothing excuses."""
    try:
        if weights.name not in wanted:
            wanted[weights.name] = alone(weights, count, on)
        return check_way(weights, way, wanted[weights.name], count, streams, on=on, rounding=rounding)
    except FAULTS as error:
        return Finding(told(error))


def edge_checks() -> Iterator[Check]:
    """Each wait of the engine is needed: its program is right with it and wrong without it."""
    for case in CASES:
        wanted = case.outcome(edge_device(case, Streams()))
        for order in ("late", "random"):
            got = case.outcome(edge_device(case, Streams(order, 1)))
            problem = "" if got == wanted else f"{got} instead of {wanted}"
            yield Check("late", f"wait {case.edge}, {order}", problem)
        got = case.outcome(edge_device(case, Streams("late", 0, without=case.edge)))
        yield Check("late", f"without wait {case.edge}", "nothing went wrong" if got == wanted else "")
