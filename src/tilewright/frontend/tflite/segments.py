"""Converters of reductions over segments: rows combined by numbers that are data."""

from __future__ import annotations

from tilewright.frontend.core.builder import dtype_of, evaluate, rank_of, sizes_of
from tilewright.frontend.core.indexing import limit_work
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.registry import converter
from tilewright.graph.ir.dimensions import Size, product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.ir.dtype import INT64, DataType

_UNSORTED = {
    "UNSORTED_SEGMENT_SUM": "add",
    "UNSORTED_SEGMENT_PROD": "mul",
    "UNSORTED_SEGMENT_MAX": "max",
    "UNSORTED_SEGMENT_MIN": "min",
}


def _neutral(reduction: str, dtype: DataType) -> float:
    match reduction:
        case "add":
            return 0
        case "mul":
            return 1
        case "max":
            return float(dtype.min_value()) if dtype.is_integer else -3.4028234663852886e38
    return float(dtype.max_value()) if dtype.is_integer else 3.4028234663852886e38


def _combined(node: NodeContext, data: GraphExpr, numbers: GraphExpr, count: Size, reduction: str) -> GraphExpr:
    """Rows of the data combined by their numbers; those outside are left out."""
    builder, dims, outer = node.builder, sizes_of(data), rank_of(numbers)
    rows, inner = product(dims[:outer]), product(dims[outer:])
    limit_work(product((count, inner, rows)), sizes_text(dims))
    start = builder.filled(_neutral(reduction, dtype_of(data)), (count, inner), dtype_of(data))
    places = builder.reshape(builder.cast(numbers, INT64), (rows,))
    values = builder.reshape(data, (rows, inner))
    result = node.call("scatter", start, places, values, reduction=reduction)
    return builder.reshape(result, (count, *dims[outer:]))


@converter("SEGMENT_SUM")
def segment_sum(node: NodeContext) -> GraphExpr:
    """Sums of rows by rising numbers, of which the last says how many there are."""
    builder, numbers = node.builder, node.input(1)
    known = evaluate(numbers)
    count: Size
    if known is not None:
        count = int(known.max(initial=-1)) + 1
    else:
        last = node.call("max", builder.cast(numbers, INT64), axes=(0,))
        count = node.computed_size(node.call("add", last, builder.constant(1, INT64)), "segments")
    return _combined(node, node.input(0), numbers, count, "add")


@converter(*_UNSORTED)
def unsorted_segments(node: NodeContext) -> GraphExpr:
    """Rows combined by numbers in any order; how many there are is an input."""
    count = node.size(2, "the number of segments")
    return _combined(node, node.input(0), node.input(1), count, _UNSORTED[node.node.name])
