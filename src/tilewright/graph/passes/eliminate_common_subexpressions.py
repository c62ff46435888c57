"""Common subexpression elimination: equal computations become one node.

Before:  add(relu(x), relu(x)) with two relu nodes
After:   add(r, r) with r = relu(x) computed once

A node of a closure that equals one of the function around it becomes that one (it is captured). Small constants with
equal contents are merged too, and `a + b` with `b + a`. Weights that are to be computed of bytes stay as they are, as
large constants do.
"""

from __future__ import annotations

from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, Tuple, TupleGet
from tilewright.graph.ir.infer import keep_type
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.rewrite import COMMUTATIVE
from tilewright.graph.ir.traverse import map_functions, rewrite, settling
from tilewright.graph.passes.fold_constants import widens_bytes
from tilewright.ir.expr import PrimExpr
from tilewright.ir.function import IRModule
from tilewright.ir.types import Type

COMPARED_BYTES = 64 * 1024
"""Constants up to this size are compared by content."""


def eliminate_common_subexpressions(module: IRModule) -> IRModule:
    """Merge equal nodes."""
    return map_functions(module, _merge_function)


@settling
def _merge_function(function: Function) -> Function:
    table: dict[tuple[object, ...], GraphExpr] = {}

    def visit(old: GraphExpr, item: GraphExpr) -> GraphExpr | None:
        keep_type(old, item)
        key = _key(item)
        return None if key is None else table.setdefault(key, item)

    result = rewrite(function, visit)
    assert isinstance(result, Function)
    return result


def attribute_key(value: object) -> object:
    """Attributes as something to compare: sizes and types by identity (a symbol's name is only a hint)."""
    if type(value) is int:
        return value
    if isinstance(value, (PrimExpr, Type)):
        return id(value)
    return tuple(attribute_key(item) for item in value) if isinstance(value, tuple) else repr(value)


def _key(item: GraphExpr) -> tuple[object, ...] | None:
    if isinstance(item, Call) and isinstance(item.callee, Operator) and not widens_bytes(item):
        attributes = () if item.attributes is None else item.attributes.field_values()
        inputs = [id(arg) for arg in item.args]
        if item.callee.name in COMMUTATIVE:
            inputs.sort()
        return ("call", item.callee.name, *inputs, attribute_key(attributes))
    if isinstance(item, TupleGet):
        return ("get", id(item.value), item.index)
    if isinstance(item, Tuple):
        return ("tuple", *[id(part) for part in item.items])
    if isinstance(item, Constant) and item.data.nbytes <= COMPARED_BYTES:
        return ("constant", item.dtype, item.data.shape, item.data.tobytes())
    return None
