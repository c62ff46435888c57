"""Inputs of open sizes that an operator's weights or other inputs decide: a run that gives others is refused.

Kernels take for granted that sizes fit: given others, they would read past the end of what they are given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.frontend.core.fitting import fitting_rule
from tilewright.graph.ir.op import get_operator

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A node, its inputs with open sizes, its weights, shapes that fit, and shapes that do not."""

    node: onnx.NodeProto
    inputs: Mapping[str, Sequence[int | str]]
    weights: Mapping[str, Shape | np.ndarray]
    fits: Sequence[Shape]
    wrong: Sequence[Sequence[Shape]]
    opset: int = 17

    def model(self) -> onnx.ModelProto:
        rng = np.random.default_rng(0)
        weights = {
            name: item if isinstance(item, np.ndarray) else rng.standard_normal(item).astype(np.float32)
            for name, item in self.weights.items()
        }
        inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in self.inputs.items()]
        result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        constants = [numpy_helper.from_array(item, name) for name, item in weights.items()]
        graph = helper.make_graph([self.node], "g", inputs, [result], constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)


def arrays(shapes: Sequence[Shape]) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


NODE = helper.make_node
IMAGE = {"x": [1, "c", 8, 8]}
PLACES = np.zeros((2, 5), np.int64)
STATISTICS = ["x", "scale", "bias", "mean", "variance"]
CASES = {
    "convolution": Case(NODE("Conv", ["x", "w"], ["y"]), IMAGE, {"w": (4, 3, 3, 3)}, [(1, 3, 8, 8)], [[(1, 2, 8, 8)]]),
    "groups": Case(
        NODE("Conv", ["x", "w"], ["y"], group=2), IMAGE, {"w": (4, 3, 3, 3)}, [(1, 6, 8, 8)], [[(1, 3, 8, 8)]]
    ),
    "depthwise": Case(
        NODE("Conv", ["x", "w"], ["y"], group=3), IMAGE, {"w": (3, 1, 3, 3)}, [(1, 3, 8, 8)], [[(1, 5, 8, 8)]]
    ),
    "one dimension": Case(
        NODE("Conv", ["x", "w"], ["y"]), {"x": [1, "c", 8]}, {"w": (4, 3, 3)}, [(1, 3, 8)], [[(1, 2, 8)]]
    ),
    "three dimensions": Case(
        NODE("Conv", ["x", "w"], ["y"]),
        {"x": [1, "c", 4, 4, 4]},
        {"w": (4, 3, 3, 3, 3)},
        [(1, 3, 4, 4, 4)],
        [[(1, 2, 4, 4, 4)]],
    ),
    "transposed": Case(
        NODE("ConvTranspose", ["x", "w"], ["y"]), IMAGE, {"w": (3, 4, 3, 3)}, [(1, 3, 8, 8)], [[(1, 2, 8, 8)]]
    ),
    "known statistics": Case(
        NODE("BatchNormalization", STATISTICS, ["y"]),
        {"x": [2, "c", 8]},
        {"scale": (7,), "bias": (7,), "mean": (7,), "variance": np.ones(7, np.float32)},
        [(2, 7, 8)],
        [[(2, 9, 8)], [(2, 1, 8)]],
    ),
    "given statistics": Case(
        NODE("BatchNormalization", STATISTICS, ["y"]),
        {"x": [2, "c", 8], "scale": [7], "bias": ["b"], "mean": ["m"], "variance": ["v"]},
        {},
        [(2, 7, 8), (7,), (7,), (7,), (7,)],
        [[(2, 9, 8), (7,), (7,), (7,), (7,)], [(2, 7, 8), (7,), (7,), (3,), (7,)]],
    ),
    "gather": Case(
        NODE("GatherElements", ["x", "i"], ["y"], axis=0), {"x": [3, "c"]}, {"i": PLACES}, [(3, 6)], [[(3, 4)]]
    ),
    "scatter": Case(
        NODE("ScatterElements", ["x", "i", "u"], ["y"], axis=0),
        {"x": [3, "c"], "u": [2, "d"]},
        {"i": PLACES},
        [(3, 6), (2, 5)],
        [[(3, 4), (2, 5)], [(3, 6), (2, 6)]],
    ),
    "product": Case(NODE("MatMul", ["x", "w"], ["y"]), {"x": [2, "c"]}, {"w": (7, 3)}, [(2, 7)], [[(2, 9)]]),
    "concatenation": Case(
        NODE("Concat", ["x", "z"], ["y"], axis=0),
        {"x": ["a", "c"], "z": ["b", "d"]},
        {},
        [(2, 3), (4, 3)],
        [[(2, 3), (4, 5)]],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_sizes_that_do_not_fit_are_refused(name: str) -> None:
    case = CASES[name]
    exe = tw.compile(case.model(), threads=1)
    given = arrays(case.fits)
    session = ort.InferenceSession(case.model().SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, dict(zip(case.inputs, given, strict=True)))
    np.testing.assert_allclose(exe(*given), expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    for shapes in case.wrong:
        with pytest.raises(tw.UserError, match=r"the model needs .* to be equal, which they are not"):
            exe(*arrays(shapes))


def test_indices_that_are_certainly_too_long_are_refused_at_once() -> None:
    case = CASES["gather"]
    model = Case(case.node, {"x": [3, 4]}, case.weights, [], []).model()
    with pytest.raises(tw.UserError, match="reach beyond data of shape"):
        tw.compile(model)


def test_layouts_say_where_channels_are() -> None:
    rule = fitting_rule(get_operator("nn.conv2d"))
    transposed = fitting_rule(get_operator("nn.conv2d_transpose"))
    assert rule is not None and transposed is not None
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    assert rule([[1, 8, 8, 6], [3, 3, 3, 4]], {**layouts, "groups": 2}) == [[1, 8, 8, 6], [3, 3, 3, 4]]
    assert transposed([[1, 8, 8, 3], [3, 3, 3, 4]], layouts) == [[1, 8, 8, 3], [3, 3, 3, 4]]
    assert fitting_rule(get_operator("reshape")) is None
