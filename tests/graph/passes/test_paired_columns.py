"""Columns of two parts that meet alternate: that the meaning stays, where it is done, and that one kernel is left."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.graph.helpers import function, op, random, var
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import GraphExpr, Tuple, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.fuse import primitive_functions
from tilewright.graph.passes.joint_products import joint_products
from tilewright.graph.passes.paired_columns import paired_columns
from tilewright.graph.pipeline import optimize
from tilewright.ir.function import IRModule
from tilewright.target import Target

GPU = GraphOptions(target=Target("cuda"))
X = var("x", 2, 5, 8)
FLAT = op("reshape", X, shape=(10, 8))


def weights(seed: int, width: int) -> GraphExpr:
    return constant(random(seed, 8, width))


def product(width: int, seed: int = 0, reshaped: bool = False, row: bool = False) -> GraphExpr:
    """A product of the input, as importers write it."""
    value = op("matmul", FLAT if reshaped else X, weights(seed, width))
    if row:
        value = op("add", value, constant(random(seed + 9, width)))
    return op("reshape", value, shape=(2, 5, width)) if reshaped else value


def halves(both: GraphExpr, width: int) -> list[GraphExpr]:
    sizes = (2, 5)
    return [
        op("slice", both, begin=(0, 0, first), end=(*sizes, first + width), strides=(1, 1, 1)) for first in (0, width)
    ]


def swiglu(gate: GraphExpr, up: GraphExpr) -> GraphExpr:
    return op("multiply", op("multiply", gate, op("sigmoid", gate)), up)


def in_halves(**more: bool) -> GraphExpr:
    return swiglu(*halves(product(12, **more), 6))


def of_two(**more: bool) -> GraphExpr:
    return swiglu(product(6, 1, **more), product(6, 2, **more))


def check(body: GraphExpr, paired: bool) -> IRModule:
    before = infer_types(IRModule([function([X], body)]))
    after = paired_columns(before, GPU)
    given = random(7, 2, 5, 8)
    np.testing.assert_allclose(evaluate(after, given), evaluate(before, given), rtol=1e-5, atol=1e-6)
    slices = [item for item in post_order(after["main"]) if is_call_to(item, "slice")]
    assert any(item.attributes.strides[-1] == 2 for item in slices) == paired  # type: ignore[attr-defined]
    if not paired:
        assert after["main"] is before["main"]
    return after


@pytest.mark.parametrize("build", [in_halves, of_two])
@pytest.mark.parametrize("reshaped", [False, True])
@pytest.mark.parametrize("row", [False, True])
def test_two_parts_become_one_kernel(build: Callable[..., GraphExpr], reshaped: bool, row: bool) -> None:
    module = check(build(reshaped=reshaped, row=row), True)
    assert sum(is_call_to(item, "matmul") for item in post_order(module["main"])) == 1
    assert paired_columns(module, GPU)["main"] is module["main"]
    (kernel,) = primitive_functions(optimize(module, GPU))
    assert str(kernel.notes["name"]).startswith("fused_matmul")


def test_what_comes_after_the_meeting_is_in_the_kernel_too() -> None:
    (kernel,) = primitive_functions(optimize(check(op("tanh", in_halves()), True), GPU))
    assert "tanh" in str(kernel.notes["name"])


def test_parts_that_do_not_meet_stay() -> None:
    gate, up = halves(product(12), 6)
    # Read by somebody else, put beside each other, reduced, and of another order of columns.
    check(Tuple((swiglu(gate, up), gate)), False)
    check(Tuple((op("tanh", gate), op("tanh", up))), False)
    check(op("multiply", gate, op("sum", up, axes=(2,), keepdims=True)), False)
    check(op("add", product(6, 1, row=True), product(6, 2)), False)
    both = product(12)
    check(op("add", *[op("slice", both, begin=(0, 0, n), end=(2, 5, n + 4), strides=(1, 1, 1)) for n in (0, 6)]), False)


def test_other_products_of_the_value_are_not_joined_with_it() -> None:
    body = op("add", in_halves(), op("sum", product(4, 5), axes=(2,), keepdims=True))
    module = joint_products(check(body, True), GPU)
    assert sum(is_call_to(item, "matmul") for item in post_order(module["main"])) == 2


def test_a_cpu_keeps_its_slices() -> None:
    module, cpu = infer_types(IRModule([function([X], in_halves())])), GraphOptions(target=Target("llvm"))
    assert paired_columns(module, cpu) is module
    # Whoever takes even and odd columns apart has them in a kernel of their own there.
    alternate = check(in_halves(), True)
    assert len(primitive_functions(optimize(alternate, cpu))) == 2
