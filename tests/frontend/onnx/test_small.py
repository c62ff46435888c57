"""Types of 8 bits and less against the package ml_dtypes, value by value."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tests.frontend.onnx.helpers import main_of
from tilewright.frontend import from_onnx
from tilewright.frontend.onnx.small import SMALL_TYPES, SmallFloat, SmallInteger, values_of
from tilewright.graph.interpreter import evaluate
from tilewright.support.errors import UnsupportedError

FLOATS = {
    TensorProto.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn,
    TensorProto.FLOAT8E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
    TensorProto.FLOAT8E5M2: ml_dtypes.float8_e5m2,
    TensorProto.FLOAT8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
    TensorProto.FLOAT4E2M1: ml_dtypes.float4_e2m1fn,
    TensorProto.FLOAT8E8M0: ml_dtypes.float8_e8m0fnu,
}


def _model(nodes, source: int, shape: tuple[int, ...], opset: int = 25):
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", source, shape)],
        [helper.make_empty_tensor_value_info("y")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=13)


def _cast(x: np.ndarray, source: int, to: int, **attributes: int) -> np.ndarray:
    module = from_onnx(_model([helper.make_node("Cast", ["x"], ["y"], to=to, **attributes)], source, x.shape))
    assert main_of(module).params
    return np.asarray(evaluate(module, x))


@pytest.mark.parametrize("number", list(FLOATS))
def test_every_code_decodes(number):
    small = SMALL_TYPES[number]
    codes = np.arange(1 << small.bits, dtype=np.uint8)
    expected = codes.view(FLOATS[number]).astype(np.float32)
    np.testing.assert_array_equal(values_of(small), expected)
    np.testing.assert_array_equal(_cast(codes, number, TensorProto.FLOAT), expected)


@pytest.mark.parametrize("number", [number for number in FLOATS if number != TensorProto.FLOAT8E8M0])
def test_floats_round_to_the_nearest(number):
    small = SMALL_TYPES[number]
    assert isinstance(small, SmallFloat)
    exact = np.sort(values_of(small)[np.isfinite(values_of(small))])
    medians = (exact[1:] + exact[:-1]) / 2
    samples = np.concatenate([exact, medians, np.nextafter(medians, np.float32(9e9)), np.nextafter(medians, -9e9)])
    samples = samples.astype(np.float32)
    expected = samples.astype(FLOATS[number]).astype(np.float32)
    codes = _cast(samples, TensorProto.FLOAT, number)
    np.testing.assert_array_equal(codes.view(FLOATS[number]).astype(np.float32), expected)


def test_out_of_range_saturates_or_not():
    x = np.array([1e9, -1e9, np.inf, np.nan], np.float32)
    limited = _cast(x, TensorProto.FLOAT, TensorProto.FLOAT8E5M2).view(ml_dtypes.float8_e5m2).astype(np.float32)
    np.testing.assert_array_equal(limited, [57344, -57344, 57344, np.nan])
    free = _cast(x, TensorProto.FLOAT, TensorProto.FLOAT8E5M2, saturate=0).view(ml_dtypes.float8_e5m2)
    np.testing.assert_array_equal(free.astype(np.float32), [np.inf, -np.inf, np.inf, np.nan])
    for number in (TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2FNUZ):
        lost = _cast(x, TensorProto.FLOAT, number, saturate=0).view(FLOATS[number])
        assert np.isnan(lost.astype(np.float32)).all()


def test_integers_keep_their_low_bits():
    x = np.arange(-20, 20, dtype=np.int16)
    for number, dtype in ((TensorProto.INT4, ml_dtypes.int4), (TensorProto.UINT2, ml_dtypes.uint2)):
        small = SMALL_TYPES[number]
        assert isinstance(small, SmallInteger)
        result = _cast(x, TensorProto.INT16, number)
        assert result.min() == small.low
        assert result.max() == small.high
        np.testing.assert_array_equal(result, x.astype(dtype).astype(np.int8))


def test_small_values_move():
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"]),
        helper.make_node("Cast", ["t"], ["y"], to=TensorProto.FLOAT),
    ]
    x = np.arange(6, dtype=np.uint8).reshape(2, 3)
    result = evaluate(from_onnx(_model(nodes, TensorProto.FLOAT8E5M2, (2, 3))), x)
    np.testing.assert_array_equal(result, x.view(ml_dtypes.float8_e5m2).astype(np.float32).T)


def test_there_is_no_arithmetic():
    with pytest.raises(UnsupportedError, match="Relu of float8e5m2 is not supported"):
        from_onnx(_model([helper.make_node("Relu", ["x"], ["y"])], TensorProto.FLOAT8E5M2, (3,)))
    node = helper.make_node("Gather", ["i", "x"], ["y"])
    model = _model([helper.make_node("Constant", [], ["i"], value_ints=[0, 1]), node], TensorProto.INT4, (1,))
    with pytest.raises(UnsupportedError, match="Gather of int4 together with other types"):
        from_onnx(model)


def test_conversions_that_would_round_twice_are_refused():
    with pytest.raises(UnsupportedError, match="a conversion from float64 to float8e5m2"):
        _cast(np.zeros(3), TensorProto.DOUBLE, TensorProto.FLOAT8E5M2)


def test_powers_of_two():
    x = np.array([1.0, 1.5, 2.0, 3e-39, 1e-45, 3e38, np.inf, np.nan], np.float32)
    up = _cast(x, TensorProto.FLOAT, TensorProto.FLOAT8E8M0)
    np.testing.assert_array_equal(up, [127, 128, 128, 0, 0, 254, 254, 255])
    down = _cast(x, TensorProto.FLOAT, TensorProto.FLOAT8E8M0, round_mode="down")
    np.testing.assert_array_equal(down[:3], [127, 127, 128])
    with pytest.raises(UnsupportedError, match="round_mode='nearest'"):
        _cast(x, TensorProto.FLOAT, TensorProto.FLOAT8E8M0, round_mode="nearest")


INTEGERS = {
    TensorProto.INT4: ml_dtypes.int4,
    TensorProto.UINT4: ml_dtypes.uint4,
    TensorProto.INT2: ml_dtypes.int2,
    TensorProto.UINT2: ml_dtypes.uint2,
}


@pytest.mark.parametrize("element", [*FLOATS, *INTEGERS])
def test_arrays_of_small_types_are_taken_as_they_are(element):
    """The package's arrays are what models hold: integers one to a byte, floats as their bits."""
    values = np.array([1, 0.5, 1, 2], np.float32).astype((FLOATS | INTEGERS)[element])
    model = _model([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)], element, (4,))
    (result,) = tw.compile(model, threads=1).run({"x": values})
    np.testing.assert_array_equal(result, values.astype(np.float32))


