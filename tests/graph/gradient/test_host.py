"""Gradients through loops of imported models, sequences, and values whose sizes are data."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import tilewright as tw
from tests.graph.gradient.checks import check_forward, check_reverse, cotangents_for
from tests.graph.helpers import function, op, var
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, Function, GraphExpr, Let, Var, constant
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.ir.types import SequenceType, tensor_type
from tilewright.support.errors import UserError

Info = helper.make_tensor_value_info
DOUBLE = TensorProto.DOUBLE
VECTOR = tensor_type((3,), "float64")


def model(nodes: list[object], inputs: list[object], outputs: list[object]) -> ModelProto:
    graph = helper.make_graph(nodes, "loops", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def loop() -> ModelProto:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["going_on"]),
            helper.make_node("Mul", ["state", "w"], ["product"]),
            helper.make_node("Sin", ["product"], ["after"]),
            helper.make_node("Identity", ["after"], ["kept"]),
        ],
        "body",
        [Info("turn", TensorProto.INT64, []), Info("going", TensorProto.BOOL, []), Info("state", DOUBLE, [3])],
        [Info("going_on", TensorProto.BOOL, []), Info("after", DOUBLE, [3]), Info("kept", DOUBLE, [3])],
    )
    return model(
        [helper.make_node("Loop", ["n", "", "x"], ["y", "z"], body=body)],
        [Info("n", TensorProto.INT64, []), Info("x", DOUBLE, [3]), Info("w", DOUBLE, [3])],
        [Info("y", DOUBLE, [3]), Info("z", DOUBLE, None)],
    )


def scan() -> ModelProto:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "item"], ["sum"]),
            helper.make_node("Tanh", ["sum"], ["after"]),
            helper.make_node("Mul", ["after", "w"], ["kept"]),
        ],
        "body",
        [Info("state", DOUBLE, [3]), Info("item", DOUBLE, [3])],
        [Info("after", DOUBLE, [3]), Info("kept", DOUBLE, [3])],
    )
    return model(
        [helper.make_node("Scan", ["x", "items"], ["y", "z"], body=body, num_scan_inputs=1)],
        [Info("x", DOUBLE, [3]), Info("items", DOUBLE, ["n", 3]), Info("w", DOUBLE, [3])],
        [Info("y", DOUBLE, [3]), Info("z", DOUBLE, None)],
    )


RNG = np.random.default_rng(0)
LOOPS = {
    "loop": (loop, [np.array(4), RNG.standard_normal(3), RNG.standard_normal(3)]),
    "scan": (scan, [RNG.standard_normal(3), RNG.standard_normal((4, 3)), RNG.standard_normal(3)]),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_of_imported_models(name: str) -> None:
    build, values = LOOPS[name]
    module = tw.frontend.from_onnx(build())
    backward = check_reverse(module, values)
    check_forward(module, values)
    given = cotangents_for(module, values, 0)
    expected = evaluate(backward, *values, *given)
    assert isinstance(expected, tuple)
    for found, wanted in zip(tw.compile(backward, threads=1)(*values, *given), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)


def bound(name: str, value: Call, body: GraphExpr) -> GraphExpr:
    return Let(Var(name), value, body)


def by_size(name: str, *more: GraphExpr, shape: tuple[int, ...], result: tuple[int, ...]) -> Function:
    """A call of a host operator whose result's first dimension is a symbol that it introduces."""
    x, n, sized = var("x", *shape, dtype="float64"), Symbol("n"), Var("sized")
    dims = (n, *tensor_type(result[1:], "float64").shape)
    return function([x], Let(sized, op(name, x, *more, dims=dims), op("sin", sized)))


@pytest.mark.parametrize(
    "program",
    [
        by_size("shape.match", shape=(2, 3), result=(2, 3)),
        by_size("shape.reshape", constant([3, 2]), shape=(2, 3), result=(3, 2)),
        by_size("shape.broadcast", constant([4, 3]), shape=(1, 3), result=(4, 3)),
        by_size("axes.insert", constant([1]), shape=(2, 3), result=(2, 1, 3)),
        by_size("axes.remove", constant([1]), shape=(2, 1, 3), result=(2, 3)),
    ],
    ids=["match", "reshape", "broadcast", "insert", "remove"],
)
def test_values_whose_sizes_a_run_decides(program: Function) -> None:
    values = [np.random.default_rng(1).standard_normal(program.params[0].tensor_type.static_shape or ())]
    check_reverse(program, values)
    check_forward(program, values)


