"""Gradients of pooling: what each element of the data takes of the gradients of the windows that it is in."""

from __future__ import annotations

import numpy as np

from tilewright.graph.ir.op import Array, FusionKind, Types, operator
from tilewright.graph.ops.common import Shape, agree, dims, require_float, require_rank, same_dtype, tensors
from tilewright.graph.ops.pooling import Pool2dAttributes, padded_windows, pool_type, window_counts
from tilewright.graph.ops.reduce import lowest
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, Type

_NAMES = ("data", "gradient")


@node()
class AveragePoolGradientAttributes(Pool2dAttributes):
    """Those of the pool, and the height and width of its data."""

    size: tuple[int, int] = (1, 1)


def _planar(array: Array, layout: str) -> Array:
    return array.transpose(0, 3, 1, 2) if layout == "NHWC" else array


def _in_layout(array: Array, layout: str, dtype: np.dtype[np.generic]) -> Array:
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1) if layout == "NHWC" else array, dtype)


def _spread(parts: Array, attributes: Pool2dAttributes, size: tuple[int, int]) -> Array:
    """What taps of windows, (N, C, rows, columns, taps), give each element of the data, (N, C, H, W), in all."""
    n, c, rows, columns = parts.shape[:4]
    top, left, bottom, right = attributes.padding
    (step_h, step_w), (space_h, space_w) = attributes.strides, attributes.dilation
    # Windows may reach past the padded data where nothing is left of it.
    reach_h = (attributes.kernel[0] - 1) * space_h + max(rows - 1, 0) * step_h + 1
    reach_w = (attributes.kernel[1] - 1) * space_w + max(columns - 1, 0) * step_w + 1
    total = np.zeros((n, c, max(reach_h, size[0] + top + bottom), max(reach_w, size[1] + left + right)), parts.dtype)
    for tap, (i, j) in enumerate(np.ndindex(*attributes.kernel)):
        y, x = i * space_h, j * space_w
        total[:, :, y : y + rows * step_h : step_h, x : x + columns * step_w : step_w][:, :, :rows, :columns] += parts[
            ..., tap
        ]
    return total[:, :, top : top + size[0], left : left + size[1]]


def _max_pool2d_gradient(args: list[Array], attributes: Pool2dAttributes) -> Array:
    data, gradient = (_planar(array, attributes.layout) for array in args)
    wide = gradient.astype(np.float64)
    view = padded_windows(data, attributes, lowest(data.dtype))
    inside = padded_windows(np.ones((1, 1, *data.shape[2:]), bool), attributes, 0)
    taps = view.reshape(*view.shape[:4], -1)
    # Padding loses to the least of numbers, NaN wins over all of them, and of equal elements the first takes it all.
    rank = np.where(np.isnan(taps), 2, np.where(inside.reshape(*inside.shape[:4], -1), 1, 0))
    candidates = rank == rank.max(axis=-1, keepdims=True, initial=0)
    level = np.where(candidates & ~np.isnan(taps), taps, -np.inf)
    first = np.argmax(candidates & (level == level.max(axis=-1, keepdims=True, initial=-np.inf)), axis=-1)
    chosen = np.arange(taps.shape[-1]) == first[..., np.newaxis]
    result = _spread(np.where(chosen, wide[..., np.newaxis], 0), attributes, (data.shape[2], data.shape[3]))
    return _in_layout(result, attributes.layout, args[1].dtype)


def _avg_pool2d_gradient(args: list[Array], attributes: AveragePoolGradientAttributes) -> Array:
    (gradient,) = (_planar(array, attributes.layout) for array in args)
    taps = attributes.kernel[0] * attributes.kernel[1]
    count = np.asarray(taps) if attributes.count_include_pad else window_counts(attributes, attributes.size)
    with np.errstate(all="ignore"):
        share = gradient.astype(np.float64) / count
        parts = np.broadcast_to(share[..., np.newaxis], (*share.shape, taps))
        result = _spread(parts, attributes, attributes.size)
    return _in_layout(result, attributes.layout, args[0].dtype)


def _agree(gradient: TensorType, wanted: Type) -> None:
    assert isinstance(wanted, TensorType)
    if gradient.shape is None or wanted.shape is None:
        return
    require_rank(gradient.shape, 4, "gradient")
    for mine, other in zip(gradient.shape, wanted.shape, strict=True):
        agree(mine, other, "the shape of the gradient, and of the pool's result")


@operator(
    "nn.max_pool2d_gradient",
    inputs=_NAMES,
    kind=FusionKind.OPAQUE,
    reference=_max_pool2d_gradient,
    attributes=Pool2dAttributes,
)
def max_pool2d_gradient(types: Types, attributes: Pool2dAttributes) -> Type:
    """The gradient for the data of a maximum pool: that of each window goes to its greatest element.

    Of several equal ones the first takes it; NaN counts as greater than numbers.
    """
    data, gradient = tensors(types, _NAMES)
    require_float(same_dtype([data, gradient], _NAMES), "the inputs")
    _agree(gradient, pool_type([data], attributes))
    return data


@operator(
    "nn.avg_pool2d_gradient",
    inputs=("gradient",),
    kind=FusionKind.REDUCTION,
    reference=_avg_pool2d_gradient,
    attributes=AveragePoolGradientAttributes,
)
def avg_pool2d_gradient(types: Types, attributes: AveragePoolGradientAttributes) -> Type:
    """The gradient for the data of an average pool: each element of a window takes an equal share of the window's."""
    (gradient,) = tensors(types, ("gradient",))
    require_float(gradient.dtype, "the gradient")
    data = TensorType(_data_shape(gradient, attributes), gradient.dtype)
    _agree(gradient, pool_type([data], attributes))
    return data


def _data_shape(gradient: TensorType, attributes: AveragePoolGradientAttributes) -> Shape:
    height, width = dims(attributes.size)
    shape = (None,) * 4 if gradient.shape is None else gradient.shape
    require_rank(shape, 4, "gradient")
    last = attributes.layout == "NHWC"
    return (shape[0], height, width, shape[3]) if last else (shape[0], shape[1], height, width)
