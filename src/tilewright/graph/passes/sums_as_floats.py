"""Sums of products of bytes become floats by a subtraction, where conversions are slow.

Before:  float32(product + bias) * scale
After:   (reinterpret(product + bias') - 12582912.0) * scale         bias' = bias + the bits of 12582912.0 (1.5 * 2^23)

Floats near 1.5 * 2^23 are whole numbers, and their bits count them: `bits(12582912.0) + n` is the float 12582912.0 + n,
for all n within 2^22. Its difference from 12582912.0 is exact, so results are the same to the bit. The bias is where
sums begin, so that the addition costs nothing. Vectors of Arm are converted at a quarter of the speed of additions,
which shows in products of few channels.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, constant
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, make
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.options import GraphOptions
from tilewright.ir.dtype import FLOAT32, INT8, INT32, UINT8
from tilewright.ir.function import IRModule

Array = npt.NDArray[Any]
_BASE: Final = np.float32(1.5 * 2**23)
_BASE_BITS: Final = int(_BASE.view(np.int32))
_MOST: Final = 2**22
"""Sums whose magnitude is less are whole steps away from the base."""
_NOTHING: Final[Array] = np.zeros((), np.int32)
_PRODUCTS: Final = {"qnn.matmul": 2, "qnn.line_conv2d": 3, "qnn.conv2d": 4}
"""Sums over all axes of their weights but the last, and how many axes these have."""


def sums_as_floats(module: IRModule, options: GraphOptions) -> IRModule:
    """Turn bounded sums to floats without conversions, on processors that convert vectors slowly."""
    target = options.target
    if target is None or not target.is_cpu or not target.has_slow_conversions:
        return module

    def rewritten(function: Function) -> Function:
        return apply_rules(function, (_RULE,))

    result = map_functions(module, rewritten)
    assert isinstance(result, IRModule)
    return result


def _converted(b: Bindings) -> GraphExpr | None:
    root, total = b.call("root"), b["total"]
    if root.tensor_type.dtype is not FLOAT32 or total.tensor_type.dtype is not INT32 or not b.used_once("total"):
        return None
    product, bias = total, _NOTHING
    if is_call_to(total, "add") and isinstance(total, Call) and isinstance(total.args[1], Constant):
        product, bias = total.args[0], total.args[1].data
        if product.type is not total.type or b.uses(product) > 1:
            return None
    rank = next((rank for name, rank in _PRODUCTS.items() if is_call_to(product, name)), None)
    if rank is None or not isinstance(product, Call):
        return None
    data, weight = product.args[:2]
    if not isinstance(weight, Constant) or weight.data.ndim != rank or data.tensor_type.dtype not in (INT8, UINT8):
        return None
    columns = weight.data.shape[-1]
    if bias.size not in (1, columns) or (bias.size > 1 and bias.shape[-1] != columns):
        return None
    shifts = np.broadcast_to(bias.reshape(-1), (columns,)).astype(np.int64)
    if not _is_bounded(data.tensor_type.dtype is UINT8, weight.data.astype(np.int64), shifts):
        return None
    begun = make("add", product, constant((shifts + _BASE_BITS).astype(np.int32)), span=root.span)
    read = make("reinterpret", begun, dtype=FLOAT32, span=root.span)
    return make("subtract", read, constant(_BASE), span=root.span)


def _is_bounded(is_unsigned: bool, weights: Array, shifts: Array) -> bool:
    """Whether no bytes can give a sum of another magnitude."""
    low, high = (0, 255) if is_unsigned else (-128, 127)
    over = tuple(range(weights.ndim - 1))
    least = np.minimum(weights * low, weights * high).sum(axis=over) + shifts
    most = np.maximum(weights * low, weights * high).sum(axis=over) + shifts
    return bool(least.min(initial=0) > -_MOST and most.max(initial=0) < _MOST)


_RULE = Rule("sums as floats", P.op("cast", P.any("total"), name="root"), _converted)
