"""Parts of gradients of normalisations as operators that read their data once."""

from __future__ import annotations

import numpy as np

from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Array, FusionKind, Types, operator
from tilewright.graph.ops.common import (
    agree,
    broadcast_shapes,
    require_axis,
    require_float,
    require_rank,
    same_dtype,
    shape_text,
    tensors,
)
from tilewright.graph.ops.reduce import sum_type
from tilewright.ir.build import as_expr
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, TupleType, Type
from tilewright.support.errors import UserError

_SUMMED = ("data", "mean", "gradient")
_NAMES = ("data", "scale", "gradient", "mean", "inverse")


@node()
class LayerNormGradientAttributes(Attributes):
    """The first normalised axis (all after it are too)."""

    axis: int = 0


def _layer_norm_gradient(args: list[Array], attributes: LayerNormGradientAttributes) -> Array:
    data, scale, gradient, mean, inverse = (array.astype(np.float64) for array in args)
    axes = tuple(range(attributes.axis, data.ndim))

    def of_row(value: Array) -> Array:
        return np.asarray(value.mean(axis=axes, keepdims=True))

    with np.errstate(all="ignore"):
        normal, given = (data - mean) * inverse, gradient * scale
        return np.asarray(inverse * (given - of_row(given) - normal * of_row(given * normal)), args[0].dtype)


@operator(
    "nn.layer_norm_gradient",
    inputs=_NAMES,
    kind=FusionKind.REDUCTION,
    reference=_layer_norm_gradient,
    attributes=LayerNormGradientAttributes,
)
def layer_norm_gradient(types: Types, attributes: LayerNormGradientAttributes) -> Type:
    """The gradient of `nn.layer_norm` for its data, from the gradient for its result.

    `mean` and `inverse` are the means of rows and 1 over their deviations, with axes of size 1. With z the normalised
    data and g the gradient times the scale: (g - mean(g) - z mean(g z)) * inverse.
    """
    inputs = tensors(types, _NAMES)
    data, scale, gradient, *statistics = inputs
    require_float(same_dtype(inputs, _NAMES))
    if data.shape is None:
        return data
    require_axis(attributes.axis, len(data.shape))
    if gradient.shape is not None:
        require_rank(gradient.shape, len(data.shape), "gradient")
        for mine, other in zip(data.shape, gradient.shape, strict=True):
            agree(mine, other, "the shape of the data, and of the gradient")
    for item, name in zip(statistics, _NAMES[3:], strict=True):
        if item.shape is not None:
            require_rank(item.shape, len(data.shape), name)
            for place, (mine, other) in enumerate(zip(data.shape, item.shape, strict=True)):
                agree(
                    mine if place < attributes.axis else as_expr(1), other, f"the rows of the data, and of the {name}"
                )
    merged = broadcast_shapes([data.shape, scale.shape])
    if merged is not None and len(merged) > len(data.shape):
        raise UserError(f"scale {shape_text(scale.shape)} does not fit the data {shape_text(data.shape)}")
    return data


@node()
class BatchNormSumsAttributes(Attributes):
    """The axis of channels."""

    axis: int = 1


def _batch_norm_sums(args: list[Array], attributes: BatchNormSumsAttributes) -> tuple[Array, Array]:
    data, mean, gradient = (array.astype(np.float64) for array in args)
    axes = tuple(axis for axis in range(data.ndim) if axis != attributes.axis)
    column = [-1 if axis == attributes.axis else 1 for axis in range(data.ndim)]
    with np.errstate(all="ignore"):
        along = gradient * (data - mean.reshape(column))
        return np.asarray(gradient.sum(axes), args[1].dtype), np.asarray(along.sum(axes), args[1].dtype)


@operator(
    "nn.batch_norm_sums",
    inputs=_SUMMED,
    kind=FusionKind.REDUCTION,
    reference=_batch_norm_sums,
    attributes=BatchNormSumsAttributes,
)
def batch_norm_sums(types: Types, attributes: BatchNormSumsAttributes) -> Type:
    """Of each channel, the sum of a gradient and the sum of its products with the data less their mean.

    Both are read once. The mean and the sums are float32 where data and gradient are narrower floats.
    """
    data, mean, gradient = tensors(types, _SUMMED)
    require_float(same_dtype([data, gradient], (_SUMMED[0], _SUMMED[2])))
    wide = sum_type(data.dtype)
    if mean.dtype is not wide:
        raise UserError(f"the mean of {data.dtype} data must be {wide}, not {mean.dtype}")
    if data.shape is None:
        return TupleType((TensorType(None, wide),) * 2)
    require_axis(attributes.axis, len(data.shape))
    if gradient.shape is not None:
        require_rank(gradient.shape, len(data.shape), "gradient")
        for mine, other in zip(data.shape, gradient.shape, strict=True):
            agree(mine, other, "the shape of the data, and of the gradient")
    channels = data.shape[attributes.axis]
    if mean.shape is not None:
        require_rank(mean.shape, 1, "mean")
        agree(channels, mean.shape[0], "channels of the data, and length of mean")
    return TupleType((TensorType((channels,), wide),) * 2)
