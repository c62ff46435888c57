"""Quantise and dequantise: rounding, saturation, broadcasting, types."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.ops.running import apply, infer
from tilewright.ir.dtype import INT8, UINT8
from tilewright.ir.types import tensor_type
from tilewright.support.errors import UserError


def numbers(*values: float) -> np.ndarray:
    """A row of float32."""
    return np.asarray(values, np.float32)


def test_ties_go_to_even_and_ends_saturate() -> None:
    data = numbers(0.5, 1.5, 2.5, -0.5, 126.6, 300.0, -300.0)
    result = apply("qnn.quantize", data, np.float32(1).reshape(()), np.int8(0).reshape(()), dtype=INT8)
    np.testing.assert_array_equal(result, [0, 2, 2, 0, 127, 127, -128])


def test_zero_point_is_added_after_rounding() -> None:
    result = apply("qnn.quantize", numbers(-1.0, 0.0, 0.26), numbers(0.5), np.asarray([128], np.uint8), dtype=UINT8)
    np.testing.assert_array_equal(result, [126, 128, 129])


@pytest.mark.parametrize(("bits", "low", "high"), [(2, -2, 1), (4, -8, 7), (8, -128, 127)])
def test_fewer_bits(bits: int, low: int, high: int) -> None:
    result = apply("qnn.quantize", numbers(-1e9, 1e9), numbers(1.0), np.zeros(1, np.int8), dtype=INT8, bits=bits)
    np.testing.assert_array_equal(result, [low, high])


def test_one_scale_a_row_and_back() -> None:
    data = np.asarray([[1.0, -2.0], [10.0, 20.0]], np.float32)
    scale, zero = np.asarray([[0.5], [10.0]], np.float32), np.zeros((1, 1), np.int8)
    integers = apply("qnn.quantize", data, scale, zero, dtype=INT8)
    np.testing.assert_array_equal(integers, [[2, -4], [1, 2]])
    np.testing.assert_array_equal(apply("qnn.dequantize", integers, scale, zero), data)


@pytest.mark.parametrize(
    ("types", "attributes", "message"),
    [
        (("float32", "float64", "int8"), {"dtype": INT8}, "the scale is float64"),
        (("int32", "float32", "int8"), {"dtype": INT8}, "floating-point"),
        (("float32", "float32", "uint8"), {"dtype": INT8}, "the zero point must be int8"),
        (("float32", "float32", "int8"), {"dtype": INT8, "bits": 9}, "has 8 bits"),
    ],
)
def test_types_that_do_not_fit(types: tuple[str, ...], attributes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        infer("qnn.quantize", tensor_type((4,), types[0]), *(tensor_type((), name) for name in types[1:]), **attributes)


def test_scales_do_not_add_dimensions() -> None:
    with pytest.raises(UserError, match="more dimensions"):
        infer("qnn.dequantize", tensor_type((4,), "int8"), tensor_type((3, 4), "float32"), tensor_type((), "int8"))
