"""Converters of operators whose results are as long as the data decides; the host does them."""

from __future__ import annotations

import math

import numpy as np

from tilewright.frontend.core.arithmetic import Number
from tilewright.frontend.core.builder import dtype_of, rank_of, shape_of, sizes_of
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.indexing import nonzero_places
from tilewright.frontend.torch.registry import converter
from tilewright.frontend.torch.scatter import write_rows
from tilewright.graph.ir.dimensions import Sizes
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT64


@converter("nonzero")
def nonzero(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """The places of elements other than zero, one row a place."""
    if isinstance(b.meta.shape[0], int):
        return b.empty(b.shape, INT64)
    return b.transpose(nonzero_places(b, x, b.meta.shape[0]), (1, 0))


@converter("argwhere")
def argwhere(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """The places of elements other than zero, one row a place."""
    return nonzero(b, x)


@converter("masked_select")
def masked_select(b: TorchBuilder, x: GraphExpr, mask: GraphExpr) -> GraphExpr:
    """The elements where a mask holds, in order."""
    shape = _together(x, mask)
    if 0 in shape:
        return b.empty((0,), dtype_of(x))
    symbol = b.sizes.fresh(b.meta.shape[0], "count")
    chosen = b.flatten(b.broadcast_to(mask, shape))
    return b.call("host.compress", b.flatten(b.broadcast_to(x, shape)), chosen, axis=0, dims=(symbol,))


def _together(x: GraphExpr, mask: GraphExpr) -> Sizes:
    """The shape that a value and a mask broadcast to."""
    sizes = sizes_of(x), sizes_of(mask)
    if sizes[0] == sizes[1]:
        return sizes[0]
    numbers = [shape_of(value) for value in (x, mask)]
    return tuple(np.broadcast_shapes(*numbers))


@converter("_unique2")
def unique(
    b: TorchBuilder, x: GraphExpr, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[GraphExpr, GraphExpr, GraphExpr]:
    """The distinct elements in order, which one each place holds, and how often each occurs."""
    symbol = b.sizes.fresh(b.meta[0].shape[0], "count")
    found = b.call("host.unique", x, axis=-1, sorted=True, dtype=dtype_of(x), dims=(symbol,))
    values, _, place, count = (b.item(found, index) for index in range(4))
    nothing = b.empty((0,), INT64)
    inverse = b.reshape(place, sizes_of(x)) if return_inverse else nothing
    return values, inverse, count if return_counts else nothing


@converter("unique_dim")
def unique_slices(
    b: TorchBuilder,
    x: GraphExpr,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[GraphExpr, GraphExpr, GraphExpr]:
    """The distinct slices along an axis in order, which one each place holds, and how often each occurs."""
    axis = b.axis(dim, rank_of(x))
    symbol = b.sizes.fresh(b.meta[0].shape[axis], "count")
    found = b.call("host.unique", x, axis=axis, sorted=True, dtype=dtype_of(x), dims=(symbol,))
    values, _, place, count = (b.item(found, index) for index in range(4))
    # Torch makes all three whatever is asked for.
    return values, place, count


@converter("nonzero_static")
def nonzero_static(b: TorchBuilder, x: GraphExpr, size: int, fill_value: int = -1) -> GraphExpr:
    """The places of the first elements other than zero, then rows of a filling."""
    shape = shape_of(x)
    if 0 in b.shape:
        return b.empty(b.shape, INT64)
    rows = b.filled(fill_value, (size, len(shape)), INT64)
    if 0 in shape:
        return rows
    mask = b.flatten(b.truth(x))
    order = b.subtract(b.call("cumsum", b.cast(mask, INT64), axis=0), 1)
    table = np.stack(np.unravel_index(np.arange(math.prod(shape)), shape), 1).astype(np.int64)
    return write_rows(b, rows, b.where(mask, order, -1), b.constant(table, INT64), "none")


@converter("histc")
def histogram(b: TorchBuilder, x: GraphExpr, bins: int = 100, min: Number = 0, max: Number = 0) -> GraphExpr:
    """How many elements lie in each of some intervals of equal width; both ends belong to the last one."""
    values = b.flatten(x)
    dtype = dtype_of(x)
    zeros = b.filled(0, (bins,), dtype)
    if 0 in sizes_of(values):
        return zeros
    low: GraphExpr = b.scalar(min, dtype)
    high: GraphExpr = b.scalar(max, dtype)
    if min == max:
        low, high = b.reduce("min", values, (0,)), b.reduce("max", values, (0,))
        flat = b.call("equal", low, high)
        low, high = b.where(flat, b.subtract(low, 1), low), b.where(flat, b.add(high, 1), high)
    place = b.call("floor", b.divide(b.multiply(b.subtract(values, low), float(bins)), b.subtract(high, low)))
    place = b.where(b.call("equal", values, high), float(bins - 1), place)
    inside = b.call("logical_and", b.call("greater_equal", values, low), b.call("less_equal", values, high))
    index = b.where(inside, b.cast(place, INT64), -1)
    return write_rows(b, zeros, index, b.filled(1, sizes_of(values), dtype), "add")
