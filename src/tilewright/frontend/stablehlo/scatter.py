"""Converters of writes at places that are data: scatter with any region, and select_and_scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.core.complex_values import Complex
from tilewright.frontend.stablehlo.builder import StableBuilder, Tensor, each_part
from tilewright.frontend.stablehlo.indexing import Places, as_rows, find_places, pairs_of
from tilewright.frontend.stablehlo.program import Block, Operation
from tilewright.frontend.stablehlo.reduce import monoid_of
from tilewright.frontend.stablehlo.registry import converter
from tilewright.frontend.stablehlo.scanner import numbers
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import BOOL, INT64
from tilewright.support.errors import UnsupportedError, UserError

_MOST_IN_ORDER = 64
"""The most updates that are combined one after the other by a region of its own."""
_REDUCTIONS = {"add": "add", "multiply": "mul", "maximum": "max", "minimum": "min"}
_OF_TRUTH = {"add": "max", "multiply": "min", "maximum": "max", "minimum": "min", "and": "min", "or": "max"}


@converter("scatter", of_complex="taken")
def scatter(b: StableBuilder, operation: Operation, *operands: Any) -> list[Any]:
    """Tensors with windows of updates combined into them; a window that is not wholly inside is left out."""
    count = (len(operands) - 1) // 2
    inputs, indices, updates = operands[:count], operands[count], operands[count + 1 :]
    given = operation.attributes.get("scatter_dimension_numbers")
    if not isinstance(given, dict):
        raise UserError("scatter without dimension numbers")
    if any(0 in sizes_of(each_part(value)[0]) for value in (*inputs, *updates)):
        return list(inputs)
    layout = _Layout(b, given, indices, each_part(inputs[0])[0], each_part(updates[0])[0])
    rows = [[as_rows(b, part, layout.places) for part in each_part(value)] for value in inputs]
    fresh = [[layout.rows_of(part) for part in each_part(value)] for value in updates]
    region = operation.regions[0]
    if operation.attributes.get("unique_indices") is True:
        unique = True
    else:
        unique = dimensions.same(dimensions.product(sizes_of(layout.flat)), 1)
    done = _combined(b, region, rows, fresh, layout.flat, unique)
    results = [[layout.back(part, value) for part in parts] for parts, value in zip(done, inputs, strict=True)]
    return [Complex(parts[0], parts[1]) if len(parts) == 2 else parts[0] for parts in results]


class _Layout:
    """Where updates go: rows of the tensor, whose chosen dimensions are one in front."""

    def __init__(
        self, b: StableBuilder, given: dict[str, Any], indices: GraphExpr, x: GraphExpr, update: GraphExpr
    ) -> None:
        self.b = b
        vector_axis = int(given.get("index_vector_dim", 0))
        self.window_axes = numbers(given.get("update_window_dims", []))
        inserted = numbers(given.get("inserted_window_dims", []))
        batching = pairs_of(given, "input_batching_dims", "scatter_indices_batching_dims", vector_axis)
        dropped = {*inserted, *(axis for axis, _ in batching)}
        self.kept = [axis for axis in range(rank_of(x)) if axis not in dropped]
        if len(self.kept) != len(self.window_axes):
            raise UserError(f"windows of {len(self.window_axes)} dimensions in a tensor of {rank_of(x)}")
        window: list[Size] = [1] * rank_of(x)
        for axis, update_axis in zip(self.kept, self.window_axes, strict=True):
            window[axis] = sizes_of(update)[update_axis]
        index_map = numbers(given.get("scatter_dims_to_operand_dims", []))
        places = find_places(b, sizes_of(x), indices, window, index_map, batching, vector_axis, clamp=False)
        if not places.chosen:
            # Every update is a whole tensor: it is one row.
            places = Places([], places.whole, b.filled(0, places.batch, INT64), places.batch, places.inside)
        self.places, self.dropped = places, dropped
        flat = places.rows
        if places.inside is not None:
            mask = b.reshape(places.inside, (*places.batch, *(1,) * len(places.chosen)))
            flat = b.where(mask, flat, -1)
        self.flat = b.reshape(flat, (dimensions.product(sizes_of(flat)),))

    def rows_of(self, update: GraphExpr) -> GraphExpr:
        """Updates as rows, one for each place."""
        b, places = self.b, self.places
        batch_axes = [axis for axis in range(rank_of(update)) if axis not in self.window_axes]
        source = dict(zip(self.kept, self.window_axes, strict=True))
        chosen = [source[axis] for axis in places.chosen if axis in source]
        whole = [source[axis] for axis in places.whole]
        turned = b.transpose(update, [*batch_axes, *chosen, *whole])
        tail = sizes_of(turned)[rank_of(turned) - len(whole) :]
        return b.reshape(turned, (dimensions.product(sizes_of(self.flat)), *tail))

    def back(self, rows: GraphExpr, like: Tensor) -> GraphExpr:
        """Rows as the tensor that they are of."""
        b, places = self.b, self.places
        shape = sizes_of(each_part(like)[0])
        order = [*places.chosen, *places.whole]
        apart = b.reshape(rows, [shape[axis] for axis in order])
        return b.transpose(apart, [order.index(axis) for axis in range(len(order))])


def _combined(
    b: StableBuilder,
    region: Block,
    rows: list[list[GraphExpr]],
    fresh: list[list[GraphExpr]],
    flat: GraphExpr,
    unique: bool,
) -> list[list[GraphExpr]]:
    """Rows with updates combined into them, as a region says."""
    if region.results == region.arguments[len(rows) :]:
        return [
            [_written(b, x, flat, y, "none") for x, y in zip(old, new, strict=True)]
            for old, new in zip(rows, fresh, strict=True)
        ]
    name = monoid_of(region) if len(rows) == 1 else None
    if name is not None and (len(rows[0]) == 1 or name == "add"):
        how = (_OF_TRUTH if dtype_of(rows[0][0]).is_bool else _REDUCTIONS).get(name)
        if how is not None:
            return [[_written(b, x, flat, y, how) for x, y in zip(rows[0], fresh[0], strict=True)]]
    if unique:
        return _by_region(b, region, rows, fresh, flat)
    count = sizes_of(flat)[0]
    if not isinstance(count, int) or count > _MOST_IN_ORDER:
        raise UnsupportedError(
            f"{count} updates combined one after the other by a region of its own",
            hint="say unique_indices=True if no two of them meet, or combine by add, multiply, min or max",
        )
    for at in range(count):
        part = [[b.slice_axis(x, 0, at, at + 1) for x in parts] for parts in fresh]
        rows = _by_region(b, region, rows, part, b.slice_axis(flat, 0, at, at + 1))
    return rows


def _by_region(
    b: StableBuilder,
    region: Block,
    rows: list[list[GraphExpr]],
    fresh: list[list[GraphExpr]],
    flat: GraphExpr,
) -> list[list[GraphExpr]]:
    """Each row that an update goes to is read, combined with it and written back."""
    inside = b.call("maximum", flat, b.scalar(0, INT64))

    def whole(parts: list[GraphExpr]) -> Tensor:
        return Complex(parts[0], parts[1]) if len(parts) == 2 else parts[0]

    old = [whole([b.call("take", x, inside, axis=0) for x in parts]) for parts in rows]
    made = b.run_wide(region, [*old, *(whole(parts) for parts in fresh)])
    results: list[list[GraphExpr]] = []
    for parts, value, new in zip(rows, made, fresh, strict=True):
        shaped = [b.broadcast_to(part, sizes_of(other)) for part, other in zip(each_part(value), new, strict=True)]
        results.append([_written(b, x, flat, y, "none") for x, y in zip(parts, shaped, strict=True)])
    return results


def _written(b: StableBuilder, x: GraphExpr, flat: GraphExpr, update: GraphExpr, how: str) -> GraphExpr:
    if dtype_of(x).is_bool:
        done = b.call("scatter", b.cast(x, "int8"), flat, b.cast(update, "int8"), reduction=how)
        return b.cast(done, BOOL)
    return b.call("scatter", x, flat, update, reduction=how)


# select_and_scatter


@converter("select_and_scatter")
def select_and_scatter(
    b: StableBuilder, operation: Operation, x: GraphExpr, source: GraphExpr, start: GraphExpr
) -> GraphExpr:
    """Each number of the source goes to the element of its window that a region selects, combined by another."""
    shape = sizes_of(x)
    rank = len(shape)
    window = b.list_of("window_dimensions", [1] * rank)
    strides = b.list_of("window_strides", [1] * rank)
    pads = b.list_of("padding", [0] * 2 * rank)
    select, combine = operation.regions
    total = dimensions.product(shape)
    places = _selected(b, select, x, window, strides, pads, sizes_of(source))
    count = dimensions.product(sizes_of(source))
    rows = b.broadcast_to(b.reshape(start, (1,)), (total,))
    name = monoid_of(combine)
    how = _REDUCTIONS.get(name or "")
    if how is None:
        raise UnsupportedError("select_and_scatter with a region of its own", hint="combine by add")
    done = b.call("scatter", rows, b.reshape(places, (count,)), b.reshape(source, (count,)), reduction=how)
    return b.reshape(done, shape)


def _selected(
    b: StableBuilder,
    select: Block,
    x: GraphExpr,
    window: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    result: Sequence[Size],
) -> GraphExpr:
    """The flat place of the element of each window that a region selects: the first is kept as long as it says so."""
    shape = sizes_of(x)
    flat = b.reshape(x, (dimensions.product(shape),))
    best: GraphExpr | None = None
    best_place: GraphExpr | None = None
    taps = 1
    for size in window:
        taps *= size
    for tap in range(taps):
        place: GraphExpr = b.scalar(0, INT64)
        inside: GraphExpr = b.constant([True], BOOL)
        rest, stride = tap, dimensions.product(shape)
        for axis, size in enumerate(window):
            taps_behind = 1
            for later in window[axis + 1 :]:
                taps_behind *= later
            offset, rest = divmod(rest, taps_behind)
            stride = dimensions.floor_divide(stride, shape[axis])
            line: list[Size] = [1] * len(shape)
            line[axis] = result[axis]
            position = b.add(b.multiply(b.arange(result[axis]), strides[axis]), offset - pads[2 * axis])
            fits = b.call(
                "logical_and",
                b.compare("greater_equal", position, 0),
                b.call("less", position, b.operand(b.size(shape[axis]), INT64)),
            )
            inside = b.call("logical_and", inside, b.reshape(fits, line))
            place = b.add(place, b.reshape(b.multiply(position, b.operand(b.size(stride), INT64)), line))
            del size
        place = b.where(inside, place, -1)
        value = b.call("take", flat, b.call("maximum", place, b.scalar(0, INT64)), axis=0)
        if best is None or best_place is None:
            best, best_place = value, place
            continue
        (keeps,) = b.run_wide(select, [best, value])
        keeps = b.call("logical_and", keeps, b.compare("greater_equal", best_place, 0))
        keeps = b.call("logical_or", keeps, b.compare("less", place, 0))
        best, best_place = b.where(keeps, best, value), b.where(keeps, best_place, place)
    assert best_place is not None
    return b.broadcast_to(best_place, result)
