"""Converters of sequences and optionals.

A sequence whose items are known while importing is held as a tuple, and positions in it are looked up then and there;
any other is a value of the program (`SequenceType`), and host functions work on it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import Builder, dtype_of, evaluate, rank_of, sizes_of
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.reader import data_type
from tilewright.frontend.onnx.registry import UseDefinition, converter
from tilewright.graph.ir.expr import Call, GraphExpr, Tuple
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.unify import Mismatch, Unifier, show_type
from tilewright.ir.dtype import BOOL, FLOAT32
from tilewright.ir.expr import PrimExpr
from tilewright.ir.types import OptionalType, SequenceType, TensorType, TupleType, Type
from tilewright.support.errors import CompilerBug, UnsupportedError, UserError


def _sequence(node: NodeContext, items: Sequence[GraphExpr]) -> GraphExpr:
    kinds: list[Type] = []
    for item in items:
        if item.type is None:
            raise CompilerBug("an item of a sequence has no type")
        kinds.append(item.type)
    made = Tuple(tuple(items))
    made.type, made.span = TupleType(tuple(kinds)), node.builder.span
    return made


def common_type(kinds: Sequence[Type]) -> Type:
    """A type that all items of a sequence fit: dimensions (or the rank) that differ are unknown."""
    joined = kinds[0] if kinds else TensorType(None, FLOAT32)
    try:
        for kind in kinds[1:]:
            joined = Unifier().join(joined, kind)
    except Mismatch as error:
        texts = ", ".join(show_type(kind) for kind in kinds)
        raise UserError(f"the items of a sequence must be of one type, they are {texts}: {error}") from None
    return joined


def as_sequence(builder: Builder, value: GraphExpr) -> GraphExpr:
    """A sequence that is held as a tuple, as a value of the program."""
    if not isinstance(value.type, TupleType):
        return value
    items = [builder.item(value, at) for at in range(len(value.type.items))]
    return builder.call("sequence.make", *items, result=SequenceType(common_type(value.type.items)))


def _is_empty(value: GraphExpr) -> bool:
    """Whether a sequence is certainly one of nothing."""
    return isinstance(value, Call) and is_call_to(value, "sequence.make") and not value.args


def _known(value: GraphExpr) -> bool:
    """Whether the items of a sequence are known."""
    return isinstance(value.type, TupleType) or _is_empty(value)


def _items(node: NodeContext, index: int = 0) -> list[GraphExpr]:
    """The items of an input that is a sequence whose items are known."""
    value = node.input(index)
    if not isinstance(value.type, TupleType):
        return []
    return [node.builder.item(value, at) for at in range(len(value.type.items))]


def _held(node: NodeContext, value: GraphExpr) -> Type:
    """What a sequence holds."""
    if isinstance(value.type, TupleType):
        return common_type(value.type.items)
    if not isinstance(value.type, SequenceType):
        raise UserError(f"an input of {node.node.op_type} must be a sequence, it is {value.type!r}")
    return value.type.item


def opened(node: NodeContext, kind: Type) -> Type:
    """A type with a new symbol in the place of each unknown dimension."""
    if not isinstance(kind, TensorType) or kind.shape is None:
        return kind
    dims = (node.symbol(f"size{axis}") if dim is None else dim for axis, dim in enumerate(kind.shape))
    return TensorType(tuple(dims), kind.dtype)


def _place(node: NodeContext, index: int, count: int, most: int) -> int | None:
    """A place in a sequence (which may count from the end), if it is known."""
    found = evaluate(node.input(index))
    if found is None:
        return None
    place = node.constant_int(index, "the position")
    if not -count <= place <= most:
        raise UserError(f"the position {place} is not in a sequence of {count}")
    return place + count if place < 0 else place


def _check(node: NodeContext) -> None:
    """The first input must be a sequence."""
    _held(node, node.input(0))


@converter("SequenceEmpty")
def sequence_empty(node: NodeContext) -> GraphExpr:
    """A sequence of nothing."""
    held = TensorType(None, data_type(node.integer("dtype", 1), "the sequence"))
    return node.call("sequence.make", result=SequenceType(held))


@converter("SequenceConstruct")
def sequence_construct(node: NodeContext) -> GraphExpr:
    """A sequence of the inputs."""
    return _sequence(node, node.all_inputs())


@converter("SequenceInsert")
def sequence_insert(node: NodeContext) -> GraphExpr:
    """A sequence with one item more, at a place or at the end."""
    _check(node)
    value, item = node.input(0), node.input(1)
    if _known(value):
        items = _items(node)
        place = _place(node, 2, len(items), len(items)) if node.has_input(2) else len(items)
        if place is not None:
            items.insert(place, item)
            return _sequence(node, items)
    held = _held(node, value)
    if item.type is None:
        raise CompilerBug("an item of a sequence has no type")
    empty = isinstance(held, TensorType) and held.shape is None
    grown = TensorType(None, dtype_of(item)) if empty else common_type([held, item.type])
    position = [node.input(2)] if node.has_input(2) else []
    return node.call("sequence.insert", as_sequence(node.builder, value), item, *position, result=SequenceType(grown))


@converter("SequenceErase")
def sequence_erase(node: NodeContext) -> GraphExpr:
    """A sequence without one item, or without the last."""
    _check(node)
    value = node.input(0)
    if _known(value):
        items = _items(node)
        if not items:
            raise UserError("SequenceErase of an empty sequence")
        place = _place(node, 1, len(items), len(items) - 1) if node.has_input(1) else len(items) - 1
        if place is not None:
            del items[place]
            return _sequence(node, items)
    position = [node.input(1)] if node.has_input(1) else []
    return node.call("sequence.erase", as_sequence(node.builder, value), *position)


@converter("SequenceAt")
def sequence_at(node: NodeContext) -> GraphExpr:
    """One item."""
    _check(node)
    value = node.input(0)
    if _known(value):
        items = _items(node)
        place = _place(node, 1, len(items), len(items) - 1)
        if place is not None:
            return items[place]
    result = opened(node, _held(node, value))
    return node.call("sequence.at", as_sequence(node.builder, value), node.input(1), result=result)


@converter("SequenceLength")
def sequence_length(node: NodeContext) -> GraphExpr:
    """The number of items."""
    _check(node)
    value = node.input(0)
    if _known(value):
        return node.builder.constant(np.array(len(_items(node)), np.int64), "int64")
    return node.call("sequence.length", value)


@converter("ConcatFromSequence")
def concat_from_sequence(node: NodeContext) -> GraphExpr:
    """The items one after the other, along an axis they have or a new one."""
    _check(node)
    fresh, place = node.flag("new_axis"), node.integer("axis")
    if _known(node.input(0)):
        items = _items(node)
        if not items:
            raise UserError("ConcatFromSequence of an empty sequence")
        axis = node.axis(place, rank_of(items[0]) + int(fresh))
        if fresh:
            items = [node.builder.expand_dims(item, (axis,)) for item in items]
        return node.builder.concatenate(items, axis)
    held = _held(node, node.input(0))
    if not isinstance(held, TensorType) or held.shape is None:
        raise UnsupportedError("ConcatFromSequence of items whose number of dimensions is not known")
    dims = list(held.shape)
    axis = node.axis(place, len(dims) + int(fresh))
    if fresh:
        dims.insert(axis, None)
    else:
        dims[axis] = None
    result = opened(node, TensorType(tuple(dims), held.dtype))
    return node.call("sequence.concatenate", node.input(0), axis=axis, new_axis=fresh, result=result)


@converter("SplitToSequence")
def split_to_sequence(node: NodeContext) -> GraphExpr:
    """Parts of given sizes (the last may be shorter), or slices."""
    data = node.input(0)
    axis = node.axis(node.integer("axis", 0), rank_of(data))
    keep = node.flag("keepdims", True)
    length = sizes_of(data)[axis]
    found = None if not node.has_input(1) else evaluate(node.input(1))
    if not isinstance(length, int) or (node.has_input(1) and found is None):
        return _split_at_run_time(node, data, axis, keep)
    if found is None:
        sizes = [1] * length
    else:
        keep = True
        given = node.constant_ints(1, "the sizes")
        if rank_of(node.input(1)):
            sizes = list(given)
        else:
            step = given[0]
            if step < 1:
                raise UserError(f"parts of {step} elements")
            sizes = [min(step, length - start) for start in range(0, length, step)]
    if sum(sizes) != length or any(size < 0 for size in sizes):
        raise UserError(f"parts of {sizes} do not fit a dimension of {length}")
    parts: list[GraphExpr] = []
    start = 0
    for size in sizes:
        part = node.builder.slice_axis(data, axis, start, start + size)
        if not keep:
            part = node.builder.reshape(part, [dim for at, dim in enumerate(sizes_of(data)) if at != axis])
        parts.append(part)
        start += size
    return _sequence(node, parts)


def _split_at_run_time(node: NodeContext, data: GraphExpr, axis: int, keep: bool) -> GraphExpr:
    assert isinstance(data.type, TensorType) and data.type.shape is not None
    dims: list[PrimExpr | None] = list(data.type.shape)
    dims[axis] = None
    sizes = [node.input(1)] if node.has_input(1) else []
    if not sizes and not keep:
        del dims[axis]
    result = SequenceType(TensorType(tuple(dims), data.type.dtype))
    return node.call("sequence.split", data, *sizes, axis=axis, keepdims=keep, result=result)


@converter("SequenceMap")
def sequence_map(node: NodeContext) -> list[GraphExpr | None]:
    """A graph applied to the items of one or several sequences; other inputs go to each."""
    body = node.graph("body")
    values = node.all_inputs()
    _check(node)
    if not all(_known(value) for value in values if isinstance(value.type, (SequenceType, TupleType))):
        raise UseDefinition  # a Loop over the positions
    first = _items(node)
    columns: list[list[GraphExpr]] = [[] for _ in body.outputs]
    lists = [_items(node, at) if _known(value) else None for at, value in enumerate(values)]
    if any(items is not None and len(items) != len(first) for items in lists):
        raise UserError("the sequences of SequenceMap differ in length")
    for step in range(len(first)):
        given = [value if items is None else items[step] for value, items in zip(values, lists, strict=True)]
        for column, result in zip(columns, node.run_graph(body, given), strict=True):
            column.append(result)
    return [_sequence(node, column) for column in columns]


# Optionals


@converter("Optional")
def optional(node: NodeContext) -> GraphExpr:
    """A value that may be missing: the input, or nothing of a type."""
    if not node.has_input(0):
        return node.call("optional.make", result=OptionalType(node.type("type")))
    node.ignore("type")
    value = as_sequence(node.builder, node.input(0))
    assert value.type is not None
    return node.call("optional.make", value, result=OptionalType(value.type))


def _made(value: GraphExpr) -> Call | None:
    """The call that made an optional, if it is known here."""
    return value if isinstance(value, Call) and is_call_to(value, "optional.make") else None


@converter("OptionalHasElement")
def optional_has_element(node: NodeContext) -> GraphExpr:
    """Whether there is a value: known while importing unless it is an optional of the program."""
    if node.has_input(0) and isinstance(node.input(0).type, OptionalType):
        made = _made(node.input(0))
        if made is None:
            return node.call("optional.has", node.input(0))
        return node.builder.constant(bool(made.args), BOOL)
    return node.builder.constant(node.has_input(0), BOOL)


@converter("OptionalGetElement")
def optional_get_element(node: NodeContext) -> GraphExpr:
    """The value."""
    value = node.input(0)
    if not isinstance(value.type, OptionalType):
        return value
    made = _made(value)
    if made is not None and made.args:
        return made.args[0]
    return node.call("optional.get", value, result=opened(node, value.type.item))
