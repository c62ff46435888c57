"""Converters of reductions over segments: rows combined by numbers that are data, of embeddings too."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.core.builder import rank_of, sizes_of
from tilewright.frontend.core.checks import checked_index
from tilewright.frontend.core.indexing import limit_work
from tilewright.frontend.core.segments import combined_rows, segment_count
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.registry import converter
from tilewright.graph.ir.dimensions import Size, product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.ir.dtype import FLOAT32, INT64
from tilewright.support.errors import UserError

_UNSORTED = {
    "UNSORTED_SEGMENT_SUM": "add",
    "UNSORTED_SEGMENT_PROD": "mul",
    "UNSORTED_SEGMENT_MAX": "max",
    "UNSORTED_SEGMENT_MIN": "min",
}


@converter("SEGMENT_SUM")
def segment_sum(node: NodeContext) -> GraphExpr:
    """Sums of rows by rising numbers, of which the last says how many there are."""
    numbers = node.input(1)
    return combined_rows(node, node.input(0), numbers, segment_count(node, numbers), "add")


@converter(*_UNSORTED)
def unsorted_segments(node: NodeContext) -> GraphExpr:
    """Rows combined by numbers in any order; how many there are is an input."""
    count = node.size(2, "the number of segments")
    return combined_rows(node, node.input(0), node.input(1), count, _UNSORTED[node.node.name])


@converter("EMBEDDING_LOOKUP_SPARSE")
def embedding_lookup_sparse(node: NodeContext) -> GraphExpr:
    """Weighted rows of a table added up where sparse indices say: a sum, a mean, or one by the root of squares."""
    builder, call = node.builder, node.call
    rows, indices, weights, values = node.input(0), node.input(1), node.input(3), node.input(4)
    shape = node.constant_ints(2, "the shape")
    combiner = node.integer("combiner")
    if combiner not in (0, 1, 2) or rank_of(indices) != 2 or len(shape) < 1:
        raise UserError(f"EMBEDDING_LOOKUP_SPARSE by the combiner {combiner} into shape {shape}")
    dims = sizes_of(values)
    rows = checked_index(builder, rows, [dims[0]], [0], negative=False)
    count, inner = product(shape[:-1]), product(dims[1:])
    taken = builder.reshape(call("take", values, rows, axis=0), (*sizes_of(rows), inner))
    factors = builder.reshape(weights, (*sizes_of(weights), 1))
    steps = np.array([int(np.prod(shape[at + 1 : -1])) for at in range(len(shape) - 1)] + [0], np.int64)
    places = call("sum", call("multiply", builder.cast(indices, INT64), builder.constant(steps, INT64)), axes=(1,))

    def added(updates: GraphExpr, width: Size) -> GraphExpr:
        limit_work(product((count, width, *sizes_of(rows))), sizes_text(shape))
        return call("scatter", builder.filled(0, (count, width), FLOAT32), places, updates, reduction="add")

    result = added(call("multiply", taken, factors), inner)
    if combiner:
        amounts = added(factors if combiner == 1 else call("multiply", factors, factors), 1)
        amounts = amounts if combiner == 1 else call("sqrt", amounts)
        empty = call("equal", amounts, builder.constant(0.0, FLOAT32))
        result = call("divide", result, call("where", empty, builder.constant(1.0, FLOAT32), amounts))
    return builder.reshape(result, (*shape[:-1], *dims[1:]))
