"""Converters of lists of tensors: TensorList operators, and TensorArrays, whose flow is the list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.frontend.core.builder import dtype_of, evaluate, rank_of, sizes_of
from tilewright.frontend.core.checks import checked_index
from tilewright.frontend.core.indexing import scalar
from tilewright.frontend.tensorflow.context import NodeContext
from tilewright.frontend.tensorflow.registry import converter
from tilewright.frontend.tensorflow.values import Handle, TensorList, Value
from tilewright.graph.ir.dimensions import Size, add, product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT64
from tilewright.support.errors import UnsupportedError, UserError

_MOST_ITEMS = 1 << 12
"""Lists of more items are kept as one tensor."""


def count_of(node: NodeContext, values: TensorList) -> Size:
    """How many items a list has."""
    if values.items is not None:
        return len(values.items)
    return values.count if values.rows is None else sizes_of(values.rows)[0]


def known_shape(node: NodeContext, values: TensorList) -> tuple[Size, ...] | None:
    """The shape of items, if it is known."""
    if values.rows is not None:
        return sizes_of(values.rows)[1:]
    for item in values.items or ():
        if item is not None:
            return sizes_of(item)
    if values.shape is None or None in values.shape:
        return None
    return tuple(size for size in values.shape if size is not None)


def rows_of(node: NodeContext, values: TensorList) -> GraphExpr:
    """The items along a new first axis."""
    builder = node.builder
    if values.rows is not None:
        return values.rows
    shape = known_shape(node, values)
    if shape is None:
        raise UnsupportedError(
            f"{node.operator} of a list whose items have no known shape",
            hint="give element_shape where the list is made",
        )
    if not values.items or all(item is None for item in values.items):
        return builder.filled(0, (count_of(node, values), *shape), values.dtype)
    zeros = builder.filled(0, shape, values.dtype)
    return builder.stack([zeros if item is None else item for item in values.items], 0)


def item_at(node: NodeContext, values: TensorList, index: GraphExpr) -> GraphExpr:
    """One item of a list."""
    place = evaluate(index)
    if values.items is not None and place is not None:
        number = int(place.item())
        if not 0 <= number < len(values.items):
            raise UserError(f"a list of {len(values.items)} items has no item {number}")
        item = values.items[number]
        return rows_item(node, rows_of(node, values), index) if item is None else item
    return rows_item(node, rows_of(node, values), index)


def rows_item(node: NodeContext, rows: GraphExpr, index: GraphExpr) -> GraphExpr:
    """One row."""
    place = node.builder.cast(node.builder.reshape(index, ()), INT64)
    checked = checked_index(node.builder, place, [sizes_of(rows)[0]], [0], negative=False)
    return node.call("take", rows, checked, axis=0)


def with_item(node: NodeContext, values: TensorList, index: GraphExpr, item: GraphExpr) -> TensorList:
    """A list with another item at a place."""
    builder, place = node.builder, evaluate(index)
    if values.items is not None and place is not None:
        number = int(place.item())
        if not 0 <= number < len(values.items):
            raise UserError(f"a list of {len(values.items)} items has no item {number}")
        items = (*values.items[:number], item, *values.items[number + 1 :])
        return replace(values, items=items)
    if known_shape(node, values) is None:
        values = replace(values, shape=sizes_of(item))
    rows = rows_of(node, values)
    number_of = builder.cast(builder.reshape(index, ()), INT64)
    here = builder.call("equal", builder.positions((sizes_of(rows)[0], *(1,) * rank_of(item)), 0), number_of)
    changed = node.call("where", here, builder.expand_dims(item, (0,)), rows)
    return TensorList(values.dtype, None, changed, shape=sizes_of(item))


def _element_shape(node: NodeContext, index: int) -> tuple[Size | None, ...] | None:
    """The shape of items by an input: -1 where it is open, a scalar if not even the rank is known."""
    value = node.input(index)
    if rank_of(value) == 0:
        return None
    sizes = node.sizes(index, "the shape of an item")
    if sizes is None:
        return None
    return tuple(None if isinstance(size, int) and size < 0 else size for size in sizes)


def _list_of(node: NodeContext, shape: tuple[Size | None, ...] | None, count: Size, key: str) -> TensorList:
    dtype = node.dtype(key)
    if isinstance(count, int) and 0 <= count <= _MOST_ITEMS:
        return TensorList(dtype, (None,) * count, shape=shape)
    return TensorList(dtype, None, None, count, shape)


@converter("TensorListReserve")
def reserve(node: NodeContext) -> TensorList:
    """A list of so many items, none of them written."""
    return _list_of(node, _element_shape(node, 0), node.size(1, "the number of items"), "element_dtype")


@converter("EmptyTensorList")
def empty(node: NodeContext) -> TensorList:
    """A list without items."""
    return _list_of(node, _element_shape(node, 0), 0, "element_dtype")


@converter("TensorListFromTensor")
def from_tensor(node: NodeContext) -> TensorList:
    """The slices of a tensor along its first axis."""
    data = node.input(0)
    return TensorList(dtype_of(data), None, data)


@converter("TensorListStack")
def stack(node: NodeContext) -> GraphExpr:
    """The items of a list along a new axis."""
    values = node.tensor_list(0)
    shape = _element_shape(node, 1)
    if known_shape(node, values) is None and shape is not None:
        values = replace(values, shape=shape)
    return rows_of(node, values)


@converter("TensorListGetItem")
def get_item(node: NodeContext) -> GraphExpr:
    """One item."""
    values = node.tensor_list(0)
    if known_shape(node, values) is None and len(node.values) > 2:
        values = replace(values, shape=_element_shape(node, 2))
    return item_at(node, values, node.input(1))


@converter("TensorListSetItem")
def set_item(node: NodeContext) -> TensorList:
    """Another item at a place."""
    return with_item(node, node.tensor_list(0), node.input(1), node.input(2))


@converter("TensorListLength")
def length(node: NodeContext) -> GraphExpr:
    """How many items there are."""
    return scalar(node.builder, count_of(node, node.tensor_list(0)), node.builder.constant(0, "int32").dtype)


@converter("TensorListElementShape")
def element_shape(node: NodeContext) -> GraphExpr:
    """The shape of an item."""
    shape = known_shape(node, node.tensor_list(0))
    if shape is None:
        raise UnsupportedError("the shape of an item of a list that nothing was written to")
    return node.builder.cast(node.builder.shape_tensor(shape), node.dtype("shape_type", 3))


@converter("TensorListPushBack")
def push_back(node: NodeContext) -> TensorList:
    """One item more."""
    values, item = node.tensor_list(0), node.input(1)
    if values.items is not None:
        return replace(values, items=(*values.items, item))
    if known_shape(node, values) is None:
        values = replace(values, shape=sizes_of(item))
    rows = node.builder.concatenate([rows_of(node, values), node.builder.expand_dims(item, (0,))], 0)
    return TensorList(values.dtype, None, rows)


@converter("TensorListPopBack", outputs=("output_handle", "tensor"))
def pop_back(node: NodeContext) -> Sequence[Value]:
    """The last item, and the list without it."""
    values = node.tensor_list(0)
    if values.items is not None:
        if not values.items:
            raise UserError("the last item of an empty list")
        last = values.items[-1]
        item = rows_item(node, rows_of(node, values), node.builder.constant(len(values.items) - 1, INT64))
        return [replace(values, items=values.items[:-1]), item if last is None else last]
    rows = rows_of(node, values)
    count = add(sizes_of(rows)[0], -1)
    item = node.builder.select(rows, 0, count)
    return [TensorList(values.dtype, None, node.builder.slice_axis(rows, 0, 0, count)), item]


@converter("TensorListGather")
def gather(node: NodeContext) -> GraphExpr:
    """Items at places, along a new axis."""
    return _gathered(node, node.tensor_list(0), node.input(1))


def _gathered(node: NodeContext, values: TensorList, places: GraphExpr) -> GraphExpr:
    rows, known = rows_of(node, values), evaluate(places)
    count = count_of(node, values)
    if known is not None and isinstance(count, int) and known.ravel().tolist() == list(range(count)):
        return rows
    places = checked_index(node.builder, node.builder.cast(places, INT64), [count], [0], negative=False)
    return node.call("take", rows, places, axis=0)


@converter("TensorListScatter", "TensorListScatterV2", "TensorListScatterIntoExistingList")
def scatter(node: NodeContext) -> TensorList:
    """The slices of a tensor at places of a list."""
    into = node.operator.endswith("ExistingList")
    data, places = (node.input(1), node.input(2)) if into else (node.input(0), node.input(1))
    known = evaluate(places)
    if into or known is None or known.ravel().tolist() != list(range(known.size)):
        raise UnsupportedError(f"{node.operator} at places other than 0, 1, 2 ...")
    return TensorList(dtype_of(data), None, data)


@converter("TensorListConcat", "TensorListConcatV2", outputs=("tensor", "lengths"))
def concat(node: NodeContext) -> Sequence[Value]:
    """The items one after the other, and how long each is."""
    return _joined(node, node.tensor_list(0))


def _joined(node: NodeContext, values: TensorList) -> Sequence[Value]:
    builder = node.builder
    if values.items is not None and values.items and all(item is not None for item in values.items):
        items = [item for item in values.items if item is not None]
        lengths = [sizes_of(item)[0] for item in items]
        return [builder.concatenate(items, 0), builder.shape_tensor(lengths)]
    rows = rows_of(node, values)
    count, size, *rest = sizes_of(rows)
    joined = builder.reshape(rows, (product((count, size)), *rest))
    return [joined, builder.broadcast_to(scalar(builder, size), (count,))]


@converter("TensorListSplit")
def split(node: NodeContext) -> TensorList:
    """Parts of a tensor, of lengths that are an input."""
    data, lengths = node.input(0), node.constant_ints(2, "the lengths")
    parts = node.call("split", data, sizes=tuple(lengths), axis=0)
    items = [node.builder.item(parts, at) for at in range(len(lengths))] if len(lengths) > 1 else [data]
    return TensorList(dtype_of(data), tuple(items))


# TensorArrays: a handle that says what there is, and a flow that is the list


@converter("TensorArrayV3", outputs=("handle", "flow"))
def array(node: NodeContext) -> Sequence[Value]:
    """An array of so many items, none of them written."""
    dims = node.dims("element_shape")
    return [Handle("array", node.name), _list_of(node, dims, node.size(0, "the number of items"), "dtype")]


@converter("TensorArrayReadV3")
def array_read(node: NodeContext) -> GraphExpr:
    """One item."""
    return item_at(node, node.tensor_list(2), node.input(1))


@converter("TensorArrayWriteV3")
def array_write(node: NodeContext) -> TensorList:
    """Another item at a place."""
    return with_item(node, node.tensor_list(3), node.input(1), node.input(2))


@converter("TensorArrayScatterV3")
def array_scatter(node: NodeContext) -> TensorList:
    """The slices of a tensor as items at places."""
    values, places, data = node.tensor_list(3), evaluate(node.input(1)), node.input(2)
    count = count_of(node, values)
    if places is not None and (not isinstance(count, int) or places.ravel().tolist() != list(range(count))):
        raise UnsupportedError("TensorArrayScatterV3 at places other than 0, 1, 2 ...")
    return TensorList(dtype_of(data), None, data)


@converter("TensorArrayGatherV3")
def array_gather(node: NodeContext) -> GraphExpr:
    """Items at places, along a new axis."""
    values = node.tensor_list(2)
    if known_shape(node, values) is None:
        values = replace(values, shape=node.dims("element_shape"))
    return _gathered(node, values, node.input(1))


@converter("TensorArraySizeV3")
def array_size(node: NodeContext) -> GraphExpr:
    """How many items there are."""
    return scalar(node.builder, count_of(node, node.tensor_list(1)), node.builder.constant(0, "int32").dtype)


@converter("TensorArrayConcatV3", outputs=("value", "lengths"))
def array_concat(node: NodeContext) -> Sequence[Value]:
    """The items one after the other, and how long each is."""
    return _joined(node, node.tensor_list(2))


@converter("TensorArrayCloseV3")
def array_close(node: NodeContext) -> Sequence[Value]:
    """What a compiled model need not do."""
    return []
