"""Two parts of a product that meet element by element become neighbours, so that they meet in the product's kernel.

Before:  y = matmul(x, [g u]);  silu(y[:, :n]) * y[:, n:]           a kernel of its own reads all of y again
         silu(matmul(x, g)) * matmul(x, u)
After:   y = matmul(x, [g0 u0 g1 u1 ...]);  silu(y[:, ::2]) * y[:, 1::2]

The columns of the constant matrix (and of a constant row that is added) alternate: a thread that has neighbouring sums
has both parts of a result. This is the first half of a gated layer of a transformer (SwiGLU, GEGLU). For GPUs only: on
a CPU rows of the product stay in the cache until they are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.graph.ir.expr import Call, Function, GraphExpr
from tilewright.graph.ir.infer import keep_type
from tilewright.graph.ir.op import Operator, is_call_to
from tilewright.graph.ir.rewrite import make, static_shape
from tilewright.graph.ir.traverse import map_functions, post_order, rewrite, users
from tilewright.graph.ops.shape import SliceAttributes
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.joint_products import (
    constant_like,
    constant_row,
    is_constant_product,
    matrix_of,
    multiplied,
)
from tilewright.ir.function import IRModule

_MOST_STEPS = 16
"""Elementwise operators until both parts have met."""


def paired_columns(module: IRModule, options: GraphOptions) -> IRModule:
    """Put the columns of two parts beside each other where the target is a GPU."""
    return module if options.machine.is_cpu else map_functions(module, _paired)


@dataclass(eq=False)
class _Pair:
    """Two parts of a product with constant matrices, or two products of one value."""

    value: Call
    """The product, or one of the two: what it multiplies is what the joint one does."""
    matrices: tuple[np.ndarray, np.ndarray]
    rows: tuple[np.ndarray, np.ndarray] | None
    """What is added to each."""
    parts: tuple[Call, Call]
    made: GraphExpr | None = None


def _paired(function: Function) -> Function:
    order = post_order(function, closures=False)
    products = [item for item in order if isinstance(item, Call) and is_constant_product(item)]
    if not products:
        return function
    everything = post_order(function)
    graph = _Readers(everything, users(everything))
    places: dict[int, tuple[_Pair, int]] = {}
    for pair in (*_halves(products, graph), *_neighbours(products, graph)):
        if not any(id(part) in places for part in pair.parts) and graph.meet(pair.parts):
            places.update({id(part): (pair, number) for number, part in enumerate(pair.parts)})
    if not places:
        return function

    def visit(old: GraphExpr, item: GraphExpr) -> GraphExpr | None:
        keep_type(old, item)
        place = places.get(id(old))
        if place is None:
            return None
        pair, number = place
        if pair.made is None:
            pair.made = _joint(pair, item)
        return _part(pair.made, number, item)

    changed = rewrite(function, visit)
    assert isinstance(changed, Function)
    return changed


class _Readers:
    """Who reads what in a function."""

    def __init__(self, order: Sequence[GraphExpr], readers: dict[int, list[GraphExpr]]) -> None:
        self.readers = readers
        self.position = {id(item): place for place, item in enumerate(order)}

    def of(self, item: GraphExpr) -> list[GraphExpr]:
        """What reads a value."""
        return self.readers[id(item)]

    def meet(self, parts: Sequence[GraphExpr]) -> bool:
        """Whether elementwise operators make one value of two parts, and nothing else reads either."""
        shape = static_shape(parts[0])
        waiting = {id(part): part for part in parts}
        seen: set[int] = set()
        for _ in range(_MOST_STEPS):
            left = [reader for part in waiting.values() for reader in self.of(part) if id(reader) not in seen]
            if not left:
                return False
            reader = min(left, key=lambda item: self.position[id(item)])
            if not isinstance(reader, Call) or not isinstance(reader.callee, Operator):
                return False
            if not reader.callee.elementwise or static_shape(reader) != shape:
                return False
            seen.add(id(reader))
            waiting[id(reader)] = reader
            done = [key for key, item in waiting.items() if all(id(other) in seen for other in self.of(item))]
            if any(not self.of(waiting[key]) for key in done):
                return False
            for key in done:
                del waiting[key]
            if len(waiting) == 1:
                return True
        return False


def _result(product: Call, graph: _Readers) -> tuple[Call, np.ndarray | None]:
    """What is read of a product: with the constant row that is added to it, in any shape that keeps its columns."""
    row: np.ndarray | None = None
    end = product
    while True:
        readers = graph.of(end)
        added = constant_row(end, readers) if row is None else None
        if added is not None:
            end, row = added
        elif len(readers) == 1 and _keeps_columns(readers[0]):
            assert isinstance(readers[0], Call)
            end = readers[0]
        else:
            return end, row


def _keeps_columns(item: GraphExpr) -> bool:
    """Whether a value is another one with other dimensions of rows."""
    if not isinstance(item, Call) or not is_call_to(item, "reshape"):
        return False
    before, after = static_shape(item.args[0]), static_shape(item)
    return before is not None and after is not None and before[-1:] == after[-1:] != ()


def _halves(products: Sequence[Call], graph: _Readers) -> list[_Pair]:
    """Products that are read by halves."""
    found: list[_Pair] = []
    for product in products:
        end, row = _result(product, graph)
        readers = graph.of(end)
        if len(readers) != 2 or not all(is_call_to(reader, "slice") for reader in readers):
            continue
        first, second = sorted(readers, key=_begin)
        matrix = matrix_of(product)
        count = matrix.shape[1] // 2
        assert isinstance(first, Call) and isinstance(second, Call)
        if _is_columns(first, 0, count) and _is_columns(second, count, 2 * count) and matrix.shape[1] == 2 * count:
            rows = None if row is None else (row[:count], row[count:])
            found.append(_Pair(product, (matrix[:, :count], matrix[:, count:]), rows, (first, second)))
    return found


def _begin(item: GraphExpr) -> int:
    assert isinstance(item, Call) and isinstance(item.attributes, SliceAttributes)
    begin = item.attributes.begin[-1]
    return begin if isinstance(begin, int) else 0


def _is_columns(part: Call, begin: int, end: int) -> bool:
    """Whether a slice is the columns from one to another of all rows."""
    shape, attributes = static_shape(part.args[0]), part.attributes
    assert isinstance(attributes, SliceAttributes)
    if shape is None or any(stride != 1 for stride in attributes.strides):
        return False
    whole = attributes.begin[:-1] == (0,) * (len(shape) - 1) and attributes.end[:-1] == shape[:-1]
    return whole and (attributes.begin[-1], attributes.end[-1]) == (begin, end)


def _neighbours(products: Sequence[Call], graph: _Readers) -> list[_Pair]:
    """Two products of one value and of one width; a constant row is added to both or none."""
    families: dict[tuple[int, tuple[int, ...] | None], list[Call]] = {}
    for product in products:
        families.setdefault((id(product.args[0]), static_shape(product)), []).append(product)
    found: list[_Pair] = []
    for calls in families.values():
        if len(calls) != 2:
            continue
        matrices = matrix_of(calls[0]), matrix_of(calls[1])
        (end, row), (other_end, other_row) = (_result(call, graph) for call in calls)
        if row is not None and other_row is not None:
            found.append(_Pair(calls[0], matrices, (row, other_row), (end, other_end)))
        elif row is None and other_row is None:
            found.append(_Pair(calls[0], matrices, None, (end, other_end)))
    return found


def _joint(pair: _Pair, item: GraphExpr) -> GraphExpr:
    """The product whose columns alternate, given the new form of one of the parts."""
    weights = pair.value.args[1]
    result = make("matmul", multiplied(item), constant_like(_alternating(*pair.matrices), weights), span=item.span)
    if pair.rows is not None:
        result = make("add", result, constant_like(_alternating(*pair.rows), weights), span=item.span)
    return result


def _alternating(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Elements of two arrays by turns along the last axis."""
    return np.stack((first, second), axis=-1).reshape(*first.shape[:-1], -1)


def _part(product: GraphExpr, number: int, item: GraphExpr) -> GraphExpr:
    """What one of the two parts is in the joint product."""
    shape, expected = static_shape(product), static_shape(item)
    assert shape is not None and expected is not None
    begin, strides = [0] * len(shape), [1] * len(shape)
    begin[-1], strides[-1] = number, 2
    part = make("slice", product, begin=tuple(begin), end=shape, strides=tuple(strides), span=item.span)
    return part if static_shape(part) == expected else make("reshape", part, shape=expected, span=item.span)
