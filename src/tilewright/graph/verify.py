"""Stage contracts of graph modules: `graph_typed` and `graph_fused`, checked between passes when asked for."""

from __future__ import annotations

from tilewright.graph.ir.expr import Call, Function
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.traverse import graph_functions, post_order
from tilewright.graph.passes.fuse import is_primitive
from tilewright.graph.views import is_view
from tilewright.ir.function import BaseFunction, IRModule
from tilewright.support.errors import CompilerBug


def verify_typed(program: BaseFunction | IRModule) -> None:
    """Every node has a type, and inferring them anew gives the same ones."""
    module = program if isinstance(program, IRModule) else IRModule([program])
    before: list[tuple[Function, object]] = []
    for name, function in graph_functions(module).items():
        for item in post_order(function):
            if item.type is None and not isinstance(item, Operator):
                raise CompilerBug(f"a {type(item).__name__} of {name} has no type (span: {item.span})")
        before.append((function, function.type))
    infer_types(module)
    for function, known in before:
        if function.type is not known:
            raise CompilerBug(f"the type of {function.name} is {function.type}, the passes say {known}")


def verify_fused(program: BaseFunction | IRModule) -> None:
    """Typed, and every operator is part of a primitive function, is a view, or is done by the host."""
    verify_typed(program)
    module = program if isinstance(program, IRModule) else IRModule([program])
    for name, function in graph_functions(module).items():
        inside = {id(inner) for item in post_order(function) if is_primitive(item) for inner in post_order(item)}
        for item in post_order(function):
            if not (isinstance(item, Call) and isinstance(item.callee, Operator)) or item.callee.host:
                continue
            if id(item) not in inside and not is_view(item):
                raise CompilerBug(f"the operator {item.callee.name} of {name} is in no kernel (span: {item.span})")
