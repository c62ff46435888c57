"""Layers of a quantised model in integer arithmetic alone: activations of int8, results by multiplier and shift.

Before:  quantize(relu(conv2d(dequantize(x), dequantize(w)) + bias + dequantize(r)))          uint8 or int8
After:   qnn.fixed_point(conv2d(int32(x) - zero, int32(w)), bias, multiplier, shift, r, ...)  int8

What is no product is the same without one: sums of two activations, averages, other scales. Products that floats read
are of integers too, and their scale is put on the sums.

The results may differ by a step from those of float32 (`docs/quantization.md`); after this pass every target gives the
same integers. Unsigned activations become signed: all of them move by 128, and so do their zero points.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.accel.config import MOST_SHIFT
from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, constant
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.op import Operator, is_call_to
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, make
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.ops.convolution import Conv2dAttributes, Conv2dTransposeAttributes
from tilewright.graph.ops.elementwise import ClipAttributes
from tilewright.graph.ops.fixed_point import MOST_MULTIPLIER, MOST_RESIDUAL_SHIFT
from tilewright.graph.ops.pooling import Pool2dAttributes
from tilewright.graph.ops.quantization import QuantizeAttributes, integer_range
from tilewright.graph.ops.reduce import ReduceAttributes
from tilewright.ir.dtype import FLOAT32, INT8, INT32, UINT8
from tilewright.ir.function import IRModule

Array = npt.NDArray[Any]
_FLIP = 128
_MOST_BIAS = (1 << 31) - 1
_MOST_AVERAGED = 1 << 22
"""Bytes whose sum has 32 bits, whatever they are."""
_MOVES = frozenset(["transpose", "reshape", "slice", "concatenate", "nn.max_pool2d", "take", "tile", "broadcast_to"])
"""Operators whose results are elements of their first input (of `concatenate` all of them), in whatever type."""
_MOST_MOVES = 8
"""Operators in between that are looked through, one behind the other."""
_PRODUCTS = ("nn.conv2d", "nn.conv2d_transpose", "matmul")


def fixed_point(module: IRModule) -> IRModule:
    """Turn quantised layers to integer arithmetic, where multiplier and shift can say what their scales do."""
    return map_functions(module, _rewritten)


def _rewritten(function: Function) -> Function:
    # What floats read is what is left when all layers were looked at.
    return apply_rules(apply_rules(function, RULES), (_READ_BY_FLOATS,))


@dataclass(frozen=True, slots=True)
class _Bytes:
    """Integers of 8 bits, and what they stand for: (data - zero) * scale, one scale and zero point for all."""

    data: GraphExpr
    scale: float
    zero: int


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer on its way to a quantised result: numbers from `low` to `high` of product + bias + residual.

    The product is one of activations and weights, an average, or activations as they are.
    """

    product: Call
    bias: Array | None = None
    residual: _Bytes | None = None
    low: float = -np.inf
    high: float = np.inf


def _single(item: GraphExpr) -> float | None:
    return float(item.data.reshape(())) if isinstance(item, Constant) and item.data.size == 1 else None


def _dequantized(item: GraphExpr) -> _Bytes | None:
    """Numbers as the signed bytes that they are dequantised from."""
    if not is_call_to(item, "qnn.dequantize") or not isinstance(item, Call):
        return None
    data, scale, zero = item.args[0], _single(item.args[1]), _single(item.args[2])
    if scale is None or zero is None or data.tensor_type.dtype is not INT8:
        return None
    return _Bytes(data, scale, int(zero))


# --------------------------------------------------------------- signed bytes


def _signed(item: GraphExpr) -> GraphExpr | None:
    """Unsigned bytes less 128, where what they come from can be quantised so."""
    if not isinstance(item, Call) or not isinstance(item.callee, Operator):
        return None
    if is_call_to(item, "qnn.quantize"):
        attributes, zero = item.attributes, _single(item.args[2])
        assert isinstance(attributes, QuantizeAttributes)
        if attributes.bits != 8 or zero is None:
            return None
        moved = constant(np.array(zero - _FLIP, np.int8), "int8")
        return make("qnn.quantize", item.args[0], item.args[1], moved, dtype=INT8, span=item.span)
    if item.callee.name in _MOVES:
        inputs = _moved_inputs(item)
        parts = [part for part in map(_signed, inputs) if part is not None]
        return _as_before(item, [*parts, *item.args[len(parts) :]]) if len(parts) == len(inputs) else None
    return None


def _moved_inputs(item: Call) -> tuple[GraphExpr, ...]:
    """The inputs of which an operator that moves elements takes its results."""
    return item.args if is_call_to(item, "concatenate") else item.args[:1]


