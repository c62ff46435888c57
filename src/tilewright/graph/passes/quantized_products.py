"""Products of dequantised values become products of integers, scaled once.

Before:  conv2d(scale_x * float(int(x) - zero_x), scale_w * float(int(w) - zero_w))
After:   float(conv2d(int(x) - zero_x, int(w) - zero_w)) * (scale_x * scale_w)

The sum of integers is exact; what the floating-point convolution would have rounded at every step is rounded once. The
pass runs before constants are folded, which would make floats of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.graph.interpreter import Value, apply_operator
from tilewright.graph.ir.expr import Call, Constant, GraphExpr, constant
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.known import is_known
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, known_sizes, make, static_shape
from tilewright.graph.ir.traverse import children, count_uses, map_functions, post_order
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.ops.convolution import Conv2dAttributes, Conv2dTransposeAttributes
from tilewright.graph.ops.pooling import Pool2dAttributes, window_counts
from tilewright.graph.ops.reduce import ReduceAttributes
from tilewright.graph.ops.shape import TransposeAttributes
from tilewright.graph.options import GraphOptions
from tilewright.ir.dtype import FLOAT32, INT32
from tilewright.ir.function import IRModule
from tilewright.target import Target

Array = npt.NDArray[Any]
MOST_PRODUCTS = 1 << 16
"""Products of two bytes that fit 32 bits when added up."""
_MOST_NUMBER = 255
"""The largest magnitude of a byte less its zero point."""
_EXACT = 1 << 24
"""Whole numbers up to it are floats."""
_MOST_TAPS = 64
"""Elements of a window whose sum is computed as a convolution with ones; larger ones are few."""
MOST_MOVES = 16
"""Operators between a product and what quantises its input that are looked through."""


def sums_are_floats(depth: int) -> bool:
    """Whether float32 represents all sums of so many products of two bytes less their zero points."""
    return depth * _MOST_NUMBER * _MOST_NUMBER < _EXACT


def has_byte_products(target: Target) -> bool:
    """Whether a processor multiplies bytes faster than floats: others multiply integers of 16 bits."""
    return target.has_vnni or target.has_dotprod or not target.is_cpu


def quantized_products(module: IRModule, options: GraphOptions) -> IRModule:
    """Compute products of dequantised values in integers: float32 would round sums past 2^24."""
    if options.target is None:
        return module
    return map_functions(module, lambda function: apply_rules(function, RULES))


def known_value(item: GraphExpr) -> Array | None:
    """The value of an expression of constants alone, however large (folding leaves those that would grow the model)."""
    if not is_known(item):
        return None
    values: dict[int, Value] = {}
    order = post_order(item)
    uses = count_uses(order)
    for node in order:
        parts = [values[id(child)] for child in children(node)]
        for child in children(node):
            uses[id(child)] -= 1
            if not uses[id(child)]:
                # Weights in 32 bits, of which there are several steps.
                del values[id(child)]
        if isinstance(node, Constant):
            values[id(node)] = node.data
        elif isinstance(node, Call) and parts:
            values[id(node)] = apply_operator(node, parts)
        else:
            return None
    result = values[id(item)]
    return result if isinstance(result, np.ndarray) else None


@dataclass(frozen=True, slots=True)
class _Dequantized:
    """`scale * float(integers)`: the integers (an expression of int32) and the scale, which broadcasts to them.

    A single scale may be one that the model computes.
    """

    integers: GraphExpr
    scale: Array | GraphExpr


def _dequantized(item: GraphExpr, moves: int = MOST_MOVES) -> _Dequantized | None:
    if not isinstance(item, Call) or item.type is None or item.tensor_type.dtype is not FLOAT32:
        return None
    if is_call_to(item, "reshape"):
        return _reshaped(item, moves)
    if is_call_to(item, "transpose"):
        below = _dequantized(item.args[0], moves - 1) if moves else None
        assert isinstance(item.attributes, TransposeAttributes)
        rank = len(item.attributes.axes)
        if below is None:
            return None
        if not isinstance(below.scale, np.ndarray):
            return _Dequantized(make("transpose", below.integers, axes=item.attributes.axes), below.scale)
        spread = below.scale.reshape((1,) * (rank - below.scale.ndim) + below.scale.shape)
        integers = make("transpose", below.integers, axes=item.attributes.axes, span=item.span)
        return _Dequantized(integers, spread.transpose(item.attributes.axes))
    if not is_call_to(item, "multiply"):
        return None
    for value, factor in (item.args, item.args[::-1]):
        if is_call_to(value, "cast") and isinstance(value, Call) and _is_shifted_bytes(value.args[0]):
            scale = known_value(factor)
            if scale is None and static_shape(factor) in ((), (1,)):
                return _Dequantized(value.args[0], factor)
            if scale is not None and np.isfinite(scale).all():
                return _Dequantized(value.args[0], scale)
    return None


@dataclass(frozen=True, slots=True)
class ScaledIntegers:
    """`scale * float(integers)`, with one scale for all of them."""

    integers: GraphExpr
    scale: float


def scaled_integers(item: GraphExpr) -> ScaledIntegers | None:
    """A dequantised value as integers of 32 bits, times one scale."""
    dequantized = _dequantized(item)
    if dequantized is None or not isinstance(dequantized.scale, np.ndarray) or dequantized.scale.size != 1:
        return None
    return ScaledIntegers(dequantized.integers, float(dequantized.scale.reshape(())))


def _reshaped(item: Call, moves: int) -> _Dequantized | None:
    """Dequantised values of another shape: a convolution of one dimension is one of images between reshapes."""
    below = _dequantized(item.args[0], moves - 1) if moves else None
    if below is None:
        return None
    shape, before = static_shape(item), static_shape(item.args[0])
    scale = below.scale
    if not isinstance(scale, np.ndarray):
        pass
    elif scale.size == 1:
        scale = scale.reshape(())
    elif shape is None or before is None:
        return None
    else:
        scale = np.broadcast_to(scale, before).reshape(shape)
    integers = Call(item.callee, (below.integers,), item.attributes)
    integers.span = item.span
    fill_type(integers)
    return _Dequantized(integers, scale)


def _is_shifted_bytes(item: GraphExpr) -> bool:
    """Whether an expression is int32(bytes), with or without a zero point taken off, or constant integers."""
    if is_call_to(item, "subtract") and isinstance(item, Call):
        item = item.args[0]
    if isinstance(item, Constant):
        return item.dtype is INT32
    if not is_call_to(item, "cast") or not isinstance(item, Call) or item.tensor_type.dtype is not INT32:
        return False
    return item.args[0].tensor_type.dtype.name in ("int8", "uint8")


def _weights(item: GraphExpr) -> tuple[Constant, Array] | None:
    """Constant dequantised weights that are bytes less a zero point, as int32, and their scale."""
    weights = known_dequantized(item)
    if weights is None or weights[0].size == 0 or _largest(weights[0]) > _MOST_NUMBER:
        return None
    return constant(weights[0].astype(np.int32)), weights[1]


def _fit_sums(weights: Array, count: int) -> bool:
    """Whether 32 bits hold all sums of so many products of weights with bytes less a zero point."""
    return count * _MOST_NUMBER * _largest(weights) < 1 << 31


def _largest(integers: Array) -> int:
    """The largest magnitude; no copy of the weights is made in a wider type."""
    return max(int(integers.max()), -int(integers.min())) if integers.size else 0


def known_dequantized(item: GraphExpr) -> tuple[Array, Array] | None:
    """Constant dequantised values: their integers and scale, however they were moved since."""
    moves: list[Call] = []
    while isinstance(item, Call) and any(is_call_to(item, name) for name in ("transpose", "reshape", "slice")):
        moves.append(item)
        item = item.args[0]
    below = _dequantized(item)
    integers = None if below is None else known_value(below.integers)
    if below is None or integers is None or not isinstance(below.scale, np.ndarray):
        return None
    scale = np.broadcast_to(below.scale, integers.shape) if moves and below.scale.size > 1 else below.scale
    for move in reversed(moves):
        integers = _moved(move, integers)
        scale = _moved(move, scale) if scale.size > 1 else scale.reshape(())
    return integers, scale


def _moved(move: Call, values: Array) -> Array:
    """Values of any type moved as a call moves its own."""
    again = Call(move.callee, (constant(values),), move.attributes)
    fill_type(again)
    return np.asarray(apply_operator(again, [values]))


def _is_single(data: _Dequantized) -> bool:
    """Whether all of the data has one scale."""
    return not isinstance(data.scale, np.ndarray) or data.scale.size == 1


def _operands(call: Call) -> tuple[_Dequantized, Constant, Array] | None:
    """Dequantised data of one scale, and weights with their scale."""
    data = _dequantized(call.args[0])
    # Weights are as large as the model, and computed to be looked at: only where the data is.
    weights = _weights(call.args[1]) if data is not None and _is_single(data) else None
    return None if data is None or weights is None else (data, *weights)


def _convolution(b: Bindings) -> GraphExpr | None:
    call = b.call("root")
    assert isinstance(call.attributes, Conv2dAttributes)
    operands = _operands(call)
    if operands is None:
        return None
    data, integers, scale = operands
    if call.attributes.groups != 1 and not _is_depthwise(call.attributes, integers, data.integers):
        return None
    return _scaled_convolution(call, data, integers, scale)


def _is_depthwise(attributes: Conv2dAttributes, weights: Constant, data: GraphExpr) -> bool:
    """Whether each channel is convolved by itself, and the zero point of the data is known."""
    return weights.data.shape[attributes.kernel_layout.index("I")] == 1 and _has_known_zero(data)


def _has_known_zero(data: GraphExpr) -> bool:
    """Whether the zero point of shifted bytes is a constant, or there is none."""
    return not (isinstance(data, Call) and is_call_to(data, "subtract") and not isinstance(data.args[1], Constant))


def _grouped_convolution(b: Bindings) -> GraphExpr | None:
    call = b.call("root")
    assert isinstance(call.attributes, Conv2dAttributes)
    operands = _operands(call) if known_sizes(call) is not None else None
    if operands is None:
        return None
    data, integers, scale = operands
    if integers.data.shape[call.attributes.kernel_layout.index("I")] == 1:
        return None
    return _scaled_convolution(call, data, integers, scale)


def _scaled_convolution(call: Call, data: _Dequantized, integers: Constant, scale: Array) -> GraphExpr | None:
    assert isinstance(call.attributes, Conv2dAttributes)
    outputs = _output_scales(integers.data, scale, call.attributes.kernel_layout.index("O"))
    if outputs is None or not _fit_sums(integers.data, integers.data.size // outputs.size):
        return None
    return _scaled(call, data, integers, outputs.reshape(_spread(call.attributes.data_layout)))


def _transposed_convolution(b: Bindings) -> GraphExpr | None:
    call = b.call("root")
    attributes = call.attributes
    assert isinstance(attributes, Conv2dTransposeAttributes)
    operands = _operands(call)
    if operands is None or not has_integer_form(call, operands[1].data):
        return None
    data, integers, scale = operands
    outputs = _output_scales(integers.data, scale, attributes.kernel_layout.index("O"))
    if outputs is None:
        return None
    return _scaled(call, data, integers, np.tile(outputs, attributes.groups).reshape(_spread(attributes.data_layout)))


def has_integer_form(call: Call, weights: Array) -> bool:
    """Whether all that a transposed convolution of bytes needs to know of it is known."""
    attributes, shapes = call.attributes, (static_shape(call), static_shape(call.args[0]))
    assert isinstance(attributes, Conv2dTransposeAttributes)
    if any(shape is None or 0 in shape for shape in (*shapes, weights.shape)):
        return False
    outputs = weights.shape[attributes.kernel_layout.index("O")]
    return _fit_sums(weights, weights.size // outputs // attributes.groups)


def _output_scales(integers: Array, scale: Array, axis: int) -> Array | None:
    """The scale of each output of a kernel, which lie along an axis; None if those of an output differ."""
    full = np.moveaxis(np.broadcast_to(scale, integers.shape), axis, 0).reshape(integers.shape[axis], -1)
    return full[:, 0] if bool((full == full[:, :1]).all()) else None


def _spread(data_layout: str) -> tuple[int, ...]:
    """The shape in which a number for each output broadcasts to an image."""
    return (-1, 1, 1) if data_layout == "NCHW" else (-1,)


def _product(b: Bindings) -> GraphExpr | None:
    call = b.call("root")
    assert isinstance(call.attributes, MatmulAttributes)
    operands = None if call.attributes.transpose_a else _operands(call)
    if operands is None:
        return None
    data, integers, scale = operands
    if integers.data.ndim != 2:
        return None
    full = np.broadcast_to(scale, integers.data.shape)
    columns = full if not call.attributes.transpose_b else full.T
    if not _fit_sums(integers.data, columns.shape[0]) or not bool((columns == columns[:1]).all()):
        return None
    return _scaled(call, data, integers, columns[0])


def _mean(b: Bindings) -> GraphExpr | None:
    """The mean of dequantised values: integers are added up, and the scale is that of one of them."""
    call = b.call("root")
    attributes, data, sizes = call.attributes, _dequantized(call.args[0]), static_shape(call.args[0])
    assert isinstance(attributes, ReduceAttributes)
    if data is None or sizes is None or not isinstance(data.scale, np.ndarray) or data.scale.size != 1:
        return None
    count = prod(sizes[axis] for axis in attributes.axes)
    if not 0 < count <= MOST_PRODUCTS:
        return None
    sums = make("sum", data.integers, axes=attributes.axes, keepdims=attributes.keepdims, span=call.span)
    wide = make("cast", sums, dtype=FLOAT32, span=call.span)
    step = data.scale.reshape(()).astype(np.float32) / np.float32(count)
    return make("multiply", wide, constant(np.float32(step)), span=call.span)


def _average_pool(b: Bindings) -> GraphExpr | None:
    """The means of windows of dequantised values: sums of windows are convolutions with ones, channel by channel."""
    call = b.call("root")
    attributes, data, sizes = call.attributes, _dequantized(call.args[0]), static_shape(call.args[0])
    assert isinstance(attributes, Pool2dAttributes)
    if data is None or sizes is None or not isinstance(data.scale, np.ndarray) or data.scale.size != 1:
        return None
    channels = sizes[1]
    if attributes.layout != "NCHW" or 0 in sizes or not _has_known_zero(data.integers):
        return None
    if prod(attributes.kernel) > _MOST_TAPS:
        return None
    sums = make(
        "nn.conv2d",
        data.integers,
        constant(np.ones((channels, 1, *attributes.kernel), np.int32)),
        strides=attributes.strides,
        padding=attributes.padding,
        dilation=attributes.dilation,
        groups=channels,
        span=call.span,
    )
    counts = np.asarray(prod(attributes.kernel))
    if not attributes.count_include_pad:
        counts = window_counts(attributes, (sizes[2], sizes[3]))
        counts = counts.reshape(-1)[0] if (counts == counts.reshape(-1)[:1]).all() else counts
    step = data.scale.reshape(()).astype(np.float32) / counts.astype(np.float32)
    wide = make("cast", sums, dtype=FLOAT32, span=call.span)
    return make("multiply", wide, constant(step.astype(np.float32)), span=call.span)


def _scaled(call: Call, data: _Dequantized, weights: Constant, scale: Array) -> GraphExpr:
    """The same contraction of integers, converted and scaled."""
    product = Call(call.callee, (data.integers, weights), call.attributes)
    product.span = call.span
    fill_type(product)
    wide = make("cast", product, dtype=FLOAT32, span=call.span)
    if not isinstance(data.scale, np.ndarray):
        each = constant(scale.astype(np.float32) if scale.size > 1 else np.float32(scale.reshape(())))
        single = make("reshape", data.scale, shape=(), span=call.span)
        return make("multiply", wide, make("multiply", single, each, span=call.span), span=call.span)
    factor = np.float32(data.scale.reshape(())) * scale.astype(np.float32)
    if factor.size == 1:
        factor = factor.reshape(())
    return make("multiply", wide, constant(factor.astype(np.float32)), span=call.span)


def _contracts_floats(call: Call) -> bool:
    return call.type is not None and call.tensor_type.dtype is FLOAT32 and static_shape(call.args[1]) is not None


def _gives_floats(call: Call) -> bool:
    return call.type is not None and call.tensor_type.dtype is FLOAT32


RULES = (
    Rule("convolution of dequantised values", P.op("nn.conv2d", name="root", where=_contracts_floats), _convolution),
    Rule("product of dequantised values", P.op("matmul", name="root", where=_contracts_floats), _product),
    Rule("grouped convolution", P.op("nn.conv2d", name="root", where=_contracts_floats), _grouped_convolution),
    Rule(
        "transposed convolution",
        P.op("nn.conv2d_transpose", name="root", where=_contracts_floats),
        _transposed_convolution,
    ),
    Rule("mean of dequantised values", P.op("mean", name="root", where=_gives_floats), _mean),
    Rule("average of dequantised windows", P.op("nn.avg_pool2d", name="root", where=_gives_floats), _average_pool),
)
"""All rules, tried in order at each node."""
