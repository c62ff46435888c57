"""Which convolutions become one kernel: a depthwise one with a 1 x 1 one before or after it, or two that are added."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilewright.graph.ir.expr import Call, Constant, GraphExpr
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import known_sizes, static_shape
from tilewright.graph.ops.convolution import Conv2dAttributes
from tilewright.ir.dtype import FLOAT32
from tilewright.target import Target
from tilewright.target.machine import cpu_parameters

_SHARED_TILE = 64
"""Rows and columns of a tile whose sums of two products are in registers."""
_MOST_STEPS = 1024
"""Channels up to which it is no matter that tiles are small."""
_TILES_A_CORE = 2
"""Such tiles for each multiprocessor."""
_VECTORS_A_CORE = 16
"""Vectors of channels for each core, so that cores have some panels of them: one at the end leaves others idle."""


def may_join(anchor: GraphExpr) -> Callable[[GraphExpr], bool] | None:
    """What the reader of a convolution's results must be for both to be one kernel; None if it is with no reader."""
    if _is_depthwise(anchor):
        return _is_pointwise
    return _is_depthwise if _is_pointwise(anchor) else None


def joining_pays(anchor: GraphExpr, last: GraphExpr, reader: Call, target: Target) -> bool | None:
    """Whether a convolution with what follows it, up to `last`, is better off in one kernel with its reader.

    None where it cannot be.
    """
    shape, weights = _typical_shape(last), static_shape(reader.args[1])
    if shape is None or weights is None or 0 in (*shape, *weights):
        return None
    between = math.prod(shape) * last.tensor_type.dtype.itemsize
    shares = cpu_parameters(target).convolution
    large = between >= target.l2_bytes * shares.separable_results_share
    if _is_depthwise(anchor):
        # The results in between would not stay in the second cache level, and the weights do.
        size = math.prod(weights) * reader.args[1].tensor_type.dtype.itemsize
        return large and size <= target.l2_bytes * shares.separable_weights_share
    # A panel of channels of the results in between stays near. With a stride, reading them is most of the work.
    attributes, channels, lanes = reader.attributes, shape[-1], target.lanes(32)
    assert isinstance(attributes, Conv2dAttributes)
    if last.tensor_type.dtype is not FLOAT32 or channels % lanes:
        return None
    strided = min(attributes.strides) > 1
    share = shares.expanded_strided_share if strided else shares.expanded_share
    # Of several cores, each would read what others computed, from their caches. Some panels for each keep all busy.
    shared = target.cores > 1 and channels // lanes >= _VECTORS_A_CORE * target.cores
    return (large or shared) and between // channels * lanes <= target.l1_bytes * share


def _is_depthwise(item: GraphExpr) -> bool:
    """Whether an expression is a channels-last convolution of each channel by itself."""
    attributes, shape = _channels_last(item)
    return attributes is not None and attributes.groups > 1 and shape[2] == 1


def _is_pointwise(item: GraphExpr) -> bool:
    """Whether an expression is a channels-last 1 x 1 convolution of all pixels."""
    attributes, shape = _channels_last(item)
    if attributes is None or shape[:2] != (1, 1):
        return False
    return tuple(attributes.strides) == (1, 1) and not any(attributes.padding) and attributes.groups == 1


def _channels_last(item: GraphExpr) -> tuple[Conv2dAttributes | None, tuple[int, ...]]:
    """The attributes and the shape of the weights of a channels-last convolution; no attributes for anything else."""
    if not isinstance(item, Call) or not is_call_to(item, "nn.conv2d"):
        return None, ()
    attributes, shape = item.attributes, static_shape(item.args[1])
    assert isinstance(attributes, Conv2dAttributes)
    known = (attributes.data_layout, attributes.kernel_layout) == ("NHWC", "HWIO")
    return (attributes, shape) if known and shape is not None else (None, ())


def _typical_shape(item: GraphExpr) -> tuple[int, ...] | None:
    """The shape of images, of one where only a call says how many they are; None if other sizes are open."""
    sizes = known_sizes(item)
    if sizes is None:
        return None
    count, *rest = sizes
    image = [size for size in rest if isinstance(size, int)]
    return (count if isinstance(count, int) else 1, *image) if len(image) == len(rest) else None


def may_share_registers(contractions: Sequence[GraphExpr], last: GraphExpr, target: Target) -> bool:
    """Whether warp groups have the sums of two 1 x 1 convolutions of bytes at once; `last` ends one, in float32.

    Tiles are smaller then, so few steps, and enough of them for all multiprocessors.
    """
    shape = static_shape(last)
    if len(contractions) != 2 or shape is None or last.tensor_type.dtype is not FLOAT32:
        return False
    for item in contractions:
        if not isinstance(item, Call) or not is_call_to(item, "qnn.conv2d") or static_shape(item) != shape:
            return False
        weights = static_shape(item.args[1]) if isinstance(item.args[1], Constant) else None
        if weights is None:
            return False
        if weights[:2] != (1, 1) or weights[2] > _MOST_STEPS or weights[3] % _SHARED_TILE:
            return False
    tiles = -(-math.prod(shape[:-1]) // _SHARED_TILE) * (shape[-1] // _SHARED_TILE)
    return tiles >= _TILES_A_CORE * target.cores
