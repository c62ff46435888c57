"""Caffe's files: versions of layers, phases, inputs, shared weights, pairs of files, and what is wrong with some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from bench.caffe_cases import NETWORK, blobs, inputs, layer, random_inputs, written
from tilewright.frontend.caffe.schema import NET
from tilewright.frontend.formats import identify, model_files
from tilewright.graph.interpreter import evaluate
from tilewright.support.errors import UnsupportedError, UserError


def names(module: tw.IRModule) -> tuple[list[str], object]:
    return [param.name for param in module["main"].params], module.attributes["output_names"]


def text_of(net: Any) -> bytes:
    return str(net).encode()


V1 = """
input: "data" input_dim: 1 input_dim: 2 input_dim: 4 input_dim: 4
layers { name: "conv" type: CONVOLUTION bottom: "data" top: "conv" convolution_param { num_output: 3 kernel_size: 3 }
  blobs { num: 3 channels: 2 height: 3 width: 3 } blobs { num: 1 channels: 1 height: 1 width: 3 } }
layers { name: "relu" type: RELU bottom: "conv" top: "conv" }
layers { name: "fc" type: INNER_PRODUCT bottom: "conv" top: "fc" inner_product_param { num_output: 2 }
  blobs { num: 1 channels: 1 height: 2 width: 12 } blobs { num: 1 channels: 1 height: 1 width: 2 } }
"""
V0 = """
input: "data" input_dim: 1 input_dim: 2 input_dim: 4 input_dim: 4
layers { layer { name: "pad" type: "padding" pad: 1 } bottom: "data" top: "padded" }
layers { layer { name: "conv" type: "conv" num_output: 3 kernelsize: 3 biasterm: false
  blobs { num: 3 channels: 2 height: 3 width: 3 } } bottom: "padded" top: "conv" }
