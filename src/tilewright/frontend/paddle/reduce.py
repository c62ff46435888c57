"""Converters of reductions, of positions of extremes, and of running sums."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.paddle.context import NodeContext
from tilewright.frontend.paddle.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT64, DataType

_REDUCTIONS = {
    f"reduce_{name}": name for name in ("sum", "mean", "max", "min", "prod", "all", "any")
} | {"amax": "max", "amin": "min", "reduce_amax": "max", "reduce_amin": "min"}  # fmt: skip


def _axes(node: NodeContext, rank: int) -> tuple[int, ...]:
    """The axes of a reduction: none, or a flag, means all."""
    given = node.wholes("the axes", (1, 2), "dim", "axis", "dims")
    if node.flag("reduce_all") or not given:
        return tuple(range(rank))
    return node.builder.axes(given, rank)


@converter(*_REDUCTIONS, inputs="X AxisTensor AxisTensorList")
def reduction(node: NodeContext) -> GraphExpr:
    """A reduction over axes."""
    b, x = node.builder, node.input(0)
    name = _REDUCTIONS[node.node.kind]
    is_added = name in ("sum", "prod")
    kept = dtype_of(x)
    to = node.dtype("out_dtype", "dtype", default=INT64 if is_added and not kept.is_float else kept)
    if name in ("all", "any"):
        x, to = b.truth(x), DataType.of("bool")
    elif is_added:
        x = b.cast(x, to)
    result = b.reduce(name, x, _axes(node, rank_of(x)), node.flag("keep_dim", "keepdim"))
    return result if name in ("max", "min", "sum", "prod") else b.cast(result, to)


@converter("mean")
def mean(node: NodeContext) -> GraphExpr:
    """The mean of all elements."""
    return node.builder.reduce("mean", node.input(0), tuple(range(rank_of(node.input(0)))))


@converter("logsumexp", inputs="X AxisTensor")
def log_sum_exp(node: NodeContext) -> GraphExpr:
    """The logarithm of the sum of exponentials."""
    b, x = node.builder, node.input(0)
    axes, keep = _axes(node, rank_of(x)), node.flag("keepdim", "keep_dim")
    top = b.reduce("max", x, axes, True)
    total = b.reduce("sum", b.call("exp", b.subtract(x, top)), axes, True)
    result = b.add(b.call("log", total), top)
    kept = [size for at, size in enumerate(sizes_of(x)) if at not in axes]
    return result if keep else b.reshape(result, kept)


@converter("squared_l2_norm")
def squared_norm(node: NodeContext) -> GraphExpr:
    """The sum of all squares."""
    x = node.input(0)
    return node.builder.reduce("sum", node.builder.multiply(x, x), tuple(range(rank_of(x))))


@converter("arg_max", "arg_min", "argmax", "argmin", inputs="X Axis")
def position(node: NodeContext) -> GraphExpr:
    """The position of the greatest or the least."""
    b, x = node.builder, node.input(0)
    name = "argmax" if node.node.kind.endswith("max") else "argmin"
    keep, to = node.flag("keepdims", "keepdim"), node.dtype("dtype", default=INT64)
    if node.flag("flatten"):
        found = b.call(name, b.flatten(x), axis=0)
        return b.cast(b.reshape(found, (1,) * rank_of(x) if keep else ()), to)
    axis = node.axis(node.whole("the axis", (1,), "axis"), rank_of(x))
    return b.cast(b.call(name, x, axis=axis, keepdims=keep), to)


@converter("top_k_v2", "top_k", "topk", inputs="X K", outputs="Out Indices")
def top_k(node: NodeContext) -> Sequence[GraphExpr]:
    """The greatest or least elements along an axis, and where they are."""
    x = node.input(0)
    count = node.needed_tensor("how many", (1,), "k")
    axis, largest = node.integer("axis", default=-1), node.flag("largest", default=True)
    values, places = node.onnx.several("TopK", 2, x, count, axis=node.axis(axis, rank_of(x)), largest=largest)
    return [values, places]


@converter("argsort", inputs="X", outputs="Out Indices")
def argsort(node: NodeContext) -> Sequence[GraphExpr]:
    """All elements along an axis in order, and where they were."""
    x = node.input(0)
    axis = node.axis(node.integer("axis", default=-1), rank_of(x))
    count = node.builder.shape_tensor([sizes_of(x)[axis]])
    return node.onnx.several("TopK", 2, x, count, axis=axis, largest=node.flag("descending"))


@converter("kthvalue", inputs="X", outputs="Out Indices")
def kth_value(node: NodeContext) -> Sequence[GraphExpr]:
    """The k-th least element along an axis, and where it is."""
    b, x = node.builder, node.input(0)
    axis, k = node.axis(node.integer("axis", default=-1), rank_of(x)), node.integer("k", default=1)
    both = b.call("topk", x, axis=axis, k=k, largest=False)
    parts = [b.slice_axis(b.item(both, at), axis, k - 1, k) for at in range(2)]
    shape = [size for at, size in enumerate(sizes_of(x)) if at != axis]
    return parts if node.flag("keepdim") else [b.reshape(part, shape) for part in parts]


@converter("cumsum", inputs="X Axis")
def cumulative_sum(node: NodeContext) -> GraphExpr:
    """Running sums along an axis, or over all elements."""
    b, x = node.builder, node.input(0)
    if node.flag("flatten") or rank_of(x) == 0:
        x = b.flatten(x)
    axis = node.axis(node.whole("the axis", (1,), "axis", default=-1), rank_of(x))
    return b.call("cumsum", x, axis=axis, exclusive=node.flag("exclusive"), reverse=node.flag("reverse"))


@converter("cumprod")
def cumulative_product(node: NodeContext) -> GraphExpr:
    """Running products along an axis."""
    x = node.input(0)
    axis = node.axis(node.integer("dim", default=-1), rank_of(x))
    return node.call("cumprod", x, axis=axis, exclusive=node.flag("exclusive"), reverse=node.flag("reverse"))


@converter("unique", inputs="X", outputs="Out Indices Index Counts")
def unique(node: NodeContext) -> Sequence[GraphExpr]:
    """The distinct elements in order, where each is first, which one each place holds, and how often each occurs."""
    b, x = node.builder, node.input(0)
    axes = node.ints("axis", default=())
    axis = node.axis(axes[0], rank_of(x)) if axes else None
    found = node.onnx.several("Unique", 4, x, axis=axis, sorted=1)
    to = node.dtype("dtype", default=INT64)
    return [found[0], *(b.cast(item, to) for item in found[1:])]


@converter("size", "numel", inputs="Input")
def count(node: NodeContext) -> GraphExpr:
    """The number of elements."""
    return node.onnx("Size", node.input(0))
