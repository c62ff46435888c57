"""Converters of operators whose indices are data."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.core import selection
from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.core.checks import checked_index
from tilewright.frontend.core.indexing import gather_nd, reverse_sequences, scatter_nd
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32
from tilewright.support.errors import UnsupportedError, UserError


@converter("GATHER")
def gather(node: NodeContext) -> GraphExpr:
    """Slices along an axis; the first dimensions may be those of a batch."""
    return selection.gathered(node, node.integer("axis"), node.integer("batch_dims"))


@converter("GATHER_ND")
def gather_by_tuples(node: NodeContext) -> GraphExpr:
    """Slices chosen by tuples of indices."""
    return gather_nd(node.builder, node.input(0), node.input(1))


@converter("SCATTER_ND")
def scatter_by_tuples(node: NodeContext) -> GraphExpr:
    """Slices added up at tuples of indices in zeros of a shape."""
    updates = node.input(1)
    shape = node.sizes(2, "the shape")
    if shape is None:
        raise UnsupportedError("SCATTER_ND to a shape that only a run knows")
    zeros = node.builder.filled(0, shape, dtype_of(updates))
    return scatter_nd(node.builder, zeros, node.input(0), updates, "add")


@converter("SPARSE_TO_DENSE")
def sparse_to_dense(node: NodeContext) -> GraphExpr:
    """Values at places, one other value elsewhere."""
    builder, places, values = node.builder, node.input(0), node.input(2)
    shape = node.sizes(1, "the shape")
    if shape is None:
        raise UnsupportedError("SPARSE_TO_DENSE to a shape that only a run knows")
    if rank_of(places) < 2:
        count = sizes_of(places)[0] if rank_of(places) else 1
        places = builder.reshape(places, (count, 1) if len(shape) == 1 else (1, count))
    whole = builder.broadcast_to(builder.reshape(node.input(3), ()), shape)
    spread = builder.broadcast_to(values, sizes_of(places)[:1])
    return scatter_nd(builder, whole, places, spread)


@converter("EMBEDDING_LOOKUP")
def embedding_lookup(node: NodeContext) -> GraphExpr:
    """Rows of a table; those of bytes become floats."""
    builder, table = node.builder, node.input(1)
    indices = checked_index(builder, node.input(0), [sizes_of(table)[0]], [0], negative=False)
    rows = node.call("take", table, indices, axis=0)
    if not node.is_quantized(1) or not node.output_dtype().is_float:
        return rows
    levels = node.levels(1)
    if not levels.by_tensor and levels.axis != 0:
        raise UserError(f"scales of a table along dimension {levels.axis}")
    steps = builder.cast(rows, FLOAT32)
    scales = builder.constant(np.asarray(levels.scales, np.float32), FLOAT32)
    if levels.by_tensor:
        return node.call("multiply", steps, builder.reshape(scales, ()))
    chosen = node.call("take", scales, indices, axis=0)
    wide = builder.reshape(chosen, (*sizes_of(chosen), *(1,) * (rank_of(rows) - rank_of(chosen))))
    return node.call("multiply", steps, wide)


@converter("ONE_HOT")
def one_hot(node: NodeContext) -> GraphExpr:
    """One of two values by whether an index names the place along a new axis."""
    return selection.one_hot(node, node.integer("axis", -1))


@converter("WHERE")
def where(node: NodeContext) -> GraphExpr:
    """The places of elements other than zero, a row each."""
    return selection.places_of_others(node)


@converter("UNIQUE")
def unique(node: NodeContext) -> list[GraphExpr]:
    """The distinct elements in the order in which they come, and which one each place holds."""
    values, places, _ = selection.distinct(node)
    return [values, node.builder.cast(places, node.output_dtype(1))]


@converter("REVERSE_SEQUENCE")
def reverse_sequence(node: NodeContext) -> GraphExpr:
    """The first elements of each sequence in reverse."""
    data, rank = node.input(0), rank_of(node.input(0))
    time_axis, batch_axis = node.axis(node.integer("seq_dim"), rank), node.axis(node.integer("batch_dim"), rank)
    if time_axis == batch_axis:
        raise UserError(f"REVERSE_SEQUENCE along dimension {time_axis} of a batch in the same dimension")
    return reverse_sequences(node.builder, data, node.input(1), time_axis, batch_axis)


@converter("MATRIX_DIAG")
def matrix_diag(node: NodeContext) -> GraphExpr:
    """Matrices with the last dimension as their diagonal."""
    return selection.matrix_diag(node)


@converter("MATRIX_SET_DIAG")
def matrix_set_diag(node: NodeContext) -> GraphExpr:
    """Matrices with another diagonal."""
    return selection.matrix_set_diag(node)


@converter("HASHTABLE_LOOKUP")
def hashtable_lookup(node: NodeContext) -> list[GraphExpr]:
    """Rows of a table by sorted keys, zeros for keys that are not there, and whether they are."""
    builder, call = node.builder, node.call
    wanted, keys, rows = node.input(0), node.input(1), node.input(2)
    count = sizes_of(keys)[0]
    equal = call("equal", builder.expand_dims(wanted, (1,)), builder.reshape(keys, (1, count)))
    hit = call("any", equal, axes=(1,))
    place = call("argmax", builder.cast(equal, "int32"), axis=1)
    taken = call("take", rows, place, axis=0, mode="inside")
    known = builder.reshape(hit, (*sizes_of(hit), *(1,) * (rank_of(taken) - 1)))
    return [call("where", known, taken, builder.constant_like(0, taken)), builder.cast(hit, node.output_dtype(1))]