layers { layer { name: "pool" type: "pool" kernelsize: 2 stride: 2 pool: AVE } bottom: "conv" top: "pool" }
layers { layer { name: "drop" type: "dropout" } bottom: "pool" top: "pool" }
"""


def filled(text: str) -> tuple[bytes, list[Any]]:
    """An old net with random numbers in its old blobs, and these."""
    random = np.random.default_rng(0)
    net = NET.read_text("NetParameter", text, "net")
    arrays = []
    for item in net.layers:
        for blob in (*item.blobs, *item.layer.blobs):
            arrays.append(random.standard_normal((blob.num, blob.channels, blob.height, blob.width)).astype(np.float32))
            blob.data.extend(arrays[-1].ravel().tolist())
    return bytes(net.SerializeToString()), arrays


def windows(x: Any, w: Any) -> Any:
    size = x.shape[2] - 2
    rows = [[(x[:, None, :, i : i + 3, j : j + 3] * w).sum((2, 3, 4)) for j in range(size)] for i in range(size)]
    return np.array(rows).transpose(2, 3, 0, 1)


def test_layers_of_version_1_with_old_blobs() -> None:
    content, (w, bias, matrix, last) = filled(V1)
    assert identify(content).key == "caffe"
    x = np.random.default_rng(1).standard_normal((1, 2, 4, 4)).astype(np.float32)
    inner = np.maximum(windows(x, w) + bias.reshape(3, 1, 1), 0).reshape(1, 12)
    found = evaluate(tw.load_model(content), x)
    np.testing.assert_allclose(found, inner @ matrix[0, 0].T + last.ravel(), rtol=1e-4, atol=1e-4)


def test_layers_of_version_0_with_padding_as_a_layer() -> None:
    content, (w,) = filled(V0)
    assert identify(content).key == "caffe"
    x = np.random.default_rng(1).standard_normal((1, 2, 4, 4)).astype(np.float32)
    inner = windows(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), w)
    expected = inner.reshape(1, 3, 2, 2, 2, 2).mean(axis=(3, 5))
    np.testing.assert_allclose(evaluate(tw.load_model(content), x), expected, rtol=1e-4, atol=1e-4)


def test_phases_stages_and_layers_of_training() -> None:
    memory = "memory_data_param { batch_size: 1 channels: 2 height: 2 width: 2 }"
    rules = (
        layer("Data", "include { phase: TRAIN } data_param { batch_size: 2 }", "", "data label", "train")
        + layer("MemoryData", "include { phase: TEST } " + memory, "", "data label", "test")
        + layer("ReLU", "exclude { phase: TEST }", "data", "data", "never")
        + layer("Power", "include { stage: 'deploy' } power_param { scale: 7 }", "data", "data", "other")
        + layer("Power", "include { not_stage: 'x' max_level: 0 } power_param { scale: 2 }", "data", "data", "twice")
        + layer("Accuracy", "", "data label", "accuracy", "accuracy")
        + layer("SoftmaxWithLoss", "", "data label", "loss", "loss")
    )  # fmt: skip
    module = tw.load_model(rules.encode())
    assert names(module) == (["data"], ("loss",))
    x = np.random.default_rng(0).standard_normal((1, 2, 2, 2)).astype(np.float32)
    powers = np.exp(2 * x)
    np.testing.assert_allclose(evaluate(module, x), powers / powers.sum(1, keepdims=True), rtol=1e-5)


def test_shapes_of_inputs() -> None:
    text = inputs(data=(1, 3, 8, 8)) + layer("Pooling", "pooling_param { kernel_size: 3 stride: 2 }")
    module = tw.load_model(text.encode(), shapes={"data": ("batch", None, "height", 10)})
    random = np.random.default_rng(0)
    exe = tw.compile(module, threads=1)
    for batch, height in ((1, 8), (2, 9), (3, 12)):
        x = random.standard_normal((batch, 3, height, 10)).astype(np.float32)
        assert exe(x).shape == (batch, 3, -(-(height - 3) // 2) + 1, 5)
        same = tw.load_model(text.encode(), shapes={"data": x.shape})
        np.testing.assert_array_equal(exe(x), evaluate(same, x))
    with pytest.raises(UserError, match="has 4 dimensions"):
        tw.load_model(text.encode(), shapes={"data": (1, 3, 8)})
    with pytest.raises(UserError, match="no input 'x'"):
        tw.load_model(text.encode(), shapes={"x": (1, 3, 8, 8)})
    bare = layer("Data", "data_param { batch_size: 2 }", "", "data label", "data") + layer("ReLU")
    with pytest.raises(UserError, match="does not say the shape of its input 'data'"):
        tw.load_model(bare.encode())
    assert names(tw.load_model(bare.encode(), shapes={"data": (1, 2)})) == (["data"], ("out",))


def test_several_inputs_and_outputs_by_name() -> None:
    text = 'input: "b" input_shape { dim: 2 } input: "a" input_shape { dim: 2 }\n' + (
        layer("Split", "", "b", "z y", "s") + layer("Eltwise", "", "a y", "c", "e") + layer("Silence", "", "z", "", "q")
    )
    module = tw.load_model(text.encode())
    assert names(module) == (["b", "a"], ("c",))
    assert evaluate(module, np.float32([1, 2]), np.float32([10, 20])).tolist() == [11, 22]


def test_weights_that_layers_share() -> None:
    options = "inner_product_param { num_output: 2 bias_term: false } param { name: 'w' } "
    text = (
        inputs(data=(1, 2))
        + layer("InnerProduct", options + blobs((2, 2)), "data", "one", "one")
        + layer("InnerProduct", options, "one", "two", "two")
    )
    content = written(text)[0]
    x = np.float32([[1, 2]])
    matrix = np.array(NET.read("NetParameter", content, "").layer[1].blobs[0].data, np.float32).reshape(2, 2)
    np.testing.assert_allclose(evaluate(tw.load_model(content), x), x @ matrix.T @ matrix.T, rtol=1e-5)


def test_parameters_are_data() -> None:
    text = inputs(data=(1, 3)) + (
        layer("Parameter", "parameter_param { shape { dim: 1 dim: 3 } } " + blobs((1, 3)), "", "p", "p")
        + layer("Eltwise", "", "data p")
    )
    assert np.asarray(evaluate(tw.load_model(written(text)[0]), np.zeros((1, 3), np.float32))).any()


def test_halves_and_doubles() -> None:
    text = inputs(data=(1, 2)) + layer("InnerProduct", "inner_product_param { num_output: 2 bias_term: false }")
    for kind, dtype in ((2, np.float16), (0, np.float64)):
        net = NET.read_text("NetParameter", text, "")
        blob = net.layer[1].blobs.add()
        blob.shape.dim.extend([2, 2])
        blob.raw_data_type, blob.raw_data = kind, np.array([1, 2, 3, 4], dtype).tobytes()
        found = evaluate(tw.load_model(net.SerializeToString()), np.float32([[1, 10]]))
        assert found.tolist() == [[21, 43]]
    net.layer[1].blobs[0].Clear()
    net.layer[1].blobs[0].double_data.extend([1, 2, 3, 4])
    assert evaluate(tw.load_model(net.SerializeToString()), np.float32([[1, 10]])).tolist() == [[21, 43]]


def test_which_files_belong_together(tmp_path: Path) -> None:
    content, plain = written(NETWORK)
    (tmp_path / "deploy.prototxt").write_text(plain)
    (tmp_path / "weights.caffemodel").write_bytes(content)
    path = tmp_path / "deploy.prototxt"
    assert identify(path).key == identify(tmp_path / "weights.caffemodel").key == "caffe"
    assert model_files(path, identify(path)) == [path, tmp_path / "weights.caffemodel"]
    assert model_files(tmp_path / "weights.caffemodel", identify(path))[1:] == [path]
    x = random_inputs(NETWORK)["data"]
    expected = evaluate(tw.load_model(path), x)
    (tmp_path / "more.caffemodel").write_bytes(b"")
    with pytest.raises(UserError, match="the layer has no weights number 1") as error:
        tw.load_model(path)
    assert "'c1'" in str(error.value.where) and "beside" in str(error.value.hint)
    named = tw.frontend.from_caffe(path, weights=tmp_path / "weights.caffemodel")
    np.testing.assert_array_equal(evaluate(named, x), expected)
    np.testing.assert_array_equal(evaluate(tw.load_model(content), x), expected)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (inputs(data=(1, 2)) + layer("Python"), "the operator Python of Caffe is not supported: it is a program"),
        (inputs(data=(1, 2)) + layer("Mystery"), "the operator Mystery of Caffe is not supported"),
        (inputs(data=(1, 2)) + layer("ReLU", "", "absent"), "reads 'absent', which no layer before it gives"),
        (inputs(data=(1, 2)) + layer("Convolution"), "a convolution of data of 2 dimensions"),
        (inputs(data=(1, 2, 2, 2)) + layer("Pooling", "pooling_param { kernel_size: 5 }"), "does not fit 2"),
        (inputs(data=(1, 2, 2, 2)) + layer("Pooling"), "all must be positive"),
        (inputs(data=(1, 2)) + layer("Softmax", "softmax_param { axis: 2 }"), "axis 2 is out of range"),
        (inputs(data=(1, 2)) + layer("Slice", "slice_param { slice_point: 3 }", "data", "a b"), "do not cut 2"),
        (inputs(data=(1, 2)) + layer("Reshape", "reshape_param { shape { dim: 3 dim: -1 } }"), "cannot have the shape"),
        (inputs(data=(1, 2)) + layer("Eltwise", "eltwise_param { coeff: 2 coeff: 2 }"), "2 coefficients do not fit 1"),
        (inputs(data=(0, 2)) + layer("ReLU"), "the input 'data' has the shape"),
        ("layer { name: }\ntop: 'x'", "the text is no NetParameter"),
    ],
)
def test_errors_say_the_layer(text: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        tw.load_model(text.encode(), format="caffe")
    assert said in error.value.message
    assert (
        "damaged" in said
        or error.value.where is not None
        or "input" in said
        or isinstance(error.value, UnsupportedError)
    )


def test_weights_that_do_not_fit() -> None:
    text = inputs(data=(1, 2)) + layer("InnerProduct", "inner_product_param { num_output: 2 } " + blobs((3, 2), (2,)))
    with pytest.raises(UserError, match=r"weights number 1 have the shape \(3, 2\), not \(2, 2\)"):
        tw.load_model(written(text)[0])
    net = NET.read_text("NetParameter", text, "")
    net.layer[1].blobs[0].data.extend([1.0])
    with pytest.raises(UserError, match="have 1 numbers"):
        tw.load_model(net.SerializeToString())
