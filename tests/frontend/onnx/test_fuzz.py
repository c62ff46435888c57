"""Damaged files: the importer gives a module or a UserError, and never anything else."""

from __future__ import annotations

import contextlib
import warnings

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from tests.frontend.onnx.helpers import data, make_model
from tilewright.frontend import from_onnx
from tilewright.support.errors import UserError


def _victim() -> bytes:
    """A model with many kinds of nodes, attributes and initializers."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("BatchNormalization", ["c", "b", "b", "b", "v"], ["n"], epsilon=1e-3),
        helper.make_node("LeakyRelu", ["n"], ["l"], alpha=0.1),
        helper.make_node("MaxPool", ["l"], ["m"], kernel_shape=[2, 2], ceil_mode=1),
        helper.make_node("Shape", ["m"], ["s"]),
        helper.make_node("Slice", ["s", "zero", "one"], ["s0"]),
        helper.make_node("Concat", ["s0", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["m", "shape"], ["r"]),
        helper.make_node("Transpose", ["r"], ["t"], perm=[0, 2, 1]),
        helper.make_node("LSTM", ["t", "lw", "lr"], ["", "h"], hidden_size=2, direction="forward"),
        helper.make_node("Resize", ["m", "", "scales"], ["z"], mode="linear"),
        helper.make_node("Pad", ["z", "pads"], ["p"], mode="reflect"),
        helper.make_node("ReduceMean", ["p", "axes"], ["a"], keepdims=0),
        helper.make_node("Softmax", ["a"], ["y"], axis=-1),
        helper.make_node("Einsum", ["a", "a"], ["e"], equation="ij,kj->ik"),
        helper.make_node("Range", ["from", "to", "by"], ["g"]),
    ]
    stored = {
        "w": data(3, 2, 3, 3),
        "b": data(3),
        "v": data(3, low=0.5),
        "zero": np.array([0]),
        "one": np.array([1]),
        "rest": np.array([3, -1]),
        "lw": data(1, 8, 3),
        "lr": data(1, 8, 2),
        "scales": np.array([1, 1, 2, 2], np.float32),
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        "axes": np.array([2, 3]),
        "from": np.array(0),
        "to": np.array(5),
        "by": np.array(1),
    }
    outputs = ["y", "h", "e", "g"]
    return make_model(nodes, {"x": data(1, 2, 8, 8)}, outputs, stored).SerializeToString()


_WHOLE = _victim()


def _survives(content: bytes) -> None:
    with contextlib.suppress(UserError):
        from_onnx(content)


def test_the_victim_is_a_good_model():
    assert len(from_onnx(_WHOLE)["main"].params) == 1


@settings(max_examples=60)
@given(st.integers(0, len(_WHOLE) - 1))
def test_truncated_files(length):
    _survives(_WHOLE[:length])


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, len(_WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_flipped_bytes(changes):
    content = bytearray(_WHOLE)
    for place, value in changes:
        content[place] = value
    _survives(bytes(content))


@pytest.mark.fuzz
def test_many_flipped_bytes():
    random = np.random.default_rng(0)
    for _ in range(8_000):
        content = bytearray(_WHOLE)
        for place in random.integers(0, len(_WHOLE), random.integers(1, 4)):
            content[place] = random.integers(0, 256)
        _survives(bytes(content))


_ODD_NUMBERS = [-(2**63), -(2**31), -5, -2, -1, 0, 1, 2, 3, 7, 100, 2**20, 2**31, 2**40, 2**63 - 1]


def _odd_attribute(attribute: onnx.AttributeProto, random: np.random.Generator) -> None:
    number = _ODD_NUMBERS[random.integers(len(_ODD_NUMBERS))]
    if attribute.type == attribute.INT:
        attribute.i = number
    elif attribute.type == attribute.INTS and attribute.ints and random.random() < 0.7:
        attribute.ints[random.integers(len(attribute.ints))] = number
    elif attribute.type == attribute.INTS:
        attribute.ints.append(1)
    elif attribute.type == attribute.FLOAT:
        attribute.f = [float("nan"), float("inf"), 0.0, -1.0, 1e30][random.integers(5)]
    elif attribute.type == attribute.STRING:
        attribute.s = [b"", b"x", b"\xff", b"NOTSET", b"none"][random.integers(5)]


def _mutate(model: onnx.ModelProto, random: np.random.Generator, operators: list[str]) -> None:
    """Change an attribute, the inputs or outputs of a node, its operator, or the shape or type of an input."""
    graph = model.graph
    node = graph.node[random.integers(len(graph.node))]
    match int(random.integers(7)):
        case 0 if node.attribute:
            _odd_attribute(node.attribute[random.integers(len(node.attribute))], random)
        case 1 if node.input:
            del node.input[random.integers(len(node.input))]
        case 2 if node.input:
            node.input.append(node.input[random.integers(len(node.input))])
        case 3 if node.attribute:
            del node.attribute[random.integers(len(node.attribute))]
        case 4:
            node.op_type = operators[random.integers(len(operators))]
        case 5 if graph.input:
            dims = graph.input[random.integers(len(graph.input))].type.tensor_type.shape.dim
            if dims and random.random() < 0.7:
                dims[random.integers(len(dims))].dim_value = _ODD_NUMBERS[random.integers(len(_ODD_NUMBERS))]
            else:
                dims.add().dim_value = 2
        case 6 if graph.input:
            graph.input[random.integers(len(graph.input))].type.tensor_type.elem_type = int(random.integers(0, 18))


@pytest.mark.fuzz
def test_mutated_models():
    """ONNX's own node tests with something changed: valid protobuf, but often senseless."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
        operators = sorted({node.op_type for case in cases for node in case.model.graph.node if not node.domain})
        random = np.random.default_rng(1)
        for _ in range(10_000):
            case = cases[random.integers(len(cases))]
            model = onnx.ModelProto()
            model.CopyFrom(case.model)
            values = case.data_sets[0][0]
            if len(values) == len(model.graph.input) and random.random() < 0.7:
                for info, value in list(zip(model.graph.input, values, strict=True))[1:]:
                    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
                        model.graph.initializer.append(numpy_helper.from_array(value, info.name))
            for _ in range(random.integers(1, 3)):
                _mutate(model, random, operators)
            with contextlib.suppress(UserError):
                from_onnx(model)
