"""Converters of sequences and optionals: lists whose length is known while importing, held as tuples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.builder import rank_of, shape_of
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.registry import converter
from tilewright.graph.expr import GraphExpr, Tuple
from tilewright.ir.dtype import BOOL
from tilewright.ir.types import TupleType, Type
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


def _items(node: NodeContext, index: int = 0) -> list[GraphExpr]:
    """The items of an input that is a sequence."""
    value = node.input(index)
    if not isinstance(value.type, TupleType):
        raise UserError(f"input number {index + 1} of {node.node.op_type} must be a sequence, it is {value.type!r}")
    return [node.builder.item(value, at) for at in range(len(value.type.items))]


def _position(node: NodeContext, index: int, count: int, most: int) -> int:
    """A constant place in a sequence, which may count from the end."""
    place = node.constant_int(index, "the position")
    if not -count <= place <= most:
        raise UserError(f"the position {place} is not in a sequence of {count}")
    return place + count if place < 0 else place


@converter("SequenceEmpty")
def sequence_empty(node: NodeContext) -> GraphExpr:
    """A sequence of nothing."""
    node.ignore("dtype")
    return _sequence(node, ())


@converter("SequenceConstruct")
def sequence_construct(node: NodeContext) -> GraphExpr:
    """A sequence of the inputs."""
    return _sequence(node, node.all_inputs())


@converter("SequenceInsert")
def sequence_insert(node: NodeContext) -> GraphExpr:
    """A sequence with one item more, at a place or at the end."""
    items = _items(node)
    place = _position(node, 2, len(items), len(items)) if node.has_input(2) else len(items)
    items.insert(place, node.input(1))
    return _sequence(node, items)


@converter("SequenceErase")
def sequence_erase(node: NodeContext) -> GraphExpr:
    """A sequence without one item, or without the last."""
    items = _items(node)
    place = _position(node, 1, len(items), len(items) - 1) if node.has_input(1) else len(items) - 1
    if not items:
        raise UserError("SequenceErase of an empty sequence")
    del items[place]
    return _sequence(node, items)


@converter("SequenceAt")
def sequence_at(node: NodeContext) -> GraphExpr:
    """One item."""
    items = _items(node)
    return items[_position(node, 1, len(items), len(items) - 1)]


@converter("SequenceLength")
def sequence_length(node: NodeContext) -> GraphExpr:
    """The number of items, a constant."""
    return node.builder.constant(np.array(len(_items(node)), np.int64), "int64")


@converter("ConcatFromSequence")
def concat_from_sequence(node: NodeContext) -> GraphExpr:
    """The items one after the other, along an axis they have or a new one."""
    items = _items(node)
    if not items:
        raise UserError("ConcatFromSequence of an empty sequence")
    fresh = node.flag("new_axis")
    axis = node.axis(node.integer("axis"), rank_of(items[0]) + int(fresh))
    if fresh:
        items = [node.builder.expand_dims(item, (axis,)) for item in items]
    return node.builder.concatenate(items, axis)


@converter("SplitToSequence")
def split_to_sequence(node: NodeContext) -> GraphExpr:
    """Parts of given sizes (the last may be shorter), or slices."""
    data = node.input(0)
    axis = node.axis(node.integer("axis", 0), rank_of(data))
    length = shape_of(data)[axis]
    keep = node.flag("keepdims", True)
    if not node.has_input(1):
        sizes = [1] * length
    else:
        found = node.constant_ints(1, "the sizes")
        keep = True
        if rank_of(node.input(1)):
            sizes = list(found)
        else:
            step = found[0]
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
            part = node.builder.reshape(part, [dim for at, dim in enumerate(shape_of(data)) if at != axis])
        parts.append(part)
        start += size
    return _sequence(node, parts)


@converter("SequenceMap")
def sequence_map(node: NodeContext) -> list[GraphExpr | None]:
    """A graph applied to the items of one or several sequences; other inputs go to each."""
    body = node.graph("body")
    values = node.all_inputs()
    first = _items(node)
    columns: list[list[GraphExpr]] = [[] for _ in body.outputs]
    lists = [_items(node, at) if isinstance(value.type, TupleType) else None for at, value in enumerate(values)]
    if any(items is not None and len(items) != len(first) for items in lists):
        raise UserError("the sequences of SequenceMap differ in length")
    for step in range(len(first)):
        given = [value if items is None else items[step] for value, items in zip(values, lists, strict=True)]
        for column, result in zip(columns, node.run_graph(body, given), strict=True):
            column.append(result)
    return [_sequence(node, column) for column in columns]


@converter("Optional")
def optional(node: NodeContext) -> GraphExpr:
    """A value that is there is itself."""
    node.ignore("type")
    if not node.has_input(0):
        raise UnsupportedError("an Optional without a value")
    return node.input(0)


@converter("OptionalHasElement")
def optional_has_element(node: NodeContext) -> GraphExpr:
    """Known while importing."""
    return node.builder.constant(node.has_input(0), BOOL)


@converter("OptionalGetElement")
def optional_get_element(node: NodeContext) -> GraphExpr:
    """The value."""
    return node.input(0)
