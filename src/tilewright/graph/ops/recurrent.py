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
    results = [np.empty((steps + 1, *state.shape), state.dtype) for state in states]
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


Product = Callable[[Array, slice], Array]
"""States (batch, size) times the weights of some gates: (batch, gates, size)."""


def float_product(weights: Array, wide: np.dtype[np.generic]) -> Product:
    """The product with weights (gates, size, size) of a float type."""
    matrix = weights.astype(wide)
    return lambda state, gates: np.einsum("bk,gnk->bgn", state, matrix[gates])


def _lstm(args: list[Array], attributes: LstmAttributes) -> tuple[Array, Array]:
    data, weights, *rest = args
    return lstm_states(attributes, data, float_product(weights, accumulation_type(data.dtype)), rest)


def lstm_states(
    attributes: LstmAttributes, data: Array, product: Product, rest: Sequence[Array | None]
) -> tuple[Array, Array]:
    """All states of a long short-term memory; `rest` are hidden state, cell, and perhaps lengths and peepholes."""
    hidden, cell, lengths, peepholes = (*rest, None, None)[:4]
    assert hidden is not None and cell is not None
    wide = accumulation_type(data.dtype)
    peep = np.zeros((3, hidden.shape[1]), wide) if peepholes is None else peepholes.astype(wide)

    def step_of(entered: Array, states: list[Array]) -> list[Array]:
        return _updated(entered + product(states[0], slice(None)), states[1], peep, attributes)

    hiddens, cells = _run(attributes, data, [hidden, cell], lengths, step_of)
    return hiddens, cells


def _gru(args: list[Array], attributes: GruAttributes) -> Array:
    data, weights, *rest = args
    return gru_states(attributes, data, float_product(weights, accumulation_type(data.dtype)), rest)


def gru_states(attributes: GruAttributes, data: Array, product: Product, rest: Sequence[Array]) -> Array:
    """All states of a gated recurrent unit; `rest` are hidden state, bias, and perhaps lengths."""
    wide = accumulation_type(data.dtype)
    f, g = _functions(attributes, wide)
    inner = rest[1].astype(wide)

    def step_of(entered: Array, states: list[Array]) -> list[Array]:
        (old,) = states
        gates = entered[:, :2] + product(old, slice(2))
        update, reset = f(_clipped(gates[:, 0], attributes)), f(_clipped(gates[:, 1], attributes))
        if attributes.reset_after:
            linear = reset * (product(old, slice(2, 3))[:, 0] + inner)
        else:
            linear = product((reset * old).astype(data.dtype).astype(wide), slice(2, 3))[:, 0] + inner
        candidate = g(_clipped(entered[:, 2] + linear, attributes))
        return [(1 - update) * candidate + update * old]

    return _run(attributes, data, [rest[0]], rest[2] if len(rest) > 2 else None, step_of)[0]


def _rnn(args: list[Array], attributes: RecurrentAttributes) -> Array:
    data, weights, *rest = args
    return rnn_states(attributes, data, float_product(weights, accumulation_type(data.dtype)), rest)


def rnn_states(attributes: RecurrentAttributes, data: Array, product: Product, rest: Sequence[Array]) -> Array:
    """All states of a plain recurrent network; `rest` are hidden state, and perhaps lengths."""
    (f,) = _functions(attributes, accumulation_type(data.dtype))

    def step_of(entered: Array, states: list[Array]) -> list[Array]:
        return [f(_clipped(entered[:, 0] + product(states[0], slice(None))[:, 0], attributes))]

    return _run(attributes, data, [rest[0]], rest[1] if len(rest) > 1 else None, step_of)[0]


def state_type(
    types: Types,
    attributes: RecurrentAttributes,
    names: Sequence[str],
    gates: int,
    functions: int,
    states: int,
    apart: Sequence[str] = (),
) -> TensorType:
    """The type of all rows of a state; checks data, weights, initial states and lengths.

    The inputs `apart` may have other float types than the rest, which are of one.
    """
    found = tensors(types, names)
    numbers = {name: item for name, item in zip(names, found, strict=False) if name not in ("lengths", *apart)}
    dtype = same_dtype(list(numbers.values()), list(numbers))
    require_float(dtype, "the inputs")
    for name, item in zip(names, found, strict=False):
        if name in apart:
            require_float(item.dtype, name)
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
        check_shape(item, (batch, size), name)
    if "lengths" in names[: len(found)]:
        lengths = found[names.index("lengths")]
        require_integer(lengths.dtype, "the lengths")
        check_shape(lengths, (batch,), "lengths")
    return TensorType((add(steps, 1), batch, size), dtype)


def check_shape(found: TensorType, shape: tuple[Dim, ...], what: str) -> None:
    """Require a shape, as far as it is known."""
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
    all hidden states and all cells, (steps + 1, batch, size) each. Weights and hidden states may have a shorter type
    than the cells; data and peepholes have any.
    """
    apart = ("data", "cell", "peepholes")
    kind = state_type(types, attributes, _LSTM_INPUTS, gates=4, functions=3, states=2, apart=apart)
    found = tensors(types, _LSTM_INPUTS)
    if len(types) == 6 and kind.shape is not None:
        check_shape(found[5], (IntImm(3), kind.shape[2]), "peepholes")
    return TupleType((kind, TensorType(kind.shape, found[3].dtype)))


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
    check_shape(cell, (batch, size), "cell")
    check_shape(weights, (IntImm(4), size, add(data.shape[1], size)), "weights")
    check_shape(bias, (IntImm(4), size), "bias")
    kind = TensorType((batch, size), dtype)
    return TupleType((kind, kind))


_GRU_INPUTS = ("data", "weights", "hidden", "bias", "lengths")


@operator("nn.gru", inputs=_GRU_INPUTS, optional=1, kind=FusionKind.OPAQUE, reference=_gru, attributes=GruAttributes)
def gru(types: Types, attributes: GruAttributes) -> Type:
    """A gated recurrent unit over `data` (steps, batch, 3, size), gates in the order update, reset, hidden.

    `bias` (size,) is added to the state's product of the hidden gate, inside the reset where that comes after. Gives
    all hidden states, (steps + 1, batch, size).
    """
    kind = state_type(types, attributes, _GRU_INPUTS, gates=3, functions=2, states=1)
    if kind.shape is not None:
        check_shape(tensors(types, _GRU_INPUTS)[3], (kind.shape[2],), "bias")
    return kind


_RNN_INPUTS = ("data", "weights", "hidden", "lengths")


@operator(
    "nn.rnn", inputs=_RNN_INPUTS, optional=1, kind=FusionKind.OPAQUE, reference=_rnn, attributes=RecurrentAttributes
)
def rnn(types: Types, attributes: RecurrentAttributes) -> Type:
    """A recurrent network over `data` (steps, batch, 1, size): the state is the activation of data plus product.

    Gives all hidden states, (steps + 1, batch, size).
    """
    return state_type(types, attributes, _RNN_INPUTS, gates=1, functions=1, states=1)
