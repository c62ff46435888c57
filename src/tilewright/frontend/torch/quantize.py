"""Converters of quantised programs (PyTorch 2 export quantisation): what `quantized_decomposed` operators compute.

Torch multiplies by the inverse of a scale where ONNX divides by the scale: a value that lies between two integers may
go to the other one. Converters spell out what torch does, so that integers are the same.
"""

from __future__ import annotations

import numpy as np

from tilewright.frontend.core.builder import dtype_of, evaluate, rank_of, sizes_of
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.registry import converter
from tilewright.graph.ir.expr import Constant, GraphExpr
from tilewright.graph.ir.rewrite import make
from tilewright.ir.dtype import FLOAT32, FLOAT64, INT32, INT64, UINT8, DataType
from tilewright.support.errors import UnsupportedError

_LIBRARY = "quantized_decomposed::"


def _levels(
    b: TorchBuilder, steps: GraphExpr, zero: GraphExpr | int, low: GraphExpr | int, high: GraphExpr | int, to: DataType
) -> GraphExpr:
    """clip(round(steps) + zero, low, high) as integers."""
    ends = []
    for end in (low, high):
        known = evaluate(end) if isinstance(end, GraphExpr) else np.asarray(end)
        if known is None:
            raise UnsupportedError("quantisation to a range that is computed when the program runs")
        ends.append(float(known.reshape(())))
    whole = b.call("round", steps)
    if isinstance(zero, GraphExpr) or zero:
        whole = b.add(whole, b.operand(zero, dtype_of(whole)))
    return b.cast(b.call("clip", whole, minimum=ends[0], maximum=ends[1]), to)


def _number(b: TorchBuilder, value: GraphExpr | float, dtype: DataType) -> GraphExpr:
    """A scale or zero point, one number, of a data type."""
    return b.cast(b.reshape(value, ()), dtype) if isinstance(value, GraphExpr) else b.scalar(value, dtype)


def _along(b: TorchBuilder, value: GraphExpr, data: GraphExpr, axis: int) -> GraphExpr:
    """One number for each place along an axis."""
    return b.reshape(value, (sizes_of(value)[0], *(1,) * (rank_of(data) - b.axis(axis, rank_of(data)) - 1)))


@converter(f"{_LIBRARY}quantize_per_tensor")
def quantize_per_tensor(
    b: TorchBuilder,
    input: GraphExpr,
    scale: GraphExpr | float,
    zero_point: GraphExpr | int,
    quant_min: GraphExpr | int,
    quant_max: GraphExpr | int,
    dtype: DataType,
) -> GraphExpr:
    """round(x * (1 / scale)) + zero, the inverse computed in float64 and rounded to float32."""
    inverse = b.cast(b.divide(b.scalar(1.0, FLOAT64), _number(b, scale, FLOAT64)), FLOAT32)
    zero = b.reshape(zero_point, ()) if isinstance(zero_point, GraphExpr) else zero_point
    return _levels(b, b.multiply(b.cast(input, FLOAT32), inverse), zero, quant_min, quant_max, dtype)


@converter(f"{_LIBRARY}quantize_per_channel")
def quantize_per_channel(
    b: TorchBuilder,
    input: GraphExpr,
    scales: GraphExpr,
    zero_points: GraphExpr,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: DataType,
) -> GraphExpr:
    """The same with a scale for each place along an axis."""
    inverse = b.divide(b.scalar(1.0, dtype_of(scales)), _along(b, scales, input, axis))
    steps = b.multiply(b.cast(input, FLOAT32), inverse)
    return _levels(b, steps, _along(b, zero_points, input, axis), quant_min, quant_max, dtype)


