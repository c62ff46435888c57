"""Grouped convolutions of few channels a group: neighbouring groups are joined until a group fills a vector.

Before:  nn.conv2d(x[n, h, w, 128], w[3, 3, 4, 128], groups=32)
After:   nn.conv2d(x[n, h, w, 128], w'[3, 3, 16, 128], groups=8)

A vector of results whose channels belong to several groups would need its values gathered one by one. Zeros in the
weights keep joined groups apart: more multiplications, and yet several times as quick. An infinity or NaN in one group
makes those joined to it NaN: the pipeline leaves this out where infinities mean something.
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.ir.expr import Call, Constant, GraphExpr
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.ops.convolution import Conv2dAttributes
from tilewright.graph.options import GraphOptions
from tilewright.ir.function import IRModule
from tilewright.target.machine import cpu_parameters


def join_groups(module: IRModule, options: GraphOptions) -> IRModule:
    """Join the groups of float32 convolutions (channels last, constant weights) that are narrower than a vector."""
    target, asked = options.machine, options.choices
    if not target.is_cpu:
        return module
    lanes, most = target.vector_bits // 32, cpu_parameters(target).convolution.most_joined_groups

    def convolution(b: Bindings) -> GraphExpr | None:
        call = b.call("root")
        data, weight = call.args
        attributes = call.attributes
        assert isinstance(attributes, Conv2dAttributes)
        layouts = (attributes.data_layout, attributes.kernel_layout)
        if not isinstance(weight, Constant) or weight.data.size == 0 or layouts != ("NHWC", "HWIO"):
            return None
        depth, width = weight.data.shape[2], weight.data.shape[3] // attributes.groups
        # One channel in and out of a group is a depthwise convolution, which has a schedule of its own.
        if data.tensor_type.dtype.name != "float32" or attributes.groups == 1 or depth == width == 1:
            return None
        count = groups_to_join(attributes.groups, width, lanes, most)
        if count == 1 or asked.choose([call], ("apart", "together"), "together") == "apart":
            return None
        return _joined(call, weight, attributes, count)

    rule = Rule("groups joined", P.op("nn.conv2d", name="root"), convolution)
    return map_functions(module, lambda function: apply_rules(function, [rule]))


def groups_to_join(groups: int, width: int, lanes: int, most: int) -> int:
    """How many groups of `width` results become one: the fewest that fill whole vectors, or all; 1 for none."""
    for count in range(1, min(groups, most) + 1):
        if groups % count == 0 and (width * count % lanes == 0 or count == groups):
            return count
    return 1


def _joined(call: Call, weight: Constant, attributes: Conv2dAttributes, count: int) -> GraphExpr:
    height, width, depth, columns = weight.data.shape
    groups = attributes.groups // count
    apart = weight.data.reshape(height, width, depth, groups, count, columns // attributes.groups)
    wide = np.zeros((height, width, count, depth, groups, count, columns // attributes.groups), weight.data.dtype)
    for member in range(count):
        wide[:, :, member, :, :, member] = apart[:, :, :, :, member]
    filled = Constant(wide.reshape(height, width, count * depth, columns), weight.tensor_type.dtype)
    filled.span = weight.span
    joined = call.replace(args=(call.args[0], filled), attributes=attributes.replace(groups=groups))
    return fill_type(joined)
