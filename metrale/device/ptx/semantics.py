"""What each opcode computes: a table from its full name to a function on numpy arrays, one element a lane.

After the PTX ISA (https://docs.nvidia.com/cuda/parallel-thread-execution/). ``takes`` and ``gives`` are the PTX types
of the operands; arrays come and go in the numpy type of them (``s64`` is int64, ``b64`` uint64, ``pred`` bool), of n
elements or of one that stands for every lane. Memory, branches, barriers and shuffles are not here.

``ex2.approx`` and ``lg2.approx`` are the fp64 functions rounded to fp32; hardware may differ by 2 units in the last
place. ``add``, ``sub`` and ``mul`` without a rounding modifier are rounded each; an assembler may fuse them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import rounding as f
from .faults import LaneError

Array = np.ndarray[Any, Any]
Function = Callable[..., Array]

DTYPES: dict[str, np.dtype[Any]] = {
    "pred": np.dtype(np.bool_),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    **{f"{kind}{bits}": np.dtype(f"uint{bits}") for kind in "bu" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
}


@dataclass(frozen=True, slots=True)
class Operation:
    """A function of operands of types ``takes`` with a result of type ``gives``."""

    function: Function
    takes: tuple[str, ...]
    gives: str


TABLE: dict[str, Operation] = {}


def _enter(opcode: str, function: Function, takes: str, gives: str) -> None:
    TABLE[opcode] = Operation(function, tuple(takes.split()), gives)


def _copy(a: Array) -> Array:
    return a.copy()


# -- integers


def _bits(a: Array) -> int:
    return a.dtype.itemsize * 8


def shift_left(a: Array, by: Array) -> Array:
    """Zeros come in; a shift by the width or more leaves none of ``a``."""
    if by.size == 1:
        return a << a.dtype.type(by[0]) if by[0] < _bits(a) else np.zeros_like(a)
    return np.where(by < _bits(a), a << np.minimum(by, _bits(a) - 1).astype(a.dtype), a.dtype.type(0))


def shift_right(a: Array, by: Array) -> Array:
    """Zeros or, for signed ``a``, signs come in; a shift by the width or more leaves nothing else."""
    if by.size == 1 and by[0] < _bits(a):
        return a >> a.dtype.type(by[0])
    moved = a >> np.minimum(by, _bits(a) - 1).astype(a.dtype)
    return moved if a.dtype.kind == "i" else np.where(by < _bits(a), moved, a.dtype.type(0))


def _no_zero(b: Array) -> None:
    if not b.all():
        raise LaneError("divides by zero", b == 0)


def quotient(a: Array, b: Array) -> Array:
    """Rounded toward zero."""
    _no_zero(b)
    return (a - np.fmod(a, b)) // b


def remainder(a: Array, b: Array) -> Array:
    """With the sign of ``a``."""
    _no_zero(b)
    return np.fmod(a, b)


def insert_bits(a: Array, b: Array, start: Array, length: Array) -> Array:
    """``b`` with the lowest ``length`` bits of ``a`` from bit ``start`` on."""
    start, length = start & np.uint32(0xFF), length & np.uint32(0xFF)
    mask = shift_left(~shift_left(~np.zeros(1, a.dtype), length), start)
    return (b & ~mask) | (shift_left(a, start) & mask)


def _wide(a: Array, b: Array) -> Array:
    double = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
    return np.multiply(a, b, dtype=double)


def product_high(a: Array, b: Array) -> Array:
    """The upper half of the product."""
    if _bits(a) < 64:
        return (_wide(a, b) >> _bits(a)).astype(a.dtype)
    x, y, half, low = a.view(np.uint64), b.view(np.uint64), np.uint64(32), np.uint64(0xFFFFFFFF)
    cross = (x & low) * (y >> half) + ((x & low) * (y & low) >> half)
    more = (x >> half) * (y & low) + (cross & low)
    upper = (x >> half) * (y >> half) + (cross >> half) + (more >> half)
    if a.dtype.kind == "i":
        upper = upper - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    return upper.view(a.dtype)


def _integers() -> None:
    for bits in (16, 32, 64):
        for kind in (f"s{bits}", f"u{bits}"):
            word = f"b{bits}"
            _enter(f"add.{kind}", np.add, f"{word} {word}", word)
            _enter(f"sub.{kind}", np.subtract, f"{word} {word}", word)
            _enter(f"mul.lo.{kind}", np.multiply, f"{word} {word}", word)
            _enter(f"mad.lo.{kind}", lambda a, b, c: a * b + c, f"{word} {word} {word}", word)
            _enter(f"div.{kind}", quotient, f"{kind} {kind}", kind)
            _enter(f"rem.{kind}", remainder, f"{kind} {kind}", kind)
            _enter(f"min.{kind}", np.minimum, f"{kind} {kind}", kind)
            _enter(f"max.{kind}", np.maximum, f"{kind} {kind}", kind)
            _enter(f"mul.hi.{kind}", product_high, f"{kind} {kind}", kind)
            _enter(f"shr.{kind}", shift_right, f"{kind} u32", kind)
            if bits < 64:
                double = f"{kind[0]}{2 * bits}"
                _enter(f"mul.wide.{kind}", _wide, f"{kind} {kind}", double)
                _enter(f"mad.wide.{kind}", lambda a, b, c: _wide(a, b) + c, f"{kind} {kind} {double}", double)
        _enter(f"neg.s{bits}", np.negative, f"s{bits}", f"s{bits}")
        _enter(f"abs.s{bits}", np.abs, f"s{bits}", f"s{bits}")
        _enter(f"shl.b{bits}", shift_left, f"b{bits} u32", f"b{bits}")
        _enter(f"shr.b{bits}", shift_right, f"b{bits} u32", f"b{bits}")
        if bits > 16:
            _enter(f"bfi.b{bits}", insert_bits, f"b{bits} b{bits} u32 u32", f"b{bits}")
    for kind in ("b16", "b32", "b64", "pred"):
        for name, function in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)):
            _enter(f"{name}.{kind}", function, f"{kind} {kind}", kind)
        _enter(f"not.{kind}", np.invert, kind, kind)


# -- comparisons


def _ordered(compare: Function) -> Function:
    """``compare``, and false for NaN. Only ``!=`` needs it: numpy's others are false for NaN already."""
    return lambda a, b: compare(a, b) & ~(np.isnan(a) | np.isnan(b))