def _dequantized(
    b: TorchBuilder, data: GraphExpr, scale: GraphExpr, zero: GraphExpr | None, out: DataType | None
) -> GraphExpr:
    """(q - zero) * scale, the difference in integers."""
    value = b.cast(data, INT32)
    if zero is not None and not _is_zero(zero):
        value = b.subtract(value, b.cast(zero, INT32))
    if isinstance(value, Constant) and rank_of(value) > 1 and dtype_of(scale) is FLOAT32 and out in (None, FLOAT32):
        # Weights stay integers with a scale (not folded here): the product they go into may be one of integers.
        return make("multiply", make("cast", value, dtype=FLOAT32, span=b.span), scale, span=b.span)
    return b.cast(b.multiply(b.cast(value, dtype_of(scale)), scale), out or FLOAT32)


def _is_zero(value: GraphExpr) -> bool:
    return isinstance(value, Constant) and not value.data.any()


@converter(f"{_LIBRARY}dequantize_per_tensor")
def dequantize_per_tensor(
    b: TorchBuilder,
    input: GraphExpr,
    scale: GraphExpr | float,
    zero_point: GraphExpr | int,
    quant_min: GraphExpr | int,
    quant_max: GraphExpr | int,
    dtype: DataType,
    out_dtype: DataType | None = None,
) -> GraphExpr:
    """The numbers that integers stand for."""
    return _dequantized(b, input, _number(b, scale, out_dtype or FLOAT32), _number(b, zero_point, INT32), out_dtype)


@converter(f"{_LIBRARY}dequantize_per_channel")
def dequantize_per_channel(
    b: TorchBuilder,
    input: GraphExpr,
    scales: GraphExpr,
    zero_points: GraphExpr | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: DataType,
    out_dtype: DataType | None = None,
) -> GraphExpr:
    """The same with a scale for each place along an axis."""
    zero = None if zero_points is None else _along(b, zero_points, input, axis)
    return _dequantized(b, input, _along(b, scales, input, axis), zero, out_dtype)


@converter(f"{_LIBRARY}choose_qparams")
def choose_qparams(
    b: TorchBuilder, input: GraphExpr, quant_min: int, quant_max: int, eps: float, dtype: DataType
) -> tuple[GraphExpr, GraphExpr]:
    """Scale and zero point of the range that a tensor has, which includes 0."""
    low, high = _range(b, input)
    scale = b.divide(b.subtract(high, low), b.scalar(float(quant_max - quant_min), FLOAT32))
    scale = b.call("maximum", scale, b.scalar(eps, FLOAT32))
    below = b.cast(b.call("round", b.divide(low, scale)), INT32)
    zero = b.call("clip", b.subtract(b.scalar(quant_min, INT32), below), minimum=quant_min, maximum=quant_max)
    return _parameters(b, scale, zero)


@converter(f"{_LIBRARY}choose_qparams_symmetric")
def choose_qparams_symmetric(
    b: TorchBuilder, input: GraphExpr, quant_min: int, quant_max: int, eps: float, dtype: DataType
) -> tuple[GraphExpr, GraphExpr]:
    """The same of a range that is as wide below 0 as above."""
    low, high = _range(b, input)
    reach = b.call("maximum", b.call("negative", low), high)
    scale = b.divide(reach, b.scalar(float(quant_max - quant_min) / 2, FLOAT32))
    return _parameters(
        b, b.call("maximum", scale, b.scalar(eps, FLOAT32)), b.scalar(128 if dtype is UINT8 else 0, INT32)
    )


def _range(b: TorchBuilder, data: GraphExpr) -> tuple[GraphExpr, GraphExpr]:
    axes, none = tuple(range(rank_of(data))), b.scalar(0.0, FLOAT32)
    value = b.cast(data, FLOAT32)
    return b.call("minimum", b.reduce("min", value, axes), none), b.call("maximum", b.reduce("max", value, axes), none)


def _parameters(b: TorchBuilder, scale: GraphExpr, zero: GraphExpr) -> tuple[GraphExpr, GraphExpr]:
    return b.cast(b.reshape(scale, (1,)), FLOAT64), b.cast(b.reshape(zero, (1,)), INT64)
