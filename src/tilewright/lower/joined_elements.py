"""Kernels that take elements one by one: their tensors are rows, whose length is an argument.

Before:  fn (x: [1, 320, 320, 64], scale: []) { clip(round(x / scale), 0, 255) }
After:   fn (x: [elements], scale: []) { clip(round(x / scale), 0, 255) },  elements = 6553600

A network that quantises what each of its layers gives does so in as many shapes as it has layers; they are one kernel.
"""

from __future__ import annotations

import math

from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.rewrite import static_shape
from tilewright.graph.ir.traverse import post_order, rewrite
from tilewright.graph.ops.reduce import ReduceAttributes
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.types import TensorType, Type
from tilewright.lower.general_sizes import dims_of
from tilewright.support.errors import UserError


def join_elements(function: Function, elements: Symbol) -> tuple[Function, int] | None:
    """A primitive function over rows of `elements`, and their number; None where it is not one.

    It is one where all tensors have the same fixed shape or one element, and each element comes from the same element
    of the operands, or from all of them.
    """
    nodes = post_order(function)[:-1]
    shapes = {static_shape(item) for item in nodes}
    large = {shape for shape in shapes if shape is None or math.prod(shape) != 1}
    if len(large) != 1 or not (shape := large.pop()) or not math.prod(shape):
        return None
    if not all(isinstance(item, (Var, Constant)) or _is_by_elements(item, shape) for item in nodes):
        return None
    params = [Var(item.name, _joined(item.type, shape, elements)) for item in function.params]

    def visit(old: GraphExpr, item: GraphExpr) -> GraphExpr | None:
        if isinstance(item, Constant):
            return Constant(item.data.reshape(()), item.dtype)
        if not isinstance(item, Call) or not isinstance(item.attributes, ReduceAttributes):
            return None
        return Call(item.callee, item.args, item.attributes.replace(axes=(0,)))

    body = rewrite(function.body, visit, {id(old): new for old, new in zip(function.params, params, strict=True)})
    try:
        result = infer_types(Function(function.name, tuple(params), body, notes=function.notes))
    except UserError:
        # An attribute has the number of an axis.
        return None
    assert isinstance(result, Function)
    pairs = zip(nodes, post_order(result.body), strict=True)
    fits = all((static_shape(old) == shape) == (dims_of(new.type) == (elements,)) for old, new in pairs)
    return (result, math.prod(shape)) if fits else None


def _is_by_elements(item: GraphExpr, shape: tuple[int, ...]) -> bool:
    """Whether a node takes elements one by one, in any order, or all of them together."""
    if not isinstance(item, Call) or not isinstance(item.callee, Operator):
        return False
    if isinstance(item.attributes, ReduceAttributes):
        return static_shape(item.args[0]) == shape and len(item.attributes.axes) == len(shape)
    return item.callee.elementwise


def _joined(kind: Type | None, shape: tuple[int, ...], elements: Symbol) -> Type | None:
    assert isinstance(kind, TensorType)
    return kind.replace(shape=(elements,)) if kind.static_shape == shape else kind.replace(shape=())
