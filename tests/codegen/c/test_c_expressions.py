"""Scalar semantics on a device: integers of every width exactly, floats with their special values, conversions."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.codegen.on_device import cuda_text, on_opencl, opencl_text, require_nvrtc
from tests.tir.programs import expressions
from tilewright.backends.cuda.compiler import compile_cuda
from tilewright.ir import build, intrinsics
from tilewright.ir import expr as e
from tilewright.ir.dtype import INDEX, DataType
from tilewright.ir.expr import ZERO, IntImm, PrimExpr, Var
from tilewright.ir.visit import pre_order, substitute
from tilewright.support.errors import UserError
from tilewright.tir.buffer import Buffer, make_buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.stmt import BufferStore, For, LoopKind, seq

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
TYPES = [*INTEGERS, "bool"]
COUNT = 16


def _program(name: str, inputs: list[Buffer], values: list[PrimExpr], i: Var) -> tuple[PrimFunc, list[Buffer]]:
    """A kernel of one thread an element that stores each value to a buffer of its own."""
    results = [make_buffer(f"out{n}", (COUNT,), value.dtype) for n, value in enumerate(values)]
    stores = [BufferStore(buffer, (i,), value) for buffer, value in zip(results, values, strict=True)]
    body = For(i, ZERO, IntImm(COUNT), LoopKind.THREAD, seq(*stores), "threadIdx.x")
    return PrimFunc(name, (*inputs, *results), body), results


def _integers(rng: np.random.Generator, name: str) -> np.ndarray:
    if name == "bool":
        return rng.integers(0, 2, COUNT).astype(bool)
    kind = DataType.of(name)
    edges = [kind.min_value(), kind.max_value(), 0, 1, kind.max_value() // 2, 3]
    return np.array([edges[k] for k in rng.integers(0, 6, COUNT)], name)


@settings(max_examples=5)
@given(data=st.data())
def test_random_integer_expressions(data: st.DataObject) -> None:
    variables = {DataType.of(name): [Var(f"v_{name}", DataType.of(name))] for name in TYPES}
    i = Var("i")
    buffers = {name: make_buffer(f"b_{name}", (COUNT,), name) for name in TYPES}
    loads: dict[Var, PrimExpr] = {variables[DataType.of(name)][0]: buffer[i] for name, buffer in buffers.items()}
    rng = np.random.default_rng(data.draw(st.integers(0, 100)))
    arrays = [_integers(rng, name) for name in TYPES]
    values: list[PrimExpr] = []
    for dtype in TYPES:
        expr = data.draw(expressions(DataType.of(dtype), variables, depth=3))
        plain = all(
            not node.dtype.is_float and node.dtype.bits != 4 for node in pre_order(expr) if isinstance(node, PrimExpr)
        )
        if plain:
            value = substitute(expr, loads)
            func, results = _program("one", list(buffers.values()), [value], Var("j"))
            func = func.replace(body=func.body.replace(body=BufferStore(results[0], (i,), value), var=i))
            try:
                interpret(func, *[a.copy() for a in arrays], np.zeros(COUNT, results[0].dtype.numpy()))
            except UserError:
                continue  # a division by zero
            values.append(value)
    assume(values)
    func, results = _program("random", list(buffers.values()), values, i)
    wanted = [np.zeros(COUNT, buffer.dtype.numpy()) for buffer in results]
    got = [np.ones(COUNT, buffer.dtype.numpy()) for buffer in results]
    interpret(func, *arrays, *wanted)
    on_opencl([func])(*arrays, *got)
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


SPECIAL = [0.0, -0.0, 1.0, -1.5, 2.5, np.inf, -np.inf, np.nan, 1e-30, 3e38, -3e9, 3e9, 1e19, -1e19, 0.3, 65519.0]
EXACT_CALLS = ["floor", "ceil", "round", "trunc", "abs", "sqrt", "isnan", "isinf", "isfinite"]
CLOSE_CALLS = ["exp", "log", "tanh", "sigmoid", "erf", "sin", "rsqrt", "log1p", "expm1", "atan"]


def _float_program() -> tuple[PrimFunc, list[Buffer], int]:
    i = Var("i")
    a, b = make_buffer("a", (COUNT,)), make_buffer("b", (COUNT,))
    x, y = a[i], b[i]
    values: list[PrimExpr] = [e.Min(x, y), e.Max(x, y), e.Mod(x, y), x / y, e.LT(x, y), e.NE(x, y)]
    values += [e.Cast(x, DataType.of(name)) for name in (*TYPES, "float16", "bfloat16", "float64")]
    values += [e.Cast(e.Cast(x, DataType.of("float64")), DataType.of(name)) for name in ("float32", "float16", "int32")]
    values += [intrinsics.call(name, x) for name in EXACT_CALLS]
    values += [intrinsics.call("copysign", x, y), intrinsics.reinterpret(x, "int32"), intrinsics.fma(x, y, x)]
    # The bits of a NaN are nobody's promise.
    number = e.Select(intrinsics.isnan(x), build.const(1.0, "float32"), x)
    values += [intrinsics.reinterpret(e.Cast(number, DataType.of("float16")), "uint16")]
    values += [e.Cast(e.Cast(x, DataType.of("float16")), DataType.of("float32")) * y]
    exact = len(values)
    values += [intrinsics.call(name, x) for name in CLOSE_CALLS]
    values += [intrinsics.call("pow", x, y), intrinsics.call("atan2", x, y)]
    func, results = _program("floats", [a, b], values, i)
    return func, results, exact


def test_floats_and_conversions() -> None:
    func, results, exact = _float_program()
    a = np.array(SPECIAL, np.float32)
    b = np.roll(a, 5)
    wanted = [np.zeros(COUNT, buffer.dtype.numpy()) for buffer in results]
    got = [np.ones(COUNT, buffer.dtype.numpy()) for buffer in results]
    interpret(func, a, b, *wanted)
    on_opencl([func])(a, b, *got)
    for number, (one, other) in enumerate(zip(got, wanted, strict=True)):
        if number < exact:
            np.testing.assert_array_equal(one, other, err_msg=f"value {number}")
        else:
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-30, err_msg=f"value {number}")


def test_integers_to_floats_round_once() -> None:
    i = Var("i")
    a = make_buffer("a", (COUNT,), "int64")
    values: list[PrimExpr] = [e.Cast(a[i], DataType.of(n)) for n in ("float16", "bfloat16", "float32", "float64")]
    func, results = _program("to_float", [a], values, i)
    numbers = [0, 1, -1, 2049, 2051, 65519, 65520, -65520, 257, 2**24 + 1, 2**53 + 1, 2**62 + 1, -(2**63), 7, 9, 4097]
    array = np.array(numbers, np.int64)
    wanted = [np.zeros(COUNT, buffer.dtype.numpy()) for buffer in results]
    got = [np.ones(COUNT, buffer.dtype.numpy()) for buffer in results]
    interpret(func, array, *wanted)
    on_opencl([func])(array, *got)
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_side_not_chosen_is_not_evaluated() -> None:
    """A selection reads memory only where it chooses to, also when both sides share what they read."""
    i, n = Var("i"), COUNT
    a = make_buffer("a", (n,), "float32")
    shared = a[i + 1] * 2.0
    chosen = e.Select(build.lt(i, n - 1), shared + shared * a[i], build.const(5.0, "float32"))
    inside = e.And(build.lt(i, n - 1), build.lt(a[i + 1] + a[i + 1] * 2.0, 1.0))
    outside = e.Or(build.eq(i, n - 1), build.lt(a[i + 1] + a[i + 1] * 2.0, 1.0))
    # Numbers of 64 bits on one side, of 32 on the other.
    k = make_buffer("k", (n,), "int64")
    numbers = [
        e.Select(build.lt(i, n - 1), k[i + 1] + k[i + 1] * 3, i),
        e.Select(build.eq(i, n - 1), i, k[i + 1] * k[i + 1]),
    ]
    func, results = _program("lazy", [a, k], [chosen, inside, outside, *numbers], i)
    text = opencl_text([func])
    reads = [line for line in text.splitlines() if "[(thread_x_ + 1)]" in line]
    # At the last element these would be outside of the buffers: each is in the body of an `if` of its own.
    assert len(reads) == 5 and all(line.startswith("    const ") for line in reads)
    array, large = np.linspace(-1, 1, n, dtype=np.float32), (1 << 30) + 7 * np.arange(n)
    wanted = [np.zeros(n, buffer.dtype.numpy()) for buffer in results]
    got = [np.ones(n, buffer.dtype.numpy()) for buffer in results]
    interpret(func, array, large, *wanted)
    on_opencl([func])(array, large, *got)
    np.testing.assert_allclose(got[0], wanted[0], rtol=1e-6)
    for one, other in zip(got[1:], wanted[1:], strict=True):
        np.testing.assert_array_equal(one, other)


def test_indices_are_32_bits_where_that_is_provably_enough() -> None:
    i, n = Var("i"), Var("n")
    small, large = make_buffer("small", (COUNT,)), make_buffer("large", (1 << 33,))
    loop = For(i, ZERO, IntImm(COUNT), LoopKind.SERIAL, BufferStore(small, (i,), large[i]))
    narrow = opencl_text([PrimFunc("narrow", (large, small), loop)])
    assert "for (int i_ = 0; i_ < 16; ++i_)" in narrow and "long" not in narrow
    wide = BufferStore(small, (ZERO,), large[i * 1000000007])
    text = opencl_text([PrimFunc("wide", (large, small), For(i, ZERO, IntImm(COUNT), LoopKind.SERIAL, wide))])
    assert "(long)i_" in text
    symbolic = make_buffer("symbolic", (n,))
    copy = For(i, ZERO, n, LoopKind.SERIAL, BufferStore(symbolic, (i,), build.const(1.0, "float32")))
    assert "for (long i_" in opencl_text([PrimFunc("fill", (symbolic, n), copy)])
    assert n.dtype is INDEX


def test_cuda_text_compiles() -> None:
    require_nvrtc()
    func, _, _ = _float_program()
    i = Var("i")
    buffers = {name: make_buffer(f"b_{name}", (COUNT,), name) for name in INTEGERS}
    values: list[PrimExpr] = []
    for buffer in buffers.values():
        x, y = buffer[i], buffer[i] * 3
        values += [x + y, x * y, e.FloorDiv(x, y), e.FloorMod(x, y), e.Div(x, y), e.Mod(x, y), e.Min(x, y)]
        values += [intrinsics.call(name, x) for name in ("popcount", "clz", "bitwise_not", "abs")]
        values += [intrinsics.shift_left(x, y), intrinsics.shift_right(x, y), intrinsics.bitwise_xor(x, y)]
    values += [e.Cast(buffers["int64"][i], DataType.of(n)) for n in ("float16", "bfloat16", "float64")]
    values += [intrinsics.reinterpret(e.Cast(buffers["int64"][i], DataType.of("float64")), "int64")]
    integers, _ = _program("integers", list(buffers.values()), values, i)
    text = cuda_text([func, integers])
    assert "__launch_bounds__(16)" in text
    assert len(compile_cuda(text, "sm_80")) > 1000
