"""Types of 8 bits and less against the package ml_dtypes and onnx's own helpers, value by value."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tests.frontend.onnx.helpers import main_of
from tilewright.frontend import from_onnx
from tilewright.frontend.onnx.reader import DATA_TYPES
from tilewright.graph.interpreter import evaluate
from tilewright.ir.dtype import DataType
from tilewright.support.errors import UserError

FLOATS = {
    TensorProto.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn,
    TensorProto.FLOAT8E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
    TensorProto.FLOAT8E5M2: ml_dtypes.float8_e5m2,
    TensorProto.FLOAT8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
    TensorProto.FLOAT4E2M1: ml_dtypes.float4_e2m1fn,
    TensorProto.FLOAT8E8M0: ml_dtypes.float8_e8m0fnu,
}
SIGNED_FLOATS = [number for number in FLOATS if number != TensorProto.FLOAT8E8M0]
INTEGERS = {
    TensorProto.INT4: ml_dtypes.int4,
    TensorProto.UINT4: ml_dtypes.uint4,
    TensorProto.INT2: ml_dtypes.int2,
    TensorProto.UINT2: ml_dtypes.uint2,
}
SMALL = {**FLOATS, **INTEGERS}


def _bits(number: int) -> int:
    return DataType.of(DATA_TYPES[number]).bits


def _model(nodes, source: int, shape: tuple[int, ...], opset: int = 25, constants=()):
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", source, shape)],
        [helper.make_empty_tensor_value_info("y")],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=13)


def _cast_model(source: int, to: int, shape: tuple[int, ...], **attributes: int | str):
    return _model([helper.make_node("Cast", ["x"], ["y"], to=to, **attributes)], source, shape)


def _cast(x: np.ndarray, source: int, to: int, **attributes: int | str) -> np.ndarray:
    module = from_onnx(_cast_model(source, to, x.shape, **attributes))
    assert main_of(module).params
    return np.asarray(evaluate(module, x))


def _halves() -> np.ndarray:
    """Every half, as float32."""
    with np.errstate(invalid="ignore"):
        return np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)


@pytest.mark.parametrize("number", list(FLOATS))
def test_every_code_decodes(number):
    codes = np.arange(1 << _bits(number), dtype=np.uint8)
    expected = codes.view(FLOATS[number]).astype(np.float32)
    np.testing.assert_array_equal(_cast(codes, number, TensorProto.FLOAT), expected)


@pytest.mark.parametrize("number", SIGNED_FLOATS)
@pytest.mark.parametrize("saturate", [0, 1])
def test_every_half_is_rounded_as_the_packages_do(number, saturate):
    x = _halves()
    with np.errstate(all="ignore"):
        expected = x.astype(FLOATS[number])
        if saturate:
            limit = np.float32(ml_dtypes.finfo(FLOATS[number]).max)
            expected = np.clip(x, -limit, limit).astype(FLOATS[number])
            theirs = onnx.numpy_helper.saturate_cast(x, np.dtype(FLOATS[number]))
            np.testing.assert_array_equal(expected.view(np.uint8), theirs.view(np.uint8))
    codes = _cast(x, TensorProto.FLOAT, number, saturate=saturate)
    np.testing.assert_array_equal(codes, expected.view(np.uint8))


def test_out_of_range_saturates_or_not():
    x = np.array([1e9, -1e9, np.inf, np.nan], np.float32)
    limited = _cast(x, TensorProto.FLOAT, TensorProto.FLOAT8E5M2).view(ml_dtypes.float8_e5m2).astype(np.float32)
    np.testing.assert_array_equal(limited, [57344, -57344, 57344, np.nan])
    free = _cast(x, TensorProto.FLOAT, TensorProto.FLOAT8E5M2, saturate=0).view(ml_dtypes.float8_e5m2)
    np.testing.assert_array_equal(free.astype(np.float32), [np.inf, -np.inf, np.inf, np.nan])
    for number in (TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2FNUZ):
        lost = _cast(x, TensorProto.FLOAT, number, saturate=0).view(FLOATS[number])
        assert np.isnan(lost.astype(np.float32)).all()


@pytest.mark.parametrize("number", list(INTEGERS))
@pytest.mark.parametrize("source", ["float32", "int16", "uint8", "int64", "bool"])
def test_integers_keep_their_low_bits(number, source):
    x = np.arange(-300, 300).astype(source)
    element = helper.np_dtype_to_tensor_dtype(np.dtype(source))
    wide = x.astype(np.int64) if source == "float32" else x
    np.testing.assert_array_equal(_cast(x, element, number), wide.astype(INTEGERS[number]).astype(np.int8))
    (compiled,) = tw.compile(_cast_model(element, number, x.shape), threads=1).run({"x": x})
    np.testing.assert_array_equal(compiled, wide.astype(INTEGERS[number]))


def test_small_values_compute():
    """Arithmetic of small floats is that of float32, rounded; that of small integers wraps around."""
    values = np.arange(16, dtype=np.uint8)
    relu = _model([helper.make_node("Relu", ["x"], ["y"])], TensorProto.FLOAT4E2M1, (16,))
    floats = values.view(ml_dtypes.float4_e2m1fn)
    (result,) = tw.compile(relu, threads=1).run({"x": floats})
    np.testing.assert_array_equal(result.astype(np.float32), np.maximum(floats.astype(np.float32), 0))
    double = _model([helper.make_node("Add", ["x", "x"], ["y"])], TensorProto.INT4, (16,))
    integers = values.astype(ml_dtypes.int4)
    (result,) = tw.compile(double, threads=1).run({"x": integers})
    np.testing.assert_array_equal(result, integers + integers)


def test_powers_of_two():
    x = np.array([1.0, 1.5, 2.0, 3e-39, 1e-45, 3e38, np.inf, np.nan], np.float32)
    up = _cast(x, TensorProto.FLOAT, TensorProto.FLOAT8E8M0)
    np.testing.assert_array_equal(up, [127, 128, 128, 0, 0, 254, 254, 255])
    down = _cast(x, TensorProto.FLOAT, TensorProto.FLOAT8E8M0, round_mode="down")
    np.testing.assert_array_equal(down[:3], [127, 127, 128])
    with pytest.raises(UserError, match="round_mode 'half' of a conversion to float8_e8m0fnu"):
        _cast(x, TensorProto.FLOAT, TensorProto.FLOAT8E8M0, round_mode="half")


@pytest.mark.parametrize("round_mode", ["up", "down", "nearest"])
@pytest.mark.parametrize("saturate", [0, 1])
def test_powers_of_two_as_onnx_rounds_them(round_mode, saturate):
    x = np.abs(_halves())
    x = x[np.isfinite(x) & (x > 0)]
    x = np.concatenate([x, x * np.float32(2.0**100), np.float32([3e38, 2.0**127, 1.5 * 2.0**127])])
    expected = onnx.numpy_helper.to_float8e8m0(x, saturate=bool(saturate), round_mode=round_mode)
    codes = _cast(x, TensorProto.FLOAT, TensorProto.FLOAT8E8M0, round_mode=round_mode, saturate=saturate)
    np.testing.assert_array_equal(codes, expected.view(np.uint8))
    special = _cast(np.float32([0, np.inf]), TensorProto.FLOAT, TensorProto.FLOAT8E8M0, saturate=saturate)
    np.testing.assert_array_equal(special, [0, 254] if saturate else [255, 255])


@pytest.mark.parametrize("element", list(SMALL))
def test_arrays_of_small_types_are_taken_as_they_are(element):
    values = np.array([1, 0.5, 1, 2], np.float32).astype(SMALL[element])
    model = _cast_model(element, TensorProto.FLOAT, (4,))
    (result,) = tw.compile(model, threads=1).run({"x": values})
    np.testing.assert_array_equal(result, values.astype(np.float32))


@pytest.mark.parametrize("name", [*(TensorProto.DataType.Name(number) for number in SMALL), "BFLOAT16"])
def test_arrays_of_ml_dtypes_in_and_out(name):
    """A model takes and gives arrays of types that numpy lacks."""
    kind = getattr(TensorProto, name)
    infos = [helper.make_tensor_value_info(label, kind, [2, 2]) for label in ("x", "y")]
    node = helper.make_node("Transpose", ["x"], ["y"])
    graph = helper.make_graph([node], "moved", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=12)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    x = np.array([[0, 1], [1, 0]], np.float32).astype(dtype)
    exe = tw.compile(model, threads=1)
    for _ in range(2):  # the second call takes the quick way, where there is one
        y = exe(x)
        assert y.dtype == dtype
        np.testing.assert_array_equal(y.astype(np.float32), x.T.astype(np.float32))


def _moves(element: int, constant: np.ndarray | None = None):
    """A model that slices, joins, turns, takes and reshapes values of a type at odd sizes, and gives their values."""
    nodes = [
        helper.make_node("Slice", ["w", "starts", "ends"], ["part"]),
        helper.make_node("Concat", ["part", "x"], ["joined"], axis=2),
        helper.make_node("Transpose", ["joined"], ["turned"], perm=[2, 0, 1]),
        helper.make_node("Gather", ["turned", "places"], ["taken"], axis=0),
        helper.make_node("Reshape", ["taken", "shape"], ["y"]),
        helper.make_node("Cast", ["y"], ["values"], to=TensorProto.FLOAT),
    ]
    stored = {"starts": [0, 0, 1], "ends": [3, 5, 6], "places": [11, 0, 4], "shape": [9, 5]}
    constants = [helper.make_tensor(name, TensorProto.INT64, [len(value)], value) for name, value in stored.items()]
    if constant is None:
        nodes.insert(0, helper.make_node("Identity", ["x"], ["w"]))
    else:
        constants.append(onnx.numpy_helper.from_array(constant, "w"))
    graph = helper.make_graph(
        nodes,
        "moves",
        [helper.make_tensor_value_info("x", element, (3, 5, 7))],
        [helper.make_tensor_value_info("y", element, (9, 5)), helper.make_tensor_value_info("values", 1, (9, 5))],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)


@pytest.mark.parametrize("element", list(SMALL))
@pytest.mark.parametrize("is_constant", [False, True])
def test_compiled_moves_at_odd_sizes(element, is_constant):
    kind = np.dtype(SMALL[element])
    codes = np.random.default_rng(element).integers(0, 1 << _bits(element), (2, 3, 5, 7)).astype(np.uint8)
    # Any NaN is one: moves of values that are not compiled give the one that conversions give.
    codes[codes == 0x7D] = codes[codes == 0x7F] = codes[codes == 0xFD] = codes[codes == 0xFF] = 0
    x, w = codes.view(kind) if element in FLOATS else codes.astype(kind)
    if not is_constant:
        w = x
    expected = np.concatenate([w[:, :, 1:6], x], axis=2).transpose(2, 0, 1)[[11, 0, 4]].reshape(9, 5)
    y, values = tw.compile(_moves(element, w if is_constant else None), threads=1)(x)
    assert y.dtype == kind
    np.testing.assert_array_equal(y.view(np.uint8), expected.view(np.uint8))
    np.testing.assert_array_equal(values, expected.astype(np.float32))


@pytest.mark.parametrize("element", list(SMALL))
def test_constants_are_packed(element):
    """Rows taken of a constant table: what the model stores of it is as many elements to a byte as fit."""
    kind = np.dtype(SMALL[element])
    codes = np.random.default_rng(element).integers(0, 1 << min(_bits(element), 7), (301, 37)).astype(np.uint8)
    codes[codes > 0x7B] = 0
    table = codes.view(kind) if element in FLOATS else codes.astype(kind)
    nodes = [helper.make_node("Gather", ["table", "x"], ["y"])]
    constants = [onnx.numpy_helper.from_array(table, "table")]
    exe = tw.compile(_model(nodes, TensorProto.INT64, (5,), constants=constants), threads=1)
    size = -(-table.size * _bits(element) // 8)
    assert exe.artifact.constants.nbytes == -(-size // 64) * 64
    places = np.array([0, 300, 7, 7, 150])
    for _ in range(2):
        np.testing.assert_array_equal(exe(places).view(np.uint8), table[places].view(np.uint8))


@pytest.mark.parametrize("number", SIGNED_FLOATS)
def test_compiled_conversions_are_those_of_the_package(number):
    """All halves, all half-way points and their neighbours, and zeros, as compiled code rounds them."""
    exact = np.arange(1 << _bits(number), dtype=np.uint8).view(FLOATS[number]).astype(np.float32)
    exact = np.sort(exact[np.isfinite(exact)])
    medians = (exact[1:] + exact[:-1]) / 2
    samples = [exact, medians, np.nextafter(medians, np.float32(9e9)), np.nextafter(medians, np.float32(-9e9))]
    x = np.concatenate([*samples, [0.0, -0.0, 1e-44, -1e-44, np.nan, -np.nan], _halves()]).astype(np.float32)
    exe = tw.compile(_cast_model(TensorProto.FLOAT, number, x.shape, saturate=0), threads=1)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(exe(x).view(np.uint8), x.astype(FLOATS[number]).view(np.uint8))


def test_numbers_that_do_not_fit_are_refused():
    exe = tw.compile(_cast_model(TensorProto.INT4, TensorProto.FLOAT, (2,)), threads=1)
    np.testing.assert_array_equal(exe(np.int8([-8, 7])), [-8, 7])
    np.testing.assert_array_equal(exe([-8, 7]), [-8, 7])
    for wrong in (np.int8([0, 8]), [-9, 0]):
        with pytest.raises(UserError, match=r"outside the range of int4 \(-8 to 7\)"):
            exe(wrong)
    with pytest.raises(UserError, match="data type uint8, expected int4"):
        exe(np.uint8([0, 1]))
    floats = tw.compile(_cast_model(TensorProto.FLOAT8E5M2, TensorProto.FLOAT, (2,)), threads=1)
    np.testing.assert_array_equal(floats([0.5, -3.0]), [0.5, -3])


def test_results_go_into_arrays_of_the_package():
    out = np.zeros(3, ml_dtypes.int2)
    exe = tw.compile(_cast_model(TensorProto.INT32, TensorProto.INT2, (3,)), threads=1)
    exe(np.int32([1, 2, -1]), out=out)
    np.testing.assert_array_equal(out.astype(int), [1, -2, -1])
