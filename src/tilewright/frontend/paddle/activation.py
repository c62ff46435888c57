"""Converters of functions of one tensor, element by element."""

from __future__ import annotations

import math

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.paddle.context import NodeContext
from tilewright.frontend.paddle.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import BOOL, FLOAT32
from tilewright.support.errors import UserError

_PLAIN = {
    name: name
    for name in (
        "abs acos acosh asin asinh atan atanh ceil cos cosh erf exp expm1 floor log log1p reciprocal rsqrt sigmoid"
        " sign sin sinh sqrt tan tanh logical_not bitwise_not"
    ).split()
} | {"relu": "nn.relu"}
"""Operators that the graph has as they are."""


@converter(*_PLAIN)
def plain(node: NodeContext) -> GraphExpr:
    """A function of each element."""
    value = node.input(0)
    kind = node.node.kind
    if kind == "logical_not":
        value = node.builder.truth(value)
    return node.call(_PLAIN[kind], value)


@converter("isnan_v2", "isinf_v2", "isfinite_v2", "isnan", "isinf", "isfinite")
def classify(node: NodeContext) -> GraphExpr:
    """Whether elements are NaN, infinite, or neither."""
    value = node.input(0)
    kind = node.node.kind.removesuffix("_v2")
    if not dtype_of(value).is_float:
        return node.builder.filled(int(kind == "isfinite"), sizes_of(value), BOOL)
    if kind != "isfinite":
        return node.call(kind, value)
    either = node.call("logical_or", node.call("isnan", value), node.call("isinf", value))
    return node.call("logical_not", either)


@converter("square")
def square(node: NodeContext) -> GraphExpr:
    """x * x."""
    return node.call("multiply", node.input(0), node.input(0))


@converter("log2", "log10")
def log_of_base(node: NodeContext) -> GraphExpr:
    """The logarithm to the base 2 or 10."""
    base = 2.0 if node.node.kind == "log2" else 10.0
    return node.builder.multiply(node.call("log", node.input(0)), 1 / math.log(base))


@converter("round")
def round_away(node: NodeContext) -> GraphExpr:
    """The nearest whole number, halves away from zero."""
    b, x = node.builder, node.input(0)
    decimals = node.integer("decimals", default=0)
    scaled = x if decimals == 0 else b.multiply(x, 10.0**decimals)
    near = b.call("floor", b.add(b.call("abs", scaled), 0.5))
    result = b.multiply(b.call("sign", scaled), near)
    return result if decimals == 0 else b.multiply(result, 10.0**-decimals)


@converter("trunc", inputs="X")
def trunc(node: NodeContext) -> GraphExpr:
    """The whole part."""
    b, x = node.builder, node.input(0)
    return b.multiply(b.call("sign", x), b.call("floor", b.call("abs", x)))


@converter("relu6")
def relu6(node: NodeContext) -> GraphExpr:
    """x kept within 0 and a threshold."""
    return node.call("clip", node.input(0), minimum=0.0, maximum=node.number("threshold", default=6.0))


@converter("brelu", "hardtanh", "hard_tanh")
def hard_tanh(node: NodeContext) -> GraphExpr:
    """x kept within bounds."""
    low, high = node.number("t_min", "min", default=0.0), node.number("t_max", "max", default=24.0)
    return node.call("clip", node.input(0), minimum=low, maximum=high)


@converter("softplus")
def softplus(node: NodeContext) -> GraphExpr:
    """log(1 + exp(beta * x)) / beta, x itself where beta * x is above a threshold."""
    b, x = node.builder, node.input(0)
    beta, threshold = node.number("beta", default=1.0), node.number("threshold", default=20.0)
    scaled = b.multiply(x, beta)
    soft = b.divide(b.call("nn.softplus", scaled), beta)
    return b.where(b.compare("greater", scaled, threshold), x, soft)


@converter("softsign")
def softsign(node: NodeContext) -> GraphExpr:
    """x / (1 + |x|)."""
    return node.builder.divide(node.input(0), node.builder.add(node.call("abs", node.input(0)), 1.0))


@converter("swish", "silu")
def swish(node: NodeContext) -> GraphExpr:
    """x * sigmoid(beta * x)."""
    b, x = node.builder, node.input(0)
    beta = node.number("beta", default=1.0) if node.node.kind == "swish" else 1.0
    inner = x if beta == 1.0 else b.multiply(x, beta)
    return b.multiply(x, b.call("sigmoid", inner))


