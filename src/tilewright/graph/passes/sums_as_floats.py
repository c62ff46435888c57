"""Sums of products of bytes become floats by a subtraction, where conversions are slow.

Before:  float32(product + bias) * scale
After:   (reinterpret(product + bias') - 12582912.0) * scale         bias' = bias + the bits of 12582912.0 (1.5 * 2^23)

Floats near 1.5 * 2^23 are whole numbers, and their bits count them: `bits(12582912.0) + n` is the float 12582912.0 + n,
for all n within 2^22. Its difference from 12582912.0 is exact, so results are the same to the bit. The bias is where
sums begin, so that the addition costs nothing. Vectors of Arm are converted at a quarter of the speed of additions,
which shows in products of few channels.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tilewright.graph.ir.expr import GraphExpr, constant
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, make
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.sum_bounds import bounded_sum
from tilewright.ir.dtype import FLOAT32, INT32
from tilewright.ir.function import IRModule

_BASE: Final = np.float32(1.5 * 2**23)
_BASE_BITS: Final = int(_BASE.view(np.int32))
_MOST: Final = 2**22
"""Sums whose magnitude is less are whole steps away from the base."""


def sums_as_floats(module: IRModule, options: GraphOptions) -> IRModule:
    """Turn bounded sums to floats without conversions, on processors that convert vectors slowly."""
    target = options.target
    if target is None or not target.is_cpu or not target.has_slow_conversions:
        return module
    return map_functions(module, lambda function: apply_rules(function, (_RULE,)))


def _converted(b: Bindings) -> GraphExpr | None:
    root, total = b.call("root"), b["total"]
    if root.tensor_type.dtype is not FLOAT32 or total.tensor_type.dtype is not INT32 or not b.used_once("total"):
        return None
    found = bounded_sum(total)
    if found is None or (found.product is not total and b.uses(found.product) > 1):
        return None
    if found.least.min(initial=0) <= -_MOST or found.most.max(initial=0) >= _MOST:
        return None
    begun = make("add", found.product, constant((found.bias + _BASE_BITS).astype(np.int32)), span=root.span)
    read = make("reinterpret", begun, dtype=FLOAT32, span=root.span)
    return make("subtract", read, constant(_BASE), span=root.span)


_RULE = Rule("sums as floats", P.op("cast", P.any("total"), name="root"), _converted)
