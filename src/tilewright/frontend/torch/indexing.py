"""Converters of operators that read at places that are data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.frontend.core.builder import dtype_of, evaluate, rank_of, sizes_of
from tilewright.frontend.core.checks import checked_index
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.registry import converter
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size, Sizes
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.ir.dtype import INT64
from tilewright.support.errors import UnsupportedError, UserError


def wrapped(b: TorchBuilder, index: GraphExpr, size: Size, axis: int | None, *, negative: bool = True) -> GraphExpr:
    """Indices into an axis as int64, negative ones counted from the end if they are allowed; None: not checked."""
    wide = b.cast(index, INT64)
    if axis is not None:
        wide = checked_index(b, wide, [size], [axis], negative=negative)
    if not negative:
        return wide
    return b.where(b.compare("less", wide, 0), b.add(wide, b.size(size)), wide)


def element_places(b: TorchBuilder, shape: Sequence[Size], index: GraphExpr, axis: int) -> GraphExpr:
    """Flat positions of elements: along one axis by an index, along the others where the index itself is."""
    steps = [b.size(dimensions.product(shape[at + 1 :])) for at in range(len(shape))]
    place = b.multiply(wrapped(b, index, shape[axis], axis, negative=False), steps[axis])
    for other, size in enumerate(sizes_of(index)):
        if other != axis and size != 1:
            place = b.add(place, b.multiply(b.positions(sizes_of(index), other), steps[other]))
    return place


@converter("gather")
def gather(b: TorchBuilder, x: GraphExpr, dim: int, index: GraphExpr, sparse_grad: bool = False) -> GraphExpr:
    """One element an index."""
    if not rank_of(x) and not rank_of(index):
        return x
    if 0 in sizes_of(index):
        return b.empty(sizes_of(index), dtype_of(x))
    data, places = b.at_least_1d(x), b.at_least_1d(index)
    flat = element_places(b, sizes_of(data), places, b.axis(dim, rank_of(data)))
    return b.reshape(b.call("take", b.flatten(data), flat, axis=0, mode="inside"), b.shape)


@converter("index_select")
def index_select(b: TorchBuilder, x: GraphExpr, dim: int, index: GraphExpr) -> GraphExpr:
    """Slices along an axis."""
    if not rank_of(x):
        return x
    if 0 in b.shape:
        return b.empty(b.shape, dtype_of(x))
    axis = b.axis(dim, rank_of(x))
    inside = checked_index(b, b.at_least_1d(index), [sizes_of(x)[axis]], [axis], negative=False)
    return b.call("take", x, inside, axis=axis)


@converter("take")
def take(b: TorchBuilder, x: GraphExpr, index: GraphExpr) -> GraphExpr:
    """Elements by their flat positions."""
    if 0 in sizes_of(index):
        return b.empty(sizes_of(index), dtype_of(x))
    inside = checked_index(b, index, [dimensions.product(sizes_of(x))], [0])
    return b.call("take", b.flatten(x), inside, axis=0)


@converter("embedding")
def embedding(
    b: TorchBuilder,
    weight: GraphExpr,
    indices: GraphExpr,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> GraphExpr:
    """Rows of a table."""
    if 0 in b.shape:
        return b.empty(b.shape, b.dtype)
    inside = checked_index(b, indices, [sizes_of(weight)[0]], [0], negative=False)
    return b.call("take", weight, inside, axis=0)


class Index:
    """What `x[i, :, j]` means: axes that are indexed by tensors, which broadcast, and where the result's axes go."""

    def __init__(
        self, b: TorchBuilder, x: GraphExpr, indices: Sequence[GraphExpr | None], *, is_checked: bool = True
    ) -> None:
        listed, places = _without_masks(b, x, indices)
        self.shape = sizes_of(x)
        self.axes = [axis for axis, index in enumerate(listed) if index is not None]
        self.rest = [axis for axis in range(len(self.shape)) if axis not in self.axes]
        chosen = [index for index in listed if index is not None]
        self.chosen_shape: Sizes = _broadcast([sizes_of(index) for index in chosen])
        sizes = [self.shape[axis] for axis in self.axes]
        self.rows = dimensions.product(sizes)
        self.inner = tuple(self.shape[axis] for axis in self.rest)
        place: GraphExpr | None = None
        for position, index in enumerate(chosen):
            step = dimensions.product(sizes[position + 1 :])
            # Where a mask holds is inside.
            trusted = id(index) in places or not is_checked
            part = wrapped(b, index, sizes[position], None if trusted else self.axes[position])
            part = part if step == 1 else b.multiply(part, b.size(step))
            place = part if place is None else b.add(place, part)
        if place is None:
            raise UserError("an index without tensors")
        self.places = b.broadcast_to(place, self.chosen_shape)
        """Rows of `as_rows` that are indexed."""
        together = self.axes == list(range(self.axes[0], self.axes[0] + len(self.axes)))
        self.front = self.axes[0] if together else 0
        """Where the dimensions of the index stand in the result."""

    def as_rows(self, b: TorchBuilder, x: GraphExpr) -> GraphExpr:
        """The data with the indexed axes as one leading axis."""
        return b.reshape(b.transpose(x, [*self.axes, *self.rest]), (self.rows, *self.inner))

    def from_rows(self, b: TorchBuilder, rows: GraphExpr) -> GraphExpr:
        """The inverse of `as_rows`."""
        order = [*self.axes, *self.rest]
        back = [order.index(axis) for axis in range(len(order))]
        return b.transpose(b.reshape(rows, [self.shape[axis] for axis in order]), back)

    def result_order(self) -> list[int]:
        """Axes of (index..., rest...) in the order of the result."""
        count = len(self.chosen_shape)
        rest = [count + at for at in range(len(self.rest))]
        return [*rest[: self.front], *range(count), *rest[self.front :]]


