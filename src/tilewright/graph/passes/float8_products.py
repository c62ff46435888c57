"""Products of half precision in 8-bit floats, where tensor cores multiply them at twice the speed.

Before:  matmul(x, w)                                        float16, w constant
After:   cast(qnn.matmul(float8(clip(x)), float8(w / s)) * s)      s: one scale for each column of w

Weights are scaled so that the largest of each column is the largest number of the type (e4m3: 448). Operands are not
scaled: their type is a float, which has the same digits from 2^-6 to 448; beyond that they saturate.

An operand that the epilogue of another product gives, for this product alone, is rounded there. Any other one takes a
kernel of its own, which pays for large products.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tilewright.graph.ir.expr import Call, Constant, GraphExpr, constant
from tilewright.graph.ir.op import FusionKind, Operator
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, make, static_shape
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.options import GraphOptions
from tilewright.ir import small_floats
from tilewright.ir.dtype import FLOAT8_E4M3, FLOAT16
from tilewright.ir.function import IRModule
from tilewright.target.machine import gpu_parameters

Array = npt.NDArray[Any]
_LARGEST: Final = 448.0
_GROUP: Final = 16
"""Steps that are copied at once."""
_LEAST_COLUMNS: Final = 32
_MOST_STEPS: Final = 16
"""Elementwise operators of an epilogue that are looked through."""


def float8_products(module: IRModule, options: GraphOptions) -> IRModule:
    """Compute products of half precision in 8-bit floats where that pays."""
    least = gpu_parameters(options.machine).product.rounded_operand

    def product(b: Bindings) -> GraphExpr | None:
        call = b.call("root")
        rows, weights = call.args
        assert isinstance(call.attributes, MatmulAttributes)
        shape = static_shape(rows)
        if call.type is None or rows.tensor_type.dtype is not FLOAT16 or call.attributes.transpose_a or shape is None:
            return None
        if not isinstance(weights, Constant) or weights.data.ndim != 2 or 0 in (*shape, *weights.data.shape):
            return None
        values = weights.data.T if call.attributes.transpose_b else weights.data
        depth, columns = values.shape
        if depth % _GROUP or columns < _LEAST_COLUMNS or not np.isfinite(values).all():
            return None
        is_given = _ends_a_product(rows, b)
        if not is_given and int(np.prod(shape[:-1])) * depth * columns < least:
            return None
        return _rounded(call, rows, values)

    rule = Rule("product of 8-bit floats", P.op("matmul", name="root"), product)
    return map_functions(module, lambda function: apply_rules(function, [rule]))


def _ends_a_product(last: GraphExpr, b: Bindings) -> bool:
    """Whether a value ends the elementwise operators that follow a product, and nothing else reads any of them."""
    reads: dict[int, int] = {id(last): 1}
    order, anchors = [last], 0
    for item in order:
        if not isinstance(item, Call) or not isinstance(item.callee, Operator) or len(order) > _MOST_STEPS:
            return False
        if item.callee.kind is FusionKind.OUT_FUSABLE:
            anchors += 1
            continue
        if not item.callee.elementwise:
            return False
        for arg in item.args:
            if not isinstance(arg, Constant):
                if id(arg) not in reads:
                    order.append(arg)
                reads[id(arg)] = reads.get(id(arg), 0) + 1
    return anchors == 1 and all(b.uses(item) == reads[id(item)] for item in order)


def _rounded(call: Call, rows: GraphExpr, values: Array) -> GraphExpr:
    """The product of rounded operands, scaled back."""
    wide = values.astype(np.float32)
    peak = np.abs(wide).max(axis=0)
    scale = np.where(peak > 0, peak / np.float32(_LARGEST), np.float32(1)).astype(np.float32)
    codes = small_floats.codes_of(wide / scale, FLOAT8_E4M3.name)
    kept = make("clip", rows, minimum=-_LARGEST, maximum=_LARGEST, span=call.span)
    data = make("cast", kept, dtype=FLOAT8_E4M3, span=call.span)
    sums = make("qnn.matmul", data, Constant(np.ascontiguousarray(codes), FLOAT8_E4M3), span=call.span)
    return make("cast", make("multiply", sums, constant(scale), span=call.span), dtype=FLOAT16, span=call.span)
