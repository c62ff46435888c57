"""Convolutions that are alone between operators of the model's own order: turning them around costs more than it gives.

    x -> conv2d(NCHW, 1 x 1) -> relu -> matmul        two transposes for one convolution: it stays as it is

What lies channels last is found from what surrounds a convolution: operators that keep either order (elementwise ones,
pools, reshapes) join it to its neighbours. Where these are other convolutions, or the model turns values itself,
`convert_layout` has nothing to pay, or pays once for several.
"""

from __future__ import annotations

from math import prod

from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, Tuple, TupleGet
from tilewright.graph.ir.op import Operator, is_call_to
from tilewright.graph.ir.rewrite import make, static_shape
from tilewright.graph.ir.traverse import children, post_order
from tilewright.graph.ops.convolution import Conv2dAttributes
from tilewright.ir.dtype import FLOAT32
from tilewright.target import Target
from tilewright.target.machine import cpu_parameters

CONVOLUTIONS = frozenset(["nn.conv2d", "nn.conv2d_transpose"])
_EITHER_ORDER = frozenset(
    ["nn.max_pool2d", "nn.avg_pool2d", "nn.batch_norm", "nn.layer_norm", "nn.softmax", "nn.log_softmax", "reshape"]
    + ["concatenate", "split", "cumsum", "pad", "slice", "tile", "broadcast_to", "assume_shape", "take"]
    + ["sum", "mean", "max", "min", "prod", "all", "any", "argmax", "argmin"]
)


def lone_convolutions(function: Function, target: Target) -> frozenset[int]:
    """The convolutions (by identity) that are better computed in the order NCHW, for what is around them."""
    if not target.is_cpu:
        return frozenset()
    parents: dict[int, int] = {}

    def root(item: int) -> int:
        while parents[item] != item:
            parents[item] = parents[parents[item]]
            item = parents[item]
        return item

    found: list[Call] = []
    for item in post_order(function):
        if not _is_joined(item):
            continue
        parents[id(item)] = id(item)
        for child in children(item):
            if id(child) in parents:
                parents[root(id(child))] = root(id(item))
        if isinstance(item, Call) and (_is_convolution(item) or is_call_to(item, "transpose")):
            found.append(item)
    groups: dict[int, list[Call]] = {}
    for call in found:
        groups.setdefault(root(id(call)), []).append(call)
    alone = [group[0] for group in groups.values() if len(group) == 1]
    return frozenset(id(call) for call in alone if is_pointwise(call, target) or _is_planar(call, target))


def is_pointwise(call: GraphExpr, target: Target) -> bool:
    """Whether a convolution is a product of its weights and the pixels as they lie, and quick as one."""
    found = _sizes(call)
    if found is None:
        return False
    attributes, data, kernel = found
    pixels, lanes = prod(data[2:]), target.lanes(32)
    plain = attributes.groups == 1 and attributes.strides == (1, 1) and not any(attributes.padding)
    most = cpu_parameters(target).convolution.most_filled * pixels
    return plain and kernel[2:] == (1, 1) and -(-pixels // lanes) * lanes <= most


def as_product(call: Call) -> GraphExpr:
    """A 1 x 1 convolution of images in the order NCHW as a matrix product: weights[o, c] x pixels[n, c, y * x]."""
    found = _sizes(call)
    assert found is not None
    _, (batch, channels, height, width), kernel = found
    pixels = make("reshape", call.args[0], shape=(batch, channels, height * width), span=call.span)
    weights = make("reshape", call.args[1], shape=kernel[:2], span=call.span)
    product = make("matmul", weights, pixels, span=call.span)
    return make("reshape", product, shape=(batch, kernel[0], height, width), span=call.span)


def _is_planar(call: Call, target: Target) -> bool:
    """Whether a convolution is depthwise and quick with vectors of neighbouring pixels."""
    found, result = _sizes(call), static_shape(call)
    if found is None or result is None:
        return False
    attributes, data, kernel = found
    depthwise = attributes.groups == data[1] == kernel[0] > 1 and kernel[1] == 1
    dense = attributes.strides == (1, 1) and prod(kernel[2:]) <= cpu_parameters(target).convolution.most_planar_taps
    return depthwise and dense and result[3] >= target.lanes(32)


def _sizes(call: GraphExpr) -> tuple[Conv2dAttributes, tuple[int, ...], tuple[int, ...]] | None:
    """Attributes and shapes of a convolution in the order NCHW, of numbers that these forms were measured for."""
    if not is_call_to(call, "nn.conv2d"):
        return None
    assert isinstance(call, Call) and isinstance(call.attributes, Conv2dAttributes)
    data, weight = call.args
    shape, kernel = static_shape(data), static_shape(weight)
    if shape is None or kernel is None or not prod(shape) or not isinstance(weight, Constant):
        return None
    plain = call.attributes.data_layout == "NCHW" and data.tensor_type.dtype is FLOAT32
    return (call.attributes, shape, kernel) if plain else None


def _is_convolution(item: Call) -> bool:
    return isinstance(item.callee, Operator) and item.callee.name in CONVOLUTIONS


def _is_joined(item: GraphExpr) -> bool:
    """Whether a value has the order that its neighbours have, or decides theirs."""
    if isinstance(item, (Tuple, TupleGet)):
        return True
    if not isinstance(item, Call) or not isinstance(item.callee, Operator):
        return False
    name = item.callee.name
    return item.callee.elementwise or name in _EITHER_ORDER or name in CONVOLUTIONS or name == "transpose"
