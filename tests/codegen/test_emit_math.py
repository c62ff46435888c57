"""Errors of the single-precision functions in units of the last place, over the whole range of arguments."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.compiled import HOST, run
from tilewright.ir import intrinsics
from tilewright.ir.expr import ZERO, Call, IntImm, Mul, Var
from tilewright.ir.visit import find_all
from tilewright.target.target import Target
from tilewright.tir.buffer import make_buffer
from tilewright.tir.expansion.exponentials import MAX_ULP
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.passes.lower_intrinsics import LowerIntrinsicsOptions, lower_intrinsics
from tilewright.tir.passes.vectorize_loops import vectorize_loops
from tilewright.tir.stmt import BufferStore, For, LoopKind

COUNT = 1 << 16
SPECIAL = np.array(
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        np.inf,
        -np.inf,
        np.nan,
        1e-45,
        -1e-45,
        1.1754942e-38,
        3.4028235e38,
        -3.4028235e38,
        0.5,
        -0.5,
    ]
    + [2.0, -2.0, 3.0, -3.0, 88.72, 89.0, -87.3, -103.9, -104.0, 1e30, 1e6, 1000001.0, 16384.0, 0.98, 1.4142135],
    "float32",
)


def kernel(name: str, count: int, lanes: int) -> PrimFunc:
    arity = intrinsics.table[name].arity or 1
    buffers = [make_buffer(f"a{number}", (count,)) for number in range(arity)]
    result = make_buffer("result", (count,))
    outer, inner = Var("outer"), Var("inner")
    place = outer * lanes + inner
    store = BufferStore(result, (place,), Call(name, tuple(b[place] for b in buffers), result.dtype))
    kind = LoopKind.VECTORIZED if lanes > 1 else LoopKind.SERIAL
    loops = For(outer, ZERO, IntImm(count // lanes), LoopKind.SERIAL, For(inner, ZERO, IntImm(lanes), kind, store))
    return PrimFunc("kernel", (*buffers, result), loops)


def arguments(arity: int, seed: int, count: int = COUNT) -> list[np.ndarray]:
    """Every exponent, dense samples where the functions bend, and all pairs of special values."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 1 << 32, count // 2, dtype=np.uint64).astype(np.uint32).view(np.float32)
    dense = np.concatenate(
        [rng.normal(size=count // 4), rng.uniform(-20, 20, count // 8), rng.uniform(0.5, 1.5, count - 7 * (count // 8))]
    ).astype("float32")
    values = np.concatenate([bits, dense])
    if arity == 1:
        values[: len(SPECIAL)] = SPECIAL
        return [values]
    second = rng.permutation(values)
    pairs = np.stack(np.meshgrid(SPECIAL, SPECIAL)).reshape(2, -1)
    values[: pairs.shape[1]], second[: pairs.shape[1]] = pairs
    return [values, second]


def errors(name: str, args: list[np.ndarray], result: np.ndarray) -> np.ndarray:
    """The error of each result in units of the last place of the exact value; infinite where the kind is wrong."""
    with np.errstate(all="ignore"):
        exact = np.asarray(intrinsics.table[name].reference(*[a.astype(np.float64) for a in args]), np.float64)
        rounded = exact.astype(np.float32)
        spacing = 2.0 ** (np.maximum(np.floor(np.log2(np.maximum(np.abs(exact), 2.0**-126))), -126) - 23)
        distance = np.abs(result.astype(np.float64) - exact) / spacing
    same = (result == rounded) | (np.isnan(result) & np.isnan(exact))
    return np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))


@pytest.mark.parametrize("name", sorted(MAX_ULP))
def test_errors_stay_below_what_is_promised(name: str) -> None:
    arity = intrinsics.table[name].arity or 1
    for machine in (HOST, Target("llvm -mcpu=x86-64")):
        if not machine.is_host:
            continue
        args = arguments(arity, 7)
        result = run(kernel(name, COUNT, 16), *args, np.zeros(COUNT, "float32"), target=machine)[-1]
        found = errors(name, args, result)
        worst = int(np.argmax(found))
        at = [float(a[worst]) for a in args]
        assert found[worst] <= MAX_ULP[name], (
            f"{name}{at} = {result[worst]!r}: {found[worst]} units off ({machine.cpu})"
        )


@pytest.mark.parametrize("lanes", [8, 32, 64])
@pytest.mark.parametrize("name", ["exp", "exp2", "sigmoid"])
def test_vectors_of_other_lengths(name: str, lanes: int) -> None:
    args = arguments(1, 9)
    result = run(kernel(name, COUNT, lanes), *args, np.zeros(COUNT, "float32"))[-1]
    assert errors(name, args, result).max() <= MAX_ULP[name]


@pytest.mark.parametrize("name", ["exp", "exp2", "sigmoid"])
def test_scaling_by_an_instruction_means_the_same(name: str) -> None:
    args = arguments(1, 3, 1600)
    vector = lower_intrinsics(vectorize_loops(kernel(name, 1600, 16)), LowerIntrinsicsOptions(has_scale=True))
    assert any(item.name == "scale_by_power" for item in find_all(vector.body, Call))
    result = np.zeros(1600, "float32")
    interpret(vector, *args, result)
    assert errors(name, args, result).max() <= MAX_ULP[name]


