"""Sums of many terms as one: padded parts are put side by side, thin products are one product.

Before:  pad(a, after=n) + pad(b, before=n)                        zeros are written, read and added
After:   concatenate(a, b)

Before:  v + matmul(a, b) + matmul(c, d)                           a few rows each: time goes by on writing the results
After:   v + matmul([a c], [b; d])

Gradients are such sums: of a value that is read in slices, and of the weight of a recurrent layer, a term for each
step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from tilewright.graph.ir.expr import Call, Function, GraphExpr
from tilewright.graph.ir.infer import keep_type
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import make, static_shape
from tilewright.graph.ir.traverse import map_functions, post_order, rewrite, users
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.ops.shape import PadAttributes
from tilewright.ir.function import IRModule

_RESULTS_A_COPY = 4
"""A product is thin if its result has so many times the elements of its operands, which are copied to be joined."""


def sums_of_parts(module: IRModule) -> IRModule:
    """Join the terms of sums."""
    return map_functions(module, _joined)


def _joined(function: Function) -> Function:
    order = post_order(function)
    readers = users(order)
    sums = {id(item) for item in order if _is_sum(item)}
    inner = {
        key
        for key in sums
        if len(readers[key]) == 1 and id(readers[key][0]) in sums  # read by one sum, and nothing else
    }
    if not sums:
        return function

    def visit(old: GraphExpr, item: GraphExpr) -> GraphExpr | None:
        keep_type(old, item)
        if id(old) not in sums or id(old) in inner:
            return None
        terms = _terms(old, item, inner)
        alone = {id(new) for was, new in terms if len(readers[id(was)]) == 1}
        values = [new for _, new in terms]
        fewer = _with_joint_products(_side_by_side(values), alone)
        return None if len(fewer) == len(values) else reduce(lambda a, b: make("add", a, b, span=item.span), fewer)

    changed = rewrite(function, visit)
    assert isinstance(changed, Function)
    return changed


def _is_sum(item: GraphExpr) -> bool:
    """Whether an expression is a sum of floats of one shape: nothing is broadcast."""
    if not is_call_to(item, "add") or not isinstance(item, Call):
        return False
    shape = static_shape(item)
    same = shape is not None and all(static_shape(arg) == shape for arg in item.args)
    return same and item.tensor_type.dtype.is_float


def _terms(old: GraphExpr, new: GraphExpr, inner: set[int]) -> list[tuple[GraphExpr, GraphExpr]]:
    """What is added in a sum, as it was and as it is now, in order."""
    terms: list[tuple[GraphExpr, GraphExpr]] = []
    stack: list[tuple[GraphExpr, GraphExpr, bool]] = [(old, new, True)]
    while stack:
        was, now, is_root = stack.pop()
        if is_root or id(was) in inner:
            assert isinstance(was, Call) and isinstance(now, Call)
            stack += [(a, b, False) for a, b in zip(was.args[::-1], now.args[::-1], strict=True)]
        else:
            terms.append((was, now))
    return terms


def _side_by_side(terms: list[GraphExpr]) -> list[GraphExpr]:
    """Terms with those that are parts of one axis, and cover it, put together."""
    parts: dict[int, list[tuple[int, int, Call]]] = {}
    for term in terms:
        place = _place(term)
        if place is not None:
            assert isinstance(term, Call)
            parts.setdefault(place[0], []).append((*place[1:], term))
    for axis, found in parts.items():
        found.sort(key=lambda part: part[0])
        ends = [0, *(end for _, end, _ in found)]
        shape = static_shape(found[0][2])
        assert shape is not None
        covered = ends[-1] == shape[axis] and all(part[0] == end for part, end in zip(found, ends, strict=False))
        if len(found) > 1 and covered:
            whole = make("concatenate", *(part.args[0] for _, _, part in found), axis=axis, span=found[0][2].span)
            taken = {id(part) for _, _, part in found}
            return [whole, *(term for term in terms if id(term) not in taken)]
    return terms


def _place(term: GraphExpr) -> tuple[int, int, int] | None:
    """The axis, begin and end of what a term has beside zeros, if it is padded along one axis."""
    shape = static_shape(term)
    if not is_call_to(term, "pad") or not isinstance(term, Call) or shape is None:
        return None
    how = term.attributes
    assert isinstance(how, PadAttributes)
    axes = [axis for axis, pair in enumerate(zip(how.before, how.after, strict=True)) if any(pair)]
    if how.mode != "constant" or how.value != 0.0 or len(axes) != 1:
        return None
    before, after = how.before[axes[0]], how.after[axes[0]]
    if not isinstance(before, int) or not isinstance(after, int) or min(before, after) < 0:
        return None
    return axes[0], before, shape[axes[0]] - after


def _with_joint_products(terms: list[GraphExpr], alone: set[int]) -> list[GraphExpr]:
    """Terms with thin products that nothing else reads as one, in the place of the first."""
    kinds: dict[tuple[bool, bool], list[Call]] = {}
    for term in terms:
        if id(term) in alone and _is_thin(term):
            assert isinstance(term, Call) and isinstance(term.attributes, MatmulAttributes)
            kinds.setdefault((term.attributes.transpose_a, term.attributes.transpose_b), []).append(term)
    for (first, second), products in kinds.items():
        if len(products) > 1:
            taken = {id(product) for product in products[1:]}
            joint = _product(products, first, second)
            terms = [joint if term is products[0] else term for term in terms if id(term) not in taken]
    return terms


def _is_thin(term: GraphExpr) -> bool:
    shape = static_shape(term)
    if not is_call_to(term, "matmul") or not isinstance(term, Call) or shape is None or len(shape) != 2:
        return False
    operands = [static_shape(arg) for arg in term.args]
    if any(operand is None or len(operand) != 2 for operand in operands):
        return False
    copied = sum(operand[0] * operand[1] for operand in operands if operand is not None)
    return _RESULTS_A_COPY * copied <= shape[0] * shape[1]


def _product(products: Sequence[Call], transpose_a: bool, transpose_b: bool) -> GraphExpr:
    span = products[0].span
    rows = make("concatenate", *(item.args[0] for item in products), axis=0 if transpose_a else 1, span=span)
    columns = make("concatenate", *(item.args[1] for item in products), axis=1 if transpose_b else 0, span=span)
    return make("matmul", rows, columns, transpose_a=transpose_a, transpose_b=transpose_b, span=span)
