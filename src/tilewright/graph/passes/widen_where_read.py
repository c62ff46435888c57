"""What several operators read in a wider type is widened by each of them: memory holds the narrow one.

Before:  wide = cast(q, int32);  f(wide);  g(wide)
After:   f(cast(q, int32));  g(cast(q, int32))

Equal expressions are computed once until here. One that only widens (bytes to 32-bit integers, also less their zero
point, or halves to float32, also times a number) would be a kernel's result, and larger than what it is made of: the
gradients of a scaled loss, which a norm and an update read. So would one that scales what a kernel without an epilogue
gives: a second tensor of its size. Operators that no cast becomes part of share one.
"""

from __future__ import annotations

from typing import Final

from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr
from tilewright.graph.ir.op import FusionKind, Operator, is_call_to
from tilewright.graph.ir.traverse import children, map_functions, post_order, rewrite, users
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
    """Whether an expression is a tensor in a wider type, perhaps less a zero point, or such a tensor scaled."""
    if not isinstance(item, Call) or not isinstance(item.type, TensorType):
        return False
    if _is_scaled(item):
        return _is_widened_float(item.args[0]) or _takes_no_epilogue(item.args[0])
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


def _is_scaled(item: Call) -> bool:
    """Whether all elements of a tensor of floats are multiplied or divided by one number."""
    if not (is_call_to(item, "multiply") or is_call_to(item, "divide")) or not item.tensor_type.dtype.is_float:
        return False
    whole, factor = item.args
    return factor.tensor_type.static_shape == () and whole.tensor_type.shape == item.tensor_type.shape


def _is_widened_float(item: GraphExpr) -> bool:
    return is_call_to(item, "cast") and _widens(item) and item.tensor_type.dtype is FLOAT32


def _takes_no_epilogue(item: GraphExpr) -> bool:
    """Whether what follows a value is no part of the kernel that gives it."""
    while is_call_to(item, "reshape"):
        assert isinstance(item, Call)
        item = item.args[0]
    operator = item.callee if isinstance(item, Call) else None
    return isinstance(operator, Operator) and operator.kind in (FusionKind.REDUCTION, FusionKind.OPAQUE)


def _takes(reader: Call, item: GraphExpr) -> bool:
    """Whether a reader gets a cast of its own."""
    if not _widens(item) or (isinstance(item, Call) and _is_scaled(item) and _repeats(reader, item)):
        return False
    is_taking = isinstance(reader.callee, Operator) and reader.callee.kind in _TAKING
    return is_taking or (item.tensor_type.dtype is INT32 and is_call_to(item, "cast"))


def _repeats(reader: Call, item: GraphExpr) -> bool:
    """Whether a reader would compute an element of what it reads for several of its own."""
    if not isinstance(reader.callee, Operator) or reader.callee.kind is FusionKind.REDUCTION:
        return False
    is_same = isinstance(reader.type, TensorType) and reader.type.shape == item.tensor_type.shape
    return not is_same and not is_call_to(reader, "reshape")


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
    own = {id(arg): _again(arg) for arg in children(new) if isinstance(new, Call) and _takes(new, arg)}
    if not isinstance(new, Call) or not own:
        return None
    result = Call(new.callee, tuple(own.get(id(arg), arg) for arg in new.args), new.attributes)
    result.span, result.type = old.span, old.type
    return result


def _again(item: GraphExpr) -> Call:
    """The same call once more, with a cast of its own."""
    assert isinstance(item, Call)
    args = (_again(item.args[0]), *item.args[1:]) if len(item.args) > 1 and _widens(item.args[0]) else item.args
    result = Call(item.callee, args, item.attributes)
    result.span, result.type = item.span, item.type
    return result
