"""Convolutions of few channels on tensor cores: zeros fill the channels up, so that pixels are copied whole.

Before:  nn.conv2d(x[n, h, w, 3], w[7, 7, 3, 64])
After:   nn.conv2d(pad(x)[n, h, w, 4], w'[7, 7, 4, 64])

Three halves lie nowhere at multiples of anything, and would be copied one by one. The pixels are mostly made by a
change of layout or type that writes them anyway.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tilewright.graph.ir.expr import Call, Constant, GraphExpr
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, make, static_shape
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.ops.convolution import Conv2dAttributes
from tilewright.graph.options import GraphOptions
from tilewright.ir.dtype import BFLOAT16, FLOAT16, FLOAT32
from tilewright.ir.function import IRModule
from tilewright.target.machine import gpu_parameters

_GROUP: Final = 4
"""Channels that are copied at once."""
_MADE_BY: Final = ("cast", "transpose")
"""What makes an image anew: zeros come at no cost."""


def pad_channels(module: IRModule, options: GraphOptions) -> IRModule:
    """Fill up the channels of images for tensor cores (channels last, constant weights)."""
    target = options.machine
    if not target.has_tensor_cores:
        return module
    most = gpu_parameters(target).convolution.padded_channels
    types = [FLOAT16, BFLOAT16, *([FLOAT32] if target.has_feature("tf32") else [])]

    def convolution(b: Bindings) -> GraphExpr | None:
        call = b.call("root")
        data, weight = call.args
        assert isinstance(call.attributes, Conv2dAttributes)
        shape = static_shape(data)
        if shape is None or not isinstance(weight, Constant) or data.tensor_type.dtype not in types:
            return None
        layouts = (call.attributes.data_layout, call.attributes.kernel_layout)
        if layouts != ("NHWC", "HWIO") or call.attributes.groups != 1 or 0 in shape:
            return None
        if shape[-1] % _GROUP == 0 or not _GROUP // 2 < shape[-1] < most:
            return None
        if not any(is_call_to(data, name) for name in _MADE_BY):
            return None
        return _padded(call, weight, -shape[-1] % _GROUP)

    rule = Rule("channels filled up", P.op("nn.conv2d", name="root"), convolution)
    return map_functions(module, lambda function: apply_rules(function, [rule]))


def _padded(call: Call, weight: Constant, extra: int) -> GraphExpr:
    values = np.pad(weight.data, ((0, 0), (0, 0), (0, extra), (0, 0)))
    data = make("pad", call.args[0], before=(0, 0, 0, 0), after=(0, 0, 0, extra), span=call.span)
    return fill_type(call.replace(args=(data, Constant(values, weight.tensor_type.dtype))))
