"""Computations that a model has in many sizes: when they are one kernel, and what its calls pass."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.graph.helpers import function, op, random
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, GraphExpr, Tuple, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType, tensor_type
from tilewright.lower.joined_elements import join_elements

ELEMENTS = Symbol("elements")
SHAPES = ((1, 3, 5, 7), (2, 64), (33,), (4, 4, 9), (128, 3))


def var(name: str, *shape: int) -> Var:
    return Var(name, tensor_type(shape, "float32"))


def typed(params: list[Var], body: GraphExpr) -> Function:
    result = infer_types(function(params, body))
    assert isinstance(result, Function)
    return result


def joined(params: list[Var], body: GraphExpr) -> tuple[Function, int] | None:
    return join_elements(typed(params, body), ELEMENTS)


def shape_of(item: GraphExpr) -> tuple[object, ...]:
    assert isinstance(item.type, TensorType) and item.type.shape is not None
    return item.type.shape


def test_elements_one_by_one() -> None:
    x, scale = var("x", 2, 3, 4), var("scale", 1, 1)
    found = joined([x, scale], op("clip", op("divide", x, scale), minimum=0.0, maximum=6.0))
    assert found is not None
    after, count = found
    assert count == 24
    assert [shape_of(item) for item in (*after.params, after.body)] == [(ELEMENTS,), (), (ELEMENTS,)]


def test_constants_of_one_element_add_no_axes() -> None:
    x = var("x", 6)
    found = joined([x], op("add", x, constant(np.ones((1,), np.float32))))
    assert found is not None and shape_of(found[0].body) == (ELEMENTS,)


@pytest.mark.parametrize("keepdims", [False, True])
def test_all_elements_together(keepdims: bool) -> None:
    x = var("x", 2, 3, 4)
    found = joined([x], op("nn.relu", op("max", x, axes=(0, 1, 2), keepdims=keepdims)))
    assert found is not None and len(shape_of(found[0].body)) == keepdims
    assert shape_of(found[0].params[0]) == (ELEMENTS,)


def test_what_sees_more_than_elements_stays() -> None:
    x, row, column = var("x", 4, 6), var("row", 1, 6), var("column", 4, 1)
    assert joined([x, row], op("add", x, row)) is None, "a row is repeated"
    assert joined([row, column], op("add", row, column)) is None
    assert joined([x], op("max", x, axes=(1,))) is None, "a result a row"
    assert joined([x], op("transpose", x, axes=(1, 0))) is None
    one = var("one", 1)
    assert joined([one], op("nn.relu", one)) is None, "one element is no row"
    assert joined([x], Tuple((op("nn.relu", x), op("max", x, axes=(0, 1))))) is None
    rows = Var("x", tensor_type((Symbol("n"), 4), "float32"))
    assert joined([rows], op("nn.relu", rows)) is None, "general_sizes has open ones"


def quantised(*shapes: tuple[int, ...]) -> IRModule:
    """The largest element of each input, and the inputs as parts of theirs."""
    params = [var(f"x{number}", *shape) for number, shape in enumerate(shapes)]
    results: list[GraphExpr] = []
    for item in params:
        largest = op("max", item, axes=tuple(range(len(shape_of(item)))))
        results += [largest, op("multiply", op("divide", item, largest), item)]
    return IRModule({"main": typed(params, Tuple(tuple(results)))})


@pytest.mark.parametrize("threads", [1, 2])
def test_many_sizes_are_one_kernel(threads: int) -> None:
    module = quantised(*SHAPES)
    compilation = tw.Compilation(module, threads=threads)
    assert len(compilation.kernels) == 2
    steps = compilation.artifact().model.steps
    assert len(steps) == 2 * len(SHAPES)
    main = module["main"]
    assert isinstance(main, Function)
    inputs = [random(number, *shape) for number, shape in enumerate(SHAPES)]
    expected = evaluate(main, *inputs)
    assert isinstance(expected, tuple)
    for ours, theirs in zip(compilation.executable()(*inputs), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_work_is_that_of_a_size() -> None:
    kernels = tw.Compilation(quantised(*SHAPES), threads=1).lowered.info.kernels
    assert {item.flops for item in kernels if item.op.startswith("max")} == {105, 128, 33, 144, 384}


def test_few_sizes_have_code_of_their_own() -> None:
    assert len(tw.Compilation(quantised(*SHAPES[:2]), threads=1).kernels) == 4