@converter("mish")
def mish(node: NodeContext) -> GraphExpr:
    """x * tanh(softplus(x))."""
    b, x = node.builder, node.input(0)
    return b.multiply(x, b.chain(x, "nn.softplus", "tanh"))


@converter("hard_swish", "hardswish")
def hard_swish(node: NodeContext) -> GraphExpr:
    """x * min(max(x + offset, 0), threshold) / scale."""
    b, x = node.builder, node.input(0)
    threshold, scale = node.number("threshold", default=6.0), node.number("scale", default=6.0)
    offset = node.number("offset", default=3.0)
    if threshold == 6.0 and scale == 6.0 and offset == 3.0:
        return node.onnx("HardSwish", x)
    kept = b.call("clip", b.add(x, offset), minimum=0.0, maximum=threshold)
    return b.divide(b.multiply(x, kept), scale)


@converter("hard_sigmoid", "hardsigmoid")
def hard_sigmoid(node: NodeContext) -> GraphExpr:
    """slope * x + offset within 0 and 1."""
    slope, offset = node.number("slope", default=0.2), node.number("offset", default=0.5)
    return node.call("nn.hard_sigmoid", node.input(0), alpha=slope, beta=offset)


@converter("leaky_relu")
def leaky_relu(node: NodeContext) -> GraphExpr:
    """x, or alpha * x where it is negative."""
    return node.call("nn.leaky_relu", node.input(0), alpha=node.number("alpha", "negative_slope", default=0.02))


@converter("elu")
def elu(node: NodeContext) -> GraphExpr:
    """x, or alpha * (exp(x) - 1) where it is negative."""
    return node.call("nn.elu", node.input(0), alpha=node.number("alpha", default=1.0))


@converter("celu")
def celu(node: NodeContext) -> GraphExpr:
    """x, or alpha * (exp(x / alpha) - 1) where it is negative."""
    return node.onnx("Celu", node.input(0), alpha=node.number("alpha", default=1.0))


@converter("selu")
def selu(node: NodeContext) -> GraphExpr:
    """scale * elu(x)."""
    scale = node.number("scale", default=1.0507009873554805)
    return node.call("nn.selu", node.input(0), alpha=node.number("alpha", default=1.6732632423543772), gamma=scale)


@converter("gelu")
def gelu(node: NodeContext) -> GraphExpr:
    """x times the normal distribution function of x."""
    return node.call("nn.gelu", node.input(0), approximate=node.flag("approximate"))


@converter("hard_shrink", "hardshrink")
def hard_shrink(node: NodeContext) -> GraphExpr:
    """x, or 0 where its magnitude is at most a threshold."""
    threshold = node.number("threshold", default=0.5)
    return node.onnx("Shrink", node.input(0), lambd=threshold, bias=0.0)


@converter("softshrink")
def soft_shrink(node: NodeContext) -> GraphExpr:
    """x nearer to 0 by a threshold, 0 within it."""
    threshold = node.number("lambda", "threshold", default=0.5)
    return node.onnx("Shrink", node.input(0), lambd=threshold, bias=threshold)


@converter("tanh_shrink")
def tanh_shrink(node: NodeContext) -> GraphExpr:
    """x - tanh(x)."""
    return node.builder.subtract(node.input(0), node.call("tanh", node.input(0)))


@converter("thresholded_relu")
def thresholded_relu(node: NodeContext) -> GraphExpr:
    """x where it is above a threshold, else a value."""
    b, x = node.builder, node.input(0)
    above = b.compare("greater", x, node.number("threshold", default=1.0))
    return b.where(above, x, node.number("value", default=0.0))


@converter("logsigmoid")
def log_sigmoid(node: NodeContext) -> GraphExpr:
    """-softplus(-x)."""
    return node.builder.chain(node.input(0), "negative", "nn.softplus", "negative")


@converter("stanh")
def scaled_tanh(node: NodeContext) -> GraphExpr:
    """b * tanh(a * x)."""
    b = node.builder
    inner = b.multiply(node.input(0), node.number("scale_a", default=0.67))
    return b.multiply(b.call("tanh", inner), node.number("scale_b", default=1.7159))


@converter("logit")
def logit(node: NodeContext) -> GraphExpr:
    """log(x / (1 - x)) of x kept away from 0 and 1."""
    b, x = node.builder, node.input(0)
    eps = node.number("eps", default=1e-6)
    kept = b.call("clip", x, minimum=eps, maximum=1 - eps) if eps else x
    return b.call("log", b.divide(kept, b.subtract(1.0, kept)))


