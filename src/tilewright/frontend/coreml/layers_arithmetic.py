"""Layers of Core ML's networks that compute: activations, arithmetic, products, reductions, order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.frontend.core.builder import rank_of, size_at, sizes_of
from tilewright.frontend.coreml.layer import Layer, layer
from tilewright.frontend.coreml.operation import Plain
from tilewright.graph.ir.dimensions import product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, INT64
from tilewright.support.errors import UserError

_SAME = "ceil floor sign round exp2 sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf"
_UNARY = {name: name for name in _SAME.split()} | {"copy": "identity", "logicalNot": "logical_not"}
_BINARY = {
    "modBroadcastable": "mod",
    "minBroadcastable": "minimum",
    "maxBroadcastable": "maximum",
    "addBroadcastable": "add",
    "powBroadcastable": "pow",
    "divideBroadcastable": "real_div",
    "floorDivBroadcastable": "floor_div",
    "multiplyBroadcastable": "mul",
    "subtractBroadcastable": "sub",
    "logicalOr": "logical_or",
    "logicalXor": "logical_xor",
    "logicalAnd": "logical_and",
    "equal": "equal",
    "notEqual": "not_equal",
    "lessThan": "less",
    "lessEqual": "less_equal",
    "greaterThan": "greater",
    "greaterEqual": "greater_equal",
}
_FLOATS = ("divideBroadcastable", "powBroadcastable")
_REDUCTIONS = {
    "reduceL1": "reduce_l1_norm",
    "reduceL2": "reduce_l2_norm",
    "reduceMax": "reduce_max",
    "reduceMin": "reduce_min",
    "reduceSum": "reduce_sum",
    "reduceProd": "reduce_prod",
    "reduceMean": "reduce_mean",
    "reduceLogSum": "reduce_log_sum",
    "reduceSumSquare": "reduce_sum_square",
    "reduceLogSumExp": "reduce_log_sum_exp",
}
_PLAIN_ACTIVATIONS = {
    "ReLU": "relu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "softsign": "softsign",
    "softplus": "softplus",
}
_WITH_NUMBERS = {
    "linear": "linear_activation",
    "leakyReLU": "leaky_relu",
    "thresholdedReLU": "thresholded_relu",
    "scaledTanh": "scaled_tanh",
    "sigmoidHard": "sigmoid_hard",
    "ELU": "elu",
}


@layer(*_UNARY)
def unary(own: Layer) -> GraphExpr:
    """A function of each element."""
    return own.apply(_UNARY[own.kind], x=own.x)


@layer(*_BINARY)
def binary(own: Layer) -> GraphExpr:
    """Two inputs that broadcast, or one and a number."""
    other = own.input(1) if len(own.inputs) > 1 else own.builder.constant(float(own.params.alpha), "float32")
    first = own.x
    if own.kind in _FLOATS:
        first, other = own.builder.cast(first, FLOAT32), own.builder.cast(other, FLOAT32)
    return own.apply(_BINARY[own.kind], x=first, y=other)


@layer("activation")
def activation(own: Layer) -> GraphExpr:
    """One of the activation functions, with numbers, or one a channel."""
    for field, p in own.params.ListFields():
        if field.name in _PLAIN_ACTIVATIONS:
            return own.apply(_PLAIN_ACTIVATIONS[field.name], x=own.x)
        if field.name in _WITH_NUMBERS:
            numbers = {name: float(getattr(p, name)) for name in ("alpha", "beta") if hasattr(p, name)}
            return own.apply(_WITH_NUMBERS[field.name], x=own.x, **numbers)
        if field.name == "PReLU":
            return own.over_images(own.x, lambda x, p=p: own.apply("prelu", x=x, alpha=_channels(own, p.alpha)))  # type: ignore[misc]
        if field.name == "parametricSoftplus":
            tables: dict[str, Plain] = {"alpha": _channels(own, p.alpha), "beta": _channels(own, p.beta)}
            return own.over_images(own.x, lambda x, t=tables: own.apply("softplus_parametric", x=x, **t))  # type: ignore[misc]
    raise UserError("an activation layer without a function that is known")


def _channels(own: Layer, params: Any) -> Plain:
    """Numbers a channel, or one for all."""
    count = len(params.floatValue) or len(params.float16Value) // 2 or size_at(own.x, own.at(-3))
    return own.weights(params, (count,))


@layer("clampedReLU")
def clamped_relu(own: Layer) -> GraphExpr:
    """A leaky unit with a bound."""
    return own.apply("clamped_relu", x=own.x, alpha=float(own.params.alpha), beta=float(own.params.beta))


@layer("gelu")
def gelu(own: Layer) -> GraphExpr:
    """Exact, or by one of two approximations."""
    modes = ("EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION")
    return own.apply("gelu", x=own.x, mode=modes[own.params.mode])


@layer("clip")
def clip(own: Layer) -> GraphExpr:
    """Within bounds."""
    return own.apply("clip", x=own.x, alpha=float(own.params.minVal), beta=float(own.params.maxVal))


@layer("unary")
def unary_function(own: Layer) -> GraphExpr:
    """A function of scale * x + shift."""
    p = own.params
    scaled = own.apply("linear_activation", x=own.x, alpha=float(p.scale) or 1.0, beta=float(p.shift))
    epsilon = float(p.epsilon) or 1e-6
    match p.type:
        case 0:
            return own.apply("sqrt", x=scaled)
        case 1:
            return own.apply("rsqrt", x=scaled, epsilon=epsilon)
        case 2:
            return own.apply("inverse", x=scaled, epsilon=epsilon)
        case 3:
            return own.apply("pow", x=scaled, y=float(p.alpha))
        case 4:
            return own.apply("exp", x=scaled)
        case 5:
            return own.apply("log", x=scaled, epsilon=0.0)
        case 6:
            return own.apply("abs", x=scaled)
        case 7:
            return own.apply("threshold", x=scaled, alpha=float(p.alpha))
    raise UserError(f"the unary function {p.type} is not known")


@layer("add", "multiply", "average", "max", "min")
def several(own: Layer) -> GraphExpr:
    """Inputs joined element by element; one alone is joined with a number."""
    names = {"add": "add", "average": "add", "multiply": "mul", "max": "maximum", "min": "minimum"}
    result = own.x
    if len(own.inputs) == 1 and own.kind in ("add", "multiply"):
        return own.apply(names[own.kind], x=result, y=float(own.params.alpha))
    for value in own.inputs[1:]:
        result = own.apply(names[own.kind], x=result, y=value)
    return own.apply("mul", x=result, y=1 / len(own.inputs)) if own.kind == "average" else result


def _broadcast(own: Layer, params: Any, shape: Sequence[int]) -> GraphExpr:
    """Numbers of shape (1), (channels), (channels, height, width)."""
    sizes = [int(size) for size in shape] or [1]
    wide = sizes if len(sizes) == 3 else [*sizes, 1, 1]
    return own.constant(own.weights(params, sizes).reshape(wide))


@layer("scale")
def scale(own: Layer) -> GraphExpr:
    """Times numbers, and plus others."""
    p = own.params
    result = own.call("multiply", own.x, _broadcast(own, p.scale, p.shapeScale))
    return own.call("add", result, _broadcast(own, p.bias, p.shapeBias)) if p.hasBias else result


@layer("bias")
def bias(own: Layer) -> GraphExpr:
    """Plus numbers."""
    return own.call("add", own.x, _broadcast(own, own.params.bias, own.params.shape))


@layer("softmax")
def softmax(own: Layer) -> GraphExpr:
    """Along the channels."""
    return own.apply("softmax", x=own.x, axis=own.at(-3))


@layer("softmaxND")
def softmax_nd(own: Layer) -> GraphExpr:
    """Along an axis."""
    return own.apply("softmax", x=own.x, axis=int(own.params.axis))


# Products


@layer("innerProduct")
def inner_product(own: Layer) -> GraphExpr:
    """A product with a matrix; images and sequences are rows of all their features."""
    p = own.params
    inputs, outputs = int(p.inputChannels), int(p.outputChannels)
    weight = own.constant(own.weights(p.weights, (outputs, inputs)))
    bias = own.constant(own.weights(p.bias, (outputs,))) if p.hasBias else None
    sizes = sizes_of(own.x)
    if len(sizes) < 4:
        return own.apply("linear", x=own.x, weight=weight, bias=bias)
    leading = sizes[: len(sizes) - 3]
    rows = own.builder.reshape(own.x, (*leading, product(sizes[-3:])))
    result = own.apply("linear", x=rows, weight=weight, bias=bias)
    return own.builder.reshape(result, (*leading, outputs, 1, 1))


@layer("batchedMatmul")
def batched_matmul(own: Layer) -> GraphExpr:
    """The product of two inputs, or of one with a matrix."""
    p = own.params
    flags: dict[str, Plain] = {"transpose_x": bool(p.transposeA), "transpose_y": bool(p.transposeB)}
    if len(own.inputs) > 1:
        return own.apply("matmul", x=own.x, y=own.input(1), **flags)
    rows, columns = int(p.weightMatrixFirstDimension), int(p.weightMatrixSecondDimension)
    # Weights are stored by columns of the matrix.
    weight = own.weights(p.weights, (columns, rows))
    result = own.apply("matmul", x=own.x, y=own.constant(weight.T), transpose_x=bool(p.transposeA))
    return own.call("add", result, own.constant(own.weights(p.bias, (columns,)))) if p.hasBias else result


@layer("dot")
def dot(own: Layer) -> GraphExpr:
    """The product of vectors of channels, or the cosine of their angle."""
    axis = own.at(-3)

    def total(a: GraphExpr, b: GraphExpr) -> GraphExpr:
        return own.call("sum", own.call("multiply", a, b), axes=(axis,), keepdims=True)

    result = total(own.x, own.input(1))
    if not own.params.cosineSimilarity:
        return result
    norms = own.call("multiply", total(own.x, own.x), total(own.input(1), own.input(1)))
    return own.call("multiply", result, own.call("rsqrt", norms))


@layer("embedding", "embeddingND")
def embedding(own: Layer) -> GraphExpr:
    """Rows of a table by their numbers, which are a dimension of 1 (or three)."""
    p = own.params
    single = own.kind == "embeddingND"
    size, rows = (int(p.embeddingSize), int(p.vocabSize)) if single else (int(p.outputChannels), int(p.inputDim))
    table = own.weights(p.weights, (size, rows)).T
    leading = sizes_of(own.x)[: -1 if single else -3]
    places = own.builder.cast(own.builder.reshape(own.x, leading), INT64)
    result = own.apply("gather", x=own.constant(table), indices=places, axis=0)
    if p.hasBias:
        result = own.call("add", result, own.constant(own.weights(p.bias, (size,))))
    return result if single else own.builder.reshape(result, (*leading, size, 1, 1))


# Reductions

_AXES = ((-3, -2, -1), (-2, -1), (-3,), (-2,), (-1,))
_OLD = ("sum", "mean", "prod", "log_sum", "sum_square", "l1_norm", "l2_norm", "max", "min", "argmax")


@layer("reduce")
def reduce(own: Layer) -> GraphExpr:
    """Over channels, rows or columns, which stay dimensions of 1."""
    p = own.params
    axes = [own.at(axis) for axis in _AXES[p.axis]]
    name = _OLD[p.mode]
    if name == "argmax":
        return own.apply("reduce_argmax", x=own.x, axis=axes[0], keep_dims=True)
    if name == "log_sum":
        # The sum of logarithms here, not the logarithm of the sum.
        logs = own.apply("log", x=own.x, epsilon=float(p.epsilon) or 1e-6)
        return own.apply("reduce_sum", x=logs, axes=axes, keep_dims=True)
    return own.apply(f"reduce_{name}", x=own.x, axes=axes, keep_dims=True)


@layer(*_REDUCTIONS)
def reduction(own: Layer) -> GraphExpr:
    """Over some axes, or all."""
    p = own.params
    axes = None if p.reduceAll else [int(axis) for axis in p.axes]
    result = own.apply(_REDUCTIONS[own.kind], x=own.x, axes=axes or None, keep_dims=bool(p.keepDims))
    # A network has no scalars.
    return own.builder.at_least_1d(result)


@layer("argMax", "argMin")
def position(own: Layer) -> GraphExpr:
    """Where the greatest or the least is."""
    kind = "reduce_argmax" if own.kind == "argMax" else "reduce_argmin"
    keep = not own.params.removeDim or rank_of(own.x) == 1
    return own.apply(kind, x=own.x, axis=int(own.params.axis), keep_dims=keep)


@layer("cumSum")
def cum_sum(own: Layer) -> GraphExpr:
    """Running sums."""
    p = own.params
    return own.apply("cumsum", x=own.x, axis=int(p.axis), exclusive=bool(p.excludeFinalSum), reverse=bool(p.reverse))


@layer("topK")
def top_k(own: Layer) -> Sequence[GraphExpr]:
    """The greatest or least, and where they are."""
    p = own.params
    k: Plain = int(p.K)
    if len(own.inputs) > 1:
        k = own.builder.cast(own.builder.reshape(own.input(1), ()), INT64)
    return own.apply_all("topk", x=own.x, k=k, axis=int(p.axis), ascending=bool(p.useBottomK))


@layer("argSort")
def arg_sort(own: Layer) -> GraphExpr:
    """Places in order."""
    return own.apply("argsort", x=own.x, axis=int(own.params.axis), ascending=not own.params.descending)


@layer("NonMaximumSuppression")
def non_maximum_suppression(own: Layer) -> Sequence[GraphExpr]:
    """Boxes without those that overlap better ones; further inputs are the thresholds and the number."""
    p = own.params
    names: tuple[tuple[str, Plain], ...] = (
        ("iou_threshold", float(p.iouThreshold)),
        ("score_threshold", float(p.scoreThreshold)),
        ("max_boxes", int(p.maxBoxes)),
    )
    given = {name: own.input(at) if at < len(own.inputs) else value for at, (name, value) in enumerate(names, 2)}
    per_class = bool(p.perClassSuppression)
    return own.apply_all(
        "non_maximum_suppression", boxes=own.x, scores=own.input(1), per_class_suppression=per_class, **given
    )
