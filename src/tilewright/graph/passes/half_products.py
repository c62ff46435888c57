"""Products of half-precision matrices use half-precision arithmetic where the processor has it.

Before:  matmul(x, w)                      float16; sums in float32, at the speed of float32
After:   half.matmul(x, w, block=128)      sums of 128 products in float16, these in float32: twice as fast

Only for constant weights, whose depth divides into blocks and whose columns into vectors.
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.expr import Constant, Function, GraphExpr, constant
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.rewrite import Bindings, P, Rule, apply_rules, make
from tilewright.graph.traverse import map_functions
from tilewright.ir.dtype import FLOAT16
from tilewright.ir.function import IRModule
from tilewright.target import Target

MOST_BLOCK, LEAST_BLOCK = 128, 32
_LANES = 32


def half_products(module: IRModule, target: Target) -> IRModule:
    """Use half-precision arithmetic for products of float16 matrices on x86 processors that have it."""
    if not target.has_feature("avx512fp16"):
        return module
    result = map_functions(module, _rewritten)
    assert isinstance(result, IRModule)
    return result


def _rewritten(function: Function) -> Function:
    return apply_rules(function, RULES)


def _product(b: Bindings) -> GraphExpr | None:
    call = b.call("root")
    rows, weights = call.args
    assert isinstance(call.attributes, MatmulAttributes)
    if call.type is None or rows.tensor_type.dtype is not FLOAT16 or call.attributes.transpose_a:
        return None
    if not isinstance(weights, Constant) or weights.data.ndim != 2 or weights.data.size == 0:
        return None
    values = weights.data.T if call.attributes.transpose_b else weights.data
    depth = values.shape[0]
    block = next((n for n in range(min(MOST_BLOCK, depth), 0, -1) if depth % n == 0), 1)
    if block < min(LEAST_BLOCK, depth) or values.shape[1] % _LANES:
        return None
    return make("half.matmul", rows, constant(np.ascontiguousarray(values)), block=block, span=call.span)


RULES = (Rule("product of half precision", P.op("matmul", name="root"), _product),)
"""All rules, tried in order at each node."""
