"""Expressions of constants alone: what is asked of one node is remembered there, so that a chain is walked once."""

from __future__ import annotations

from tilewright.graph.ir.dimensions import symbols_of
from tilewright.graph.ir.expr import Call, Constant, GraphExpr, Tuple, TupleGet
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.traverse import children


def is_known(item: GraphExpr) -> bool:
    """Whether an expression is of constants and operators alone, none of which runs on the host or takes a symbol."""
    if item.known is None:
        _decide(item)
    return bool(item.known)


def _decide(item: GraphExpr) -> None:
    """Note at a node, and at all below it that are not decided yet, whether they are known. Nodes never change."""
    stack = [item]
    while stack:
        node = stack[-1]
        if node.known is None:
            undecided: list[GraphExpr] = []
            if isinstance(node, Constant):
                node.known = True
            elif not _keeps_known(node) or any(child.known is False for child in children(node)):
                node.known = False
            else:
                undecided = [child for child in children(node) if child.known is None]
                node.known = None if undecided else True
            if undecided:
                stack.extend(undecided)
                continue
        stack.pop()


def _keeps_known(node: GraphExpr) -> bool:
    """Whether a node is known as soon as what it takes is."""
    if not isinstance(node, Call):
        return isinstance(node, (Tuple, TupleGet))
    is_computed = isinstance(node.callee, Operator) and not node.callee.host
    return is_computed and (node.attributes is None or not symbols_of(node.attributes))
