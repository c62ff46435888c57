"""Recurrent layers as whole sequences: LSTM, GRU and the plain recurrent network.

An operator takes the gates' share of the input for all steps (`data`: the input times its weights plus biases, one
matrix product made before) and runs the recurrence. Its result has one row more than there are steps: row 0 is the
initial state, row t the state after t steps, so that outputs and last states are parts of it.

`backward` runs the data from the last step to the first: row t then belongs to step `steps - t`. Where `lengths` are
given, a sequence keeps its state in steps at or beyond its length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Array, FusionKind, Types, operator
from tilewright.graph.ops import special
from tilewright.graph.ops.common import (
    Dim,
    add,
    agree,
    require_float,
    require_integer,
    require_rank,
    same_dtype,
    tensors,
)
from tilewright.graph.ops.contract import accumulation_type
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.expr import IntImm
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, TupleType, Type
from tilewright.support.errors import UserError

ACTIVATIONS: dict[str, Callable[[Array, float, float], Array]] = {
    "sigmoid": lambda x, a, b: special.sigmoid(x),
    "tanh": lambda x, a, b: np.tanh(x),
    "relu": lambda x, a, b: np.maximum(x, 0),
    "softplus": lambda x, a, b: np.logaddexp(0, x),
    "softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "affine": lambda x, a, b: a * x + b,
    "leaky_relu": lambda x, a, b: np.where(x < 0, a * x, x),
    "thresholded_relu": lambda x, a, b: np.where(x > a, x, 0),
    "scaled_tanh": lambda x, a, b: a * np.tanh(b * x),
    "hard_sigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "elu": lambda x, a, b: np.where(x > 0, x, a * np.expm1(np.minimum(x, 0))),
}
"""The activation functions of gates, by name, of a value and the two parameters that some of them have."""


@node()
class RecurrentAttributes(Attributes):
    """Activation functions in the order of the operator, each with parameters (alpha, beta); how the steps run.

    `clip` limits what activations get to [-clip, clip].
    """

    activations: tuple[tuple[str, float, float], ...] = ()
    clip: float | None = None
    backward: bool = False


@node()
class LstmAttributes(RecurrentAttributes):
    """With `coupled`, the forget gate is one minus the input gate."""

    coupled: bool = False


LEVELS = 127 * 256
"""The largest level of a state in 16 bits: two digits of a byte each."""


@node()
class IntegerLstmAttributes(LstmAttributes):
    """Also what is added to every weight as it is stored."""

    offset: int = 0


@node()
class GruAttributes(RecurrentAttributes):
    """With `reset_after`, the state's product with the weights is reset, not the state before it."""

    reset_after: bool = False


def _functions(attributes: RecurrentAttributes, wide: np.dtype[np.generic]) -> list[Callable[[Array], Array]]:
    def make(name: str, alpha: float, beta: float) -> Callable[[Array], Array]:
        return lambda x: np.asarray(ACTIVATIONS[name](x, alpha, beta), wide)

    return [make(*item) for item in attributes.activations]


def _clipped(x: Array, attributes: RecurrentAttributes) -> Array:
    return x if attributes.clip is None else np.clip(x, -attributes.clip, attributes.clip)


def _run(
    attributes: RecurrentAttributes,
    data: Array,
    states: Sequence[Array],
    lengths: Array | None,
    step_of: Callable[[Array, list[Array]], list[Array]],
) -> list[Array]:
    """All states of all steps, initial ones first, from a function of one step's data and the states before it."""
    wide = accumulation_type(data.dtype)
    steps = data.shape[0]
    results = [np.empty((steps + 1, *state.shape), data.dtype) for state in states]
    for result, state in zip(results, states, strict=True):
        result[0] = state
    with np.errstate(all="ignore"):
        for row in range(1, steps + 1):
            step = steps - row if attributes.backward else row - 1
            before = [result[row - 1].astype(wide) for result in results]
            after = step_of(data[step].astype(wide), before)
            for result, old, new in zip(results, before, after, strict=True):
                running = True if lengths is None else (step < lengths)[:, np.newaxis]
                result[row] = np.where(running, new, old)
    return results


