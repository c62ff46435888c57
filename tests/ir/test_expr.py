"""Scalar expressions: interning, operators, types, and the errors of misuse."""

from __future__ import annotations

import math

import pytest

from tilewright.ir import build
from tilewright.ir import expr as e
from tilewright.ir.dtype import BOOL, FLOAT32, INDEX, INT8, INT32
from tilewright.ir.expr import FALSE, ONE, TRUE, ZERO, FloatImm, IntImm, StringImm, Var, const_value, is_const_int
from tilewright.support.errors import CompilerBug, UserError

X, Y = Var("x"), Var("y")
P, Q = Var("p", BOOL), Var("q", BOOL)


def test_equal_expressions_are_one_object():
    assert X + Y * 2 is X + Y * 2
    assert X + Y is not Y + X
    assert Var("x") is not Var("x")
    assert IntImm(1) is ONE
    assert IntImm(1, INT32) is not ONE


def test_float_constants_are_told_apart_by_bits():
    assert FloatImm(0.0, FLOAT32) is not FloatImm(-0.0, FLOAT32)
    assert FloatImm(math.nan, FLOAT32) is FloatImm(math.nan, FLOAT32)


def test_operators():
    assert X + 1 is e.Add(X, ONE)
    assert 1 + X is e.Add(ONE, X)
    assert X - 1 is e.Sub(X, ONE)
    assert 1 - X is e.Sub(ONE, X)
    assert X * 3 is e.Mul(X, IntImm(3))
    assert 3 * X is e.Mul(IntImm(3), X)
    assert X // 3 is e.FloorDiv(X, IntImm(3))
    assert 3 // X is e.FloorDiv(IntImm(3), X)
    assert X % 3 is e.FloorMod(X, IntImm(3))
    assert 3 % X is e.FloorMod(IntImm(3), X)
    assert X / 3 is e.Div(X, IntImm(3))
    assert 3 / X is e.Div(IntImm(3), X)
    assert -X is e.Sub(ZERO, X)
    assert (X < Y) is e.LT(X, Y)
    assert (X <= Y) is e.LE(X, Y)
    assert (X > Y) is e.LT(Y, X)
    assert (X >= Y) is e.LE(Y, X)
    assert X.eq(Y) is e.EQ(X, Y)
    assert X.ne(Y) is e.NE(X, Y)
    assert (P & Q) is e.And(P, Q)
    assert (P | Q) is e.Or(P, Q)
    assert (P ^ Q) is e.NE(P, Q)
    assert ~P is e.Not(P)
    assert (X & 3) is e.Call("bitwise_and", (X, IntImm(3)), INDEX)
    assert (X << 1) is e.Call("shift_left", (X, ONE), INDEX)
    assert (X >> 1) is e.Call("shift_right", (X, ONE), INDEX)
    assert X.astype("int8") is e.Cast(X, INT8)


def test_types():
    assert X.dtype is INDEX
    assert (X < Y).dtype is BOOL
    assert e.Ramp(X, ONE, 4).dtype is INDEX.with_lanes(4)
    assert e.LT(e.Ramp(X, ONE, 4), e.Broadcast(Y, 4)).dtype is BOOL.with_lanes(4)
    assert StringImm("a").dtype.name == "handle"
    assert e.Select(P, X, Y).dtype is INDEX


def test_an_expression_has_no_truth_value():
    with pytest.raises(UserError, match="no truth value"):
        bool(X < Y)


def test_expressions_are_not_iterable():
    with pytest.raises(TypeError, match="Var is not iterable"):
        iter(X)


def test_broken_invariants():
    with pytest.raises(CompilerBug, match="Add of int64 and int32"):
        e.Add(X, IntImm(1, INT32))
    with pytest.raises(CompilerBug, match="LT of int64 and int32"):
        e.LT(X, IntImm(1, INT32))
    with pytest.raises(CompilerBug, match="Select of int64"):
        e.Select(X, X, X)
    with pytest.raises(CompilerBug, match="2 is not a bool"):
        IntImm(2, BOOL)
    with pytest.raises(CompilerBug, match="cannot be of type float32"):
        IntImm(2, FLOAT32)
    with pytest.raises(UserError, match="300 does not fit int8"):
        IntImm(300, INT8)


def test_constants():
    assert is_const_int(ONE) and is_const_int(ONE, 1) and not is_const_int(ONE, 2) and not is_const_int(X)
    assert const_value(IntImm(5)) == 5
    assert const_value(X) is None
    assert build.const(True) is TRUE and build.const(False) is FALSE
