"""Neighbouring vectors that are rounded to bytes and stored: narrowed together, to what the interpreter has."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from tests.codegen.compiled import HOST, run
from tests.codegen.test_emit_bytes import SPECIAL
from tilewright.arith.analyzer import Analyzer
from tilewright.backends.host import host_source
from tilewright.backends.llvm.emit_narrowed import narrowed_at
from tilewright.ir import intrinsics
from tilewright.ir.build import add, cast, const, mul
from tilewright.ir.dtype import FLOAT32, INT8, INT32, UINT8, DataType
from tilewright.ir.expr import ZERO, IntImm, PrimExpr, Ramp, Var
from tilewright.target import Target
from tilewright.tir.buffer import Buffer, BufferLoad, make_buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.stmt import BufferStore, For, LoopKind, SeqStmt

X86 = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512")
AVX2 = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=haswell")
TIMES = 8
Expression = Callable[[PrimExpr], PrimExpr]


def to_bytes(value: PrimExpr, dtype: DataType, zero: int) -> PrimExpr:
    """A float rounded to a byte; a signed one by way of an unsigned one, as graphs have them."""
    rounded = intrinsics.round(value)
    unsigned = cast(add(rounded, const(float(zero), FLOAT32)) if zero else rounded, UINT8)
    return unsigned if dtype is UINT8 else cast(add(cast(unsigned, INT32), const(-128, INT32)), INT8)


def vectors(
    expression: Expression, source: str, dtype: DataType, lanes: int, count: int, run_of: int | None = None
) -> PrimFunc:
    """A loop that stores so many vectors of bytes of the same number of vectors; those of a run are neighbours."""
    length, gap = run_of or count, lanes if run_of else 0
    step = lanes * count + gap * -(-count // length)
    given, result = make_buffer("a", (TIMES * step,), source), make_buffer("b", (TIMES * step,), str(dtype))
    outer = Var("outer")
    stores = []
    for number in range(count):
        lane = Var("lane")
        place = outer * step + (number * lanes + number // length * gap) + lane
        store = BufferStore(result, (place,), expression(given[place]))
        stores.append(For(lane, ZERO, IntImm(lanes), LoopKind.VECTORIZED, store))
    body = For(outer, ZERO, IntImm(TIMES), LoopKind.SERIAL, stores[0] if count == 1 else SeqStmt(tuple(stores)))
    return PrimFunc("vectors", (given, result), body)


def check(func: PrimFunc, values: np.ndarray, dtype: str) -> None:
    result = np.zeros(len(values), dtype)
    expected = result.copy()
    interpret(func, values.copy(), expected)
    np.testing.assert_array_equal(run(func, values, result, target=HOST)[-1], expected)


def floats(func: PrimFunc, seed: int = 0) -> np.ndarray:
    (size,) = func.params[0].static_shape  # type: ignore[union-attr,misc]
    values = np.random.default_rng(seed).uniform(-300, 300, size).astype(np.float32)
    special = [*SPECIAL, 2.0**31, -(2.0**31), 2.0**31 - 128, 2.0**20, 32767.5, -32768.5, 33000.0]
    places = np.random.default_rng(seed).permutation(size)[: len(special)]
    values[places] = special[: len(places)]
    return values


@pytest.mark.parametrize("dtype", [UINT8, INT8])
@pytest.mark.parametrize("zero", [0, 3, 128, 255, -128, 5000, -20000])
@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_floats_of_all_sizes(dtype: DataType, zero: int, lanes: int, count: int) -> None:
    """Ties go to even, what does not fit saturates, and NaN is the least byte."""
    func = vectors(lambda x: to_bytes(x, dtype, zero), "float32", dtype, lanes, count)
    check(func, floats(func, count), str(dtype))


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize(("count", "length"), [(4, 1), (4, 2), (4, 3), (6, 2), (8, 4)])
def test_vectors_of_several_runs(lanes: int, count: int, length: int) -> None:
    """What lies between the runs is left as it is."""
    func = vectors(lambda x: to_bytes(x, UINT8, 7), "float32", UINT8, lanes, count, length)
    check(func, floats(func), "uint8")


@pytest.mark.parametrize("scale", [1e-3, 0.5, 1.0, 3.0, 1e30, float("inf")])
@pytest.mark.parametrize("zero", [0, 128, 9])
def test_sums_of_all_sizes(scale: float, zero: int) -> None:
    """Sums times a scale have no bounds where the product is known to fit 32 bits; the others have."""

    def scaled(x: PrimExpr) -> PrimExpr:
        return to_bytes(mul(cast(x, FLOAT32), const(scale, FLOAT32)), UINT8, zero)

    func = vectors(scaled, "int32", UINT8, 16, 4)
    (size,) = func.params[0].static_shape  # type: ignore[union-attr,misc]
    random = np.random.default_rng(0)
    values = (random.integers(-(1 << 31), 1 << 31, size) >> random.integers(0, 31, size)).astype(np.int32)
    values[:4] = [-(1 << 31), (1 << 31) - 1, 0, 1]
    check(func, values, "uint8")
    bounded = "fcmp olt" in host_source([func], X86)
    assert bounded == (scale >= 1.0)


@pytest.mark.parametrize(("target", "lanes", "pack"), [(X86, 16, "avx512.pack"), (AVX2, 8, "avx2.pack")])
@pytest.mark.parametrize(("zero", "last", "added"), [(0, "uswb", False), (128, "sswb", False), (3, "uswb", True)])
def test_four_vectors_are_one(target: Target, lanes: int, pack: str, zero: int, last: str, added: bool) -> None:
    func = vectors(lambda x: to_bytes(x, UINT8, zero), "float32", UINT8, lanes, 4)
    text = host_source([func], target)
    assert f"{pack}ssdw" in text and f"{pack}{last}" in text
    assert f"store <{4 * lanes} x i8>" in text and "trunc" not in text
    assert ("sadd.sat" in text) == added


def test_what_is_read_between_stores_is_not_put_off() -> None:
    """The second store reads what the first has written: the two are stored one after the other."""
    buffer, other = (Buffer(name, (IntImm(64, ZERO.dtype),), UINT8) for name in "ab")
    first, second = (Ramp(ZERO + start, IntImm(1, ZERO.dtype), 16) for start in (0, 16))

    def rounded(source: Buffer) -> PrimExpr:
        return cast(intrinsics.round(cast(BufferLoad(source, (first,)), FLOAT32.with_lanes(16))), UINT8.with_lanes(16))

    plain = [BufferStore(buffer, (place,), rounded(other)) for place in (first, second)]
    chained = [plain[0], BufferStore(buffer, (second,), rounded(buffer))]
    apart = [plain[0], BufferStore(other, (second,), rounded(buffer))]
    context = SimpleNamespace(mask=None, analyzer=Analyzer(), target=X86)
    assert narrowed_at(context, plain, 0) == 2  # type: ignore[arg-type]
    for stmts, start in ((plain, 1), (chained, 0), (apart, 0)):
        assert narrowed_at(context, stmts, start) == 0  # type: ignore[arg-type]
    context.mask = "%lanes"
    assert narrowed_at(context, plain, 0) == 0  # type: ignore[arg-type]