def _lstm_step(args: list[Array], attributes: LstmAttributes) -> tuple[Array, Array]:
    data, hidden, cell, weights, bias = args
    wide = accumulation_type(hidden.dtype)
    source = np.concatenate([data.astype(wide), hidden.astype(wide)], axis=1)
    with np.errstate(all="ignore"):
        gates = np.einsum("bk,gnk->bgn", source, weights.astype(wide)) + bias.astype(wide)
        new = _updated(gates, cell.astype(wide), np.zeros((3, hidden.shape[1]), wide), attributes)
    return new[0].astype(hidden.dtype), new[1].astype(hidden.dtype)


def _updated(gates: Array, cell: Array, peep: Array, attributes: LstmAttributes) -> list[Array]:
    """The hidden state and the cell after a step, from what enters its gates."""
    f, g, h = _functions(attributes, gates.dtype)
    enter = f(_clipped(gates[:, 0] + peep[0] * cell, attributes))
    forget = 1 - enter if attributes.coupled else f(_clipped(gates[:, 2] + peep[2] * cell, attributes))
    fresh = forget * cell + enter * g(_clipped(gates[:, 3], attributes))
    leave = f(_clipped(gates[:, 1] + peep[1] * fresh, attributes))
    return [leave * h(fresh), fresh]


def _lstm(args: list[Array], attributes: LstmAttributes) -> tuple[Array, Array]:
    data, weights, hidden, cell, lengths, peepholes = (*args, None, None)[:6]
    assert data is not None and weights is not None and hidden is not None and cell is not None
    wide = accumulation_type(data.dtype)
    matrix = weights.astype(wide)
    peep = np.zeros((3, hidden.shape[1]), wide) if peepholes is None else peepholes.astype(wide)

    def step_of(entered: Array, states: list[Array]) -> list[Array]:
        return _updated(entered + np.einsum("bk,gnk->bgn", states[0], matrix), states[1], peep, attributes)

    hiddens, cells = _run(attributes, data, [hidden, cell], lengths, step_of)
    return hiddens, cells


def _integer_lstm(args: list[Array], attributes: IntegerLstmAttributes) -> tuple[Array, Array]:
    data, weights, scale, hidden, cell, lengths, peepholes = (*args, None, None)[:7]
    assert data is not None and weights is not None and scale is not None and hidden is not None and cell is not None
    size = hidden.shape[1]
    matrix = weights[:, :, :size].astype(np.float64) + attributes.offset
    peep = np.zeros((3, size), np.float32) if peepholes is None else peepholes

    def step_of(entered: Array, states: list[Array]) -> list[Array]:
        peak = np.abs(states[0]).max(axis=1, initial=0, keepdims=True)
        unit = np.where(peak == 0, np.float32(1), peak * np.float32(1 / LEVELS))
        levels = np.nan_to_num(np.rint(states[0] * (np.float32(1) / unit)))
        sums = np.einsum("bk,gnk->bgn", levels.astype(np.float64), matrix).astype(np.float32)
        return _updated(entered + sums * (unit[:, :, np.newaxis] * scale), states[1], peep, attributes)

    hiddens, cells = _run(attributes, data, [hidden, cell], lengths, step_of)
    return hiddens, cells


def _gru(args: list[Array], attributes: GruAttributes) -> Array:
    data, weights, hidden, bias = args[:4]
    wide = accumulation_type(data.dtype)
    f, g = _functions(attributes, wide)
    matrix, inner = weights.astype(wide), bias.astype(wide)

    def step_of(entered: Array, states: list[Array]) -> list[Array]:
        (old,) = states
        gates = entered[:, :2] + np.einsum("bk,gnk->bgn", old, matrix[:2])
        update, reset = f(_clipped(gates[:, 0], attributes)), f(_clipped(gates[:, 1], attributes))
        if attributes.reset_after:
            product = reset * (old @ matrix[2].T + inner)
        else:
            product = (reset * old).astype(data.dtype).astype(wide) @ matrix[2].T + inner
        candidate = g(_clipped(entered[:, 2] + product, attributes))
        return [(1 - update) * candidate + update * old]

    return _run(attributes, data, [hidden], args[4] if len(args) > 4 else None, step_of)[0]


