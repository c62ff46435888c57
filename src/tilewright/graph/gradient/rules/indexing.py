"""Reading and writing at places that are data: what one reads, the other writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.graph.gradient.expressions import (
    add,
    arange,
    binary,
    cast,
    compare,
    divide,
    item,
    multiply,
    number,
    rank_of,
    reshape,
    sizes_of,
    transpose,
    where,
    with_type,
    zeros_like,
)
from tilewright.graph.gradient.registry import Cotangents, linear, reverse_rule
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import Call, GraphExpr
from tilewright.graph.ir.rewrite import make
from tilewright.graph.ops.indexing import TakeAttributes
from tilewright.graph.ops.scatter import ScatterAttributes, ScatterElementsAttributes, SegmentSumAttributes
from tilewright.graph.ops.sorting import TopKAttributes
from tilewright.ir.dtype import INT64


def _size(size: Size) -> GraphExpr:
    if isinstance(size, int):
        return number(size, INT64)
    return make("dimensions", values=(size,), shape=(), dtype=INT64)


def _wrapped(indices: GraphExpr, size: Size) -> GraphExpr:
    """Indices of which negative ones count from the end."""
    return where(compare("less", indices, 0), add(indices, _size(size)), indices)


def _clamped(indices: GraphExpr, size: Size) -> GraphExpr:
    return binary("minimum", binary("maximum", indices, 0), _size(dimensions.subtract(size, 1)))


@linear("take")
def take(call: Call, cotangent: GraphExpr) -> Cotangents:
    """Slices are added up where they came from."""
    assert isinstance(call.attributes, TakeAttributes)
    data, indices = call.args
    axis, mode = call.attributes.axis, call.attributes.mode
    size = sizes_of(data)[axis]
    places = cast(reshape(indices, (dimensions.product(sizes_of(indices)),)), INT64)
    if mode == "wrap_negative":
        places = _wrapped(places, size)
    if mode != "inside":
        places = _clamped(places, size)
    count = rank_of(indices)
    rank = rank_of(cotangent)
    front = (*range(axis, axis + count), *range(axis), *range(axis + count, rank))
    rest = [sizes_of(data)[at] for at in range(rank_of(data)) if at != axis]
    updates = reshape(transpose(cotangent, front), (dimensions.product(sizes_of(indices)), *rest))
    order = (axis, *(at for at in range(rank_of(data)) if at != axis))
    if isinstance(size, int):
        sums: GraphExpr = make("segment_sum", updates, places, count=size, inside=True)
    else:
        sums = make("scatter", zeros_like(transpose(data, order)), places, updates, reduction="add", inside=True)
    back = [order.index(at) for at in range(rank_of(data))]
    return [with_type(transpose(sums, back), data.type), None]


@linear("segment_sum")
def segment_sum(call: Call, cotangent: GraphExpr) -> Cotangents:
    """Every update gets the cotangent of the row that it was added to."""
    assert isinstance(call.attributes, SegmentSumAttributes)
    updates, segments = call.args
    if call.attributes.count == 0:
        return [zeros_like(updates), None]
    rows = _rows(cotangent, segments)
    if not call.attributes.inside:
        inside = make(
            "logical_and", compare("greater_equal", segments, 0), compare("less", segments, call.attributes.count)
        )
        rows = where(_per_row(inside, updates), rows, 0)
    return [with_type(rows, updates.type), None]


def _rows(data: GraphExpr, places: GraphExpr) -> GraphExpr:
    return make("take", data, places, axis=0, mode="clip")


def _per_row(flags: GraphExpr, updates: GraphExpr) -> GraphExpr:
    """Truth values of rows, to be broadcast over the rows."""
    return reshape(flags, (sizes_of(flags)[0], *[1] * (rank_of(updates) - 1)))


@reverse_rule("scatter")
def scatter(call: Call, cotangent: GraphExpr) -> Cotangents:
    """What an update replaced or was combined with."""
    assert isinstance(call.attributes, ScatterAttributes)
    data, places, updates = call.args
    places = cast(places, INT64)
    inside = call.attributes.inside
    size = sizes_of(data)[0]
    fits = make("logical_and", compare("greater_equal", places, 0), make("less", places, _size(size)))

    def gather(value: GraphExpr) -> GraphExpr:
        return _rows(value, places)

    def write(value: GraphExpr, rows: GraphExpr, reduction: str) -> GraphExpr:
        return make("scatter", value, places, rows, reduction=reduction, inside=inside)

    numbers = arange(sizes_of(updates)[0])
    writer = write(make("broadcast_to", number(-1, INT64), shape=(size,)), numbers, "none")
    counts = _per_row(make("logical_and", fits, make("equal", gather(writer), numbers)), updates)
    return _scattered(call.attributes.reduction, call, cotangent, gather, write, _per_row(fits, updates), counts)


def _scattered(
    reduction: str,
    call: Call,
    cotangent: GraphExpr,
    gather: Callable[[GraphExpr], GraphExpr],
    write: Callable[[GraphExpr, GraphExpr, str], GraphExpr],
    fits: GraphExpr,
    last: GraphExpr,
) -> Cotangents:
    """The cotangents of data and updates, given how updates are read and written, which fit, and which are the last."""
    data, _, updates = call.args

    def placed(value: GraphExpr) -> GraphExpr:
        return where(fits, value, 0)

    if reduction == "none":
        return [lambda: write(cotangent, zeros_like(updates), "none"), None, lambda: where(last, gather(cotangent), 0)]
    if reduction == "add":
        return [cotangent, None, lambda: placed(gather(cotangent))]
    if reduction == "mul":
        is_zero = compare("equal", updates, 0)
        zeros = write(zeros_like(data), cast(is_zero, data.tensor_type.dtype), "add")
        rest = write(data, where(is_zero, 1, updates), "mul")
        others = where(
            is_zero,
            where(compare("equal", gather(zeros), 1), gather(rest), 0),
            divide(gather(call), where(is_zero, 1, updates)),
        )
        ones = add(zeros_like(data), 1)
        return [
            lambda: multiply(cotangent, write(ones, updates, "mul")),
            None,
            lambda: placed(multiply(gather(cotangent), others)),
        ]
    dtype = data.tensor_type.dtype
    kept = cast(compare("equal", data, call), dtype)
    won = placed(cast(compare("equal", updates, gather(call)), dtype))
    share = divide(cotangent, write(kept, won, "add"))
    return [lambda: multiply(share, kept), None, lambda: multiply(gather(share), won)]


def along(data: GraphExpr, indices: GraphExpr, axis: int) -> GraphExpr:
    """Elements one by one: along an axis where indices say, along the others where they are."""
    sizes, shape = sizes_of(data), sizes_of(indices)
    place: GraphExpr = cast(indices, INT64)
    step: Size = 1
    total: GraphExpr | None = None
    for at in reversed(range(len(sizes))):
        part = place if at == axis else _ramp(shape[at], at, len(shape))
        part = part if step == 1 else multiply(part, _size(step))
        total = part if total is None else add(total, part)
        step = dimensions.multiply(step, sizes[at])
    assert total is not None
    flat = reshape(data, (dimensions.product(sizes),))
    found = make("take", flat, reshape(total, (dimensions.product(shape),)), axis=0, mode="clip")
    return reshape(found, shape)


def _ramp(count: Size, axis: int, rank: int) -> GraphExpr:
    return reshape(arange(count), [count if at == axis else 1 for at in range(rank)])


@reverse_rule("scatter_elements")
def scatter_elements(call: Call, cotangent: GraphExpr) -> Cotangents:
    """As of scatter, element by element."""
    assert isinstance(call.attributes, ScatterElementsAttributes)
    data, indices, updates = call.args
    axis, inside = call.attributes.axis, call.attributes.inside
    size = sizes_of(data)[axis]
    wrapped = _wrapped(cast(indices, INT64), size)
    fits = make("logical_and", compare("greater_equal", wrapped, 0), make("less", wrapped, _size(size)))

    def gather(value: GraphExpr) -> GraphExpr:
        return along(value, _clamped(wrapped, size), axis)

    def write(value: GraphExpr, elements: GraphExpr, reduction: str) -> GraphExpr:
        return make("scatter_elements", value, indices, elements, axis=axis, reduction=reduction, inside=inside)

    shape = sizes_of(updates)
    numbers = reshape(arange(dimensions.product(shape)), shape)
    nobody = make("broadcast_to", number(-1, INT64), shape=sizes_of(data))
    last = make("logical_and", fits, make("equal", gather(write(nobody, numbers, "none")), numbers))
    return _scattered(call.attributes.reduction, call, cotangent, gather, write, fits, last)


@reverse_rule("topk")
def topk(call: Call, cotangents: Sequence[GraphExpr | None]) -> Cotangents:
    """The elements that were kept get the cotangents of their places."""
    (data,) = call.args
    values = cotangents[0]
    assert values is not None
    assert isinstance(call.attributes, TopKAttributes)
    axis = call.attributes.axis
    return [make("scatter_elements", zeros_like(data), item(call, 1), values, axis=axis, reduction="add", inside=True)]
