"""Converters of LSTM, GRU and RNN: unrolled over the (constant) number of steps.

The input is projected for all steps in one matrix product; each step then has one product with the recurrent weights.
Lengths of sequences, if given, keep the state of sequences that have ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.frontend.builder import dtype_of, evaluate, rank_of, shape_of
from tilewright.frontend.onnx.activation import build_softsign, build_thresholded_relu
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.registry import converter
from tilewright.graph.expr import GraphExpr
from tilewright.support.errors import UnsupportedError, UserError

Activation = Callable[[GraphExpr], GraphExpr]
States = tuple[GraphExpr, ...]
MOST_STEPS = 10_000
"""Longer sequences are refused: every step is spelled out."""
_DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
_DEFAULTS = {  # alpha and beta of activations that have them
    "affine": (1.0, 0.0),
    "leakyrelu": (0.01, 0.0),
    "thresholdedrelu": (1.0, 0.0),
    "scaledtanh": (1.0, 1.0),
    "hardsigmoid": (0.2, 0.5),
    "elu": (1.0, 0.0),
}


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
    def steps(self) -> int:
        return shape_of(self.data)[0]

    @property
    def batch(self) -> int:
        return shape_of(self.data)[1]

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
        rows, features = self.gates * self.hidden, shape_of(self.data)[2]
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
        if shape_of(value) != (self.directions, *shape):
            raise UserError(f"an initial state has shape {shape_of(value)}, not {(self.directions, *shape)}")
        return builder.reshape(builder.slice_axis(value, 0, direction, direction + 1), shape)

    def project(self, weight: GraphExpr, bias: GraphExpr | None) -> GraphExpr:
        """The input times weights, for all steps at once: (steps * batch, rows)."""
        builder, node = self.node.builder, self.node
        flat = builder.reshape(self.data, (self.steps * self.batch, shape_of(self.data)[2]))
        result = node.call("matmul", flat, weight, transpose_b=True)
        return result if bias is None else node.call("add", result, bias)

    def at_step(self, projected: GraphExpr, step: int) -> GraphExpr:
        """The rows of one step of a projection."""
        return self.node.builder.slice_axis(projected, 0, step * self.batch, (step + 1) * self.batch)

    def gate(self, value: GraphExpr, first: int, count: int = 1) -> GraphExpr:
        """Columns of one or more gates."""
        return self.node.builder.slice_axis(value, 1, first * self.hidden, (first + count) * self.hidden)

    def times(self, state: GraphExpr, weight: GraphExpr) -> GraphExpr:
        """A state times transposed weights."""
        return self.node.call("matmul", state, weight, transpose_b=True)

    def activate(self, function: Activation, value: GraphExpr) -> GraphExpr:
        """An activation of a value, which is clipped first if the node says so."""
        if self.clip is not None:
            value = self.node.call("clip", value, minimum=-self.clip, maximum=self.clip)
        return function(value)


def _read(node: NodeContext, gates: int) -> _Layer:
    data = node.input(0)
    hidden = node.integer("hidden_size")
    direction = node.text("direction", "forward")
    batch_first = node.flag("layout")
    if rank_of(data) != 3:
        raise UserError(f"{node.node.op_type} needs data of 3 dimensions, it is {shape_of(data)}")
    if direction not in _DIRECTIONS:
        raise UserError(f"unknown direction {direction!r}", hint=f"one of {', '.join(_DIRECTIONS)}")
    if hidden < 1:
        raise UserError(f"hidden_size must be positive, it is {hidden}")
    if batch_first:
        data = node.builder.transpose(data, (1, 0, 2))
    steps = shape_of(data)[0]
    if not 0 < steps <= MOST_STEPS:
        raise UnsupportedError(f"{node.node.op_type} over {steps} steps (at most {MOST_STEPS})")
    clip = node.number("clip") if node.has_attribute("clip") else None
    return _Layer(node, data, hidden, gates, _DIRECTIONS[direction], direction == "reverse", batch_first, clip)


def _activations(node: NodeContext, names: tuple[str, ...], directions: int) -> list[list[Activation]]:
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
    for name in given:
        key = name.lower()
        alpha, beta = _DEFAULTS.get(key, (0.0, 0.0))
        if key in _DEFAULTS:
            alpha = alphas.pop(0) if alphas else alpha
            if key in ("affine", "scaledtanh", "hardsigmoid"):
                beta = betas.pop(0) if betas else beta
        made.append(_activation(node, name, alpha, beta))
    return [made[index * count : (index + 1) * count] for index in range(directions)]


def _activation(node: NodeContext, name: str, alpha: float, beta: float) -> Activation:
    def scaled(value: GraphExpr, factor: float) -> GraphExpr:
        return value if factor == 1.0 else node.call("multiply", value, node.builder.constant_like(factor, value))

    def affine(value: GraphExpr) -> GraphExpr:
        return node.call("add", scaled(value, alpha), node.builder.constant_like(beta, value))

    table: dict[str, Activation] = {
        "sigmoid": lambda value: node.call("sigmoid", value),
        "tanh": lambda value: node.call("tanh", value),
        "relu": lambda value: node.call("nn.relu", value),
        "softplus": lambda value: node.call("nn.softplus", value),
        "softsign": lambda value: build_softsign(node, value),
        "affine": affine,
        "leakyrelu": lambda value: node.call("nn.leaky_relu", value, alpha=alpha),
        "thresholdedrelu": lambda value: build_thresholded_relu(node, value, alpha),
        "scaledtanh": lambda value: scaled(node.call("tanh", scaled(value, beta)), alpha),
        "hardsigmoid": lambda value: node.call("nn.hard_sigmoid", value, alpha=alpha, beta=beta),
        "elu": lambda value: node.call("nn.elu", value, alpha=alpha),
    }
    if name.lower() not in table:
        raise UnsupportedError(f"the activation {name!r} in {node.node.op_type}")
    return table[name.lower()]


def _sum(layer: _Layer, biases: tuple[GraphExpr, GraphExpr] | None) -> GraphExpr | None:
    return None if biases is None else layer.node.call("add", biases[0], biases[1])


def _masks(layer: _Layer) -> list[GraphExpr] | None:
    """For each step, which sequences still run; None if all run to the end."""
    node = layer.node
    lengths = node.optional(4)
    if lengths is None:
        return None
    if shape_of(lengths) != (layer.batch,):
        raise UserError(f"sequence_lens has shape {shape_of(lengths)}, the batch is {layer.batch}")
    known = evaluate(lengths)
    if known is not None and (known >= layer.steps).all():
        return None
    column = node.builder.reshape(lengths, (layer.batch, 1))
    return [node.call("less", node.builder.constant_like(step, lengths), column) for step in range(layer.steps)]


def _unroll(
    layer: _Layer, direction: int, states: States, step_of: Callable[[int, States], States]
) -> tuple[list[GraphExpr], States]:
    """Run the steps of a direction; gives the hidden state after each step and the last states."""
    node = layer.node
    masks = _masks(layer)
    backward = direction == 1 or layer.reverse_first
    outputs: dict[int, GraphExpr] = {}
    for step in reversed(range(layer.steps)) if backward else range(layer.steps):
        fresh = step_of(step, states)
        output = fresh[0]
        if masks is not None:
            output = node.call("where", masks[step], output, node.builder.constant_like(0, output))
            fresh = tuple(node.call("where", masks[step], new, old) for new, old in zip(fresh, states, strict=True))
        outputs[step] = output
        states = fresh
    return [outputs[step] for step in range(layer.steps)], states


def _finish(layer: _Layer, runs: list[tuple[list[GraphExpr], States]]) -> list[GraphExpr | None]:
    """The outputs: all hidden states, then each last state, over the directions."""
    node, builder = layer.node, layer.node.builder
    results: list[GraphExpr | None] = [None]
    if node.wants_output(0):
        shape = (1, 1, layer.batch, layer.hidden)
        sides = [builder.concatenate([builder.reshape(item, shape) for item in outputs], axis=0) for outputs, _ in runs]
        whole = builder.concatenate(sides, axis=1)
        results[0] = builder.transpose(whole, (2, 0, 1, 3)) if layer.batch_first else whole
    for index in range(len(runs[0][1])):
        if not node.wants_output(index + 1):
            results.append(None)
            continue
        parts = [builder.reshape(states[index], (1, layer.batch, layer.hidden)) for _, states in runs]
        last = builder.concatenate(parts, axis=0)
        results.append(builder.transpose(last, (1, 0, 2)) if layer.batch_first else last)
    return results


@converter("LSTM")
def lstm(node: NodeContext) -> list[GraphExpr | None]:
    """Gates in the order input, output, forget, cell; peepholes and coupled gates as options."""
    layer = _read(node, gates=4)
    coupled = node.flag("input_forget")
    functions = _activations(node, ("Sigmoid", "Tanh", "Tanh"), layer.directions)
    runs = [_run_lstm(layer, direction, functions[direction], coupled) for direction in range(layer.directions)]
    return _finish(layer, runs)


def _run_lstm(
    layer: _Layer, direction: int, functions: list[Activation], coupled: bool
) -> tuple[list[GraphExpr], States]:
    node = layer.node
    weight, recurrent = layer.weights(direction)
    projected = layer.project(weight, _sum(layer, layer.biases(direction)))
    peepholes = layer.of_direction(7, direction, (3 * layer.hidden,), "the peepholes P")
    f, g, h = functions

    def peep(index: int, gate: GraphExpr, cell: GraphExpr) -> GraphExpr:
        if peepholes is None:
            return gate
        part = node.builder.slice_axis(peepholes, 0, index * layer.hidden, (index + 1) * layer.hidden)
        return node.call("add", gate, node.call("multiply", part, cell))

    def step_of(step: int, states: States) -> States:
        hidden, cell = states
        total = node.call("add", layer.at_step(projected, step), layer.times(hidden, recurrent))
        enter = layer.activate(f, peep(0, layer.gate(total, 0), cell))
        if coupled:
            forget = node.call("subtract", node.builder.constant_like(1, enter), enter)
        else:
            forget = layer.activate(f, peep(2, layer.gate(total, 2), cell))
        candidate = layer.activate(g, layer.gate(total, 3))
        kept, added = node.call("multiply", forget, cell), node.call("multiply", enter, candidate)
        fresh = node.call("add", kept, added)
        leave = layer.activate(f, peep(1, layer.gate(total, 1), fresh))
        return node.call("multiply", leave, h(fresh)), fresh

    return _unroll(layer, direction, (layer.initial(5, direction), layer.initial(6, direction)), step_of)


@converter("GRU")
def gru(node: NodeContext) -> list[GraphExpr | None]:
    """Gates in the order update, reset, hidden; the reset before or after the product."""
    layer = _read(node, gates=3)
    after = node.flag("linear_before_reset")
    functions = _activations(node, ("Sigmoid", "Tanh"), layer.directions)
    run = _run_gru_reset_after if after else _run_gru_reset_before
    return _finish(layer, [run(layer, direction, functions[direction]) for direction in range(layer.directions)])


def _blend(layer: _Layer, update: GraphExpr, candidate: GraphExpr, hidden: GraphExpr) -> GraphExpr:
    """(1 - update) * candidate + update * hidden."""
    node = layer.node
    rest = node.call("subtract", node.builder.constant_like(1, update), update)
    return node.call("add", node.call("multiply", rest, candidate), node.call("multiply", update, hidden))


def _run_gru_reset_before(layer: _Layer, direction: int, functions: list[Activation]) -> tuple[list[GraphExpr], States]:
    """The state is reset before it is multiplied by the weights of the hidden gate."""
    node, size = layer.node, layer.hidden
    weight, recurrent = layer.weights(direction)
    projected = layer.project(weight, _sum(layer, layer.biases(direction)))
    first = node.builder.slice_axis(recurrent, 0, 0, 2 * size)
    second = node.builder.slice_axis(recurrent, 0, 2 * size, 3 * size)
    f, g = functions

    def step_of(step: int, states: States) -> States:
        (hidden,) = states
        entered = layer.at_step(projected, step)
        gates = node.call("add", layer.gate(entered, 0, 2), layer.times(hidden, first))
        update, reset = layer.activate(f, layer.gate(gates, 0)), layer.activate(f, layer.gate(gates, 1))
        product = layer.times(node.call("multiply", reset, hidden), second)
        candidate = layer.activate(g, node.call("add", layer.gate(entered, 2), product))
        return (_blend(layer, update, candidate, hidden),)

    return _unroll(layer, direction, (layer.initial(5, direction),), step_of)


def _run_gru_reset_after(layer: _Layer, direction: int, functions: list[Activation]) -> tuple[list[GraphExpr], States]:
    """The product of the state with the weights of the hidden gate is reset."""
    node, size = layer.node, layer.hidden
    weight, recurrent = layer.weights(direction)
    biases = layer.biases(direction)
    entry: GraphExpr | None = None
    inner: GraphExpr | None = None
    if biases is not None:
        slice_axis = node.builder.slice_axis
        both = node.call("add", slice_axis(biases[0], 0, 0, 2 * size), slice_axis(biases[1], 0, 0, 2 * size))
        entry = node.builder.concatenate([both, slice_axis(biases[0], 0, 2 * size, 3 * size)], axis=0)
        inner = slice_axis(biases[1], 0, 2 * size, 3 * size)
    projected = layer.project(weight, entry)
    f, g = functions

    def step_of(step: int, states: States) -> States:
        (hidden,) = states
        entered, product = layer.at_step(projected, step), layer.times(hidden, recurrent)
        gates = node.call("add", layer.gate(entered, 0, 2), layer.gate(product, 0, 2))
        update, reset = layer.activate(f, layer.gate(gates, 0)), layer.activate(f, layer.gate(gates, 1))
        linear = layer.gate(product, 2)
        linear = linear if inner is None else node.call("add", linear, inner)
        total = node.call("add", layer.gate(entered, 2), node.call("multiply", reset, linear))
        return (_blend(layer, update, layer.activate(g, total), hidden),)

    return _unroll(layer, direction, (layer.initial(5, direction),), step_of)


@converter("RNN")
def rnn(node: NodeContext) -> list[GraphExpr | None]:
    """One gate: the state itself."""
    layer = _read(node, gates=1)
    functions = _activations(node, ("Tanh",), layer.directions)
    return _finish(
        layer, [_run_rnn(layer, direction, functions[direction][0]) for direction in range(layer.directions)]
    )


def _run_rnn(layer: _Layer, direction: int, function: Activation) -> tuple[list[GraphExpr], States]:
    weight, recurrent = layer.weights(direction)
    projected = layer.project(weight, _sum(layer, layer.biases(direction)))

    def step_of(step: int, states: States) -> States:
        total = layer.node.call("add", layer.at_step(projected, step), layer.times(states[0], recurrent))
        return (layer.activate(function, total),)

    return _unroll(layer, direction, (layer.initial(5, direction),), step_of)
