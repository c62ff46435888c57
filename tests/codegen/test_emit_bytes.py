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
