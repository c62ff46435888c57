"""What several operators read in a wider type is widened by each of them: memory holds the narrow one.

Before:  wide = cast(q, int32);  f(wide);  g(wide)
After:   f(cast(q, int32));  g(cast(q, int32))

Equal expressions are computed once until here. One that only widens (bytes to 32-bit integers, also less their zero
point, or halves to float32) would be a kernel's result, and larger than what it is made of. Operators that no cast
becomes part of share one.
"""

from __future__ import annotations

from typing import Final

from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr
from tilewright.graph.ir.op import FusionKind, Operator, is_call_to
from tilewright.graph.ir.traverse import map_functions, post_order, rewrite, users
from tilewright.ir.dtype import BFLOAT16, FLOAT16, FLOAT32, INT8, INT32, UINT8
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType

_WIDER: Final = {INT8: INT32, UINT8: INT32, FLOAT16: FLOAT32, BFLOAT16: FLOAT32}
_TAKING: Final = (FusionKind.INJECTIVE, FusionKind.REDUCTION)
"""Operators whose kernels take casts before them; those of bytes are known to all others."""


def widen_where_read(module: IRModule) -> IRModule:
    """Give every reader of what is widened a cast of its own."""
    return map_functions(module, _rewritten)


def _widens(item: GraphExpr) -> bool:
    """Whether an expression is a tensor in a wider type, perhaps less a zero point."""
    if not isinstance(item, Call) or not isinstance(item.type, TensorType):
        return False
    if _is_moved(item):
        return item.type.dtype is INT32 and is_call_to(item.args[0], "cast") and _widens(item.args[0])
    if not is_call_to(item, "cast"):
        return False
    source = item.args[0].type
    return isinstance(source, TensorType) and _WIDER.get(source.dtype) is item.type.dtype


def _is_moved(item: Call) -> bool:
    """Whether a number is added to all elements of something, or taken off."""
    if not (is_call_to(item, "add") or is_call_to(item, "subtract")):
        return False
    amount = item.args[1]
    return isinstance(amount, Constant) and amount.data.size == 1


def _takes(reader: Call, item: GraphExpr) -> bool:
    """Whether a reader gets a cast of its own."""
    if not _widens(item):
        return False
    is_taking = isinstance(reader.callee, Operator) and reader.callee.kind in _TAKING
    return is_taking or (item.tensor_type.dtype is INT32 and is_call_to(item, "cast"))


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
    if not isinstance(new, Call) or not any(_takes(new, arg) for arg in new.args):
        return None
    result = Call(new.callee, tuple(_again(arg) if _takes(new, arg) else arg for arg in new.args), new.attributes)
    result.span, result.type = old.span, old.type
    return result


def _again(item: GraphExpr) -> Call:
    """The same call once more, with a cast of its own."""
    assert isinstance(item, Call)
    args = (_again(item.args[0]), item.args[1]) if _is_moved(item) else item.args
    result = Call(item.callee, args, item.attributes)
    result.span, result.type = item.span, item.type
    return result
