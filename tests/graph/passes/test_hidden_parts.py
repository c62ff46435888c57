"""Products of products in parts: that the meaning stays, and which are divided."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.graph.helpers import function, op, random, var
from tilewright.graph.choices import GraphChoices
from tilewright.graph.expr import Call, Constant, GraphExpr, Tuple, constant
from tilewright.graph.infer import infer_types
from tilewright.graph.interpreter import evaluate
from tilewright.graph.op import is_call_to
from tilewright.graph.passes.hidden_parts import hidden_parts
from tilewright.graph.rewrite import static_shape
from tilewright.graph.traverse import post_order
from tilewright.ir.function import IRModule
from tilewright.support.span import Span
from tilewright.target import Target

CPU = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512").replace(cores=1, l2_bytes=2 << 20)
ROWS, WIDTH, HIDDEN = 128, 24, 3072

Inner = Callable[[GraphExpr], GraphExpr]


def gelu(value: GraphExpr) -> GraphExpr:
    scaled = op("multiply", value, constant(np.array(0.7071, np.float32)))
    return op("multiply", op("add", op("erf", scaled), constant(np.array(1.0, np.float32))), value)


def weights(number: int, *shape: int) -> Constant:
    return constant(random(number, *shape) * np.float32(0.05))


def perceptron(inner: Inner = gelu, hidden: int = HIDDEN, rows: int = ROWS, *, transposed: bool = False) -> IRModule:
    x = var("x", 1, rows, WIDTH)
    first = weights(1, hidden, WIDTH) if transposed else weights(1, WIDTH, hidden)
    value = op("add", constant(random(2, hidden)), op("matmul", x, first, transpose_b=transposed))
    last = weights(3, WIDTH, hidden) if transposed else weights(3, hidden, WIDTH)
    product = op("matmul", inner(value), last, transpose_b=transposed)
    return infer_types(IRModule([function([x], op("add", op("add", product, constant(random(4, WIDTH))), x))]))


def products(module: IRModule) -> list[Call]:
    return [item for item in post_order(module["main"]) if isinstance(item, Call) and is_call_to(item, "matmul")]


def check_meaning(before: IRModule, after: IRModule) -> None:
    given = random(7, 1, *(static_shape(before["main"].params[0]) or ())[1:])
    wanted, found = (np.asarray(evaluate(module, given)) for module in (before, after))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("transposed", [False, True])
def test_hidden_values_that_are_too_large_come_in_parts(transposed: bool) -> None:
    before = perceptron(transposed=transposed)
    after = hidden_parts(before, CPU)
    widths = [(static_shape(call) or ())[-1] for call in products(after)]
    # Not parts of 1024: rows of 4 KiB would fall on the same places of the first cache level.
    assert sorted(widths) == [WIDTH] * 4 + [768] * 4
    check_meaning(before, after)
    assert hidden_parts(after, CPU)["main"] is after["main"]


def test_gates_are_divided_with_what_they_open() -> None:
    x = var("x", 1, ROWS, WIDTH)
    gate, value = (op("matmul", x, weights(number, WIDTH, HIDDEN)) for number in (1, 2))
    body = op("matmul", op("multiply", op("sigmoid", gate), value), weights(3, HIDDEN, WIDTH))
    before = infer_types(IRModule([function([x], body)]))
    after = hidden_parts(before, CPU)
    assert len(products(after)) == 12
    check_meaning(before, after)


def _changed(value: GraphExpr) -> GraphExpr:
    """Something that is not computed element by element."""
    return op("nn.softmax", value, axis=2)


def _table(value: GraphExpr) -> GraphExpr:
    """A constant that has rows too."""
    return op("add", value, constant(random(9, ROWS, HIDDEN)))


@pytest.mark.parametrize(
    ("module", "target"),
    [
        (perceptron(), Target("cuda")),
        (perceptron(), CPU.replace(cores=2)),
        (perceptron(), CPU.replace(cores=16)),
        (perceptron(), CPU.replace(l2_bytes=8 << 20)),  # all of it stays
        (perceptron(rows=16), CPU),
        (perceptron(rows=512), CPU),  # parts would be too small
        (perceptron(hidden=3001), CPU),  # no parts of equal size
        (perceptron(_changed), CPU),
        (perceptron(_table), CPU),
    ],
)
def test_other_products_stay_whole(module: IRModule, target: Target) -> None:
    assert hidden_parts(module, target)["main"] is module["main"]


def test_hidden_values_that_others_read_stay_whole() -> None:
    x = var("x", 1, ROWS, WIDTH)
    hidden = op("nn.relu", op("matmul", x, weights(1, WIDTH, HIDDEN)))
    product = op("matmul", hidden, weights(3, HIDDEN, WIDTH))
    module = infer_types(IRModule([function([x], Tuple((product, op("sum", hidden, axes=(2,)))))]))
    assert hidden_parts(module, CPU)["main"] is module["main"]


def test_what_was_measured_goes_before_the_estimate() -> None:
    module = perceptron()
    for item in products(module):
        item.span = Span("dense")
    asked = GraphChoices()
    assert len(products(hidden_parts(module, CPU, asked))) == 8
    ((key, question),) = asked.asked.items()
    assert (question.options, question.default, question.nodes) == (("whole", "parts"), "parts", ("dense",))
    assert len(products(hidden_parts(module, CPU, GraphChoices({key: "whole"})))) == 2
    for cores, count in ((2, 8), (16, 2)):
        assert len(products(hidden_parts(module, CPU.replace(cores=cores), GraphChoices({key: "parts"})))) == count
