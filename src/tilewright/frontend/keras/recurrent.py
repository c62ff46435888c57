"""Recurrent layers over whole sequences: SimpleRNN, LSTM, GRU, ConvLSTM, RNN with any cell, in one or two directions.

LSTM, GRU and SimpleRNN are one operator each where it has their activations; all others are a loop over the steps. With
a mask, the operator runs over the steps that count, moved to the front of their sequences: the output of a step is the
state after as many steps as count up to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.core.loops import Loop, Turn, build_loop, captured, reverse, stack
from tilewright.frontend.keras.activations import activation_name
from tilewright.frontend.keras.cells import (
    cell_units,
    cell_variables,
    initial_states,
    projected,
    projected_step,
)
from tilewright.frontend.keras.context import LayerCall
from tilewright.frontend.keras.layer import Layer
from tilewright.frontend.keras.registry import Slot, layer
from tilewright.frontend.keras.values import Value, as_values, leaves, mapped, tensors
from tilewright.frontend.keras.variables import under
from tilewright.graph.ir.dimensions import add, product, subtract
from tilewright.graph.ir.expr import GraphExpr, Var
from tilewright.ir.dtype import BOOL, INT32, INT64
from tilewright.support.errors import UnsupportedError, UserError

_ACTIVATIONS = {  # the operators' own names and parameters
    "sigmoid": ("sigmoid", 0.0, 0.0),
    "tanh": ("tanh", 0.0, 0.0),
    "relu": ("relu", 0.0, 0.0),
    "linear": ("affine", 1.0, 0.0),
    "softplus": ("softplus", 0.0, 0.0),
    "softsign": ("softsign", 0.0, 0.0),
    "elu": ("elu", 1.0, 0.0),
    "hard_sigmoid": ("hard_sigmoid", 1 / 6, 0.5),
}
_OPERATORS = {"LSTMCell": "nn.lstm", "GRUCell": "nn.gru", "SimpleRNNCell": "nn.rnn"}
_GATES = {"LSTMCell": 4, "GRUCell": 3, "SimpleRNNCell": 1}


@dataclass(frozen=True)
class _Sequences:
    """What a recurrent layer runs over."""

    call: LayerCall
    cell: Layer
    data: GraphExpr
    """Batch, steps and more."""
    states: Any
    mask: GraphExpr | None
    """Batch, steps."""

    @property
    def backward(self) -> bool:
        return self.call.layer.flag("go_backwards")

    @property
    def zero_output(self) -> bool:
        return self.call.layer.flag("zero_output_for_mask")


@dataclass(frozen=True)
class _Outcome:
    """What a run gives: the outputs of all steps in the order in which they were done, the last one, the states."""

    outputs: GraphExpr
    last: GraphExpr
    states: Any


def _run(call: LayerCall, cell: Layer) -> Any:
    """A recurrent layer with a cell."""
    options = call.layer
    if options.flag("stateful"):
        raise UnsupportedError(
            "a stateful recurrent layer, which keeps its states from one run to the next",
            hint="build the model with stateful=False, with initial_state as an input and return_state=True",
        )
    sequences = _sequences(call, cell)
    is_operator = _functions(call, cell) is not None and cell.kind in _OPERATORS
    outcome = _by_operator(sequences) if is_operator else _by_loop(sequences)
    dtype = options.dtype
    output = outcome.outputs if options.flag("return_sequences") else outcome.last
    value = Value(call.builder.cast(output, dtype), sequences.mask if options.flag("return_sequences") else None)
    if not options.flag("return_state"):
        return value
    return (value, *mapped(lambda item: Value(call.builder.cast(item, dtype)), outcome.states))


def _sequences(call: LayerCall, cell: Layer) -> _Sequences:
    given = call.args[0]
    listed = list(given) if isinstance(given, (list, tuple)) else [given]
    if not listed or not isinstance(listed[0], Value):
        raise UserError("a recurrent layer needs a sequence")
    data, mask = listed[0].expr, call.mask
    if rank_of(data) < 3:
        raise UserError(f"a recurrent layer needs data (batch, steps, features), it has {rank_of(data)} dimensions")
    if not dtype_of(data).is_float:
        data = call.builder.cast(data, call.dtype)
    states = call.argument("initial_state", 1)
    if states is None and len(listed) > 1:
        states = listed[1:]
    if states is None:
        shaped = _conv_states(call, cell, data) if cell.kind == "ConvLSTMCell" else initial_states(call, cell, data)
        states = as_values(shaped)
    states = list(states) if isinstance(states, (list, tuple)) else [states]
    states = mapped(lambda item: call.builder.cast(item.expr, cell.dtype), states)
    if mask is not None:
        mask = call.builder.cast(mask, BOOL)
        if rank_of(mask) == 3:
            mask = call.builder.reshape(mask, sizes_of(mask)[:2])
    return _Sequences(call, cell, data, states, mask)


# By one operator


def _functions(call: LayerCall, cell: Layer) -> tuple[tuple[str, float, float], ...] | None:
    """The activations of a cell as the operators know them; None if they do not."""
    names = [cell.option("recurrent_activation", "sigmoid")] if cell.kind != "SimpleRNNCell" else []
    names += [cell.option("activation", "tanh")] * (2 if cell.kind == "LSTMCell" else 1)
    found: list[tuple[str, float, float]] = []
    for described in names:
        name = activation_name(described)
        if name not in _ACTIVATIONS or name in call.session.own:
            return None
        entry = _ACTIVATIONS[name]
        found.append(("hard_sigmoid", 0.2, 0.5) if name == "hard_sigmoid" and call.session.version < 3 else entry)
    return tuple(found)


def _by_operator(given: _Sequences) -> _Outcome:
    b = given.call.builder
    data, mask, lengths, counts = given.data, given.mask, None, None
    backward = given.backward
    if mask is not None:
        if backward:
            data, mask, backward = reverse(b, data, 1), reverse(b, mask, 1), False
        data, counts, lengths = _counting_first(given, data, mask)
    rows = _rows(given, data, lengths, backward)
    steps, states = (
        sizes_of(data)[1],
        [b.item(rows, at) for at in range(2)] if given.cell.kind == "LSTMCell" else [rows],
    )
    ends = [b.select(item, 0, steps) for item in states]
    if mask is None or counts is None or lengths is None:
        outputs = b.transpose(b.slice_axis(states[0], 0, 1, add(steps, 1)), (1, 0, 2))
        return _Outcome(outputs, ends[0], ends)
    outputs = _after_counts(given, states[0], counts, mask)
    last = b.select(outputs, 1, subtract(steps, 1))
    return _Outcome(outputs, last, ends)


def _counting_first(given: _Sequences, data: GraphExpr, mask: GraphExpr) -> tuple[GraphExpr, GraphExpr, GraphExpr]:
    """The data with the steps that count first, how many count up to each step, and how many in all."""
    b = given.call.builder
    batch, steps, *rest = sizes_of(data)
    numbers = b.cast(mask, INT32)
    counts = b.call("cumsum", numbers, axis=1)
    # The place of the k-th step that counts is the number of steps up to which fewer count.
    order = b.reshape(b.arange(steps, dtype=INT32), (1, steps, 1))
    fewer = b.call("less_equal", b.reshape(counts, (batch, 1, steps)), order)
    places = b.reduce("sum", b.cast(fewer, INT64), (2,))
    last = b.scalar(subtract(steps, 1), INT64)
    places = b.call("minimum", places, last)
    starts = b.reshape(b.multiply(b.arange(batch), b.scalar(steps, INT64)), (batch, 1))
    flat = b.reshape(data, (product((batch, steps)), *rest))
    moved = b.call("take", flat, b.add(places, starts), axis=0, mode="clip")
    return moved, counts, b.reduce("sum", numbers, (1,))


def _after_counts(given: _Sequences, rows: GraphExpr, counts: GraphExpr, mask: GraphExpr) -> GraphExpr:
    """The output of each step: the state after as many steps as count, or zero before the first."""
    b = given.call.builder
    total, batch, units = sizes_of(rows)
    steps = sizes_of(counts)[1]
    flat = b.reshape(rows, (product((total, batch)), units))
    places = b.multiply(b.cast(counts, INT64), b.scalar(batch, INT64))
    places = b.add(places, b.reshape(b.arange(batch), (batch, 1)))
    outputs = b.call("take", flat, places, axis=0, mode="clip")
    shown = mask if given.zero_output else b.compare("greater", counts, 0)
    return b.where(b.reshape(shown, (batch, steps, 1)), outputs, 0.0)


def _rows(given: _Sequences, data: GraphExpr, lengths: GraphExpr | None, backward: bool) -> GraphExpr:
    """The states after each number of steps, of one operator over all of them."""
    call, cell, b = given.call, given.cell, given.call.builder
    units, count = cell_units(cell), _GATES[cell.kind]
    batch, steps = sizes_of(data)[:2]
    inside = LayerCall(cell, call.session, [], {})
    features = size_at(data, 2)
    kernel = inside.weight("vars/0", (features, count * units))
    recurrent = inside.weight("vars/1", (units, count * units))
    after = cell.kind == "GRUCell" and cell.flag("reset_after", call.session.version >= 3)
    bias = inner = None
    if cell.flag("use_bias", True):
        bias = inside.weight("vars/2", (2, count * units) if after else (count * units,))
    if after and bias is not None:
        entering_bias, own = b.select(bias, 0, 0), b.select(bias, 0, 1)
        inner = b.slice_axis(own, 0, 2 * units, 3 * units)
        shared = b.concatenate([b.slice_axis(own, 0, 0, 2 * units), b.filled(0, (units,), dtype_of(own))], 0)
        bias = b.add(entering_bias, shared)
    value = b.call("matmul", b.reshape(data, (product((batch, steps)), features)), kernel)
    value = value if bias is None else b.add(value, bias)
    value = b.transpose(b.reshape(value, (batch, steps, count, units)), (1, 0, 2, 3))
    weights = b.transpose(b.reshape(recurrent, (units, count, units)), (1, 2, 0))
    if cell.kind == "LSTMCell":  # input, forget, cell, output -> input, output, forget, cell
        value, weights = (_reordered(given, item, axis) for item, axis in ((value, 2), (weights, 0)))
    states = list(leaves(given.states))
    if len(states) != (2 if cell.kind == "LSTMCell" else 1):
        raise UserError(f"{len(states)} states do not fit a {cell.kind}")
    extra: list[GraphExpr] = [b.filled(0, (units,), cell.dtype) if inner is None else inner] if count == 3 else []
    return b.call(
        _OPERATORS[cell.kind],
        value,
        weights,
        *states,
        *extra,
        *([] if lengths is None else [lengths]),
        activations=_functions(call, cell),
        backward=backward,
        **({"reset_after": after} if count == 3 else {}),
    )


def _reordered(given: _Sequences, value: GraphExpr, axis: int) -> GraphExpr:
    b = given.call.builder
    return b.concatenate([b.slice_axis(value, axis, gate, gate + 1) for gate in (0, 3, 1, 2)], axis)


# By a loop over the steps


def _conv_states(call: LayerCall, cell: Layer, data: GraphExpr) -> list[GraphExpr]:
    """States of zeros, of the shape of one step of what the input gives."""
    b = call.builder
    first = b.select(data, 1, 0)
    sizes = list(sizes_of(projected(LayerCall(cell, call.session, [], {}), first)))
    sizes[1 if cell.channels_first else len(sizes) - 1] = cell.integer("filters")
    return [b.filled(0, sizes, cell.dtype) for _ in range(2)]


def _by_loop(given: _Sequences) -> _Outcome:
    call, cell, b = given.call, given.cell, given.call.builder
    data, mask = given.data, given.mask
    if given.backward:
        data, mask = reverse(b, data, 1), None if mask is None else reverse(b, mask, 1)
    batch, steps, *rest = sizes_of(data)
    inside = LayerCall(cell, call.session, [], {})
    is_conv = cell.kind == "ConvLSTMCell"
    if is_conv:  # the input's share of all steps at once
        merged = projected(inside, b.reshape(data, (product((batch, steps)), *rest)))
        data = b.reshape(merged, (batch, steps, *sizes_of(merged)[1:]))
    by_time = b.transpose(data, (1, 0, *range(2, rank_of(data))))
    masks = None if mask is None else b.transpose(mask, (1, 0))

    def step(value: GraphExpr, states: Sequence[GraphExpr]) -> tuple[GraphExpr, list[GraphExpr]]:
        if is_conv:
            return projected_step(inside, value, states)
        result = call.apply(cell, value, _packed(given.states, [Value(item) for item in states]))
        if not isinstance(result, (list, tuple)) or len(result) < 2 or not isinstance(result[0], Value):
            raise UserError("a cell must give an output and its states", where=cell.where)
        return result[0].expr, [item.expr for item in tensors(list(result[1:]))]

    initial = list(leaves(given.states))
    output, _ = step(b.select(by_time, 0, 0), initial)
    zeros = b.filled(0, sizes_of(output), dtype_of(output))

    def run(number: GraphExpr, carried: list[GraphExpr]) -> Turn:
        captures: list[tuple[GraphExpr, Var]] = []
        value = b.call("take", captured(by_time, captures), number, axis=0, mode="clip")
        states, before = carried[:-1], carried[-1]
        result, fresh = step(value, states)
        if masks is not None:
            counts = b.call("take", captured(masks, captures), number, axis=0, mode="clip")
            held = b.scalar(0.0, dtype_of(result)) if given.zero_output else before
            result = _where(given, counts, result, held)
            fresh = [_where(given, counts, new, old) for new, old in zip(fresh, states, strict=True)]
        return Turn(None, [*fresh, result], [result], captures)

    name = f"{call.layer.name}_steps_{len(call.session.functions)}"
    turns = b.scalar(steps, INT64) if not isinstance(steps, int) else b.constant(steps, INT64)
    results, collected = build_loop(b, call.session.functions, Loop(name, turns, None, [*initial, zeros], run))
    outputs = stack(b, collected[0], steps, 1, name)
    return _Outcome(outputs, results[-1], _packed(given.states, results[:-1]))


def _where(given: _Sequences, counts: GraphExpr, new: GraphExpr, old: GraphExpr) -> GraphExpr:
    b = given.call.builder
    shape = (*sizes_of(counts), *(1,) * (rank_of(new) - 1))
    return b.call("where", b.reshape(counts, shape), new, old)


def _packed(structure: Any, items: Sequence[Any]) -> Any:
    """Items in the structure of others."""
    remaining = iter(items)
    return mapped(lambda _: next(remaining), structure)


# Layers


def _own_cell(item: Layer, kind: str) -> Layer:
    """The cell of a layer whose options are those of its cell."""
    if "cell" not in item.parts:
        item.parts["cell"] = Layer(kind, item.name, item.config, item.weights.child("cell"), depth=item.depth + 1)
    return item.parts["cell"]


def _with_own_cell(name: str, kind: str) -> None:
    def slots(item: Layer) -> Sequence[Slot]:
        return [Slot(f"cell/{slot.path}", slot.trainable) for slot in cell_variables(item)]

    def convert(call: LayerCall) -> Any:
        return _run(call, _own_cell(call.layer, kind))

    convert.__doc__ = f"A {kind} over sequences."
    layer(name, variables=slots)(convert)


for _name, _kind in {"SimpleRNN": "SimpleRNNCell", "LSTM": "LSTMCell", "GRU": "GRUCell"}.items():
    _with_own_cell(_name, _kind)
for _rank in (1, 2, 3):
    _with_own_cell(f"ConvLSTM{_rank}D", "ConvLSTMCell")


def _given_cell(item: Layer) -> Layer:
    described = item.option("cell")
    if isinstance(described, list):
        described = {"class_name": "StackedRNNCells", "config": {"cells": described}}
    return item.part("cell", described)


@layer("RNN", variables=lambda item: under(item, _given_cell(item)))
def recurrent(call: LayerCall) -> Any:
    """Any cell over sequences."""
    return _run(call, _given_cell(call.layer))


def _directions(item: Layer) -> tuple[Layer, Layer]:
    """The layers that go forward and backward."""
    forward = item.part("forward_layer", item.option("layer"))
    described = item.option("backward_layer")
    if described is None:
        described = item.option("layer")
        backward = item.part("backward_layer", described)
        if backward.config is forward.config:
            backward.config = {**forward.config, "go_backwards": not forward.flag("go_backwards")}
    else:
        backward = item.part("backward_layer", described)
    for part in (forward, backward):
        if "zero_output_for_mask" in part.config or part.kind in ("LSTM", "GRU", "SimpleRNN"):
            part.config = {**part.config, "zero_output_for_mask": part.flag("return_sequences")}
    return forward, backward


@layer("Bidirectional", variables=lambda item: [slot for part in _directions(item) for slot in under(item, part)])
def bidirectional(call: LayerCall) -> Any:
    """A layer in both directions, and what both give together."""
    b, options = call.builder, call.layer
    forward, backward = _directions(options)
    given = call.args[0]
    data, *states = given if isinstance(given, (list, tuple)) else [given]
    initial = call.argument("initial_state", 1)
    states = list(initial) if initial is not None else states
    if not isinstance(data, Value):
        raise UserError("Bidirectional needs a sequence")
    data = Value(data.expr, call.mask)
    half = len(states) // 2
    sides: list[list[Value]] = []
    for part, own in ((forward, states[:half]), (backward, states[half:])):
        result = call.apply(part, data, **({"initial_state": own} if own else {}))
        sides.append(tensors(result))
    first, second = (b.cast(side[0].expr, options.dtype) for side in sides)
    if forward.flag("return_sequences"):
        second = reverse(b, second, 1)
    mask = call.mask if forward.flag("return_sequences") else None
    merged = _merged(call, first, second)
    outputs = [Value(item, mask) for item in merged]
    rest = [value for side in sides for value in side[1:]]
    if not rest:
        return outputs[0] if len(outputs) == 1 else tuple(outputs)
    return (*outputs, *rest)


def _merged(call: LayerCall, first: GraphExpr, second: GraphExpr) -> list[GraphExpr]:
    b, mode = call.builder, call.layer.option("merge_mode", "concat")
    match mode:
        case "concat":
            return [b.concatenate([first, second], rank_of(first) - 1)]
        case "sum":
            return [b.add(first, second)]
        case "ave":
            return [b.divide(b.add(first, second), 2.0)]
        case "mul":
            return [b.multiply(first, second)]
        case None:
            return [first, second]
    raise UserError(f"the merge_mode {mode!r} is not known")


@layer("TimeDistributed", variables=lambda item: under(item, item.part("layer", item.option("layer"))), keeps_mask=True)
def time_distributed(call: LayerCall) -> Any:
    """A layer on each step by itself: on all of them as one batch."""
    b, data = call.builder, call.input(0)
    if rank_of(data) < 2:
        raise UserError("TimeDistributed needs data (batch, steps, ...)")
    batch, steps, *rest = sizes_of(data)
    mask = call.mask
    if mask is not None:
        mask = b.reshape(mask, (product((batch, steps)), *sizes_of(mask)[2:])) if rank_of(mask) > 2 else None
    flat = Value(b.reshape(data, (product((batch, steps)), *rest)), mask)
    result = call.apply(call.layer.part("layer", call.layer.option("layer")), flat)

    def split(item: Any) -> Any:
        return b.reshape(item.expr, (batch, steps, *sizes_of(item.expr)[1:]))

    return mapped(split, result)
