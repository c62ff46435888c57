"""Operations of Core ML that normalise, matrix products, and attention."""

from __future__ import annotations

import math

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.coreml.elementwise import by_channel
from tilewright.frontend.coreml.operation import Operation, operation
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UserError


@operation("batch_norm")
def batch_norm(op: Operation) -> GraphExpr:
    """By means and variances that are known, one a channel."""
    x = op.value()
    mean, variance = op.array("mean").astype(np.float64), op.array("variance").astype(np.float64)
    gamma = op.array("gamma").astype(np.float64) if op.has("gamma") else np.ones_like(mean)
    beta = op.array("beta").astype(np.float64) if op.has("beta") else np.zeros_like(mean)
    if len({item.shape for item in (mean, variance, gamma, beta)}) > 1:
        raise UserError("mean, variance, gamma and beta of batch_norm have different lengths")
    with np.errstate(all="ignore"):
        factor = gamma / np.sqrt(variance + op.number("epsilon", 1e-5))
        offset = beta - mean * factor
    shape = (-1, *(1,) * (rank_of(x) - 2))
    dtype = dtype_of(x)
    scaled = op.call("multiply", x, op.builder.constant(factor.reshape(shape).astype(dtype.numpy()), dtype))
    return op.call("add", scaled, op.builder.constant(offset.reshape(shape).astype(dtype.numpy()), dtype))


def standardized(op: Operation, x: GraphExpr, axes: tuple[int, ...], epsilon: float) -> GraphExpr:
    """x less its mean, divided by its deviation, over axes; half precision is left for sums."""
    dtype = dtype_of(x)
    wide = op.builder.cast(x, "float32") if dtype.bits == 16 else x
    centered = op.call("subtract", wide, op.call("mean", wide, axes=axes, keepdims=True))
    variance = op.call("mean", op.call("multiply", centered, centered), axes=axes, keepdims=True)
    root = op.call("rsqrt", op.builder.add(variance, epsilon))
    return op.builder.cast(op.call("multiply", centered, root), dtype)


@operation("instance_norm")
def instance_norm(op: Operation) -> GraphExpr:
    """Each channel of each sample by its own mean and variance."""
    x = op.value()
    result = standardized(op, x, tuple(range(2, rank_of(x))), op.number("epsilon", 1e-5))
    if op.has("gamma"):
        result = op.call("multiply", result, by_channel(op, "gamma"))
    return op.call("add", result, by_channel(op, "beta")) if op.has("beta") else result


@operation("layer_norm")
def layer_norm(op: Operation) -> GraphExpr:
    """Over some axes; gamma and beta have the shape of these."""
    x = op.value()
    rank = rank_of(x)
    axes = op.builder.axes(op.ints("axes", range(rank)), rank)
    result = standardized(op, x, axes, op.number("epsilon", 1e-5))
    shape = [size if axis in axes else 1 for axis, size in enumerate(sizes_of(x))]
    for name, kind in (("gamma", "multiply"), ("beta", "add")):
        if op.has(name):
            factor = op.builder.cast(op.builder.reshape(op.value(name), shape), dtype_of(x))
            result = op.call(kind, result, factor)
    return result


@operation("l2_norm")
def l2_norm(op: Operation) -> GraphExpr:
    """x divided by the root of its squares in the last three dimensions, plus a small number."""
    x = op.value()
    rank = rank_of(x)
    squares = op.call("sum", op.call("multiply", x, x), axes=tuple(range(max(0, rank - 3), rank)), keepdims=True)
    return op.call("multiply", x, op.call("rsqrt", op.builder.add(squares, op.number("epsilon", 1e-6))))


@operation("local_response_norm")
def local_response_norm(op: Operation) -> GraphExpr:
    """By the squares of neighbouring channels."""
    return op.onnx(
        "LRN",
        op.value(),
        size=op.integer("size"),
        alpha=op.number("alpha", 1e-4),
        beta=op.number("beta", 0.75),
        bias=float(op.number("k", 1.0)),
    )


# Products


