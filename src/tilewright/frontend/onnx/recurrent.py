"""Converters of LSTM, GRU and RNN: one operator a direction, over the whole sequence.

The input is projected for all steps in one matrix product; the operator runs the recurrence. Lengths of sequences, if
given, keep the state of sequences that have ended.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.frontend.core.builder import dtype_of, evaluate, rank_of, shape_of, size_at, sizes_of
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.registry import converter
from tilewright.graph.ir.dimensions import Size, add, different, multiply
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import size_text, sizes_text
from tilewright.support.errors import UnsupportedError, UserError

Activation = tuple[str, float, float]
"""The name and the two parameters of an activation function."""
_DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
_ACTIVATIONS = {  # what ONNX calls an activation, in lower case: its name here, and the defaults of alpha and beta
    "sigmoid": ("sigmoid", 0.0, 0.0),
    "tanh": ("tanh", 0.0, 0.0),
    "relu": ("relu", 0.0, 0.0),
    "softplus": ("softplus", 0.0, 0.0),
    "softsign": ("softsign", 0.0, 0.0),
    "affine": ("affine", 1.0, 0.0),
    "leakyrelu": ("leaky_relu", 0.01, 0.0),
    "thresholdedrelu": ("thresholded_relu", 1.0, 0.0),
    "scaledtanh": ("scaled_tanh", 1.0, 1.0),
    "hardsigmoid": ("hard_sigmoid", 0.2, 0.5),
    "elu": ("elu", 1.0, 0.0),
}
_WITH_ALPHA = frozenset(["affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"])
_WITH_BETA = frozenset(["affine", "scaledtanh", "hardsigmoid"])


@dataclass(frozen=True, slots=True)
class _Layer:
    """What the three operators have in common."""

    node: NodeContext
    data: GraphExpr
    """Steps, batch, features."""
    hidden: int
    gates: int
    directions: int
    reverse_first: bool
    batch_first: bool
    clip: float | None

    @property
    def steps(self) -> Size:
        return sizes_of(self.data)[0]

    @property
    def batch(self) -> Size:
        return sizes_of(self.data)[1]

    def of_direction(self, index: int, direction: int, shape: tuple[int, ...], what: str) -> GraphExpr | None:
        """The part of an input that belongs to a direction, or None if the input is left out."""
        value = self.node.optional(index)
        if value is None:
            return None
        expected = (self.directions, *shape)
        if shape_of(value) != expected:
            raise UserError(f"{what} must have shape {expected}, it is {shape_of(value)}")
        part = self.node.builder.slice_axis(value, 0, direction, direction + 1)
        return self.node.builder.reshape(part, shape)

    def weights(self, direction: int) -> tuple[GraphExpr, GraphExpr]:
        """The input and the recurrent weights."""
        rows, features = self.gates * self.hidden, size_at(self.data, 2)
        weight = self.of_direction(1, direction, (rows, features), "the weights W")
        recurrent = self.of_direction(2, direction, (rows, self.hidden), "the recurrent weights R")
        if weight is None or recurrent is None:
            raise UserError(f"{self.node.node.op_type} needs the weights W and R")
        return weight, recurrent

    def biases(self, direction: int) -> tuple[GraphExpr, GraphExpr] | None:
        """The input and the recurrent biases."""
        rows = self.gates * self.hidden
        both = self.of_direction(3, direction, (2 * rows,), "the bias B")
        if both is None:
            return None
        slice_axis = self.node.builder.slice_axis
        return slice_axis(both, 0, 0, rows), slice_axis(both, 0, rows, 2 * rows)

    def initial(self, index: int, direction: int) -> GraphExpr:
        """The first state: an input or zeros."""
        builder = self.node.builder
        shape = (self.batch, self.hidden)
        value = self.node.optional(index)
        if value is None:
            return builder.filled(0, shape, dtype_of(self.data))
        if self.batch_first and rank_of(value) == 3:
            value = builder.transpose(value, (1, 0, 2))
        found, expected = sizes_of(value), (self.directions, *shape)
        if len(found) != 3 or any(map(different, found, expected)):
            raise UserError(f"an initial state has shape {sizes_text(found)}, not {sizes_text(expected)}")
        value = builder.match(value, expected)
        return builder.reshape(builder.slice_axis(value, 0, direction, direction + 1), shape)

    def entering(self, weight: GraphExpr, bias: GraphExpr | None) -> GraphExpr:
        """What the input gives each gate, for all steps at once: (steps, batch, gates, hidden)."""
        builder, node = self.node.builder, self.node
        flat = builder.reshape(self.data, (multiply(self.steps, self.batch), sizes_of(self.data)[2]))
        result = node.call("matmul", flat, weight, transpose_b=True)
        result = result if bias is None else node.call("add", result, bias)
        return builder.reshape(result, (self.steps, self.batch, self.gates, self.hidden))

    def by_gate(self, recurrent: GraphExpr) -> GraphExpr:
        """The recurrent weights with an axis of gates."""
        return self.node.builder.reshape(recurrent, (self.gates, self.hidden, self.hidden))

    def backward(self, direction: int) -> bool:
        """Whether a direction runs from the last step to the first."""
        return direction == 1 or self.reverse_first


def _read(node: NodeContext, gates: int) -> _Layer:
    data = node.input(0)
    hidden = node.integer("hidden_size")
    direction = node.text("direction", "forward")
    batch_first = node.flag("layout")
    if rank_of(data) != 3:
        raise UserError(f"{node.node.op_type} needs data of 3 dimensions, it is {sizes_text(sizes_of(data))}")
    if direction not in _DIRECTIONS:
        raise UserError(f"unknown direction {direction!r}", hint=f"one of {', '.join(_DIRECTIONS)}")
    if hidden < 1:
        raise UserError(f"hidden_size must be positive, it is {hidden}")
    if batch_first:
        data = node.builder.transpose(data, (1, 0, 2))
    # What shape inference does not see of the data, the weights say.
    data = node.builder.match(data, (*sizes_of(data)[:2], size_at(node.input(1), rank_of(node.input(1)) - 1)))
    clip = node.number("clip") if node.has_attribute("clip") else None
    return _Layer(node, data, hidden, gates, _DIRECTIONS[direction], direction == "reverse", batch_first, clip)


def _activations(node: NodeContext, names: tuple[str, ...], directions: int) -> list[tuple[Activation, ...]]:
    """The activation functions of each direction."""
    count = len(names)
    given = node.texts("activations", names * directions)
    if len(given) == count and directions == 2:
        given = given * 2
    if len(given) != count * directions:
        raise UserError(f"activations must have {count * directions} entries, it is {given}")
    alphas = list(node.floats("activation_alpha", ()))
    betas = list(node.floats("activation_beta", ()))
    made: list[Activation] = []
    for text in given:
        key = text.lower()
        if key not in _ACTIVATIONS:
            raise UnsupportedError(f"the activation {text!r} in {node.node.op_type}")
        name, alpha, beta = _ACTIVATIONS[key]
        if key in _WITH_ALPHA and alphas:
            alpha = alphas.pop(0)
        if key in _WITH_BETA and betas:
            beta = betas.pop(0)
        made.append((name, float(alpha), float(beta)))
    return [tuple(made[index * count : (index + 1) * count]) for index in range(directions)]


def _sum(layer: _Layer, biases: tuple[GraphExpr, GraphExpr] | None) -> GraphExpr | None:
    return None if biases is None else layer.node.call("add", biases[0], biases[1])


def _lengths(layer: _Layer) -> GraphExpr | None:
    """The lengths of sequences; None if all run to the end."""
    lengths = layer.node.optional(4)
    if lengths is None:
        return None
    found, steps = sizes_of(lengths), layer.steps
    if len(found) != 1 or different(found[0], layer.batch):
        raise UserError(f"sequence_lens has shape {sizes_text(found)}, the batch is {size_text(layer.batch)}")
    lengths = layer.node.builder.match(lengths, (layer.batch,))
    known = evaluate(lengths)
    return None if known is not None and isinstance(steps, int) and (known >= steps).all() else lengths


def _finish(layer: _Layer, runs: list[list[GraphExpr]], lengths: GraphExpr | None) -> list[GraphExpr | None]:
    """The outputs: all hidden states, then each last state, over the directions; from all rows of the states."""
    node, builder = layer.node, layer.node.builder
    results: list[GraphExpr | None] = [None]
    if node.wants_output(0):
        sides = [_outputs(layer, direction, states[0], lengths) for direction, states in enumerate(runs)]
        whole = builder.concatenate(sides, axis=1)
        results[0] = builder.transpose(whole, (2, 0, 1, 3)) if layer.batch_first else whole
    for index in range(len(runs[0])):
        if not node.wants_output(index + 1):
            results.append(None)
            continue
        rows = [builder.slice_axis(states[index], 0, layer.steps, add(layer.steps, 1)) for states in runs]
        last = builder.concatenate(rows, axis=0)
        results.append(builder.transpose(last, (1, 0, 2)) if layer.batch_first else last)
    return results


def _outputs(layer: _Layer, direction: int, rows: GraphExpr, lengths: GraphExpr | None) -> GraphExpr:
    """The hidden state after each step, in the order of the steps, zero in sequences that have ended."""
    node, builder = layer.node, layer.node.builder
    steps, batch, hidden = layer.steps, layer.batch, layer.hidden
    if layer.backward(direction):
        begin, end = (steps, 0, 0), (0, batch, hidden)
        value = node.call("slice", rows, begin=begin, end=end, strides=(-1, 1, 1))
    else:
        value = builder.slice_axis(rows, 0, 1, add(steps, 1))
    if lengths is not None:
        counted = builder.reshape(builder.arange(steps, dtype=dtype_of(lengths)), (steps, 1, 1))
        running = node.call("less", counted, builder.reshape(lengths, (1, batch, 1)))
        value = node.call("where", running, value, builder.constant_like(0, value))
    return builder.reshape(value, (steps, 1, batch, hidden))


@converter("LSTM")
def lstm(node: NodeContext) -> list[GraphExpr | None]:
    """Gates in the order input, output, forget, cell; peepholes and coupled gates as options."""
    layer = _read(node, gates=4)
    functions = _activations(node, ("Sigmoid", "Tanh", "Tanh"), layer.directions)
    lengths = _lengths(layer)
    runs: list[list[GraphExpr]] = []
    for direction in range(layer.directions):
        weight, recurrent = layer.weights(direction)
        data = layer.entering(weight, _sum(layer, layer.biases(direction)))
        peepholes = layer.of_direction(7, direction, (3 * layer.hidden,), "the peepholes P")
        extra = [] if lengths is None else [lengths]
        if peepholes is not None:
            steps = node.builder.cast(node.builder.shape_tensor((layer.steps,)), "int32")
            full = node.builder.broadcast_to(steps, (layer.batch,))
            extra = [full if lengths is None else lengths, node.builder.reshape(peepholes, (3, layer.hidden))]
        states = node.call(
            "nn.lstm",
            data,
            layer.by_gate(recurrent),
            layer.initial(5, direction),
            layer.initial(6, direction),
            *extra,
            activations=functions[direction],
            clip=layer.clip,
            backward=layer.backward(direction),
            coupled=node.flag("input_forget"),
        )
        runs.append([node.builder.item(states, 0), node.builder.item(states, 1)])
    return _finish(layer, runs, lengths)


@converter("GRU")
def gru(node: NodeContext) -> list[GraphExpr | None]:
    """Gates in the order update, reset, hidden; the reset before or after the product."""
    layer = _read(node, gates=3)
    functions = _activations(node, ("Sigmoid", "Tanh"), layer.directions)
    lengths = _lengths(layer)
    after = node.flag("linear_before_reset")
    runs: list[list[GraphExpr]] = []
    for direction in range(layer.directions):
        weight, recurrent = layer.weights(direction)
        entering, inner = _gru_biases(layer, direction, after)
        states = node.call(
            "nn.gru",
            layer.entering(weight, entering),
            layer.by_gate(recurrent),
            layer.initial(5, direction),
            inner,
            *([] if lengths is None else [lengths]),
            activations=functions[direction],
            clip=layer.clip,
            backward=layer.backward(direction),
            reset_after=after,
        )
        runs.append([states])
    return _finish(layer, runs, lengths)


def _gru_biases(layer: _Layer, direction: int, after: bool) -> tuple[GraphExpr | None, GraphExpr]:
    """What is added to the input's share of the gates, and to the state's share of the hidden gate.

    Only a reset after the product tells the two apart.
    """
    node, size = layer.node, layer.hidden
    biases = layer.biases(direction)
    if biases is None or not after:
        return _sum(layer, biases), node.builder.filled(0, (size,), dtype_of(layer.data))
    slice_axis = node.builder.slice_axis
    both = node.call("add", slice_axis(biases[0], 0, 0, 2 * size), slice_axis(biases[1], 0, 0, 2 * size))
    entering = node.builder.concatenate([both, slice_axis(biases[0], 0, 2 * size, 3 * size)], axis=0)
    return entering, slice_axis(biases[1], 0, 2 * size, 3 * size)


@converter("RNN")
def rnn(node: NodeContext) -> list[GraphExpr | None]:
    """One gate: the state itself."""
    layer = _read(node, gates=1)
    functions = _activations(node, ("Tanh",), layer.directions)
    lengths = _lengths(layer)
    runs: list[list[GraphExpr]] = []
    for direction in range(layer.directions):
        weight, recurrent = layer.weights(direction)
        states = node.call(
            "nn.rnn",
            layer.entering(weight, _sum(layer, layer.biases(direction))),
            layer.by_gate(recurrent),
            layer.initial(5, direction),
            *([] if lengths is None else [lengths]),
            activations=functions[direction],
            clip=layer.clip,
            backward=layer.backward(direction),
        )
        runs.append([states])
    return _finish(layer, runs, lengths)
