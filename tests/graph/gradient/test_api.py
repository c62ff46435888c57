"""grad, value_and_grad, vjp and jvp: what they take and give, what they refuse, and how they grow."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tilewright as tw
from tests.graph.gradient.checks import check_reverse
from tests.graph.helpers import function, op, var
from tilewright.graph.gradient import lift_constants, parameters_of
from tilewright.graph.gradient.registry import forward_rule, gradient_of, reverse_rule
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, Function, GraphExpr, Tuple, TupleGet, Var, constant
from tilewright.graph.ir.traverse import post_order
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.support.errors import UserError
from tilewright.support.span import Span


def squares(dtype: str = "float64") -> Function:
    x, w = var("x", 3, dtype=dtype), var("w", 3, dtype=dtype)
    return function([x, w], op("sum", op("multiply", w, op("multiply", x, x)), axes=(0,)))


X, W = np.array([1.0, 2.0, 3.0]), np.array([0.5, -1.0, 2.0])


def test_grad_gives_one_tensor_or_a_tuple() -> None:
    np.testing.assert_allclose(evaluate(tw.grad(squares(), "x"), X, W), 2 * X * W)
    np.testing.assert_allclose(evaluate(tw.grad(squares(), 1), X, W), X * X)
    both = evaluate(tw.grad(squares()), X, W)
    assert isinstance(both, tuple)
    np.testing.assert_allclose(both, [2 * X * W, X * X])
    turned = evaluate(tw.grad(squares(), ["w", 0]), X, W)
    np.testing.assert_allclose(turned, [X * X, 2 * X * W])


def test_value_and_grad_gives_the_value_first_and_names_its_outputs() -> None:
    program = tw.value_and_grad(squares())
    value, x, w = evaluate(program, X, W)
    np.testing.assert_allclose(value, (W * X * X).sum())
    np.testing.assert_allclose([x, w], [2 * X * W, X * X])
    assert program.attributes["output_names"] == ("output", "gradient_x", "gradient_w")


def test_further_outputs_come_behind_the_gradients() -> None:
    x = var("x", 3, dtype="float64")
    loss = op("sum", op("sin", x), axes=(0,))
    program = function([x], Tuple((loss, op("exp", x))))
    value, gradient, more = evaluate(tw.value_and_grad(program, has_aux=True), X)
    np.testing.assert_allclose(value, np.sin(X).sum())
    np.testing.assert_allclose(gradient, np.cos(X))
    np.testing.assert_allclose(more, np.exp(X))
    gradient, more = evaluate(tw.grad(program, has_aux=True), X)
    np.testing.assert_allclose(gradient, np.cos(X))
    with pytest.raises(UserError, match="gives 2 outputs"):
        tw.grad(program)
    with pytest.raises(UserError, match="nothing beside it"):
        tw.grad(squares(), has_aux=True)


def test_vjp_and_jvp_take_and_give_one_tensor_for_each_float() -> None:
    x, n = var("x", 2, dtype="float64"), var("n", 2, dtype="int64")
    scaled = op("multiply", x, op("cast", n, dtype=x.tensor_type.dtype))
    program = function([x, n], Tuple((op("sin", scaled), op("add", n, n), op("exp", x))))
    backward = tw.vjp(program)
    assert [param.name for param in backward["main"].params] == ["x", "n", "cotangent_0", "cotangent_2"]
    assert len(backward.attributes["output_names"]) == 4
    forward = tw.jvp(program)
    assert [param.name for param in forward["main"].params] == ["x", "n", "tangent_x"]
    check_reverse(program, [np.array([0.3, 0.4]), np.array([2, 3])])


def test_an_input_that_is_not_used_has_a_gradient_of_zeros() -> None:
    x, y = var("x", 2, dtype="float64"), var("y", 3, dtype="float64")
    program = function([x, y], op("sum", x, axes=(0,)))
    np.testing.assert_array_equal(evaluate(tw.grad(program, "y"), X[:2], X), np.zeros(3))


def test_integers_stop_gradients() -> None:
    x = var("x", 3, dtype="float64")
    rounded = op("cast", op("cast", x, dtype=constant(0).dtype), dtype=x.tensor_type.dtype)
    program = function([x], op("sum", op("multiply", x, rounded), axes=(0,)))
    np.testing.assert_array_equal(evaluate(tw.grad(program), X + 0.5), [1, 2, 3])


def test_stop_gradient_makes_a_constant_of_a_value() -> None:
    x = var("x", 3, dtype="float64")
    program = function([x], op("sum", op("multiply", x, op("stop_gradient", op("exp", x))), axes=(0,)))
    np.testing.assert_allclose(evaluate(tw.grad(program), X), np.exp(X))
    np.testing.assert_allclose(tw.compile(tw.grad(program), threads=1)(X), np.exp(X))


def named(value: float, name: str) -> GraphExpr:
    made = constant(np.full(3, value))
    made.span = Span(name)
    return made


def test_constants_can_be_differentiated_by_name() -> None:
    x = var("x", 3, dtype="float64")
    layer = op("add", op("multiply", x, named(2.0, "layer.weight")), named(1.0, "layer.bias"))
    module = IRModule([function([x], op("sum", op("multiply", layer, layer), axes=(0,)))])
    assert list(parameters_of(module)) == ["layer.weight", "layer.bias"]
    program = tw.grad(module, "layer.weight")
    assert [param.name for param in program["main"].params] == ["x", "layer.weight"]
    np.testing.assert_allclose(evaluate(program, X, np.full(3, 2.0)), 2 * (2 * X + 1) * X)
    lifted, values = lift_constants(module)
    assert list(values) == ["layer.weight", "layer.bias"]
    np.testing.assert_allclose(evaluate(lifted, X, *values.values()), evaluate(module, X))
    with pytest.raises(UserError, match="no float constant named 'nothing'"):
        lift_constants(module, ["nothing"])
    with pytest.raises(UserError, match="no input and no constant named 'nothing'"):
        tw.grad(module, "nothing")


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (lambda: tw.grad(vector()), "float scalar"),
        (lambda: tw.grad(squares(), 7), "there is no input 7"),
        (lambda: tw.grad(whole_input(), "n"), "only floats have gradients"),
        (lambda: tw.grad(whole_output()), "float scalar"),
        (lambda: tw.vjp(whole_output()), "no floats: there is nothing to differentiate"),
        (lambda: tw.jvp(whole_output()), "no floats: there is nothing to differentiate"),
        (lambda: tw.grad(no_floats()), "no input of the program is of a floating-point type"),
        (lambda: tw.grad(bits()), "reinterpret is not differentiable: bits are no numbers"),
    ],
)
def test_what_cannot_be_differentiated_says_why(transform: Callable[[], IRModule], message: str) -> None:
    with pytest.raises(UserError, match=message):
        transform()


def vector() -> Function:
    x = var("x", 3)
    return function([x], op("sin", x))


def whole_input() -> Function:
    x, n = var("x"), var("n", dtype="int64")
    return function([x, n], op("sin", x))


def whole_output() -> Function:
    x = var("x", 3)
    return function([x], op("argmax", x, axis=0))


def no_floats() -> Function:
    n = var("n", dtype="int64")
    return function([n], op("cast", n, dtype=tensor_type((), "float32").dtype))


def bits() -> Function:
    x = var("x")
    return function([x], op("reinterpret", x, dtype=x.tensor_type.dtype))


def test_rules_are_registered_once_and_for_operators_that_exist() -> None:
    with pytest.raises(UserError, match="registered twice"):
        reverse_rule("sin")(lambda call, cotangent: [cotangent])
    with pytest.raises(UserError, match="unknown operator"):
        reverse_rule("no.such.operator")(lambda call, cotangent: [cotangent])
    with pytest.raises(UserError, match="needs a reverse rule"):
        forward_rule("floor")(lambda call, tangents: call)
    assert gradient_of("no.such.operator") is None


def chain(length: int) -> Function:
    x = var("x", 2, dtype="float64")
    value: GraphExpr = x
    for turn in range(length):
        value = op("sin", value) if turn % 2 else op("multiply", value, x)
    return function([x], op("sum", value, axes=(0,)))


def test_long_chains_have_long_gradients_and_nothing_recurses() -> None:
    sizes = [len(post_order(tw.grad(chain(length))["main"])) for length in (200, 400, 800)]
    assert sizes[2] - sizes[1] == 2 * (sizes[1] - sizes[0])
    moved = [len(post_order(tw.jvp(chain(length))["main"])) for length in (100, 200, 300)]
    assert moved[2] - moved[1] == moved[1] - moved[0]
    assert len(post_order(tw.grad(chain(10_000))["main"])) > 20_000


def test_many_items_of_one_tuple_are_collected_in_one_go() -> None:
    x = var("x", 200, dtype="float64")
    parts = op("split", x, sizes=(1,) * 200, axis=0)
    joined = op("concatenate", *(op("sin", TupleGet(parts, place)) for place in range(200)), axis=0)
    program = tw.grad(function([x], op("sum", joined, axes=(0,))))
    values = np.linspace(0, 1, 200)
    np.testing.assert_allclose(evaluate(program, values), np.cos(values))


def test_open_sizes() -> None:
    n, m = Symbol("n"), Symbol("m")
    x, w, b = Var("x", tensor_type((n, m), "float64")), var("w", 3, 4, dtype="float64"), var("b", 4, dtype="float64")
    x = Var("x", tensor_type((n, 3), "float64"))
    hidden = op("tanh", op("add", op("matmul", x, w), b))
    program = function([x, w, b], op("mean", op("multiply", hidden, hidden), axes=(0, 1)))
    rng = np.random.default_rng(0)
    backward = tw.grad(program)
    for rows in (1, 5):
        values = [rng.standard_normal((rows, 3)), rng.standard_normal((3, 4)), rng.standard_normal(4)]
        check_reverse(program, values)
        expected = evaluate(backward, *values)
        for found, wanted in zip(tw.compile(backward, threads=1)(*values), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_a_dimension_that_may_be_one_is_checked_when_it_runs() -> None:
    n = Symbol("n")
    x, y = Var("x", tensor_type((n,), "float64")), var("y", 3, dtype="float64")
    program = tw.grad(function([x, y], op("sum", op("multiply", x, y), axes=(0,))), "x")
    np.testing.assert_allclose(evaluate(program, X, W), W)
    with pytest.raises(UserError):
        evaluate(program, X[:1], W)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_cotangents_have_the_type_of_their_values_and_long_sums_are_exact(dtype: str) -> None:
    rows = 4096
    x, b = var("x", rows, 2, dtype=dtype), var("b", 2, dtype=dtype)
    program = tw.vjp(function([x, b], op("add", x, b)), "b")
    kind = program["main"].body.type.items[1]
    assert str(kind.dtype) == dtype
    sums = [item for item in post_order(program["main"]) if isinstance(item, Call) and str(item.callee.name) == "sum"]
    assert [str(item.type.dtype) for item in sums] == ["float32"]


def test_models_of_mixed_precision() -> None:
    x, w = var("x", 4, 3, dtype="float32"), var("w", 3, 2, dtype="float32")
    half = tensor_type((), "float16").dtype
    product = op("matmul", op("cast", x, dtype=half), op("cast", w, dtype=half))
    loss = op("sum", op("cast", product, dtype=tensor_type((), "float32").dtype), axes=(0, 1))
    program = tw.grad(function([x, w], loss))
    values = [np.ones((4, 3), np.float32), np.full((3, 2), 0.5, np.float32)]
    dx, dw = evaluate(program, *values)
    assert dx.dtype == dw.dtype == np.float32
    np.testing.assert_allclose(dx, np.ones((4, 3)))
    np.testing.assert_allclose(dw, np.full((3, 2), 4.0))
