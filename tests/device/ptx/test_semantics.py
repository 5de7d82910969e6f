"""What single opcodes compute, against values worked out by hand and against exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from metrale.device.ptx.faults import LaneError
from metrale.device.ptx.semantics import DTYPES, TABLE

NAN, INF = float("nan"), float("inf")
ULP = 2.0**-23
"""Of fp32 from 1 to 2."""
TINY = 2.0**-149
"""The smallest fp32."""


def op(name, *operands):
    """The results as a list; operands are lists or numbers."""
    with np.errstate(all="ignore"):
        return raw(name, *operands).tolist()


def raw(name, *operands):
    operation = TABLE[name]
    arrays = []
    for operand, kind in zip(operands, operation.takes, strict=True):
        values = operand if isinstance(operand, list) else [operand]
        dtype = DTYPES[kind]
        whole = [value & (1 << dtype.itemsize * 8) - 1 for value in values] if dtype.kind in "iu" else values
        arrays.append(
            np.array(whole, f"u{dtype.itemsize}").view(dtype) if dtype.kind in "iu" else np.array(whole, dtype)
        )
    result = operation.function(*arrays)
    assert result.dtype == DTYPES[operation.gives]
    return result


def bits(name, *operands):
    with np.errstate(all="ignore"):
        result = raw(name, *operands)
    return [hex(word) for word in result.view(f"u{result.dtype.itemsize}").tolist()]


# -- rounding


def test_a_fused_multiply_add_rounds_once():
    """(1 + 2^-12)^2 lies halfway between two fp32, and 2^-60 is too small for fp64 to say on which side."""
    a = 1 + 2.0**-12
    assert op("fma.rn.f32", a, a, [0.0, 2.0**-60, -(2.0**-60)]) == [
        1 + 2.0**-11,
        1 + 2.0**-11 + ULP,
        1 + 2.0**-11,
    ]
    assert op("fma.rn.f32", 1 + ULP, 1.0, [ULP / 2, ULP / 2 * (1 - ULP)]) == [1 + 2 * ULP, 1 + ULP]
    assert op("fma.rn.f32", 1 + ULP, 1 + ULP, -(1 + 2 * ULP)) == [ULP * ULP]


def test_a_fused_multiply_add_among_the_smallest():
    """2^-150 is halfway to the smallest fp32; a little more is not."""
    assert op("fma.rn.f32", 2.0**-75, 2.0**-75, [0.0, TINY]) == [0.0, 2 * TINY]
    assert op("fma.rn.f32", [2.0**-75, 2.0**-75 * (1 + ULP)], 2.0**-75, 0.0) == [0.0, TINY]
    assert op("fma.rn.f32", 1.5, TINY, [0.0]) == [2 * TINY]


def test_a_fused_multiply_add_beyond_the_greatest():
    most = 2.0**128 - 2.0**104
    assert op("fma.rn.f32", 1.0, most, [2.0**102, 2.0**103]) == [most, INF]
    assert bits("fma.rn.f32", [INF, INF, NAN, 0.0], [0.0, 1.0, 1.0, -1.0], [1.0, -INF, 1.0, 0.0]) == [
        "0x7fffffff",
        "0x7fffffff",
        "0x7fffffff",
        "0x0",
    ]


def test_directed_rounding():
    assert op("fma.rm.f32", 1.0, 1.0, [2.0**-30, -(2.0**-30)]) == [1.0, 1 - ULP / 2]
    assert op("fma.rm.f32", 1.0, -1.0, [2.0**-30, -(2.0**-30)]) == [-1.0, -1 - ULP]
    assert bits("fma.rm.f32", 1.0, [1.0, 0.0], [-1.0, 0.0]) == ["0x80000000", "0x0"]
    assert op("fma.rm.f32", 1.0, [2.0**127, -(2.0**127)], [2.0**127, -(2.0**127)]) == [2.0**128 - 2.0**104, -INF]
    assert op("add.rz.f32", [1.0, 1.0, -1.0, -1.0], [2.0**-30, -(2.0**-30), 2.0**-30, -(2.0**-30)]) == [
        1.0,
        1 - ULP / 2,
        -1 + ULP / 2,
        -1.0,
    ]
    assert bits("add.rz.f32", [1.0, -0.0], [-1.0, -0.0]) == ["0x0", "0x80000000"]
    assert op("add.rn.f32", 1.0, [ULP / 2, ULP / 2 * (1 + ULP)]) == [1.0, 1 + ULP]


def nearest(exact, step_down):
    """fp32 of a rational: to nearest even, or down."""
    if exact == 0:
        return 0.0
    exponent = max(-149, (abs(exact.numerator).bit_length() - exact.denominator.bit_length()) - 24)
    while abs(exact) >= Fraction(2) ** (exponent + 24):
        exponent += 1
    unit = Fraction(2) ** exponent
    whole = exact / unit
    return float((whole.numerator // whole.denominator if step_down else round(whole)) * unit)


@pytest.mark.parametrize(("name", "down"), [("fma.rn.f32", False), ("fma.rm.f32", True)])
def test_rounding_against_rational_numbers(name, down):
    """Products and addends of every distance, near cancellation and near the smallest numbers."""
    random = np.random.default_rng(8)
    a, b = (random.normal(size=3000).astype(np.float32) for _ in range(2))
    a[1000:2000] *= np.float32(2.0**-70)
    b[1000:2000] *= np.float32(2.0**-70)
    c = (-(a * b) * (1 + random.integers(-3, 4, 3000) * ULP)).astype(np.float32)
    c[::3] = np.ldexp(c[::3], random.integers(-60, 4, len(c[::3])))
    got = op(name, a.tolist(), b.tolist(), c.tolist())
    exact = [Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) for x, y, z in zip(a, b, c, strict=True)]
    assert got == [nearest(value, down) for value in exact]


# -- floats


def test_not_a_number_and_zeros():
    assert bits("max.f32", [NAN, 1.0, NAN, -0.0, 0.0], [2.0, NAN, NAN, 0.0, -0.0]) == [
        "0x40000000",
        "0x3f800000",
        "0x7fffffff",
        "0x0",
        "0x0",
    ]
    assert bits("min.f32", [-0.0, 0.0, 3.0], [0.0, -0.0, 2.0]) == ["0x80000000", "0x80000000", "0x40000000"]
    assert op("cvt.sat.f32.f32", [NAN, -1.0, 0.25, 7.0, INF]) == [0.0, 0.0, 0.25, 1.0, 1.0]
    assert bits("add.f32", INF, -INF) == ["0x7fffffff"]
    assert bits("neg.f32", [0.0, -1.0]) == ["0x80000000", "0x3f800000"]
    assert op("rcp.rn.f32", [0.0, -0.0, 3.0]) == [INF, -INF, float(np.float32(1) / np.float32(3))]
    assert op("div.rn.f32", [1.0, 0.0], [10.0, 5.0]) == [float(np.float32(0.1)), 0.0]


def test_two_to_the_power():
    """ftz: what is below the smallest normal number is 0, coming in and going out."""
    assert op("ex2.approx.ftz.f32", [0.0, 1.0, -1.5, 2.0**-140, -126.0, -126.5, -INF, 128.0]) == [
        1.0,
        2.0,
        float(np.float32(2.0**-1.5)),
        1.0,
        2.0**-126,
        0.0,
        0.0,
        INF,
    ]
    assert op("ex2.approx.f32", -127.0) == [2.0**-127]
    assert op("lg2.approx.f32", [8.0, 0.0]) == [3.0, -INF]


COMPARED = {
    "eq": (False, True, False),
    "ne": (True, False, False),
    "lt": (True, False, False),
    "le": (True, True, False),
    "gt": (False, False, False),
    "ge": (False, True, False),
}


@pytest.mark.parametrize("name", COMPARED)
def test_comparisons_with_not_a_number(name):
    """1 with 2, 1 with 1, NaN with 1; the unordered ones say yes to NaN."""
    wanted = COMPARED[name]
    assert op(f"setp.{name}.f32", [1.0, 1.0, NAN], [2.0, 1.0, 1.0]) == list(wanted)
    assert op(f"setp.{name}u.f32", [1.0, 1.0, NAN], [2.0, 1.0, 1.0]) == [*wanted[:2], True]


def test_other_comparisons():
    assert op("setp.lt.s32", [-1, 1], [1, -1]) == [True, False]
    assert op("setp.lt.u32", [-1, 1], [1, -1]) == [False, True]
    assert op("setp.num.f32", [1.0, NAN], [1.0, 1.0]) == [True, False]
    assert op("setp.lt.and.s32", [1, 1], 2, [True, False]) == [True, False]


# -- conversions


def test_to_bf16():
    """Ties go to even; beyond the greatest is infinity; NaN is one pattern."""
    values = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0xFF800000, 0x7F800001, 0x80000001], np.uint32)
    floats = values.view(np.float32)
    function = TABLE["cvt.rn.bf16.f32"].function
    assert [hex(word) for word in function(floats)] == [
        "0x3f80",
        "0x3f82",
        "0x3f81",
        "0x7f80",
        "0xff80",
        "0x7fff",
        "0x8000",
    ]
    assert bits("cvt.rn.bf16x2.f32", 1.0, -2.0) == ["0x3f80c000"]


def test_between_integers():
    assert op("cvt.s64.s32", -5) == [-5]
    assert op("cvt.u64.u32", -5) == [2**32 - 5]
    assert op("cvt.u32.u64", 2**40 + 7) == [7]
    assert op("cvt.s32.s8", 0xFF) == [-1]


def test_between_integers_and_floats():
    assert op("cvt.rn.f32.s32", [16777217, 16777219, -16777217]) == [16777216.0, 16777220.0, -16777216.0]
    assert op("cvt.rzi.s32.f32", [-1.9, 3e9, -3e9, NAN]) == [-1, 2**31 - 1, -(2**31), 0]
    assert op("cvt.rni.s32.f32", [0.5, 1.5, -2.5]) == [0, 2, -2]
    assert op("cvt.rzi.u32.f32", [-1.0, 5e9]) == [0, 2**32 - 1]
    assert op("cvt.rni.f32.f32", [0.5, 1.5, -0.4]) == [0.0, 2.0, -0.0]
    assert op("cvt.rn.f32.f64", 1 + 2.0**-24 + 2.0**-50) == [1 + ULP]


# -- integers


def test_division_rounds_toward_zero():
    assert op("div.s64", [-7, 7, -7, -(2**63)], [2, -2, -2, -1]) == [-3, -3, 3, -(2**63)]
    assert op("rem.s64", [-7, 7, -7], [2, -2, -2]) == [-1, 1, -1]
    assert op("div.u32", -7, 2) == [(2**32 - 7) // 2]
    with pytest.raises(LaneError, match="divides by zero"):
        op("div.s64", [1, 1], [1, 0])


def test_shifts_clamp():
    assert op("shl.b32", 0xFFFFFFFF, [0, 4, 31, 32, 99]) == [0xFFFFFFFF, 0xFFFFFFF0, 0x80000000, 0, 0]
    assert op("shl.b64", 1, 64) == [0]
    assert op("shr.s64", -8, [1, 63, 64, 1000]) == [-4, -1, -1, -1]
    assert op("shr.u64", -8, [1, 64]) == [2**63 - 4, 0]


def test_products():
    a, b = -(2**62) + 12345, 2**61 + 987654321
    assert op("mul.lo.s64", a, b) == [a * b % 2**64]
    assert op("mul.hi.s64", [a, b, a], [b, b, a]) == [a * b >> 64, b * b >> 64, a * a >> 64]
    assert op("mul.hi.u64", a, b) == [(a % 2**64) * b >> 64]
    assert op("mul.wide.s32", -3, 2**30) == [-3 * 2**30]
    assert op("mul.wide.u32", -1, -1) == [(2**32 - 1) ** 2]
    assert op("mad.lo.s32", 3, 5, -16) == [2**32 - 1]
    assert op("add.s64", 2**63 - 1, 1) == [2**63]


def test_bits():
    assert op("bfi.b64", 0xABCDEF01, 0x1122334455667788, 32, 32) == [0xABCDEF0155667788]
    assert op("bfi.b32", 0xFF, 0, [4, 28, 40], [4, 8, 8]) == [0xF0, 0xF0000000, 0]
    assert op("bfi.b32", 0xFF, 0x12345678, 0, 0) == [0x12345678]
    assert op("selp.f32", 1.0, 2.0, [True, False]) == [1.0, 2.0]
    assert op("not.pred", [True, False]) == [False, True]
    assert op("not.b32", 0) == [0xFFFFFFFF]