def _as_before(item: Call, args: list[GraphExpr]) -> Call:
    """The same operator on other inputs."""
    call = Call(item.callee, tuple(args), item.attributes)
    call.span = item.span
    fill_type(call)
    return call


def _signed_numbers(b: Bindings) -> GraphExpr | None:
    call = b.call("root")
    data, zero = call.args[0], _single(call.args[2])
    if zero is None or data.tensor_type.dtype is not UINT8:
        return None
    signed = _signed(data)
    if signed is None:
        return None
    moved = constant(np.array(zero - _FLIP, np.int8), "int8")
    return make("qnn.dequantize", signed, call.args[1], moved, span=call.span)


# --------------------------------------------------------------------- layers


def _layer(item: GraphExpr, b: Bindings) -> _Layer | None:
    """Numbers that nothing else reads as a layer's result; looked through from the result to the product."""
    if isinstance(item, Call) and is_call_to(item, "qnn.dequantize"):
        return _Layer(item)
    if not isinstance(item, Call) or b.uses(item) > 1:
        return None
    if any(is_call_to(item, name) for name in (*_PRODUCTS, "mean", "nn.avg_pool2d")):
        return _Layer(item)
    if is_call_to(item, "nn.relu"):
        return _clipped(_layer(item.args[0], b), 0.0, np.inf)
    if is_call_to(item, "clip"):
        attributes = item.attributes
        assert isinstance(attributes, ClipAttributes)
        return _clipped(_layer(item.args[0], b), attributes.minimum, attributes.maximum)
    if is_call_to(item, "add"):
        for value, other in _finer_first(item):
            layer = _layer(value, b)
            if layer is not None and layer.low == -np.inf and layer.high == np.inf:
                added = _added(layer, other)
                if added is not None:
                    return added
    return None


def _finer_first(item: Call) -> tuple[tuple[GraphExpr, ...], ...]:
    """The sides of a sum in both orders; of two activations, that of the smaller steps comes first.

    A residual may have more places than the sums, but not fewer.
    """
    sides = [_dequantized(part) for part in item.args]
    left, right = sides
    swapped = left is not None and right is not None and left.scale > right.scale
    orders = (item.args, item.args[::-1])
    return orders[::-1] if swapped else orders


def _clipped(layer: _Layer | None, low: float | None, high: float | None) -> _Layer | None:
    if layer is None:
        return None
    low, high = -np.inf if low is None else low, np.inf if high is None else high
    return replace(layer, low=min(max(layer.low, low), high), high=max(min(layer.high, high), low))


def _added(layer: _Layer, other: GraphExpr) -> _Layer | None:
    if isinstance(other, Constant):
        bias = _per_channel(other.data, layer.product)
        if bias is None:
            return None
        return replace(layer, bias=bias if layer.bias is None else layer.bias + bias)
    residual = _dequantized(other)
    if (
        residual is None
        or layer.residual is not None
        or residual.data.tensor_type.shape != layer.product.tensor_type.shape
    ):
        return None
    return replace(layer, residual=residual)


def _channel_axis(product: Call) -> int:
    rank = product.tensor_type.rank
    assert rank is not None
    return 1 if rank == 4 and not is_call_to(product, "matmul") else max(rank - 1, 0)


def _per_channel(data: Array, product: Call) -> Array | None:
    """A constant that broadcasts along the channels of a product, as a line of them."""
    rank, axis = product.tensor_type.rank, _channel_axis(product)
    if rank is None or data.ndim > rank:
        return None
    shape = (1,) * (rank - data.ndim) + data.shape
    if any(size != 1 for at, size in enumerate(shape) if at != axis):
        return None
    return np.asarray(data.reshape(-1), np.float64)


def _weights(product: Call) -> tuple[Array, Array] | None:
    """The integers of a layer's weights, and a scale for each output channel (or one for all)."""
    item = product.args[1]
    if not is_call_to(item, "qnn.dequantize") or not isinstance(item, Call):
        return None
    data, scale, zero = item.args
    if not all(isinstance(part, Constant) for part in (data, scale, zero)):
        return None
    assert isinstance(data, Constant) and isinstance(scale, Constant) and isinstance(zero, Constant)
    if data.dtype is not INT8 or zero.data.any():
        return None
    shape = (1,) * (data.data.ndim - scale.data.ndim) + scale.data.shape
    channel = _output_axis(product, data.data.ndim)
    if any(size != 1 for at, size in enumerate(shape) if at != channel):
        return None
    return data.data, np.asarray(scale.data.reshape(-1), np.float64)


