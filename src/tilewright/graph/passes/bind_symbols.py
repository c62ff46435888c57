"""Give symbols of dimensions fixed values: the same model, for one set of sizes.

Before:  main(x: Tensor[(batch, n, 64)])          batch = 1, n = 128
After:   main(x: Tensor[(1, 128, 64)])
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.graph.ir.dimensions import normal, symbols_of
from tilewright.graph.ir.expr import Call, Function, GraphExpr, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.traverse import bound_variables, graph_functions, rewrite
from tilewright.ir.expr import IntImm, PrimExpr
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.ir.node import Node
from tilewright.ir.types import TensorType, Type
from tilewright.ir.visit import substitute


def bind_symbols(module: IRModule, values: Mapping[Symbol, int]) -> IRModule:
    """The module with numbers in the place of some symbols, typed anew."""
    numbers: dict[Symbol, PrimExpr] = {symbol: IntImm(value) for symbol, value in values.items()}
    functions = {name: _bound_function(function, numbers) for name, function in graph_functions(module).items()}
    return infer_types(module.with_functions({**module.functions, **functions}))


def _bound_function(function: Function, numbers: Mapping[Symbol, PrimExpr]) -> Function:
    variables: dict[Var, Var] = {}
    for var in bound_variables(function):
        if var.annotation is not None and symbols_of(var.annotation):
            variables[var] = Var(var.name, _bound_type(var.annotation, numbers))
            variables[var].span = var.span

    def change(old: GraphExpr, new: GraphExpr) -> GraphExpr | None:
        if isinstance(new, Call) and new.attributes is not None and symbols_of(new.attributes):
            fields = [_bound_value(value, numbers) for value in new.attributes.field_values()]
            result = Call(new.callee, new.args, new.attributes.with_values(fields))
            result.span = new.span
            return result
        if isinstance(new, Function):
            params = tuple(variables.get(param, param) for param in new.params)
            kind = None if new.result_type is None else _bound_type(new.result_type, numbers)
            return new.replace(params=params, result_type=kind)
        return None

    result = rewrite(function, change, {id(var): new for var, new in variables.items()})
    assert isinstance(result, Function)
    return result


def _bound_type(kind: Type, numbers: Mapping[Symbol, PrimExpr]) -> Type:
    def visit(item: Node) -> Node:
        if isinstance(item, TensorType) and item.shape is not None:
            dims = tuple(None if dim is None else _bound_dim(dim, numbers) for dim in item.shape)
            return TensorType(dims, item.dtype)
        return item.rebuild(visit)

    result = visit(kind)
    assert isinstance(result, Type)
    return result


def _bound_dim(dim: PrimExpr, numbers: Mapping[Symbol, PrimExpr]) -> PrimExpr:
    size = normal(substitute(dim, numbers))
    return IntImm(size) if isinstance(size, int) else size


def _bound_value(value: object, numbers: Mapping[Symbol, PrimExpr]) -> object:
    """An attribute; sizes that are known now are plain numbers."""
    if isinstance(value, PrimExpr):
        return normal(substitute(value, numbers)) if symbols_of(value) else value
    if isinstance(value, tuple):
        return tuple(_bound_value(item, numbers) for item in value)
    if isinstance(value, Type):
        return _bound_type(value, numbers)
    return value
