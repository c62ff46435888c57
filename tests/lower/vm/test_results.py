"""What a program gives is memory of its own: no part of an input, of a constant or of another result."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright as tw

ITEM = helper.make_tensor_value_info("x", TensorProto.FLOAT, (4,))
PLACE = helper.make_tensor_value_info("place", TensorProto.INT64, ())
ROW = helper.make_tensor_value_info("row", TensorProto.INT64, (1,))
ITEMS = helper.make_tensor_sequence_value_info("items", TensorProto.FLOAT, (4,))
TABLE = helper.make_tensor("table", TensorProto.FLOAT, (4,), [1, 2, 3, 4])


def tensor_named(name: str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)


def sequence_named(name: str) -> Any:
    return helper.make_tensor_sequence_value_info(name, TensorProto.FLOAT, None)


def node(kind: str, inputs: list[str], outputs: list[str], **attributes: object) -> Any:
    return helper.make_node(kind, inputs, outputs, **attributes)


CASES = {
    "an item of a sequence": ([node("SequenceAt", ["items", "place"], ["y"])], [ITEMS, PLACE], [tensor_named("y")]),
    "an input twice, and a constant": (
        [node("SequenceConstruct", ["x", "x", "table"], ["y"])],
        [ITEM],
        [sequence_named("y")],
    ),
    "one value as two results": (
        [
            node("NonZero", ["x"], ["found"]),
            node("Cast", ["found"], ["y"], to=TensorProto.FLOAT),
            node("SequenceConstruct", ["y", "y"], ["z"]),
        ],
        [ITEM],
        [tensor_named("y"), sequence_named("z")],
    ),
    "views of an input and of a value": (
        [
            node("NonZero", ["x"], ["found"]),
            node("Cast", ["found"], ["y"], to=TensorProto.FLOAT),
            node("Reshape", ["y", "row"], ["z"]),
            node("Reshape", ["x", "row"], ["w"]),
        ],
        [ITEM, ROW],
        [tensor_named("y"), tensor_named("z"), tensor_named("w")],
    ),
    "parts of an input": (
        [node("SplitToSequence", ["x", "place"], ["y"], axis=0)],
        [ITEM, PLACE],
        [sequence_named("y")],
    ),
}


def test_a_result_that_comes_back_as_an_input_is_copied_too() -> None:
    """Its memory is a block of the program's own storage, and belongs to the user now."""
    doubled = node("Add", ["x", "x"], ["twice"])
    shown = node("SequenceConstruct", ["x", "twice"], ["y"])
    graph = helper.make_graph([doubled, shown], "results", [ITEM], [sequence_named("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    executable = tw.compile(tw.frontend.from_onnx(model), threads=1)
    _, twice = executable(np.arange(4, dtype=np.float32))
    given, again = executable(twice)
    assert not np.shares_memory(given, twice) and not np.shares_memory(again, twice)


def leaves(value: Any) -> list[np.ndarray]:
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


@pytest.mark.parametrize("name", CASES)
def test_results_share_no_memory(name: str) -> None:
    nodes, inputs, outputs = CASES[name]
    graph = helper.make_graph(nodes, "results", inputs, outputs, [TABLE] if "table" in nodes[0].input else [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    executable = tw.compile(tw.frontend.from_onnx(model), threads=1)
    x = np.arange(4, dtype=np.float32)
    known: dict[str, Any] = {"x": x, "place": np.array(1), "row": np.array([-1]), "items": [x + 1, x + 2]}
    given = [known[item.name] for item in inputs]
    first = executable(*given)
    kept = [leaf.copy() for leaf in leaves(first)]
    for a, b in combinations([*leaves(given), *leaves(first)], 2):
        assert a is not b and not np.shares_memory(a, b)
    for leaf in leaves(first):
        leaf[...] = -1
    for again, expected in zip(leaves(executable(*given)), kept, strict=True):
        np.testing.assert_array_equal(again, expected)