def _output_axis(product: Call, rank: int) -> int:
    """The axis of a product's weights along which its outputs lie."""
    attributes = product.attributes
    if isinstance(attributes, (Conv2dAttributes, Conv2dTransposeAttributes)):
        return attributes.kernel_layout.index("O")
    assert isinstance(attributes, MatmulAttributes)
    return rank - 2 if attributes.transpose_b else rank - 1


@dataclass(frozen=True, slots=True)
class _Sums:
    """A layer's product in 32 bits, and the number that a step of it stands for, for each channel (or one for all)."""

    value: GraphExpr
    steps: Array


def _product_sums(product: Call) -> _Sums | None:
    """The integers of a product of activations with weights, or with other activations that have no zero point."""
    data, attributes = _dequantized(product.args[0]), product.attributes
    if data is None or len(product.args) != 2:
        return None
    if isinstance(attributes, (Conv2dAttributes, Conv2dTransposeAttributes)):
        # The outputs of groups are not one axis of a transposed convolution's weights.
        is_grouped = attributes.groups > 1 and isinstance(attributes, Conv2dTransposeAttributes)
        if attributes.data_layout != "NCHW" or is_grouped:
            return None
    weights = _weights(product)
    if weights is not None:
        factor = constant(weights[0].astype(np.int32), "int32")
        return _Sums(_as_before(product, [_wide(data, product), factor]), data.scale * weights[1])
    other = _dequantized(product.args[1])
    if other is None or data.zero or other.zero or not is_call_to(product, "matmul"):
        return None
    value = _as_before(product, [_wide(data, product), _wide(other, product)])
    return _Sums(value, np.array([data.scale * other.scale]))


def _layer_sums(product: Call) -> _Sums | None:
    """What a layer adds up, in 32 bits."""
    if is_call_to(product, "qnn.dequantize"):
        data = _dequantized(product)
        return None if data is None else _Sums(_wide(data, product), np.array([data.scale]))
    if any(is_call_to(product, name) for name in _PRODUCTS):
        return _product_sums(product)
    data = _dequantized(product.args[0])
    return None if data is None else _averaged(product, data)


def _averaged(product: Call, data: _Bytes) -> _Sums | None:
    """The sums that an average divides, where it always divides them by the same number."""
    attributes, shape = product.attributes, data.data.tensor_type.static_shape
    if shape is None or len(shape) != 4:
        return None
    if isinstance(attributes, Pool2dAttributes):
        has_edges = any(attributes.padding) and not attributes.count_include_pad
        if attributes.layout != "NCHW" or attributes.dilation != (1, 1) or has_edges:
            return None
        ones = constant(np.ones((shape[1], 1, *attributes.kernel), np.int32), "int32")
        value = make(
            "nn.conv2d", _wide(data, product), ones, strides=attributes.strides, padding=attributes.padding,
            groups=shape[1], span=product.span,
        )  # fmt: skip
        return _Sums(value, np.array([data.scale / np.prod(attributes.kernel)]))
    assert isinstance(attributes, ReduceAttributes)
    value = make("sum", _wide(data, product), axes=attributes.axes, keepdims=attributes.keepdims, span=product.span)
    size = np.prod([shape[axis] for axis in attributes.axes])
    return _Sums(value, np.array([data.scale / size])) if 0 < size <= _MOST_AVERAGED else None


def _multiplier(factor: Array, most_shift: Array | int) -> tuple[Array, Array]:
    """Multipliers and shifts with multiplier / 2^shift nearest to positive factors, the shifts at most as given."""
    shifts = np.floor(np.log2((MOST_MULTIPLIER + 0.49) / factor))
    shifts = np.minimum(shifts, most_shift).astype(np.int64)
    return np.rint(factor * np.exp2(shifts)).astype(np.int64), shifts


def _quantized_layer(b: Bindings) -> GraphExpr | None:
    root = b.call("root")
    attributes, scale, zero = root.attributes, _single(root.args[1]), _single(root.args[2])
    assert isinstance(attributes, QuantizeAttributes)
    layer = _layer(root.args[0], b)
    if layer is None or scale is None or zero is None or attributes.dtype is not INT8 or attributes.bits != 8:
        return None
    sums = _layer_sums(layer.product)
    numbers = None if sums is None else _numbers(layer, sums.steps, scale, layer.product)
    if sums is None or numbers is None:
        return None
    low, high = integer_range(INT8, 8)
    ends = [zero + np.rint(end / scale) if np.isfinite(end) else end for end in (layer.low, layer.high)]
    residual = () if layer.residual is None else (layer.residual.data, *numbers[3:])
    return make(
        "qnn.fixed_point", sums.value, *numbers[:3], *residual, span=root.span,
        offset=int(zero), low=int(np.clip(ends[0], low, high)), high=int(np.clip(ends[1], low, high)),
    )  # fmt: skip