@pytest.mark.parametrize("name", sorted(MAX_ULP))
def test_the_pass_is_right_by_itself(name: str) -> None:
    """Scalar code, interpreted: the expansion does not lean on how it is compiled."""
    arity, count = intrinsics.table[name].arity or 1, 1600
    args = arguments(arity, 3, count)
    result = np.zeros(count, "float32")
    interpret(lower_intrinsics(kernel(name, count, 1)), *args, result)
    assert errors(name, args, result).max() <= MAX_ULP[name]


def erf_plus_one(count: int, lanes: int, is_left: bool) -> PrimFunc:
    buffer, result = make_buffer("a", (count,)), make_buffer("result", (count,))
    outer, inner = Var("outer"), Var("inner")
    place = outer * lanes + inner
    value = intrinsics.erf(buffer[place])
    store = BufferStore(result, (place,), 1.0 + value if is_left else value + 1.0)
    kind = LoopKind.VECTORIZED if lanes > 1 else LoopKind.SERIAL
    loops = For(outer, ZERO, IntImm(count // lanes), LoopKind.SERIAL, For(inner, ZERO, IntImm(lanes), kind, store))
    return PrimFunc("kernel", (buffer, result), loops)


@pytest.mark.parametrize("is_left", [True, False])
@pytest.mark.parametrize("is_compiled", [True, False])
def test_the_sum_of_one_and_erf_is_one_function(is_compiled: bool, is_left: bool) -> None:
    """About as exact as the sum with an exact `erf`; exactly 0, 1 and 2 where that is the sum."""
    count = COUNT if is_compiled else 1600
    (values,) = arguments(1, 11, count)
    values[100 : count // 2] = np.linspace(-5, 5, count // 2 - 100)
    out = np.zeros(count, "float32")
    if is_compiled:
        out = run(erf_plus_one(count, 16, is_left), values, out)[1]
    else:
        expanded = lower_intrinsics(erf_plus_one(count, 1, is_left))
        # Half the work of `erf` itself.
        alone = lower_intrinsics(kernel("erf", count, 1))
        assert len(find_all(expanded.body, Mul)) < 0.75 * len(find_all(alone.body, Mul))
        interpret(expanded, values, out)
    exact = intrinsics.table["erf"].reference(values.astype(np.float64)) + 1.0
    assert np.array_equal(np.isnan(out), np.isnan(values))
    assert np.nanmax(np.abs(out - exact)) <= 1.5e-7
    assert (out[values < -4.2] == 0).all()
    assert (out[values > 4.2] == 2).all()
    assert (out[values == 0] == 1).all()


@pytest.mark.parametrize("exponent", [1.0, 2.0, 3.0, -1.0, 0.5])
def test_powers_with_constant_exponents(exponent: float) -> None:
    buffer, result = make_buffer("a", (COUNT,)), make_buffer("result", (COUNT,))
    i = Var("i")
    store = BufferStore(result, (i,), intrinsics.pow(buffer[i], exponent))
    func = PrimFunc("power", (buffer, result), For(i, ZERO, IntImm(COUNT), LoopKind.SERIAL, store))
    (values,) = arguments(1, 5)
    out = run(func, values, np.zeros(COUNT, "float32"))[1]
    assert errors("pow", [values, np.full(COUNT, exponent, "float32")], out).max() <= 2.0


def test_powers_of_differences_are_never_subnormal() -> None:
    """Weights of a softmax with a mask of -100: processors are slow with subnormal numbers."""
    first, second, result = (make_buffer(name, (COUNT,)) for name in ("a", "b", "result"))
    i = Var("i")
    store = BufferStore(result, (i,), intrinsics.exp(first[i] - second[i]))
    func = PrimFunc("weights", (first, second, result), For(i, ZERO, IntImm(COUNT), LoopKind.SERIAL, store))
    lane = Var("lane")
    place = i * 32 + lane
    part = BufferStore(result, (place,), intrinsics.exp(first[place] - second[place]))
    parts = For(i, ZERO, IntImm(COUNT // 32), LoopKind.SERIAL, For(lane, ZERO, IntImm(32), LoopKind.VECTORIZED, part))
    vectors = PrimFunc("weights", (first, second, result), parts)
    shifted = np.linspace(-120, 90, COUNT).astype("float32")
    shifted[:4] = [-np.inf, np.inf, np.nan, 0.0]
    zeros = np.zeros(COUNT, "float32")
    results = [run(item, shifted, zeros, zeros.copy())[2] for item in (func, vectors)]
    for out in (*results, interpreted(lower_intrinsics(func), shifted, zeros)):
        kept = ~(shifted < -86)
        assert errors("exp", [shifted[kept]], out[kept]).max() <= MAX_ULP["exp"]
        assert (out[~kept] == 0).all()


def interpreted(func: PrimFunc, *args: np.ndarray) -> np.ndarray:
    result = np.zeros(COUNT, "float32")
    interpret(func, *args, result)
    return result
