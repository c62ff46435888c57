"""Views: expressions that are part of their input's memory under another shape, and need no kernel."""

from __future__ import annotations

from tilewright.graph.ir.dimensions import constants
from tilewright.graph.ir.expr import Call, GraphExpr
from tilewright.graph.ir.op import Operator, is_call_to
from tilewright.graph.ir.rewrite import static_shape
from tilewright.graph.ops.shape import SliceAttributes

DEPENDENT_VIEWS = ("checked", "after")
"""Operators whose result is their first input itself, once their second one is there."""
_WHOLE_VIEWS = frozenset(("reshape", *DEPENDENT_VIEWS))


def is_view(item: GraphExpr) -> bool:
    """Whether an expression is part of its first input's memory under another shape: it needs no kernel."""
    return view_offset(item) is not None


def is_whole_view(item: GraphExpr) -> bool:
    """Whether an expression is all of its first input's memory."""
    return isinstance(item, Call) and isinstance(item.callee, Operator) and item.callee.name in _WHOLE_VIEWS


def view_offset(item: GraphExpr) -> int | None:
    """The bytes from the start of a view's input to the view itself; None for what is no view."""
    if is_whole_view(item):
        return 0
    if not isinstance(item, Call) or not is_call_to(item, "slice") or item.tensor_type.dtype.is_sub_byte:
        # Constants of fewer than 8 bits are packed: a part of one need not start at a byte.
        return None
    attributes, whole, part = item.attributes, static_shape(item.args[0]), static_shape(item)
    assert isinstance(attributes, SliceAttributes)
    begin = constants(attributes.begin)
    if whole is None or part is None or begin is None or any(step != 1 for step in attributes.strides):
        return None
    cut = [axis for axis in range(len(whole)) if whole[axis] != part[axis]]
    if cut and any(size != 1 for size in part[: cut[-1]]):
        return None
    offset = 0
    for first, size in zip(begin, whole, strict=True):
        offset = offset * size + first
    return offset * item.tensor_type.dtype.itemsize
