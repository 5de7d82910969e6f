"""Float operations of the PTX ISA on numpy arrays, rounded once.

The product of two fp32 is exact in fp64. A sum in fp64 is rounded, but its error is an fp64 too (Knuth's TwoSum), so
the exact result of a fused multiply-add is the pair ``total + error``. Rounding ``total`` to fp32 would round twice;
where that can matter, ``total`` is first rounded to odd: of the two fp64 beside an inexact result the one whose last
bit is 1. fp64 has more than two bits more than fp32, so rounding that to nearest gives what one rounding gives (Boldo
and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008).

NaN that an operation makes is 0x7FFFFFFF. Functions answer new arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
F32, F64, U32, U64 = np.float32, np.float64, np.uint32, np.uint64
NAN32 = np.array([0x7FFFFFFF], U32).view(F32)
NAN64 = np.array([0x7FFFFFFFFFFFFFFF], U64).view(F64)
SMALLEST = F32(2.0**-126)
"""The smallest normal fp32."""
_LOW, _HALF, _ONE = U64(0x1FFFFFFF), U64(0x10000000), U64(1)


def canonical(result: Array) -> Array:
    """``result`` with every NaN the canonical one, in place."""
    bad = np.isnan(result)
    if bad.any():
        result[bad] = (NAN32 if result.dtype == F32 else NAN64)[0]
    return result


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Rounded sum and its error, exactly a + b where that is finite."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _odd(total: Array, error: Array) -> Array:
    """``total + error`` rounded to odd in fp64."""
    even = (total.view(U64) & _ONE) == 0
    move = even & (error != 0) & np.isfinite(error) & np.isfinite(total)
    return np.where(move, np.nextafter(total, np.copysign(np.inf, error)), total)


def fma(a: Array, b: Array, c: Array) -> Array:
    """a b + c in fp32, to nearest even."""
    product = np.multiply(a, b, dtype=F64)
    total = product + c
    result = total.astype(F32)
    # Twice rounded is wrong only where fp64's extra bits lie on a tie, or where fp32 has fewer bits than usual.
    doubtful = (total.view(U64) & _LOW) == _HALF
    small = np.abs(result) <= SMALLEST
    if small.any():
        doubtful |= small & (total != 0)
    if doubtful.any():
        where = np.nonzero(doubtful)[0]
        product, c = np.broadcast_to(product, total.shape), np.broadcast_to(c, total.shape)
        result[where] = _odd(*_two_sum(product[where], c[where].astype(F64))).astype(F32)
    return canonical(result)


def _directed(total: Array, error: Array, toward_zero: bool) -> Array:
    """``total + error`` to fp32, toward zero or toward minus infinity."""
    result = total.astype(F32)
    excess = result.astype(F64) - total
    excess = np.where(excess == 0, -error, excess)
    if toward_zero:
        excess = np.where(total < 0, -excess, excess)
        step = np.nextafter(result, F32(0))
    else:
        step = np.nextafter(result, F32(-np.inf))
    return np.where((excess > 0) & np.isfinite(total), step, result)


def fma_down(a: Array, b: Array, c: Array) -> Array:
    """a b + c in fp32, toward minus infinity."""
    product = np.multiply(a, b, dtype=F64)
    return canonical(_down(product, c.astype(F64)))


def _down(a: Array, b: Array) -> Array:
    total, error = _two_sum(a, b)
    result = _directed(total, error, toward_zero=False)
    zero = (total == 0) & (np.signbit(a) | np.signbit(b))
    return np.where(zero, F32(-0.0), result) if zero.any() else result


def fma_toward_zero(a: Array, b: Array, c: Array) -> Array:
    """a b + c in fp32, toward zero."""
    product = np.multiply(a, b, dtype=F64)
    return canonical(_directed(*_two_sum(product, c.astype(F64)), toward_zero=True))


def add_toward_zero(a: Array, b: Array) -> Array:
    """a + b in fp32, toward zero."""
    return canonical(_directed(*_two_sum(a.astype(F64), b.astype(F64)), toward_zero=True))


def add_down(a: Array, b: Array) -> Array:
    """a + b in fp32, toward minus infinity."""
    return canonical(_down(a.astype(F64), b.astype(F64)))


def add(a: Array, b: Array) -> Array:
    """a + b, to nearest even."""
    return canonical(a + b)


def subtract(a: Array, b: Array) -> Array:
    """a - b, to nearest even."""
    return canonical(a - b)


def multiply(a: Array, b: Array) -> Array:
    """a b, to nearest even."""
    return canonical(a * b)


def divide(a: Array, b: Array) -> Array:
    """a / b, to nearest even."""
    return canonical(a / b)


def reciprocal(a: Array) -> Array:
    """1 / a, to nearest even."""
    return canonical(a.dtype.type(1) / a)


def square_root(a: Array) -> Array:
    """The root, to nearest even."""
    return canonical(np.sqrt(a))


def greater(a: Array, b: Array) -> Array:
    """The greater; a number before NaN, +0 before -0."""
    return _chosen(np.fmax(a, b), a, b, np.bitwise_and)


def lesser(a: Array, b: Array) -> Array:
    """The lesser; a number before NaN, -0 before +0."""
    return _chosen(np.fmin(a, b), a, b, np.bitwise_or)


def _chosen(result: Array, a: Array, b: Array, zeros: Any) -> Array:
    word = U32 if result.dtype == F32 else U64
    if not result.all():
        both = (a == 0) & (b == 0)
        result = np.where(both, zeros(a.view(word), b.view(word)).view(result.dtype), result)
    return canonical(result)


def saturate(a: Array) -> Array:
    """Into [0, 1]; NaN becomes +0."""
    return np.where(a > 0, np.minimum(a, a.dtype.type(1)), a.dtype.type(0))


def flush(a: Array) -> Array:
    """fp32 subnormals to a zero of their sign."""
    return np.where(np.abs(a) < SMALLEST, np.copysign(F32(0), a), a)


def approximate(function: Any, a: Array) -> Array:
    """The fp64 function, rounded to fp32. The ISA allows hardware some units in the last place."""
    return canonical(function(a.astype(F64)).astype(F32))


def bf16_bits(a: Array) -> Array:
    """fp32 to bf16, to nearest even, as 16-bit integers; NaN becomes 0x7FFF."""
    bits = a.view(U32)
    rounded = ((bits + U32(0x7FFF) + ((bits >> U32(16)) & U32(1))) >> U32(16)).astype(np.uint16)
    return np.where(np.isnan(a), np.uint16(0x7FFF), rounded)
