"""Recurrences: running sums, several states, steps with intermediate tensors and reductions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.te.running import run
from tilewright import te
from tilewright.ir import intrinsics
from tilewright.support.errors import UserError
from tilewright.te.tensor import Tensor
from tilewright.tir.interpreter import interpret
from tilewright.tir.schedule import ScheduleError


def _cumsum(steps: Any, n: int) -> tuple[Tensor, Tensor]:
    x = te.placeholder((steps, n), name="X")
    state = te.placeholder((steps, n), name="state")
    first = te.compute((1, n), lambda _, i: x[0, i], name="first")
    step = te.compute((steps, n), lambda t, i: state[t - 1, i] + x[t, i], name="step")
    result = te.scan(first, step, state, inputs=[x], name="cumsum")
    assert isinstance(result, Tensor)
    return x, result


def test_running_sum() -> None:
    x, result = _cumsum(5, 3)
    values = np.arange(15, dtype=np.float32).reshape(5, 3)
    (out,) = run([x, result], values)
    np.testing.assert_array_equal(out, values.cumsum(axis=0))


def test_running_sum_of_symbolic_length() -> None:
    x, result = _cumsum(te.var("T"), 2)
    for steps in (1, 4):
        values = np.ones((steps, 2), np.float32)
        (out,) = run([x, result], values)
        np.testing.assert_array_equal(out, values.cumsum(axis=0))


def test_two_initial_rows() -> None:
    state = te.placeholder((8,), "int64", "state")
    first = te.compute((2,), lambda t: te.cast(t, "int64"), name="first")
    step = te.compute((8,), lambda t: state[t - 1] + state[t - 2], name="step")
    result = te.scan(first, step, state, name="fibonacci")
    (out,) = run([result])  # type: ignore[list-item]
    assert out.tolist() == [0, 1, 1, 2, 3, 5, 8, 13]


def test_two_states_and_what_is_outside() -> None:
    """The state of one step may use the state of the other; what does not depend on the state is computed before."""
    x = te.placeholder((6,), "int32", "X")
    doubled = te.compute((6,), lambda i: x[i] * 2, name="doubled")
    a_state, b_state = te.placeholder((6,), "int32", "a"), te.placeholder((6,), "int32", "b")
    a_first = te.compute((1,), lambda _: te.const(1, "int32"), name="a_first")
    b_first = te.compute((1,), lambda _: te.const(0, "int32"), name="b_first")
    a_step = te.compute((6,), lambda t: b_state[t - 1] + doubled[t], name="a_step")
    b_step = te.compute((6,), lambda t: a_state[t - 1] - b_state[t - 1], name="b_step")
    a, b = te.scan([a_first, b_first], [a_step, b_step], [a_state, b_state], name="pair")  # type: ignore[misc]
    values = np.array([3, 1, 4, 1, 5, 9], np.int32)
    wanted_a, wanted_b = [1], [0]
    for t in range(1, 6):
        previous_a, previous_b = wanted_a[-1], wanted_b[-1]
        wanted_a.append(previous_b + 2 * values[t])
        wanted_b.append(previous_a - previous_b)
    # In either order, and with the tensor from outside as an output as well.
    got_a, got_b = run([x, a, b], values)
    assert (got_a.tolist(), got_b.tolist()) == (wanted_a, wanted_b)
    got_b, got_a, got_doubled = run([x, b, a, doubled], values)
    assert (got_a.tolist(), got_b.tolist()) == (wanted_a, wanted_b)
    assert got_doubled.tolist() == (values * 2).tolist()


def test_recurrent_network_step() -> None:
    """h[t] = tanh(W h[t-1] + x[t]): a reduction and an elementwise stage inside each step."""
    steps, n = 4, 3
    x = te.placeholder((steps, n), name="X")
    w = te.placeholder((n, n), name="W")
    state = te.placeholder((steps, n), name="h")
    first = te.compute((1, n), lambda _, i: intrinsics.tanh(x[0, i]), name="first")
    k = te.reduce_axis((0, n), "k")
    product = te.compute((steps, n), lambda t, i: te.sum(w[i, k] * state[t - 1, k], axis=k), name="product")
    step = te.compute((steps, n), lambda t, i: intrinsics.tanh(product[t, i] + x[t, i]), name="step")
    hidden = te.scan(first, step, state, inputs=[x, w], name="hidden")
    out_projection = te.compute((steps,), lambda t: hidden[t, 0] * 2, name="projection")  # type: ignore[index]
    rng = np.random.default_rng(0)
    values, weights = (rng.standard_normal(shape).astype(np.float32) for shape in ((steps, n), (n, n)))
    wanted = [np.tanh(values[0])]
    for t in range(1, steps):
        wanted.append(np.tanh(weights @ wanted[-1] + values[t]))
    got_hidden, got_projection = run([x, w, hidden, out_projection], values, weights)  # type: ignore[list-item]
    np.testing.assert_allclose(got_hidden, np.stack(wanted), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got_projection, got_hidden[:, 0] * 2)


S = te.placeholder((4, 2), name="S")
FIRST = te.compute((1, 2), lambda _, i: te.const(0.0), name="first")
STEP = te.compute((4, 2), lambda t, i: S[t - 1, i] + 1.0, name="step")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: te.scan([FIRST], [STEP, STEP], [S]), "needs as many init and update tensors as states"),
        (lambda: te.scan(FIRST, STEP, STEP), "te.scan: state step must be a placeholder"),
        (
            lambda: te.scan(FIRST, te.compute((3, 2), lambda t, i: S[t, i]), S),
            "te.scan: init, update and state of S differ in shape",
        ),
        (
            lambda: te.scan(te.compute((1, 2), lambda t, i: te.const(0, "int32")), STEP, S),
            "te.scan: init, update and state of S differ in type",
        ),
        (
            lambda: te.scan(te.compute((te.var("n"), 2), lambda t, i: te.const(0.0)), STEP, S),
            "te.scan: the number of initial rows must be a constant",
        ),
        (lambda: te.scan([FIRST, FIRST], [STEP, STEP], [S, te.placeholder((4, 2))]), "one update tensor is given"),
        (
            lambda: te.scan(FIRST, te.compute((4, 2), lambda t, i: _flat()[i], name="step"), S, name="loop"),
            "te.scan loop: step flat must be a computation whose first axis is time",
        ),
        (
            lambda: te.scan(FIRST, te.extern((4, 2), [S], lambda i, o: te.const(0), name="outside"), S),  # type: ignore[arg-type]
            "step outside must be a computation",
        ),
    ],
)
def test_messages(make: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        make()
    assert message in str(caught.value)


def _flat() -> Tensor:
    k = te.reduce_axis((0, 4), "k")
    return te.compute((2,), lambda i: te.sum(S[k, i], axis=k), name="flat")


def _recurrence(reduced: bool = False) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Row t from row t - 1 by three steps (or by a product with what a step makes of row t - 1)."""
    x = te.placeholder((6, 5), name="X", dtype="int32")
    state = te.placeholder((6, 5), name="S", dtype="int32")
    first = te.compute((1, 5), lambda _, i: x[0, i], name="first")
    halved = te.compute((6, 5), lambda t, i: state[t - 1, i] // 2, name="halved")
    if reduced:
        k = te.reduce_axis((0, 5), name="k")
        step = te.compute((6, 5), lambda t, i: te.sum(halved[t, k] * x[t, i], axis=k), name="step")
        return x, te.scan(first, step, state, inputs=[x]), [halved, step]
    added = te.compute((6, 5), lambda t, i: halved[t, 4 - i] + x[t, i], name="added")
    step = te.compute((6, 5), lambda t, i: te.maximum(added[t, i], -3), name="step")
    return x, te.scan(first, step, state, inputs=[x]), [halved, added, step]


@pytest.mark.parametrize("order", [[0], [1], [0, 1], [1, 0]])
def test_steps_of_a_scan_are_inlined(order: list[int]) -> None:
    x, out, steps = _recurrence()
    plain = te.create_prim_func([x, out])
    s = te.create_schedule(out.op)
    for number in order:
        s[steps[number]].compute_inline()
    if len(order) == 2:
        s[steps[2]].vectorize(steps[2].op.axis[1])
    array = np.random.default_rng(0).integers(-9, 10, (6, 5)).astype("int32")
    expected, found, compiled = (np.zeros((6, 5), "int32") for _ in range(3))
    interpret(plain, array, expected)
    interpret(te.lower(s, [x, out]), array, found)
    tw.build(s, [x, out])(array, compiled)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(compiled, expected)


def test_a_product_does_not_take_in_what_it_writes() -> None:
    _, out, (halved, _) = _recurrence(reduced=True)
    s = te.create_schedule(out.op)
    with pytest.raises(ScheduleError, match="the reduction of block step would read scan, which it writes"):
        s[halved].compute_inline()
