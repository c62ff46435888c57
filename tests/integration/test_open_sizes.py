"""Operators that change shapes, at open sizes of 0, 1, 2 and 3 each: the shapes and values that onnxruntime gives."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tests.requirements import need_module
from tilewright.support.errors import UserError

onnxruntime = need_module("onnxruntime")

_X = {"x": ["n", "m"]}
_XV = {"x": ["n", "m"], "v": ["k", "m"]}
_ROW = {"s": [0], "e": [1], "a": [0]}


def _slice(*names: str) -> onnx.NodeProto:
    return helper.make_node("Slice", [*names[:-1]], [names[-1]])


def _node(operator: str, inputs: str, outputs: str = "y", **attributes: object) -> onnx.NodeProto:
    return helper.make_node(operator, inputs.split(), outputs.split(), **attributes)


CASES: dict[str, tuple[list[onnx.NodeProto], dict[str, list[int | str]], dict[str, list[int]]]] = {
    **{
        f"slice {begin}:{end}:{step}": (
            [_slice("x", "s", "e", "a", "t", "y")],
            _X,
            {"s": [begin], "e": [end], "a": [0], "t": [step]},
        )
        for begin, end, step in [(0, 1, 1), (1, 99, 1), (-1, 99, 1), (0, -1, 1), (-2, -1, 1), (99, -99, -1), (1, 99, 2)]
    },
    "slice to a size": ([_node("Shape", "x", "e", start=1), _slice("x", "s", "e", "a", "y")], _X, {"s": [0], "a": [0]}),
    "all but one": (
        [_node("Shape", "x", "q", end=1), _node("Sub", "q one", "e"), _slice("x", "s", "e", "a", "y")],
        _X,
        {"s": [0], "a": [0], "one": [1]},
    ),
    "the two halves": (
        [
            *(_node("Shape", "x", "q", end=1), _node("Div", "q two", "h")),
            *(_slice("x", "s", "h", "a", "p"), _slice("x", "h", "e", "a", "r"), _node("Concat", "r p", axis=0)),
        ],
        _X,
        {"s": [0], "e": [99], "a": [0], "two": [2]},
    ),
    "a row and others": ([_slice("x", "s", "e", "a", "p"), _node("Add", "p v")], _XV, _ROW),
    "a row spread": (
        [_slice("x", "s", "e", "a", "p"), _node("Shape", "v", "q"), _node("Expand", "p q")],
        _XV,
        _ROW,
    ),
    "concatenation": ([_node("Concat", "x v", axis=0)], _XV, {}),
    "one row of all": ([_node("Reshape", "x s")], _X, {"s": [-1]}),
    "pairs": ([_node("Reshape", "x s")], {"x": ["n", 4]}, {"s": [-1, 2]}),
    "flatten": ([_node("Flatten", "x", axis=1)], {"x": ["n", "m", 2]}, {}),
    "transpose": ([_node("Transpose", "x")], _X, {}),
    "tile": ([_node("Tile", "x s")], _X, {"s": [2, 3]}),
    "tile by a shape": ([_node("Shape", "v", "s"), _node("Tile", "x s")], _XV, {}),
    "pad": ([_node("Pad", "x p")], _X, {"p": [1, 0, 0, 2]}),
    "cut": ([_node("Pad", "x p")], _X, {"p": [-1, 0, 0, 0]}),
    "reflect": ([_node("Pad", "x p", mode="reflect")], _X, {"p": [1, 0, 0, 1]}),
    "split": ([_node("Split", "x", "y z", axis=0, num_outputs=2)], _X, {}),
    "sum": ([_node("ReduceSum", "x a", keepdims=0)], _X, {"a": [0]}),
    "largest": ([_node("ReduceMax", "x a", keepdims=1)], _X, {"a": [1]}),
    "where it is": ([_node("ArgMax", "x", axis=1)], _X, {}),
    "running sums": ([_node("CumSum", "x a")], _X, {"a": [0]}),
    "softmax": ([_node("Softmax", "x", axis=0)], _X, {}),
    "product": ([_node("MatMul", "x v")], {"x": ["n", "m"], "v": ["m", "k"]}, {}),
    "best two": ([_node("TopK", "x k", "y z", axis=1)], {"x": ["n", 3]}, {"k": [2]}),
    "triangle": ([_node("Trilu", "x")], _X, {}),
    "places": ([_node("NonZero", "x")], _X, {}),
    "range": (
        [
            *(_node("Shape", "x", "q", end=1), _node("Squeeze", "q", "e")),
            *(_node("Squeeze", "o", "i"), _node("Range", "i e i")),
        ],
        _X,
        {"o": [1]},
    ),
    "windows": ([_node("MaxPool", "x", kernel_shape=[3], pads=[1, 1])], {"x": ["n", 2, "m"]}, {}),
}


def _model(name: str) -> onnx.ModelProto:
    nodes, inputs, constants = CASES[name]
    return helper.make_model(
        helper.make_graph(
            nodes,
            "open",
            [helper.make_tensor_value_info(item, TensorProto.FLOAT, dims) for item, dims in inputs.items()],
            [helper.make_empty_tensor_value_info(item) for item in nodes[-1].output],
            [numpy_helper.from_array(np.array(values, np.int64), item) for item, values in constants.items()],
        ),
        opset_imports=[helper.make_opsetid("", 21)],
        ir_version=10,
    )


@pytest.mark.parametrize("name", CASES)
def test_like_onnxruntime(name: str) -> None:
    model, inputs = _model(name), CASES[name][1]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    reference = onnxruntime.InferenceSession(model.SerializeToString(), options)
    compiled = tw.compile(tw.frontend.from_onnx(model), threads=1)
    rng = np.random.default_rng(0)
    symbols = list(dict.fromkeys(dim for dims in inputs.values() for dim in dims if isinstance(dim, str)))
    compared = 0
    for sizes in itertools.product(range(4), repeat=len(symbols)):
        known = dict(zip(symbols, sizes, strict=True))
        arrays = {
            item: rng.standard_normal([known.get(dim, dim) for dim in dims]).astype(np.float32)
            for item, dims in inputs.items()
        }
        try:
            expected = reference.run(None, arrays)
        except Exception:
            # Its errors have no common class: sizes that the operator does not take.
            continue
        try:
            found = compiled.run(arrays)
        except UserError as error:
            # What is broadcast is one row, or as many as the other has: said, and never answered wrongly.
            if "to be equal" not in str(error):
                raise
            continue
        for actual, wanted in zip(found, expected, strict=True):
            assert actual.shape == wanted.shape, known
            np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)
        compared += 1
    assert compared > len(symbols)
