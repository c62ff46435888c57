"""Small networks for tests of quantisation."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from tests.integration.small_models import FLOAT, model

IMAGE = (1, 3, 12, 12)


def residual_network(seed: int = 0) -> onnx.ModelProto:
    """Convolutions with a residual sum, pooling by maximum, concatenation and a dense layer."""
    random = np.random.default_rng(seed)

    def weight(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    nodes = [
        helper.make_node("Conv", ["image", "w1", "b1"], ["a"], name="conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], name="relu1"),
        helper.make_node("Conv", ["b", "w2"], ["c"], name="conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["b", "w3"], ["d"], name="shortcut"),
        helper.make_node("Add", ["d", "c"], ["e"], name="sum"),
        helper.make_node("Relu", ["e"], ["f"], name="relu2"),
        helper.make_node("MaxPool", ["f"], ["g"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("MaxPool", ["b"], ["h"], name="pool2", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Concat", ["g", "h"], ["i"], name="concat", axis=1),
        helper.make_node("Conv", ["i", "w4"], ["j"], name="depthwise", group=16, pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["j"], ["k"], name="mean"),
        helper.make_node("Flatten", ["k"], ["l"], name="flatten"),
        helper.make_node("Gemm", ["l", "fc"], ["logits"], name="fc", transB=1),
    ]
    weights = {
        "w1": weight(8, 3, 3, 3),
        "b1": weight(8, 1).reshape(8),
        "w2": weight(8, 8, 3, 3),
        "w3": weight(8, 8, 1, 1),
        "w4": weight(16, 1, 3, 3),
        "fc": weight(5, 16),
    }
    return model(nodes, {"image": (FLOAT, IMAGE)}, {"logits": (FLOAT, (1, 5))}, weights)


def perceptron(seed: int = 0, inputs: int = 64) -> onnx.ModelProto:
    """Two dense layers over an open batch."""
    random = np.random.default_rng(seed)
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("MatMul", ["b", "w2"], ["y"], name="second"),
    ]
    weights = {
        "w1": (random.standard_normal((inputs, 32)) / 8).astype(np.float32),
        "w2": (random.standard_normal((32, 4)) / 6).astype(np.float32),
    }
    return model(nodes, {"x": (FLOAT, ("batch", inputs))}, {"y": (FLOAT, ("batch", 4))}, weights)


def images(count: int = 6, seed: int = 1) -> np.ndarray:
    """Inputs of the residual network, one after another."""
    return np.random.default_rng(seed).standard_normal((count, *IMAGE[1:])).astype(np.float32)


def exact_session(exported: bytes) -> onnxruntime.InferenceSession:
    """onnxruntime without its own rewriting: it rounds activations to 8 bits, and errs at odd sizes in 2 bits."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(exported, options)
