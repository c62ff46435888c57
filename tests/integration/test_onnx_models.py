"""Whole ONNX models as exporters and quantizers write them, compiled and compared with onnxruntime at several sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tests.integration import small_models
from tilewright.support.errors import UserError

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Arrays = dict[str, np.ndarray]


def numbers(seed: int, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def build(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[int | str]]],
    outputs: Sequence[str],
    weights: Mapping[str, np.ndarray],
    opset: int = 17,
) -> onnx.ModelProto:
    return small_models.model(nodes, inputs, dict.fromkeys(outputs, (FLOAT, None)), weights, opset=opset)


def untyped(model: onnx.ModelProto) -> onnx.ModelProto:
    """Outputs whose types are left to the reader."""
    for info in model.graph.output:
        info.type.Clear()
    return model


def compare(model: onnx.ModelProto, *calls: Arrays, tolerance: float = 1e-4) -> None:
    """One compilation, run on several inputs."""
    executable = tw.compile(model.SerializeToString(), threads=1)
    for inputs in calls:
        expected = small_models.onnxruntime_outputs(model, inputs)
        for ours, theirs in zip(executable.run(inputs), expected, strict=True):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            np.testing.assert_allclose(
                ours.astype(np.float64), theirs.astype(np.float64), rtol=tolerance, atol=tolerance
            )


def detector() -> onnx.ModelProto:
    """A small head: convolutions, boxes from offsets, suppression, and the boxes that stay."""
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["features"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["features"], ["active"]),
        helper.make_node("Conv", ["active", "wb"], ["raw"]),
        helper.make_node("Conv", ["active", "ws"], ["logits"]),
        helper.make_node("Shape", ["raw"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"], axis=0),
        helper.make_node("Concat", ["batch", "four", "rest"], ["box_shape"], axis=0),
        helper.make_node("Reshape", ["raw", "box_shape"], ["columns"]),
        helper.make_node("Transpose", ["columns"], ["boxes"], perm=[0, 2, 1]),
        helper.make_node("Concat", ["batch", "classes", "rest"], ["score_shape"], axis=0),
        helper.make_node("Reshape", ["logits", "score_shape"], ["flat"]),
        helper.make_node("Sigmoid", ["flat"], ["scores"]),
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["chosen"]),
        helper.make_node("Gather", ["chosen", "two"], ["index"], axis=1),
        helper.make_node("Squeeze", ["index", "one"], ["place"]),
        helper.make_node("Gather", ["boxes", "place"], ["found"], axis=1),
        helper.make_node("ReduceMax", ["scores"], ["best"], axes=[2], keepdims=0),
    ]
    weights = {
        "w": numbers(0, 6, 3, 3, 3, scale=0.4),
        "wb": numbers(1, 4, 6, 1, 1),
        "ws": numbers(2, 2, 6, 1, 1),
        "zero": np.array([0]),
        "one": np.array([1]),
        "two": np.array([2]),
        "four": np.array([4]),
        "classes": np.array([2]),
        "rest": np.array([-1]),
        "most": np.array(5),
        "overlap": np.array([0.4], np.float32),
        "least": np.array([0.5], np.float32),
    }
    inputs = {"image": (FLOAT, ["batch", 3, "height", "width"])}
    return untyped(build(nodes, inputs, ["chosen", "found", "best"], weights))


def test_a_detector_of_any_size():
    calls = [
        {"image": numbers(seed, *shape)} for seed, shape in enumerate([(1, 3, 16, 16), (2, 3, 9, 12), (1, 3, 4, 4)])
    ]
    compare(detector(), *calls)


def test_a_product_quantised_while_it_runs():
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "point"]),
        helper.make_node("MatMulInteger", ["q", "w", "point", "wp"], ["product"]),
        helper.make_node("Cast", ["product"], ["wide"], to=FLOAT),
        helper.make_node("Mul", ["scale", "ws"], ["factor"]),
        helper.make_node("Mul", ["wide", "factor"], ["scaled"]),
        helper.make_node("Add", ["scaled", "bias"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["y"]),
    ]
    weights = {
        "w": np.random.default_rng(0).integers(-128, 128, (8, 6)).astype(np.int8),
        "wp": np.array(3, np.int8),
        "ws": np.array(0.02, np.float32),
        "bias": numbers(3, 6),
    }
    model = build(nodes, {"x": (FLOAT, ["rows", 8])}, ["y"], weights)
    compare(model, *({"x": numbers(rows, rows, 8)} for rows in (1, 3, 10)))


def quantised(name: str, scale: str, point: str) -> list[onnx.NodeProto]:
    """A value through 8 bits and back, as quantizers put it into graphs."""
    return [
        helper.make_node("QuantizeLinear", [name, scale, point], [f"{name}_q"]),
        helper.make_node("DequantizeLinear", [f"{name}_q", scale, point], [f"{name}_d"]),
    ]


def test_a_network_with_quantise_and_dequantise_pairs():
    nodes = [
        *quantised("image", "si", "zi"),
        helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["w_d"], axis=0),
        helper.make_node("Conv", ["image_d", "w_d", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        *quantised("r", "sr", "zr"),
        helper.make_node("GlobalAveragePool", ["r_d"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        *quantised("f", "sf", "zr"),
        helper.make_node("DequantizeLinear", ["m", "sm", "zm"], ["m_d"]),
        helper.make_node("MatMul", ["f_d", "m_d"], ["y"]),
    ]
    random = np.random.default_rng(1)
    weights = {
        "si": np.array(0.03, np.float32),
        "zi": np.array(120, np.uint8),
        "w": random.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8),
        "sw": np.array([0.01, 0.02, 0.015, 0.01], np.float32),
        "zw": np.zeros(4, np.int8),
        "b": numbers(4, 4),
        "sr": np.array(0.08, np.float32),
        "zr": np.array(0, np.uint8),
        "sf": np.array(0.02, np.float32),
        "m": random.integers(-127, 128, (4, 5)).astype(np.int8),
        "sm": np.array(0.02, np.float32),
        "zm": np.array(0, np.int8),
    }
    model = build(nodes, {"image": (FLOAT, ["batch", 3, 8, 8])}, ["y"], weights)
    # A number that falls on the border of two bytes may go to either.
    compare(model, *({"image": numbers(n, n, 3, 8, 8)} for n in (1, 3)), tolerance=0.05)


def decoder(width: int = 8, heads: int = 2) -> onnx.ModelProto:
    """One layer of attention over a cache that grows by the new tokens."""
    size = width // heads
    nodes = []
    for name in ("q", "k", "v"):
        nodes += [
            helper.make_node("MatMul", ["x", f"w{name}"], [f"{name}0"]),
            helper.make_node("Reshape", [f"{name}0", "split"], [f"{name}1"]),
            helper.make_node("Transpose", [f"{name}1"], [f"{name}2"], perm=[0, 2, 1, 3]),
        ]
    nodes += [
        helper.make_node("Concat", ["past_key", "k2"], ["key"], axis=2),
        helper.make_node("Concat", ["past_value", "v2"], ["value"], axis=2),
        helper.make_node("Transpose", ["key"], ["turned"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q2", "turned"], ["scores"]),
        helper.make_node("Mul", ["scores", "scale"], ["scaled"]),
        helper.make_node("Shape", ["key"], ["key_shape"]),
        helper.make_node("Gather", ["key_shape", "two"], ["total"], axis=0),
        helper.make_node("Shape", ["x"], ["x_shape"]),
        helper.make_node("Gather", ["x_shape", "one"], ["new"], axis=0),
        helper.make_node("Sub", ["total", "new"], ["before"]),
        helper.make_node("Range", ["zero", "total", "one"], ["columns"]),
        helper.make_node("Range", ["before", "total", "one"], ["rows0"]),
        helper.make_node("Unsqueeze", ["rows0", "last"], ["rows"]),
        helper.make_node("LessOrEqual", ["columns", "rows"], ["seen"]),
        helper.make_node("Where", ["seen", "scaled", "lowest"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "value"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["back", "join"], ["joined"]),
        helper.make_node("MatMul", ["joined", "wo"], ["y"]),
    ]
    weights = {f"w{name}": numbers(seed, width, width, scale=0.4) for seed, name in enumerate("qkvo")}
    weights |= {
        "split": np.array([0, 0, heads, size]),
        "join": np.array([0, 0, width]),
        "scale": np.array(size**-0.5, np.float32),
        "lowest": np.array(-1e9, np.float32),
        "zero": np.array(0),
        "one": np.array(1),
        "two": np.array(2),
        "last": np.array([1]),
    }
    past = (FLOAT, ["batch", heads, "past", size])
    inputs = {"x": (FLOAT, ["batch", "new", width]), "past_key": past, "past_value": past}
    return build(nodes, inputs, ["y", "key", "value"], weights)


def test_a_decoder_with_a_cache_that_grows():
    calls = []
    for seed, (batch, new, past) in enumerate([(1, 4, 0), (1, 1, 4), (3, 1, 9), (2, 3, 2)]):
        calls.append(
            {
                "x": numbers(seed, batch, new, 8),
                "past_key": numbers(seed + 10, batch, 2, past, 4),
                "past_value": numbers(seed + 20, batch, 2, past, 4),
            }
        )
    compare(decoder(), *calls)


def test_a_decoder_feeds_its_cache_back():
    """Token by token with the cache gives what all tokens at once give."""
    executable = tw.compile(decoder().SerializeToString(), threads=1)
    tokens = numbers(5, 1, 5, 8)
    empty = np.zeros((1, 2, 0, 4), np.float32)
    whole, _, _ = executable(tokens, empty, empty)
    key = value = empty
    parts = []
    for at in range(5):
        part, key, value = executable(tokens[:, at : at + 1], key, value)
        parts.append(part)
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, rtol=1e-4, atol=1e-5)
    assert key.shape == (1, 2, 5, 4)


def test_weights_in_a_file_beside_the_model(tmp_path: Path):
    model = small_models.classifier()
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert (tmp_path / "weights.bin").stat().st_size > 1000
    image = small_models.image()
    [expected] = small_models.onnxruntime_outputs(small_models.classifier(), {"image": image})
    [ours] = tw.compile(tmp_path / "m.onnx", threads=1).run({"image": image})
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)
    (tmp_path / "weights.bin").write_bytes(b"short")
    with pytest.raises(UserError, match="external data"):
        tw.compile(tmp_path / "m.onnx", threads=1)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(UserError, match=r"external data file 'weights.bin' is missing"):
        tw.compile(tmp_path / "m.onnx", threads=1)


@pytest.mark.parametrize("flat", [True, False])
def test_sparse_weights(flat: bool):
    values = numpy_helper.from_array(np.array([1.5, -2.0, 0.5], np.float32), "w")
    places = np.array([1, 4, 11]) if flat else np.array([[0, 1], [1, 0], [2, 3]])
    model = build([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (FLOAT, ["n", 3])}, ["y"], {})
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(places, "places"), [3, 4])
    model.graph.sparse_initializer.append(sparse)
    compare(model, {"x": numbers(0, 2, 3)}, {"x": numbers(1, 5, 3)})


def test_functions_with_overloads():
    """Two functions of one name: a call says which."""
    opsets = [helper.make_opsetid("", 17)]
    one = helper.make_function("local", "f", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])], opsets)
    two = helper.make_function("local", "f", ["a"], ["b"], [helper.make_node("Exp", ["a"], ["b"])], opsets)
    one.overload, two.overload = "first", "second"
    nodes = [
        helper.make_node("f", ["x"], ["u"], domain="local", overload="first"),
        helper.make_node("f", ["u"], ["v"], domain="local", overload="second"),
        helper.make_node("f", ["x"], ["w"], domain="local", overload="second"),
        helper.make_node("Add", ["v", "w"], ["y"]),
    ]
    model = build(nodes, {"x": (FLOAT, [4])}, ["y"], {})
    model.opset_import.append(helper.make_opsetid("local", 1))
    model.functions.extend([one, two])
    x = numbers(0, 4)
    [y] = tw.compile(model.SerializeToString(), threads=1).run({"x": x})
    np.testing.assert_allclose(y, np.exp(-x) + np.exp(x), rtol=1e-5)


def test_texts_through_a_compiled_model():
    nodes = [
        helper.make_node("StringConcat", ["words", "end"], ["marked"]),
        helper.make_node("LabelEncoder", ["marked"], ["number"], domain="ai.onnx.ml", keys_strings=["a!", "b!"],
                         values_int64s=[1, 2], default_int64=0),
        helper.make_node("Cast", ["number"], ["real"], to=FLOAT),
        helper.make_node("Mul", ["real", "two"], ["y"]),
    ]  # fmt: skip
    weights = {"two": np.array(2, np.float32)}
    model = build(nodes, {"words": (TensorProto.STRING, ["n"])}, ["y", "marked"], weights)
    model.graph.initializer.append(helper.make_tensor("end", TensorProto.STRING, [1], [b"!"]))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 2))
    model.opset_import[0].version = 20
    executable = tw.compile(model.SerializeToString(), threads=1)
    y, marked = executable.run({"words": np.array(["b", "z", "a"], dtype=object)})
    assert y.tolist() == [4, 0, 2]
    assert marked.tolist() == ["b!", "z!", "a!"]
