"""Gradients of tensor expressions against central differences in float64, and the programs that they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.te.running import Array, run
from tilewright import te
from tilewright.ir.intrinsics import call_extern
from tilewright.support.errors import UserError
from tilewright.te.tensor import ComputeOp, Tensor

RANDOM = np.random.default_rng(2)


def placeholder(*shape: int, name: str = "X", dtype: str = "float64") -> Tensor:
    return te.placeholder(shape, dtype, name)


def check(
    output: Tensor,
    inputs: Sequence[Tensor],
    others: Sequence[tuple[Tensor, Array]] = (),
    *,
    low: float = -2,
    high: float = 2,
) -> list[Array]:
    """Gradients of a random sum of the output's elements, against central differences."""
    values = [RANDOM.uniform(low, high, [int(dim.value) for dim in item.shape]) for item in inputs]
    head = te.placeholder(output.shape, "float64", "head")
    weights = RANDOM.uniform(-1, 1, [int(dim.value) for dim in output.shape])
    gradients = te.gradient(output, inputs, head)
    fixed, held = [item for item, _ in others], [value for _, value in others]
    got = run([*inputs, *fixed, head, *gradients], *values, *held, weights)
    for number, (value, found) in enumerate(zip(values, got, strict=True)):
        wanted = np.zeros_like(value)
        for place in np.ndindex(*value.shape):
            sides = []
            for step in (1e-5, -1e-5):
                moved = value.copy()
                moved[place] += step
                given = [moved if n == number else other for n, other in enumerate(values)]
                (result,) = run([*inputs, *fixed, output], *given, *held)
                sides.append(float(np.sum(result * weights)))
            wanted[place] = (sides[0] - sides[1]) / 2e-5
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    return got


def matmul(a: Tensor, b: Tensor) -> Tensor:
    k = te.reduce_axis((0, a.shape[1]), "k")
    return te.compute((a.shape[0], b.shape[1]), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "C")


def test_matmul() -> None:
    a, b = placeholder(3, 4, name="A"), placeholder(4, 2, name="B")
    check(matmul(a, b), [a, b])


UNARY: dict[str, Callable[[Any], Any]] = {
    "exp": te.exp,
    "exp2": te.exp2,
    "expm1": te.expm1,
    "sin": te.sin,
    "cos": te.cos,
    "tan": lambda x: te.tan(x * 0.5),
    "sinh": te.sinh,
    "cosh": te.cosh,
    "tanh": te.tanh,
    "asinh": te.asinh,
    "atan": te.atan,
    "sigmoid": te.sigmoid,
    "erf": te.erf,
    "abs": te.abs,
    "asin": lambda x: te.asin(x * 0.4),
    "acos": lambda x: te.acos(x * 0.4),
    "atanh": lambda x: te.atanh(x * 0.4),
    "log": lambda x: te.log(x + 3),
    "log2": lambda x: te.log2(x + 3),
    "log10": lambda x: te.log10(x + 3),
    "log1p": lambda x: te.log1p(x + 3),
    "sqrt": lambda x: te.sqrt(x + 3),
    "rsqrt": lambda x: te.rsqrt(x + 3),
    "acosh": lambda x: te.acosh(x + 4),
    "floor": lambda x: te.floor(x) + x,
    "square": lambda x: x * x,
    "cube": lambda x: x * x * x - x,
    "quotient": lambda x: x / (x * x + 1) - 1 / (x + 3),
    "power": lambda x: te.power(x + 3, x),
    "atan2": lambda x: te.atan2(x + 3, x * x + 1),
    "copysign": lambda x: te.copysign(x, -x),
    "fma": lambda x: te.fma(x, x, x * 2),
    "maximum": lambda x: te.maximum(x, x * x),
    "minimum": lambda x: te.minimum(x, te.const(0.3, "float64")),
    "select": lambda x: te.select(x > 0.25, x * x, te.sin(x)),
}


@pytest.mark.parametrize("name", UNARY)
def test_functions(name: str) -> None:
    x = placeholder(5)
    check(te.compute((5,), lambda i: UNARY[name](x[i])), [x])


