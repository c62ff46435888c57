"""Training from ONNX files: weights of which the model uses something computed from them are trained as well."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw

HIDDEN, INPUTS, CLASSES = 4, 3, 3
RATE = 0.5


def model(nodes, **shapes):
    """A model of float weights of some shapes, from texts of `x` to the scores `y`."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(0.3 * rng.standard_normal(shape, np.float32), name) for name, shape in shapes.items()
    ]
    weights.append(numpy_helper.from_array(np.array([2, -1]), "rows"))
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", (5, 2, INPUTS)), ("y", (2, CLASSES)))
    )
    proto = helper.make_model(
        helper.make_graph([helper.make_node(*node[:3], **node[3]) for node in nodes], "g", [x], [y], weights),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    proto.ir_version = 8
    return proto.SerializeToString()


def recurrent(kind, gates):
    """A recurrent layer, whose two biases are one tensor and are added up, and a linear one."""
    return model(
        [
            (kind, ["x", "w", "r", "bias"], ["", "h"], {"hidden_size": HIDDEN}),
            ("Reshape", ["h", "rows"], ["flat"], {}),
            ("MatMul", ["flat", "m"], ["y"], {}),
        ],
        w=(1, gates * HIDDEN, INPUTS), r=(1, gates * HIDDEN, HIDDEN), bias=(1, 2 * gates * HIDDEN), m=(HIDDEN, CLASSES),
    )  # fmt: skip


MODELS = {
    "lstm": (lambda: recurrent("LSTM", 4), ["bias"]),
    "gru": (lambda: recurrent("GRU", 3), ["bias"]),
    "sum of biases": (
        lambda: model(
            [
                ("Reshape", ["x", "rows"], ["flat"], {}),
                ("Add", ["first", "second"], ["bias"], {}),
                ("MatMul", ["flat", "m"], ["product"], {}),
                ("Add", ["product", "bias"], ["y"], {}),
            ],
            m=(5 * INPUTS, CLASSES), first=(CLASSES,), second=(CLASSES,),
        ),
        ["first", "second"],
    ),
    "scaled bias": (
        lambda: model(
            [
                ("Reshape", ["x", "rows"], ["flat"], {}),
                ("Gemm", ["flat", "m", "bias"], ["y"], {"alpha": 0.5, "beta": 0.25}),
            ],
            m=(5 * INPUTS, CLASSES), bias=(CLASSES,),
        ),
        ["m", "bias"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MODELS)
def test_weights_that_are_computed_with_have_gradients(case):
    make, names = MODELS[case]
    step = tw.train.Step(make(), "cross_entropy", tw.train.SGD(RATE), threads=1)
    x, labels = np.random.default_rng(1).standard_normal((5, 2, INPUTS), np.float32), np.array([0, 2])
    before = step.parameters()
    assert set(names) <= set(before)
    differences = {name: difference(step, name, before[name], x, labels) for name in names}
    step.assign(before)
    step(x, labels)
    after = step.parameters()
    for name, wanted in differences.items():
        got = (before[name] - after[name]).reshape(-1)[0] / RATE
        assert got == pytest.approx(wanted, rel=2e-2, abs=1e-4), name


def difference(step, name, value, x, labels, width=1e-2):
    """The slope of the loss along the first element of a weight."""
    losses = []
    for sign in (1, -1):
        moved = value.copy()
        moved.reshape(-1)[0] += sign * width
        step.assign({name: moved})
        # What was measured before belongs to the weights before.
        losses.append(step.evaluate(x, labels).loss)
    step.assign({name: value})
    return (losses[0] - losses[1]) / (2 * width)
