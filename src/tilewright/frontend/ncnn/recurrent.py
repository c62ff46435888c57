"""Converters of recurrent layers and of attention. Data are (steps, features)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import rank_of, size_at, sizes_of
from tilewright.frontend.core.sequences import Cell, gru, in_order, lstm, rnn, zero_state
from tilewright.frontend.ncnn.layer import Layer, converter
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UnsupportedError, UserError

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_DIRECTIONS = {0: (False,), 1: (True,), 2: (False, True)}


@converter(*_GATES)
def recurrent(layer: Layer) -> list[GraphExpr]:
    """One direction, the other, or both next to each other; states may come in and go out."""
    data, b, gates = layer.input(0), layer.b, _GATES[layer.kind]
    outputs, count, kind = layer.count(0, 0, 1), layer.count(1), layer.integer(2)
    if rank_of(data) != 2 or kind not in _DIRECTIONS or layer.integer(8):
        raise UnsupportedError(f"{layer.kind} of data of {rank_of(data)} dimensions, or of integers")
    if layer.kind == "LSTM" and layer.count(3, outputs, 1) != outputs:
        raise UnsupportedError("LSTM with a projection")
    ways, features = _DIRECTIONS[kind], size_at(data, 1)
    if count != len(ways) * gates * outputs * features:
        raise UserError(f"{count} weights do not fit {features} features and {outputs} outputs")
    weight = layer.numbers.marked(len(ways), gates * outputs, features)
    biases = layer.numbers.marked(len(ways), 4 if layer.kind != "RNN" else 1, outputs)
    inner = layer.numbers.marked(len(ways), gates * outputs, outputs)
    if np.int8 in (weight.dtype, biases.dtype, inner.dtype):
        raise UnsupportedError(f"{layer.kind} with weights of 8 bits")
    whole = b.reshape(data, (sizes_of(data)[0], 1, features))
    states = 2 if layer.kind == "LSTM" else 1
    sides: list[GraphExpr] = []
    last: list[list[GraphExpr]] = [[] for _ in range(states)]
    for at, backward in enumerate(ways):
        first = [_state(layer, index, at, whole, outputs) for index in range(states)]
        results = _run(layer, whole, (weight[at], inner[at], biases[at]), first, backward)
        sides.append(b.reshape(results[0], (sizes_of(data)[0], outputs)))
        for column, value in zip(last, results[1:], strict=True):
            column.append(value)
    joined = b.concatenate(sides, 1)
    return [joined, *(b.concatenate(column, 0) for column in last)][: max(1, layer.tops)]


def _state(layer: Layer, index: int, direction: int, data: GraphExpr, size: int) -> GraphExpr:
    if not layer.has_input(1 + index):
        return zero_state(layer.b, data, size)
    value = layer.b.reshape(layer.input(1 + index), (len(_DIRECTIONS[layer.integer(2)]), size))
    return layer.b.slice_axis(value, 0, direction, direction + 1)


def _run(
    layer: Layer, data: GraphExpr, weights: Sequence[np.ndarray], first: Sequence[GraphExpr], backward: bool
) -> list[GraphExpr]:
    b = layer.b
    weight, inner = (layer.constant_of(item) for item in weights[:2])
    bias = weights[2]
    match layer.kind:
        case "LSTM":
            order: tuple[int, ...] = (0, 2, 1, 3)
            cell = Cell(
                in_order(b, weight, order),
                in_order(b, inner, order),
                in_order(b, layer.constant_of(bias.ravel()), order),
            )
            return lstm(b, data, cell, first[0], first[1], backward)
        case "GRU":
            order = (1, 0, 2)
            entering = layer.constant_of(np.concatenate([bias[1], bias[0], bias[2]]))
            cell = Cell(in_order(b, weight, order), in_order(b, inner, order), entering, layer.constant_of(bias[3]))
            return gru(b, data, cell, first[0], backward)
    return rnn(b, data, Cell(weight, inner, layer.constant_of(bias.ravel())), first[0], "tanh", backward)


@converter("MultiHeadAttention")
def attention(layer: Layer) -> GraphExpr:
    """Projections of queries, keys and values, attention of each head, and a projection of what it gives."""
    b, width, heads = layer.b, layer.count(0, 0, 1), layer.count(1, 1, 1)
    count = layer.count(2)
    if width % heads or count % width or layer.integer(18):
        raise UserError(f"attention of {heads} heads in {width} numbers with {count} weights")
    features, keys, values = count // width, layer.count(3, width, 1), layer.count(4, width, 1)
    masked = bool(layer.integer(5))
    given = [value for value in layer.inputs if value is not None]
    mask = given.pop() if masked else None
    while len(given) < 3:
        given.append(given[-1])
    scale = layer.number(6, (width // heads) ** -0.5)

    def projected(value: GraphExpr, inputs: int, outputs: int) -> GraphExpr:
        weight, bias = layer.marked(outputs, inputs), layer.plain(outputs)
        return b.add(layer.call("matmul", value, weight, transpose_b=True), bias)

    def by_head(value: GraphExpr) -> GraphExpr:
        shape: tuple[Size, ...] = (sizes_of(value)[0], heads, width // heads)
        return b.transpose(b.reshape(value, shape), (1, 0, 2))

    query = by_head(b.multiply(projected(given[0], features, width), scale))
    key = by_head(projected(given[1], keys, width))
    value = by_head(projected(given[2], values, width))
    scores = layer.call("matmul", query, key, transpose_b=True)
    if mask is not None:
        scores = b.add(scores, mask)
    taken = layer.call("matmul", layer.call("nn.softmax", scores, axis=2), value)
    rows = b.reshape(b.transpose(taken, (1, 0, 2)), (sizes_of(given[0])[0], width))
    return projected(rows, width, features)