def _rnn(args: list[Array], attributes: RecurrentAttributes) -> Array:
    data, weights, hidden = args[:3]
    wide = accumulation_type(data.dtype)
    (f,) = _functions(attributes, wide)
    matrix = weights.astype(wide)[0]

    def step_of(entered: Array, states: list[Array]) -> list[Array]:
        return [f(_clipped(entered[:, 0] + states[0] @ matrix.T, attributes))]

    return _run(attributes, data, [hidden], args[3] if len(args) > 3 else None, step_of)[0]


def _state_type(
    types: Types, attributes: RecurrentAttributes, names: Sequence[str], gates: int, functions: int, states: int
) -> TensorType:
    """The type of all rows of a state; checks data, weights, initial states and lengths."""
    found = tensors(types, names)
    numbers = {name: item for name, item in zip(names, found, strict=False) if name != "lengths"}
    dtype = same_dtype(list(numbers.values()), list(numbers))
    require_float(dtype, "the inputs")
    if len(attributes.activations) != functions:
        raise UserError(f"{functions} activations are needed, there are {len(attributes.activations)}")
    for name, _, _ in attributes.activations:
        if name not in ACTIVATIONS:
            raise UserError(f"unknown activation {name!r}", hint=f"one of {', '.join(ACTIVATIONS)}")
    data, weights = found[0].shape, found[1].shape
    if data is None:
        return TensorType(None, dtype)
    require_rank(data, 4, "the data")
    steps, batch, count, size = data
    agree(count, IntImm(gates), "the gates of the data")
    if weights is not None:
        require_rank(weights, 3, "the weights")
        for dim, wanted in zip(weights, (IntImm(gates), size, size), strict=True):
            agree(dim, wanted, "the weights and the data")
    for name, item in zip(names[2 : 2 + states], found[2:], strict=False):
        _check(item, (batch, size), name)
    if "lengths" in names[: len(found)]:
        lengths = found[names.index("lengths")]
        require_integer(lengths.dtype, "the lengths")
        _check(lengths, (batch,), "lengths")
    return TensorType((add(steps, 1), batch, size), dtype)


def _check(found: TensorType, shape: tuple[Dim, ...], what: str) -> None:
    if found.shape is None:
        return
    require_rank(found.shape, len(shape), what)
    for dim, wanted in zip(found.shape, shape, strict=True):
        agree(dim, wanted, what)


_LSTM_INPUTS = ("data", "weights", "hidden", "cell", "lengths", "peepholes")


@operator(
    "nn.lstm",
    inputs=_LSTM_INPUTS,
    optional=2,
    kind=FusionKind.OPAQUE,
    reference=_lstm,
    attributes=LstmAttributes,
)
def lstm(types: Types, attributes: LstmAttributes) -> Type:
    """A long short-term memory over `data` (steps, batch, 4, size), gates in the order input, output, forget, cell.

    Weights are (4, size, size), states (batch, size), peepholes (3, size) in the order input, output, forget. Gives
    all hidden states and all cells, (steps + 1, batch, size) each.
    """
    kind = _state_type(types, attributes, _LSTM_INPUTS, gates=4, functions=3, states=2)
    if len(types) == 6 and kind.shape is not None:
        _check(tensors(types, _LSTM_INPUTS)[5], (IntImm(3), kind.shape[2]), "peepholes")
    return TupleType((kind, kind))


_INTEGER_INPUTS = ("data", "weights", "scale", "hidden", "cell", "lengths", "peepholes")


