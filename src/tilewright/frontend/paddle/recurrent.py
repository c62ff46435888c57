"""Converters of recurrent layers: layers and directions one after the other, by ONNX's LSTM, GRU and RNN."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.core.builder import shape_of, sizes_of
from tilewright.frontend.paddle.context import NodeContext
from tilewright.frontend.paddle.registry import converter
from tilewright.graph.ir.dimensions import product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UnsupportedError, UserError

_MODES = {
    "LSTM": ("LSTM", 4, None),
    "GRU": ("GRU", 3, None),
    "RNN_TANH": ("RNN", 1, "Tanh"),
    "RNN_RELU": ("RNN", 1, "Relu"),
}
"""The operator, the number of gates, and the activation."""
_ORDERS = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
"""Where ONNX's gates are: input, output, forget, cell; update, reset, hidden."""


@converter("rnn", inputs="Input PreState WeightList SequenceLength", outputs="Out DropoutState State Reserve")
def rnn(node: NodeContext) -> Sequence[GraphExpr | Sequence[GraphExpr] | None]:
    """Several layers, in one direction or in both."""
    b, data = node.builder, node.input(0)
    mode = node.text("mode")
    if mode not in _MODES:
        raise UnsupportedError(f"a recurrent layer of the mode {mode!r}")
    operator, gates, activation = _MODES[mode]
    layers, sides = node.integer("num_layers", default=1), 2 if node.flag("is_bidirec") else 1
    weights, states = node.group(2), node.group(1)
    count = 2 * layers * sides
    if len(weights) not in (count, 2 * count) or len(states) != (2 if operator == "LSTM" else 1):
        raise UserError(f"{len(weights)} weights and {len(states)} states of {layers} layers in {sides} directions")
    last: list[list[GraphExpr]] = [[] for _ in states]
    for layer in range(layers):
        first = 2 * layer * sides
        chosen = [_parts(node, weights[first : first + 2 * sides], at, operator, gates) for at in range(2)]
        bias = _biases(node, weights[count + first : count + first + 2 * sides], operator, gates)
        initial = [b.slice_axis(state, 0, layer * sides, (layer + 1) * sides) for state in states]
        results = node.onnx.several(
            operator,
            1 + len(states),
            data,
            *chosen,
            bias,
            node.optional(3) and b.cast(node.input(3), "int32"),
            *initial,
            hidden_size=node.integer("hidden_size"),
            direction="bidirectional" if sides == 2 else "forward",
            linear_before_reset=1 if operator == "GRU" else None,
            activations=None if activation is None else (activation,) * sides,
        )
        steps, _, batch, hidden = sizes_of(results[0])
        data = b.reshape(b.transpose(results[0], (0, 2, 1, 3)), (steps, batch, product((sides, hidden))))
        for kept, value in zip(last, results[1:], strict=True):
            kept.append(value)
    return [data, None, [b.concatenate(parts, 0) for parts in last], None]


def _in_order(node: NodeContext, value: GraphExpr, operator: str, gates: int) -> GraphExpr:
    """Rows of gates in ONNX's order."""
    b, rows = node.builder, shape_of(value)[0]
    if rows % gates:
        raise UserError(f"weights of {rows} rows for {gates} gates")
    size = rows // gates
    return b.concatenate([b.slice_axis(value, 0, at * size, (at + 1) * size) for at in _ORDERS[operator]], 0)


def _parts(node: NodeContext, weights: Sequence[GraphExpr], at: int, operator: str, gates: int) -> GraphExpr:
    """The weights of the input or of the state, for each direction."""
    return node.builder.stack([_in_order(node, item, operator, gates) for item in weights[at::2]], 0)


def _biases(node: NodeContext, biases: Sequence[GraphExpr], operator: str, gates: int) -> GraphExpr | None:
    if not biases:
        return None
    b = node.builder
    ordered = [_in_order(node, item, operator, gates) for item in biases]
    return b.stack([b.concatenate(ordered[at : at + 2], 0) for at in range(0, len(ordered), 2)], 0)