@pytest.mark.parametrize(
    "name", ["INT4", "UINT4", "INT2", "UINT2", "FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT4E2M1", "BFLOAT16"]
)
def test_arrays_of_ml_dtypes_in_and_out(name):
    """A model takes and gives arrays of types that numpy lacks."""
    kind = getattr(TensorProto, name)
    infos = [helper.make_tensor_value_info(label, kind, [2, 2]) for label in ("x", "y")]
    node = helper.make_node("Transpose", ["x"], ["y"])
    graph = helper.make_graph([node], "moved", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=12)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    x = np.array([[0, 1], [1, 0]], np.float32).astype(dtype)
    y = tw.compile(model, threads=1)(x)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y.astype(np.float32), x.T.astype(np.float32))


def _moves(element: int):
    """A model that slices, joins, turns, takes and reshapes values of a type at odd sizes, and gives their values."""
    nodes = [
        helper.make_node("Slice", ["x", "starts", "ends"], ["part"]),
        helper.make_node("Concat", ["part", "x"], ["joined"], axis=2),
        helper.make_node("Transpose", ["joined"], ["turned"], perm=[2, 0, 1]),
        helper.make_node("Gather", ["turned", "places"], ["taken"], axis=0),
        helper.make_node("Reshape", ["taken", "shape"], ["y"]),
    ]
    stored = {"starts": [0, 0, 1], "ends": [3, 5, 6], "places": [11, 0, 4], "shape": [9, 5]}
    constants = [helper.make_tensor(name, TensorProto.INT64, [len(value)], value) for name, value in stored.items()]
    graph = helper.make_graph(
        [*nodes, helper.make_node("Cast", ["y"], ["values"], to=TensorProto.FLOAT)],
        "moves",
        [helper.make_tensor_value_info("x", element, (3, 5, 7))],
        [helper.make_tensor_value_info("y", element, (9, 5)), helper.make_tensor_value_info("values", 1, (9, 5))],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)


@pytest.mark.parametrize("element", [*FLOATS, *INTEGERS])
def test_compiled_moves_at_odd_sizes(element):
    kind = np.dtype({**FLOATS, **INTEGERS}[element])
    bits = SMALL_TYPES[element].bits
    codes = np.random.default_rng(element).integers(0, 1 << bits, (3, 5, 7)).astype(np.uint8)
    x = codes.view(kind) if element in FLOATS else codes.astype(kind)
    expected = np.concatenate([x[:, :, 1:6], x], axis=2).transpose(2, 0, 1)[[11, 0, 4]].reshape(9, 5)
    y, values = tw.compile(_moves(element), threads=1)(x)
    assert y.dtype == kind
    np.testing.assert_array_equal(y.view(np.uint8), expected.view(np.uint8))
    np.testing.assert_array_equal(values, expected.astype(np.float32))


@pytest.mark.parametrize("number", [number for number in FLOATS if number != TensorProto.FLOAT8E8M0])
def test_compiled_conversions_are_those_of_the_package(number):
    """All codes, all half-way points and their neighbours, and zeros, as compiled code rounds them."""
    exact = np.sort(values_of(SMALL_TYPES[number])[np.isfinite(values_of(SMALL_TYPES[number]))])
    medians = (exact[1:] + exact[:-1]) / 2
    samples = [exact, medians, np.nextafter(medians, np.float32(9e9)), np.nextafter(medians, np.float32(-9e9))]
    x = np.concatenate([*samples, [0.0, -0.0, 1e-44, -1e-44]]).astype(np.float32)
    to = helper.make_node("Cast", ["x"], ["y"], to=number, saturate=0)
    y = tw.compile(_model([to], TensorProto.FLOAT, x.shape), threads=1)(x)
    np.testing.assert_array_equal(y.view(np.uint8), x.astype(FLOATS[number]).view(np.uint8))
