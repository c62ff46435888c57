"""Rescaled sums that 16 bits hold, whatever the data, are put there at once: nothing is left to saturate.

Before:  int8(clip(qnn.rounded_shift(qnn.high_product(product + bias, multiplier), shift), low, high) + zero)
After:   int8(clip(int16(qnn.rounded_shift(qnn.high_product(product + bias, multiplier), shift)), low, high) + zero)

Weights are constants, and so is how large a sum can be. Arm puts the lower halves of two vectors side by side by one
instruction of either pipeline, where narrowing that saturates takes two of one pipeline. The same for sums that are
scaled as floats:

Before:  uint8(round(float(product + bias) * scale) + zero)
After:   uint8(clip(int16(reinterpret(float(product + bias) * scale + (base + zero)) - bits(base)), 0, 255))

Adding 1.5 * 2^23 (`base`) rounds, ties to even, and leaves the whole number in the low bits: floats need no clamps. A
zero point that is odd, which would turn ties to the odd one, is added to the 16 bits.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tilewright.graph.ir.expr import Call, Constant, GraphExpr, constant
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, make
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.ops.elementwise import ClipAttributes
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.sum_bounds import bounded_sum, by_channel
from tilewright.ir.dtype import FLOAT32, INT8, INT16, INT32, UINT8
from tilewright.ir.function import IRModule

_MOST: Final = 2**14
"""Bounds and zero points that may be added in 16 bits."""
_LIMIT: Final = 2**15 - 1
_BASE: Final = np.float32(1.5 * 2**23)
_BASE_BITS: Final = _BASE.view(np.int32)


def narrow_results(module: IRModule, options: GraphOptions) -> IRModule:
    """Narrow rescaled sums to 16 bits where these hold them, on processors that rescale by instructions."""
    target = options.target
    if target is None or not target.is_cpu or not target.has_rounded_products:
        return module
    return map_functions(module, lambda function: apply_rules(function, _RULES))


def _rounded(b: Bindings) -> GraphExpr | None:
    """Floats that become bytes, by way of 16 bits that hold them."""
    root, moved = b.call("root"), b["x"]
    rounded, zero = moved, 0
    if is_call_to(moved, "add") and isinstance(moved, Call) and isinstance(moved.args[1], Constant):
        number = moved.args[1].data
        if number.size != 1 or not float(number.reshape(())).is_integer():
            return None
        rounded, zero = moved.args[0], int(number.reshape(()))
    dtype = root.tensor_type.dtype
    if dtype not in (INT8, UINT8) or not is_call_to(rounded, "round") or not isinstance(rounded, Call):
        return None
    if abs(zero) > _MOST or any(b.uses(item) > 1 for item in (moved, rounded)) or not _is_small(rounded.args[0]):
        return None
    span = rounded.span
    # An even number may be added before: what lies between two steps goes to the even one all the same.
    before, zero = (0, zero) if zero % 2 else (zero, 0)
    moved_base = constant(_BASE + np.float32(before))
    bits = make("reinterpret", make("add", rounded.args[0], moved_base, span=span), dtype=INT32, span=span)
    halves = make("cast", make("subtract", bits, constant(_BASE_BITS), span=span), dtype=INT16, span=span)
    low, high = float(dtype.min_value() - zero), float(dtype.max_value() - zero)
    result: GraphExpr = make("clip", halves, minimum=low, maximum=high, span=span)
    if zero:
        result = make("add", result, constant(np.int16(zero)), span=moved.span)
    return make("cast", result, dtype=dtype, span=root.span)


def _is_small(scaled: GraphExpr) -> bool:
    """Whether sums of products times a constant, as floats, are numbers of 16 bits, whatever the data is."""
    if not is_call_to(scaled, "multiply") or not isinstance(scaled, Call) or not isinstance(scaled.args[1], Constant):
        return False
    value, start = scaled.args[0], 0
    if is_call_to(value, "subtract") and isinstance(value, Call) and is_call_to(value.args[0], "reinterpret"):
        # `sums_as_floats` made it: the sum begins at the bits of a float, which is subtracted.
        base = value.args[1]
        if not isinstance(base, Constant) or base.data.size != 1 or base.data.reshape(()) != _BASE:
            return False
        value, start = value.args[0], int(_BASE_BITS)
    elif not is_call_to(value, "cast"):
        return False
    if scaled.tensor_type.dtype is not FLOAT32 or not isinstance(value, Call):
        return False
    found = bounded_sum(value.args[0])
    scale = scaled.args[1].data
    if found is None or scale.size not in (1, found.least.size) or (scale.size > 1 and scale.shape[-1] != scale.size):
        return False
    largest = np.maximum(np.abs(found.least - start), np.abs(found.most - start))
    with np.errstate(all="ignore"):
        # A zero point is to be added; two roundings of float32 add far less than a step.
        results = largest * np.abs(scale.reshape(-1).astype(np.float64))
    return bool((results < _LIMIT - _MOST - 1).all())


def _narrowed(b: Bindings) -> GraphExpr | None:
    root, moved = b.call("root"), b["x"]
    clipped, zero = moved, 0
    if is_call_to(moved, "add") and isinstance(moved, Call) and isinstance(moved.args[1], Constant):
        if moved.args[1].data.size != 1:
            return None
        clipped, zero = moved.args[0], int(moved.args[1].data.reshape(()))
    if root.tensor_type.dtype not in (INT8, UINT8) or not is_call_to(clipped, "clip") or not isinstance(clipped, Call):
        return None
    bounds, rescaled = clipped.attributes, clipped.args[0]
    assert isinstance(bounds, ClipAttributes)
    ends = [bounds.minimum, bounds.maximum, zero]
    if any(end is None or abs(end) > _MOST for end in ends) or not _fits(rescaled):
        return None
    if any(b.uses(item) > 1 for item in (moved, clipped, rescaled)) or moved.tensor_type.dtype is not INT32:
        return None
    halves = make("cast", rescaled, dtype=INT16, span=rescaled.span)
    result: GraphExpr = make("clip", halves, minimum=bounds.minimum, maximum=bounds.maximum, span=clipped.span)
    if clipped is not moved:
        result = make("add", result, constant(np.int16(zero)), span=moved.span)
    return make("cast", result, dtype=root.tensor_type.dtype, span=root.span)


def _fits(rescaled: GraphExpr) -> bool:
    """Whether 16 bits hold rescaled sums of products, whatever the data is."""
    if not is_call_to(rescaled, "qnn.rounded_shift") or not isinstance(rescaled, Call):
        return False
    high, shift = rescaled.args
    if is_call_to(high, "add") and isinstance(high, Call) and is_call_to(high.args[1], "right_shift"):
        # Halves away from zero: one less where the product is negative.
        high = high.args[0]
    if not is_call_to(high, "qnn.high_product") or not isinstance(high, Call):
        return False
    total, multiplier = high.args
    found = bounded_sum(total)
    if found is None or not isinstance(multiplier, Constant) or not isinstance(shift, Constant):
        return False
    factors, places = (by_channel(item.data, found.least.size) for item in (multiplier, shift))
    if factors is None or places is None or factors.min(initial=0) < 0 or places.max(initial=0) > 0:
        return False
    largest = np.maximum(np.abs(found.least), np.abs(found.most)).astype(np.float64)
    # Each rounding adds at most one, and so does what is taken off below zero.
    results = (largest * factors / 2.0**31 + 2) * np.exp2(places) + 1
    return bool(results.max(initial=0) < _LIMIT)


_RULES = (
    Rule("results of 16 bits", P.op("cast", P.any("x"), name="root"), _narrowed),
    Rule("floats of 16 bits", P.op("cast", P.any("x"), name="root"), _rounded),
)
