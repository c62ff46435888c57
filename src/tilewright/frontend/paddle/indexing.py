"""Converters of operators whose indices are data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.core.checks import checked_index
from tilewright.frontend.core.indexing import gather_nd, scatter_nd, wrapped
from tilewright.frontend.paddle.context import NodeContext
from tilewright.frontend.paddle.registry import converter
from tilewright.graph.ir.dimensions import Size, product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT64
from tilewright.support.errors import UnsupportedError, UserError


@converter("gather", inputs="X Index Axis")
def gather(node: NodeContext) -> GraphExpr:
    """Slices chosen along an axis."""
    b, x, places = node.builder, node.input(0), node.input(1)
    axis = node.axis(node.whole("the axis", (2,), "axis", default=0), rank_of(x))
    if rank_of(places) == 2 and sizes_of(places)[1] == 1:
        places = b.flatten(places)
    return node.onnx("Gather", x, places, axis=axis)


@converter("gather_nd", inputs="X Index")
def by_tuples(node: NodeContext) -> GraphExpr:
    """Slices chosen by tuples of indices."""
    return gather_nd(node.builder, node.input(0), node.input(1))


@converter("index_select", inputs="X Index")
def index_select(node: NodeContext) -> GraphExpr:
    """Slices chosen along an axis."""
    x = node.input(0)
    axis = node.axis(node.integer("dim", "axis", default=0), rank_of(x))
    return node.onnx("Gather", x, node.input(1), axis=axis)


@converter("index_sample", inputs="X Index")
def index_sample(node: NodeContext) -> GraphExpr:
    """Elements of each row."""
    return node.onnx("GatherElements", node.input(0), node.input(1), axis=1)


@converter("take_along_axis", inputs="Input Index", outputs="Result")
def take_along_axis(node: NodeContext) -> GraphExpr:
    """Elements chosen along an axis, at each place of the others; both broadcast."""
    b, x, places = node.builder, node.input(0), node.input(1)
    axis = node.axis(node.integer("Axis", "axis", default=0), rank_of(x))
    shape: list[Size] = list(sizes_of(places))
    for at, size in enumerate(sizes_of(x)):
        if at != axis and shape[at] == 1:
            shape[at] = size
    return node.onnx("GatherElements", x, b.broadcast_to(places, shape), axis=axis)


@converter("put_along_axis", inputs="Input Index Value", outputs="Result")
def put_along_axis(node: NodeContext) -> GraphExpr:
    """Elements written along an axis."""
    b, x, places = node.builder, node.input(0), node.input(1)
    axis = node.axis(node.integer("Axis", "axis", default=0), rank_of(x))
    reduction = {"assign": "none", "add": "add", "mul": "mul", "multiply": "mul", "amax": "max", "amin": "min"}.get(
        node.text("Reduce", "reduce", default="assign")
    )
    if reduction is None or not node.flag("include_self", default=True):
        raise UnsupportedError("put_along_axis by this reduction, or without the data itself")
    values = b.broadcast_to(b.cast(node.input(2), dtype_of(x)), sizes_of(places))
    return node.onnx("ScatterElements", x, places, values, axis=axis, reduction=reduction)


@converter("scatter", inputs="X Ids Updates")
def scatter(node: NodeContext) -> GraphExpr:
    """Rows written at places, or added up there, from zero on."""
    b, x, updates = node.builder, node.input(0), node.input(2)
    places = b.reshape(node.input(1), (product(sizes_of(node.input(1))), 1))
    if node.flag("overwrite", default=True):
        return scatter_nd(b, x, places, updates)
    zeros = b.filled(0, sizes_of(updates), dtype_of(x))
    return scatter_nd(b, scatter_nd(b, x, places, zeros), places, updates, "add")


@converter("scatter_nd_add", inputs="X Index Updates")
def scatter_nd_add(node: NodeContext) -> GraphExpr:
    """Slices added at tuples of indices."""
    return scatter_nd(node.builder, node.input(0), node.input(1), node.input(2), "add")


@converter("index_add", inputs="X Index AddValue")
def index_add(node: NodeContext) -> GraphExpr:
    """Slices added at places along an axis."""
    b, x = node.builder, node.input(0)
    axis = node.axis(node.integer("axis", default=0), rank_of(x))
    order = [axis, *(at for at in range(rank_of(x)) if at != axis)]
    places = b.reshape(node.input(1), (*sizes_of(node.input(1)), 1))
    result = scatter_nd(b, b.transpose(x, order), places, b.transpose(node.input(2), order), "add")
    return b.transpose(result, [order.index(at) for at in range(rank_of(x))])


@converter("lookup_table_v2", "lookup_table", inputs="Ids W")
def legacy_embedding(node: NodeContext) -> GraphExpr:
    """Rows of a table; those of the padding are zero. The old form has a last dimension of 1."""
    b, ids = node.builder, node.input(0)
    if node.node.kind == "lookup_table" and sizes_of(ids)[-1:] == (1,):
        ids = b.reshape(ids, sizes_of(ids)[:-1])
    return _embedding(node, ids, node.input(1))


@converter("embedding", inputs="X Weight")
def embedding(node: NodeContext) -> GraphExpr:
    """Rows of a table; those of the padding are zero."""
    return _embedding(node, node.input(0), node.input(1))


def _embedding(node: NodeContext, ids: GraphExpr, table: GraphExpr) -> GraphExpr:
    b, padding = node.builder, node.integer("padding_idx", default=-1)
    rows = node.onnx("Gather", table, ids, axis=0)
    if padding < 0:
        return rows
    hidden = b.expand_dims(b.compare("equal", ids, padding), (rank_of(ids),))
    return b.where(hidden, b.scalar(0, dtype_of(rows)), rows)


@converter("where_index", "nonzero", inputs="Condition")
def nonzero(node: NodeContext) -> GraphExpr:
    """The places of elements that are not zero, one a row."""
    return node.builder.transpose(node.onnx("NonZero", node.input(0)), (1, 0))


@converter("masked_select", inputs="X Mask", outputs="Y")
def masked_select(node: NodeContext) -> GraphExpr:
    """The elements that a mask shows, in a row."""
    b, x = node.builder, node.input(0)
    mask = b.broadcast_to(b.truth(node.input(1)), sizes_of(x))
    return node.onnx("Compress", b.flatten(x), b.flatten(mask))


@converter("masked_fill", inputs="X Mask Value")
def masked_fill(node: NodeContext) -> GraphExpr:
    """A value where a mask says so."""
    b, x = node.builder, node.input(0)
    return b.where(b.truth(node.input(1)), b.cast(node.input(2), dtype_of(x)), x)


@converter("set_value", "set_value_with_tensor", inputs="Input ValueTensor StartsTensor EndsTensor StepsTensor "
           "StartsTensorList EndsTensorList StepsTensorList")  # fmt: skip
def set_value(node: NodeContext) -> GraphExpr:
    """A part of a tensor replaced: its places are known, or along one axis."""
    b, x = node.builder, node.input(0)
    shifted = 0 if node.node.kind == "set_value_with_tensor" or isinstance(node.node.inputs, dict) else 1
    axes = [node.axis(axis, rank_of(x)) for axis in node.ints("axes")]
    bounds = [
        node.wholes("its bounds", (at + 3 - shifted, at - shifted), name) or ()
        for at, name in ((2, "starts"), (3, "ends"), (4, "steps"))
    ]
    value = node.input(1) if node.has_input(1) and not shifted else _values(node)
    sizes = sizes_of(x)
    dims = [node.count(x, at) for at in range(len(sizes))]
    index: list[slice] = [slice(None)] * len(dims)
    for axis, start, end, step in zip(axes, *bounds, strict=True):
        index[axis] = slice(start, None if step < 0 and end < -dims[axis] else end, step)
    numbers = np.arange(int(np.prod(dims)), dtype=np.int64).reshape(dims)[tuple(index)]
    gone = [node.axis(axis, rank_of(x)) for axis in node.ints("decrease_axes", default=())]
    if node.ints("none_axes", default=()):
        raise UnsupportedError("set_value with new axes")
    shape = [size for at, size in enumerate(numbers.shape) if at not in gone]
    value = b.broadcast_to(b.cast(value, dtype_of(x)), shape)
    flat, count = b.reshape(x, (int(np.prod(dims)), 1)), numbers.size
    if count == 0:
        return x
    places = b.constant(numbers.reshape(-1), INT64)
    written = b.call("scatter", flat, places, b.reshape(value, (count, 1)), reduction="none", inside=True)
    return b.reshape(written, sizes)


def _values(node: NodeContext) -> GraphExpr:
    to = node.dtype("dtype", default=dtype_of(node.input(0)))
    names = ("values", "fp32_values", "fp64_values", "int32_values", "int64_values", "bool_values")
    values = next((item for name in names if (item := node.attribute(name))), None)
    if values is None:
        raise UserError("set_value has no values")
    array = np.array([float(item) for item in values])
    return node.builder.constant(array.reshape(node.ints("shape", default=(len(values),))).astype(to.numpy()), to)


@converter("multiplex", inputs="X Ids")
def multiplex(node: NodeContext) -> GraphExpr:
    """Each row from the tensor that a number names."""
    b, values = node.builder, node.group(0)
    stacked = b.stack(values, 0)
    rows = sizes_of(values[0])[0]
    ids = b.cast(b.reshape(node.input(1), (rows,)), INT64)
    ids = wrapped(b, checked_index(b, ids, [len(values)], [0]), len(values))
    pairs = b.concatenate([b.reshape(ids, (rows, 1)), b.reshape(b.arange(rows), (rows, 1))], 1)
    return gather_nd(b, stacked, pairs)


@converter("shard_index")
def shard_index(node: NodeContext) -> GraphExpr:
    """Numbers of one shard, and a value for those of others."""
    b, x = node.builder, node.input(0)
    size = -(-node.integer("index_num") // node.integer("nshards"))
    first = size * node.integer("shard_id")
    inside = b.call("logical_and", b.compare("greater_equal", x, first), b.compare("less", x, first + size))
    return b.where(inside, b.subtract(x, first), node.integer("ignore_value", default=-1))


@converter("searchsorted", inputs="SortedSequence Values")
def search_sorted(node: NodeContext) -> Sequence[GraphExpr]:
    """How many elements of a sorted row lie before each value."""
    b, row, values = node.builder, node.input(0), node.input(1)
    if rank_of(row) != 1:
        row = b.expand_dims(row, (rank_of(row) - 1,))
    wide = b.expand_dims(values, (rank_of(values),))
    before = b.compare("less_equal" if node.flag("right") else "less", row, wide)
    to = "int32" if node.flag("out_int32") else "int64"
    return [b.reduce("sum", b.cast(before, to), (rank_of(before) - 1,))]
