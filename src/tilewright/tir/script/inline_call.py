"""Script functions that call script functions: the statements of the one, on the buffers of the other.

    scale(A, B, 2.0)                    # statements of `scale`, with its parameters replaced

There are no calls in the loop IR: what is called becomes part of the caller, with variables, buffers and names of
blocks of its own, so that one function may be called many times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

from tilewright.arith.analyzer import Analyzer
from tilewright.ir.expr import PrimExpr, Var, const_value
from tilewright.ir.node import Node
from tilewright.ir.visit import pre_order, substitute, variables
from tilewright.support.errors import UserError
from tilewright.tir.buffer import Buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.stmt import Allocate, Block, For, LetStmt, Stmt

N = TypeVar("N", bound=Node)


def inlined(func: PrimFunc, args: Sequence[Buffer | PrimExpr], taken: set[str]) -> tuple[Stmt, list[Buffer]]:
    """The statements of a call, and the buffers that it needs beside its arguments. `taken` are names of blocks."""
    if len(args) != len(func.params):
        raise UserError(f"{func.name} takes {len(func.params)} arguments, {len(args)} are given")
    replacements: dict[int, Node] = {}
    symbols: dict[Var, PrimExpr] = {}
    for param, given in zip(func.params, args, strict=True):
        _bind(func, param, given, symbols)
        replacements[id(param)] = given
    replacements.update({id(symbol): value for symbol, value in symbols.items()})
    is_rooted = isinstance(func.body, Block) and func.body.name == "root" and not func.body.iters
    body = func.body.body if is_rooted and isinstance(func.body, Block) else func.body
    own = list(func.body.allocations) if is_rooted and isinstance(func.body, Block) else []
    for item in pre_order(func.body):
        for binder in _binders(item):
            replacements[id(binder)] = Var(binder.name, binder.dtype)
    allocated = [*own, *(buffer for item in pre_order(body) for buffer in _buffers(item))]
    for buffer in allocated:
        # Its shape may be made of what is replaced.
        replacements[id(buffer)] = buffer.replace(shape=tuple(_replaced(dim, replacements) for dim in buffer.shape))
    result = _replaced(body, replacements)
    allocations = [item for item in (replacements[id(buffer)] for buffer in own) if isinstance(item, Buffer)]
    return _named_apart(func, result, taken), allocations


def _bind(func: PrimFunc, param: Buffer | Var, given: Buffer | PrimExpr, symbols: dict[Var, PrimExpr]) -> None:
    """Check an argument against a parameter; sizes that the parameter leaves open are those of the argument."""
    if isinstance(param, Var):
        if not isinstance(given, PrimExpr):
            raise UserError(f"the parameter {param.name} of {func.name} is a number, not a buffer")
        return
    if not isinstance(given, Buffer):
        raise UserError(f"the parameter {param.name} of {func.name} is a buffer, not a number")
    if given.dtype is not param.dtype:
        raise UserError(f"the parameter {param.name} of {func.name} is {param.dtype}, {given.name} is {given.dtype}")
    if given.ndim != param.ndim:
        raise UserError(f"{param.name} of {func.name} has {param.ndim} dimensions, {given.name} has {given.ndim}")
    if param.strides or param.alignment or const_value(param.offset) != 0:
        raise UserError(f"{func.name} asks for a layout of {param.name}, so it cannot be called from a script")
    analyzer = Analyzer()
    for axis, (declared, actual) in enumerate(zip(param.shape, given.shape, strict=True)):
        if isinstance(declared, Var) and declared not in symbols:
            symbols[declared] = actual
            continue
        if any(symbol not in symbols and symbol not in func.params for symbol in variables(declared)):
            continue
        expected = analyzer.simplify(substitute(declared, symbols))
        sizes = const_value(expected), const_value(analyzer.simplify(actual))
        if None not in sizes and sizes[0] != sizes[1]:
            raise UserError(f"axis {axis} of {given.name} has {sizes[1]} elements, {func.name} needs {sizes[0]}")


def _binders(item: Node) -> list[Var]:
    if isinstance(item, (For, LetStmt)):
        return [item.var]
    return [iterator.var for iterator in item.iters] if isinstance(item, Block) else []


def _buffers(item: Node) -> list[Buffer]:
    if isinstance(item, Block):
        return list(item.allocations)
    return [item.buffer] if isinstance(item, Allocate) else []


def _replaced(root: N, replacements: dict[int, Node]) -> N:
    done = dict(replacements)

    def visit(item: Node) -> Node:
        result = done.get(id(item))
        if result is None:
            result = done[id(item)] = item.rebuild(visit)
        return result

    return cast(N, visit(root))


def _named_apart(func: PrimFunc, body: Stmt, taken: set[str]) -> Stmt:
    """The statements with names of blocks that the caller has not."""

    def renamed(item: Node) -> Node:
        item = item.rebuild(renamed)
        if not isinstance(item, Block):
            return item
        name, number = item.name, 0
        while name in taken:
            number += 1
            name = f"{func.name}_{item.name}" if number == 1 else f"{func.name}_{item.name}_{number}"
        taken.add(name)
        return item.replace(name=name)

    result = renamed(body)
    assert isinstance(result, Stmt)
    return result
