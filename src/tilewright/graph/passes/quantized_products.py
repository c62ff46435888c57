"""Products of dequantised values become products of integers, scaled once.

Before:  conv2d(scale_x * float(int(x) - zero_x), scale_w * float(int(w) - zero_w))
After:   float(conv2d(int(x) - zero_x, int(w) - zero_w)) * (scale_x * scale_w)

The sum of integers is exact; what the floating-point convolution would have rounded at every step is rounded once. The
pass runs before constants are folded, which would make floats of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.graph.interpreter import Value, apply_operator
from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, constant
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.known import is_known
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, known_sizes, make, static_shape
from tilewright.graph.ir.traverse import children, map_functions, post_order
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.ops.convolution import Conv2dAttributes, Conv2dTransposeAttributes
from tilewright.graph.ops.shape import TransposeAttributes
from tilewright.graph.options import GraphOptions
from tilewright.ir.dtype import FLOAT32, INT32
from tilewright.ir.function import IRModule
from tilewright.target import Target

Array = npt.NDArray[Any]
MOST_PRODUCTS = 1 << 16
"""Products of two bytes that fit 32 bits when added up."""
MOST_MOVES = 16
"""Operators between a product and what quantises its input that are looked through."""


def has_byte_products(target: Target) -> bool:
    """Whether a processor multiplies bytes faster than floats, or about as fast: GPUs add integers exactly."""
    return target.has_vnni or target.has_dotprod or not target.is_cpu


def quantized_products(module: IRModule, options: GraphOptions) -> IRModule:
    """Compute products of dequantised values in integers, on processors that are good at it."""
    if options.target is None or not has_byte_products(options.target):
        return module

    def rewritten(function: Function) -> Function:
        return apply_rules(function, RULES)

    result = map_functions(module, rewritten)
    assert isinstance(result, IRModule)
    return result


def known_value(item: GraphExpr) -> Array | None:
    """The value of an expression of constants alone, however large (folding leaves those that would grow the model)."""
    if not is_known(item):
        return None
    values: dict[int, Value] = {}
    for node in post_order(item):
        parts = [values[id(child)] for child in children(node)]
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
    """`scale * float(integers)`: the integers (an expression of int32) and the scale, which broadcasts to them."""

    integers: GraphExpr
    scale: Array


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
        spread = below.scale.reshape((1,) * (rank - below.scale.ndim) + below.scale.shape)
        integers = make("transpose", below.integers, axes=item.attributes.axes, span=item.span)
        return _Dequantized(integers, spread.transpose(item.attributes.axes))
    if not is_call_to(item, "multiply"):
        return None
    for value, factor in (item.args, item.args[::-1]):
        if is_call_to(value, "cast") and isinstance(value, Call) and _is_shifted_bytes(value.args[0]):
            scale = known_value(factor)
            if scale is not None and np.isfinite(scale).all():
                return _Dequantized(value.args[0], scale)
    return None


def _reshaped(item: Call, moves: int) -> _Dequantized | None:
    """Dequantised values of another shape: a convolution of one dimension is one of images between reshapes."""
    below = _dequantized(item.args[0], moves - 1) if moves else None
    if below is None:
        return None
    shape, before = static_shape(item), static_shape(item.args[0])
    if below.scale.size == 1:
        scale = below.scale.reshape(())
    elif shape is None or before is None:
        return None
    else:
        scale = np.broadcast_to(below.scale, before).reshape(shape)
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
    """Constant dequantised weights that fit a signed byte, as int32, and their scale."""
    dequantized = _dequantized(item)
    values = None if dequantized is None else known_value(dequantized.integers)
    if dequantized is None or values is None or values.size == 0 or values.min() < -128 or values.max() > 127:
        return None
    return constant(values.astype(np.int32)), dequantized.scale


def _convolution(b: Bindings) -> GraphExpr | None:
    call = b.call("root")
    assert isinstance(call.attributes, Conv2dAttributes)
    data, weights = _dequantized(call.args[0]), _weights(call.args[1])
    if data is None or weights is None or data.scale.size != 1:
        return None
    integers, scale = weights
    if call.attributes.groups != 1 and not _is_depthwise(call.attributes, integers, data.integers):
        return None
    return _scaled_convolution(call, data, integers, scale)


def _is_depthwise(attributes: Conv2dAttributes, weights: Constant, data: GraphExpr) -> bool:
    """Whether each channel is convolved by itself, and the zero point of the data is known."""
    alone = weights.data.shape[attributes.kernel_layout.index("I")] == 1
    return alone and not (
        isinstance(data, Call) and is_call_to(data, "subtract") and not isinstance(data.args[1], Constant)
    )


def _grouped_convolution(b: Bindings) -> GraphExpr | None:
    call = b.call("root")
    assert isinstance(call.attributes, Conv2dAttributes)
    data, weights = _dequantized(call.args[0]), _weights(call.args[1])
    if data is None or weights is None or data.scale.size != 1 or known_sizes(call) is None:
        return None
    integers, scale = weights
    if integers.data.shape[call.attributes.kernel_layout.index("I")] == 1:
        return None
    return _scaled_convolution(call, data, integers, scale)


def _scaled_convolution(call: Call, data: _Dequantized, integers: Constant, scale: Array) -> GraphExpr | None:
    assert isinstance(call.attributes, Conv2dAttributes)
    outputs = _output_scales(integers.data, scale, call.attributes.kernel_layout.index("O"))
    if outputs is None or integers.data.size // outputs.size > MOST_PRODUCTS:
        return None
    return _scaled(call, data, integers, outputs.reshape(_spread(call.attributes.data_layout)))


def _transposed_convolution(b: Bindings) -> GraphExpr | None:
    call = b.call("root")
    attributes = call.attributes
    assert isinstance(attributes, Conv2dTransposeAttributes)
    data, weights = _dequantized(call.args[0]), _weights(call.args[1])
    if data is None or weights is None or data.scale.size != 1 or not has_integer_form(call, weights[0].data):
        return None
    integers, scale = weights
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
    return bool(weights.size // outputs // attributes.groups <= MOST_PRODUCTS)


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
    data, weights = _dequantized(call.args[0]), _weights(call.args[1])
    if data is None or weights is None or data.scale.size != 1 or call.attributes.transpose_a:
        return None
    integers, scale = weights
    if integers.data.ndim != 2:
        return None
    full = np.broadcast_to(scale, integers.data.shape)
    columns = full if not call.attributes.transpose_b else full.T
    if columns.shape[0] > MOST_PRODUCTS or not bool((columns == columns[:1]).all()):
        return None
    return _scaled(call, data, integers, columns[0])


def _scaled(call: Call, data: _Dequantized, weights: Constant, scale: Array) -> GraphExpr:
    """The same contraction of integers, converted and scaled."""
    product = Call(call.callee, (data.integers, weights), call.attributes)
    product.span = call.span
    fill_type(product)
    factor = np.float32(data.scale.reshape(())) * scale.astype(np.float32)
    if factor.size == 1:
        factor = factor.reshape(())
    wide = make("cast", product, dtype=FLOAT32, span=call.span)
    return make("multiply", wide, constant(factor.astype(np.float32)), span=call.span)


def _contracts_floats(call: Call) -> bool:
    return call.type is not None and call.tensor_type.dtype is FLOAT32 and static_shape(call.args[1]) is not None


RULES = (
    Rule("convolution of dequantised values", P.op("nn.conv2d", name="root", where=_contracts_floats), _convolution),
    Rule("product of dequantised values", P.op("matmul", name="root", where=_contracts_floats), _product),
    Rule("grouped convolution", P.op("nn.conv2d", name="root", where=_contracts_floats), _grouped_convolution),
    Rule(
        "transposed convolution",
        P.op("nn.conv2d_transpose", name="root", where=_contracts_floats),
        _transposed_convolution,
    ),
)
"""All rules, tried in order at each node."""
