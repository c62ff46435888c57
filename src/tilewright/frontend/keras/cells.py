"""Cells of recurrent layers: one step from an input and states to an output and states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.frontend.core.builder import size_at, sizes_of
from tilewright.frontend.keras.activations import activated
from tilewright.frontend.keras.context import LayerCall
from tilewright.frontend.keras.convolution import convolved, with_bias
from tilewright.frontend.keras.layer import Layer, variables
from tilewright.frontend.keras.registry import Slot, layer
from tilewright.frontend.keras.values import leaves, tensors
from tilewright.frontend.keras.variables import under
from tilewright.frontend.keras.windows import extents_of, padded
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UserError


def cell_variables(cell: Layer) -> Sequence[Slot]:
    """The variables of a cell of Keras: kernel, recurrent kernel, bias."""
    return variables(2 + cell.flag("use_bias", True))


def cell_units(cell: Layer) -> int:
    """The size of a state."""
    units = cell.integer("units")
    if units < 1:
        raise UserError(f"units must be positive, it is {units}")
    return units


def step_of(call: LayerCall) -> tuple[GraphExpr, list[GraphExpr]]:
    """The input and the states of one step."""
    states = [value.expr for value in tensors(call.argument("states", 1))]
    if not states:
        raise UserError("a cell needs its states")
    return call.input(0), states


def gates(call: LayerCall, value: GraphExpr, count: int) -> list[GraphExpr]:
    """Parts of the last dimension."""
    units = size_at(value, 1) // count
    return [call.builder.slice_axis(value, 1, units * at, units * (at + 1)) for at in range(count)]


def _bias(call: LayerCall, shape: Sequence[Size]) -> GraphExpr | None:
    return call.weight("vars/2", shape) if call.layer.flag("use_bias", True) else None


@layer("SimpleRNNCell", variables=cell_variables)
def simple_cell(call: LayerCall) -> tuple[GraphExpr, list[GraphExpr]]:
    """The activation of the input's and the state's products."""
    b, units = call.builder, cell_units(call.layer)
    data, states = step_of(call)
    value = b.call("matmul", data, call.weight("vars/0", (size_at(data, 1), units)))
    bias = _bias(call, (units,))
    value = value if bias is None else b.add(value, bias)
    value = b.add(value, b.call("matmul", states[0], call.weight("vars/1", (units, units))))
    output = activated(call, value, call.layer.option("activation", "tanh"))
    return output, [output]


@layer("LSTMCell", variables=cell_variables)
def lstm_cell(call: LayerCall) -> tuple[GraphExpr, list[GraphExpr]]:
    """Gates in the order input, forget, cell, output."""
    b, units = call.builder, cell_units(call.layer)
    data, (hidden, cell, *_) = step_of(call)
    total = b.call("matmul", data, call.weight("vars/0", (size_at(data, 1), 4 * units)))
    total = b.add(total, b.call("matmul", hidden, call.weight("vars/1", (units, 4 * units))))
    bias = _bias(call, (4 * units,))
    total = total if bias is None else b.add(total, bias)
    return _of_gates(call, gates(call, total, 4), cell)


def _of_gates(call: LayerCall, parts: Sequence[GraphExpr], cell: GraphExpr) -> tuple[GraphExpr, list[GraphExpr]]:
    b, options = call.builder, call.layer
    inner, outer = options.option("recurrent_activation", "sigmoid"), options.option("activation", "tanh")
    kept = b.multiply(activated(call, parts[1], inner), cell)
    cell = b.add(kept, b.multiply(activated(call, parts[0], inner), activated(call, parts[2], outer)))
    hidden = b.multiply(activated(call, parts[3], inner), activated(call, cell, outer))
    return hidden, [hidden, cell]


@layer("GRUCell", variables=cell_variables)
def gru_cell(call: LayerCall) -> tuple[GraphExpr, list[GraphExpr]]:
    """Gates in the order update, reset, hidden; the reset before or after the product."""
    b, options, units = call.builder, call.layer, cell_units(call.layer)
    data, (hidden, *_) = step_of(call)
    inner, outer = options.option("recurrent_activation", "sigmoid"), options.option("activation", "tanh")
    after = options.flag("reset_after", call.session.version >= 3)
    entering = b.call("matmul", data, call.weight("vars/0", (size_at(data, 1), 3 * units)))
    recurrent = call.weight("vars/1", (units, 3 * units))
    bias = _bias(call, (2, 3 * units) if after else (3 * units,))
    inner_bias = None
    if bias is not None and after:
        inner_bias = b.select(bias, 0, 1)
        bias = b.select(bias, 0, 0)
    entering = entering if bias is None else b.add(entering, bias)
    update, reset, fresh = gates(call, entering, 3)
    if after:
        own = b.call("matmul", hidden, recurrent)
        own = own if inner_bias is None else b.add(own, inner_bias)
        own_update, own_reset, own_fresh = gates(call, own, 3)
    else:
        own = b.call("matmul", hidden, b.slice_axis(recurrent, 1, 0, 2 * units))
        own_update, own_reset = gates(call, own, 2)
    update = activated(call, b.add(update, own_update), inner)
    reset = activated(call, b.add(reset, own_reset), inner)
    if after:
        own_fresh = b.multiply(reset, own_fresh)
    else:
        last = b.slice_axis(recurrent, 1, 2 * units, 3 * units)
        own_fresh = b.call("matmul", b.multiply(reset, hidden), last)
    fresh = activated(call, b.add(fresh, own_fresh), outer)
    result = b.add(b.multiply(update, hidden), b.multiply(b.subtract(1.0, update), fresh))
    return result, [result]


@layer("StackedRNNCells", variables=lambda item: [slot for cell in stacked(item) for slot in under(item, cell)])
def stacked_cells(call: LayerCall) -> tuple[GraphExpr, list[Any]]:
    """Cells one after the other, each with states of its own."""
    states = call.argument("states", 1)
    cells = stacked(call.layer)
    if not isinstance(states, (list, tuple)) or len(states) != len(cells):
        raise UserError(f"{len(cells)} cells need as many states")
    value = call.input(0)
    after: list[Any] = []
    for cell, own in zip(cells, states, strict=True):
        result = call.apply(cell, value, own if isinstance(own, (list, tuple)) else [own])
        value, given = result[0].expr, list(leaves(result[1]))
        after.append(given if isinstance(own, (list, tuple)) else given[0])
    return value, after


def stacked(cell: Layer) -> list[Layer]:
    """The cells of a stack."""
    return cell.listed_parts("cells", cell.option("cells"))


# Convolutions in the place of products


def conv_rank(cell: Layer) -> int:
    """The number of spatial dimensions of a cell of ConvLSTM."""
    rank = cell.option("rank")
    return len(cell.integers("kernel_size")) if rank is None else cell.integer("rank")


def projected(call: LayerCall, data: GraphExpr) -> GraphExpr:
    """What the input of a cell of ConvLSTM gives its gates, with the bias."""
    options, rank = call.layer, conv_rank(call.layer)
    filters, first = options.integer("filters"), options.channels_first
    extents = extents_of(
        options.integers("kernel_size", rank),
        options.integers("strides", rank, 1),
        options.integers("dilation_rate", rank, 1),
    )
    channels = size_at(data, 1 if first else rank + 1)
    kernel = call.weight("vars/0", (*extents.kernel, channels, 4 * filters))
    wide, extents = padded(call.builder, data, extents, options.text("padding", "valid"), first)
    result = convolved(call.builder, wide, kernel, extents, 1, first)
    bias = _bias(call, (4 * filters,))
    return result if bias is None else with_bias(call.builder, result, bias, first)


def projected_step(
    call: LayerCall, entering: GraphExpr, states: Sequence[GraphExpr]
) -> tuple[GraphExpr, list[GraphExpr]]:
    """One step of a cell of ConvLSTM, from what its input gives the gates."""
    b, options, rank = call.builder, call.layer, conv_rank(call.layer)
    hidden, cell = states[:2]
    filters, first = options.integer("filters"), options.channels_first
    ones = (1,) * rank
    extents = extents_of(options.integers("kernel_size", rank), ones, ones)
    kernel = call.weight("vars/1", (*extents.kernel, filters, 4 * filters))
    wide, extents = padded(b, hidden, extents, "same", first)
    total = b.add(entering, convolved(b, wide, kernel, extents, 1, first))
    axis = 1 if first else rank + 1
    parts = [b.slice_axis(total, axis, filters * at, filters * (at + 1)) for at in range(4)]
    return _of_gates(call, parts, cell)


@layer("ConvLSTMCell", variables=cell_variables)
def conv_lstm_cell(call: LayerCall) -> tuple[GraphExpr, list[GraphExpr]]:
    """Gates in the order input, forget, cell, output; products are convolutions."""
    data, states = step_of(call)
    return projected_step(call, projected(call, data), states)


def initial_states(call: LayerCall, cell: Layer, data: GraphExpr) -> Any:
    """States of zeros for data (batch, steps, ...), in the structure that a cell has them in."""
    b, batch = call.builder, sizes_of(data)[0]
    if cell.kind == "StackedRNNCells":
        return [_unpacked(item, initial_states(call, item, data)) for item in stacked(cell)]
    if cell.kind == "ConvLSTMCell":
        raise UserError("a ConvLSTMCell belongs into a ConvLSTM layer")
    count = 2 if cell.kind == "LSTMCell" else 1
    sizes = [cell_units(cell)] * count
    declared = cell.option("state_size")
    if declared is not None and cell.kind not in ("LSTMCell", "GRUCell", "SimpleRNNCell"):
        sizes = list(cell.integers("state_size"))
    return [b.filled(0, (batch, size), cell.dtype) for size in sizes]


def _unpacked(cell: Layer, states: Any) -> Any:
    return states[0] if cell.kind in ("SimpleRNNCell", "GRUCell") and len(states) == 1 else states
