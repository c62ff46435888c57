"""8-bit floats in kernels: conversions by the languages of devices and by C give the bits of ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.requirements import need
from tilewright import te
from tilewright.graph.ops.special import float8_codes, float8_values
from tilewright.ir.build import cast
from tilewright.ir.dtype import FLOAT32, DataType

KINDS = ("float8_e4m3fn", "float8_e5m2")


def numbers() -> np.ndarray:
    """All exponents, the steps between values of both types, ties, bounds, and what is no number."""
    random = np.random.default_rng(0)
    parts = [np.frombuffer(random.bytes(8000), np.float32)]
    parts += [np.linspace(-end, end, 1001, dtype=np.float32) for end in (600.0, 70000.0, 0.02, 1e-4)]
    edges = [464, 464.00003, -464, 61440, 61439.99, -61440, 448, 480, 57344, 0.0, -0.0, np.inf, -np.inf, np.nan]
    return np.concatenate([*parts, np.array(edges, np.float32)])


def check(codes: np.ndarray, values: np.ndarray, kind: str) -> None:
    """Codes of the numbers, and what they stand for; any NaN is one."""
    with np.errstate(all="ignore"):
        wanted = numbers().astype(getattr(ml_dtypes, kind))
    is_number = ~np.isnan(wanted.astype(np.float32))
    np.testing.assert_array_equal(codes[is_number], wanted.view(np.uint8)[is_number])
    np.testing.assert_array_equal(values, wanted.astype(np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_the_interpreter(kind: str) -> None:
    codes = float8_codes(numbers(), kind)
    check(codes, float8_values(codes, kind), kind)
    every = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(float8_values(every, kind), every.view(getattr(ml_dtypes, kind)).astype(np.float32))


@pytest.mark.parametrize("target", ["opencl", "c", "cuda"])
@pytest.mark.parametrize("kind", KINDS)
def test_kernels(kind: str, target: str) -> None:
    need("c-compiler" if target == "c" else target)
    x = numbers()
    a = te.placeholder((len(x),), "float32", "a")
    b = te.compute(a.shape, lambda i: cast(a[i], DataType.of(kind)), "b")
    c = te.compute(a.shape, lambda i: cast(b[i], FLOAT32), "c")
    function = tw.build(te.create_schedule(c.op), [a, b, c], target=target)
    codes, values = np.zeros(len(x), getattr(ml_dtypes, kind)), np.zeros(len(x), np.float32)
    function(x, codes, values)
    check(codes.view(np.uint8), values, kind)
