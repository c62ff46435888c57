"""Converters of recurrent cells and sequences, by ONNX's LSTM, GRU and RNN."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.core.builder import shape_of, sizes_of
from tilewright.frontend.openvino.context import NodeContext
from tilewright.frontend.openvino.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UnsupportedError, UserError

_ORDERS = {"LSTM": (1, 3, 0, 2), "GRU": (0, 1, 2), "RNN": (0,)}
"""Where ONNX's gates are among OpenVINO's: those of an LSTM are forget, input, cell, output."""
_FUNCTIONS = {"sigmoid": "Sigmoid", "tanh": "Tanh", "relu": "Relu", "hardsigmoid": "HardSigmoid"}
_DEFAULTS = {"LSTM": "sigmoid,tanh,tanh", "GRU": "sigmoid,tanh", "RNN": "tanh"}


def _ordered(node: NodeContext, value: GraphExpr, kind: str, gates: int) -> GraphExpr:
    """Rows of gates (the second dimension) in ONNX's order."""
    b, rows = node.builder, shape_of(value)[1]
    if rows % gates:
        raise UserError(f"weights of {rows} rows for {gates} gates")
    size = rows // gates
    return b.concatenate([b.slice_axis(value, 1, at * size, (at + 1) * size) for at in _ORDERS[kind]], 1)


def _bias(node: NodeContext, value: GraphExpr, kind: str, after: bool) -> GraphExpr:
    """Biases of the input and of the state: OpenVINO has their sum, but for a GRU whose reset is after the product."""
    b, (sides, rows) = node.builder, shape_of(value)
    if kind == "GRU" and after:
        size = rows // 4
        first = b.slice_axis(value, 1, 0, 3 * size)
        last = b.slice_axis(value, 1, 3 * size, 4 * size)
        return b.concatenate([first, b.filled(0, (sides, 2 * size), value.tensor_type.dtype), last], 1)
    ordered = _ordered(node, value, kind, len(_ORDERS[kind]))
    return b.concatenate([ordered, b.filled(0, (sides, rows), value.tensor_type.dtype)], 1)


def _run(
    node: NodeContext,
    kind: str,
    data: GraphExpr,
    states: Sequence[GraphExpr],
    weights: Sequence[GraphExpr],
    lengths: GraphExpr | None,
) -> list[GraphExpr]:
    """All states (steps, directions, batch, size) and the last ones, for data (steps, batch, features)."""
    direction = node.text("direction", "forward")
    sides = 2 if direction == "bidirectional" else 1
    names = node.text("activations", _DEFAULTS[kind]).split(",")
    if any(name.strip() not in _FUNCTIONS for name in names):
        raise UnsupportedError(f"{node.layer.kind} with the activations {names}")
    after = kind == "GRU" and node.flag("linear_before_reset")
    clip = node.number("clip", 0.0)
    return node.onnx.several(
        kind,
        1 + len(states),
        data,
        _ordered(node, weights[0], kind, len(_ORDERS[kind])),
        _ordered(node, weights[1], kind, len(_ORDERS[kind])),
        _bias(node, weights[2], kind, after),
        None if lengths is None else node.builder.cast(lengths, "int32"),
        *states,
        hidden_size=node.integer("hidden_size"),
        direction=direction,
        activations=tuple(_FUNCTIONS[name.strip()] for name in names) * sides,
        activation_alpha=node.floats("activations_alpha", ()) or None,
        activation_beta=node.floats("activations_beta", ()) or None,
        clip=clip if clip and clip != float("inf") else None,
        linear_before_reset=1 if after else None,
        input_forget=1 if node.flag("input_forget") else None,
    )


@converter("LSTMSequence", "GRUSequence", "RNNSequence")
def sequence(node: NodeContext) -> Sequence[GraphExpr]:
    """A layer over data (batch, steps, features), in one direction or in both."""
    b, kind = node.builder, node.layer.kind.removesuffix("Sequence")
    count = 2 if kind == "LSTM" else 1
    states = [b.transpose(node.input(1 + at), (1, 0, 2)) for at in range(count)]
    weights = [node.input(2 + count + at) for at in range(3)]
    data = b.transpose(node.input(0), (1, 0, 2))
    results = _run(node, kind, data, states, weights, node.input(1 + count))
    return [b.transpose(results[0], (2, 1, 0, 3)), *(b.transpose(item, (1, 0, 2)) for item in results[1:])]


@converter("LSTMCell", "GRUCell", "RNNCell")
def cell(node: NodeContext) -> Sequence[GraphExpr]:
    """One step for data (batch, features)."""
    b, kind = node.builder, node.layer.kind.removesuffix("Cell")
    count = 2 if kind == "LSTM" else 1
    states = [b.expand_dims(node.input(1 + at), (0,)) for at in range(count)]
    weights = [b.expand_dims(node.input(1 + count + at), (0,)) for at in range(2)]
    rows = shape_of(weights[0])[1]
    if node.has_input(3 + count):
        weights.append(b.expand_dims(node.input(3 + count), (0,)))
    else:
        weights.append(b.filled(0, (1, rows), weights[0].tensor_type.dtype))
    results = _run(node, kind, b.expand_dims(node.input(0), (0,)), states, weights, None)
    return [b.reshape(item, sizes_of(item)[1:]) for item in results[1:]]
