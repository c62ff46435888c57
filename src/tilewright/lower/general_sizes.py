"""Kernels of any sizes: what a model computes of its symbols is one symbol of a kernel, and an argument of its calls.

Before:  fn (x: [n, (h - 1) // 4 + 1, 64]) { relu(x) }
After:   fn (x: [n, size0, 64]) { relu(x) },  called with size0 = (h - 1) // 4 + 1

Layers that differ in how their sizes come from those of the model's inputs then share a kernel, and no pass has to look
into such an expression.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.arith.analyzer import Analyzer
from tilewright.graph.ir.dimensions import symbols_of
from tilewright.graph.ir.expr import Call, Function, GraphExpr, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.traverse import post_order, rewrite
from tilewright.ir.expr import IntImm, PrimExpr
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.types import TensorType, TupleType, Type
from tilewright.ir.visit import rewrite_nodes, variables
from tilewright.support.errors import UserError


def general_sizes(function: Function) -> tuple[Function, Mapping[Symbol, PrimExpr]]:
    """A primitive function with a symbol for each computed size of its parameters, and what the symbols stand for.

    The function itself where sizes must be known by their parts: where the symbols in them are used elsewhere too, or
    types do not fit without what relates the sizes.
    """
    sizes_of = [dim for param in function.params for dim in dims_of(param.type) if dim is not None]
    computed = dict.fromkeys(dim for dim in sizes_of if type(dim) not in (IntImm, Symbol))
    if not computed:
        return function, {}
    symbols = {size: Symbol(f"size{number}") for number, size in enumerate(computed)}
    sizes = {symbol: size for size, symbol in symbols.items()}
    general = _with_sizes(function, symbols)
    parts = {symbol for size in computed for symbol in variables(size)}
    if not parts.isdisjoint(_symbols(general)):
        return function, {}
    try:
        infer_types(general)
    except UserError:
        # Two parameters have sizes that must agree, and do so only as what they were computed from.
        return function, {}
    return (general, sizes) if types_agree(function, general, sizes) else (function, {})


def dims_of(kind: Type | None) -> tuple[PrimExpr | None, ...]:
    """The dimensions of a tensor; none of anything else."""
    return kind.shape or () if isinstance(kind, TensorType) else ()


def types_agree(function: Function, general: Function, sizes: Mapping[Symbol, PrimExpr]) -> bool:
    """Whether all types in a function are those of the general one, once symbols are the sizes that they stand for."""
    analyzer = Analyzer()
    pairs = zip(post_order(function.body), post_order(general.body), strict=True)
    return all(_agree(a.type, b.type, sizes, analyzer) for a, b in pairs)


def _with_sizes(function: Function, symbols: Mapping[PrimExpr, Symbol]) -> Function:
    """The function, without types, with symbols in the place of sizes: in its parameters and in attributes."""
    params = tuple(
        Var(param.name, None if param.type is None else rewrite_nodes(param.type, symbols)) for param in function.params
    )

    def visit(old: GraphExpr, item: GraphExpr) -> GraphExpr | None:
        if not isinstance(item, Call) or item.attributes is None or not symbols_of(item.attributes):
            return None
        return Call(item.callee, item.args, rewrite_nodes(item.attributes, symbols))

    body = rewrite(function.body, visit, {id(old): new for old, new in zip(function.params, params, strict=True)})
    return Function(function.name, params, body, notes=function.notes)


def _symbols(function: Function) -> set[Symbol]:
    """The symbols of a function's parameters and attributes."""
    used = {symbol for param in function.params for symbol in symbols_of(param.type)}
    attributes = [item.attributes for item in post_order(function) if isinstance(item, Call)]
    return used | {symbol for item in attributes if item is not None for symbol in symbols_of(item)}


def _agree(before: Type | None, after: Type | None, sizes: Mapping[Symbol, PrimExpr], analyzer: Analyzer) -> bool:
    """Whether a type is what it was, once symbols are the sizes that they stand for."""
    match before, after:
        case TensorType(shape=tuple() as old), TensorType(shape=tuple() as new):
            pairs = [
                (a, rewrite_nodes(b, sizes)) for a, b in zip(old, new, strict=False) if a is not None and b is not None
            ]
            return len(pairs) == len(old) == len(new) and all(analyzer.prove_equal(a, b) for a, b in pairs)
        case TupleType(items=old), TupleType(items=new):
            return len(old) == len(new) and all(map(lambda a, b: _agree(a, b, sizes, analyzer), old, new))
        case _:
            return before is after
