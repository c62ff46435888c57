"""Small ONNX models for the integration tests, and what onnxruntime says about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

Arrays = dict[str, np.ndarray]
FLOAT = TensorProto.FLOAT
OPSET = 17


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[int | str]]],
    outputs: Mapping[str, tuple[int, Sequence[int | str] | None]],
    weights: Mapping[str, np.ndarray] | None = None,
    *,
    name: str = "small",
    opset: int = OPSET,
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """A model from its nodes; inputs and outputs by name as `(element type, shape)`."""
    graph = helper.make_graph(
        list(nodes),
        name,
        [helper.make_tensor_value_info(key, kind, shape) for key, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(key, kind, shape) for key, (kind, shape) in outputs.items()],
        [numpy_helper.from_array(value, key) for key, value in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def classifier(seed: int = 0, channels: int = 16) -> onnx.ModelProto:
    """Convolution, batch normalisation, pooling and a dense layer: `image` [1, 3, 32, 32] -> `logits` [1, 10]."""
    random = np.random.default_rng(seed)

    def weight(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) * 0.2).astype(np.float32)

    nodes = [
        helper.make_node("Conv", ["image", "w"], ["a"], name="conv1", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("BatchNormalization", ["a", "scale", "bias", "mean", "var"], ["b"], name="bn1"),
        helper.make_node("Relu", ["b"], ["c"], name="relu1"),
        helper.make_node("GlobalAveragePool", ["c"], ["d"], name="pool"),
        helper.make_node("Flatten", ["d"], ["e"], name="flatten"),
        helper.make_node("Gemm", ["e", "fc"], ["logits"], name="fc", transB=1),
    ]
    weights = {
        "w": weight(channels, 3, 3, 3),
        "scale": weight(channels),
        "bias": weight(channels),
        "mean": weight(channels),
        "var": np.ones(channels, np.float32),
        "fc": weight(10, channels),
    }
    return model(
        nodes, {"image": (FLOAT, [1, 3, 32, 32])}, {"logits": (FLOAT, [1, 10])}, weights, name="small_classifier"
    )


def image(seed: int = 0) -> np.ndarray:
    """An input of `classifier`."""
    return np.random.default_rng(seed).standard_normal((1, 3, 32, 32), dtype=np.float32)


def one_node(
    operator: str,
    inputs: Mapping[str, tuple[int, Sequence[int | str]]],
    *,
    kind: int = FLOAT,
    weights: Mapping[str, np.ndarray] | None = None,
    domain: str = "",
    opset: int = OPSET,
    **attributes: object,
) -> onnx.ModelProto:
    """A model of one node called `the_node` with the output `y` of a shape left open."""
    names = [*inputs, *(weights or {})]
    node = helper.make_node(operator, names, ["y"], name="the_node", domain=domain, **attributes)
    domains = [domain] if domain else []
    return model([node], inputs, {"y": (kind, None)}, weights, opset=opset, domains=domains)


def onnxruntime_outputs(source: onnx.ModelProto, inputs: Arrays) -> list[np.ndarray]:
    """The outputs of a model in onnxruntime, on one thread and without its graph optimisations."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(source.SerializeToString(), options, providers=["CPUExecutionProvider"])
    outputs: list[np.ndarray] = session.run(None, inputs)
    return outputs