@operation("linear")
def linear(op: Operation) -> GraphExpr:
    """x times the transposed weight, plus the bias."""
    x = op.value()
    weight = op.builder.cast(op.value("weight"), dtype_of(x))
    rows = op.builder.reshape(x, (1, *sizes_of(x))) if rank_of(x) == 1 else x
    result = op.call("matmul", op.builder.fitting(rows, _row(op, weight)), weight, transpose_b=True)
    if rank_of(x) == 1:
        result = op.builder.reshape(result, sizes_of(result)[1:])
    bias = op.optional("bias")
    return result if bias is None else op.call("add", result, op.builder.cast(bias, dtype_of(x)))


def _row(op: Operation, weight: GraphExpr) -> GraphExpr:
    """What says how long rows of the data are."""
    return op.builder.filled(0, (size_at(weight, 1),), dtype_of(weight))


@operation("matmul")
def matmul(op: Operation) -> GraphExpr:
    """The product of matrices, or of vectors with them."""
    x, y = op.value("x"), op.builder.cast(op.value("y"), dtype_of(op.value("x")))
    is_row, is_column = rank_of(x) == 1, rank_of(y) == 1
    if is_row:
        x = op.builder.reshape(x, (1, *sizes_of(x)))
    if is_column:
        y = op.builder.reshape(y, (*sizes_of(y), 1))
    flags = {
        "transpose_a": op.flag("transpose_x", False) and not is_row,
        "transpose_b": op.flag("transpose_y", False) and not is_column,
    }
    result = op.call("matmul", x, y, **flags)
    if is_row or is_column:
        shape = list(sizes_of(result))
        if is_column:
            shape.pop()
        if is_row:
            shape.pop(-1 if is_column else -2)
        result = op.builder.reshape(result, shape)
    return result


@operation("einsum")
def einsum(op: Operation) -> GraphExpr:
    """A sum of products by an equation of letters."""
    return op.onnx("Einsum", *op.values("values"), equation=op.text("equation"))


@operation("scaled_dot_product_attention")
def attention(op: Operation) -> GraphExpr:
    """softmax(query @ key' / sqrt(size) + mask) @ value."""
    query, key, value = op.value("query"), op.value("key"), op.value("value")
    scale = 1 / math.sqrt(size_at(query, -1))
    scores = op.call("matmul", op.builder.multiply(query, scale), key, transpose_b=True)
    mask = op.optional("attn_mask")
    if mask is not None and dtype_of(mask).is_bool:
        scores = op.builder.where(mask, scores, -math.inf)
    elif mask is not None:
        scores = op.call("add", scores, op.builder.cast(mask, dtype_of(scores)))
    return op.call("matmul", op.call("nn.softmax", scores, axis=rank_of(scores) - 1), value)


# Reductions

_REDUCTIONS = {
    "reduce_l1_norm": "ReduceL1",
    "reduce_l2_norm": "ReduceL2",
    "reduce_log_sum": "ReduceLogSum",
    "reduce_log_sum_exp": "ReduceLogSumExp",
    "reduce_max": "ReduceMax",
    "reduce_mean": "ReduceMean",
    "reduce_min": "ReduceMin",
    "reduce_prod": "ReduceProd",
    "reduce_sum": "ReduceSum",
    "reduce_sum_square": "ReduceSumSquare",
}


@operation(*_REDUCTIONS)
def reduction(op: Operation) -> GraphExpr:
    """Over some axes, or all."""
    x = op.value()
    axes = op.builder.axes(op.ints("axes", ()), rank_of(x))
    return op.onnx(_REDUCTIONS[op.kind], x, op.ints_of(axes), keepdims=op.flag("keep_dims", False))


@operation("reduce_argmax", "reduce_argmin")
def position(op: Operation) -> GraphExpr:
    """Where the greatest or the least is along an axis."""
    x = op.value()
    name = op.kind.removeprefix("reduce_")
    axis = op.axis("axis", rank_of(x), -1)
    found = op.call(name, x, axis=axis, keepdims=op.flag("keep_dims", False))
    return op.builder.cast(found, op.text("output_dtype", "int32"))


@operation("cumsum")
def running_sum(op: Operation) -> GraphExpr:
    """Running sums along an axis."""
    x = op.value()
    options = {"exclusive": op.flag("exclusive", False), "reverse": op.flag("reverse", False)}
    return op.call("cumsum", x, axis=op.axis("axis", rank_of(x), 0), **options)
