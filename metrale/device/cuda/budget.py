"""Machine code of every kernel without a GPU, and what it uses: registers, spills, shared memory.

Numba compiles to PTX through NVVM, nvJitLink makes a cubin and reports. Both come as packages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from numba import float32, int64, uint8, uint16

from ..ptx.runner import ptx_of
from . import linear_attention as la
from . import picking, rotary, rows
from .attention import attention_shape, combine_kernel, decode_kernel, prefill_kernel
from .storage import BF16, FP32, VECTOR, Storage

CAPABILITIES = ((8, 0), (9, 0))
FLOATS, INTS, BYTES = float32[::1], int64[::1], uint8[::1]
COUNT, SCALAR = int64, float32
HEADS = {"fp32": ((4, 64),), "bf16": ((1, 64), (8, 128))}
"""Query heads a K/V head, and head size, of the attention kernels that are looked at."""


@dataclass(frozen=True, slots=True)
class Specialised:
    """One kernel for one shape: how to make it, its argument types, the threads of a block."""

    name: str
    make: Callable[[], Any]
    signature: tuple[Any, ...]
    threads: int


@dataclass(frozen=True, slots=True)
class Usage:
    """What the assembler says: registers and bytes of local memory of a thread, bytes of shared memory of a block."""

    registers: int
    stack: int
    spills: int
    shared: int
    binary: int


def kernels() -> list[Specialised]:
    """Every kernel in each storage, at the shapes of common models."""
    found = [kernel for storage in (FP32, BF16) for kernel in _of(storage)]
    found += [
        Specialised(
            "move rows", lambda: rows.move_kernel(4, True, True), (FLOATS, INTS, FLOATS, INTS, COUNT), rows.BLOCK
        ),
        Specialised(
            "move rows, one by one",
            lambda: rows.move_kernel(1, True, True),
            (FLOATS, INTS, FLOATS, INTS, COUNT),
            rows.BLOCK,
        ),
        Specialised("feed ids", rows.feed_kernel, (INTS, BYTES, INTS, INTS, COUNT), rows.BLOCK),
        Specialised(
            "choose", lambda: picking.choose_kernel(False), (FLOATS, INTS, COUNT, INTS, INTS, INTS), picking.WARP
        ),
        Specialised(
            "choose masked", lambda: picking.choose_kernel(True), (FLOATS, INTS, COUNT, INTS, INTS, INTS), picking.WARP
        ),
    ]
    return found


def _of(storage: Storage) -> Iterator[Specialised]:
    x = FLOATS if storage is FP32 else uint16[::1]

    def one(name: str, make: Callable[[], Any], signature: tuple[Any, ...], threads: int = rows.BLOCK) -> Specialised:
        return Specialised(f"{name}, {storage.name}", make, signature, threads)

    for width, weighted in ((4096, True), (100, True), (128, False)):
        shape = rows.row_shape(width)
        name = f"{'rms' if weighted else 'l2'} norm {width}"
        yield one(
            name,
            _later(rows.norm_kernel, storage, shape, weighted),
            (x, *[COUNT] * 3, x, SCALAR, x, COUNT),
            shape.threads,
        )
    for function in ("silu", "sigmoid"):
        yield one(function, _later(rows.unary_kernel, storage, VECTOR, function), (x, COUNT, x, COUNT))
    yield one("swiglu", _later(rows.swiglu_kernel, storage, VECTOR), (x, COUNT, x, COUNT, x, COUNT))
    yield one("delta gates", _later(rows.gates_kernel, storage), (x, x, FLOATS, FLOATS, COUNT, FLOATS, FLOATS, COUNT))
    yield one(
        "rotary 128", _later(rotary.rotary_kernel, storage, 128, 64, VECTOR), (x, COUNT, FLOATS, FLOATS, COUNT, x)
    )
    signature: tuple[Any, ...] = (x, COUNT, x, COUNT, x, COUNT, INTS, FLOATS, FLOATS, INTS, COUNT, COUNT, x, x, x)
    yield one("rotary and write 128", _later(rotary.rotary_write_kernel, storage, 128, 64, VECTOR), signature)
    for group, head in HEADS[storage.name]:
        yield from _attention(one, storage, x, group, head)
    for keep in (False, True):
        sharing, groups = la.delta_lanes(128, 128)
        name = f"delta rule 128x128{', states kept' if keep else ''}"
        make = _later(la.delta_kernel, storage, 128, 128, 2, keep)
        yield one(name, make, (FLOATS, COUNT, INTS, INTS, x, x, x, FLOATS, FLOATS, x, FLOATS), sharing * groups)
    yield one("conv", _later(la.conv_kernel, storage, VECTOR, 4), (x, x, COUNT, INTS, INTS, INTS, x, x, COUNT))
    yield one("conv tail", _later(la.tail_kernel, storage, VECTOR, 4), (x, x, COUNT, INTS, x, COUNT, COUNT))
    yield one("conv by index", _later(la.window_kernel, storage, VECTOR, 4), (x, INTS, x, x, COUNT))
    signature = (x, COUNT, COUNT, INTS, FLOATS, INTS, INTS, INTS)
    for masked in (False, True):
        name = f"pick{' masked' if masked else ''}"
        yield one(name, _later(picking.pick_kernel, storage, VECTOR, masked, False), signature, picking.THREADS)


def _attention(
    one: Callable[..., Specialised], storage: Storage, x: Any, group: int, head: int
) -> Iterator[Specialised]:
    label = f"group {group}, head {head}"
    shape = attention_shape(2 * group, 2, head, 16)
    yield one(
        f"decode {label}",
        _later(decode_kernel, storage, shape),
        (x, x, x, INTS, COUNT, INTS, SCALAR, x, FLOATS, COUNT),
        shape.threads,
    )
    chunk = attention_shape(2 * group, 2, head, 16, prefill=True)
    yield one(
        f"prefill {label}",
        _later(prefill_kernel, storage, chunk),
        (x, x, x, INTS, COUNT, INTS, INTS, SCALAR, x, FLOATS, COUNT),
        chunk.threads,
    )
    if group > 1:
        yield one(
            f"combine head {head}", _later(combine_kernel, storage, shape), (FLOATS, COUNT, INTS, x), shape.threads
        )


def _later(factory: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    return lambda: factory(*arguments)


def compile_kernel(kernel: Specialised, capability: tuple[int, int]) -> Usage:
    """Compile and link for one compute capability. Raises what the compiler or the linker raises."""
    from cuda.core import Linker, LinkerOptions, ObjectCode

    ptx = ptx_of(kernel.make(), kernel.signature, capability)
    options = LinkerOptions(arch=f"sm_{capability[0]}{capability[1]}", ptxas_options=["-v"])
    linker = Linker(ObjectCode.from_ptx(ptx.encode()), options=options)
    binary = linker.link("cubin").code
    return _usage(linker.get_info_log(), ptx, len(binary))


def _usage(log: str, ptx: str, binary: int) -> Usage:
    def number(pattern: str, text: str = log) -> int:
        return sum(int(found) for found in re.findall(pattern, text))

    return Usage(
        registers=number(r"Used (\d+) registers"),
        stack=number(r"(\d+) bytes stack frame"),
        spills=number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
        shared=number(r"\.shared[^\[\n]*\[(\d+)\]", ptx),
        binary=binary,
    )
