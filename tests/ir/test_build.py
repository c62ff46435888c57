"""Building expressions: conversion, promotion, folding."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.ir import build
from tilewright.ir import expr as e
from tilewright.ir.dtype import BOOL, FLOAT16, FLOAT32, FLOAT64, INDEX, INT8, INT32, UINT8, DataType
from tilewright.ir.expr import FALSE, TRUE, Broadcast, Call, Cast, FloatImm, IntImm, Var
from tilewright.support.errors import UserError

X, Y = Var("x"), Var("y")
F = Var("f", FLOAT32)
P = Var("p", BOOL)


def test_constants_take_their_type_from_python():
    assert build.const(3) is IntImm(3, INDEX)
    assert build.const(True) is TRUE
    assert build.const(2.5) is FloatImm(2.5, FLOAT32)
    assert build.const(np.int32(3)) is IntImm(3, INDEX)
    assert build.const(np.bool_(True)) is TRUE
    assert build.const(3.0, INT8) is IntImm(3, INT8)
    assert build.const(1, "float32x4") is Broadcast(FloatImm(1.0, FLOAT32), 4)


def test_constants_wrap_and_round():
    assert build.const(300, UINT8) is IntImm(44, UINT8)
    assert build.const(1 << 63) is IntImm(-(1 << 63), INDEX)
    assert build.const(0.1).value == float(np.float32(0.1))
    assert build.const(1e39).value == math.inf
    assert build.const(1e6, FLOAT16).value == math.inf
    assert build.const(1.00390625, "bfloat16").value == 1.0
    assert build.const(math.nan, "bfloat16").value != build.const(math.nan, "bfloat16").value
    with pytest.raises(UserError, match=r"2\.5 is not a int8"):
        build.const(2.5, INT8)


@given(st.integers(-(1 << 70), 1 << 70))
def test_wrapping_is_numpys(value):
    for name in ("int8", "uint8", "int32", "uint64"):
        dtype = DataType.of(name)
        expected = np.array(value & ((1 << 64) - 1), dtype=np.uint64).astype(dtype.numpy())
        assert build.wrap_int(value, dtype) == int(expected)


@given(st.floats(width=32, allow_nan=False))
def test_bfloat16_rounds_to_nearest(value):
    rounded = build.round_bfloat16(value)
    assert build.round_bfloat16(rounded) == rounded
    if math.isfinite(rounded) and abs(value) > 1e-30:
        assert abs(rounded - value) <= abs(value) * 2**-8


def test_as_expr():
    assert build.as_expr(X) is X
    assert build.as_expr(3, INT32) is IntImm(3, INT32)

    class Convertible:
        def as_prim_expr(self) -> e.PrimExpr:
            return X

    assert build.as_expr(Convertible()) is X
    assert build.add(Convertible(), 1) is X + 1
    with pytest.raises(UserError, match="is not a number or an expression"):
        build.as_expr("x")


def test_literals_take_the_type_of_the_other_side():
    small = Var("s", INT8)
    assert (small + 1).dtype is INT8
    assert (1 + small).dtype is INT8
    assert (F + 1).dtype is FLOAT32
    assert (X + 0.5) is e.Add(Cast(X, FLOAT32), FloatImm(0.5, FLOAT32))
    assert (0.5 + X) is e.Add(FloatImm(0.5, FLOAT32), Cast(X, FLOAT32))
    assert (small + X).dtype is INDEX
    assert (P.eq(1)) is e.EQ(P, TRUE)


def test_vectors_broadcast():
    vector = Var("v", FLOAT32.with_lanes(4))
    assert build.add(vector, F) is e.Add(vector, Broadcast(F, 4))
    assert build.mul(vector, 2.0).dtype is FLOAT32.with_lanes(4)
    with pytest.raises(UserError, match="vectors of 4 and 8 lanes do not mix"):
        build.add(Var("w", FLOAT32.with_lanes(8)), Var("v", FLOAT64.with_lanes(4)))


def test_obvious_folding():
    assert X + 0 is X
    assert 0 + X is X
    assert X - 0 is X
    assert X - X is IntImm(0)
    assert X * 1 is X
    assert X * 0 is IntImm(0)
    assert X // 1 is X
    assert X % 1 is IntImm(0)
    assert build.minimum(X, X) is X
    assert build.maximum(X, X) is X
    assert F - F is e.Sub(F, F)
    assert F * 0 is e.Mul(F, FloatImm(0.0, FLOAT32))
    assert build.neg(FloatImm(0.0, FLOAT32)) is FloatImm(-0.0, FLOAT32)
    assert -F is e.Mul(F, FloatImm(-1.0, FLOAT32))


@given(st.integers(-20, 20), st.integers(-20, 20))
def test_folding_of_constants(a, b):
    x, y = IntImm(a), IntImm(b)
    assert (x + y).value == a + b
    assert (x - y).value == a - b
    assert (x * y).value == a * b
    assert build.minimum(x, y).value == min(a, b)
    assert build.maximum(x, y).value == max(a, b)
    assert (x < y).value == (a < b)
    assert (x >= y).value == (a >= b)
    assert x.eq(y).value == (a == b)
    assert x.ne(y).value == (a != b)
    if b:
        assert (x // y).value == a // b
        assert (x % y).value == a % b
        assert (x / y).value == int(a / b)
        assert build.truncmod(x, y).value == math.fmod(a, b)
    else:
        assert isinstance(x // y, e.FloorDiv)
        assert isinstance(x % y, e.FloorMod)


def test_folding_of_floats():
    half, third = build.const(0.5), build.const(1 / 3)
    assert (half + third).value == float(np.float32(0.5) + np.float32(1 / 3))
    assert (half < third) is FALSE
    assert isinstance(half / third, e.Div)


def test_logic_folds():
    q = Var("q", BOOL)
    assert build.logical_and(P, True) is P
    assert build.logical_and(True, P) is P
    assert build.logical_and(P, False) is FALSE
    assert build.logical_and(P, P) is P
    assert build.logical_or(P, False) is P
    assert build.logical_or(P, True) is TRUE
    assert build.logical_or(P, P) is P
    assert build.logical_not(build.logical_not(P)) is P
    assert build.logical_not(TRUE) is FALSE
    assert build.all_of([]) is TRUE
    assert build.any_of([]) is FALSE
    assert build.all_of([P, q]) is e.And(P, q)
    assert build.any_of([P, q]) is e.Or(P, q)
    with pytest.raises(UserError, match="a condition must be bool, not int64"):
        build.logical_and(X, P)


def test_select():
    assert build.select(True, X, Y) is X
    assert build.select(P, X, X) is X
    assert build.select(P, X, 1) is e.Select(P, X, IntImm(1))
    with pytest.raises(UserError, match="a condition must be bool"):
        build.select(X, X, Y)


def test_division():
    assert build.div(F, 2.0).dtype is FLOAT32
    assert build.floordiv(F, 2.0) is Call("floor", (e.Div(F, FloatImm(2.0, FLOAT32)),), FLOAT32)
    assert build.floormod(F, 2.0).dtype is FLOAT32
    with pytest.raises(UserError, match="bool values do not divide"):
        build.div(P, P)


def test_casts():
    assert build.cast(X, INDEX) is X
    assert build.cast(IntImm(300), UINT8) is IntImm(44, UINT8)
    assert build.cast(FloatImm(2.7, FLOAT64), INT32) is IntImm(2, INT32)
    assert build.cast(FloatImm(-2.7, FLOAT64), INT32) is IntImm(-2, INT32)
    assert build.cast(build.const(math.inf), INT32) is Cast(build.const(math.inf), INT32)


@pytest.mark.parametrize(
    ("low", "high", "low_stays", "high_stays"),
    [(0.0, 255.0, False, False), (-1.0, 1e9, False, False), (3.0, 255.0, True, False), (0.0, 254.5, False, True)],
)
def test_casts_drop_limits_outside_their_type(low: float, high: float, low_stays: bool, high_stays: bool) -> None:
    """Conversion to bytes keeps to 0 ... 255 by itself; limits inside that range stay."""
    upper, lower = FloatImm(high, FLOAT32), FloatImm(low, FLOAT32)
    least = e.Max(F, lower) if low_stays else F
    expected = e.Min(e.Max(F, lower), upper) if high_stays else least
    assert build.cast(e.Min(e.Max(F, lower), upper), UINT8) is Cast(expected, UINT8)
    other = Var("g", FLOAT32)
    assert build.cast(e.Min(F, other), UINT8) is Cast(e.Min(F, other), UINT8), "no constant"
    assert build.cast(e.Min(F, upper), FLOAT64) is Cast(e.Min(F, upper), FLOAT64), "floats have room for all"
    assert build.cast(build.const(1e20, FLOAT64), INT32) is Cast(build.const(1e20, FLOAT64), INT32)
    vector = Var("v", INT32.with_lanes(4))
    assert build.cast(vector, FLOAT32).dtype is FLOAT32.with_lanes(4)


def test_bits():
    assert build.bitwise_xor(X, Y).dtype is INDEX
    assert build.bitwise_not(X) is Call("bitwise_not", (X,), INDEX)
    assert build.bitwise_not(P) is e.Not(P)
    with pytest.raises(UserError, match="bitwise_and needs integers, not float32"):
        build.bitwise_and(F, F)
    with pytest.raises(UserError, match="shift_left needs integers, not bool"):
        build.shift_left(P, P)


def test_constants_of_eight_bit_floats_are_rounded_to_their_type():
    assert build.const(0.1, "float8_e4m3fn").value == 0.1015625
    assert build.const(0.11675641, "float8_e4m3fn").value == 0.1171875
    assert build.const(1e-4, "float8_e4m3fn").value == 0.0
    assert math.isnan(build.const(500.0, "float8_e4m3fn").value)
    assert build.const(448.0, "float8_e4m3fn").value == 448.0
    assert build.const(3.3, "float8_e5m2").value == 3.5
    assert build.const(1e6, "float8_e5m2").value == math.inf
    assert math.copysign(1, build.const(-0.0, "float8_e5m2").value) == -1
