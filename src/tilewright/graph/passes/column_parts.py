"""A product whose columns are read in equal parts gives each part as a result of its own, all in a row.

Before:  q, k, v = transpose(reshape(matmul(x, w), (batch, tokens, 3, heads, width)), (2, 0, 3, 1, 4))
         q, k, v = split(matmul(x, w), 3, axis=-1)
After:   y = matmul(x, [wq, wk, wv]);  q, k, v = y[0], y[1], y[2]

The parts are views of one result, so that the kernels that read them (attention) need no copies. For GPUs only, as
`joint_products`, which makes the same of products that come one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr
from tilewright.graph.ir.infer import keep_type
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import make, static_shape
from tilewright.graph.ir.traverse import map_functions, post_order, rewrite, users
from tilewright.graph.ops.indexing import TakeAttributes
from tilewright.graph.ops.shape import SliceAttributes, TransposeAttributes
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.joint_products import (
    constant_row,
    is_constant_product,
    matrix_of,
    stacked_part,
    stacked_product,
)
from tilewright.ir.function import IRModule

_LEAST_COLUMNS = 32
"""Columns of a part: products of fewer are too small to be apart."""


def column_parts(module: IRModule, options: GraphOptions) -> IRModule:
    """Give the parts of products as results of their own, where the target is a GPU."""
    return module if options.machine.is_cpu else map_functions(module, _separated)


@dataclass(eq=False)
class _Split:
    """A product whose columns are read in parts."""

    product: Call
    row: np.ndarray | None
    """What is added to it."""
    parts: dict[int, int]
    """Who reads which part, by identity."""
    shape: tuple[int, ...]
    """A part as the product gives it: rows, columns as they are read."""
    axes: tuple[int, ...]
    """What is transposed of that."""
    made: GraphExpr | None = None


def _separated(function: Function) -> Function:
    order = post_order(function, closures=False)
    products = [item for item in order if isinstance(item, Call) and is_constant_product(item)]
    if not products:
        return function
    readers = users(post_order(function))
    splits = [found for product in products if (found := _split(product, readers)) is not None]
    places = {reader: split for split in splits for reader in split.parts}
    if not places:
        return function

    def visit(old: GraphExpr, item: GraphExpr) -> GraphExpr | None:
        keep_type(old, item)
        split = places.get(id(old))
        return None if split is None else _part(split, split.parts[id(old)], item)

    changed = rewrite(function, visit)
    assert isinstance(changed, Function)
    return changed


def _split(product: Call, readers: dict[int, list[GraphExpr]]) -> _Split | None:
    """How a product is read in parts; None where it is not."""
    added = constant_row(product, readers[id(product)])
    end, row = (product, None) if added is None else added
    shape = static_shape(end)
    assert shape is not None
    calls = [item for item in readers[id(end)] if isinstance(item, Call)]
    if len(calls) > 1 and all(is_call_to(item, "slice") for item in calls):
        count = len(calls)
        numbers = [_columns_number(item, count) for item in calls]
        part: tuple[int, ...] = (*shape[:-1], shape[-1] // count)
        axes = tuple(range(len(part)))
    else:
        found = _digit(end, readers)
        if found is None:
            return None
        calls, numbers, count, part, axes = found
    if sorted(numbers) != list(range(count)) or shape[-1] % count or shape[-1] // count < _LEAST_COLUMNS:
        return None
    return _Split(product, row, {id(item): number for item, number in zip(calls, numbers, strict=True)}, part, axes)


def _columns_number(item: Call, count: int) -> int:
    """Which one of so many equal parts of the columns a slice is; -1: none."""
    shape = static_shape(item.args[0])
    assert shape is not None
    number = _number(item, len(shape) - 1, shape[-1] // count)
    return number if shape[-1] % count == 0 else -1


def _number(item: Call, axis: int, width: int) -> int:
    """Which part of an axis, of so many elements, a slice or an index has, and all of the others; -1: none."""
    attributes, shape = item.attributes, static_shape(item.args[0])
    if isinstance(attributes, TakeAttributes) and width == 1 and attributes.axis == axis:
        index = item.args[1]
        return int(index.data) if isinstance(index, Constant) and index.data.shape == () else -1
    if not isinstance(attributes, SliceAttributes) or shape is None or set(attributes.strides) != {1}:
        return -1
    bounds = list(zip(attributes.begin, attributes.end, strict=True))
    begin, end = bounds.pop(axis)
    if bounds != [(0, size) for place, size in enumerate(shape) if place != axis]:
        return -1
    return begin // width if isinstance(begin, int) and begin % width == 0 and end == begin + width else -1


def _digit(
    end: GraphExpr, readers: dict[int, list[GraphExpr]]
) -> tuple[list[Call], list[int], int, tuple[int, ...], tuple[int, ...]] | None:
    """Readers of a product in another shape, of which each has one index of the first axis of its columns.

    With the indices, how many there are, the shape of a part, and how it is transposed.
    """
    (split,) = readers[id(end)] if len(readers[id(end)]) == 1 else (None,)
    before, sizes = static_shape(end), None if split is None else static_shape(split)
    if split is None or not is_call_to(split, "reshape") or before is None or sizes is None:
        return None
    place = next((n for n in range(len(sizes)) if prod(sizes[:n]) == prod(before[:-1])), None)
    if place is None or place + 1 >= len(sizes):
        return None
    last, axes = split, tuple(range(len(sizes)))
    following = readers[id(split)]
    if len(following) == 1 and is_call_to(following[0], "transpose"):
        last = following[0]
        assert isinstance(last, Call) and isinstance(last.attributes, TransposeAttributes)
        axes = last.attributes.axes
    calls = [item for item in readers[id(last)] if isinstance(item, Call) and item.args[0] is last]
    numbers = [_number(item, axes.index(place), 1) for item in calls]
    if len(calls) != len(readers[id(last)]):
        return None
    left = tuple(axis - (axis > place) for axis in axes if axis != place)
    return calls, numbers, sizes[place], (*sizes[:place], *sizes[place + 1 :]), left


def _part(split: _Split, number: int, item: GraphExpr) -> GraphExpr:
    """A part of a product, given the new form of who reads it."""
    if split.made is None:
        split.made = _product(split, item)
    expected = static_shape(item)
    part = stacked_part(split.made, number, split.shape)
    if split.axes != tuple(range(len(split.axes))):
        part = make("transpose", part, axes=split.axes, span=item.span)
    return part if static_shape(part) == expected else make("reshape", part, shape=expected, span=item.span)


def _product(split: _Split, item: GraphExpr) -> GraphExpr:
    matrix, count = matrix_of(split.product), len(split.parts)
    rows: Sequence[np.ndarray] = [] if split.row is None else np.split(split.row, count)
    return stacked_product(item, np.split(matrix, count, axis=1), rows, split.product.args[1])
