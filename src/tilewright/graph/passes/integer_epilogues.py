"""What follows an integer product, in as few steps as say the same.

Constants that are added to a sum one after the other, as corrections for a zero point and biases are, become one:

    (sum + c) + bias       ->   sum + (c + bias)

Biases that are whole steps of a product's scale are added as integers, where they meet the correction for a zero point:

    float(sum - c) * scale + bias       ->   float(sum + (bias / scale - c)) * scale

Casts to bytes saturate, so what clamps to a byte's range, before or after rounding, is said twice:

    uint8(clip(round(clip(x, 0, 255)), 0, 255))   ->   uint8(round(x))

Bytes that are moved to the other sign, as products want them, are cast to it at once:

    uint8(int32(int8(clip(x, -3, 124) + 3)) + 128)   ->   uint8(clip(x, -3, 124) + 131)

Signed bytes that begin at the zero point are unsigned bytes moved, which takes no addition of floats (on CPUs):

    int8(round(float(sum) * scale) - 128)   ->   int8(int32(uint8(round(float(sum) * scale))) - 128)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.graph.ir.expr import Call, Constant, GraphExpr, constant
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, make
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.ops.elementwise import ClipAttributes
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.quantized_products import MOST_MOVES
from tilewright.ir.dtype import FLOAT32, INT8, INT32, UINT8
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType

Array = npt.NDArray[Any]
_CLOSE = 2.0**-21
"""How far a bias may be from a whole number of steps, relative to itself: some roundings of float32."""
_PRODUCTS = (
    "qnn.matmul",
    "qnn.conv2d",
    "qnn.grouped_conv2d",
    "qnn.conv2d_transpose",
    "qnn.line_conv2d",
    "qnn.depthwise_conv2d",
    "qnn.window_dots",
    "slice",
    "reshape",
)
"""Sums of products of bytes, perhaps rearranged."""
_FLIP = 128
_MOST_FACTOR = 2.0**64
"""Factors with which no integer leaves the range of float32, nor do sums of some of them."""
_MOST_STEPS = 2.0**30
"""Steps of a bias that leave room for the sum of products in 32 bits."""


def integer_epilogues(module: IRModule, options: GraphOptions) -> IRModule:
    """Simplify what follows integer products."""
    rules = (*RULES, *CPU_RULES) if options.machine.is_cpu else RULES
    return map_functions(module, lambda function: apply_rules(function, rules))


def _integer_bias(b: Bindings) -> GraphExpr | None:
    """A bias added after the scale, as steps of that scale added before it."""
    total, scale, bias = b["total"], b.constant("scale").data, b.constant("bias").data
    root = b.call("root")
    if total.tensor_type.dtype is not INT32 or root.tensor_type.dtype is not FLOAT32 or not b.used_once("scaled"):
        return None
    steps = _steps(bias, scale)
    if steps is None or root.type is not TensorType(total.tensor_type.shape, FLOAT32):
        return None
    if is_call_to(total, "add") and isinstance(total, Call) and isinstance(total.args[1], Constant):
        with np.errstate(over="ignore"):
            steps = steps + total.args[1].data
        total = total.args[0]
    shifted = make("add", total, constant(steps.astype(np.int32)), span=root.span)
    wide = make("cast", shifted, dtype=FLOAT32, span=root.span)
    return make("multiply", wide, constant(scale), span=root.span)


def _steps(bias: Array, scale: Array) -> Array | None:
    """A bias as whole numbers of a scale; None if it is none."""
    with np.errstate(all="ignore"):
        steps = np.rint(bias.astype(np.float64) / scale)
        missed = np.abs(steps * scale - bias)
    if not np.isfinite(steps).all() or np.abs(steps).max(initial=0) > _MOST_STEPS:
        return None
    return None if (missed > np.abs(bias) * _CLOSE).any() else steps.astype(np.int32)


def _negated(b: Bindings) -> GraphExpr | None:
    """What is taken off a sum of integers, added: constants that are added meet."""
    root, value = b.call("root"), b.constant("c")
    if root.tensor_type.dtype is not INT32 or not _is_product(b["x"]):
        return None
    with np.errstate(over="ignore"):
        return make("add", b["x"], constant(np.negative(value.data)), span=root.span)


def _joined(b: Bindings) -> GraphExpr | None:
    """Two constants that are added to a sum of integers, as one."""
    root, first, second = b.call("root"), b.constant("first"), b.constant("second")
    total = b["total"]
    if root.tensor_type.dtype is not INT32 or not _is_product(total) or root.type is not total.type:
        return None
    with np.errstate(over="ignore"):
        return make("add", total, constant(np.add(first.data, second.data, dtype=np.int32)), span=root.span)


def _is_product(item: GraphExpr) -> bool:
    return any(is_call_to(item, name) for name in _PRODUCTS)


def _saturated(b: Bindings) -> GraphExpr | None:
    """A cast to bytes without the clamps that it does itself."""
    root = b.call("root")
    dtype = root.tensor_type.dtype
    if dtype not in (INT8, UINT8) or b["x"].tensor_type.dtype is not FLOAT32:
        return None
    low, high = (0.0, 255.0) if dtype is UINT8 else (-128.0, 127.0)
    levels = _without_clamp(b["x"], low, high)
    level, zero = levels, 0.0
    if is_call_to(level, "add") and isinstance(level, Call) and isinstance(level.args[1], Constant):
        shift = level.args[1].data
        if shift.size == 1 and float(shift.reshape(())).is_integer():
            level, zero = level.args[0], float(shift.reshape(()))
    if not is_call_to(level, "round") or not isinstance(level, Call):
        return None
    # Rounding is monotonous: a clamp before it does what one after it would, at the bounds rounded.
    inner = _without_clamp(level.args[0], low - zero, high - zero)
    if levels is b["x"] and inner is level.args[0]:
        return None
    rounded: GraphExpr = make("round", inner, span=level.span)
    if level is not levels:
        assert isinstance(levels, Call)
        rounded = make("add", rounded, levels.args[1], span=levels.span)
    return make("cast", rounded, dtype=dtype, span=root.span)


def _from_the_least(b: Bindings) -> GraphExpr | None:
    """Signed bytes less 128, as unsigned bytes moved; NaN, which is 0 either way, must not come."""
    root, shift = b.call("root"), b.constant("shift").data
    if root.tensor_type.dtype is not INT8 or shift.size != 1 or float(shift.reshape(())) != -_FLIP:
        return None
    if not _is_number(b["x"]):
        return None
    unsigned = make("cast", b["rounded"], dtype=UINT8, span=root.span)
    wide = make("cast", unsigned, dtype=INT32, span=root.span)
    moved = make("add", wide, constant(np.int32(-_FLIP)), span=root.span)
    return make("cast", moved, dtype=INT8, span=root.span)


def _moved(b: Bindings) -> GraphExpr | None:
    """Whole numbers that are clamped to a byte, moved, as another byte: without the byte between."""
    root, value, narrow = b.call("root"), b["x"], b["narrow"].tensor_type.dtype
    to, step = root.tensor_type.dtype, b.constant("step").data
    if {narrow, to} != {INT8, UINT8} or value.tensor_type.dtype is not INT32 or step.size != 1:
        return None
    if not (b.used_once("narrow") and b.used_once("wide")):
        return None
    bounds = _whole_bounds(value)
    moved_by = int(step.reshape(()))
    if bounds is None or bounds[0] < narrow.min_value() or bounds[1] > narrow.max_value():
        return None
    if bounds[0] + moved_by < to.min_value() or bounds[1] + moved_by > to.max_value():
        return None
    if is_call_to(value, "add") and isinstance(value, Call) and isinstance(value.args[1], Constant):
        with np.errstate(over="ignore"):
            total = np.add(value.args[1].data, np.int32(moved_by), dtype=np.int32)
        moved: GraphExpr = value.args[0] if not total.any() else make("add", value.args[0], constant(total))
    else:
        moved = make("add", value, constant(np.int32(moved_by)), span=root.span)
    return make("cast", moved, dtype=to, span=root.span)


def _whole_bounds(value: GraphExpr) -> tuple[int, int] | None:
    """The least and the greatest that clamped whole numbers can be, a number added or not."""
    added = 0
    if is_call_to(value, "add") and isinstance(value, Call) and isinstance(value.args[1], Constant):
        number = value.args[1].data
        if number.size != 1:
            return None
        value, added = value.args[0], int(number.reshape(()))
    if not is_call_to(value, "clip") or not isinstance(value, Call):
        return None
    bounds = value.attributes
    assert isinstance(bounds, ClipAttributes)
    if bounds.minimum is None or bounds.maximum is None:
        return None
    return math.floor(bounds.minimum) + added, math.ceil(bounds.maximum) + added


def _is_number(item: GraphExpr, steps: int = MOST_MOVES) -> bool:
    """Whether a float is never NaN: integers times finite numbers, clamped or added up."""
    if not isinstance(item, Call) or not steps:
        return isinstance(item, Constant) and bool(np.isfinite(item.data).all())
    if is_call_to(item, "multiply") and is_call_to(item.args[0], "cast"):
        source, factor = item.args
        assert isinstance(source, Call)
        is_whole = source.args[0].tensor_type.dtype.is_integer
        return is_whole and isinstance(factor, Constant) and bool((np.abs(factor.data) < _MOST_FACTOR).all())
    if not any(is_call_to(item, name) for name in ("nn.relu", "clip", "add")):
        return False
    return all(_is_number(part, steps // len(item.args)) for part in item.args)


def _without_clamp(item: GraphExpr, low: float, high: float) -> GraphExpr:
    """A value without the clamps at its top that bounds make needless; one that clamps a side more stays for it."""
    while isinstance(item, Call):
        if is_call_to(item, "nn.relu") and low >= 0.0:
            item = item.args[0]
            continue
        if not is_call_to(item, "clip"):
            break
        bounds = item.attributes
        assert isinstance(bounds, ClipAttributes)
        least = bounds.minimum if bounds.minimum is not None and np.rint(bounds.minimum) > low else None
        most = bounds.maximum if bounds.maximum is not None and np.rint(bounds.maximum) < high else None
        if (least, most) == (bounds.minimum, bounds.maximum):
            break
        if least is not None or most is not None:
            return make("clip", item.args[0], minimum=least, maximum=most, span=item.span)
        item = item.args[0]
    return item


_SCALED = P.op("multiply", P.op("cast", P.any("total")), P.const("scale"), name="scaled")
RULES = (
    Rule("corrections are added", P.op("subtract", P.any("x"), P.const("c"), name="root"), _negated),
    Rule(
        "constants that are added meet",
        P.op("add", P.op("add", P.any("total"), P.const("first")), P.const("second"), name="root"),
        _joined,
    ),
    Rule("bias in integers", P.op("add", _SCALED, P.const("bias"), name="root"), _integer_bias),
    Rule(
        "bytes of the other sign",
        P.op(
            "cast",
            P.op("add", P.op("cast", P.op("cast", P.any("x"), name="narrow"), name="wide"), P.const("step")),
            name="root",
        ),
        _moved,
    ),
    Rule("casts saturate", P.op("cast", P.any("x"), name="root"), _saturated),
)
"""The rules for all processors, tried in order at each node."""
CPU_RULES = (
    Rule(
        "signed bytes from the least on",
        P.op("cast", P.op("add", P.op("round", P.any("x"), name="rounded"), P.const("shift")), name="root"),
        _from_the_least,
    ),
)
"""Those for CPUs, too."""