@operator(
    "qnn.lstm",
    inputs=_INTEGER_INPUTS,
    optional=2,
    kind=FusionKind.OPAQUE,
    reference=_integer_lstm,
    attributes=IntegerLstmAttributes,
)
def integer_lstm(types: Types, attributes: IntegerLstmAttributes) -> Type:
    """The long short-term memory `nn.lstm` with weights of bytes: (weights + offset) * scale, a scale (4, size) a row.

    In each step the hidden state of a sequence becomes integers of 16 bits, `round(h / unit)` with `unit = max|h| /
    32512`; sums of their products with the weights are exact, and are scaled once. Weights are (4, size, depth), where
    `depth` is at least the size; what is beyond it is not read.
    """
    weights, scale = tensors(types, _INTEGER_INPUTS)[1:3]
    if weights.dtype.name not in ("int8", "uint8"):
        raise UserError(f"the weights must be 8-bit integers, they are {weights.dtype}")
    numbers = [item for place, item in enumerate(types) if place not in (1, 2)]
    names = [name for name in _INTEGER_INPUTS if name not in ("weights", "scale")]
    data = tensors(types, _INTEGER_INPUTS)[0]
    # The checks of `nn.lstm`, with weights of no known sizes.
    like = TensorType(None, data.dtype)
    kind = _state_type([numbers[0], like, *numbers[1:]], attributes, [names[0], "weights", *names[1:]], 4, 3, 2)
    if kind.dtype is not FLOAT32:
        raise UserError(f"the states must be float32, they are {kind.dtype}")
    if kind.shape is not None:
        _check(scale, (IntImm(4), kind.shape[2]), "scale")
        if len(types) == 7:
            _check(tensors(types, _INTEGER_INPUTS)[6], (IntImm(3), kind.shape[2]), "peepholes")
    if weights.shape is not None:
        require_rank(weights.shape, 3, "the weights")
    return TupleType((kind, kind))


_STEP_INPUTS = ("data", "hidden", "cell", "weights", "bias")


@operator("nn.lstm_step", inputs=_STEP_INPUTS, kind=FusionKind.OPAQUE, reference=_lstm_step, attributes=LstmAttributes)
def lstm_step(types: Types, attributes: LstmAttributes) -> Type:
    """One step of a long short-term memory with all its products: the hidden state and the cell after it.

    `data` is (batch, inputs), states are (batch, size). Weights (4, size, inputs + size) are of the data and the hidden
    state, side by side, bias is (4, size), gates in the order input, output, forget, cell. Data, weights and bias may
    have a shorter type than the states.
    """
    found = tensors(types, _STEP_INPUTS)
    for name, item in zip(_STEP_INPUTS, found, strict=True):
        require_float(item.dtype, name)
    data, hidden, cell, weights, bias = found
    dtype = same_dtype([hidden, cell], ["hidden", "cell"])
    if len(attributes.activations) != 3:
        raise UserError(f"3 activations are needed, there are {len(attributes.activations)}")
    if hidden.shape is None or data.shape is None:
        return TupleType((TensorType(None, dtype), TensorType(None, dtype)))
    require_rank(hidden.shape, 2, "hidden")
    require_rank(data.shape, 2, "the data")
    batch, size = hidden.shape
    agree(data.shape[0], batch, "the data and the states")
    _check(cell, (batch, size), "cell")
    _check(weights, (IntImm(4), size, add(data.shape[1], size)), "weights")
    _check(bias, (IntImm(4), size), "bias")
    kind = TensorType((batch, size), dtype)
    return TupleType((kind, kind))


_GRU_INPUTS = ("data", "weights", "hidden", "bias", "lengths")


@operator("nn.gru", inputs=_GRU_INPUTS, optional=1, kind=FusionKind.OPAQUE, reference=_gru, attributes=GruAttributes)
def gru(types: Types, attributes: GruAttributes) -> Type:
    """A gated recurrent unit over `data` (steps, batch, 3, size), gates in the order update, reset, hidden.

    `bias` (size,) is added to the state's product of the hidden gate, inside the reset where that comes after. Gives
    all hidden states, (steps + 1, batch, size).
    """
    kind = _state_type(types, attributes, _GRU_INPUTS, gates=3, functions=2, states=1)
    if kind.shape is not None:
        _check(tensors(types, _GRU_INPUTS)[3], (kind.shape[2],), "bias")
    return kind


_RNN_INPUTS = ("data", "weights", "hidden", "lengths")


@operator(
    "nn.rnn", inputs=_RNN_INPUTS, optional=1, kind=FusionKind.OPAQUE, reference=_rnn, attributes=RecurrentAttributes
)
def rnn(types: Types, attributes: RecurrentAttributes) -> Type:
    """A recurrent network over `data` (steps, batch, 1, size): the state is the activation of data plus product.

    Gives all hidden states, (steps + 1, batch, size).
    """
    return _state_type(types, attributes, _RNN_INPUTS, gates=1, functions=1, states=1)
