"""Products of half-precision matrices, and convolutions, use half-precision arithmetic where the processor has it.

Before:  matmul(x, w)                      float16; sums in float32, at the speed of float32
After:   half.matmul(x, w, block=256)      sums of 128 products in float16, these in float32: twice as fast

Before:  nn.conv2d(x, w[3, 3, 256, 64], ...)
After:   half.conv2d(x, w, ..., block=256)

Before:  nn.conv2d(x, w[7, 7, 3, 64], ...)                            other windows of several taps
After:   cast(nn.conv2d(cast(x), w, ...)), the convolution in float32: the same numbers, since sums are in float32, but
         each element is converted once instead of for every tap

Blocks are only for constant weights, whose depth divides into blocks and whose columns into vectors. Blocks of a
convolution are of some channels of a tap, or of all taps in a row, whichever makes fewer blocks. Convolutions that
Winograd's algorithm computes in less than half the time of the direct one are better converted, too; there what was
measured (`graph/choices.py`) goes before the estimate.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from tilewright.graph.choices import GraphChoices
from tilewright.graph.ir.expr import Call, Constant, GraphExpr, constant
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, make, static_shape
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.ops.convolution import Conv2dAttributes
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.choose_algorithm import (
    best_tile,
    convolution_size,
    direct_cycles,
    possible_tiles,
    winograd_cycles,
)
from tilewright.ir.dtype import FLOAT16, FLOAT32
from tilewright.ir.function import IRModule
from tilewright.target import Target
from tilewright.target.machine import cpu_parameters

MOST_BLOCK, LEAST_BLOCK = 256, 32
"""Products in a block: half of them, every second one, are a sum in half precision."""
_COLUMNS = 16
"""Columns of a vector, which holds two steps of each."""


def half_products(module: IRModule, options: GraphOptions) -> IRModule:
    """Use half-precision arithmetic for products of float16 on x86 processors that have it."""
    target = options.machine
    if not target.has_feature("avx512fp16"):
        return module
    rules = (_winograd_rule(target, options.choices), *RULES) if options.may_use_winograd else RULES
    return map_functions(module, lambda function: apply_rules(function, rules))


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
    block = _even_divisor(depth, MOST_BLOCK)
    if block < max(2, min(LEAST_BLOCK, depth)) or values.shape[1] % _COLUMNS:
        return None
    return make("half.matmul", rows, constant(np.ascontiguousarray(values)), block=block, span=call.span)


def _even_divisor(number: int, most: int) -> int:
    """The largest even divisor of a number up to a limit; 0 if there is none."""
    return next((n for n in range(min(number, most) // 2 * 2, 0, -2) if number % n == 0), 0)


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
    if weights.data.size == 0 or outputs % _COLUMNS:
        return None
    block = max(_even_divisor(channels, MOST_BLOCK), width * _even_divisor(channels, MOST_BLOCK // width))
    if block < LEAST_BLOCK:
        return None
    strides, padding, dilation = (tuple(x) for x in (attributes.strides, attributes.padding, attributes.dilation))
    return make(
        "half.conv2d", data, weights, strides=strides, padding=padding, dilation=dilation, block=block, span=call.span
    )


def _converted(b: Bindings) -> GraphExpr | None:
    call = b.call("root")
    data, weights = call.args
    attributes = call.attributes
    assert isinstance(attributes, Conv2dAttributes)
    if call.type is None or data.tensor_type.dtype is not FLOAT16 or attributes.groups != 1:
        return None
    if attributes.data_layout != "NHWC" or not isinstance(weights, Constant) or weights.data.shape[:2] == (1, 1):
        return None
    wide = make("cast", data, dtype=FLOAT32, span=call.span)
    taps = constant(weights.data.astype(np.float32))
    product = Call(call.callee, (wide, taps), attributes)
    product.span = call.span
    fill_type(product)
    return make("cast", product, dtype=FLOAT16, span=call.span)


def _winograd(b: Bindings, target: Target, choices: GraphChoices) -> GraphExpr | None:
    """The convolution in float32 where Winograd's algorithm is quicker than halves."""
    converted = _converted(b)
    if not isinstance(converted, Call) or not isinstance(converted.args[0], Call):
        return None
    size = convolution_size(converted.args[0], choices.likely)
    if size is None or not possible_tiles(size, target) or _convolution(b) is None:
        return None
    tile = best_tile(size, target)
    # Halves are multiplied twice as quickly, and half as many bytes are read.
    direct = direct_cycles(size, target) / 2
    least_gain = cpu_parameters(target).half.winograd_least_gain
    is_quicker = tile is not None and winograd_cycles(size, tile, target) * least_gain < direct
    estimated = "converted" if is_quicker else "halves"
    return converted if choices.choose([b.call("root")], ("halves", "converted"), estimated) == "converted" else None


def _winograd_rule(target: Target, choices: GraphChoices) -> Rule:
    root = P.op("nn.conv2d", name="root")
    return Rule("convolution of few multiplications", root, partial(_winograd, target=target, choices=choices))


RULES = (
    Rule("product of half precision", P.op("matmul", name="root"), _product),
    Rule("convolution of half precision", P.op("nn.conv2d", name="root"), _convolution),
    Rule("convolution of converted halves", P.op("nn.conv2d", name="root"), _converted),
)
"""All rules, tried in order at each node."""
