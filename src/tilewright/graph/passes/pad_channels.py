"""Operands of tensor cores whose rows are odd: zeros fill channels or steps up, so that they are copied whole.

Before:  nn.conv2d(x[n, h, w, 3], w[7, 7, 3, 64])          nn.conv2d_weight_gradient(x[n, h, w, 3], dy)
After:   nn.conv2d(pad(x)[n, h, w, 4], w'[7, 7, 4, 64])    slice(nn.conv2d_weight_gradient(pad(x), dy))
Before:  matmul(x[560, 650], w[650, 2600])
After:   matmul(pad(x)[560, 656], w'[656, 2600])

Three halves lie nowhere at multiples of anything, and would be copied one by one. The pixels are mostly made by a
change of layout or type that writes them anyway; weights that are trained are padded where they are rounded. Rows of
650 halves are copied by 4 bytes instead of 16: a large product takes longer for it than for writing its operand anew.
"""

from __future__ import annotations

from math import prod
from typing import Final

import numpy as np

from tilewright.graph.ir.expr import Call, Constant, GraphExpr
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, make, static_shape
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.ops.convolution import Conv2dAttributes
from tilewright.graph.options import GraphOptions
from tilewright.ir.dtype import BFLOAT16, FLOAT16, FLOAT32
from tilewright.ir.function import IRModule
from tilewright.target.machine import gpu_parameters

_GROUP: Final = 4
"""Channels that are copied at once."""
_STEPS: Final = 8
"""Steps of halves that are copied at once."""
_LARGE_PRODUCT: Final = 1 << 28
"""Multiplications of a product from which on its steps are filled up;"""
_MANY_COLUMNS: Final = 512
"""so many columns it must have, or it takes no longer than another copy of its rows."""
_MADE_BY: Final = ("cast", "transpose")
"""What makes an image anew: zeros come at no cost."""


def pad_channels(module: IRModule, options: GraphOptions) -> IRModule:
    """Fill up the channels of images (channels last), and the steps of large products, for tensor cores."""
    target = options.machine
    if not target.has_tensor_cores:
        return module
    most = gpu_parameters(target).convolution.padded_channels
    types = [FLOAT16, BFLOAT16, *([FLOAT32] if target.has_feature("tf32") else [])]

    def missing(call: Call) -> int:
        """The channels that images lack, where they are to be filled up."""
        data = call.args[0]
        assert isinstance(call.attributes, Conv2dAttributes)
        shape = static_shape(data)
        if shape is None or data.tensor_type.dtype not in types:
            return 0
        layouts = (call.attributes.data_layout, call.attributes.kernel_layout)
        if layouts != ("NHWC", "HWIO") or call.attributes.groups != 1 or 0 in shape:
            return 0
        is_made = any(is_call_to(data, name) for name in _MADE_BY)
        return -shape[-1] % _GROUP if is_made and _GROUP // 2 < shape[-1] < most else 0

    def convolution(b: Bindings) -> GraphExpr | None:
        call = b.call("root")
        extra = missing(call)
        if not extra:
            return None
        return fill_type(call.replace(args=(_filled(call.args[0], 3, extra), _filled(call.args[1], 2, extra))))

    def gradient(b: Bindings) -> GraphExpr | None:
        call = b.call("root")
        extra, shape = missing(call), static_shape(call)
        if not extra or shape is None:
            return None
        found = fill_type(call.replace(args=(_filled(call.args[0], 3, extra), call.args[1])))
        return make("slice", found, begin=(0, 0, 0, 0), end=shape, strides=(1, 1, 1, 1), span=call.span)

    def product(b: Bindings) -> GraphExpr | None:
        call = b.call("root")
        rows, weights = call.args
        how, shape = call.attributes, static_shape(rows)
        assert isinstance(how, MatmulAttributes)
        if shape is None or rows.tensor_type.dtype not in (FLOAT16, BFLOAT16) or how.transpose_a or len(shape) < 2:
            return None
        if not isinstance(weights, Constant) or weights.data.ndim != 2:
            return None
        extra, axis = -shape[-1] % _STEPS, 1 if how.transpose_b else 0
        columns = weights.data.shape[1 - axis]
        if not extra or columns < _MANY_COLUMNS or prod(shape) * columns < _LARGE_PRODUCT:
            return None
        return fill_type(call.replace(args=(_filled(rows, len(shape) - 1, extra), _filled(weights, axis, extra))))

    rules = [
        Rule("steps filled up", P.op("matmul", name="root"), product),
        Rule("channels filled up", P.op("nn.conv2d", name="root"), convolution),
        Rule("channels of gradients filled up", P.op("nn.conv2d_weight_gradient", name="root"), gradient),
    ]
    return map_functions(module, lambda function: apply_rules(function, rules))


def _filled(item: GraphExpr, axis: int, extra: int) -> GraphExpr:
    """A tensor with zeros at the end of an axis."""
    rank = len(static_shape(item) or ())
    after = tuple(extra if number == axis else 0 for number in range(rank))
    if isinstance(item, Constant):
        return Constant(np.pad(item.data, [(0, count) for count in after]), item.tensor_type.dtype)
    return make("pad", item, before=(0,) * rank, after=after, span=item.span)
