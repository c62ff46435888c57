"""Products of rows by one matrix: rows of several axes are rows of one.

Before:  fn (x: [35, 8, 650], w: [650, 10000], b: [10000]) { matmul(x, w) + b }
After:   fn (x: [1, 280, 650], w: [650, 10000], b: [10000]) { matmul(x, w) + b }

A product of a batch reads its matrix anew for each element of the batch: 26 MB for eight rows each time. Joined,
tiles of rows need not end where an element of the batch does, and each panel of the matrix is read for all rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import TypeGuard

from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import Operator, is_call_to
from tilewright.graph.ir.traverse import post_order, rewrite
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.ir.build import mul
from tilewright.ir.expr import ONE, IntImm, PrimExpr, is_const_int
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.types import TensorType
from tilewright.lower.general_sizes import dims_of
from tilewright.support.errors import UserError

Shape = tuple[PrimExpr | None, ...]


def join_rows(function: Function) -> tuple[Function, Mapping[Symbol, PrimExpr]]:
    """A primitive function over rows of one axis, and what their number is where it is open.

    The function itself where some node does not give a row from the same row of its operands.
    """
    nodes = post_order(function.body)
    products = [item for item in nodes if _is_product(item)]
    rows = {dims_of(item.type)[:-1] for item in products}
    weights = {id(item.args[1]) for item in products}
    if len(rows) != 1 or not all(map(_is_by_rows, nodes)):
        return function, {}
    (before,) = rows
    sizes = [size for size in before if size is not None and not is_const_int(size, 1)]
    if len(sizes) < 2 or None in before:
        return function, {}
    ends = {dims_of(item.type)[:-1] for item in nodes if id(item) not in weights}
    if not all(end == before or all(size is ONE for size in end) for end in ends):
        return function, {}
    count = reduce(mul, sizes)
    joined = count if isinstance(count, IntImm) else Symbol("rows")
    after = (*[ONE] * (len(before) - 1), joined)
    result = _with_rows(function, before, after, weights)
    return (function, {}) if result is None else (result, {joined: count} if isinstance(joined, Symbol) else {})


def _is_product(item: GraphExpr) -> TypeGuard[Call]:
    """Whether a node multiplies by a matrix, all rows by the same one."""
    if not isinstance(item, Call) or not (is_call_to(item, "matmul") or is_call_to(item, "qnn.matmul")):
        return False
    is_turned = isinstance(item.attributes, MatmulAttributes) and item.attributes.transpose_a
    return not is_turned and isinstance(item.args[1], Var) and len(dims_of(item.args[1].type)) == 2


def _is_by_rows(item: GraphExpr) -> bool:
    """Whether a node gives each row from that row alone, whatever axes count them."""
    if not isinstance(item.type, TensorType) or item.type.shape is None:
        return False
    if not isinstance(item, Call):
        return isinstance(item, (Var, Constant))
    return _is_product(item) or (isinstance(item.callee, Operator) and item.callee.elementwise)


def _with_rows(function: Function, before: Shape, after: Shape, weights: set[int]) -> Function | None:
    """The function with joined rows; None where an operator's attributes say how rows lie."""

    def moved(item: GraphExpr) -> Shape:
        shape = dims_of(item.type)
        return (*after, shape[-1]) if id(item) not in weights and shape[:-1] == before else shape

    params: list[Var] = []
    for param in function.params:
        assert isinstance(param.type, TensorType)
        params.append(Var(param.name, param.type.replace(shape=moved(param))))
    mapping = {id(old): new for old, new in zip(function.params, params, strict=True)}
    body = rewrite(function.body, lambda old, item: None, mapping)
    try:
        result = infer_types(Function(function.name, tuple(params), body, notes=function.notes))
    except UserError:
        return None
    assert isinstance(result, Function)
    pairs = zip(post_order(function.body), post_order(result.body), strict=True)
    return result if all(dims_of(new.type) == moved(old) for old, new in pairs) else None
