"""Products of half-precision matrices, and convolutions, use half-precision arithmetic where the processor has it.

Before:  matmul(x, w)                      float16; sums in float32, at the speed of float32
After:   half.matmul(x, w, block=128)      sums of 128 products in float16, these in float32: twice as fast

Before:  nn.conv2d(x, w[3, 3, 256, 64], ...)
After:   half.conv2d(x, w, ..., block=128)

Only for constant weights, whose depth divides into blocks and whose columns into vectors. Blocks of a convolution are
of some channels of a tap, or of all channels of a row of taps where those are few.
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.expr import Constant, Function, GraphExpr, constant
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.ops.convolution import Conv2dAttributes
from tilewright.graph.rewrite import Bindings, P, Rule, apply_rules, make, static_shape
from tilewright.graph.traverse import map_functions
from tilewright.ir.dtype import FLOAT16
from tilewright.ir.function import IRModule
from tilewright.target import Target

MOST_BLOCK, LEAST_BLOCK = 128, 32
_LANES = 32
_DOUBLED = 16
"""Channels that fill a vector when each is there twice."""


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


def _convolution(b: Bindings) -> GraphExpr | None:
    call = b.call("root")
    data, weights = call.args
    attributes = call.attributes
    assert isinstance(attributes, Conv2dAttributes)
    if call.type is None or data.tensor_type.dtype is not FLOAT16 or static_shape(call) is None:
        return None
    if attributes.data_layout != "NHWC" or attributes.groups != 1 or not isinstance(weights, Constant):
        return None
    _, width, channels, outputs = weights.data.shape
    if weights.data.size == 0 or channels % _DOUBLED or outputs % _LANES:
        return None
    block = width * channels
    if block > MOST_BLOCK:
        block = next(n for n in range(min(MOST_BLOCK, channels), 0, -1) if channels % n == 0)
    if block < LEAST_BLOCK:
        return None
    strides, padding, dilation = (tuple(x) for x in (attributes.strides, attributes.padding, attributes.dilation))
    return make(
        "half.conv2d", data, weights, strides=strides, padding=padding, dilation=dilation, block=block, span=call.span
    )


RULES = (
    Rule("product of half precision", P.op("matmul", name="root"), _product),
    Rule("convolution of half precision", P.op("nn.conv2d", name="root"), _convolution),
)
"""All rules, tried in order at each node."""
