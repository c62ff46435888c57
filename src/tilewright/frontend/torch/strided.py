"""Views by strides: elements by their places in a tensor's storage, which is laid out as torch says."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import LARGEST_MADE, dtype_of, rank_of, sizes_of
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.registry import converter
from tilewright.frontend.torch.scatter import write_known
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size, constants
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT64
from tilewright.support.errors import UnsupportedError

Places = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@converter("as_strided", "as_strided_copy")
def as_strided(
    b: TorchBuilder, x: GraphExpr, size: Sequence[Size], stride: Sequence[Size], storage_offset: Size | None = None
) -> GraphExpr:
    """Elements by their places in the storage: a table, or computed where sizes are open."""
    if 0 in size:
        return b.empty(size, dtype_of(x))
    elements = _elements(b, x, size, stride, storage_offset)
    if elements is None:
        return _open_view(b, x, size, stride, storage_offset)
    return b.call("take", b.flatten(x), b.constant(elements, INT64), axis=0)


@converter("as_strided_scatter")
def as_strided_scatter(
    b: TorchBuilder,
    x: GraphExpr,
    src: GraphExpr,
    size: Sequence[Size],
    stride: Sequence[Size],
    storage_offset: Size | None = None,
) -> GraphExpr:
    """A view by strides replaced."""
    if 0 in size:
        return x
    elements = _elements(b, x, size, stride, storage_offset)
    if elements is None:
        raise UnsupportedError("writing to a strided view where sizes are open")
    return write_known(b, x, elements, src)


def _elements(
    b: TorchBuilder, x: GraphExpr, size: Sequence[Size], stride: Sequence[Size], storage_offset: Size | None
) -> Places | None:
    """Which elements of a tensor, counted in order of its axes, a view by strides has; None where sizes are open."""
    own_begin, *own_strides = _layout(b)
    view = constants([*size, *stride, own_begin if storage_offset is None else storage_offset])
    own = constants([*sizes_of(x), *own_strides, own_begin])
    if view is None or own is None:
        return None
    rank, own_rank = len(size), rank_of(x)
    total = math.prod(own[:own_rank])
    if max(math.prod(view[:rank]), total) > LARGEST_MADE:
        raise UnsupportedError(f"a strided view of shape {tuple(size)}")
    view_places = _places(view[:rank], view[rank:-1], view[-1])
    own_places = _places(own[:own_rank], own[own_rank:-1], own[-1])
    element_at = np.full(1 + max(int(view_places.max()), int(own_places.max(initial=0))), -1, np.int64)
    element_at[own_places.ravel()] = np.arange(total)
    elements: Places = element_at[view_places]
    if elements.min() < 0:
        raise UnsupportedError("a strided view of elements beyond its tensor")
    return elements


def _layout(b: TorchBuilder) -> list[Size]:
    """Where the operand begins in its storage, and its strides."""
    meta = b.operand_meta
    return [b.sizes.size(number) for number in (meta.storage_offset(), *meta.stride())]


def _places(size: Sequence[int], stride: Sequence[int], begin: int) -> Places:
    """The places of a view's elements in a storage."""
    places = np.full(tuple(size), begin, np.int64)
    for axis, (count, step) in enumerate(zip(size, stride, strict=True)):
        places += (np.arange(count) * step).reshape([-1 if at == axis else 1 for at in range(len(size))])
    return places


def _open_view(
    b: TorchBuilder, x: GraphExpr, size: Sequence[Size], stride: Sequence[Size], storage_offset: Size | None
) -> GraphExpr:
    """A view where sizes are open, of a tensor that fills its storage."""
    order = _storage_order(b, x)
    if order is None:
        raise UnsupportedError("a strided view of part of a storage where sizes are open")
    places = b.scalar(storage_offset or 0, INT64)
    for axis, (count, step) in enumerate(zip(size, stride, strict=True)):
        column = b.multiply(b.arange(count), b.size(step))
        places = b.add(places, b.expand_dims(column, tuple(range(1, len(size) - axis))))
    return b.call("take", b.flatten(b.transpose(x, order)), places, axis=0)


def _storage_order(b: TorchBuilder, x: GraphExpr) -> list[int] | None:
    """The axes of a tensor as its storage has them, outermost first; None where it does not fill its storage."""
    begin, *steps = _layout(b)
    if begin != 0:
        return None
    left = [axis for axis in range(rank_of(x)) if sizes_of(x)[axis] != 1]
    order: list[int] = []
    dense: Size = 1
    while left:
        axis = next((axis for axis in reversed(left) if dimensions.same(steps[axis], dense)), None)
        if axis is None:
            return None
        left.remove(axis)
        order.insert(0, axis)
        dense = dimensions.product([dense, sizes_of(x)[axis]])
    return [axis for axis in range(rank_of(x)) if sizes_of(x)[axis] == 1] + order