def sequences(join: str) -> Function:
    x, y = var("x", 3, dtype="float64"), var("y", 3, dtype="float64")
    kind = SequenceType(VECTOR)
    items = op("sequence.make", op("sin", x), y, result=kind)
    items = op("sequence.insert", items, op("multiply", x, y), result=kind)
    items = op("sequence.insert", items, op("exp", x), constant(1, "int64"), result=kind)
    whole = tensor_type((4, 3), "float64")
    if join == "stack":
        body = op("sequence.stack", items, constant([3]), dims=whole.shape, dtype=whole.dtype)
    else:
        body = op("sequence.concatenate", items, axis=0, new_axis=join == "new axis", result=whole)
    return function([x, y], op("tanh", body))


@pytest.mark.parametrize("join", ["stack", "new axis"])
def test_sequences(join: str) -> None:
    values = [np.array([0.1, 0.2, 0.3]), np.array([0.5, -0.4, 0.3])]
    check_reverse(sequences(join), values)
    check_forward(sequences(join), values)


def test_what_sequences_cannot_do() -> None:
    x = var("x", 3, dtype="float64")
    kind = SequenceType(VECTOR)
    items = op("sequence.make", x, x, result=kind)
    joined = op("sequence.concatenate", items, axis=0, result=tensor_type((6,), "float64"))
    with pytest.raises(UserError, match="joined along an axis they have"):
        tw.vjp(function([x], joined))
    first = op("sequence.at", items, constant(0, "int64"), result=VECTOR)
    with pytest.raises(UserError, match=r"sequence.at is not differentiable: its rule is not written"):
        tw.vjp(function([x], first))
    split = op("sequence.split", x, constant(2, "int64"), axis=0, result=SequenceType(tensor_type((None,), "float64")))
    whole = op("sequence.concatenate", split, axis=0, new_axis=True, result=tensor_type((None, None), "float64"))
    with pytest.raises(UserError, match="parts that are not single slices"):
        tw.vjp(function([x], whole))
    stacked = op("sequence.concatenate", items, axis=0, new_axis=True, result=tensor_type((2, 3), "float64"))
    twice = op("add", stacked, op("multiply", stacked, stacked))
    check_reverse(function([x], twice), [np.array([0.1, 0.2, 0.3])])
    longer = op("sequence.insert", items, x, result=kind)
    both = op(
        "add",
        op(
            "sum",
            op("sequence.concatenate", longer, axis=0, new_axis=True, result=tensor_type((3, 3), "float64")),
            axes=(0,),
        ),
        op("sum", stacked, axes=(0,)),
    )
    with pytest.raises(UserError, match="a sequence that is used more than once"):
        tw.vjp(function([x], both))


def test_quantised_weights_give_gradients_to_their_scales() -> None:
    x, scale = var("x", 4, dtype="int8"), var("s", dtype="float32")
    zero = constant(3, "int8")
    program = tw.vjp(function([x, scale], op("qnn.dequantize", x, scale, zero)), "s")
    values = np.array([1, 2, -3, 7], np.int8)
    given = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    gradient = evaluate(program, values, np.float32(0.5), given)[1]
    np.testing.assert_allclose(gradient, ((values.astype(np.float32) - 3) * given).sum())


def test_rounding_to_tensor_core_precision_is_the_identity_for_gradients() -> None:
    x = var("x", 3)
    values, given = np.array([1.1, 2.2, 3.3], np.float32), np.array([1.0, 2.0, 3.0], np.float32)
    np.testing.assert_array_equal(evaluate(tw.vjp(function([x], op("round_to_tf32", x))), values, given)[1], given)


def test_checked_values() -> None:
    x, n = var("x", 3, dtype="float64"), var("n", 2, dtype="int64")
    status = op("check_values", n, what="index", sizes=(3,), axes=(0,), shape=(2,))
    program = function([x, n], op("take", op("checked", x, status, what="index", axes=(0,)), n, axis=0))
    check_reverse(program, [np.array([1.0, 2.0, 3.0]), np.array([2, 2])])
    assert isinstance(tw.vjp(program, "x"), IRModule)
