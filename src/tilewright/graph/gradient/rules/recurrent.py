"""Recurrent layers: back through time, step by step, from the states that the operator gives.

The states before each step are rows of the result, so that no step is computed from the start again: only its gates
are. The number of steps must be known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.graph.gradient.expressions import (
    add,
    compare,
    concatenate,
    divide,
    expand,
    item,
    matmul,
    multiply,
    number,
    reshape,
    sizes_of,
    slice_axis,
    subtract,
    tuple_of,
    where,
    zeros_like,
)
from tilewright.graph.gradient.pullback import pull_back
from tilewright.graph.gradient.registry import Cotangents, reverse_rule
from tilewright.graph.ir.expr import Call, GraphExpr
from tilewright.graph.ir.rewrite import make
from tilewright.graph.ops.recurrent import GruAttributes, LstmAttributes, RecurrentAttributes
from tilewright.ir.types import TupleType
from tilewright.support.errors import UserError

ACTIVATIONS: dict[str, Callable[[GraphExpr, float, float], GraphExpr]] = {
    "sigmoid": lambda x, a, b: make("sigmoid", x),
    "tanh": lambda x, a, b: make("tanh", x),
    "relu": lambda x, a, b: make("nn.relu", x),
    "softplus": lambda x, a, b: make("nn.softplus", x),
    "softsign": lambda x, a, b: divide(x, add(make("abs", x), 1)),
    "affine": lambda x, a, b: add(multiply(x, a), b),
    "leaky_relu": lambda x, a, b: make("nn.leaky_relu", x, alpha=a),
    "thresholded_relu": lambda x, a, b: where(compare("greater", x, a), x, 0),
    "scaled_tanh": lambda x, a, b: multiply(make("tanh", multiply(x, b)), a),
    "hard_sigmoid": lambda x, a, b: make("nn.hard_sigmoid", x, alpha=a, beta=b),
    "elu": lambda x, a, b: make("nn.elu", x, alpha=a),
}
"""The activation functions of gates, as expressions."""

Step = Callable[..., list[GraphExpr]]
"""(one step's data, states before it, weights...) -> the states after it."""


def _functions(attributes: RecurrentAttributes) -> list[Callable[[GraphExpr], GraphExpr]]:
    def make_one(name: str, alpha: float, beta: float) -> Callable[[GraphExpr], GraphExpr]:
        def apply(x: GraphExpr) -> GraphExpr:
            limit = attributes.clip
            clipped = x if limit is None else make("clip", x, minimum=-limit, maximum=limit)
            return ACTIVATIONS[name](clipped, alpha, beta)

        return apply

    return [make_one(*entry) for entry in attributes.activations]


def _gate(gates: GraphExpr, place: int) -> GraphExpr:
    """One gate of (batch, gates, size)."""
    batch, _, size = sizes_of(gates)
    return reshape(slice_axis(gates, 1, place, place + 1), (batch, size))


def _products(state: GraphExpr, weights: GraphExpr) -> GraphExpr:
    """A state times the weights of all gates: (batch, gates, size)."""
    gates, size, depth = sizes_of(weights)
    flat = reshape(weights, (int_product(gates, size), depth))
    return reshape(matmul(state, flat, transpose_b=True), (sizes_of(state)[0], gates, size))


def int_product(a: object, b: object) -> int:
    """The product of two known sizes."""
    if not isinstance(a, int) or not isinstance(b, int):
        raise UserError("the gradient of a recurrent layer whose size is not known", hint="give the shapes of weights")
    return a * b


def _through_time(
    call: Call, states: Sequence[int], shared: Sequence[int], lengths: int | None, step: Step, given: Sequence[object]
) -> list[GraphExpr | None]:
    """The cotangents of the inputs: `states` and `shared` are the places of initial states and of weights."""
    attributes = call.attributes
    assert isinstance(attributes, RecurrentAttributes)
    data = call.args[0]
    steps = sizes_of(data)[0]
    if not isinstance(steps, int):
        raise UserError(
            "the gradient of a recurrent layer whose number of steps is not known",
            where=None if call.span is None else str(call.span),
            hint="import the model with the length of its sequences",
        )
    rows = [item(call, place) for place in range(len(states))] if isinstance(call.type, TupleType) else [call]
    weights = [call.args[place] for place in shared]
    going: list[GraphExpr | None] = [_row(part, steps) for part in given]
    of_shared: list[GraphExpr | None] = [None] * len(weights)
    of_data: list[GraphExpr | None] = [None] * steps
    for row in reversed(range(steps)):
        number_of = steps - 1 - row if attributes.backward else row
        before = [_state(part, row) for part in rows]
        entered = reshape(slice_axis(data, 0, number_of, number_of + 1), sizes_of(data)[1:])
        running = None if lengths is None else _running(call.args[lengths], number_of)
        pulled = _step_back(step, entered, before, weights, running, going)
        of_data[number_of] = pulled[0]
        after = pulled[1 : 1 + len(states)]
        going = [_sum(new, _row(part, row)) for new, part in zip(after, given, strict=True)]
        of_shared = [_sum(old, new) for old, new in zip(of_shared, pulled[1 + len(states) :], strict=True)]
    results: list[GraphExpr | None] = [None] * len(call.args)
    zero = zeros_like(slice_axis(data, 0, 0, 1)) if steps else None
    parts = [zero if part is None else expand(part, [0]) for part in of_data]
    results[0] = concatenate([part for part in parts if part is not None], 0) if steps else None
    for place, value in zip((*states, *shared), (*going, *of_shared), strict=True):
        results[place] = value
    return results


def _step_back(
    step: Step,
    entered: GraphExpr,
    before: list[GraphExpr],
    weights: list[GraphExpr],
    running: GraphExpr | None,
    going: Sequence[GraphExpr | None],
) -> list[GraphExpr | None]:
    """The cotangents of one step's data, states and weights."""
    if all(part is None for part in going):
        return [None] * (1 + len(before) + len(weights))

    def build(*values: GraphExpr) -> GraphExpr:
        count = len(before)
        states = list(values[1 : 1 + count])
        after = step(values[0], states, *values[1 + count : 1 + count + len(weights)])
        if running is not None:
            flags = values[-1]
            after = [where(flags, new, old) for new, old in zip(after, states, strict=True)]
        return tuple_of(after)

    inputs = [entered, *before, *weights, *([] if running is None else [running])]
    pulled = pull_back(build, inputs, going)
    return pulled if running is None else pulled[:-1]


def _row(given: object, row: int) -> GraphExpr | None:
    return None if given is None else _state(given, row)


def _state(rows: object, row: int) -> GraphExpr:
    assert isinstance(rows, GraphExpr)
    return reshape(slice_axis(rows, 0, row, row + 1), sizes_of(rows)[1:])


def _running(lengths: GraphExpr, step: int) -> GraphExpr:
    return expand(make("greater", lengths, number(step, lengths.tensor_type.dtype)), [1])


def _sum(a: GraphExpr | None, b: GraphExpr | None) -> GraphExpr | None:
    if a is None or b is None:
        return b if a is None else a
    return add(a, b)


@reverse_rule("nn.lstm")
def lstm(call: Call, given: Sequence[GraphExpr | None]) -> Cotangents:
    """Back through the steps of a long short-term memory."""
    attributes = call.attributes
    assert isinstance(attributes, LstmAttributes)
    f, g, h = _functions(attributes)
    peeps = len(call.args) == 6

    def step(entered: GraphExpr, states: list[GraphExpr], weights: GraphExpr, *more: GraphExpr) -> list[GraphExpr]:
        hidden, cell = states
        gates = add(entered, _products(hidden, weights))

        def into(place: int, which: int, source: GraphExpr) -> GraphExpr:
            gate = _gate(gates, place)
            return add(gate, multiply(source, slice_axis(more[0], 0, which, which + 1))) if more else gate

        enter = f(into(0, 0, cell))
        forget = subtract(1, enter) if attributes.coupled else f(into(2, 2, cell))
        fresh = add(multiply(forget, cell), multiply(enter, g(_gate(gates, 3))))
        leave = f(into(1, 1, fresh))
        return [multiply(leave, h(fresh)), fresh]

    shared = (1, 5) if peeps else (1,)
    return _through_time(call, (2, 3), shared, 4 if len(call.args) > 4 else None, step, given)


@reverse_rule("nn.gru")
def gru(call: Call, given: GraphExpr) -> Cotangents:
    """Back through the steps of a gated recurrent unit."""
    attributes = call.attributes
    assert isinstance(attributes, GruAttributes)
    f, g = _functions(attributes)

    def step(entered: GraphExpr, states: list[GraphExpr], weights: GraphExpr, bias: GraphExpr) -> list[GraphExpr]:
        (old,) = states
        size = sizes_of(old)[1]
        gates = add(slice_axis(entered, 1, 0, 2), _products(old, slice_axis(weights, 0, 0, 2)))
        update, reset = f(_gate(gates, 0)), f(_gate(gates, 1))
        matrix = reshape(slice_axis(weights, 0, 2, 3), (size, size))
        if attributes.reset_after:
            product = multiply(reset, add(matmul(old, matrix, transpose_b=True), bias))
        else:
            product = add(matmul(multiply(reset, old), matrix, transpose_b=True), bias)
        candidate = g(add(_gate(entered, 2), product))
        return [add(multiply(subtract(1, update), candidate), multiply(update, old))]

    return _through_time(call, (2,), (1, 3), 4 if len(call.args) > 4 else None, step, [given])


@reverse_rule("nn.rnn")
def rnn(call: Call, given: GraphExpr) -> Cotangents:
    """Back through the steps of a plain recurrent network."""
    attributes = call.attributes
    assert isinstance(attributes, RecurrentAttributes)
    (f,) = _functions(attributes)

    def step(entered: GraphExpr, states: list[GraphExpr], weights: GraphExpr) -> list[GraphExpr]:
        return [f(add(_gate(entered, 0), _gate(_products(states[0], weights), 0)))]

    return _through_time(call, (2,), (1,), 3 if len(call.args) > 3 else None, step, [given])
