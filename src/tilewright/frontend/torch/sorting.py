"""Converters of operators that order elements: sort, topk, order statistics."""

from __future__ import annotations

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.reduce import running
from tilewright.frontend.torch.registry import Converter, converter
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT64
from tilewright.support.errors import UnsupportedError

_LONGEST_AXIS = 1 << 16
"""The longest axis that is sorted: the work grows with its square."""


def ordered(b: TorchBuilder, x: GraphExpr, axis: int, k: Size, largest: bool) -> tuple[GraphExpr, GraphExpr]:
    """The first k elements in order, and their places; equal elements keep their order."""
    if not rank_of(x):
        place = b.scalar(0, INT64)
        return (x, place) if k else (b.empty((0,), dtype_of(x)), b.empty((0,), INT64))
    sizes = sizes_of(x)
    size, wanted = sizes[axis], (*sizes[:axis], k, *sizes[axis + 1 :])
    if isinstance(size, int) and size > _LONGEST_AXIS:
        raise UnsupportedError(f"ordering an axis of {size} elements, at most {_LONGEST_AXIS} are supported")
    if 0 in wanted:
        return b.empty(wanted, dtype_of(x)), b.empty(wanted, INT64)
    value = b.cast(x, "int8") if dtype_of(x).is_bool else x
    both = b.call("topk", value, axis=axis, k=k, largest=largest)
    return b.cast(b.item(both, 0), dtype_of(x)), b.item(both, 1)


@converter("sort")
def sort(
    b: TorchBuilder, x: GraphExpr, dim: int = -1, descending: bool = False, stable: bool | None = None
) -> tuple[GraphExpr, GraphExpr]:
    """All elements along an axis in order."""
    axis = b.axis(dim, rank_of(x))
    return ordered(b, x, axis, sizes_of(x)[axis] if rank_of(x) else 1, descending)


@converter("argsort")
def argsort(
    b: TorchBuilder, x: GraphExpr, dim: int = -1, descending: bool = False, stable: bool | None = None
) -> GraphExpr:
    """The places of all elements along an axis in order."""
    return sort(b, x, dim, descending)[1]


@converter("topk")
def topk(
    b: TorchBuilder, x: GraphExpr, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[GraphExpr, GraphExpr]:
    """The k greatest or least."""
    return ordered(b, x, b.axis(dim, rank_of(x)), k, largest)


@converter("kthvalue")
def kthvalue(
    b: TorchBuilder, x: GraphExpr, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[GraphExpr, GraphExpr]:
    """The k-th least."""
    axis = b.axis(dim, rank_of(x))
    values, places = ordered(b, x, axis, k, largest=False)
    if not rank_of(x):
        return values, places
    return tuple(_last(b, item, axis, k - 1, keepdim) for item in (values, places))  # type: ignore[return-value]


def _last(b: TorchBuilder, value: GraphExpr, axis: int, place: int, keepdim: bool) -> GraphExpr:
    return b.slice_axis(value, axis, place, place + 1) if keepdim else b.select(value, axis, place)


def _median(skip_nan: bool) -> Converter:
    def convert(
        b: TorchBuilder, x: GraphExpr, dim: int | None = None, keepdim: bool = False
    ) -> GraphExpr | tuple[GraphExpr, GraphExpr]:
        if dim is None:
            return _middle(b, b.flatten(x), 0, False, skip_nan)[0]
        return _middle(b, x, b.axis(dim, rank_of(x)), keepdim, skip_nan)

    convert.__doc__ = "The lower of the middle elements, and its place."
    return convert


converter("median")(_median(skip_nan=False))
converter("nanmedian")(_median(skip_nan=True))


def _middle(b: TorchBuilder, x: GraphExpr, axis: int, keepdim: bool, skip_nan: bool) -> tuple[GraphExpr, GraphExpr]:
    if not rank_of(x):
        return x, b.scalar(0, INT64)
    size = size_at(x, axis)
    if not size:
        return b.filled(float("nan"), (), dtype_of(x)), b.scalar(0, INT64)
    values, places = ordered(b, x, axis, size, largest=False)
    if not dtype_of(x).is_float:
        return _last(b, values, axis, (size - 1) // 2, keepdim), _last(b, places, axis, (size - 1) // 2, keepdim)
    odd = b.reduce("sum", b.cast(b.call("isnan", x), INT64), (axis,), True)
    # NaN comes last in order: with one, the median is the first of them, or the middle of the numbers before.
    numbers = b.subtract(size, odd)
    if skip_nan:
        middle = b.call("divide", b.call("maximum", b.subtract(numbers, 1), b.scalar(0, INT64)), b.scalar(2, INT64))
    else:
        middle = b.where(b.compare("greater", odd, 0), numbers, (size - 1) // 2)
    chosen = b.call("equal", b.positions(sizes_of(x), axis), middle)
    found = b.reduce("sum", b.where(chosen, places, b.scalar(0, INT64)), (axis,), keepdim)
    # Read by selection, so that NaN elsewhere does not spoil the sum.
    value = b.reduce("sum", b.where(chosen, values, b.scalar(0, dtype_of(x))), (axis,), keepdim)
    return value, found


@converter("mode")
def mode(b: TorchBuilder, x: GraphExpr, dim: int = -1, keepdim: bool = False) -> tuple[GraphExpr, GraphExpr]:
    """The least of the most frequent elements, and a place where it is: the last one."""
    if not rank_of(x):
        return x, b.scalar(0, INT64)
    axis = b.axis(dim, rank_of(x))
    size = size_at(x, axis)
    values, places = ordered(b, x, axis, size, largest=False)
    fresh = b.broadcast_to(b.constant([True] * size, "bool"), (size,)) if size == 1 else None
    ones = b.filled(1, sizes_of(x), INT64)
    if fresh is None:
        before, after = b.slice_axis(values, axis, 0, size - 1), b.slice_axis(values, axis, 1, size)
        equal = b.cast(b.call("equal", before, after), INT64)
        head = b.filled(0, [1 if at == axis else dim_size for at, dim_size in enumerate(sizes_of(x))], INT64)
        same = b.concatenate([head, equal], axis)

        def combine(earlier: list[GraphExpr], later: list[GraphExpr]) -> list[GraphExpr]:
            # (length of the run that ends here, whether the run reaches back beyond the part)
            length = b.where(b.compare("greater", later[1], 0), b.add(earlier[0], later[0]), later[0])
            return [length, b.multiply(earlier[1], later[1])]

        ones = running(b, [ones, same], axis, combine)[0]
    best = b.call("argmax", ones, axis=axis, keepdims=True)
    chosen = b.call("equal", b.positions(sizes_of(x), axis), best)
    zero = b.scalar(0, dtype_of(x))
    found = b.reduce("sum", b.where(chosen, values, zero), (axis,), keepdim)
    place = b.reduce("sum", b.where(chosen, places, b.scalar(0, INT64)), (axis,), keepdim)
    return found, place
