"""How large sums of products of bytes can be, from their constant weights and biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tilewright.graph.ir.expr import Call, Constant, GraphExpr
from tilewright.graph.ir.op import is_call_to
from tilewright.ir.dtype import INT8, UINT8

Array = npt.NDArray[Any]
_CHANNELS: Final = {"qnn.matmul": (2, 1), "qnn.line_conv2d": (3, 2), "qnn.conv2d": (4, 3), "qnn.window_dots": (5, 3)}
"""How many axes their weights have, and which one is that of the results' channels."""


@dataclass(frozen=True, slots=True)
class BoundedSum:
    """A product, what is added to it, and the least and the greatest sum that any bytes give: numbers by channel."""

    product: Call
    bias: Array
    least: Array
    most: Array


def bounded_sum(total: GraphExpr) -> BoundedSum | None:
    """The bounds of `product`, or of `product + bias`; None where something is not known now."""
    product = total
    bias: Array = np.zeros((), np.int32)
    if is_call_to(total, "add") and isinstance(total, Call) and isinstance(total.args[1], Constant):
        product, bias = total.args[0], total.args[1].data
    known = next((axes for name, axes in _CHANNELS.items() if is_call_to(product, name)), None)
    if known is None or not isinstance(product, Call) or product.type is not total.type:
        return None
    data, weight = product.args[:2]
    rank, axis = known
    if not isinstance(weight, Constant) or weight.data.ndim != rank or data.tensor_type.dtype not in (INT8, UINT8):
        return None
    shifts = by_channel(bias, weight.data.shape[axis])
    if shifts is None:
        return None
    low, high = data.tensor_type.dtype.min_value(), data.tensor_type.dtype.max_value()
    # Weights of neighbouring windows are the same ones at other places: of those of the first, all are there.
    numbers = (weight.data[0] if rank == 5 else weight.data).astype(np.int64)
    over = tuple(n for n in range(numbers.ndim) if n != axis - (rank == 5))
    least = np.minimum(numbers * low, numbers * high).sum(axis=over) + shifts
    most = np.maximum(numbers * low, numbers * high).sum(axis=over) + shifts
    return BoundedSum(product, shifts, least, most)


def by_channel(values: Array, channels: int) -> Array | None:
    """A number for each channel, of one for all or of those along the last axis; None if they lie otherwise."""
    if values.size not in (1, channels) or (values.size > 1 and values.shape[-1] != channels):
        return None
    return np.broadcast_to(values.reshape(-1), (channels,)).astype(np.int64)
