"""Kernels of layers without weights, for any size: those in which a model has a layer are arguments of one kernel.

Before:  fn (x: [1, 64, 64, 32]) { max_pool2d(x) },  fn (x: [1, 16, 16, 32]) { max_pool2d(x) }, ...
After:   fn (x: [1, size0, size0, 32]) { max_pool2d(x) },  called with size0 = 64, size0 = 16, ...

What such a kernel does with an element takes longer than counting them. Innermost sizes are those of vectors: they stay
as they are, and so do sizes of one, which are repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.graph.ir.expr import Call, Function, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import FusionKind, Operator
from tilewright.graph.ir.traverse import post_order, rewrite
from tilewright.graph.structure import structure_of
from tilewright.ir.expr import IntImm, PrimExpr, is_const_int
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.types import TensorType, Type
from tilewright.lower.general_sizes import dims_of, types_agree
from tilewright.support.errors import UserError


def form_of(function: Function) -> tuple[object, ...] | None:
    """A key that functions share which differ in their sizes alone; None of what has weights, or is large anyway."""
    calls = [item for item in post_order(function) if isinstance(item, Call)]
    if not all(isinstance(item.callee, Operator) and item.callee.kind <= FusionKind.REDUCTION for item in calls):
        return None
    rank = max((len(dims_of(param.type)) for param in function.params), default=0)

    def form(kind: Type | None) -> object:
        if not isinstance(kind, TensorType):
            return id(kind)
        shape = dims_of(kind)
        kept = shape[-1:] if len(shape) == rank else ()
        return (kind.dtype, *map(id, kept), *(dim is not None and is_const_int(dim, 1) for dim in shape))

    return structure_of(function, type_key=form)


def in_any_size(functions: Sequence[Function]) -> list[tuple[Function, dict[Symbol, PrimExpr]]] | None:
    """For functions of one form, each time the one that they share, with what its symbols stand for in each of them."""
    shapes = [[dim for param in item.params for dim in dims_of(param.type)] for item in functions]
    if not all(isinstance(dim, IntImm) for shape in shapes for dim in shape):
        return None
    columns = list(zip(*shapes, strict=True))
    several = dict.fromkeys(column for column in columns if len(set(column)) > 1)
    symbols = {column: Symbol(f"size{number}") for number, column in enumerate(several)}
    dims = iter([symbols.get(column, column[0]) for column in columns])
    first = functions[0]
    params = tuple(Var(param.name, _with_dims(param.type, dims)) for param in first.params)
    body = rewrite(first.body, lambda old, item: None, {id(a): b for a, b in zip(first.params, params, strict=True)})
    general = Function(first.name, params, body, notes=first.notes)
    try:
        infer_types(general)
    except UserError:
        return None
    sizes = [dict(zip(symbols.values(), row, strict=True)) for row in zip(*several, strict=True)]
    fits = all(types_agree(item, general, found) for item, found in zip(functions, sizes, strict=True))
    return [(general, found) for found in sizes] if fits else None


def _with_dims(kind: Type | None, dims: Iterator[PrimExpr]) -> Type | None:
    return kind.replace(shape=tuple(next(dims) for _ in kind.shape or ())) if isinstance(kind, TensorType) else kind
