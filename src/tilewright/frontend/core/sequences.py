"""Recurrent layers over whole sequences of data (steps, batch, features): how importers call `nn.lstm` and its kin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.frontend.core.builder import Builder, dtype_of, rank_of, size_at, sizes_of
from tilewright.graph.ir.dimensions import add, multiply
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.support.errors import UserError

_PLAIN = {"sigmoid": ("sigmoid", 0.0, 0.0), "tanh": ("tanh", 0.0, 0.0), "relu": ("relu", 0.0, 0.0)}


@dataclass(frozen=True, slots=True)
class Cell:
    """The weights of a cell: (gates * size, features), (gates * size, size), and biases of the two products."""

    weight: GraphExpr
    recurrent: GraphExpr
    bias: GraphExpr | None
    inner_bias: GraphExpr | None = None


def in_order(builder: Builder, values: GraphExpr, order: Sequence[int]) -> GraphExpr:
    """Rows of gates in another order."""
    rows = size_at(values, 0)
    size = rows // len(order)
    parts = [builder.slice_axis(values, 0, gate * size, (gate + 1) * size) for gate in order]
    return builder.concatenate(parts, 0)


def _entering(builder: Builder, data: GraphExpr, cell: Cell, gates: int) -> GraphExpr:
    """What the data give each gate, for all steps at once: (steps, batch, gates, size)."""
    if rank_of(data) != 3:
        raise UserError(f"a recurrent layer needs data of 3 dimensions, it is {sizes_text(sizes_of(data))}")
    steps, batch, features = sizes_of(data)
    size = size_at(cell.recurrent, 1)
    expected = ((gates * size, features), (gates * size, size))
    found = (sizes_of(cell.weight), sizes_of(cell.recurrent))
    if found != expected:
        raise UserError(f"weights of a recurrent layer have the shapes {found}, not {expected}")
    flat = builder.reshape(data, (multiply(steps, batch), features))
    result = builder.call("matmul", flat, cell.weight, transpose_b=True)
    result = result if cell.bias is None else builder.call("add", result, cell.bias)
    return builder.reshape(result, (steps, batch, gates, size))


def zero_state(builder: Builder, data: GraphExpr, size: int) -> GraphExpr:
    """The state before the first step, where none is given."""
    return builder.filled(0, (sizes_of(data)[1], size), dtype_of(data))


def _results(builder: Builder, states: Sequence[GraphExpr], backward: bool) -> list[GraphExpr]:
    """The hidden state after each step, in the order of the steps, and each state after the last."""
    count, batch, size = sizes_of(states[0])
    steps = add(count, -1)
    if backward:
        whole = builder.call("slice", states[0], begin=(steps, 0, 0), end=(0, batch, size), strides=(-1, 1, 1))
    else:
        whole = builder.slice_axis(states[0], 0, 1, count)
    last = [builder.reshape(builder.slice_axis(rows, 0, steps, count), (batch, size)) for rows in states]
    return [whole, *last]


def _gates(builder: Builder, cell: Cell, gates: int) -> GraphExpr:
    size = size_at(cell.recurrent, 1)
    return builder.reshape(cell.recurrent, (gates, size, size))


def lstm(
    builder: Builder, data: GraphExpr, cell: Cell, hidden: GraphExpr, state: GraphExpr, backward: bool = False
) -> list[GraphExpr]:
    """Gates in the order input, output, forget, cell: all hidden states, the last one, the last cell."""
    entering = _entering(builder, data, cell, 4)
    functions = (_PLAIN["sigmoid"], _PLAIN["tanh"], _PLAIN["tanh"])
    both = builder.call(
        "nn.lstm", entering, _gates(builder, cell, 4), hidden, state, activations=functions, backward=backward
    )
    return _results(builder, [builder.item(both, 0), builder.item(both, 1)], backward)


def gru(
    builder: Builder, data: GraphExpr, cell: Cell, hidden: GraphExpr, backward: bool = False, reset_after: bool = True
) -> list[GraphExpr]:
    """Gates in the order update, reset, hidden: all hidden states, and the last one.

    The inner bias is of the hidden gate's product with the state.
    """
    size = size_at(cell.recurrent, 1)
    inner = builder.filled(0, (size,), dtype_of(data)) if cell.inner_bias is None else cell.inner_bias
    states = builder.call(
        "nn.gru",
        _entering(builder, data, cell, 3),
        _gates(builder, cell, 3),
        hidden,
        inner,
        activations=(_PLAIN["sigmoid"], _PLAIN["tanh"]),
        backward=backward,
        reset_after=reset_after,
    )
    return _results(builder, [states], backward)


def rnn(
    builder: Builder, data: GraphExpr, cell: Cell, hidden: GraphExpr, activation: str, backward: bool = False
) -> list[GraphExpr]:
    """The plain recurrent network: all hidden states, and the last one."""
    states = builder.call(
        "nn.rnn",
        _entering(builder, data, cell, 1),
        _gates(builder, cell, 1),
        hidden,
        activations=(_PLAIN[activation],),
        backward=backward,
    )
    return _results(builder, [states], backward)
