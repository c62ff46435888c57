"""Open sizes that other sizes or arithmetic decide: of frames, of factors, of what is split."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tests.frontend.onnx.helpers import open_model, run_onnxruntime, run_tilewright
from tilewright.support.errors import UserError


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_convolutions_of_frames_of_signals_of_any_length(stride):
    """Sizes like max(n // 384 - 1, 0), of frames without the first and last, are sizes as others to schedules."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["frames"], strides=[384], pads=[256, 256]),
        helper.make_node("Slice", ["frames", "one", "minus", "two"], ["inner"]),
        helper.make_node("Conv", ["inner", "v"], ["y"], strides=[stride], pads=[1, 1]),
    ]
    random = np.random.default_rng(0)
    stored = {
        "w": random.standard_normal((20, 1, 512)).astype(np.float32) / 20,
        "v": random.standard_normal((16, 20, 3)).astype(np.float32) / 8,
        "one": np.array([1]),
        "minus": np.array([-1]),
        "two": np.array([2]),
    }
    model = open_model(nodes, {"x": (TensorProto.FLOAT, [1, 1, "n"])}, ["y"], stored)
    executable = tw.compile(model, threads=1)
    for length in (1000, 5000):
        x = random.standard_normal((1, 1, length)).astype(np.float32)
        (mine,), (other,) = executable.run({"x": x}), run_onnxruntime(model, {"x": x})
        np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-4)


def test_layer_norm_and_gemm_of_open_sizes_that_factors_fix():
    nodes = [
        helper.make_node("LayerNormalization", ["x", "scale", "bias"], ["n"], axis=-2),
        helper.make_node("RMSNormalization", ["n", "scale"], ["r"], axis=-2),
        helper.make_node("Gemm", ["r", "b", "c"], ["y"]),
    ]
    stored = {
        "scale": np.ones((7, 2), np.float32),
        "bias": np.zeros((7, 2), np.float32),
        "c": np.arange(3, dtype=np.float32),
    }
    inputs = {"x": (TensorProto.FLOAT, ["rows", 2]), "b": (TensorProto.FLOAT, [2, "columns"])}
    model = open_model(nodes, inputs, ["y"], stored, opset=23)
    given = {"x": np.float32(np.arange(14).reshape(7, 2)), "b": np.float32(np.arange(6).reshape(2, 3))}
    (mine,) = run_tilewright(model, given)
    np.testing.assert_allclose(mine, ReferenceEvaluator(model).run(None, given)[0], rtol=1e-4, atol=1e-4)
    with pytest.raises(UserError, match="7"):
        tw.compile(model, threads=1).run({**given, "x": np.zeros((6, 2), np.float32)})


def test_rotary_embeddings_of_an_open_head_size():
    """The parts of a split of an open size are slices, though their sizes are not written alike."""
    node = helper.make_node("RotaryEmbedding", ["x", "cos", "sin"], ["y"], rotary_embedding_dim=4)
    inputs = {"x": (1, [2, "heads", "length", "size"]), "cos": (1, [2, "length", 2]), "sin": (1, [2, "length", 2])}
    model = open_model([node], inputs, ["y"], opset=23)
    random = np.random.default_rng(1)
    given = {"x": random.standard_normal((2, 4, 3, 8)), "cos": random.standard_normal((2, 3, 2))}
    arrays = {name: value.astype(np.float32) for name, value in (given | {"sin": given["cos"] * 0.5}).items()}
    (wanted,) = ReferenceEvaluator(model).run(None, arrays)
    (result,) = tw.compile(model, threads=1).run(arrays)
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)


def test_shapes_of_scalars_that_are_data():
    node = helper.make_node("Expand", ["x", "shape"], ["y"])
    model = open_model([node], {"x": (TensorProto.INT64, []), "shape": (TensorProto.INT64, [0])}, ["y"])
    given = {"x": np.array(-2), "shape": np.zeros(0, np.int64)}
    assert tw.compile(model, threads=1).run(given)[0].shape == ()
    assert run_tilewright(model, given)[0].shape == ()


def test_sizes_of_frames_stay_what_they_are_through_slices_pads_and_reshapes():
    """A size like n // 4 - 2 of a tensor that is there is not negative: nothing is left for a run to decide."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["frames"], strides=[4]),
        helper.make_node("Pad", ["frames", "pads"], ["padded"]),
        helper.make_node("Slice", ["padded", "zero", "six", "one"], ["part"]),
        helper.make_node("Shape", ["part"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "two"], ["length"]),
        helper.make_node("Concat", ["one", "length", "minus"], ["wanted"], axis=0),
        helper.make_node("Transpose", ["part"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("Reshape", ["turned", "wanted"], ["y"]),
    ]
    random = np.random.default_rng(0)
    stored = {
        "w": random.standard_normal((8, 1, 12)).astype(np.float32),
        "pads": np.array([0, 0, 0, 0, 2, 0]),
        "zero": np.array([0]),
        "six": np.array([6]),
        "one": np.array([1]),
        "two": np.array([2]),
        "minus": np.array([-1]),
    }
    model = open_model(nodes, {"x": (TensorProto.FLOAT, [1, 1, "n"])}, ["y"], stored)
    assert "shape." not in str(tw.frontend.from_onnx(model))
    executable = tw.compile(model, threads=1)
    for length in (12, 61):
        x = random.standard_normal((1, 1, length)).astype(np.float32)
        (mine,), (other,) = executable.run({"x": x}), run_onnxruntime(model, {"x": x})
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)
