"""Which convolutions become one kernel: a depthwise convolution with a 1 x 1 convolution before or after it."""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.graph.ir.expr import Call, GraphExpr
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import static_shape
from tilewright.graph.ops.convolution import Conv2dAttributes
from tilewright.ir.dtype import FLOAT32
from tilewright.target import Target
from tilewright.target.machine import cpu_parameters


def may_join(anchor: GraphExpr) -> Callable[[GraphExpr], bool] | None:
    """What the reader of a convolution's results must be for both to be one kernel; None if it is with no reader."""
    if _is_depthwise(anchor):
        return _is_pointwise
    return _is_depthwise if _is_pointwise(anchor) else None


def joining_pays(anchor: GraphExpr, last: GraphExpr, reader: Call, target: Target) -> bool | None:
    """Whether a convolution with what follows it, up to `last`, is better off in one kernel with its reader.

    None where it cannot be.
    """
    between, weights, shape = _bytes(last), _bytes(reader.args[1]), static_shape(last)
    if not between or not weights or shape is None:
        return None
    shares = cpu_parameters(target).convolution
    large = between >= target.l2_bytes * shares.separable_results_share
    if _is_depthwise(anchor):
        # The results in between would not stay in the second cache level, and the weights do.
        return large and weights <= target.l2_bytes * shares.separable_weights_share
    # A panel of channels of the results in between stays near. With a stride, reading them is most of the work.
    attributes, channels, lanes = reader.attributes, shape[-1], target.lanes(32)
    assert isinstance(attributes, Conv2dAttributes)
    if last.tensor_type.dtype is not FLOAT32 or channels % lanes:
        return None
    strided = min(attributes.strides) > 1
    share = shares.expanded_strided_share if strided else shares.expanded_share
    return large and between // channels * lanes <= target.l1_bytes * share


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


def _bytes(item: GraphExpr) -> int | None:
    """The size of a tensor of a static shape."""
    shape = static_shape(item)
    return None if shape is None else math.prod(shape) * item.tensor_type.dtype.itemsize