INDICES: dict[str, tuple[tuple[int, ...], tuple[int, ...], Callable[..., tuple[Any, ...]]]] = {
    "transpose": ((3, 4), (4, 3), lambda i, j: (j, i)),
    "broadcast": ((3,), (2, 3), lambda i, j: (j,)),
    "reverse": ((6,), (6,), lambda i: (5 - i,)),
    "crop": ((7,), (4,), lambda i: (i + 2,)),
    "stride": ((9,), (4,), lambda i: (i * 2 + 1,)),
    "outer": ((9,), (3, 4), lambda i, j: (i * 2 + j,)),
    "window": ((9,), (4, 3), lambda i, k: (i * 2 + k,)),
    "dilated": ((13,), (4, 3), lambda i, k: (i * 2 + k * 3,)),
    "repeat": ((3,), (7,), lambda i: (i // 3,)),
    "tile": ((3,), (8,), lambda i: (i % 3,)),
    "reshape": ((6, 2), (3, 4), lambda i, j: ((i * 4 + j) // 2, (i * 4 + j) % 2)),
    "flatten": ((3, 4), (12,), lambda i: (i // 4, i % 4)),
    "shifted": ((4, 3), (9,), lambda i: ((i + 2) // 3, (i + 2) % 3)),
    "deeper": ((2, 3, 2), (3, 4), lambda i, j: ((i * 4 + j) // 6, (i * 4 + j) // 2 % 3, (i * 4 + j) % 2)),
    "diagonal": ((4, 4), (4,), lambda i: (i, i)),
    "corner": ((3, 4), (2,), lambda i: (1, i)),
    "far": ((3, 7), (3, 3), lambda i, j: (i, i + j * 2)),
    "overlap": ((4,), (3, 4), lambda i, j: ((i + j) // 2,)),
}


@pytest.mark.parametrize("name", INDICES)
def test_index_maps(name: str) -> None:
    source, result, index = INDICES[name]
    x = placeholder(*source)

    def element(*i: Any) -> Any:
        value = x[index(*i)]
        return value * value

    y = te.compute(result, lambda *i: element(*(axis.as_prim_expr() for axis in i)))
    check(y, [x])
    (gradient,) = te.gradient(y, [x])
    assert isinstance(gradient.op, ComputeOp) == (name != "overlap"), "whose map inverts is gathered"


def test_padding_reads_nothing_outside() -> None:
    x, w = placeholder(4), placeholder(6, name="W")
    padded = te.compute((6,), lambda i: te.select(te.all_of([i > 0, i < 5]), x[i - 1] * w[i], te.const(0.0, "float64")))
    check(padded, [x, w])


@pytest.mark.parametrize("reducer", [te.sum, te.max, te.min, te.prod])
def test_reductions(reducer: Any) -> None:
    x = placeholder(3, 5)
    k = te.reduce_axis((0, 5), "k")
    check(te.compute((3,), lambda i: reducer(x[i, k] * x[i, k] + x[i, k], axis=k)), [x])
    k = te.reduce_axis((1, 4), "k")
    check(te.compute((3,), lambda i: reducer(x[i, k], axis=k, where=k > i)), [x])


def test_equal_maxima_share() -> None:
    x = placeholder(4)
    k = te.reduce_axis((0, 4), "k")
    (got,) = run([x, *te.gradient(te.compute((), lambda: te.max(x[k], axis=k)), [x])], np.array([1.0, 3, 3, 2]))
    assert got.tolist() == [0, 0.5, 0.5, 0]


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_products_with_zeros(zeros: int) -> None:
    x = placeholder(4)
    k = te.reduce_axis((0, 4), "k")
    values = np.array([2.0, 3, 5, 7])
    values[:zeros] = 0
    (got,) = run([x, *te.gradient(te.compute((), lambda: te.prod(x[k], axis=k)), [x])], values)
    assert got.tolist() == [np.prod(np.delete(values, n)) for n in range(4)]


def test_at_ties() -> None:
    x, y = placeholder(3), placeholder(3, name="Y")
    relu = te.compute((3,), lambda i: te.maximum(x[i], te.const(0.0, "float64")))
    (got,) = run([x, *te.gradient(relu, [x])], np.array([-1.0, 0, 1]))
    assert got.tolist() == [0, 0, 1]
    largest = te.compute((3,), lambda i: te.maximum(x[i], y[i]))
    got, other = run([x, y, *te.gradient(largest, [x, y])], np.array([0.0, 1, 2]), np.ones(3))
    assert got.tolist() == [0, 0.5, 1] and other.tolist() == [1, 0.5, 0]


def test_convolution() -> None:
    x, w = placeholder(1, 2, 6, 5), placeholder(3, 2, 3, 2, name="W")
    c, h, v = (te.reduce_axis((0, n), name) for n, name in ((2, "c"), (3, "h"), (2, "v")))
    padded = te.compute(
        (1, 2, 8, 6),
        lambda n, i, y, z: te.select(
            te.all_of([y >= 1, y < 7, z >= 1]), x[n, i, y - 1, z - 1], te.const(0.0, "float64")
        ),
        "padded",
    )
    y = te.compute(
        (1, 3, 3, 5),
        lambda n, o, i, j: te.sum(padded[n, c, i * 2 + h, j + v] * w[o, c, h, v], axis=[c, h, v]),
        "conv",
    )
    check(y, [x, w])


def test_softmax_and_layer_norm() -> None:
    x = placeholder(2, 4)
    k, m, t, s = (te.reduce_axis((0, 4), name) for name in "kmts")
    top = te.compute((2,), lambda i: te.max(x[i, m], axis=m), "top")
    powers = te.compute((2, 4), lambda i, j: te.exp(x[i, j] - top[i]), "powers")
    total = te.compute((2,), lambda i: te.sum(powers[i, k], axis=k), "total")
    check(te.compute((2, 4), lambda i, j: powers[i, j] / total[i], "softmax"), [x])
    g = placeholder(4, name="G")
    mean = te.compute((2,), lambda i: te.sum(x[i, t] * 0.25, axis=t), "mean")
    spread = te.compute((2,), lambda i: te.sum((x[i, s] - mean[i]) * (x[i, s] - mean[i]) * 0.25, axis=s), "spread")
    normal = te.compute((2, 4), lambda i, j: (x[i, j] - mean[i]) * te.rsqrt(spread[i] + 1e-3) * g[j], "normal")
    check(normal, [x, g])


def test_reads_at_places_that_are_data() -> None:
    table, places = placeholder(5, 3, name="table"), te.placeholder((6,), "int64", "places")
    rows = te.compute((6, 3), lambda i, j: table[places[i], j] * table[places[i], j], "rows")
    check(rows, [table], [(places, np.array([1, 4, 1, 0, 1, 4]))])


def test_several_outputs_and_computed_inputs() -> None:
    x = placeholder(4)
    a = te.compute((4,), lambda i: x[i] * x[i], "a")
    b = te.compute((4,), lambda i: te.sin(a[i]) + x[3 - i], "b")
    values, heads = RANDOM.normal(size=4), [RANDOM.normal(size=4) for _ in range(2)]
    given = [te.placeholder((4,), "float64", name) for name in ("head_a", "head_b")]
    da, dx = te.gradient([a, b], [a, x], given)
    got_a, got_x = run([x, *given, da, dx], values, *heads)
    wanted = heads[0] + heads[1] * np.cos(values**2)
    np.testing.assert_allclose(got_a, wanted)
    np.testing.assert_allclose(got_x, wanted * 2 * values + heads[1][::-1])


def test_many_values_at_once() -> None:
    x = placeholder(4)
    first, second = te.compute_many((4,), lambda i: (x[i] * 2, x[i] * x[i]), "pair")
    y = te.compute((4,), lambda i: first[i] * second[i])
    check(y, [x])


def test_second_derivative() -> None:
    x = placeholder(3)
    y = te.compute((3,), lambda i: te.exp(x[i] * x[i]))
    (slope,) = te.gradient(y, [x])
    check(slope, [x], low=-1, high=1)


def test_independent_inputs_have_zero_gradients() -> None:
    x, y = placeholder(3), placeholder(2, name="Y")
    (got,) = run([y, *te.gradient(te.compute((3,), lambda i: x[i]), [y])], np.ones(2))
    assert got.tolist() == [0, 0]


def test_narrow_types_add_up_in_single_precision() -> None:
    x = te.placeholder((1,), "float16", "X")
    y = te.compute((4096,), lambda i: te.cast(x[0], "float32") * te.const(1.0, "float32"))
    (got,) = run([x, *te.gradient(y, [x])], np.ones(1, np.float16))
    assert got.dtype == np.float16 and got.tolist() == [4096]


def text_of(gradients: Sequence[Tensor], *args: Tensor) -> str:
    return str(te.create_prim_func([*args, *gradients]))


def test_the_gradient_of_a_product_is_a_product() -> None:
    a, b, head = (placeholder(8, 8, name=name) for name in ("A", "B", "head"))
    text = text_of(te.gradient(matmul(a, b), [a, b], head), a, b, head)
    assert "A_gradient[v_i0, v_i1] + head[v_i0, v_j] * B[v_i1, v_j]" in text
    assert "B_gradient[v_i0, v_i1] + head[v_i, v_i1] * A[v_i, v_i0]" in text
    assert " if " not in text


def test_the_gradient_of_a_convolution_for_its_weights_has_no_conditions() -> None:
    x, w, head = placeholder(2, 10), placeholder(3, 2, 3, name="W"), placeholder(3, 8, name="head")
    c, k = te.reduce_axis((0, 2), "c"), te.reduce_axis((0, 3), "k")
    y = te.compute((3, 8), lambda o, i: te.sum(x[c, i + k] * w[o, c, k], axis=[c, k]), "conv")
    text = text_of(te.gradient(y, [w], head), x, w, head)
    assert "W_gradient[v_i0, v_i1, v_i2] + head[v_i0, v_i] * X[v_i1, v_i + v_i2]" in text
    assert " if " not in text
    text = text_of(te.gradient(y, [x], head), x, w, head)
    assert "head[v_o, v_i1 - v_k] * W[v_o, v_i0, v_k]" in text


def test_compiled() -> None:
    a, b, head = (te.placeholder((32, 32), "float32", name) for name in ("A", "B", "head"))
    gradients = te.gradient(matmul(a, b), [a, b], head)
    built = tw.build(te.create_prim_func([a, b, head, *gradients]))
    values = [RANDOM.normal(size=(32, 32)).astype(np.float32) for _ in range(3)]
    got = [np.zeros((32, 32), np.float32) for _ in range(2)]
    built(*values, *got)
    np.testing.assert_allclose(got[0], values[2] @ values[1].T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got[1], values[0].T @ values[2], rtol=1e-4, atol=1e-4)


def test_open_sizes() -> None:
    n = te.var("n")
    a, b = te.placeholder((n, 4), "float64", "A"), te.placeholder((4, 3), "float64", "B")
    head = te.placeholder((n, 3), "float64", "head")
    gradients = te.gradient(matmul(a, b), [b], head)
    values = [RANDOM.normal(size=shape) for shape in ((5, 4), (4, 3), (5, 3))]
    (got,) = run([a, b, head, *gradients], *values)
    np.testing.assert_allclose(got, values[0].T @ values[2])


def test_what_has_no_derivative() -> None:
    x, whole = placeholder(4), te.placeholder((4,), "int32", "whole")
    y = te.compute((4,), lambda i: x[i] * 2, "y")
    k = te.reduce_axis((0, 4), "k")
    with pytest.raises(UserError, match="whole is int32, which has no derivative"):
        te.gradient(y, [whole])
    with pytest.raises(UserError, match="1 outputs but 2 heads"):
        te.gradient(y, [x], [x, x])
    with pytest.raises(UserError, match="is not like the output"):
        te.gradient(y, [x], placeholder(5))
    best = te.compute_many((), lambda: te.argmax((k, x[k]), axis=k), "best")
    with pytest.raises(UserError, match="the reducer of best has no known derivative"):
        te.gradient(best[1], [x])
    copied = te.extern((4,), [x], lambda ins, outs: te.const(0, "int32"), "copied", "float64")
    with pytest.raises(UserError, match="copied is written by hand"):
        te.gradient(copied, [x])
    bits = te.compute((4,), lambda i: te.reinterpret(te.reinterpret(x[i], "int64"), "float64") + x[i])
    assert te.gradient(bits, [x])
    called = te.compute((4,), lambda i: call_extern("float64", "f", x[i]), "called")
    with pytest.raises(UserError, match="the function call_extern has no derivative"):
        te.gradient(called, [x])


def _recurrent(steps: int, n: int) -> tuple[Tensor, list[Tensor]]:
    x, w = placeholder(steps, n), placeholder(n, n, name="W")
    state = te.placeholder((steps, n), "float64", "h")
    first = te.compute((1, n), lambda _, i: te.tanh(x[0, i]), "first")
    k = te.reduce_axis((0, n), "k")
    product = te.compute((steps, n), lambda t, i: te.sum(w[i, k] * state[t - 1, k], axis=k), "product")
    step = te.compute((steps, n), lambda t, i: te.tanh(product[t, i] + x[t, i]), "step")
    return te.scan(first, step, state, name="hidden"), [x, w]


def test_recurrent_network() -> None:
    hidden, inputs = _recurrent(4, 3)
    check(hidden, inputs)
    last = te.compute((3,), lambda i: hidden[3, i] * hidden[1, i], "last")
    check(last, inputs)


def test_one_step_is_its_first_row() -> None:
    hidden, inputs = _recurrent(1, 2)
    check(hidden, inputs)


def test_two_states_that_read_two_rows_back() -> None:
    x = placeholder(6)
    a_state, b_state = (te.placeholder((6,), "float64", name) for name in "ab")
    a_first, b_first = (te.compute((2,), lambda t: x[t] * x[t], f"{name}_first") for name in "ab")
    a_step = te.compute((6,), lambda t: te.sin(b_state[t - 2]) + x[t] * a_state[t - 1], "a_step")
    b_step = te.compute((6,), lambda t: a_step[t] * b_state[t - 1] * 0.5, "b_step")
    a, b = te.scan([a_first, b_first], [a_step, b_step], [a_state, b_state], name="pair")
    check(te.compute((6,), lambda t: a[t] + b[t] * b[t], "both"), [x])


def test_recurrence_compiles() -> None:
    steps, n = 5, 8
    x, state = te.placeholder((steps, n), "float32", "X"), te.placeholder((steps, n), "float32", "s")
    first = te.compute((1, n), lambda _, i: x[0, i], "first")
    step = te.compute((steps, n), lambda t, i: state[t - 1, i] * x[t, i], "step")
    products = te.scan(first, step, state, name="products")
    (gradient,) = te.gradient(products, [x])
    values = RANDOM.uniform(0.5, 2, (steps, n)).astype(np.float32)
    got = np.empty_like(values)
    tw.build(te.create_prim_func([x, gradient]))(values, got)
    totals = np.cumprod(values, axis=0)
    wanted = np.cumsum(totals[::-1], axis=0)[::-1] / values
    np.testing.assert_allclose(got, wanted, rtol=1e-4)


def test_states_read_at_no_fixed_distance() -> None:
    state = te.placeholder((6,), "float64", "s")
    x = placeholder(6)
    first = te.compute((1,), lambda t: x[t], "first")
    step = te.compute((6,), lambda t: state[t // 2] * x[t], "step")
    halves = te.scan(first, step, state, name="halves")
    with pytest.raises(UserError, match="a step of halves reads its state at no fixed distance in time"):
        te.gradient(halves, [x])
