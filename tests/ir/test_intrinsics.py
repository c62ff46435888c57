"""The table of intrinsics and the functions that build calls."""

from __future__ import annotations

import math

import pytest

from tilewright.ir import expr as e
from tilewright.ir import intrinsics
from tilewright.ir.build import const
from tilewright.ir.dtype import BOOL, FLOAT32, INDEX, INT32, DataType
from tilewright.ir.expr import Call, Var
from tilewright.support.errors import UserError

X, Y, N = Var("x", FLOAT32), Var("y", FLOAT32), Var("n", INT32)
NAMES = """exp exp2 log log2 log10 log1p expm1 sqrt rsqrt pow sin cos tan asin acos atan atan2 sinh cosh tanh asinh
acosh atanh erf sigmoid floor ceil round trunc abs fma isnan isinf isfinite copysign bitwise_and bitwise_or bitwise_xor
bitwise_not shift_left shift_right popcount clz likely reinterpret""".split()


def test_the_table_is_complete() -> None:
    assert set(NAMES) <= set(intrinsics.table)
    for item in intrinsics.table.values():
        assert item.doc
        assert item.accepts in ("float", "integer", "number", "byte", "word", "bool", "any")


@pytest.mark.parametrize("name", [name for name in NAMES if intrinsics.table[name].accepts == "float"])
def test_float_builders(name: str) -> None:
    build = getattr(intrinsics, name)
    arity = intrinsics.table[name].arity
    call = build(*[X, Y, X][:arity])
    assert isinstance(call, Call)
    assert call.name == name
    assert call.dtype is (BOOL if name.startswith("is") else FLOAT32)
    assert build.__doc__
    with pytest.raises(UserError, match=f"{name} needs floating-point values, not int32"):
        build(*[e.Add(N, const(1, INT32))] * arity) if name not in intrinsics.ROUNDINGS else intrinsics.check(
            name, (N,)
        )


@pytest.mark.parametrize("dtype", ["int4", "int8", "int16", "uint32", "int64", "float32"])
def test_words_are_of_four_bytes(dtype: str) -> None:
    """Integers of other widths do not hold what words are: they are refused, and not cut off or filled up."""
    value = Var("v", DataType.of(dtype))
    with pytest.raises(UserError, match=rf"dot4 needs words of four bytes \(int32\), not {dtype}"):
        intrinsics.dot4(value, value)
    if dtype == "int8":
        assert intrinsics.word(*[value] * 4).dtype is INT32
        assert intrinsics.word(*[e.Broadcast(value, 2)] * 4).dtype is INT32.with_lanes(2)
        return
    with pytest.raises(UserError, match=f"word needs integers of 8 bits, not {dtype}"):
        intrinsics.word(*[value] * 4)


def test_integers_pass_roundings() -> None:
    for name in intrinsics.ROUNDINGS:
        assert intrinsics.call(name, N) is N
    unsigned = Var("u", DataType.of("uint8"))
    assert intrinsics.abs(unsigned) is unsigned
    assert intrinsics.fabs(N) is Call("abs", (N,), INT32)


def test_arguments_are_brought_to_one_type() -> None:
    call = intrinsics.pow(X, 2)
    assert isinstance(call, Call)
    assert call.args == (X, const(2.0))
    wide = Var("w", DataType.of("float64"))
    mixed = intrinsics.atan2(X, wide)
    assert mixed.dtype.name == "float64"
    assert intrinsics.exp(1) is Call("exp", (const(1.0),), FLOAT32)
    vector = e.Broadcast(X, 4)
    assert intrinsics.copysign(vector, Y).dtype.name == "float32x4"
    assert intrinsics.isnan(vector).dtype.name == "boolx4"


def test_checks() -> None:
    with pytest.raises(UserError, match="unknown intrinsic 'sine'"):
        intrinsics.call("sine", X)
    with pytest.raises(UserError, match="exp takes 1 arguments, not 2"):
        intrinsics.call("exp", X, Y)
    with pytest.raises(UserError, match="popcount needs integer, not float32"):
        intrinsics.popcount(X)
    with pytest.raises(UserError, match="abs needs numbers, not bool"):
        intrinsics.abs(e.LT(X, Y))
    with pytest.raises(UserError, match="the result type of reinterpret must be given"):
        intrinsics.call("reinterpret", X)
    with pytest.raises(UserError, match="reinterpret from float32 to int64: the widths differ"):
        intrinsics.reinterpret(X, "int64")


def test_reinterpret_and_effects() -> None:
    assert intrinsics.reinterpret(X, "float32") is X
    assert intrinsics.reinterpret(X, "int32").dtype is INT32
    barrier = intrinsics.barrier()
    extern = intrinsics.call_extern("int32", "f", X, 1)
    assert isinstance(barrier, Call)
    assert isinstance(extern, Call)
    assert not intrinsics.is_pure(barrier)
    assert not intrinsics.is_pure(extern)
    assert not intrinsics.is_pure(Call("unknown", (), INDEX))
    assert intrinsics.is_pure(Call("exp", (X,), FLOAT32))


def test_limits_and_truth() -> None:
    assert intrinsics.infinity("float32") is const(math.inf, "float32")
    assert intrinsics.lowest("int8") is const(-128, "int8")
    assert intrinsics.infinity("uint8") is const(255, "uint8")
    assert intrinsics.lowest("float16") is const(-math.inf, "float16")


def test_builders_by_name() -> None:
    builders = intrinsics.builders()
    assert "exp" in builders
    assert "bitwise_and" in builders
    assert "barrier" not in builders
    assert builders["sqrt"](X) is intrinsics.sqrt(X)


def test_back_ends_can_add_intrinsics() -> None:
    intrinsics.define("test.sum", 2, "integer", None, "a test")
    try:
        assert intrinsics.call("test.sum", N, N).dtype is INT32
    finally:
        del intrinsics.table["test.sum"]
