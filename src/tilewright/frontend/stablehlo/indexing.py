"""Converters of operations that read and write at places that are data: gather, dynamic slices and updates of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.core.symbolic_values import symbolic_value
from tilewright.frontend.stablehlo.builder import StableBuilder
from tilewright.frontend.stablehlo.program import Operation
from tilewright.frontend.stablehlo.registry import converter
from tilewright.frontend.stablehlo.scanner import numbers
from tilewright.frontend.stablehlo.shapes import sliced
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT64
from tilewright.support.errors import UserError


def clamped(b: StableBuilder, start: GraphExpr, most: Size) -> GraphExpr:
    """Places kept between 0 and a size, as 64-bit numbers."""
    wide = b.cast(start, INT64)
    if most == 0:
        return b.multiply(wide, 0) if rank_of(wide) else b.scalar(0, INT64)
    top = b.size(most)
    high = b.scalar(top, INT64) if isinstance(top, int) else b.operand(top, INT64)
    return b.call("minimum", b.call("maximum", wide, b.scalar(0, INT64)), high)


def known_start(start: GraphExpr, most: Size) -> Size | None:
    """A place that is known while importing, kept between 0 and a size."""
    found = symbolic_value(start)
    if found is None:
        return None
    place: Size = found.reshape(-1)[0]
    if isinstance(place, int) and isinstance(most, int):
        return min(max(place, 0), most)
    if dimensions.at_least(place, 0) and dimensions.at_least(most, place):
        return place
    return None


@converter("dynamic_slice", of_complex="partwise")
def dynamic_slice(b: StableBuilder, operation: Operation, x: GraphExpr, *starts: GraphExpr) -> GraphExpr:
    """So many elements from places on, which are moved so that all lie inside."""
    return window_of(b, x, starts, b.list_of("slice_sizes"))


def window_of(b: StableBuilder, x: GraphExpr, starts: Sequence[GraphExpr], sizes: Sequence[int]) -> GraphExpr:
    """The window of a size from places on."""
    if not len(starts) == len(sizes) == rank_of(x):
        raise UserError(f"{len(starts)} places in a tensor of {rank_of(x)} dimensions")
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        length = sizes_of(x)[axis]
        most = dimensions.subtract(length, size)
        if most == 0:
            continue
        place = known_start(start, most)
        if place is not None:
            x = b.slice_axis(x, axis, place, dimensions.add(place, size))
        else:
            first = b.reshape(clamped(b, start, most), (1,))
            places = first if size == 1 else b.add(first, b.arange(size))
            x = b.call("take", x, places, axis=axis, mode="inside")
    return x


@converter("dynamic_update_slice", of_complex="partwise")
def dynamic_update_slice(
    b: StableBuilder, operation: Operation, x: GraphExpr, update: GraphExpr, *starts: GraphExpr
) -> GraphExpr:
    """The tensor with a window replaced, from places on, which are moved so that all of it lies inside."""
    if not len(starts) == rank_of(x) == rank_of(update):
        raise UserError(f"{len(starts)} places in a tensor of {rank_of(x)} dimensions")
    if 0 in sizes_of(update):
        return x
    places: list[Size | None] = []
    for length, size, start in zip(sizes_of(x), sizes_of(update), starts, strict=True):
        most = dimensions.subtract(length, size)
        places.append(0 if most == 0 else known_start(start, most))
    if all(place is not None for place in places):
        return _spliced(b, x, update, [place for place in places if place is not None])
    return _masked(b, x, update, starts, places)


def _spliced(b: StableBuilder, x: GraphExpr, update: GraphExpr, places: Sequence[Size]) -> GraphExpr:
    """At known places: what lies around the window is put beside it, axis by axis."""
    shape, extent = sizes_of(x), list(sizes_of(update))
    for axis in reversed(range(rank_of(x))):
        end = dimensions.add(places[axis], extent[axis])
        if places[axis] == 0 and dimensions.same(end, shape[axis]):
            continue
        starts = [*places[:axis], *([0] * (rank_of(x) - axis))]
        stops: list[Size] = [dimensions.add(p, n) for p, n in zip(places[:axis], extent[:axis], strict=True)]
        stops += shape[axis:]
        around = sliced(b, x, starts, stops, [1] * rank_of(x))
        before = [] if places[axis] == 0 else [b.slice_axis(around, axis, 0, places[axis])]
        behind = [] if dimensions.same(end, shape[axis]) else [b.slice_axis(around, axis, end, shape[axis])]
        update = b.concatenate([*before, update, *behind], axis)
        extent[axis] = shape[axis]
    return update


def _masked(
    b: StableBuilder, x: GraphExpr, update: GraphExpr, starts: Sequence[GraphExpr], places: Sequence[Size | None]
) -> GraphExpr:
    """At places that are data: each element is one of the window, or stays."""
    shape, extent = sizes_of(x), sizes_of(update)
    inside: GraphExpr | None = None
    for axis, start in enumerate(starts):
        most = dimensions.subtract(shape[axis], extent[axis])
        if most == 0:
            continue
        place = places[axis]
        first = clamped(b, start, most) if place is None else b.operand(b.size(place), INT64)
        position = b.subtract(b.arange(shape[axis]), b.reshape(first, (1,)))
        if extent[axis] == 1:
            here = b.compare("equal", position, 0)
        else:
            last = b.operand(b.size(dimensions.subtract(extent[axis], 1)), INT64)
            here = b.call(
                "logical_and", b.compare("greater_equal", position, 0), b.compare("less_equal", position, last)
            )
            index = b.call("minimum", b.call("maximum", position, b.scalar(0, INT64)), last)
            update = b.call("take", update, index, axis=axis, mode="inside")
        line: list[Size] = [1] * len(shape)
        line[axis] = shape[axis]
        here = b.reshape(here, line)
        inside = here if inside is None else b.call("logical_and", inside, here)
    return update if inside is None else b.call("where", inside, update, x)


# Gather


@dataclass(frozen=True, slots=True)
class Places:
    """Where windows lie in a tensor: dimensions that indices choose in front, those taken whole behind."""

    chosen: list[int]
    """Dimensions of the tensor that windows lie along."""
    whole: list[int]
    """Dimensions that every window has all of."""
    rows: GraphExpr
    """The flat place of each element of a window among the chosen dimensions: (indices..., window...)."""
    batch: tuple[Size, ...]
    """The shape of the indices."""
    inside: GraphExpr | None
    """Whether each window lies wholly inside; None where they were moved there."""


def find_places(
    b: StableBuilder,
    shape: Sequence[Size],
    indices: GraphExpr,
    window: Sequence[Size],
    index_map: Sequence[int],
    batching: Sequence[tuple[int, int]],
    vector_axis: int,
    *,
    clamp: bool,
) -> Places:
    """The places of windows.

    `index_map` says which dimension each number of an index is along; `batching` are pairs of a dimension and the
    dimension of the indices (without that of the index vectors) that it goes along with.
    """
    indices = b.cast(indices, INT64)
    if vector_axis == rank_of(indices):
        indices = b.expand_dims(indices, (vector_axis,))
    order = [axis for axis in range(rank_of(indices)) if axis != vector_axis]
    indices = b.transpose(indices, [*order, vector_axis])
    batch = sizes_of(indices)[:-1]
    paired = dict(batching)
    whole = [
        axis
        for axis, size in enumerate(shape)
        if axis not in index_map and axis not in paired and dimensions.same(size, window[axis])
    ]
    chosen = [axis for axis in range(len(shape)) if axis not in whole]
    rank = len(batch) + len(chosen)
    total: GraphExpr | None = None
    inside: GraphExpr | None = None
    stride: Size = 1
    for number, axis in reversed(list(enumerate(chosen))):
        start: GraphExpr | None = None
        if axis in index_map:
            start = b.select(indices, len(batch), list(index_map).index(axis))
            most = dimensions.subtract(shape[axis], window[axis])
            if clamp:
                start = clamped(b, start, most)
            else:
                fits = b.call("logical_and", b.compare("greater_equal", start, 0), _at_most(b, start, most))
                inside = fits if inside is None else b.call("logical_and", inside, fits)
            start = b.reshape(start, (*batch, *(1,) * len(chosen)))
        elif axis in paired:
            start = b.reshape(b.arange(batch[paired[axis]]), _line(rank, paired[axis], batch[paired[axis]]))
        if window[axis] != 1:
            offset = b.reshape(b.arange(window[axis]), _line(rank, len(batch) + number, window[axis]))
            start = offset if start is None else b.add(start, offset)
        if start is not None:
            part = start if stride == 1 else b.multiply(start, b.operand(b.size(stride), INT64))
            total = part if total is None else b.add(total, part)
        stride = dimensions.multiply(stride, shape[axis])
    extent = (*batch, *(window[axis] for axis in chosen))
    rows = b.filled(0, extent, INT64) if total is None else b.broadcast_to(total, extent)
    return Places(chosen, whole, rows, tuple(batch), inside)


def _at_most(b: StableBuilder, value: GraphExpr, most: Size) -> GraphExpr:
    return b.call("less_equal", value, b.operand(b.size(most), INT64))


def _line(rank: int, axis: int, size: Size) -> list[Size]:
    line: list[Size] = [1] * rank
    line[axis] = size
    return line


def as_rows(b: StableBuilder, x: GraphExpr, places: Places) -> GraphExpr:
    """A tensor with its chosen dimensions as one in front."""
    shape = sizes_of(x)
    turned = b.transpose(x, [*places.chosen, *places.whole])
    return b.reshape(
        turned,
        (dimensions.product([shape[axis] for axis in places.chosen]), *(shape[axis] for axis in places.whole)),
    )


def pairs_of(given: dict[str, Any], tensor: str, indices: str, vector_axis: int) -> list[tuple[int, int]]:
    """Batching dimensions: of the tensor, and of the indices without their vectors."""
    first, second = (numbers(given[name]) if name in given else [] for name in (tensor, indices))
    return [(p, q - (q > vector_axis)) for p, q in zip(first, second, strict=True)]


@converter("gather", of_complex="partwise")
def gather(b: StableBuilder, operation: Operation, x: GraphExpr, indices: GraphExpr) -> GraphExpr:
    """Windows of a tensor at places that are data, moved so that they lie inside."""
    return _gathered(b, operation, x, indices, b.list_of("slice_sizes"))


@converter("dynamic_gather", of_complex="partwise")
def dynamic_gather(
    b: StableBuilder, operation: Operation, x: GraphExpr, indices: GraphExpr, sizes: GraphExpr
) -> GraphExpr:
    """The same, with windows of a size that is computed."""
    return _gathered(b, operation, x, indices, b.sizes_in(sizes))


def _gathered(
    b: StableBuilder, operation: Operation, x: GraphExpr, indices: GraphExpr, window: Sequence[Size]
) -> GraphExpr:
    given = operation.attributes.get("dimension_numbers")
    if not isinstance(given, dict):
        raise UserError("gather without dimension numbers")
    vector_axis = int(given.get("index_vector_dim", 0))
    offsets, collapsed = (numbers(given.get(name, [])) for name in ("offset_dims", "collapsed_slice_dims"))
    batching = pairs_of(given, "operand_batching_dims", "start_indices_batching_dims", vector_axis)
    dropped = {*collapsed, *(axis for axis, _ in batching)}
    kept = [axis for axis in range(rank_of(x)) if axis not in dropped]
    rank = len(offsets) + rank_of(indices) - (0 if vector_axis == rank_of(indices) else 1)
    if 0 in sizes_of(x) or 0 in window or 0 in sizes_of(indices)[:vector_axis]:
        shape = b.target_shape([0] * rank)
        return b.empty(shape, dtype_of(x)) if 0 in shape else b.filled(0, shape, dtype_of(x))
    index_map = numbers(given.get("start_index_map", []))
    places = find_places(b, sizes_of(x), indices, window, index_map, batching, vector_axis, clamp=True)
    if places.chosen:
        taken = b.call("take", as_rows(b, x, places), places.rows, axis=0, mode="inside")
    else:
        taken = b.broadcast_to(b.transpose(x, places.whole), (*places.batch, *sizes_of(x)))
    # Now (indices..., window along chosen..., whole...): dimensions that are dropped have one element.
    count = len(places.batch)
    source = {axis: count + at for at, axis in enumerate([*places.chosen, *places.whole])}
    batch_axes = iter(range(count))
    order = []
    window_axes = iter(kept)
    for axis in range(rank):
        order.append(source[next(window_axes)] if axis in offsets else next(batch_axes))
    gone = [source[axis] for axis in dropped]
    moved = b.transpose(taken, [*order, *gone])
    return b.reshape(moved, sizes_of(moved)[: len(order)])
