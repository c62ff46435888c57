"""Bytes at the edges of quantised kernels: rounding to them, and their products, as the interpreter has them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.compiled import HOST, run
from tests.codegen.test_emit_expr import COUNT, elementwise
from tilewright.backends.host import host_source
from tilewright.ir import build, intrinsics
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import INT32, DataType
from tilewright.target.target import Target
from tilewright.tir.interpreter import interpret

SPECIAL = [np.nan, np.inf, -np.inf, 0.5, 1.5, 2.5, -0.5, 254.5, 255.5, 126.5, 127.5, -128.5, 3e9, -3e9, 1e30, -0.0]
X86 = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids")
ARM = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1")


def numbers() -> np.ndarray:
    values = np.random.default_rng(0).uniform(-300, 300, COUNT).astype(np.float32)
    values[: len(SPECIAL)] = SPECIAL
    return values


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("zero", [0, 3, 128, -128])
@pytest.mark.parametrize("lanes", [1, 4, 8, 12, 16, 24])
def test_rounding_to_bytes(dtype: str, zero: int, lanes: int) -> None:
    """Ties go to even, what does not fit saturates, NaN is 0: in every width."""

    def rounded(x):  # type: ignore[no-untyped-def]
        value = intrinsics.round(x)
        return cast(build.add(value, const(float(zero), "float32")) if zero else value, DataType.of(dtype))

    func = elementwise(rounded, ["float32"], dtype, lanes)
    x, result = numbers(), np.zeros(COUNT, dtype)
    expected = result.copy()
    interpret(func, x.copy(), expected)
    np.testing.assert_array_equal(run(func, x, result, target=HOST)[-1], expected)


def test_rounding_is_part_of_the_conversion() -> None:
    func = elementwise(lambda x: cast(intrinsics.round(x), DataType.of("uint8")), ["float32"], "uint8", 16)
    for target, instruction in ((X86, "mask.cvtps2dq.512"), (ARM, "neon.fcvtns")):
        text = host_source([func], target)
        assert instruction in text and "roundeven" not in text


@pytest.mark.parametrize("left", ["uint8", "int8"])
@pytest.mark.parametrize("shift", [0, 128])
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_products_of_bytes_are_added(left: str, shift: int, lanes: int) -> None:
    def added(total, a, b):  # type: ignore[no-untyped-def]
        factor = cast(a, INT32)
        return total + (factor - const(shift, INT32) if shift else factor) * cast(b, INT32)

    func = elementwise(added, ["int32", left, "int8"], "int32", lanes)
    random = np.random.default_rng(1)
    limits = np.iinfo(left)
    total = random.integers(-(2**31), 2**31, COUNT).astype(np.int32)
    a = random.integers(limits.min, limits.max + 1, COUNT).astype(left)
    b = random.integers(-128, 128, COUNT).astype(np.int8)
    a[:4], b[:4] = [limits.min, limits.max, limits.min, limits.max], [-128, -128, 127, 127]
    result = np.zeros(COUNT, np.int32)
    expected = result.copy()
    interpret(func, total, a, b, expected)
    np.testing.assert_array_equal(run(func, total, a, b, result, target=HOST)[-1], expected)
    text = host_source([func], X86)
    assert ("vpdpwssd" in text) == (lanes >= 8)


WORDS = [-(1 << 31), (1 << 31) - 1, -1, 0, 1, 1 << 30, -(1 << 30), (1 << 30) + 1, 255, -255, 128, -129]


def words(seed: int) -> np.ndarray:
    """Words of all sizes, with each pair of special ones."""
    random = np.random.default_rng(seed)
    values = (random.integers(-(1 << 31), 1 << 31, COUNT) >> random.integers(0, 31, COUNT)).astype(np.int32)
    chosen = np.repeat(WORDS, len(WORDS)) if seed else np.tile(WORDS, len(WORDS))
    values[: len(chosen)] = chosen[:COUNT]
    return values


@pytest.mark.parametrize("lanes", [1, 4, 8, 12, 16, 24])
def test_rounded_products_and_shifts(lanes: int) -> None:
    """The square of the least word saturates, and halves go up."""
    product = elementwise(intrinsics.high_product, ["int32", "int32"], "int32", lanes)
    shift = elementwise(intrinsics.rounded_shift, ["int32", "int32"], "int32", lanes)
    a, b = words(0), words(1)
    exact = np.minimum((a.astype(np.int64) * b + (1 << 30)) >> 31, (1 << 31) - 1)
    np.testing.assert_array_equal(run(product, a, b, np.zeros(COUNT, np.int32), target=HOST)[-1], exact)
    places = np.arange(COUNT) % 32
    exact = (a.astype(np.int64) + ((np.int64(1) << places) >> 1)) >> places
    found = run(shift, a, (-places).astype(np.int32), np.zeros(COUNT, np.int32), target=HOST)[-1]
    np.testing.assert_array_equal(found, exact)


@pytest.mark.grid
@pytest.mark.parametrize("lanes", [1, 4, 8, 12, 16, 24])
@pytest.mark.parametrize("wide", ["int32", "int16"])
@pytest.mark.parametrize(
    ("dtype", "low", "high", "added"),
    [
        ("int8", -128, 127, 0),
        ("int8", 0, 255, -128),
        ("int8", 10, 200, -128),
        ("int8", -3, 90, -20),
        ("uint8", -7, 248, 7),
        ("uint8", 3, 100, 0),
        ("int8", -100, 155, -28),
    ],
)
def test_clamped_numbers_to_bytes_and_back(dtype: str, low: int, high: int, added: int, wide: str, lanes: int) -> None:
    kind = DataType.of(wide)

    def narrowed(x):  # type: ignore[no-untyped-def]
        kept = build.minimum(build.maximum(x, const(low, kind)), const(high, kind))
        return cast(kept + const(added, kind), DataType.of(dtype))

    data = words(0).astype(wide)
    exact = np.clip(data, low, high).astype(np.int32) + added
    found = run(elementwise(narrowed, [wide], dtype, lanes), data, np.zeros(COUNT, dtype), target=HOST)[-1]
    np.testing.assert_array_equal(found, exact)
    back = elementwise(lambda x: cast(narrowed(x), INT32) * const(3, INT32), [wide], "int32", lanes)
    np.testing.assert_array_equal(run(back, data, np.zeros(COUNT, np.int32), target=HOST)[-1], 3 * exact)


def test_words_that_16_bits_hold_do_not_saturate_on_the_way_to_bytes() -> None:
    half = DataType.of("int16")

    def narrowed(x):  # type: ignore[no-untyped-def]
        kept = build.minimum(build.maximum(cast(x, half), const(0, half)), const(255, half))
        return cast(kept + const(-128, half), DataType.of("int8"))

    text = host_source([elementwise(narrowed, ["int32"], "int8", 16)], ARM)
    assert "trunc <16 x i32>" in text and "neon.sqxtun.v8i8" in text
    assert "neon.sqxtn.v4i16" not in text and "neon.sqadd" not in text


def test_fixed_point_by_instructions() -> None:
    def rescaled(x, multiplier, n):  # type: ignore[no-untyped-def]
        value = intrinsics.rounded_shift(intrinsics.high_product(x, multiplier), n)
        return cast(build.minimum(build.maximum(value, const(0, INT32)), const(255, INT32)), DataType.of("uint8"))

    text = host_source([elementwise(rescaled, ["int32"] * 3, "uint8", 16)], ARM)
    for instruction in ("sqrdmulh", "srshl", "sqxtn", "sqxtun"):
        assert f"neon.{instruction}" in text
    assert "i64>" not in text and "smax" not in text


@pytest.mark.grid
@pytest.mark.parametrize("lanes", [1, 4, 8, 24])
@pytest.mark.parametrize(("dtype", "low", "high"), [("int8", -128, 127), ("int8", -100, 90), ("uint8", 0, 255)])
@pytest.mark.parametrize("count", [16, 17, 24, 25])
def test_shifted_words_to_bytes(dtype: str, low: int, high: int, count: int, lanes: int) -> None:
    def narrowed(x):  # type: ignore[no-untyped-def]
        shifted = build.shift_right(x, const(count, INT32))
        return cast(build.minimum(build.maximum(shifted, const(low, INT32)), const(high, INT32)), DataType.of(dtype))

    func = elementwise(narrowed, ["int32"], dtype, lanes)
    found = run(func, words(0), np.zeros(COUNT, dtype), target=HOST)[-1]
    np.testing.assert_array_equal(found, np.clip(words(0) >> count, low, high))
    assert ("neon.sqshr" in host_source([func], ARM)) == (lanes % 8 == 0 and 16 < count <= 24)


@pytest.mark.grid
@pytest.mark.parametrize("lanes", [1, 4, 8, 24])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("count", [15, 16, 24, 25])
def test_narrow_numbers_as_upper_halves_of_words(dtype: str, count: int, lanes: int) -> None:
    func = elementwise(lambda x: build.shift_left(cast(x, INT32), const(count, INT32)), [dtype], "int32", lanes)
    data = words(0).astype(dtype)
    found = run(func, data, np.zeros(COUNT, np.int32), target=HOST)[-1]
    np.testing.assert_array_equal(found, data.astype(np.int32) << count)
    assert ("zeroinitializer, <" in host_source([func], ARM)) == (lanes % 8 == 0 and 16 <= count <= 24)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("count", [16, 20, 24])
def test_clamped_halves_as_upper_halves_of_words(dtype: str, count: int) -> None:
    """Bytes that are made of 16 bits and at once widened are never made."""
    half, kind = DataType.of("int16"), DataType.of(dtype)

    def moved(x):  # type: ignore[no-untyped-def]
        kept = build.minimum(build.maximum(x, const(-3, half)), const(100, half)) + const(3, half)
        return build.shift_left(cast(cast(kept, kind), INT32), const(count, INT32))

    func, data = elementwise(moved, ["int16"], "int32", 16), words(0).astype(np.int16)
    found = run(func, data, np.zeros(COUNT, np.int32), target=HOST)[-1]
    np.testing.assert_array_equal(found, (np.clip(data, -3, 100).astype(np.int32) + 3) << count)
    assert "neon.sqxt" not in host_source([func], ARM)
