"""Batch normalisation by statistics that are computed (training) as plain operators.

Before:  batch_norm(x, scale, bias, mean, variance)
After:   x * factor + shift        with factor = scale / sqrt(variance + epsilon), shift = bias - mean * factor

Statistics that are constants are folded into weights before (`fold_batch_norm`). This is later, when it is known which
data are halves: what is given a channel stays in float32, and results are rounded once. No value as large as the data
is made that the gradient could share (the data less their mean): reading the data again is quicker than keeping it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.graph.ir.expr import Constant, GraphExpr
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, known_sizes, make, static_shape
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.ops.normalization import BatchNormAttributes
from tilewright.graph.passes.float_types import rounded
from tilewright.ir.dtype import FLOAT64
from tilewright.ir.function import IRModule

_FLOATS = ("float16", "bfloat16", "float32", "float64")


def open_batch_norm(module: IRModule) -> IRModule:
    """Take batch normalisations apart."""
    return map_functions(module, lambda function: apply_rules(function, _RULES))


def _opened(b: Bindings) -> GraphExpr | None:
    call = b.call("root")
    data, scale, bias, mean, variance = call.args
    attributes, sizes, channels = call.attributes, known_sizes(data), static_shape(scale)
    assert isinstance(attributes, BatchNormAttributes)
    dtype, wide = data.tensor_type.dtype, mean.tensor_type.dtype
    # Data of an open number of channels keep it in their type; importers have it checked, and say what it is.
    if sizes is None or channels != tuple(sizes[attributes.axis : attributes.axis + 1]) or dtype.name not in _FLOATS:
        return None
    column = channels + (1,) * (len(sizes) - attributes.axis - 1)

    def apply(name: str, *args: GraphExpr) -> GraphExpr:
        return make(name, *args, span=call.span)

    def by_channel(value: GraphExpr) -> GraphExpr:
        return value if column == channels else make("reshape", value, shape=column, span=call.span)

    epsilon = rounded(Constant(np.asarray(attributes.epsilon), FLOAT64), wide)
    factor = apply("multiply", scale, apply("rsqrt", apply("add", variance, epsilon)))
    value = data if dtype is wide else make("cast", data, dtype=wide, span=call.span)
    value = apply("multiply", value, by_channel(factor))
    shift = _shift(bias, mean, factor, apply)
    if shift is not None:
        value = apply("add", value, by_channel(shift))
    return value if dtype is wide else make("cast", value, dtype=dtype, span=call.span)


def _shift(bias: GraphExpr, mean: GraphExpr, factor: GraphExpr, apply: Callable[..., GraphExpr]) -> GraphExpr | None:
    """bias - mean * factor; gradients have none of one of them."""
    if _is_zero(mean):
        return None if _is_zero(bias) else bias
    moved = apply("multiply", mean, factor)
    return apply("negative", moved) if _is_zero(bias) else apply("subtract", bias, moved)


def _is_zero(item: GraphExpr) -> bool:
    return isinstance(item, Constant) and not item.data.any()


_RULES = (Rule("batch normalisation by statistics that are computed", P.op("nn.batch_norm", name="root"), _opened),)