def _broadcast(shapes: Sequence[Sizes]) -> Sizes:
    """The shape of several indices together."""
    result: list[Size] = [1] * max(map(len, shapes))
    for shape in shapes:
        for at in range(1, len(shape) + 1):
            found = dimensions.broadcast(result[-at], shape[-at])
            if found is None:
                raise UnsupportedError(f"indices of shapes {', '.join(map(sizes_text, shapes))} together")
            result[-at] = found
    return tuple(result)


def _without_masks(
    b: TorchBuilder, x: GraphExpr, indices: Sequence[GraphExpr | None]
) -> tuple[list[GraphExpr | None], set[int]]:
    """Masks become the places where they hold; which of the indices (by identity) are such places."""
    listed: list[GraphExpr | None] = []
    masks: set[int] = set()
    for index in indices:
        if index is None or not (dtype_of(index).is_bool or dtype_of(index).name == "uint8"):
            listed.append(index)
            continue
        known = evaluate(index)
        if known is None:
            # Torch counts a mask once, and gives what it selects later the same size.
            _, symbol, places = b.counted.get(id(index), (index, None, None))
            if places is None or symbol is None or not b.introduces(symbol):
                places = nonzero_places(b, index, _counted(b))
            parts: list[GraphExpr] = [b.select(places, 0, axis) for axis in range(rank_of(index))]
        else:
            parts = [b.constant(part.astype(np.int64), INT64) for part in np.nonzero(known)]
        listed.extend(parts)
        masks.update(map(id, parts))
    return listed, masks


def nonzero_places(b: TorchBuilder, x: GraphExpr, count: Any) -> GraphExpr:
    """The places of elements other than zero, one column a place; `count` is the size that torch gives their number."""
    symbol = b.sizes.fresh(count, "count")
    places = b.call("host.nonzero", x, dims=(symbol,), dtype=dtype_of(x))
    b.counted[id(x)] = (x, symbol, places)
    return places


def _counted(b: TorchBuilder) -> Any:
    """The first size of the result that only a run decides."""
    sizes = [size for size in b.meta.shape if not isinstance(size, int)]
    fresh = [size for size in sizes if str(size.node.expr) not in b.sizes.symbols]
    if not fresh:
        raise UnsupportedError("writing where a mask says that is computed", hint="use torch.where")
    return fresh[0]


@converter("index")
def index(b: TorchBuilder, x: GraphExpr, indices: Sequence[GraphExpr | None]) -> GraphExpr:
    """x[i, :, j] with tensors as indices; masks give results as long as the data decides."""
    return _indexed(b, x, indices, is_checked=True)


@converter("_unsafe_index")
def unsafe_index(b: TorchBuilder, x: GraphExpr, indices: Sequence[GraphExpr | None]) -> GraphExpr:
    """The same where torch knows that the indices are inside."""
    return _indexed(b, x, indices, is_checked=False)


def _indexed(b: TorchBuilder, x: GraphExpr, indices: Sequence[GraphExpr | None], *, is_checked: bool) -> GraphExpr:
    if any(isinstance(size, int) and size == 0 for size in b.meta.shape):
        return b.empty(b.shape, dtype_of(x))
    how = Index(b, x, indices, is_checked=is_checked)
    taken = b.call("take", how.as_rows(b, x), how.places, axis=0, mode="inside" if is_checked else "wrap_negative")
    return b.transpose(taken, how.result_order())


@converter("_unsafe_masked_index")
def masked_index(
    b: TorchBuilder, x: GraphExpr, mask: GraphExpr, indices: Sequence[GraphExpr | None], fill: float
) -> GraphExpr:
    """x[indices] where a mask holds, else a number."""
    found = (
        unsafe_index(b, x, indices) if 0 not in sizes_of(x) else b.broadcast_to(b.scalar(fill, dtype_of(x)), b.shape)
    )
    return b.where(mask, found, b.scalar(fill, dtype_of(x)))


@converter("searchsorted", "bucketize")
def searchsorted(
    b: TorchBuilder,
    x: GraphExpr | float,
    sorted_sequence: GraphExpr | None = None,
    boundaries: GraphExpr | None = None,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: GraphExpr | None = None,
) -> GraphExpr:
    """How many boundaries lie before each value."""
    table = sorted_sequence if boundaries is None else boundaries
    assert table is not None
    if sorter is not None and 0 not in sizes_of(sorter):
        table = gather_last(b, table, sorter)
    values, limits = b.operands(x, table)
    if 0 in b.shape:
        return b.empty(b.shape, b.dtype)
    rank = rank_of(values)
    if rank_of(limits) > 1:
        limits = b.expand_dims(limits, (rank_of(limits) - 1,))
    if sizes_of(limits)[-1] == 0:
        return b.filled(0, b.shape, b.dtype)
    values = b.expand_dims(values, (rank,))
    inclusive = right or side == "right"
    # NaN lies after all numbers.
    after = b.call("less" if not inclusive else "less_equal", limits, values)
    if dtype_of(values).is_float:
        odd = b.call("isnan", values)
        if not inclusive:
            odd = b.call("logical_and", odd, b.call("logical_not", b.call("isnan", limits)))
        after = b.call("logical_or", after, odd)
    return b.reduce("sum", b.cast(after, b.dtype), (rank,))


def gather_last(b: TorchBuilder, x: GraphExpr, index: GraphExpr) -> GraphExpr:
    """Elements along the last axis by an index of the same shape."""
    flat = element_places(b, sizes_of(x), index, rank_of(x) - 1)
    return b.call("take", b.flatten(x), flat, axis=0)