@converter("rrelu")
def rrelu(node: NodeContext) -> GraphExpr:
    """The mean slope where x is negative."""
    slope = (node.number("lower", default=0.125) + node.number("upper", default=1 / 3)) / 2
    return node.call("nn.leaky_relu", node.input(0), alpha=slope)


@converter("prelu", inputs="X Alpha")
def prelu(node: NodeContext) -> GraphExpr:
    """x, or slope * x where it is negative; a slope for all, for each channel or for each element."""
    x, slope = node.input(0), node.input(1)
    mode, rank = node.text("mode", default="all"), rank_of(x)
    if mode == "channel":
        axis = rank - 1 if node.channels_last else 1
        shape = [1] * rank
        shape[axis] = size_at(x, axis)
        slope = node.builder.reshape(slope, shape)
    elif mode == "element":
        slope = node.builder.reshape(slope, (1, *sizes_of(x)[1:]))
    elif mode == "all":
        slope = node.builder.reshape(slope, ())
    else:
        raise UserError(f"unknown mode {mode!r} of prelu")
    return node.call("nn.prelu", x, slope)


@converter("softmax", "log_softmax")
def softmax(node: NodeContext) -> GraphExpr:
    """The softmax along an axis, or its logarithm."""
    x = node.input(0)
    axis = node.axis(node.integer("axis", default=-1), rank_of(x))
    if rank_of(x) == 0:
        return node.builder.constant(1.0 if node.node.kind == "softmax" else 0.0, FLOAT32)
    return node.call("nn.softmax" if node.node.kind == "softmax" else "nn.log_softmax", x, axis=axis)


@converter("maxout")
def maxout(node: NodeContext) -> GraphExpr:
    """The greatest of groups of channels."""
    x = node.input(0)
    groups, axis = node.integer("groups"), node.axis(node.integer("axis", default=1), rank_of(x))
    sizes, channels = sizes_of(x), size_at(x, axis)
    if groups < 1 or channels % groups:
        raise UserError(f"{channels} channels in groups of {groups}")
    parted = node.builder.reshape(x, (*sizes[:axis], channels // groups, groups, *sizes[axis + 1 :]))
    return node.call("max", parted, axes=(axis + 1,))


@converter("clip", inputs="X Min Max")
def clip(node: NodeContext) -> GraphExpr:
    """x kept within bounds, which may be data."""
    b, x = node.builder, node.input(0)
    low = node.optional(1) if node.has_input(1) else node.attribute("min")
    high = node.optional(2) if node.has_input(2) else node.attribute("max")
    for name, bound in (("maximum", low), ("minimum", high)):
        if bound is not None:
            x = b.call(name, x, b.reshape(b.operand(bound, dtype_of(x)), ()))
    return x


@converter("scale", inputs="X ScaleTensor")
def scale(node: NodeContext) -> GraphExpr:
    """scale * x + bias, or scale * (x + bias)."""
    b, x = node.builder, node.input(0)
    bias, after = node.number("bias", default=0.0), node.flag("bias_after_scale", default=True)
    factor: GraphExpr | float = node.number("scale", default=1.0)
    if node.has_input(1):
        factor = b.reshape(b.cast(node.input(1), dtype_of(x)), ())
    if bias and not after:
        x = b.add(x, bias)
    x = x if factor == 1.0 else b.multiply(x, factor)
    return b.add(x, bias) if bias and after else x


@converter("pow", inputs="X FactorTensor")
def power(node: NodeContext) -> GraphExpr:
    """x to the power of a number."""
    b, x = node.builder, node.input(0)
    factor: GraphExpr | float = node.number("factor", "y", default=1.0)
    if node.has_input(1):
        factor = b.reshape(node.input(1), ())
    elif factor == 2.0:
        return b.multiply(x, x)
    return b.call("power", x, b.operand(factor, dtype_of(x)))


@converter("assign", "share_data", "memcpy", "memcpy_d2h", "memcpy_h2d", "print", "depend", "c_identity", "lod_reset",
           "share_buffer", "npu_identity", "shadow_output")  # fmt: skip
def identity(node: NodeContext) -> GraphExpr:
    """The value itself."""
    return node.input(0)


@converter("dropout", "alpha_dropout", inputs="X Seed P")
def dropout(node: NodeContext) -> GraphExpr:
    """The value itself, or scaled in the old form."""
    if node.text("dropout_implementation", "mode", default="downgrade_in_infer") == "upscale_in_train":
        return node.input(0)
    return node.builder.multiply(node.input(0), 1.0 - node.known_number(2, "dropout_prob", "p", default=0.5))
