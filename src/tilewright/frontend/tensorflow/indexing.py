"""Converters of operators whose indices are data."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.core import selection
from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.core.indexing import along, gather_nd, reverse_sequences, scatter_nd
from tilewright.frontend.core.shapes import shape_input
from tilewright.frontend.tensorflow.context import NodeContext
from tilewright.frontend.tensorflow.registry import converter
from tilewright.graph.ir.dimensions import Size, add
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT64
from tilewright.support.errors import UnsupportedError, UserError

_SCATTERS = {"Update": "none", "Add": "add", "Sub": "add", "Max": "max", "Min": "min"}


@converter("Gather", "GatherV2")
def gather(node: NodeContext) -> GraphExpr:
    """Slices along an axis that is an input; the first dimensions may be those of a batch."""
    axis = node.constant_int(2, "the axis") if node.operator == "GatherV2" else 0
    data = node.input(0)
    if dtype_of(data).name == "string":
        return node.call("text.take", data, node.input(1), axis=node.axis(axis, rank_of(data)))
    return selection.gathered(node, axis, node.integer("batch_dims"))


@converter("GatherNd")
def gather_by_tuples(node: NodeContext) -> GraphExpr:
    """Slices chosen by tuples of indices."""
    return gather_nd(node.builder, node.input(0), node.input(1))


@converter("ScatterNd")
def scatter_by_tuples(node: NodeContext) -> GraphExpr:
    """Slices added up at tuples of indices in zeros of a shape."""
    updates = node.input(1)
    zeros = node.builder.filled(0, shape_input(node, 2), dtype_of(updates))
    return scatter_nd(node.builder, zeros, node.input(0), updates, "add")


@converter(*(f"TensorScatter{name}" for name in _SCATTERS))
def tensor_scatter(node: NodeContext) -> GraphExpr:
    """A tensor with slices written, added, or compared at tuples of indices."""
    kind, updates = node.operator.removeprefix("TensorScatter"), node.input(2)
    if kind == "Sub":
        updates = node.call("negative", updates)
    return scatter_nd(node.builder, node.input(0), node.input(1), updates, _SCATTERS[kind])


@converter("SparseToDense")
def sparse_to_dense(node: NodeContext) -> GraphExpr:
    """Values at places, one other value elsewhere."""
    b, places, values = node.builder, node.input(0), node.input(2)
    shape = shape_input(node, 1)
    if rank_of(places) < 2:
        count = sizes_of(places)[0] if rank_of(places) else 1
        places = b.reshape(places, (count, 1) if len(shape) == 1 else (1, count))
    whole = b.broadcast_to(b.reshape(node.input(3), ()), shape)
    return scatter_nd(b, whole, places, b.broadcast_to(values, sizes_of(places)[:1]))


@converter("OneHot")
def one_hot(node: NodeContext) -> GraphExpr:
    """One of two values by whether an index names the place along a new axis."""
    return selection.one_hot(node, node.integer("axis", -1))


@converter("Where")
def where(node: NodeContext) -> GraphExpr:
    """The places of elements other than zero, a row each."""
    return selection.places_of_others(node)


@converter("Unique", outputs=("y", "idx"))
def unique(node: NodeContext) -> Sequence[GraphExpr]:
    """The distinct elements in the order in which they come, and which one each place holds."""
    values, places, _ = selection.distinct(node)
    return [values, node.builder.cast(places, node.dtype("out_idx", 3))]


@converter("UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2", outputs=("y", "idx", "count"))
def unique_with_counts(node: NodeContext) -> Sequence[GraphExpr]:
    """The distinct elements of a list, which one each place holds, and how often each occurs."""
    if rank_of(node.input(0)) != 1:
        raise UnsupportedError(f"{node.operator} of tensors of {rank_of(node.input(0))} dimensions")
    values, places, counts = selection.distinct(node)
    dtype = node.dtype("out_idx", 3)
    return [values, node.builder.cast(places, dtype), node.builder.cast(counts, dtype)]


@converter("ReverseSequence")
def reverse_sequence(node: NodeContext) -> GraphExpr:
    """The first elements of each sequence in reverse."""
    data, rank = node.input(0), rank_of(node.input(0))
    time_axis, batch_axis = node.axis(node.integer("seq_dim"), rank), node.axis(node.integer("batch_dim"), rank)
    if time_axis == batch_axis:
        raise UserError(f"ReverseSequence along dimension {time_axis} of a batch in the same dimension")
    return reverse_sequences(node.builder, data, node.input(1), time_axis, batch_axis)


@converter("MatrixDiag", "MatrixDiagV2", "MatrixDiagV3")
def matrix_diag(node: NodeContext) -> GraphExpr:
    """Matrices with the last dimension as their diagonal."""
    if node.operator != "MatrixDiag":
        places = node.constant_ints(1, "the diagonals")
        sides = [node.constant_int(at, "a size") for at in (2, 3)]
        size = sizes_of(node.input(0))[-1]
        if any(places) or any(side not in (-1, size) for side in sides):
            raise UnsupportedError(f"{node.operator} of other diagonals than the first")
    return selection.matrix_diag(node)


@converter("MatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3")
def matrix_set_diag(node: NodeContext) -> GraphExpr:
    """Matrices with another diagonal."""
    if node.operator != "MatrixSetDiag" and any(node.constant_ints(2, "the diagonals")):
        raise UnsupportedError(f"{node.operator} of other diagonals than the first")
    return selection.matrix_set_diag(node)


@converter("MatrixDiagPart", "MatrixDiagPartV2", "MatrixDiagPartV3", "DiagPart")
def matrix_diag_part(node: NodeContext) -> GraphExpr:
    """The diagonals of matrices."""
    b, data = node.builder, node.input(0)
    shift = 0
    if node.operator in ("MatrixDiagPartV2", "MatrixDiagPartV3"):
        places = set(node.constant_ints(1, "the diagonal"))
        if len(places) != 1:
            raise UnsupportedError(f"{node.operator} of several diagonals")
        (shift,) = places
    rows, columns = sizes_of(data)[-2:]
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise UnsupportedError(f"{node.operator} of open sizes", hint="give the shapes of inputs: shapes={...}")
    first, second = max(0, -shift), max(0, shift)
    count = min(rows - first, columns - second)
    if count < 1:
        raise UserError(f"matrices of {rows} x {columns} have no diagonal {shift}")
    places_of = b.add(b.multiply(b.arange(count), columns + 1), first * columns + second)
    flat = b.reshape(data, (*sizes_of(data)[:-2], rows * columns))
    return node.call("take", flat, places_of, axis=rank_of(flat) - 1, mode="inside")


@converter("Diag")
def diag(node: NodeContext) -> GraphExpr:
    """A matrix with a list as its diagonal."""
    if rank_of(node.input(0)) != 1:
        raise UnsupportedError("Diag of more than a list")
    return selection.matrix_diag(node)


@converter("MatrixBandPart")
def band_part(node: NodeContext) -> GraphExpr:
    """Matrices with zeros outside of a band around the diagonal; -1 keeps a whole side."""
    b, data = node.builder, node.input(0)
    rows, columns = sizes_of(data)[-2:]
    down, across = along(b, 0, 2, rows, 1), along(b, 1, 2, columns, 1)
    distance = b.subtract(down, across)
    result = data
    for index, sign in ((1, 1), (2, -1)):
        limit = b.cast(b.reshape(node.input(index), ()), INT64)
        inside = node.call("less_equal", b.multiply(distance, sign), limit)
        kept = node.call("logical_or", inside, b.compare("less", limit, 0))
        result = b.where(kept, result, b.constant_like(0, data))
    return result


@converter("DynamicStitch", "ParallelDynamicStitch")
def dynamic_stitch(node: NodeContext) -> GraphExpr:
    """Slices put together in an order that is data: later ones win."""
    b, count = node.builder, len(node.values) // 2
    indices = [node.constant(at, "the places") for at in range(count)]
    values = [node.input(at) for at in range(count, 2 * count)]
    length = 1 + max((int(item.max()) for item in indices if item.size), default=-1)
    rest = sizes_of(values[0])[indices[0].ndim :]
    parts = [b.reshape(value, (item.size, *rest)) for value, item in zip(values, indices, strict=True)]
    order = [-1] * length
    start = 0
    for item in indices:
        for at, place in enumerate(item.ravel().tolist()):
            order[place] = start + at
        start += item.size
    if -1 in order:
        raise UnsupportedError(f"{node.operator} that leaves the place {order.index(-1)} open")
    return node.call("take", b.concatenate(parts, 0), b.constant(order, INT64), axis=0)


@converter("DynamicPartition")
def dynamic_partition(node: NodeContext) -> Sequence[GraphExpr]:
    """Slices of each of several parts, by numbers that are data."""
    b, data, numbers = node.builder, node.input(0), node.input(1)
    if rank_of(numbers) != 1:
        raise UnsupportedError("DynamicPartition by more than a list of numbers")
    results: list[GraphExpr] = []
    for part in range(node.integer("num_partitions")):
        here = b.compare("equal", numbers, part)
        results.append(node.call("host.compress", data, here, dims=(node.symbol(f"part_{part}"),), axis=0))
    return results


@converter("NthElement")
def nth_element(node: NodeContext) -> GraphExpr:
    """The element that would be at a place if the last axis were sorted."""
    b, data = node.builder, node.input(0)
    place = node.constant_int(1, "the place")
    axis = rank_of(data) - 1
    k: Size = add(place, 1)
    both = node.call("topk", data, axis=axis, k=k, largest=node.flag("reverse"))
    chosen = b.slice_axis(b.item(both, 0), axis, place, k)
    return b.reshape(chosen, sizes_of(data)[:-1])
