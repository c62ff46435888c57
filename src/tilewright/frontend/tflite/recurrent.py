"""Converters of recurrent layers: LSTM, RNN and SVDF, of one step or of whole sequences.

States begin a run with zeros, or with what the model is given for them; a compiled model keeps nothing between runs.
Weights of bytes with data of floats (hybrid layers) are turned to floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.frontend.core.activations import activated
from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.registry import converter
from tilewright.graph.ir.dimensions import Size, add, multiply
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32
from tilewright.support.errors import UnsupportedError, UserError

_MOST_STEPS = 256
"""Steps that are spelled out, of layers that the operators for whole sequences do not have."""
_EPSILON = 1e-8
"""What layer normalisation adds to the variance."""


def _floats(node: NodeContext, index: int) -> GraphExpr | None:
    """An input as floats: weights of bytes stand for them."""
    value = node.optional(index)
    if value is None or dtype_of(value).is_float:
        return value
    levels = node.levels(index)
    zeros = levels.zeros.reshape([-1 if at == levels.axis else 1 for at in range(rank_of(value))])
    scales = np.asarray(levels.scales, np.float32).reshape(zeros.shape)
    steps = node.call("subtract", node.builder.cast(value, "int32"), node.builder.constant(zeros, "int32"))
    return node.call("multiply", node.builder.cast(steps, FLOAT32), node.builder.constant(scales, FLOAT32))


def _required(node: NodeContext, index: int) -> GraphExpr:
    value = _floats(node, index)
    if value is None:
        raise UserError(f"{node.node.name} needs an input number {index + 1}, which is not there")
    return value


def _refuse_integers(node: NodeContext) -> None:
    if not dtype_of(node.input(0)).is_float:
        raise UnsupportedError(
            f"{node.node.name} of quantised data",
            hint="convert the model with float32 activations (dynamic range quantisation keeps small weights)",
        )


@dataclass(frozen=True, slots=True)
class _Cell:
    """The weights of an LSTM by gate; None where the model has none."""

    entering: list[GraphExpr]
    recurrent: list[GraphExpr]
    biases: list[GraphExpr | None]
    peepholes: list[GraphExpr | None]
    norms: list[GraphExpr | None]
    projection: GraphExpr | None
    projection_bias: GraphExpr | None
    cell_clip: float
    projection_clip: float
    activation: str

    @property
    def is_plain(self) -> bool:
        """Whether the operator for whole sequences computes it."""
        extras = (self.projection, *self.norms, *self.peepholes)
        return not self.cell_clip and self.activation == "TANH" and all(item is None for item in extras)


def _cell(node: NodeContext, first: int, norms: int | None) -> _Cell:
    """The weights from an input on, in the order in which TFLite has them."""
    at = [_floats(node, first + place) for place in range(17)]
    call = node.call
    entering, recurrent, biases, peepholes = at[0:4], at[4:8], at[11:15], [at[8], at[9], None, at[10]]
    normed: list[GraphExpr | None] = (
        [None] * 4 if norms is None else [_floats(node, norms + place) for place in range(4)]
    )
    if entering[0] is None:
        # Without an input gate it is 1 - forget, the forget gate of negated sums.
        if normed[1] is not None:
            raise UnsupportedError(f"{node.node.name} without an input gate, with layer normalisation")
        for part in (entering, recurrent, biases, peepholes):
            part[0] = None if part[1] is None else call("negative", part[1])
    missing = any(item is None for item in (*entering, *recurrent, *biases))
    if missing:
        raise UserError(f"{node.node.name} lacks weights of a gate")
    return _Cell(
        [item for item in entering if item is not None],
        [item for item in recurrent if item is not None],
        biases,
        peepholes,
        normed,
        at[15],
        at[16],
        node.number("cell_clip"),
        node.number("proj_clip"),
        node.activation,
    )


def _gate(node: NodeContext, cell: _Cell, at: int, data: GraphExpr, hidden: GraphExpr, state: GraphExpr) -> GraphExpr:
    """What goes into a gate."""
    call = node.call
    total = call("matmul", data, cell.entering[at], transpose_b=True)
    total = call("add", total, call("matmul", hidden, cell.recurrent[at], transpose_b=True))
    peephole, norm, bias = cell.peepholes[at], cell.norms[at], cell.biases[at]
    if peephole is not None:
        total = call("add", total, call("multiply", state, peephole))
    if norm is not None:
        axis = rank_of(total) - 1
        mean = call("mean", total, axes=(axis,), keepdims=True)
        apart = call("subtract", total, mean)
        variance = call("mean", call("multiply", apart, apart), axes=(axis,), keepdims=True)
        steady = call("add", variance, node.builder.constant(_EPSILON, FLOAT32))
        total = call("multiply", call("multiply", apart, call("rsqrt", steady)), norm)
    return total if bias is None else call("add", total, bias)


def _step(
    node: NodeContext, cell: _Cell, data: GraphExpr, hidden: GraphExpr, state: GraphExpr
) -> tuple[GraphExpr, GraphExpr]:
    """One step: the hidden state and the cell after it."""
    call, builder = node.call, node.builder
    opened = call("sigmoid", _gate(node, cell, 0, data, hidden, state))
    kept = call("sigmoid", _gate(node, cell, 1, data, hidden, state))
    fresh = activated(builder, _gate(node, cell, 2, data, hidden, state), cell.activation)
    after = call("add", call("multiply", kept, state), call("multiply", opened, fresh))
    if cell.cell_clip:
        after = call("clip", after, minimum=-cell.cell_clip, maximum=cell.cell_clip)
    shown = call("sigmoid", _gate(node, cell, 3, data, hidden, after))
    result = call("multiply", shown, activated(builder, after, cell.activation))
    if cell.projection is not None:
        result = call("matmul", result, cell.projection, transpose_b=True)
        result = result if cell.projection_bias is None else call("add", result, cell.projection_bias)
        if cell.projection_clip:
            result = call("clip", result, minimum=-cell.projection_clip, maximum=cell.projection_clip)
    return result, after


def _sequence(
    node: NodeContext, cell: _Cell, data: GraphExpr, hidden: GraphExpr, state: GraphExpr, backward: bool = False
) -> GraphExpr:
    """All hidden states (steps, batch, size) for data (steps, batch, features), in the order of the steps."""
    builder, call = node.builder, node.call
    steps, batch = sizes_of(data)[:2]
    if cell.is_plain:
        size = size_at(state, 1)
        order = (0, 3, 1, 2)  # input, output, forget, cell
        flat = builder.reshape(data, (multiply(steps, batch), sizes_of(data)[2]))
        weight = builder.concatenate([cell.entering[at] for at in order], 0)
        biases = [cell.biases[at] for at in order]
        entered = call("matmul", flat, weight, transpose_b=True)
        entered = call("add", entered, builder.concatenate([item for item in biases if item is not None], 0))
        recurrent = builder.concatenate([builder.expand_dims(cell.recurrent[at], (0,)) for at in order], 0)
        functions = (("sigmoid", 0.0, 0.0), ("tanh", 0.0, 0.0), ("tanh", 0.0, 0.0))
        whole = builder.reshape(entered, (steps, batch, 4, size))
        both = call("nn.lstm", whole, recurrent, hidden, state, activations=functions, backward=backward)
        return _rows(node, builder.item(both, 0), steps, backward)
    if not isinstance(steps, int) or steps > _MOST_STEPS:
        raise UnsupportedError(
            f"{node.node.name} with projection, peepholes, clipping or normalisation over {steps} steps",
            hint=f"at most {_MOST_STEPS} known steps: give the shape of the input with shapes={{...}}",
        )
    results: list[GraphExpr] = []
    for number in reversed(range(steps)) if backward else range(steps):
        taken = builder.reshape(builder.slice_axis(data, 0, number, number + 1), sizes_of(data)[1:])
        hidden, state = _step(node, cell, taken, hidden, state)
        results.append(builder.expand_dims(hidden, (0,)))
    return builder.concatenate(results[::-1] if backward else results, 0)


def _rows(node: NodeContext, states: GraphExpr, steps: Size, backward: bool) -> GraphExpr:
    """What an operator for whole sequences gives, without the first state, in the order of the steps."""
    if not backward:
        return node.builder.slice_axis(states, 0, 1, add(steps, 1))
    _, batch, size = sizes_of(states)
    return node.call("slice", states, begin=(steps, 0, 0), end=(0, batch, size), strides=(-1, 1, 1))


def _time_first(node: NodeContext, data: GraphExpr, time_major: bool) -> GraphExpr:
    if rank_of(data) != 3:
        raise UserError(f"{node.node.name} needs data of 3 dimensions, it has {rank_of(data)}")
    return data if time_major else node.builder.transpose(data, (1, 0, 2))


@converter("UNIDIRECTIONAL_SEQUENCE_LSTM")
def sequence_lstm(node: NodeContext) -> GraphExpr:
    """A long short-term memory over a sequence."""
    _refuse_integers(node)
    if node.flag("diagonal_recurrent_tensors"):
        raise UnsupportedError("UNIDIRECTIONAL_SEQUENCE_LSTM with diagonal recurrent weights")
    time_major = node.flag("time_major")
    data = _time_first(node, node.input(0), time_major)
    cell = _cell(node, 1, 20 if len(node.inputs) > 20 else None)
    result = _sequence(node, cell, data, *_states(node, data, cell, 18))
    return result if time_major else node.builder.transpose(result, (1, 0, 2))


def _states(node: NodeContext, data: GraphExpr, cell: _Cell, first: int) -> tuple[GraphExpr, GraphExpr]:
    """The hidden state and the cell that a run begins with."""
    batch = sizes_of(data)[-2]
    size = size_at(cell.recurrent[0], 0)
    outputs = size if cell.projection is None else size_at(cell.projection, 0)
    found: list[GraphExpr] = []
    for index, width in ((first, outputs), (first + 1, size)):
        value = node.optional(index)
        if value is None or sizes_of(value) != (batch, width):
            # A state that the file stores for another batch is zeros as well.
            value = node.builder.filled(0, (batch, width), FLOAT32)
        found.append(value)
    return found[0], found[1]


@converter("LSTM")
def lstm(node: NodeContext) -> Sequence[GraphExpr | None]:
    """One step; in the older form all weights are one matrix, and the states are outputs."""
    _refuse_integers(node)
    if node.integer("kernel_type") == 1:
        return _basic_lstm(node)
    cell = _cell(node, 1, 20 if len(node.inputs) > 20 else None)
    data = node.input(0)
    result, _ = _step(node, cell, data, *_states(node, data, cell, 18))
    return [result]


def _basic_lstm(node: NodeContext) -> Sequence[GraphExpr | None]:
    builder, call = node.builder, node.call
    data, hidden, weight, bias, state = (_required(node, at) for at in range(5))
    both = builder.concatenate([data, hidden], 1)
    gates = call("add", call("matmul", both, weight, transpose_b=True), bias)
    size = size_at(state, 1)
    opened, fresh, kept, shown = (builder.slice_axis(gates, 1, at * size, (at + 1) * size) for at in range(4))
    taken = call("multiply", call("sigmoid", opened), call("tanh", fresh))
    after = call("add", call("multiply", call("sigmoid", kept), state), taken)
    result = call("multiply", call("sigmoid", shown), call("tanh", after))
    return [result, after, both, gates]


@converter("BIDIRECTIONAL_SEQUENCE_LSTM")
def bidirectional_lstm(node: NodeContext) -> Sequence[GraphExpr]:
    """Two long short-term memories over a sequence, one from its end."""
    _refuse_integers(node)
    if any(node.has_input(at) for at in range(39, 48)):
        raise UnsupportedError("BIDIRECTIONAL_SEQUENCE_LSTM with auxiliary input")
    time_major = node.flag("time_major", True)
    data = _time_first(node, node.input(0), time_major)
    results: list[GraphExpr] = []
    for first, states, backward in ((1, 35, False), (18, 37, True)):
        cell = _cell(node, first, None)
        results.append(_sequence(node, cell, data, *_states(node, data, cell, states), backward))
    return _merged(node, results, time_major)


def _merged(node: NodeContext, results: list[GraphExpr], time_major: bool) -> Sequence[GraphExpr]:
    turned = results if time_major else [node.builder.transpose(item, (1, 0, 2)) for item in results]
    return [node.builder.concatenate(turned, 2)] if node.flag("merge_outputs") else turned


def _network(node: NodeContext, data: GraphExpr, first: int, state: int, backward: bool = False) -> GraphExpr:
    """All states of a plain recurrent network over data (steps, batch, features)."""
    builder, call = node.builder, node.call
    weight, recurrent, bias = (_required(node, first + at) for at in range(3))
    steps, batch = sizes_of(data)[:2]
    size = size_at(weight, 0)
    flat = builder.reshape(data, (multiply(steps, batch), sizes_of(data)[2]))
    entered = call("add", call("matmul", flat, weight, transpose_b=True), bias)
    names = {"NONE": ("affine", 1.0, 0.0), "RELU": ("relu", 0.0, 0.0), "TANH": ("tanh", 0.0, 0.0)}
    if node.activation not in names:
        raise UnsupportedError(f"{node.node.name} with the activation {node.activation}")
    hidden = node.optional(state)
    if hidden is None or sizes_of(hidden) != (batch, size):
        hidden = builder.filled(0, (batch, size), FLOAT32)
    whole = builder.reshape(entered, (steps, batch, 1, size))
    weights = builder.reshape(recurrent, (1, size, size))
    states = call("nn.rnn", whole, weights, hidden, activations=(names[node.activation],), backward=backward)
    return _rows(node, states, steps, backward)


@converter("UNIDIRECTIONAL_SEQUENCE_RNN")
def sequence_rnn(node: NodeContext) -> GraphExpr:
    """A recurrent network over a sequence."""
    _refuse_integers(node)
    time_major = node.flag("time_major")
    result = _network(node, _time_first(node, node.input(0), time_major), 1, 4)
    return result if time_major else node.builder.transpose(result, (1, 0, 2))


@converter("BIDIRECTIONAL_SEQUENCE_RNN")
def bidirectional_rnn(node: NodeContext) -> Sequence[GraphExpr]:
    """Two recurrent networks over a sequence, one from its end."""
    _refuse_integers(node)
    if any(node.has_input(at) for at in range(9, 12)):
        raise UnsupportedError("BIDIRECTIONAL_SEQUENCE_RNN with auxiliary input")
    time_major = node.flag("time_major")
    data = _time_first(node, node.input(0), time_major)
    return _merged(node, [_network(node, data, 1, 4), _network(node, data, 5, 8, backward=True)], time_major)


@converter("RNN")
def rnn(node: NodeContext) -> GraphExpr:
    """One step of a recurrent network."""
    _refuse_integers(node)
    call = node.call
    data, weight, recurrent, bias, hidden = (_required(node, at) for at in range(5))
    total = call("add", call("matmul", data, weight, transpose_b=True), bias)
    total = call("add", total, call("matmul", hidden, recurrent, transpose_b=True))
    return activated(node.builder, total, node.activation)


@converter("SVDF")
def svdf(node: NodeContext) -> GraphExpr:
    """A filter of rank one or more over features and time: the last column of the state, filtered in time."""
    _refuse_integers(node)
    builder, call, rank = node.builder, node.call, node.integer("rank")
    data, features, times = (_required(node, at) for at in (0, 1, 2))
    bias, state = node.optional(3), node.input(4)
    batch = sizes_of(data)[0]
    filters, memory = size_at(times, 0), size_at(times, 1)
    if rank < 1 or filters % rank:
        raise UserError(f"SVDF of {filters} filters of rank {rank}")
    units = filters // rank
    fresh = builder.reshape(call("matmul", data, features, transpose_b=True), (batch, filters, 1))
    past = builder.slice_axis(builder.reshape(state, (batch, filters, memory)), 2, 1, memory)
    window = builder.concatenate([past, fresh], 2)
    filtered = call("sum", call("multiply", window, times), axes=(2,))
    result = call("sum", builder.reshape(filtered, (batch, units, rank)), axes=(2,))
    result = result if bias is None else call("add", result, bias)
    return activated(builder, result, node.activation)
