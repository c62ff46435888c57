"""Layers of a quantised model in integer arithmetic alone: activations of int8, results by multiplier and shift.

Before:  quantize(relu(conv2d(dequantize(x), dequantize(w)) + bias + dequantize(r)))          uint8 or int8
After:   qnn.fixed_point(conv2d(int32(x) - zero, int32(w)), bias, multiplier, shift, r, ...)  int8

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
from tilewright.graph.ops.elementwise import ClipAttributes
from tilewright.graph.ops.fixed_point import MOST_MULTIPLIER, MOST_RESIDUAL_SHIFT
from tilewright.graph.ops.quantization import QuantizeAttributes, integer_range
from tilewright.ir.dtype import INT8, INT32, UINT8
from tilewright.ir.function import IRModule

Array = npt.NDArray[Any]
_FLIP = 128
_MOST_BIAS = (1 << 31) - 1
_MOVES = frozenset(["transpose", "reshape", "slice", "concatenate", "nn.max_pool2d"])
"""Operators whose results are elements of their inputs, in whatever type."""


def fixed_point(module: IRModule) -> IRModule:
    """Turn quantised layers to integer arithmetic, where multiplier and shift can say what their scales do."""
    result = map_functions(module, lambda function: _rewritten(function, RULES))
    assert isinstance(result, IRModule)
    return result


def _rewritten(function: Function, rules: tuple[Rule, ...]) -> Function:
    return apply_rules(function, rules)


@dataclass(frozen=True, slots=True)
class _Bytes:
    """Integers of 8 bits, and what they stand for: (data - zero) * scale, one scale and zero point for all."""

    data: GraphExpr
    scale: float
    zero: int


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer on its way to a quantised result: numbers from `low` to `high` of product + bias + residual."""

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
        parts = [part for part in map(_signed, item.args) if part is not None]
        return _as_before(item, parts) if len(parts) == len(item.args) else None
    return None


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
    if not isinstance(item, Call) or b.uses(item) > 1:
        return None
    if is_call_to(item, "nn.conv2d") or is_call_to(item, "matmul"):
        return _Layer(item)
    if is_call_to(item, "nn.relu"):
        return _clipped(_layer(item.args[0], b), 0.0, np.inf)
    if is_call_to(item, "clip"):
        attributes = item.attributes
        assert isinstance(attributes, ClipAttributes)
        return _clipped(_layer(item.args[0], b), attributes.minimum, attributes.maximum)
    if is_call_to(item, "add"):
        for value, other in (item.args, item.args[::-1]):
            layer = _layer(value, b)
            if layer is not None and layer.low == -np.inf and layer.high == np.inf:
                added = _added(layer, other)
                if added is not None:
                    return added
    return None


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
    return 1 if is_call_to(product, "nn.conv2d") else rank - 1


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
    is_conv = is_call_to(product, "nn.conv2d")
    transposed = not is_conv and bool(getattr(product.attributes, "transpose_b", False))
    channel = 0 if is_conv or transposed else data.data.ndim - 1
    shape = (1,) * (data.data.ndim - scale.data.ndim) + scale.data.shape
    if any(size != 1 for at, size in enumerate(shape) if at != channel):
        return None
    return data.data, np.asarray(scale.data.reshape(-1), np.float64)


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
    data, weights = _dequantized(layer.product.args[0]), _weights(layer.product)
    if data is None or weights is None or (layer.product.args[2:] and not is_call_to(layer.product, "matmul")):
        return None
    integers, weight_scale = weights
    numbers = _numbers(layer, data.scale * weight_scale, scale, layer.product)
    if numbers is None:
        return None
    sums = _sums(layer.product, data, integers)
    low, high = integer_range(INT8, 8)
    ends = [zero + np.rint(end / scale) if np.isfinite(end) else end for end in (layer.low, layer.high)]
    residual = () if layer.residual is None else (layer.residual.data, *numbers[3:])
    return make(
        "qnn.fixed_point", sums, *numbers[:3], *residual, span=root.span,
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


def _sums(product: Call, data: _Bytes, weights: Array) -> GraphExpr:
    """The product in 32 bits."""
    value: GraphExpr = make("cast", data.data, dtype=INT32, span=product.span)
    if data.zero:
        value = make("subtract", value, constant(np.array(data.zero, np.int32), "int32"), span=product.span)
    return _as_before(product, [value, constant(weights.astype(np.int32), "int32")])


# ------------------------------------------------------------- moved integers


def _moved(b: Bindings) -> GraphExpr | None:
    """quantize(move(dequantize(q))) by the same numbers: the integers are moved."""
    root = b.call("root")
    item, scale, zero = root.args[0], _single(root.args[1]), _single(root.args[2])
    if not isinstance(item, Call) or not isinstance(item.callee, Operator) or item.callee.name not in _MOVES:
        return None
    parts: list[GraphExpr] = []
    for arg in item.args:
        found = _dequantized(arg)
        if found is None or found.scale != scale or found.zero != zero:
            return None
        parts.append(found.data)
    if root.tensor_type.dtype is not INT8:
        return None
    return _as_before(item, parts)


RULES = (
    Rule("signed bytes", P.op("qnn.dequantize", name="root"), _signed_numbers),
    Rule("integers that are moved", P.op("qnn.quantize", name="root"), _moved),
    Rule("a layer in fixed point", P.op("qnn.quantize", name="root"), _quantized_layer),
)
"""All rules, tried in order at each node."""
