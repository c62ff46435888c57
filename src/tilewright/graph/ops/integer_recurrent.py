"""Recurrent layers with weights of bytes: in each step the state becomes integers of 16 bits.

`round(h / unit)` with `unit = max|h| / 32512`, for each sequence; sums of their products with the weights are exact,
and are scaled once. The pass `integer_recurrence` makes these of `nn.lstm`, `nn.gru` and `nn.rnn`, whose other inputs
and results they have. Weights are (weights + offset) * scale: (gates, size, depth) with a scale (gates, size) for each
row, where `depth` is at least the size; what is beyond it is not read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.graph.ir.op import Array, FusionKind, Types, operator
from tilewright.graph.ops.common import require_rank, tensors
from tilewright.graph.ops.recurrent import (
    GruAttributes,
    LstmAttributes,
    Product,
    RecurrentAttributes,
    check_shape,
    gru_states,
    lstm_states,
    rnn_states,
    state_type,
)
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.expr import IntImm
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, TupleType, Type
from tilewright.support.errors import UserError

LEVELS = 127 * 256
"""The largest level of a state in 16 bits: two digits of a byte each."""


@node()
class IntegerLstmAttributes(LstmAttributes):
    """Also what is added to every weight as it is stored."""

    offset: int = 0


@node()
class IntegerGruAttributes(GruAttributes):
    """Also what is added to every weight as it is stored."""

    offset: int = 0


@node()
class IntegerRnnAttributes(RecurrentAttributes):
    """Also what is added to every weight as it is stored."""

    offset: int = 0


def _integer_product(weights: Array, scale: Array, size: int, offset: int) -> Product:
    """States as integers times weights of bytes, scaled."""
    matrix = weights[:, :, :size].astype(np.float64) + offset

    def product(state: Array, gates: slice) -> Array:
        peak = np.abs(state).max(axis=1, initial=0, keepdims=True)
        unit = np.where(peak == 0, np.float32(1), peak * np.float32(1 / LEVELS))
        levels = np.nan_to_num(np.rint(state * (np.float32(1) / unit)))
        sums = np.einsum("bk,gnk->bgn", levels.astype(np.float64), matrix[gates]).astype(np.float32)
        return np.asarray(sums * (unit[:, :, np.newaxis] * scale[gates]))

    return product


def _lstm(args: list[Array], attributes: IntegerLstmAttributes) -> tuple[Array, Array]:
    data, weights, scale, *rest = args
    product = _integer_product(weights, scale, rest[0].shape[1], attributes.offset)
    return lstm_states(attributes, data, product, rest)


def _gru(args: list[Array], attributes: IntegerGruAttributes) -> Array:
    data, weights, scale, *rest = args
    return gru_states(attributes, data, _integer_product(weights, scale, rest[0].shape[1], attributes.offset), rest)


def _rnn(args: list[Array], attributes: IntegerRnnAttributes) -> Array:
    data, weights, scale, *rest = args
    return rnn_states(attributes, data, _integer_product(weights, scale, rest[0].shape[1], attributes.offset), rest)


def _integer_state_type(
    types: Types, attributes: RecurrentAttributes, names: Sequence[str], gates: int, functions: int, states: int
) -> TensorType:
    """The checks of the layer of floats, with weights of no known sizes; those of bytes, and of their scales."""
    found = tensors(types, names)
    data, weights, scale = found[:3]
    if weights.dtype.name not in ("int8", "uint8"):
        raise UserError(f"the weights must be 8-bit integers, they are {weights.dtype}")
    like = TensorType(None, data.dtype)
    kind = state_type(
        [types[0], like, *types[3:]], attributes, [names[0], "weights", *names[3:]], gates, functions, states
    )
    if kind.dtype is not FLOAT32:
        raise UserError(f"the states must be float32, they are {kind.dtype}")
    if kind.shape is not None:
        check_shape(scale, (IntImm(gates), kind.shape[2]), "scale")
    if weights.shape is not None:
        require_rank(weights.shape, 3, "the weights")
    return kind


_LSTM_INPUTS = ("data", "weights", "scale", "hidden", "cell", "lengths", "peepholes")


@operator(
    "qnn.lstm",
    inputs=_LSTM_INPUTS,
    optional=2,
    kind=FusionKind.OPAQUE,
    reference=_lstm,
    attributes=IntegerLstmAttributes,
)
def integer_lstm(types: Types, attributes: IntegerLstmAttributes) -> Type:
    """The long short-term memory `nn.lstm` with weights of bytes: (weights + offset) * scale, a scale (4, size) a row.

    In each step the hidden state of a sequence becomes integers of 16 bits, `round(h / unit)` with `unit = max|h| /
    32512`; sums of their products with the weights are exact, and are scaled once. Weights are (4, size, depth), where
    `depth` is at least the size; what is beyond it is not read.
    """
    kind = _integer_state_type(types, attributes, _LSTM_INPUTS, gates=4, functions=3, states=2)
    if len(types) == 7 and kind.shape is not None:
        check_shape(tensors(types, _LSTM_INPUTS)[6], (IntImm(3), kind.shape[2]), "peepholes")
    return TupleType((kind, kind))


_GRU_INPUTS = ("data", "weights", "scale", "hidden", "bias", "lengths")


@operator(
    "qnn.gru",
    inputs=_GRU_INPUTS,
    optional=1,
    kind=FusionKind.OPAQUE,
    reference=_gru,
    attributes=IntegerGruAttributes,
)
def integer_gru(types: Types, attributes: IntegerGruAttributes) -> Type:
    """The gated recurrent unit `nn.gru` with weights of bytes, as `qnn.lstm` has them.

    Where the state is reset before its product with the weights, what is left of it becomes integers of its own.
    """
    kind = _integer_state_type(types, attributes, _GRU_INPUTS, gates=3, functions=2, states=1)
    if kind.shape is not None:
        check_shape(tensors(types, _GRU_INPUTS)[4], (kind.shape[2],), "bias")
    return kind


_RNN_INPUTS = ("data", "weights", "scale", "hidden", "lengths")


@operator(
    "qnn.rnn",
    inputs=_RNN_INPUTS,
    optional=1,
    kind=FusionKind.OPAQUE,
    reference=_rnn,
    attributes=IntegerRnnAttributes,
)
def integer_rnn(types: Types, attributes: IntegerRnnAttributes) -> Type:
    """The recurrent network `nn.rnn` with weights of bytes, as `qnn.lstm` has them."""
    return _integer_state_type(types, attributes, _RNN_INPUTS, gates=1, functions=1, states=1)
