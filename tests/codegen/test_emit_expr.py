"""Expressions of every type and lane count: compiled code gives what the interpreter gives, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codegen.compiled import HOST, assert_stages_agree, run
from tests.requirements import needs
from tilewright.backends.host import host_source
from tilewright.ir import build, intrinsics
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import ZERO, IntImm, Mod, PrimExpr, Var
from tilewright.target.target import Target
from tilewright.tir.buffer import Buffer, make_buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.stmt import Allocate, BufferStore, For, IfThenElse, LoopKind, seq

INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
COUNT = 48


def elementwise(expression, inputs: list[str], output: str, lanes: int) -> PrimFunc:  # type: ignore[no-untyped-def]
    """A loop over COUNT elements that stores `expression(loads...)`, `lanes` at a time."""
    buffers = [make_buffer(f"a{number}", (COUNT,), dtype) for number, dtype in enumerate(inputs)]
    result = make_buffer("result", (COUNT,), output)
    outer, inner = Var("outer"), Var("inner")
    place = outer * lanes + inner
    store = BufferStore(result, (place,), expression(*[buffer[place] for buffer in buffers]))
    kind = LoopKind.VECTORIZED if lanes > 1 else LoopKind.SERIAL
    body = For(outer, ZERO, IntImm(COUNT // lanes), LoopKind.SERIAL, For(inner, ZERO, IntImm(lanes), kind, store))
    return PrimFunc("elementwise", (*buffers, result), body)


def edge_values(dtype: str, seed: int) -> np.ndarray:
    """Values of a type with its extremes among them; floats are small whole numbers and specials."""
    rng = np.random.default_rng(seed)
    kind = DataType.of(dtype)
    if dtype == "bool":
        return rng.integers(0, 2, COUNT).astype(bool)
    if kind.is_integer:
        low, high = kind.min_value(), kind.max_value()
        values = [int(v) for v in rng.integers(-100 if low else 0, 100, COUNT)]
        values[:10] = [low, high, 0, 1, low, high, high - 1, low + 1, 3, 7]
        rng.shuffle(values)
        return np.array(values, dtype)
    floats = rng.integers(-20, 20, COUNT).astype("float32")
    floats[:6] = [np.inf, -np.inf, np.nan, 0.0, -0.0, 0.5]
    rng.shuffle(floats)
    if dtype == "bfloat16":
        return (floats.view(np.uint32) >> 16).astype(np.uint16)
    return floats.astype(dtype)


BINARY = {
    "add": build.add,
    "sub": build.sub,
    "mul": build.mul,
    "min": build.minimum,
    "max": build.maximum,
    "floordiv": build.floordiv,
    "floormod": build.floormod,
    "div": build.div,
    "mod": build.truncmod,
}


def safe_divisor(b: PrimExpr) -> PrimExpr:
    """Division by zero has no meaning; neither does the least integer by -1 in every language."""
    bad = build.logical_or(build.eq(b, 0), build.eq(b, -1)) if b.dtype.is_int else build.eq(b, 0)
    return build.select(bad, build.const(3, b.dtype), b)


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("dtype", INTS)
def test_integer_arithmetic(dtype: str, lanes: int) -> None:
    a, b = edge_values(dtype, 1), edge_values(dtype, 2)
    for name, function in BINARY.items():
        divides = name in ("floordiv", "floormod", "div", "mod")
        func = elementwise(
            lambda x, y, f=function, d=divides: f(x, safe_divisor(y) if d else y), [dtype, dtype], dtype, lanes
        )
        assert_stages_agree(func, a, b, np.zeros(COUNT, dtype))


@pytest.mark.parametrize(
    ("dtype", "divisor"),
    [
        (dtype, divisor)
        for dtype in ("int32", "int64", "uint32")
        for divisor in (1, 2, 3, 7, 8, -3, 64)
        if divisor > 0 or dtype != "uint32"
    ],
)
def test_division_by_constants(dtype: str, divisor: int) -> None:
    a = edge_values(dtype, 3)
    for function in (build.floordiv, build.floormod, build.div, build.truncmod):
        func = elementwise(lambda x, f=function: f(x, divisor), [dtype], dtype, 8)
        assert_stages_agree(func, a, np.zeros(COUNT, dtype))


def test_division_never_traps() -> None:
    a = np.full(COUNT, -(2**31), np.int32)
    b = np.tile(np.array([0, -1], np.int32), COUNT // 2)
    for function in (build.floordiv, build.floormod, build.div, build.truncmod):
        for lanes in (1, 8):
            run(elementwise(function, ["int32", "int32"], "int32", lanes), a, b, np.zeros(COUNT, np.int32))


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("dtype", FLOATS)
def test_float_arithmetic(dtype: str, lanes: int) -> None:
    a, b = edge_values(dtype, 1), edge_values(dtype, 2)
    out = np.zeros(COUNT, a.dtype)
    for name in ("add", "sub", "mul", "min", "max", "div"):
        assert_stages_agree(elementwise(BINARY[name], [dtype, dtype], dtype, lanes), a, b, out)
    for constant in (0.0, 6.0):
        for function in (build.minimum, build.maximum):
            func = elementwise(lambda x, f=function, c=constant: f(x, c), [dtype], dtype, lanes)
            assert_stages_agree(func, a, out)


def test_float_remainder() -> None:
    a, b = edge_values("float32", 1), edge_values("float32", 2)
    assert_stages_agree(elementwise(Mod, ["float32", "float32"], "float32", 4), a, b, np.zeros(COUNT, "float32"))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "int64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("lanes", [1, 16])
def test_comparisons_and_logic(dtype: str, lanes: int) -> None:
    a, b = edge_values(dtype, 1), edge_values(dtype, 2)
    for function in (build.eq, build.ne, build.lt, build.le, build.gt, build.ge):
        assert_stages_agree(elementwise(function, [dtype, dtype], "bool", lanes), a, b, np.zeros(COUNT, bool))
    if dtype == "bool":
        for function in (build.logical_and, build.logical_or, lambda x, y: build.logical_not(build.eq(x, y))):
            assert_stages_agree(elementwise(function, [dtype, dtype], "bool", lanes), a, b, np.zeros(COUNT, bool))


CASTS = [*INTS, *FLOATS, "bool"]


@pytest.mark.parametrize("source", CASTS)
def test_conversions(source: str) -> None:
    a = edge_values(source, 5)
    for target in CASTS:
        values = a
        kind = DataType.of(target)
        if DataType.of(source).is_float and kind.is_integer:
            # Out of range and NaN: only that nothing traps is promised; in range the value is exact.
            as_float = (a.astype(np.uint32) << 16).view(np.float32) if source == "bfloat16" else a.astype("float64")
            keep = np.isfinite(as_float) & (as_float >= kind.min_value())
            values = np.where(keep, a, np.array(0, a.dtype))
            run(elementwise(lambda x, t=target: x.astype(t), [source], target, 8), a, np.zeros(COUNT, target))
        out = np.zeros(COUNT, kind.numpy())
        for lanes in (1, 8):
            assert_stages_agree(elementwise(lambda x, t=target: x.astype(t), [source], target, lanes), values, out)


@pytest.mark.parametrize("lanes", [1, 8, 16])
@pytest.mark.parametrize("target", ["int8", "uint8", "int16", "uint16"])
def test_floats_saturate(target: str, lanes: int) -> None:
    values = np.random.default_rng(0).uniform(-70000, 70000, COUNT).astype(np.float32)
    limits = np.iinfo(target)
    special = [np.nan, np.inf, -np.inf, 1e9, -1e9, 3e38, 2.0**31, 2.0**32, -(2.0**31), -0.9, 0.9, -0.0]
    edges = [limits.max + step for step in (-0.5, 0.5, 1.0)] + [limits.min + step for step in (-1.0, -0.5, 0.5)]
    values[: len(special) + len(edges)] = [*special, *edges]
    expected = np.clip(np.trunc(np.nan_to_num(values, nan=0.0, posinf=1e9, neginf=-1e9)), limits.min, limits.max)
    func = elementwise(lambda x: x.astype(target), ["float32"], target, lanes)
    whole = COUNT // lanes * lanes
    result = run(func, values, np.zeros(COUNT, target))[-1]
    np.testing.assert_array_equal(result[:whole], expected[:whole].astype(target))


@pytest.mark.parametrize("lanes", [1, 8, 16])
@pytest.mark.parametrize("source", ["float32", "float64"])
@pytest.mark.parametrize("target", ["int32", "uint32", "int64", "uint64"])
def test_floats_saturate_at_the_limits_of_wide_integers(target: str, source: str, lanes: int) -> None:
    values = np.random.default_rng(0).uniform(-1e6, 1e6, COUNT).astype(source)
    limits = np.iinfo(target)
    special = [np.nan, np.inf, -np.inf, 2.0**31, 2.0**32, 2.0**63, 2.0**64, -(2.0**31), -(2.0**63), 1e30, -1e30, -0.9]
    values[: len(special)] = special
    values[len(special) : len(special) + 4] = np.nextafter(np.array([2.0**31, 2.0**32, 2.0**63, 2.0**64], source), 0)
    expected = [
        0 if np.isnan(value) else min(max(int(np.clip(value, -1e36, 1e36)), limits.min), limits.max) for value in values
    ]
    result = run(elementwise(lambda x: x.astype(target), [source], target, lanes), values, np.zeros(COUNT, target))[-1]
    whole = COUNT // lanes * lanes
    np.testing.assert_array_equal(result[:whole], np.array(expected, target)[:whole])


@pytest.mark.parametrize("target", ["float16", "bfloat16"])
@pytest.mark.parametrize("processor", ["native", pytest.param("llvm -mcpu=x86-64", marks=needs("x86_64"))])
def test_rounding_to_sixteen_bits(target: str, processor: str) -> None:
    """Ties, subnormals, overflow and NaN, also by the integer code of processors without the instruction."""
    machine = Target(processor)
    rng = np.random.default_rng(0)
    for source in ("float32", "float64"):
        for scale in (1.0, 65504.0, 2.0**-15, 2.0**-24, 1e37 if source == "float32" else 1e300, 2.0**-130):
            values = (rng.normal(size=COUNT) * scale).astype(source)
            values[:8] = [65504, 65520, 65519.99, 2.0**-25, 3 * 2.0**-25, np.inf, -np.inf, np.nan]
            values[8:12] = [1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-9, 1 + 2.0**-8 + 2.0**-9]
            func = elementwise(lambda x: x.astype(target), [source], target, 8)
            numpy_type = DataType.of(target).numpy()
            assert_stages_agree(func, values, np.zeros(COUNT, numpy_type), target=machine)
    every = np.arange(1 << 16, dtype=np.uint16)
    for start in range(0, 1024, 200):
        bits = np.ascontiguousarray(every[start::1023][:COUNT])
        source = bits if target == "bfloat16" else bits.view(np.float16)
        func = elementwise(lambda x: x.astype("float32"), [target], "float32", 8)
        assert_stages_agree(func, source, np.zeros(COUNT, "float32"), target=machine)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64"])
def test_bits(dtype: str) -> None:
    a, b = edge_values(dtype, 1), edge_values(dtype, 2)
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right"):
        function = getattr(intrinsics, name)
        for lanes in (1, 16):
            assert_stages_agree(elementwise(function, [dtype, dtype], dtype, lanes), a, b, np.zeros(COUNT, dtype))
    for function in (intrinsics.bitwise_not, intrinsics.popcount, intrinsics.clz, intrinsics.abs):
        assert_stages_agree(elementwise(function, [dtype], dtype, 8), a, np.zeros(COUNT, dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_rounding_and_classes(dtype: str) -> None:
    a = edge_values(dtype, 1)
    a = a * a.dtype.type(0.25)
    for name in ("floor", "ceil", "round", "trunc", "abs", "sqrt"):
        assert_stages_agree(elementwise(getattr(intrinsics, name), [dtype], dtype, 8), a, np.zeros(COUNT, dtype))
    for name in ("isnan", "isinf", "isfinite"):
        assert_stages_agree(elementwise(getattr(intrinsics, name), [dtype], "bool", 8), a, np.zeros(COUNT, bool))
    func = elementwise(intrinsics.copysign, [dtype, dtype], dtype, 8)
    assert_stages_agree(func, a, edge_values(dtype, 2), np.zeros(COUNT, dtype))
    assert_stages_agree(
        elementwise(intrinsics.fma, [dtype] * 3, dtype, 8), a, a, edge_values(dtype, 2), np.zeros(COUNT, dtype)
    )


def test_reinterpret() -> None:
    a = edge_values("float32", 1)
    func = elementwise(lambda x: intrinsics.reinterpret(x, "int32"), ["float32"], "int32", 8)
    expected = assert_stages_agree(func, a, np.zeros(COUNT, np.int32))
    np.testing.assert_array_equal(expected[1], a.view(np.int32))


def _index_functions(buffer: Buffer, i: PrimExpr, n: int) -> list[PrimExpr]:
    return [
        buffer[i],
        buffer[n - 1 - i],
        buffer[(i * 3) % n],
        buffer[i // 2],
        buffer[(i // 4) * 4 + i % 4],
        buffer[build.minimum(i + 5, n - 1)],
        buffer[IntImm(3)],
        build.select(build.lt(i, n - 7), buffer[i + 7], build.const(0, buffer.dtype)),
        build.select(build.lt(i * 2, n), buffer[i * 2], buffer[i]),
        build.select(build.le(i * 3 + 2, n - 1), buffer[i * 3 + 2], build.const(1, buffer.dtype)),
    ]


@settings(max_examples=40)
@given(
    dtype=st.sampled_from(["int32", "float32", "bool", "uint8", "float64", "bfloat16"]),
    lanes=st.sampled_from([1, 2, 3, 4, 8, 16, 24]),
    which=st.integers(0, 9),
    store=st.integers(0, 2),
    guard=st.booleans(),
)
def test_loads_and_stores_of_all_shapes(dtype: str, lanes: int, which: int, store: int, guard: bool) -> None:
    """Contiguous, reversed, strided, gathered, uniform and masked accesses."""
    source, result = make_buffer("source", (COUNT,), dtype), make_buffer("result", (3 * COUNT,), dtype)
    outer, inner = Var("outer"), Var("inner")
    i = outer * lanes + inner
    place = [i, i * 3 + 1, COUNT - 1 - i][store]
    body = BufferStore(result, (place,), _index_functions(source, i, COUNT)[which])
    if guard:
        body = IfThenElse(build.logical_or(build.lt(i, COUNT - 5), build.eq(i % 2, 0)), body)
    kind = LoopKind.VECTORIZED
    loops = For(outer, ZERO, IntImm(COUNT // lanes), LoopKind.SERIAL, For(inner, ZERO, IntImm(lanes), kind, body))
    func = PrimFunc("access", (source, result), loops)
    assert_stages_agree(func, edge_values(dtype, 4), np.zeros(3 * COUNT, DataType.of(dtype).numpy()))


@pytest.mark.parametrize("stride", [2, 3, 4])
@pytest.mark.parametrize("extra", [0, 1])
def test_strided_loads_from_the_stack(stride: int, extra: int) -> None:
    """Elements of the same groups come from the same loads; the last group may not be there as a whole."""
    lanes, count = 16, 16 * stride
    source, result = make_buffer("source", (count,), "float32"), make_buffer("result", (stride * lanes,), "float32")
    size = count - extra
    kept = make_buffer("kept", (size,), "float32", scope="local")
    i = Var("i")
    fill = For(i, ZERO, IntImm(size), LoopKind.SERIAL, BufferStore(kept, (i,), source[i]))
    picks = []
    for first in range(stride - extra):
        lane = Var("lane")
        store = BufferStore(result, (lane + first * lanes,), kept[lane * stride + first])
        picks.append(For(lane, ZERO, IntImm(lanes), LoopKind.VECTORIZED, store))
    func = PrimFunc("strided", (source, result), Allocate(kept, seq(fill, *picks)))
    data = np.arange(count, dtype=np.float32)
    assert_stages_agree(func, data, np.zeros(stride * lanes, np.float32))
    # Whole groups begin at multiples of the lanes; without the last element, the last load is moved back.
    text = host_source([func], HOST)
    assert (f"i64 {(lanes - 1) * stride + 1 - lanes}" in text) == bool(extra)


def test_short_circuit_reads_only_what_it_may() -> None:
    source, result = make_buffer("source", (COUNT,), "float32"), make_buffer("result", (COUNT,), "bool")
    for lanes in (1, 8):
        outer, inner = Var("outer"), Var("inner")
        i = outer * lanes + inner
        condition = build.logical_and(build.lt(i, COUNT - 3), build.lt(source[i + 3], 2.0))
        either = build.logical_or(condition, build.logical_and(build.ge(i, 1), build.lt(0.0, source[i - 1])))
        store = BufferStore(result, (i,), either)
        kind = LoopKind.VECTORIZED
        loops = For(outer, ZERO, IntImm(COUNT // lanes), LoopKind.SERIAL, For(inner, ZERO, IntImm(lanes), kind, store))
        assert_stages_agree(
            PrimFunc("logic", (source, result), loops), edge_values("float32", 2), np.zeros(COUNT, bool)
        )


def test_float64_mathematics_through_the_c_library() -> None:
    a = np.random.default_rng(0).uniform(0.1, 0.9, COUNT)
    for name in ("exp", "log1p", "tanh", "erf", "sigmoid", "rsqrt", "asin", "cosh"):
        func = elementwise(getattr(intrinsics, name), ["float64"], "float64", 4)
        assert_stages_agree(func, a, np.zeros(COUNT), tolerance=1e-14)
    func = elementwise(intrinsics.pow, ["float64", "float64"], "float64", 4)
    assert_stages_agree(func, a, a, np.zeros(COUNT), tolerance=1e-14)
