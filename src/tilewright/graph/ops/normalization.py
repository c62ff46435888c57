"""Softmax and the normalisations."""

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
    tensor,
    tensors,
)
from tilewright.graph.ops.reduce import sum_type
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, Type
from tilewright.support.errors import UserError


@node()
class SoftmaxAttributes(Attributes):
    """The axis that sums to one."""

    axis: int = 0


@node()
class LayerNormAttributes(Attributes):
    """The first normalised axis (all after it are too), and what is added to the variance."""

    axis: int = 0
    epsilon: float = 1e-5


@node()
class BatchNormAttributes(Attributes):
    """What is added to the variance, and the axis of channels."""

    epsilon: float = 1e-5
    axis: int = 1


def _shifted(data: Array, axis: int) -> Array:
    """In double precision, with the greatest along the axis at 0 so that exp cannot overflow."""
    wide = data.astype(np.float64)
    return np.asarray(wide - wide.max(axis=axis, keepdims=True, initial=-np.inf))


def _softmax(args: list[Array], attributes: SoftmaxAttributes) -> Array:
    with np.errstate(all="ignore"):
        weights = np.exp(_shifted(args[0], attributes.axis))
        return np.asarray(weights / weights.sum(axis=attributes.axis, keepdims=True), args[0].dtype)


def _log_softmax(args: list[Array], attributes: SoftmaxAttributes) -> Array:
    with np.errstate(all="ignore"):
        shifted = _shifted(args[0], attributes.axis)
        total = np.log(np.exp(shifted).sum(axis=attributes.axis, keepdims=True))
        return np.asarray(shifted - total, args[0].dtype)


def _infer_softmax(types: Types, attributes: SoftmaxAttributes) -> Type:
    data = tensor(types, 0, "the input")
    require_float(data.dtype)
    if data.shape is not None:
        require_axis(attributes.axis, len(data.shape))
    return data


@operator("nn.softmax", inputs=("data",), kind=FusionKind.REDUCTION, reference=_softmax, attributes=SoftmaxAttributes)
def softmax(types: Types, attributes: SoftmaxAttributes) -> Type:
    """exp(x) divided by its sum along an axis."""
    return _infer_softmax(types, attributes)


@operator(
    "nn.log_softmax", inputs=("data",), kind=FusionKind.REDUCTION, reference=_log_softmax, attributes=SoftmaxAttributes
)
def log_softmax(types: Types, attributes: SoftmaxAttributes) -> Type:
    """The logarithm of the softmax along an axis."""
    return _infer_softmax(types, attributes)


def _layer_norm(args: list[Array], attributes: LayerNormAttributes) -> Array:
    data, scale, bias = (array.astype(np.float64) for array in args)
    axes = tuple(range(attributes.axis, data.ndim))
    with np.errstate(all="ignore"):
        centred = data - data.mean(axis=axes, keepdims=True)
        variance = np.mean(centred * centred, axis=axes, keepdims=True)
        return np.asarray(centred / np.sqrt(variance + attributes.epsilon) * scale + bias, args[0].dtype)


@operator(
    "nn.layer_norm",
    inputs=("data", "scale", "bias"),
    kind=FusionKind.REDUCTION,
    reference=_layer_norm,
    attributes=LayerNormAttributes,
)
def layer_norm(types: Types, attributes: LayerNormAttributes) -> Type:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, statistics over all axes from `axis` on.

    Scale and bias broadcast to the data: one value an element of what is normalised, or one a channel before it.
    """
    names = ("data", "scale", "bias")
    data, scale, bias = tensors(types, names)
    require_float(same_dtype([data, scale, bias], names))
    if data.shape is None:
        return data
    require_axis(attributes.axis, len(data.shape))
    _require_fit(scale, "scale", data)
    _require_fit(bias, "bias", data)
    return data


def _rms_norm(args: list[Array], attributes: LayerNormAttributes) -> Array:
    data, scale = (array.astype(np.float64) for array in args)
    axes = tuple(range(attributes.axis, data.ndim))
    with np.errstate(all="ignore"):
        squares = np.mean(data * data, axis=axes, keepdims=True)
        return np.asarray(data / np.sqrt(squares + attributes.epsilon) * scale, args[0].dtype)


@operator(
    "nn.rms_norm",
    inputs=("data", "scale"),
    kind=FusionKind.REDUCTION,
    reference=_rms_norm,
    attributes=LayerNormAttributes,
)
def rms_norm(types: Types, attributes: LayerNormAttributes) -> Type:
    """x / sqrt(mean(x * x) + epsilon) * scale, the mean over all axes from `axis` on.

    The scale broadcasts to the data, and may be of another float type: results are rounded once.
    """
    data, scale = tensors(types, ("data", "scale"))
    for item in (data, scale):
        require_float(item.dtype)
    if data.shape is None:
        return data
    require_axis(attributes.axis, len(data.shape))
    _require_fit(scale, "scale", data)
    return data


def _require_fit(item: TensorType, name: str, data: TensorType) -> None:
    """An error unless a tensor broadcasts to the data."""
    assert data.shape is not None
    merged = broadcast_shapes([data.shape, item.shape])
    if merged is not None and (
        len(merged) > len(data.shape) or any(a is not b for a, b in zip(merged, data.shape, strict=True))
    ):
        raise UserError(f"{name} {shape_text(item.shape)} does not fit the data {shape_text(data.shape)}")


def _batch_norm(args: list[Array], attributes: BatchNormAttributes) -> Array:
    data, scale, bias, mean, variance = (array.astype(np.float64) for array in args)
    shape = [1] * data.ndim
    shape[attributes.axis] = -1
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + attributes.epsilon)
        offset = bias - mean * factor
        return np.asarray(data * factor.reshape(shape) + offset.reshape(shape), args[0].dtype)


@operator(
    "nn.batch_norm",
    inputs=("data", "scale", "bias", "mean", "variance"),
    kind=FusionKind.INJECTIVE,
    reference=_batch_norm,
    attributes=BatchNormAttributes,
)
def batch_norm(types: Types, attributes: BatchNormAttributes) -> Type:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, with given statistics a channel.

    What is given a channel is of the data's type, or all of it is float32 where the data are narrower floats.
    """
    names = ("data", "scale", "bias", "mean", "variance")
    inputs = tensors(types, names)
    data, *vectors = inputs
    require_float(data.dtype)
    given = same_dtype(vectors, names[1:])
    if given is not sum_type(data.dtype):
        same_dtype(inputs, names)
    if data.shape is None:
        return data
    require_axis(attributes.axis, len(data.shape))
    for item, name in zip(vectors, names[1:], strict=True):
        if item.shape is not None:
            require_rank(item.shape, 1, name)
            agree(data.shape[attributes.axis], item.shape[0], f"channels of the data, and length of {name}")
    return data
