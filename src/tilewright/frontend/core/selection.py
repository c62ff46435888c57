"""What indices choose and what they say: slices, places, distinct elements, diagonals. Shared by importers."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.core.builder import dtype_of, evaluate, rank_of, sizes_of
from tilewright.frontend.core.checks import checked_index
from tilewright.frontend.core.indexing import along, gather_batched
from tilewright.frontend.core.node_inputs import NodeInputs
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT64
from tilewright.support.errors import UnsupportedError, UserError


def gathered(node: NodeInputs, axis: int, batch: int) -> GraphExpr:
    """Slices of input 0 along an axis by input 1; the first dimensions may be those of a batch."""
    builder, data, indices = node.builder, node.input(0), node.input(1)
    axis = node.axis(axis, rank_of(data))
    if batch < 0:
        batch += rank_of(indices)
    if not 0 <= batch <= min(axis, rank_of(indices)):
        raise UserError(f"{node.operator} along dimension {axis} with {batch} batch dimensions")
    indices = checked_index(builder, indices, [sizes_of(data)[axis]], [axis], negative=False)
    return gather_batched(builder, data, indices, axis, batch)


def one_hot(node: NodeInputs, axis: int) -> GraphExpr:
    """One of two values (inputs 2, 3) by whether an index (input 0) names the place along a new axis."""
    builder, indices = node.builder, node.input(0)
    depth = node.size(1, "the depth")
    axis = node.axis(axis, rank_of(indices) + 1)
    place = builder.expand_dims(builder.cast(indices, INT64), (axis,))
    order = along(builder, axis, rank_of(place), depth, 1)
    on, off = (builder.reshape(node.input(at), ()) for at in (2, 3))
    return node.call("where", node.call("equal", place, order), on, off)


def places_of_others(node: NodeInputs) -> GraphExpr:
    """The places of elements of input 0 other than zero, a row each."""
    data = node.input(0)
    known = evaluate(data)
    if known is not None:
        return node.builder.constant(np.argwhere(known), INT64)
    found = node.call("host.nonzero", data, dims=(node.symbol("count"),), dtype=dtype_of(data))
    return node.builder.transpose(found, (1, 0))


def distinct(node: NodeInputs) -> list[GraphExpr]:
    """The distinct elements of input 0 in the order in which they come, which one each place holds, and how often."""
    data = node.input(0)
    found = node.call("host.unique", data, dims=(node.symbol("count"),), axis=-1, sorted=False, dtype=dtype_of(data))
    return [node.builder.item(found, at) for at in (0, 2, 3)]


def matrix_diag(node: NodeInputs) -> GraphExpr:
    """Matrices with the last dimension of input 0 as their diagonal."""
    builder, data = node.builder, node.input(0)
    size = sizes_of(data)[-1]
    rows = builder.expand_dims(data, (rank_of(data),))
    return node.call("where", _diagonal(node, size, size), rows, builder.constant_like(0, data))


def matrix_set_diag(node: NodeInputs) -> GraphExpr:
    """Matrices (input 0) with another diagonal (input 1)."""
    builder, data, diagonal = node.builder, node.input(0), node.input(1)
    rows, columns = sizes_of(data)[-2:]
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise UnsupportedError(f"{node.operator} of open sizes")
    grown = diagonal
    if rows > columns:
        pads = [0] * rank_of(diagonal)
        pads[-1] = rows - columns
        grown = node.call("pad", diagonal, before=(0,) * rank_of(diagonal), after=tuple(pads))
    wide = builder.expand_dims(grown, (rank_of(diagonal),))
    return node.call("where", _diagonal(node, rows, columns), wide, data)


def _diagonal(node: NodeInputs, rows: Size, columns: Size) -> GraphExpr:
    first, second = along(node.builder, 0, 2, rows, 1), along(node.builder, 1, 2, columns, 1)
    return node.call("equal", first, second)
