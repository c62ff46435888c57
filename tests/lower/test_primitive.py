"""Fused functions become loop programs, and models are assembled from them."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.graph.ops  # noqa: F401  (registers the operators)
from tilewright.graph.ir.expr import Constant, Function, GraphExpr, Tuple, TupleGet, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.types import tensor_type
from tilewright.lower.cost import work_of
from tilewright.lower.kernel import make_kernel
from tilewright.lower.primitive import lower_primitive
from tilewright.support.errors import CompilerBug
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret


def lowered(inputs: list[Var], body: GraphExpr, name: str = "k") -> PrimFunc:
    function = infer_types(Function("k", tuple(inputs), body))
    assert isinstance(function, Function)
    return lower_primitive(function, name)


def var(name: str, *shape: int) -> Var:
    return Var(name, tensor_type(shape, "float32"))


def test_parameters_are_inputs_then_results() -> None:
    x, y = var("x", 2, 3), var("y", 3)
    func = lowered([x, y], call("add", x, y))
    assert [buffer.static_shape for buffer in func.buffers] == [(2, 3), (3,), (2, 3)]
    a, b, out = np.ones((2, 3), np.float32), np.arange(3, dtype=np.float32), np.zeros((2, 3), np.float32)
    interpret(func, a, b, out)
    np.testing.assert_array_equal(out, a + b)


def test_scalar_constants_become_numbers() -> None:
    x = var("x", 4)
    func = lowered([x], call("multiply", x, constant(np.float32(3.0))))
    assert len(func.buffers) == 2
    out = np.zeros(4, np.float32)
    interpret(func, np.ones(4, np.float32), out)
    np.testing.assert_array_equal(out, np.full(4, 3.0, np.float32))


def test_large_constants_must_be_parameters() -> None:
    x = var("x", 4)
    with pytest.raises(CompilerBug, match="should be a parameter"):
        lowered([x], call("add", x, Constant(np.ones(4, np.float32), FLOAT32)))


def test_passed_through_and_repeated_results_are_copied() -> None:
    x = var("x", 3)
    doubled = call("add", x, x)
    func = lowered([x], Tuple((x, doubled, doubled)))
    outs = [np.zeros(3, np.float32) for _ in range(3)]
    interpret(func, np.arange(3, dtype=np.float32), *outs)
    np.testing.assert_array_equal(outs[0], [0, 1, 2])
    np.testing.assert_array_equal(outs[1], [0, 2, 4])
    np.testing.assert_array_equal(outs[2], [0, 2, 4])


def test_items_of_tuples() -> None:
    x = var("x", 6)
    func = lowered([x], TupleGet(call("split", x, sizes=(2, 4), axis=0), 1))
    out = np.zeros(4, np.float32)
    interpret(func, np.arange(6, dtype=np.float32), out)
    np.testing.assert_array_equal(out, [2, 3, 4, 5])


def test_equal_kernels_share_a_name_and_others_do_not() -> None:
    x, y, z = var("x", 4), var("other", 4), var("z", 5)
    one = make_kernel(lowered([x], call("exp", x)), "exp")
    two = make_kernel(lowered([y], call("exp", y), "another_name"), "exp")
    three = make_kernel(lowered([z], call("exp", z)), "exp")
    assert one.symbol == two.symbol != three.symbol
    assert one.symbol.isidentifier()


def test_work_counts_floating_point_operations() -> None:
    a, b = var("a", 4, 5), var("b", 5, 6)
    work = work_of(lowered([a, b], call("matmul", a, b)))
    assert work.at(1)[0] == 2 * 4 * 5 * 6
    assert work.at(1)[1] == 4 * (20 + 30 + 24)
