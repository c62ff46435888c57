"""Scalar evaluation against numpy, for every type and operation; the value model of small floats."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tir.programs import FLOATS, INTEGERS, constants, expressions
from tilewright.ir import expr as e
from tilewright.ir import intrinsics
from tilewright.ir.build import const, round_bfloat16, wrap_int
from tilewright.ir.dtype import BOOL, INDEX, DataType
from tilewright.ir.expr import PrimExpr, Var
from tilewright.support.errors import CompilerBug, UnsupportedError, UserError
from tilewright.tir import numbers
from tilewright.tir.buffer import BufferLoad, make_buffer
from tilewright.tir.evaluate import evaluate
from tilewright.tir.numbers import InterpreterError
from tilewright.tir.value_bounds import Bounds

NATIVE_FLOATS = ["float16", "float32", "float64"]
NATIVE_INTEGERS = [name for name in INTEGERS if not DataType.of(name).is_small_integer]
NUMPY_BINARY = {
    e.Add: np.add,
    e.Sub: np.subtract,
    e.Mul: np.multiply,
    e.Min: np.minimum,
    e.Max: np.maximum,
    e.EQ: np.equal,
    e.NE: np.not_equal,
    e.LT: np.less,
    e.LE: np.less_equal,
}


def nan_equal(a: object, b: object) -> bool:
    """Whether two scalars are the same value; NaN equals NaN."""
    return bool(a == b) or bool(a != a and b != b)


def numpy_scalar(imm: PrimExpr) -> np.generic:
    assert isinstance(imm, (e.IntImm, e.FloatImm))
    return imm.dtype.numpy().type(imm.value)


@given(st.data())
@settings(max_examples=100)
def test_binary_operations_are_numpys(data: st.DataObject) -> None:
    dtype = DataType.of(data.draw(st.sampled_from([*NATIVE_INTEGERS, *NATIVE_FLOATS])))
    a, b = data.draw(constants(dtype)), data.draw(constants(dtype))
    x, y = Var("x", dtype), Var("y", dtype)
    with np.errstate(all="ignore"):
        for kind, function in NUMPY_BINARY.items():
            expected = function(np.asarray([numpy_scalar(a)]), np.asarray([numpy_scalar(b)]))[0]
            got = evaluate(kind(x, y), {x: a.value, y: b.value})
            assert nan_equal(got, expected), (kind, a, b, got, expected)
        if dtype.is_float:
            for kind, function in {e.Div: np.divide, e.Mod: np.fmod}.items():
                assert nan_equal(evaluate(kind(a, b)), function(numpy_scalar(a), numpy_scalar(b)))
        elif b.value != 0:
            u, v = numpy_scalar(a), numpy_scalar(b)
            safe = not (dtype.is_int and a.value == dtype.min_value() and b.value == -1)
            if safe:
                assert evaluate(e.FloorDiv(a, b)) == int(u // v)
                assert evaluate(e.Mod(a, b)) == int(np.fmod(u, v))
            assert evaluate(e.FloorMod(a, b)) == int(np.mod(u, v))


@pytest.mark.parametrize("name", ["int8", "int64"])
def test_the_least_integer_divided_by_minus_one_wraps(name: str) -> None:
    dtype = DataType.of(name)
    least, minus_one = const(dtype.min_value(), dtype), const(-1, dtype)
    assert evaluate(e.FloorDiv(least, minus_one)) == dtype.min_value()
    assert evaluate(e.Div(least, minus_one)) == dtype.min_value()
    assert evaluate(intrinsics.call("abs", least)) == dtype.min_value()


@pytest.mark.parametrize("kind", [e.FloorDiv, e.FloorMod, e.Div, e.Mod])
def test_division_by_zero_is_reported(kind: type[e.BinaryExpr]) -> None:
    with pytest.raises(InterpreterError, match="integer division by zero"):
        evaluate(kind(const(1), const(0)))
    lazy = e.Select(e.NE(const(0), const(0)), kind(const(1), const(0)), const(7))
    assert evaluate(lazy) == 7


def test_short_circuit_and_lazy_selection() -> None:
    bad = e.EQ(e.FloorDiv(const(1), const(0)), const(1))
    false = e.LT(const(1), const(0))
    assert evaluate(e.And(false, bad)) is False
    assert evaluate(e.Or(e.Not(false), bad)) is True
    buffer = make_buffer("A", (2,))
    load = BufferLoad(buffer, (const(5),))
    data = {buffer: np.ones(2, np.float32)}
    assert evaluate(e.Select(false, load, const(2.0)), None, data) == 2.0
    with pytest.raises(InterpreterError, match="A is indexed with 5 in dimension 0 of extent 2"):
        evaluate(load, None, data)


@given(st.data())
@settings(max_examples=100)
def test_casts(data: st.DataObject) -> None:
    source = DataType.of(data.draw(st.sampled_from(["bool", *NATIVE_INTEGERS, *NATIVE_FLOATS])))
    target = DataType.of(data.draw(st.sampled_from(["bool", *NATIVE_INTEGERS, *NATIVE_FLOATS])))
    value = data.draw(constants(source))
    got = evaluate(e.Cast(value, target))
    raw = value.value
    if target.is_bool:
        assert got is (raw != 0)
    elif target.is_float:
        with np.errstate(all="ignore"):
            expected = np.asarray([raw], source.numpy()).astype(target.numpy())[0]
        assert nan_equal(got, expected)
        assert isinstance(got, target.numpy().type)
    elif source.is_float:
        whole = 0 if math.isnan(raw) else raw
        low, high = target.min_value(), target.max_value()
        assert got == (low if whole <= low else high if whole >= high else int(whole))
    else:
        assert got == wrap_int(int(raw), target)


def test_large_integers_round_once_to_float32() -> None:
    for value in (2**63 - 1, 2**53 + 1, 9007200328482817, -(2**62) - 2**38 - 1):
        got = evaluate(e.Cast(const(value), DataType.of("float32")))
        assert got == np.int64(value).astype(np.float32)
    assert evaluate(e.Cast(e.IntImm(2**64 - 1, DataType.of("uint64")), DataType.of("float32"))) == np.float32(2.0**64)
    assert evaluate(e.Cast(const(10**6), DataType.of("float16"))) == np.float16(np.inf)


@pytest.mark.parametrize("name", [n for n, i in intrinsics.table.items() if i.accepts == "float" and i.arity == 1])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_float_intrinsics(name: str, dtype: str) -> None:
    reference = intrinsics.table[name].reference
    assert reference is not None
    x = Var("x", DataType.of(dtype))
    for value in (0.0, -0.0, 0.5, -2.5, 3.5, 1e-3, 30.0, -30.0, math.inf, -math.inf, math.nan):
        got = evaluate(intrinsics.call(name, x), {x: value})
        with np.errstate(all="ignore"):
            exact = reference(np.float64(np.dtype(dtype).type(value)))
            expected = exact if intrinsics.table[name].result == "bool" else np.dtype(dtype).type(exact)
        assert nan_equal(got, expected), (name, value)
    assert evaluate(intrinsics.round(x), {x: 2.5}) == 2.0


def test_other_float_intrinsics() -> None:
    assert evaluate(intrinsics.pow(const(2.0), const(10.0))) == 1024
    assert evaluate(intrinsics.atan2(const(1.0), const(-1.0))) == np.float32(np.arctan2(1.0, -1.0))
    assert math.copysign(1, evaluate(intrinsics.copysign(const(1.0), const(-0.0)))) == -1
    assert evaluate(intrinsics.likely(e.LT(const(0), const(1)))) is True


def test_fma_rounds_once() -> None:
    a = np.float32(1 + 2**-12)
    c = np.float32(-(1 + 2**-11))
    expected = float(a) * float(a) + float(c)
    assert evaluate(intrinsics.fma(const(float(a)), const(float(a)), const(float(c)))) == np.float32(expected)
    assert evaluate(intrinsics.fma(const(float(a)), const(float(a)), const(float(c)))) != np.float32(a * a) + c
    # Rounding to float64 first and to float32 then would tie the wrong way.
    one, tiny = const(1.0), const(2.0**-100)
    half = const(1.0 + 2.0**-23)
    assert evaluate(intrinsics.fma(half, one, tiny)) == np.float32(1 + 2**-23)
    x = const(1.0 + 2**-30, "float64")
    exact = evaluate(intrinsics.fma(x, x, const(-1.0, "float64")))
    assert exact == 2.0**-29 + 2.0**-60
    huge = const(1e308, "float64")
    assert evaluate(intrinsics.fma(huge, huge, huge)) == math.inf
    assert math.isnan(evaluate(intrinsics.fma(const(math.inf), const(0.0), const(1.0))))
    assert evaluate(intrinsics.fma(const(0.0, "float64"), const(1.0, "float64"), const(-0.0, "float64"))) == 0.0


@given(st.data())
@settings(max_examples=60)
def test_integer_intrinsics(data: st.DataObject) -> None:
    dtype = DataType.of(data.draw(st.sampled_from(INTEGERS)))
    a, b = data.draw(constants(dtype)), data.draw(constants(dtype))
    bits, mask = dtype.bits, (1 << dtype.bits) - 1
    assert evaluate(intrinsics.bitwise_and(a, b)) == wrap_int(a.value & b.value, dtype)
    assert evaluate(intrinsics.bitwise_or(a, b)) == wrap_int(a.value | b.value, dtype)
    assert evaluate(intrinsics.bitwise_xor(a, b)) == wrap_int(a.value ^ b.value, dtype)
    assert evaluate(intrinsics.bitwise_not(a)) == wrap_int(~a.value, dtype)
    assert evaluate(intrinsics.shift_left(a, b)) == wrap_int(a.value << (b.value % bits), dtype)
    assert evaluate(intrinsics.shift_right(a, b)) == wrap_int(a.value >> (b.value % bits), dtype)
    assert evaluate(intrinsics.popcount(a)) == wrap_int((a.value & mask).bit_count(), dtype)
    assert evaluate(intrinsics.clz(a)) == wrap_int(bits - (a.value & mask).bit_length(), dtype)


def test_reinterpret() -> None:
    assert evaluate(intrinsics.reinterpret(const(1.0), "int32")) == 0x3F800000
    assert evaluate(intrinsics.reinterpret(e.IntImm(0x3F80, DataType.of("uint16")), "bfloat16")) == 1.0
    assert evaluate(intrinsics.reinterpret(e.IntImm(-1, DataType.of("int8")), "uint8")) == 255
    assert evaluate(intrinsics.reinterpret(e.IntImm(255, DataType.of("uint8")), "int8")) == -1
    half = evaluate(intrinsics.reinterpret(e.IntImm(-0x4400, DataType.of("int16")), "float16"))
    assert half == -1.0 and isinstance(half, np.float16)
    vector = e.Cast(e.Ramp(const(1), const(1), 4), DataType.of("uint8x4"))
    assert evaluate(intrinsics.reinterpret(vector, "uint32")) == 0x04030201
    back = intrinsics.reinterpret(intrinsics.reinterpret(vector, "uint32"), "uint8x4")
    assert evaluate(back) == [1, 2, 3, 4]
    assert evaluate(intrinsics.reinterpret(e.Cast(vector, DataType.of("int8x4")), "uint16x2")) == [0x0201, 0x0403]


def test_vectors_are_lane_by_lane() -> None:
    buffer = make_buffer("A", (4,))
    ramp = e.Ramp(const(0), const(2), 4)
    load = BufferLoad(buffer, (ramp,))
    guard = e.LT(ramp, e.Broadcast(const(4), 4))
    guarded = e.Select(guard, load, e.Broadcast(const(-1.0), 4))
    data = {buffer: np.arange(4, dtype=np.float32)}
    assert evaluate(guarded, None, data) == [0, 2, -1, -1]
    with pytest.raises(InterpreterError, match="indexed with 4"):
        evaluate(load, None, data)
    wide = make_buffer("B", (4,), "int32x2")
    assert evaluate(BufferLoad(wide, (const(1),)), None, {wide: np.arange(8, dtype=np.int32)}) == [2, 3]
    content = np.arange(8, dtype=np.int32).reshape(4, 2)
    flat = BufferLoad(wide, (e.Ramp(const(0), const(2), 2),))
    assert evaluate(flat, None, {wide: content.reshape(-1)}) == [0, 1, 4, 5]


@given(st.data())
@settings(max_examples=60)
def test_random_expressions_have_values_of_their_type(data: st.DataObject) -> None:
    dtype = DataType.of(data.draw(st.sampled_from(["bool", *INTEGERS, *FLOATS])))
    i, x = Var("i"), Var("x", dtype)
    expr = data.draw(expressions(dtype, {INDEX: [i], dtype: [x]}, depth=4))
    try:
        value = evaluate(expr, {i: 3, x: 1})
    except InterpreterError:
        return  # a division by zero
    if dtype.is_bool:
        assert isinstance(value, bool)
    elif dtype.is_integer:
        assert type(value) is int
        assert dtype.min_value() <= value <= dtype.max_value()
    else:
        assert isinstance(value, numbers.FLOAT_CLASS[dtype.name])
        assert nan_equal(value, numbers.round_to(value, dtype))


@given(st.data())
@settings(max_examples=60)
def test_bounds_hold(data: st.DataObject) -> None:
    dtype = DataType.of(data.draw(st.sampled_from(["int64", "int32", "uint8", "int8"])))
    x = Var("x", dtype)
    expr = data.draw(expressions(dtype, {dtype: [x]}, depth=4))
    bounds = Bounds()
    bounds.bind(x, (0, 5))
    low, high = bounds.of(expr)
    for value in range(6):
        try:
            got = evaluate(expr, {x: value})
        except InterpreterError:
            continue
        assert low <= got <= high


def test_deep_and_shared_expressions() -> None:
    x = Var("x", DataType.of("int32"))
    shared: PrimExpr = x
    for _ in range(100):
        shared = e.Add(e.Mul(shared, shared), shared)
    value = 3
    for _ in range(100):
        value = wrap_int(value * value + value, x.dtype)
    assert evaluate(shared, {x: 3}) == value
    deep: PrimExpr = x
    for _ in range(500):
        deep = e.Sub(const(1, "int32"), deep)
    assert evaluate(deep, {x: 3}) == 3


def test_bfloat16_rounds_after_each_operation() -> None:
    dtype = DataType.of("bfloat16")
    a, b = const(1.0, dtype), const(2.0**-8, dtype)
    assert evaluate(e.Add(e.Add(a, b), b)) == 1.0
    x, y = Var("x", dtype), Var("y", dtype)
    rng = np.random.default_rng(1)
    for _ in range(50):
        u, v = (round_bfloat16(float(value)) for value in rng.normal(size=2) * 10.0 ** rng.integers(-3, 3))
        assert evaluate(e.Mul(x, y), {x: u, y: v}) == round_bfloat16(u * v)


def test_float8_values() -> None:
    e4m3, e5m2 = DataType.of("float8_e4m3fn"), DataType.of("float8_e5m2")
    assert math.isnan(numbers.round_to(500.0, e4m3))
    assert numbers.round_to(464.0, e4m3) == 448  # a tie goes to the even code
    assert numbers.round_to(1e6, e5m2) == math.inf
    assert numbers.round_to(2.0**-10, e4m3) == 0
    assert numbers.round_to(17.0, e4m3) == 16
    assert numbers.round_to(19.0, e4m3) == 20


@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS, "bool"])
def test_arrays_and_lists(name: str) -> None:
    dtype = DataType.of(name)
    limit = min(1 << dtype.bits, 100) // (2 if dtype.is_int else 1)
    array = np.arange(limit).astype(dtype.numpy()).reshape(limit // 2 or 1, -1)
    values = numbers.to_list(array, dtype)
    np.testing.assert_array_equal(numbers.from_list(values, dtype), array.reshape(-1))
    fresh = numbers.poison(dtype)
    assert math.isnan(fresh) if dtype.is_float else isinstance(fresh, int)


def test_scalar_arguments() -> None:
    assert numbers.to_scalar(300, DataType.of("uint8")) == 44
    assert numbers.to_scalar(1, DataType.of("float32")) == 1.0
    assert numbers.to_scalar(np.int64(2), BOOL) is True
    with pytest.raises(UserError, match=r"1\.5 is not a int64"):
        numbers.to_scalar(1.5, INDEX)
    with pytest.raises(UserError, match="'x' is not a number"):
        numbers.to_scalar("x", INDEX)
    with pytest.raises(UserError, match="cannot be passed as a handle"):
        numbers.to_scalar(1, DataType.of("handle"))


def test_messages() -> None:
    with pytest.raises(UserError, match="variable x is used where it is not defined"):
        evaluate(Var("x"))
    with pytest.raises(UserError, match="buffer A is used where it is not declared"):
        evaluate(make_buffer("A", (2,))[0])
    with pytest.raises(UnsupportedError, match="does not know the intrinsic mystery of 0 arguments"):
        evaluate(e.Call("mystery", (), INDEX))
    with pytest.raises(CompilerBug, match="Add of bool"):
        evaluate(e.Add(e.TRUE, e.TRUE))
    with pytest.raises(CompilerBug, match="reinterpret of int64 as int32"):
        evaluate(e.Call("reinterpret", (const(1),), DataType.of("int32")))
