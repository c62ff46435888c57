"""Products of signed bytes with constant bytes become products with words of four bytes, for GPUs.

Before:  qnn.matmul(a, w)                                 w: int8 constants [k, n]
After:   qnn.word_matmul(a, words of w transposed)        int32 constants [n, k / 4]

Bit planes of constants become words too. Threads then add four products at a time, by an instruction where the GPU has
one (`Capabilities.dot4`). Products that tensor cores compute stay as they are.
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.ir.expr import Call, Constant, GraphExpr, constant
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, make
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.ops.bitserial import words_of_planes
from tilewright.graph.ops.quantize import IntegerConv2dAttributes
from tilewright.graph.ops.words import WORD, byte_words
from tilewright.graph.options import GraphOptions
from tilewright.ir.dtype import INT8, UINT8
from tilewright.ir.function import IRModule


def word_products(module: IRModule, options: GraphOptions) -> IRModule:
    """Multiply by words on GPUs, where tensor cores do not multiply bytes."""
    target = options.machine
    if target.is_cpu:
        return module
    rules = BITS if target.has_byte_tensor_cores else (*BITS, *BYTES)
    return map_functions(module, lambda function: apply_rules(function, rules))


def _matmul(b: Bindings) -> GraphExpr | None:
    call, weights = b.call("root"), b.constant("w")
    if not _are_signed(b["x"], weights) or weights.data.shape[0] % WORD:
        return None
    return make("qnn.word_matmul", b["x"], constant(byte_words(weights.data.T)), span=call.span)


def _conv2d(b: Bindings) -> GraphExpr | None:
    call, weights = b.call("root"), b.constant("w")
    if not _are_signed(b["x"], weights) or weights.data.shape[2] % WORD:
        return None
    attributes = call.attributes
    assert isinstance(attributes, IntegerConv2dAttributes)
    words = np.ascontiguousarray(np.moveaxis(byte_words(np.moveaxis(weights.data, 2, 3)), 3, 2))
    return make(
        "qnn.word_conv2d",
        b["x"],
        constant(words),
        b["z"],
        strides=attributes.strides,
        padding=attributes.padding,
        dilation=attributes.dilation,
        span=call.span,
    )


def _planes(b: Bindings) -> GraphExpr | None:
    call, weights = b.call("root"), b.constant("w")
    if weights.dtype is not UINT8 or not weights.data.size:
        return None
    counts = Call(call.callee, (b["x"], constant(words_of_planes(weights.data))), call.attributes)
    counts.span = call.span
    fill_type(counts)
    return counts


def _are_signed(data: GraphExpr, weights: Constant) -> bool:
    return data.tensor_type.dtype is INT8 and weights.dtype is INT8 and weights.data.size > 0


BITS = tuple(
    Rule("planes in words", P.op(name, P.any("x"), P.const("w"), name="root"), _planes)
    for name in ("nn.bitserial_dense", "nn.bitserial_conv2d")
)
BYTES = (
    Rule("product with words", P.op("qnn.matmul", P.any("x"), P.const("w"), name="root"), _matmul),
    Rule("convolution with words", P.op("qnn.conv2d", P.any("x"), P.const("w"), P.any("z"), name="root"), _conv2d),
)
"""Rules for products of bytes, tried in order at each node."""
