"""Products of one value with several constant matrices become one product, of which each takes its part.

Before:  matmul(x, q), matmul(x, k), matmul(x, v)                three launches that each fill a part of a GPU
After:   y = matmul(x, [q, k, v]); y[0], y[1], y[2]              one, with three results in a row: the parts are views
         y = matmul(x, [q k v]); y[:, :a], y[:, a:b], y[:, b:]   matrices of different widths: slices of columns

Where each product has a constant row added to it, the rows are joined too, so that they are added in the one kernel.
For GPUs only: a CPU is full with one of them, and reads slices of rows less well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr
from tilewright.graph.ir.infer import fill_type, keep_type
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import make, static_shape
from tilewright.graph.ir.traverse import map_functions, post_order, rewrite, users
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.fuse import is_alternate_columns
from tilewright.ir.function import IRModule


def joint_products(module: IRModule, options: GraphOptions) -> IRModule:
    """Join products of one value where the target is a GPU."""
    target = options.machine
    if target.is_cpu:
        return module
    return map_functions(module, _joined)


@dataclass(eq=False)
class _Family:
    """Products of one value."""

    calls: list[Call]
    rows: list[np.ndarray] = field(default_factory=list)
    """What is added to each, if something is to each."""
    made: GraphExpr | None = None
    """The joint product."""

    @property
    def widths(self) -> list[int]:
        """The columns of each matrix."""
        return [matrix_of(call).shape[1] for call in self.calls]


def _joined(function: Function) -> Function:
    products: dict[tuple[int, bool], list[Call]] = {}
    order = post_order(function, closures=False)
    readers = users(post_order(function))
    # Calls of one scope only: what a branch computes must not move out of it.
    for item in order:
        if isinstance(item, Call) and is_constant_product(item) and not _is_paired(item, readers):
            assert isinstance(item.attributes, MatmulAttributes)
            products.setdefault((id(item.args[0]), item.attributes.transpose_b), []).append(item)
    if all(len(calls) == 1 for calls in products.values()):
        return function
    places: dict[int, tuple[_Family, int]] = {}
    for calls in products.values():
        if len(calls) > 1:
            family, ends = _Family(calls), list[Call]()
            sums = [constant_row(call, readers[id(call)]) for call in calls]
            if all(sums):
                family.rows = [row for _, row in filter(None, sums)]
                ends = [end for end, _ in filter(None, sums)]
            places.update({id(call): (family, number) for number, call in enumerate(ends or calls)})

    def visit(old: GraphExpr, item: GraphExpr) -> GraphExpr | None:
        keep_type(old, item)
        place = places.get(id(old))
        if place is None:
            return None
        family, number = place
        if family.made is None:
            family.made = _product(item, family)
        return _part(family.made, family, number, item)

    changed = rewrite(function, visit)
    assert isinstance(changed, Function)
    return changed


def _is_paired(product: Call, readers: dict[int, list[GraphExpr]]) -> bool:
    """Whether even and odd columns of a product meet in its kernel (`paired_columns`)."""
    added = constant_row(product, readers[id(product)])
    end = product if added is None else added[0]
    return bool(readers[id(end)]) and all(map(is_alternate_columns, readers[id(end)]))


def constant_row(call: Call, readers: list[GraphExpr]) -> tuple[Call, np.ndarray] | None:
    """The sum of a product with a constant row, and the row, if nothing else reads the product."""
    if len(readers) != 1 or not is_call_to(readers[0], "add"):
        return None
    (end,) = readers
    assert isinstance(end, Call)
    other = end.args[1] if end.args[0] is call else end.args[0]
    shape = static_shape(call)
    assert shape is not None
    if not isinstance(other, Constant) or other.data.shape[-1:] != shape[-1:] or other.data.size != shape[-1]:
        return None
    return (end, other.data.reshape(-1)) if static_shape(end) == shape else None


def is_constant_product(call: Call) -> bool:
    """Whether a call is a product with a constant matrix, of known sizes."""
    if not is_call_to(call, "matmul"):
        return False
    assert isinstance(call.attributes, MatmulAttributes)
    weights = call.args[1]
    if not isinstance(weights, Constant) or weights.data.ndim != 2 or call.attributes.transpose_a:
        return False
    shape = static_shape(call)
    return shape is not None and 0 not in shape


def matrix_of(call: Call) -> np.ndarray:
    """The constant matrix of a product: steps, columns."""
    weights, attributes = call.args[1], call.attributes
    assert isinstance(weights, Constant) and isinstance(attributes, MatmulAttributes)
    return weights.data.T if attributes.transpose_b else weights.data


def _product(item: GraphExpr, family: _Family) -> GraphExpr:
    """The joint product, given the new form of one of the products (or of its sum)."""
    matrices, like = [matrix_of(call) for call in family.calls], family.calls[0].args[1]
    if len(set(family.widths)) == 1:
        return stacked_product(item, matrices, family.rows, like)
    result = make("matmul", multiplied(item), constant_like(np.concatenate(matrices, axis=1), like), span=item.span)
    if family.rows:
        result = make("add", result, constant_like(np.concatenate(family.rows), like), span=item.span)
    return result


def stacked_product(
    item: GraphExpr, matrices: Sequence[np.ndarray], rows: Sequence[np.ndarray], like: GraphExpr
) -> GraphExpr:
    """What `item` multiplies by each of some matrices, in a row, with a constant row added to each (or to none)."""
    value = multiplied(item)
    shape = static_shape(value)
    assert shape is not None
    value = make("reshape", value, shape=(prod(shape[:-1]), shape[-1]), span=item.span)
    result = make("matmul", value, constant_like(np.stack(matrices), like), span=item.span)
    if rows:
        result = make("add", result, constant_like(np.stack(rows)[:, None], like), span=item.span)
    return result


def multiplied(item: GraphExpr) -> GraphExpr:
    """The value in a product with a constant, to which more constants may have been added."""
    while not is_call_to(item, "matmul"):
        assert isinstance(item, Call)
        item = next(part for part in item.args if not isinstance(part, Constant))
    assert isinstance(item, Call)
    return item.args[0]


def constant_like(data: np.ndarray, like: GraphExpr) -> Constant:
    """A constant of the type of another one."""
    assert isinstance(like, Constant)
    joined = Constant(np.ascontiguousarray(data), like.dtype)
    joined.span = like.span
    fill_type(joined)
    return joined


def _part(product: GraphExpr, family: _Family, number: int, item: GraphExpr) -> GraphExpr:
    """What one of the products is in the joint one."""
    shape, expected = static_shape(product), static_shape(item)
    assert shape is not None and expected is not None
    if len(set(family.widths)) == 1:
        return stacked_part(product, number, expected)
    begin, end = [0] * len(shape), list(shape)
    begin[-1] = sum(family.widths[:number])
    end[-1] = begin[-1] + family.widths[number]
    return make("slice", product, begin=tuple(begin), end=tuple(end), strides=(1,) * len(shape), span=item.span)


def stacked_part(product: GraphExpr, number: int, shape: Sequence[int]) -> GraphExpr:
    """One of the results of a `stacked_product`, in any shape."""
    sizes = static_shape(product)
    assert sizes is not None
    begin, end = (number, *[0] * (len(sizes) - 1)), (number + 1, *sizes[1:])
    part = make("slice", product, begin=begin, end=end, strides=(1,) * len(sizes), span=product.span)
    return make("reshape", part, shape=tuple(shape), span=product.span)
