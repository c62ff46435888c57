"""The converter of the fused recurrent layers: several layers, one or two directions, all weights in one vector."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.frontend.core.builder import dtype_of, evaluate, rank_of, size_at, sizes_of
from tilewright.frontend.core.sequences import Cell, gru, in_order, lstm, rnn
from tilewright.frontend.mxnet.node import Node, converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UnsupportedError, UserError

_GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}
_ORDERS = {1: (0,), 4: (0, 3, 1, 2), 3: (1, 0, 2)}
"""Gates of MXNet (input, forget, cell, output; reset, update, new) in the order of the operators."""


class _Vector:
    """Takes weights off the front of the vector that holds them all."""

    def __init__(self, node: Node) -> None:
        self.b = node.b
        known = evaluate(node.input(1))
        self.values: GraphExpr = node.input(1) if known is None else node.b.constant(known.ravel(), str(known.dtype))
        self.at = 0

    def take(self, *shape: int) -> GraphExpr:
        count = 1
        for size in shape:
            count *= size
        length = size_at(self.values, 0)
        if self.at + count > length:
            raise UserError(f"the weights of RNN end early: {self.at + count} numbers are wanted, {length} are there")
        self.at += count
        return self.b.reshape(self.b.slice_axis(self.values, 0, self.at - count, self.at), shape)


def _cells(node: Node, mode: str, features: int, layers: int, directions: int, size: int) -> Iterator[Cell]:
    """The cells of all layers and directions: first all weights, then all biases."""
    gates, vector = _GATES[mode], _Vector(node)
    weights: list[tuple[GraphExpr, GraphExpr]] = []
    for number in range(layers):
        for _ in range(directions):
            inputs = features if number == 0 else size * directions
            weights.append((vector.take(gates * size, inputs), vector.take(gates * size, size)))
    b, order = node.b, _ORDERS[gates]
    for weight, recurrent in weights:
        first, second = (in_order(b, vector.take(gates * size), order) for _ in range(2))
        weight, recurrent = (in_order(b, value, order) for value in (weight, recurrent))
        if mode != "gru":
            yield Cell(weight, recurrent, b.add(first, second))
            continue
        shared = b.add(b.slice_axis(first, 0, 0, 2 * size), b.slice_axis(second, 0, 0, 2 * size))
        entering = b.concatenate([shared, b.slice_axis(first, 0, 2 * size, 3 * size)], 0)
        yield Cell(weight, recurrent, entering, b.slice_axis(second, 0, 2 * size, 3 * size))


@converter("RNN")
def recurrent(node: Node) -> list[GraphExpr]:
    """All hidden states of the last layer, and the last states of all layers."""
    data, b, mode = node.input(0), node.b, node.text("mode")
    if mode not in _GATES or rank_of(data) != 3:
        raise UserError(f"RNN of the mode {mode!r} on data of {rank_of(data)} dimensions")
    if node.integer("projection_size", 0) or node.has("lstm_state_clip_min"):
        raise UnsupportedError("RNN with a projection, or with a state that is clipped")
    layers, size, directions = node.integer("num_layers"), node.integer("state_size"), 1 + node.flag("bidirectional")
    states = [node.input(2), *([node.input(3)] if mode == "lstm" else [])]
    lengths = node.input(2 + len(states)) if node.flag("use_sequence_length") else None
    cells = list(_cells(node, mode, size_at(data, 2), layers, directions, size))
    last: list[list[GraphExpr]] = [[] for _ in states]
    for number in range(layers):
        sides: list[GraphExpr] = []
        for direction in range(directions):
            at = number * directions + direction
            first = [_state(node, state, data, at, size) for state in states]
            results = _direction(node, mode, data, cells[at], first, direction == 1, lengths)
            sides.append(results[0])
            for column, value in zip(last, results[1:], strict=True):
                column.append(value)
        data = b.concatenate(sides, 2)
    if node.flag("state_outputs"):
        return [data, *(b.stack(column, 0) for column in last)]
    return [data]


def _state(node: Node, states: GraphExpr, data: GraphExpr, at: int, size: int) -> GraphExpr:
    state = node.b.select(states, 0, at)
    return node.b.broadcast_to(node.b.cast(state, dtype_of(data)), (sizes_of(data)[1], size))


def _direction(
    node: Node,
    mode: str,
    data: GraphExpr,
    cell: Cell,
    first: list[GraphExpr],
    backward: bool,
    lengths: GraphExpr | None,
) -> list[GraphExpr]:
    b = node.b
    if lengths is not None:
        raise UnsupportedError("RNN of sequences that differ in length", hint="export it without use_sequence_length")
    match mode:
        case "lstm":
            return lstm(b, data, cell, first[0], first[1], backward)
        case "gru":
            return gru(b, data, cell, first[0], backward)
    return rnn(b, data, cell, first[0], mode.removeprefix("rnn_"), backward)
