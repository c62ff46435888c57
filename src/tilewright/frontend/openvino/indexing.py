"""Converters of operators whose indices are data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.core.checks import checked_index
from tilewright.frontend.core.indexing import gather_batched, gather_nd, scatter_nd, wrapped
from tilewright.frontend.core.sampling import sample_grid
from tilewright.frontend.core.segments import combined_rows, segment_count
from tilewright.frontend.openvino.context import NodeContext
from tilewright.frontend.openvino.registry import converter
from tilewright.graph.ir.dimensions import add, product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT64, DataType
from tilewright.support.errors import UnsupportedError, UserError

_REDUCTIONS = {"none": "none", "sum": "add", "prod": "mul", "min": "min", "max": "max"}


@converter("Gather")
def gather(node: NodeContext) -> GraphExpr:
    """Slices chosen along an axis; the first dimensions may be those of a batch."""
    b, x, places = node.builder, node.input(0), whole_input(node, 1)
    axis = node.axis(node.known(2, "the axis")[0], rank_of(x))
    batch = node.integer("batch_dims", 0)
    batch = batch + rank_of(places) if batch < 0 else batch
    places = checked_index(b, places, [sizes_of(x)[axis]], [axis])
    return gather_batched(b, x, wrapped(b, places, sizes_of(x)[axis]), axis, batch)


def whole_input(node: NodeContext, index: int) -> GraphExpr:
    """An input as 64-bit integers."""
    return node.builder.cast(node.input(index), INT64)


@converter("GatherElements")
def gather_elements(node: NodeContext) -> GraphExpr:
    """Elements chosen along an axis, at each place of the others."""
    return node.onnx("GatherElements", node.input(0), whole_input(node, 1), axis=node.integer("axis"))


@converter("GatherND")
def by_tuples(node: NodeContext) -> GraphExpr:
    """Slices chosen by tuples of indices; the fifth opset joins the dimensions of the batch."""
    b, x = node.builder, node.input(0)
    batch = node.integer("batch_dims", 0)
    result = gather_nd(b, x, node.input(1), batch)
    if node.opset < 8 and batch > 1:
        sizes = sizes_of(result)
        return b.reshape(result, (product(sizes[:batch]), *sizes[batch:]))
    return result


def _neutral(reduction: str, dtype: DataType) -> float:
    if reduction in ("sum", "none"):
        return 0.0
    if reduction == "prod":
        return 1.0
    if dtype.is_float:
        return float("inf") if reduction == "min" else float("-inf")
    return float(dtype.max_value() if reduction == "min" else dtype.min_value())


@converter("ScatterElementsUpdate")
def scatter_elements(node: NodeContext) -> GraphExpr:
    """Elements written along an axis, or joined with what is there."""
    b, x, places, updates = node.builder, node.input(0), whole_input(node, 1), node.input(2)
    axis = node.axis(node.known(3, "the axis")[0], rank_of(x))
    reduction = node.text("reduction", "none")
    if reduction not in _REDUCTIONS:
        raise UnsupportedError(f"ScatterElementsUpdate by the reduction {reduction!r}")
    if reduction != "none" and not node.flag("use_init_val", True):
        start = b.broadcast_to(b.scalar(_neutral(reduction, dtype_of(x)), dtype_of(x)), sizes_of(updates))
        x = node.onnx("ScatterElements", x, places, start, axis=axis)
    return node.onnx("ScatterElements", x, places, updates, axis=axis, reduction=_REDUCTIONS[reduction])


@converter("ScatterNDUpdate")
def scatter_by_tuples(node: NodeContext) -> GraphExpr:
    """Slices written at tuples of indices, or joined with what is there."""
    reduction = node.text("reduction", "none")
    b, x, places, updates = node.builder, node.input(0), whole_input(node, 1), node.input(2)
    if reduction == "sub":
        return scatter_nd(b, x, places, b.call("negative", updates), "add")
    if reduction not in _REDUCTIONS:
        raise UserError(f"ScatterNDUpdate by the reduction {reduction!r}")
    return scatter_nd(b, x, places, updates, _REDUCTIONS[reduction])


@converter("ScatterUpdate")
def scatter_update(node: NodeContext) -> GraphExpr:
    """Slices written at places along an axis."""
    b, x, places, updates = node.builder, node.input(0), whole_input(node, 1), node.input(2)
    axis, rank, inner = node.axis(node.known(3, "the axis")[0], rank_of(x)), rank_of(x), rank_of(places)
    order = [axis, *(at for at in range(rank) if at != axis)]
    moved = list(range(axis, axis + inner))
    rest = [at for at in range(rank_of(updates)) if at not in moved]
    listed = b.reshape(places, (*sizes_of(places), 1))
    if inner == 0:
        listed = b.reshape(places, (1, 1))
        updates = b.expand_dims(updates, (axis,)) if rank_of(updates) == rank - 1 else updates
        moved, rest = [axis], [at for at in range(rank) if at != axis]
    result = scatter_nd(b, b.transpose(x, order), listed, b.transpose(updates, [*moved, *rest]))
    return b.transpose(result, [order.index(at) for at in range(rank)])


@converter("SliceScatter")
def slice_scatter(node: NodeContext) -> GraphExpr:
    """A part of a tensor replaced, whose bounds are known."""
    b, x, updates = node.builder, node.input(0), node.input(1)
    starts, ends, steps = (node.known(at, "its bounds") for at in (2, 3, 4))
    axes = node.known(5, "its axes") if node.has_input(5) else range(len(starts))
    dims = [size_at(x, at) for at in range(rank_of(x))]
    index: list[slice] = [slice(None)] * len(dims)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        place = node.axis(axis, len(dims))
        index[place] = slice(start, None if step < 0 and end < -dims[place] else end, step)
    numbers = np.arange(int(np.prod(dims)), dtype=np.int64).reshape(dims)[tuple(index)].reshape(-1)
    if not numbers.size:
        return x
    flat = b.reshape(x, (int(np.prod(dims)), 1))
    rows = b.reshape(updates, (numbers.size, 1))
    return b.reshape(b.call("scatter", flat, b.constant(numbers, INT64), rows, reduction="none", inside=True), dims)


@converter("GridSample")
def grid_sample(node: NodeContext) -> GraphExpr:
    """Data at the places of a grid."""
    mode = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}[node.text("mode", "bilinear")]
    aligned = node.flag("align_corners")
    return sample_grid(node.builder, node.input(0), node.input(1), mode, node.text("padding_mode", "zeros"), aligned)


def _bag(node: NodeContext, rows: GraphExpr, bags: GraphExpr, count: object, weights: GraphExpr | None) -> GraphExpr:
    """Rows added up by the bag that each belongs to, or their means."""
    b = node.builder
    if weights is not None:
        rows = b.multiply(rows, b.reshape(weights, (*sizes_of(weights), *(1,) * (rank_of(rows) - 1))))
    number = count if isinstance(count, int) else None
    if number is None:
        raise UnsupportedError(f"{node.layer.kind} of as many bags as a run decides")
    zeros = b.filled(0, (number, *sizes_of(rows)[1:]), dtype_of(rows))
    total = scatter_nd(b, zeros, b.reshape(bags, (*sizes_of(bags), 1)), rows, "add")
    if node.text("reduction", "sum") != "mean":
        return total
    ones = b.filled(1, sizes_of(bags), dtype_of(rows))
    counts = scatter_nd(b, b.filled(0, (number,), dtype_of(rows)), b.reshape(bags, (*sizes_of(bags), 1)), ones, "add")
    counts = b.call("maximum", counts, b.scalar(1, dtype_of(rows)))
    return b.divide(total, b.reshape(counts, (number, *(1,) * (rank_of(rows) - 1))))


def _taken(node: NodeContext, table: GraphExpr, places: GraphExpr) -> GraphExpr:
    return node.onnx("Gather", table, node.builder.cast(places, INT64), axis=0)


@converter("EmbeddingSegmentsSum")
def embedding_segments(node: NodeContext) -> GraphExpr:
    """Rows of a table added up by segments; segments of none have a default row, or zeros."""
    bags, count = whole_input(node, 2), node.known(3, "the number of segments")[0]
    total = _bag(node, _taken(node, node.input(0), node.input(1)), bags, count, node.optional(5))
    return _with_default(node, total, bags, count, 4)


def _with_default(node: NodeContext, total: GraphExpr, bags: GraphExpr, count: int, slot: int) -> GraphExpr:
    """The sums of bags; those that hold nothing are a row that an input names, or zeros."""
    b = node.builder
    if not node.has_input(slot) or (node.is_known(slot) and node.known(slot, "the default")[0] == -1):
        return total
    used = b.call("equal", b.reshape(b.arange(count), (count, 1)), b.reshape(bags, (1, *sizes_of(bags))))
    empty = b.call("logical_not", b.call("any", used, axes=(1,)))
    row = _taken(node, node.input(0), b.reshape(node.input(slot), (1,)))
    return b.where(b.reshape(empty, (count, *(1,) * (rank_of(total) - 1))), row, total)


@converter("EmbeddingBagOffsetsSum", "EmbeddingBagOffsets")
def embedding_offsets(node: NodeContext) -> GraphExpr:
    """Rows of a table added up by bags that begin at offsets."""
    b = node.builder
    places, offsets = node.input(1), whole_input(node, 2)
    count, total = size_at(offsets, 0), sizes_of(places)[0]
    begun = b.call("less_equal", b.reshape(offsets, (1, count)), b.reshape(b.arange(total), (total, 1)))
    bags = b.subtract(b.reduce("sum", b.cast(begun, INT64), (1,)), 1)
    return _with_default(
        node, _bag(node, _taken(node, node.input(0), places), bags, count, node.optional(4)), bags, count, 3
    )


@converter("EmbeddingBagPackedSum", "EmbeddingBagPacked")
def embedding_packed(node: NodeContext) -> GraphExpr:
    """Rows of a table added up by rows of indices."""
    b, weights = node.builder, node.optional(2)
    rows = _taken(node, node.input(0), node.input(1))
    if weights is not None:
        rows = b.multiply(rows, b.reshape(weights, (*sizes_of(weights), *(1,) * (rank_of(rows) - 2))))
    return b.reduce("mean" if node.text("reduction", "sum") == "mean" else "sum", rows, (1,))


@converter("GatherTree")
def gather_tree(node: NodeContext) -> Sequence[GraphExpr]:
    """Beams followed back from their last step: unrolled over the steps."""
    b, steps, parents = node.builder, node.input(0), whole_input(node, 1)
    count, batch, beams = (size_at(steps, at) for at in range(3))
    limit = b.reshape(whole_input(node, 2), (batch, 1))
    end = b.reshape(node.input(3), ())
    place = b.broadcast_to(b.reshape(b.arange(beams), (1, beams)), (batch, beams))
    rows: list[GraphExpr] = []
    for at in reversed(range(count)):
        running = b.call("less", b.constant(np.int64(at)), limit)
        ids = node.onnx("GatherElements", b.select(steps, 0, at), place, axis=1)
        rows.append(b.where(running, ids, end))
        parent = node.onnx("GatherElements", b.select(parents, 0, at), place, axis=1)
        place = b.where(running, parent, place)
    rows.reverse()
    return [_ended(node, b.stack(rows, 0), end)]


def _ended(node: NodeContext, ids: GraphExpr, end: GraphExpr) -> GraphExpr:
    """All that follows the first end is the end."""
    b = node.builder
    seen = b.call("cumsum", b.cast(b.call("equal", ids, end), INT64), axis=0, exclusive=True, reverse=False)
    return b.where(b.compare("greater", seen, 0), end, ids)


@converter("CTCGreedyDecoder", "CTCGreedyDecoderSeqLen")
def greedy_decoder(node: NodeContext) -> Sequence[GraphExpr]:
    """The most likely class of each step, without blanks and repetitions, then -1; and how many classes those are."""
    b, x = node.builder, node.input(0)
    by_length = node.layer.kind == "CTCGreedyDecoderSeqLen"
    x = x if by_length else b.transpose(x, (1, 0, 2))
    batch, steps, classes = sizes_of(x)
    best = node.onnx("ArgMax", x, axis=2, keepdims=0)
    number = b.reshape(b.arange(steps), (1, steps))
    if by_length:
        running = b.call("less", number, b.reshape(whole_input(node, 1), (batch, 1)))
    else:
        # A sequence ends at the first step that its mask leaves out.
        mask = b.cast(b.transpose(node.input(1), (1, 0)), INT64)
        running = b.compare("equal", b.call("cumprod", mask, axis=1), 1)
    last = b.subtract(b.reshape(b.shape_tensor([classes]), ()), 1)
    blank = b.reshape(whole_input(node, 2), ()) if node.has_input(2) else last
    kept = b.call("logical_and", running, b.call("not_equal", best, blank))
    if node.flag("merge_repeated" if by_length else "ctc_merge_repeated", True):
        before = b.slice_axis(b.call("pad", best, before=(0, 1), after=(0, 0), value=-1.0), 1, 0, steps)
        kept = b.call("logical_and", kept, b.call("not_equal", best, before))
    counted = b.cast(kept, INT64)
    place = b.subtract(b.call("cumsum", counted, axis=1), 1)
    end = b.reshape(b.shape_tensor([steps]), ())
    room = b.filled(-1, (batch, add(steps, 1)), INT64)
    written = node.onnx("ScatterElements", room, b.where(kept, place, end), best, axis=1)
    decoded = b.slice_axis(written, 1, 0, steps)
    if not by_length:
        return [b.cast(b.reshape(decoded, (batch, steps, 1, 1)), dtype_of(x))]
    lengths = b.reduce("sum", counted, (1,))
    kinds = (node.dtype("classes_index_type", "i32"), node.dtype("sequence_length_type", "i32"))
    return [b.cast(value, kind) for value, kind in zip((decoded, lengths), kinds, strict=True)]


@converter("SegmentMax")
def segment_max(node: NodeContext) -> GraphExpr:
    """The greatest of the rows of each segment; those of none are zeros, or the least number."""
    b, x, segments = node.builder, node.input(0), whole_input(node, 1)
    count = node.known(2, "the number of segments")[0] if node.has_input(2) else segment_count(node, segments)
    result = combined_rows(node, x, segments, count, "max")
    if node.text("fill_mode") == "lowest":
        return result
    belongs = b.call("equal", b.reshape(b.arange(count), (count, 1)), b.reshape(segments, (1, *sizes_of(segments))))
    filled = b.reshape(b.call("any", belongs, axes=(1,)), (count, *(1,) * (rank_of(x) - 1)))
    return b.where(filled, result, b.scalar(0, dtype_of(x)))