def _numbers(layer: _Layer, steps: Array, scale: float, product: Call) -> list[Constant] | None:
    """Bias, multiplier and shift, and those of the residual, as constants that broadcast along the channels."""
    factor = steps / scale
    multiplier, shift = _multiplier(factor, MOST_SHIFT)
    bias = np.zeros(1) if layer.bias is None else layer.bias / steps
    numbers: list[Array] = []
    if layer.residual is not None:
        # At most the sums' shift, so that what is left of it is a shift to the left.
        residual_multiplier, residual_shift = _multiplier(np.full(shift.shape, layer.residual.scale / scale), shift)
        left = shift - residual_shift
        if (left > MOST_RESIDUAL_SHIFT).any() or not residual_multiplier.all():
            return None
        numbers = [residual_multiplier, left]
        # The residual's zero point, in steps of the sums.
        with np.errstate(divide="ignore"):
            bias = bias - layer.residual.zero * np.ldexp(residual_multiplier / multiplier, left)
    if (shift < 0).any() or not multiplier.all() or not (np.abs(bias) < _MOST_BIAS).all():
        return None
    return [_along_channels(item, product) for item in (np.rint(bias), multiplier, shift, *numbers)]


def _along_channels(values: Array, product: Call) -> Constant:
    rank, axis = product.tensor_type.rank, _channel_axis(product)
    assert rank is not None
    return constant(values.astype(np.int32).reshape([-1 if at == axis else 1 for at in range(rank)]), "int32")


def _wide(data: _Bytes, product: Call) -> GraphExpr:
    """Activations less their zero point, in 32 bits."""
    value: GraphExpr = make("cast", data.data, dtype=INT32, span=product.span)
    if data.zero:
        value = make("subtract", value, constant(np.array(data.zero, np.int32), "int32"), span=product.span)
    return value


# ------------------------------------------------------- products for floats


def _scaled_sums(b: Bindings) -> GraphExpr | None:
    """A product that floats read: integers are summed, and what a step of the sums is worth is put on them."""
    root = b.call("root")
    sums = _product_sums(root)
    if sums is None or root.tensor_type.dtype is not FLOAT32:
        return None
    numbers = make("cast", sums.value, dtype=FLOAT32, span=root.span)
    rank, axis = root.tensor_type.rank, _channel_axis(root)
    assert rank is not None
    steps = sums.steps.astype(np.float32).reshape([-1 if at == axis else 1 for at in range(rank)])
    return make("multiply", numbers, constant(steps, "float32"), span=root.span)


# ------------------------------------------------------------- moved integers


def _moved(b: Bindings) -> GraphExpr | None:
    """quantize(move(dequantize(q))) by the same numbers: the integers are moved, if there is anything to move."""
    root = b.call("root")
    scale, zero = _single(root.args[1]), _single(root.args[2])
    return None if root.tensor_type.dtype is not INT8 else _moved_bytes(root.args[0], scale, zero, _MOST_MOVES)


def _moved_bytes(item: GraphExpr, scale: float | None, zero: float | None, most: int) -> GraphExpr | None:
    """The bytes of numbers that were dequantised in a way and moved since; at most so many operators deep."""
    found = _dequantized(item)
    if found is not None:
        return found.data if (found.scale, found.zero) == (scale, zero) else None
    if not isinstance(item, Call) or not isinstance(item.callee, Operator) or item.callee.name not in _MOVES:
        return None
    parts: list[GraphExpr] = []
    for arg in _moved_inputs(item) if most else ():
        part = _moved_bytes(arg, scale, zero, most - 1)
        if part is None:
            return None
        parts.append(part)
    return _as_before(item, [*parts, *item.args[len(parts) :]]) if parts else None


RULES = (
    Rule("signed bytes", P.op("qnn.dequantize", name="root"), _signed_numbers),
    Rule("integers that are moved", P.op("qnn.quantize", name="root"), _moved),
    Rule("a layer in fixed point", P.op("qnn.quantize", name="root"), _quantized_layer),
)
"""All rules of layers, tried in order at each node."""
_READ_BY_FLOATS = Rule("a product that floats read", P.op(_PRODUCTS, name="root"), _scaled_sums)
