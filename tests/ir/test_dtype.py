"""Data types: parsing, printing, interning, promotion."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.ir.dtype import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    HANDLE,
    INT8,
    INT32,
    INT64,
    UINT8,
    DataType,
    promote,
)
from tilewright.support.errors import UserError

NAMES = [
    "bool", "int1", "int2", "int4", "int8", "int16", "int32", "int64",
    "uint1", "uint2", "uint4", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float8_e8m0fnu", "float4_e2m1fn", "handle",
]  # fmt: skip
NUMBERS = [DataType.of(name) for name in NAMES if name != "handle"]


@given(st.sampled_from(NAMES), st.integers(1, 64))
def test_text_round_trip(name, lanes):
    text = name if lanes == 1 else f"{name}x{lanes}"
    dtype = DataType.of(text)
    assert str(dtype) == repr(dtype) == text
    assert DataType.of(text) is dtype
    assert dtype.lanes == lanes
    assert dtype.element is DataType.of(name)
    assert dtype.element.with_lanes(lanes) is dtype
    assert dtype.is_scalar == (lanes == 1)


def test_one_object_per_type():
    assert DataType.of(FLOAT32) is FLOAT32
    assert DataType.of(np.float32) is FLOAT32
    assert DataType.of(np.dtype("int8")) is INT8
    assert copy.copy(INT8) is INT8
    assert copy.deepcopy(INT8) is INT8
    assert pickle.loads(pickle.dumps(DataType.of("float32x8"))) is DataType.of("float32x8")


@pytest.mark.parametrize("text", ["", "float", "int7", "float32x", "x8", "float32 x8", "float128"])
def test_unknown_names(text):
    with pytest.raises(UserError, match="unknown data type") as caught:
        DataType.of(text)
    assert "float32x8" in str(caught.value)


def test_wrong_things():
    with pytest.raises(UserError, match="has no lanes"):
        DataType.of("float32x0")
    with pytest.raises(UserError, match="is not a data type"):
        DataType.of(object())
    with pytest.raises(UserError, match="no numpy storage"):
        DataType.of("handle").numpy()


def test_kinds_and_sizes():
    assert BOOL.is_bool and not BOOL.is_integer and BOOL.itemsize == 1
    assert INT32.is_int and INT32.is_integer and not INT32.is_uint and INT32.itemsize == 4
    assert UINT8.is_uint and UINT8.is_integer
    assert FLOAT16.is_float and BFLOAT16.is_float and DataType.of("float8_e5m2").is_float
    assert not HANDLE.is_float and HANDLE.itemsize == 8
    assert DataType.of("int4").itemsize == 1
    string = DataType.of("string")
    assert string.is_string and not string.is_float and not string.is_integer
    assert string.numpy() == np.dtype(object) and DataType.of(np.dtype(object)) is string
    assert (INT8.min_value(), INT8.max_value()) == (-128, 127)
    assert (UINT8.min_value(), UINT8.max_value()) == (0, 255)
    assert FLOAT64.numpy() == np.float64
    assert BFLOAT16.numpy() == np.uint16
    assert DataType.of("float8_e4m3fn").numpy() == np.uint8


def test_promotion():
    assert promote(INT32, INT32) is INT32
    assert promote(BOOL, INT8) is INT8
    assert promote(INT8, BOOL) is INT8
    assert promote(INT64, FLOAT16) is FLOAT16
    assert promote(INT8, INT32) is INT32
    assert promote(INT8, UINT8) is DataType.of("int16")
    assert promote(INT64, DataType.of("uint64")) is INT64
    assert promote(FLOAT16, BFLOAT16) is FLOAT32
    assert promote(FLOAT32, FLOAT64) is FLOAT64
    assert promote(FLOAT32.with_lanes(4), INT32) is FLOAT32.with_lanes(4)


@given(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS))
def test_promotion_is_symmetric(a, b):
    assert promote(a, b) is promote(b, a)
    assert promote(promote(a, b), b) is promote(a, b)
