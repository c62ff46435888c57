"""Sequences of known length and optionals, against ONNX's own reference."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tests.frontend.onnx.helpers import data, make_model, run_tilewright
from tilewright.frontend import from_onnx
from tilewright.graph.interpreter import evaluate
from tilewright.support.errors import UnsupportedError, UserError

X = data(4, 6)


def _at(place: int) -> np.ndarray:
    return np.array(place, np.int64)


def _compare(nodes, outputs, stored=None) -> None:
    model = make_model(nodes, {"x": X}, outputs, stored)
    wanted = ReferenceEvaluator(model).run(None, {"x": X})
    for mine, other in zip(run_tilewright(model, {"x": X}), wanted, strict=True):
        np.testing.assert_allclose(mine, other)
        assert mine.shape == np.asarray(other).shape


def test_construct_insert_erase_at_length():
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Neg", ["x"], ["n"]),
        helper.make_node("SequenceConstruct", ["x", "r"], ["s"]),
        helper.make_node("SequenceInsert", ["s", "n", "zero"], ["t"]),
        helper.make_node("SequenceInsert", ["t", "r"], ["u"]),
        helper.make_node("SequenceErase", ["u", "two"], ["v"]),
        helper.make_node("SequenceAt", ["v", "last"], ["a"]),
        helper.make_node("SequenceAt", ["v", "zero"], ["b"]),
        helper.make_node("SequenceLength", ["v"], ["l"]),
    ]
    _compare(nodes, ["a", "b", "l"], {"zero": _at(0), "two": _at(2), "last": _at(-1)})


@pytest.mark.parametrize("attributes", [{"axis": 1}, {"axis": 0, "keepdims": 0}])
def test_split_and_concatenate(attributes):
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["s"], **attributes),
        helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0, new_axis=1),
    ]
    _compare(nodes, ["y"])


@pytest.mark.parametrize("sizes", [np.array(4, np.int64), np.array([1, 5], np.int64)])
def test_split_by_sizes(sizes):
    nodes = [
        helper.make_node("SplitToSequence", ["x", "n"], ["s"], axis=1),
        helper.make_node("SequenceAt", ["s", "one"], ["a"]),
        helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=1),
    ]
    _compare(nodes, ["a", "y"], {"n": sizes, "one": _at(1)})


def test_map_over_a_sequence():
    body = helper.make_graph(
        [helper.make_node("Add", ["p", "q"], ["r"])],
        "body",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("p", "q")],
        [helper.make_tensor_value_info("r", TensorProto.FLOAT, None)],
    )
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["s"], axis=0),
        helper.make_node("SequenceMap", ["s", "x"], ["m"], body=body),
        helper.make_node("ConcatFromSequence", ["m"], ["y"], axis=0),
    ]
    model = make_model(nodes, {"x": X}, ["y"])
    (result,) = run_tilewright(model, {"x": X})
    np.testing.assert_allclose(result, np.concatenate([X[at : at + 1] + X for at in range(4)]))


def test_optionals():
    nodes = [
        helper.make_node("Optional", ["x"], ["o"]),
        helper.make_node("OptionalHasElement", ["o"], ["h"]),
        helper.make_node("OptionalGetElement", ["o"], ["y"]),
    ]
    present, value = run_tilewright(make_model(nodes, {"x": X}, ["h", "y"]), {"x": X})
    assert bool(present)
    np.testing.assert_array_equal(value, X)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([("SequenceEmpty", [], "s"), ("ConcatFromSequence", ["s"], "y")], "of an empty sequence"),
        ([("SequenceEmpty", [], "s"), ("SequenceErase", ["s"], "t"), ("SequenceLength", ["t"], "y")], "of an empty"),
        ([("SequenceConstruct", ["x"], "s"), ("SequenceAt", ["s", "three"], "y")], "is not in a sequence of 1"),
        ([("SequenceLength", ["x"], "y")], "must be a sequence"),
        ([("SplitToSequence", ["x", "three2"], "s"), ("SequenceLength", ["s"], "y")], "do not fit a dimension of 4"),
        ([("SplitToSequence", ["x", "zero"], "s"), ("SequenceLength", ["s"], "y")], "parts of 0 elements"),
        ([("Optional", [], "o"), ("OptionalGetElement", ["o"], "y")], "attribute 'type' of Optional must be a type"),
    ],
)
def test_refusals(nodes, message):
    made = [
        helper.make_node(name, inputs, [output], **({"axis": 0} if name == "ConcatFromSequence" else {}))
        for name, inputs, output in nodes
    ]
    stored = {"three": _at(3), "zero": _at(0), "three2": np.array([3, 3], np.int64)}
    with pytest.raises((UserError, UnsupportedError), match=message):
        from_onnx(make_model(made, {"x": X}, ["y"], stored))


def sequence_input(nodes, outputs, shape=(None, 2), kind=TensorProto.FLOAT, extra=()):
    """A model whose input `s` is a sequence of tensors, and perhaps more inputs."""
    infos = [helper.make_tensor_sequence_value_info("s", kind, shape), *extra]
    graph = helper.make_graph(nodes, "g", infos, [helper.make_empty_tensor_value_info(name) for name in outputs])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def outcome(model, *values):
    result = evaluate(from_onnx(model), *values)
    return result if isinstance(result, tuple) else (result,)


def test_sequences_of_the_program():
    items = [data(3, 2), data(1, 2)]
    place = helper.make_tensor_value_info("at", TensorProto.INT64, [])
    nodes = [
        helper.make_node("SequenceAt", ["s", "at"], ["item"]),
        helper.make_node("Neg", ["item"], ["negative"]),
        helper.make_node("SequenceInsert", ["s", "negative", "at"], ["longer"]),
        helper.make_node("SequenceErase", ["longer"], ["shorter"]),
        helper.make_node("SequenceLength", ["longer"], ["count"]),
        helper.make_node("ConcatFromSequence", ["longer"], ["whole"], axis=0),
        helper.make_node("SplitToSequence", ["whole", "count"], ["parts"], axis=0),
    ]
    model = sequence_input(nodes, ["longer", "shorter", "count", "whole", "parts"], extra=[place])
    longer, shorter, count, whole, parts = outcome(model, items, np.array(1))
    assert [item.shape for item in longer] == [(3, 2), (1, 2), (1, 2)]
    np.testing.assert_array_equal(longer[1], -items[1])
    assert [item.shape for item in shorter] == [(3, 2), (1, 2)]
    assert count == 3
    np.testing.assert_array_equal(whole, np.concatenate(longer))
    assert [part.shape for part in parts] == [(3, 2), (2, 2)]


def test_known_sequences_at_places_that_are_data():
    place = helper.make_tensor_value_info("at", TensorProto.INT64, [])
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["made"]),
        helper.make_node("SequenceAt", ["made", "at"], ["y"]),
        helper.make_node("SequenceErase", ["made", "at"], ["z"]),
    ]
    extra = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]), place]
    y, z, made = outcome(sequence_input(nodes, ["y", "z", "made"], extra=extra), [], X[0, :2], np.array(-1))
    np.testing.assert_array_equal(y, X[0, :2])
    assert len(z) == 1
    assert len(made) == 2


def test_optionals_of_the_program():
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, ["n"]))
    nodes = [
        helper.make_node("OptionalHasElement", ["o"], ["h"]),
        helper.make_node("OptionalGetElement", ["o"], ["y"]),
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in ("h", "y")]
    graph = helper.make_graph(nodes, "g", [helper.make_value_info("o", kind)], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    present, value = outcome(model, X[0])
    assert present
    np.testing.assert_array_equal(value, X[0])
    with pytest.raises(UserError, match="is empty"):
        outcome(model, None)
    only = onnx.ModelProto()
    only.CopyFrom(model)
    del only.graph.output[1], only.graph.node[1]
    assert not outcome(only, None)[0]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([helper.make_node("SequenceInsert", ["s", "whole"], ["y"])], "must be of one type"),
        ([helper.make_node("ConcatFromSequence", ["u"], ["y"], axis=0)], "number of dimensions is not known"),
    ],
)
def test_refusals_of_sequences_of_the_program(nodes, message):
    extra = [
        helper.make_tensor_value_info("whole", TensorProto.INT64, [2]),
        helper.make_tensor_sequence_value_info("u", TensorProto.FLOAT, None),
    ]
    with pytest.raises((UserError, UnsupportedError), match=message):
        from_onnx(sequence_input(nodes, ["y"], extra=extra))
