"""Bytes that several operators read as 32-bit integers are widened by each of them: memory holds bytes.

Before:  wide = cast(q, int32);  f(wide);  g(wide)
After:   f(cast(q, int32));  g(cast(q, int32))

Equal expressions are computed once until here. One that only widens would be a kernel's result, four times as large as
what it is made of.
"""

from __future__ import annotations

from tilewright.graph.ir.expr import Call, Function, GraphExpr
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.traverse import map_functions, post_order, rewrite, users
from tilewright.ir.dtype import INT8, INT32, UINT8
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType


def widen_where_read(module: IRModule) -> IRModule:
    """Give every reader of widened bytes a cast of its own."""
    return map_functions(module, _rewritten)


def _widens(item: GraphExpr) -> bool:
    """Whether an expression is bytes as 32-bit integers."""
    if not is_call_to(item, "cast") or not isinstance(item, Call) or not isinstance(item.type, TensorType):
        return False
    source = item.args[0].type
    return item.type.dtype is INT32 and isinstance(source, TensorType) and source.dtype in (INT8, UINT8)


def _rewritten(function: Function) -> Function:
    order = post_order(function)
    readers = users(order)
    if not any(_widens(item) and len(readers[id(item)]) > 1 for item in order):
        return function
    body = rewrite(function.body, _with_own_casts)
    changed = function.replace(body=body)
    changed.type = function.type
    return changed


def _with_own_casts(old: GraphExpr, new: GraphExpr) -> GraphExpr | None:
    # A node whose children were rebuilt has the type that it had.
    new.type = old.type if new.type is None else new.type
    if not isinstance(new, Call) or not any(map(_widens, new.args)):
        return None
    result = Call(new.callee, tuple(_again(arg) if _widens(arg) else arg for arg in new.args), new.attributes)
    result.span, result.type = old.span, old.type
    return result


def _again(item: GraphExpr) -> Call:
    """The same call once more."""
    assert isinstance(item, Call)
    result = Call(item.callee, item.args, item.attributes)
    result.span, result.type = item.span, item.type
    return result
