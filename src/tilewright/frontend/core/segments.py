"""Rows combined by numbers that are data: shared by importers."""

from __future__ import annotations

from tilewright.frontend.core.builder import dtype_of, evaluate, rank_of, sizes_of
from tilewright.frontend.core.indexing import limit_work
from tilewright.frontend.core.node_inputs import NodeInputs
from tilewright.graph.ir.dimensions import Size, product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.ir.dtype import INT64, DataType


def _neutral(reduction: str, dtype: DataType) -> float:
    match reduction:
        case "add":
            return 0
        case "mul":
            return 1
        case "max":
            return float(dtype.min_value()) if dtype.is_integer else -3.4028234663852886e38
    return float(dtype.max_value()) if dtype.is_integer else 3.4028234663852886e38


def combined_rows(node: NodeInputs, data: GraphExpr, numbers: GraphExpr, count: Size, reduction: str) -> GraphExpr:
    """Rows of the data combined by their numbers; those outside are left out."""
    builder, dims, outer = node.builder, sizes_of(data), rank_of(numbers)
    rows, inner = product(dims[:outer]), product(dims[outer:])
    limit_work(product((count, inner, rows)), sizes_text(dims))
    start = builder.filled(_neutral(reduction, dtype_of(data)), (count, inner), dtype_of(data))
    places = builder.reshape(builder.cast(numbers, INT64), (rows,))
    values = builder.reshape(data, (rows, inner))
    result = node.call("scatter", start, places, values, reduction=reduction)
    return builder.reshape(result, (count, *dims[outer:]))


def segment_count(node: NodeInputs, numbers: GraphExpr) -> Size:
    """How many segments rising numbers name: one more than the last."""
    builder, known = node.builder, evaluate(numbers)
    if known is not None:
        return int(known.max(initial=-1)) + 1
    last = node.call("max", builder.cast(numbers, INT64), axes=(0,))
    return node.computed_size(node.call("add", last, builder.constant(1, INT64)), "segments")