def _or_nan(compare: Function) -> Function:
    return lambda a, b: compare(a, b) | np.isnan(a) | np.isnan(b)


def _comparisons() -> None:
    plain: dict[str, Function] = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal}
    plain |= {"gt": np.greater, "ge": np.greater_equal}
    unsigned = {"lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal}
    for bits in (16, 32, 64):
        for name, function in plain.items():
            for kind in (f"s{bits}", f"u{bits}"):
                _compare(name, kind, function)
        for name in ("eq", "ne"):
            _compare(name, f"b{bits}", plain[name])
        for name, function in unsigned.items():
            _compare(name, f"u{bits}", function)
    for kind in ("f32", "f64"):
        for name, function in plain.items():
            _compare(name, kind, _ordered(function) if name == "ne" else function)
            _compare(f"{name}u", kind, _or_nan(function))
        _compare("num", kind, lambda a, b: ~(np.isnan(a) | np.isnan(b)))
        _compare("nan", kind, lambda a, b: np.isnan(a) | np.isnan(b))


def _compare(name: str, kind: str, function: Function) -> None:
    _enter(f"setp.{name}.{kind}", function, f"{kind} {kind}", "pred")
    joined: dict[str, Function] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
    for word, join in joined.items():
        both = lambda a, b, p, join=join: join(function(a, b), p)  # noqa: E731
        _enter(f"setp.{name}.{word}.{kind}", both, f"{kind} {kind} pred", "pred")


def _choices() -> None:
    for kind in DTYPES:
        if kind not in ("pred", "b8", "u8", "s8"):
            _enter(f"selp.{kind}", lambda a, b, p: np.where(p, a, b), f"{kind} {kind} pred", kind)
        if kind not in ("b8", "u8", "s8"):
            _enter(f"mov.{kind}", _copy, kind, kind)


# -- floats


def _floats() -> None:
    for kind in ("f32", "f64"):
        two, three = f"{kind} {kind}", f"{kind} {kind} {kind}"
        binary = {"add": f.add, "sub": f.subtract, "mul": f.multiply}
        for name, function in binary.items():
            _enter(f"{name}.{kind}", function, two, kind)
            _enter(f"{name}.rn.{kind}", function, two, kind)
        _enter(f"div.rn.{kind}", f.divide, two, kind)
        _enter(f"rcp.rn.{kind}", f.reciprocal, kind, kind)
        _enter(f"sqrt.rn.{kind}", f.square_root, kind, kind)
        _enter(f"max.{kind}", f.greater, two, kind)
        _enter(f"min.{kind}", f.lesser, two, kind)
        _enter(f"neg.{kind}", np.negative, kind, kind)
        _enter(f"abs.{kind}", np.abs, kind, kind)
        if kind == "f32":
            _enter("fma.rn.f32", f.fma, three, kind)
            _enter("fma.rm.f32", f.fma_down, three, kind)
            _enter("fma.rz.f32", f.fma_toward_zero, three, kind)
            _enter("add.rz.f32", f.add_toward_zero, two, kind)
            _enter("add.rm.f32", f.add_down, two, kind)
    approximate: dict[str, Function] = {
        "ex2": np.exp2,
        "lg2": np.log2,
        "rcp": lambda a: 1 / a,
        "sqrt": np.sqrt,
        "rsqrt": lambda a: 1 / np.sqrt(a),
    }
    for name, function in approximate.items():
        _enter(f"{name}.approx.f32", lambda a, g=function: f.approximate(g, a), "f32", "f32")
        flushed = lambda a, g=function: f.flush(f.approximate(g, f.flush(a)))  # noqa: E731
        _enter(f"{name}.approx.ftz.f32", flushed, "f32", "f32")


# -- conversions


def _to_integer(round_: Function, kind: str) -> Function:
    """Rounded to an integer, clamped to the type; NaN becomes 0."""
    least, most = np.iinfo(DTYPES[kind]).min, np.iinfo(DTYPES[kind]).max

    def convert(a: Array) -> Array:
        whole = round_(a.astype(np.float64))
        inside = np.where(np.isnan(whole) | (whole <= least) | (whole >= most), 0, whole).astype(DTYPES[kind])
        inside = np.where(whole >= most, DTYPES[kind].type(most), inside)
        return np.where(whole <= least, DTYPES[kind].type(least), inside)

    return convert


def _pair_of_bf16(upper: Array, lower: Array) -> Array:
    """The first operand becomes the upper half."""
    return (f.bf16_bits(upper).astype(np.uint32) << np.uint32(16)) | f.bf16_bits(lower)


def _conversions() -> None:
    integers = [kind for kind in DTYPES if kind[0] in "us"]
    whole: dict[str, Function] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
    for source in integers:
        for goal in integers:
            _enter(f"cvt.{goal}.{source}", lambda a, d=DTYPES[goal]: a.astype(d), source, goal)
        for goal in ("f32", "f64"):
            _enter(f"cvt.rn.{goal}.{source}", lambda a, d=DTYPES[goal]: a.astype(d), source, goal)
            for name, function in whole.items():
                _enter(f"cvt.{name}.{source}.{goal}", _to_integer(function, source), goal, source)
    for kind in ("f32", "f64"):
        _enter(f"cvt.sat.{kind}.{kind}", f.saturate, kind, kind)
        for name, function in whole.items():
            _enter(f"cvt.{name}.{kind}.{kind}", lambda a, g=function: f.canonical(g(a)), kind, kind)
    _enter("cvt.f64.f32", lambda a: f.canonical(a.astype(np.float64)), "f32", "f64")
    _enter("cvt.rn.f32.f64", lambda a: f.canonical(a.astype(np.float32)), "f64", "f32")
    _enter("cvt.rn.bf16.f32", f.bf16_bits, "f32", "b16")
    _enter("cvt.rn.bf16x2.f32", _pair_of_bf16, "f32 f32", "b32")
    _enter("cvt.f32.bf16", lambda a: (a.astype(np.uint32) << np.uint32(16)).view(np.float32), "b16", "f32")


for _fill in (_integers, _comparisons, _choices, _floats, _conversions):
    _fill()
