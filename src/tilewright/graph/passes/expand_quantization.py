"""Quantise and dequantise operators spelled out in arithmetic, which other passes fuse and turn to integer products.

Before:  qnn.dequantize(qnn.quantize(x, scale, zero), scale, zero)
After:   q = cast(clip(round(x / scale) + zero, low, high), int8);  cast(cast(q, int32) - zero, float32) * scale
"""

from __future__ import annotations

from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, constant
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, make
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.ops.quantization import QuantizeAttributes, integer_range
from tilewright.ir.dtype import INT32
from tilewright.ir.function import IRModule


def expand_quantization(module: IRModule) -> IRModule:
    """Replace every `qnn.quantize` and `qnn.dequantize` by arithmetic."""
    return map_functions(module, _expanded)


def _expanded(function: Function) -> Function:
    return apply_rules(function, RULES)


def _is_zero(item: GraphExpr) -> bool:
    return isinstance(item, Constant) and not item.data.any()


def _quantize(b: Bindings) -> GraphExpr:
    call = b.call("root")
    data, scale, zero = call.args
    attributes = call.attributes
    assert isinstance(attributes, QuantizeAttributes)
    result: Call = make("round", make("divide", data, scale, span=call.span), span=call.span)
    if not _is_zero(zero):
        shift = make("cast", zero, dtype=data.tensor_type.dtype, span=call.span)
        result = make("add", result, shift, span=call.span)
    low, high = integer_range(attributes.dtype, attributes.bits)
    kept = make("clip", result, minimum=float(low), maximum=float(high), span=call.span)
    return make("cast", kept, dtype=attributes.dtype, span=call.span)


def _as_int32(item: GraphExpr, call: Call) -> GraphExpr:
    if isinstance(item, Constant):
        wide = constant(item.data, "int32")
        wide.span = item.span
        return wide
    return make("cast", item, dtype=INT32, span=call.span)


def _dequantize(b: Bindings) -> GraphExpr:
    call = b.call("root")
    data, scale, zero = call.args
    value = _as_int32(data, call)
    if not _is_zero(zero):
        value = make("subtract", value, _as_int32(zero, call), span=call.span)
    numbers = make("cast", value, dtype=scale.tensor_type.dtype, span=call.span)
    return make("multiply", numbers, scale, span=call.span)


RULES = (
    Rule("quantise", P.op("qnn.quantize", name="root"), _quantize),
    Rule("dequantise", P.op("qnn.dequantize", name="root"), _dequantize),
)
