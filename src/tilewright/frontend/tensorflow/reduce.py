"""Converters of reductions, running sums, positions of extremes, order and segments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.core.segments import combined_rows, segment_count
from tilewright.frontend.tensorflow.context import NodeContext
from tilewright.frontend.tensorflow.registry import converter
from tilewright.graph.ir.dimensions import product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, INT64
from tilewright.support.errors import UnsupportedError, UserError

_REDUCTIONS = {"Mean": "mean", "Sum": "sum", "Prod": "prod", "Max": "max", "Min": "min", "Any": "any", "All": "all"}
_UNSORTED = {
    "UnsortedSegmentSum": "add",
    "UnsortedSegmentProd": "mul",
    "UnsortedSegmentMax": "max",
    "UnsortedSegmentMin": "min",
}
_SORTED = {"SegmentSum": "add", "SegmentProd": "mul", "SegmentMax": "max", "SegmentMin": "min"}


def axes_of(node: NodeContext, index: int = 1) -> tuple[int, ...]:
    """Axes that are an input, in order."""
    rank = rank_of(node.input(0))
    return tuple(sorted({node.axis(item, rank) for item in node.constant_ints(index, "the axes")}))


@converter(*_REDUCTIONS)
def reduction(node: NodeContext) -> GraphExpr:
    """Over axes that are an input."""
    data, axes, keepdims = node.input(0), axes_of(node), node.flag("keep_dims")
    if not axes:
        return data
    if node.operator == "Mean" and not dtype_of(data).is_float:
        total = node.call("sum", node.builder.cast(data, INT64), axes=axes, keepdims=keepdims)
        count = node.builder.reshape(node.builder.shape_tensor([product([sizes_of(data)[at] for at in axes])]), ())
        return node.builder.cast(node.call("divide", total, count), dtype_of(data))
    return node.call(_REDUCTIONS[node.operator], data, axes=axes, keepdims=keepdims)


@converter("EuclideanNorm", "L2Loss")
def norm(node: NodeContext) -> GraphExpr:
    """The root of the sum of squares over axes; half the sum of all squares."""
    data = node.input(0)
    squares = node.call("multiply", data, data)
    if node.operator == "L2Loss":
        total = node.builder.reduce("sum", squares, tuple(range(rank_of(data))))
        return node.builder.multiply(total, 0.5)
    return node.call("sqrt", node.builder.reduce("sum", squares, axes_of(node), node.flag("keep_dims")))


@converter("ArgMax", "ArgMin")
def arg_extreme(node: NodeContext) -> GraphExpr:
    """The position of the greatest or the least along an axis; the first of equal ones."""
    data = node.input(0)
    axis = node.axis(node.constant_int(1, "the axis"), rank_of(data))
    found = node.call("argmax" if node.operator == "ArgMax" else "argmin", data, axis=axis)
    return node.builder.cast(found, node.dtype("output_type", 9))


@converter("TopKV2", outputs=("values", "indices"))
def topk(node: NodeContext) -> Sequence[GraphExpr]:
    """The k greatest along the last axis, and where they are."""
    data = node.input(0)
    axis = rank_of(data) - 1
    sizes = node.sizes(1, "k")
    if sizes is None:
        count = node.symbol("k")
        k = node.builder.reshape(node.builder.cast(node.input(1), INT64), (1,))
        both = node.call("host.topk", data, k, dims=(count,), axis=axis, dtype=dtype_of(data))
    else:
        both = node.call("topk", data, axis=axis, k=sizes[0])
    values, places = node.builder.item(both, 0), node.builder.item(both, 1)
    return [values, node.builder.cast(places, node.dtype("index_type", 3))]


@converter("InTopK", "InTopKV2")
def in_top(node: NodeContext) -> GraphExpr:
    """Whether the score of a class is among the k greatest of its row."""
    b, scores, classes = node.builder, node.input(0), node.input(1)
    k = node.integer("k") if node.operator == "InTopK" else node.constant_int(2, "k")
    rows = sizes_of(scores)[0]
    own = b.positions(sizes_of(scores), 1)
    here = b.call("equal", own, b.reshape(b.cast(classes, INT64), (rows, 1)))
    score = node.call("sum", b.where(here, scores, b.constant_like(0, scores)), axes=(1,), keepdims=True)
    above = node.call("sum", b.cast(node.call("greater", scores, score), INT64), axes=(1,))
    return b.compare("less", above, k)


@converter("Cumsum", "Cumprod")
def cumulative(node: NodeContext) -> GraphExpr:
    """Running sums or products along an axis."""
    data = node.input(0)
    axis = node.axis(node.constant_int(1, "the axis"), rank_of(data))
    name = node.operator.lower()
    return node.call(name, data, axis=axis, exclusive=node.flag("exclusive"), reverse=node.flag("reverse"))


@converter(*_SORTED)
def sorted_segments(node: NodeContext) -> GraphExpr:
    """Rows combined by rising numbers, of which the last says how many there are."""
    numbers = node.input(1)
    result = combined_rows(node, node.input(0), numbers, segment_count(node, numbers), _SORTED[node.operator])
    if _SORTED[node.operator] not in ("max", "min"):
        return result
    # Segments that nothing belongs to are zeros.
    return _zero_where_empty(node, result, numbers)


def _zero_where_empty(node: NodeContext, result: GraphExpr, numbers: GraphExpr) -> GraphExpr:
    b, count = node.builder, sizes_of(result)[0]
    own = b.positions((count, 1), 0)
    here = b.call("equal", own, b.reshape(b.cast(numbers, INT64), (1, product(sizes_of(numbers)))))
    filled = b.reshape(node.call("any", here, axes=(1,)), (count, *(1,) * (rank_of(result) - 1)))
    return b.where(filled, result, b.constant_like(0, result))


@converter("SegmentMean")
def segment_mean(node: NodeContext) -> GraphExpr:
    """Means of rows by rising numbers."""
    b, numbers = node.builder, node.input(1)
    count = segment_count(node, numbers)
    total = combined_rows(node, node.input(0), numbers, count, "add")
    ones = b.filled(1, sizes_of(numbers), dtype_of(total))
    amounts = combined_rows(node, ones, numbers, count, "add")
    amounts = b.where(b.compare("equal", amounts, 0), b.constant_like(1, amounts), amounts)
    return b.divide(total, b.reshape(amounts, (count, *(1,) * (rank_of(total) - 1))))


@converter(*_UNSORTED)
def unsorted_segments(node: NodeContext) -> GraphExpr:
    """Rows combined by numbers in any order; how many there are is an input."""
    count = node.size(2, "the number of segments")
    return combined_rows(node, node.input(0), node.input(1), count, _UNSORTED[node.operator])


@converter("Bincount", "DenseBincount")
def bincount(node: NodeContext) -> GraphExpr:
    """How often each number below a size occurs."""
    b, data = node.builder, node.input(0)
    size = node.size(1, "the size")
    if rank_of(data) > 1:
        raise UnsupportedError(f"{node.operator} of rows", hint="count each row by itself")
    weights = node.input(2)
    dtype = dtype_of(weights)
    if 0 in sizes_of(weights):
        weights = b.filled(1, sizes_of(data), dtype)
    start = b.filled(0, (size, 1), dtype)
    values = b.reshape(weights, (product(sizes_of(data)), 1))
    counts = node.call("scatter", start, b.reshape(b.cast(data, INT64), sizes_of(values)[:1]), values, reduction="add")
    result = b.reshape(counts, (size,))
    return b.compare("greater", result, 0) if node.flag("binary_output") else result


@converter("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits", outputs=("loss", "backprop"))
def cross_entropy(node: NodeContext) -> Sequence[GraphExpr | None]:
    """The loss of classes under logits; its gradient is not computed."""
    b, logits, labels = node.builder, node.input(0), node.input(1)
    chances = node.call("nn.log_softmax", logits, axis=1)
    if node.operator.startswith("Sparse"):
        rows = sizes_of(logits)[0]
        here = b.call("equal", b.positions(sizes_of(logits), 1), b.reshape(b.cast(labels, INT64), (rows, 1)))
        parts = b.where(here, chances, b.constant_like(0, chances))
    else:
        parts = b.multiply(chances, labels)
    return [node.call("negative", node.call("sum", parts, axes=(1,))), None]


@converter("HistogramFixedWidth")
def histogram(node: NodeContext) -> GraphExpr:
    """How many values fall into each of so many equal parts of a range."""
    b, data = node.builder, node.builder.flatten(node.builder.cast(node.input(0), FLOAT32))
    low, high = (float(item) for item in node.constant(1, "the range").ravel())
    count = node.constant_int(2, "the number of parts")
    if not low < high or count < 1:
        raise UserError(f"{node.operator} of {count} parts between {low} and {high}")
    place = node.call("floor", b.multiply(b.subtract(data, low), float(np.float32(count / (high - low)))))
    place = b.cast(node.call("clip", place, minimum=0.0, maximum=float(count - 1)), INT64)
    here = b.call("equal", b.positions((count, 1), 0), b.reshape(place, (1, product(sizes_of(data)))))
    return node.call("sum", b.cast(here, node.dtype("dtype", 3)), axes=(1,))
