"""Small models under the names that the pages of the documentation use, so that what they show runs in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

IMAGE = (1, 3, 32, 32)


def save_image_model(path: str | Path = "resnet18.onnx", name: str = "input") -> np.ndarray:
    """Write a classifier of images with two convolutions and a residual; the answer is an image for its input."""
    random = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) * 0.2).astype(np.float32)

    nodes = [
        helper.make_node("Conv", [name, "w1"], ["a"], name="/conv1/Conv", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["b"], name="/relu1/Relu"),
        helper.make_node("Conv", ["b", "w2"], ["c"], name="/conv2/Conv", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["b", "c"], ["d"], name="/add/Add"),
        helper.make_node("GlobalAveragePool", ["d"], ["e"], name="/pool/GlobalAveragePool"),
        helper.make_node("Flatten", ["e"], ["f"], name="/flatten/Flatten"),
        helper.make_node("Gemm", ["f", "fc"], ["logits"], name="/fc/Gemm", transB=1),
    ]
    weights = {"w1": weight(16, 3, 3, 3), "w2": weight(16, 16, 3, 3), "fc": weight(10, 16)}
    _save(path, nodes, (name, TensorProto.FLOAT, IMAGE), ("logits", (1, 10)), weights)
    return random.random(IMAGE, np.float32)


def save_text_model(path: str | Path = "bert.onnx") -> np.ndarray:
    """Write a model of tokens in any number and batch; the answer is a batch for its input, `input_ids`."""
    random = np.random.default_rng(0)
    nodes = [
        helper.make_node("Gather", ["embedding", "input_ids"], ["a"], name="/embed/Gather"),
        helper.make_node("MatMul", ["a", "dense"], ["b"], name="/dense/MatMul"),
        helper.make_node("Softmax", ["b"], ["scores"], name="/softmax/Softmax"),
    ]
    weights = {
        name: random.standard_normal(shape).astype(np.float32)
        for name, shape in (("embedding", (100, 32)), ("dense", (32, 32)))
    }
    inputs, outputs = ("input_ids", TensorProto.INT64, ("batch", "sequence")), ("scores", ("batch", "sequence", 32))
    _save(path, nodes, inputs, outputs, weights)
    return random.integers(0, 100, (2, 7))


def _save(
    path: str | Path,
    nodes: Sequence[onnx.NodeProto],
    given: tuple[str, int, Sequence[int | str]],
    result: tuple[str, Sequence[int | str]],
    weights: Mapping[str, np.ndarray],
) -> None:
    graph = helper.make_graph(
        list(nodes),
        Path(path).stem,
        [helper.make_tensor_value_info(*given)],
        [helper.make_tensor_value_info(result[0], TensorProto.FLOAT, result[1])],
        [numpy_helper.from_array(value, key) for key, value in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
