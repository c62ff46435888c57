"""Sizes that a schedule need not look into: `max(n // 384 - 1, 0)`, of a slice of frames, is a size as any other.

So is `(frames - 6) * batch`, of rows that were joined.

Before:  x: Buffer[(max(n // 384 - 1, 0), 258)], y: Buffer[((max(n // 384 - 1, 0) + 1) // 2, 16)]
While:   x: Buffer[(size, 258)],                 y: Buffer[((size + 1) // 2, 16)]
After:   the scheduled program, with `max(n // 384 - 1, 0)` again

What schedules must prove of tiles holds for any size; the parts of such an expression only hide that from the prover.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeGuard, TypeVar, cast

from tilewright.ir.expr import Max, Mul, PrimExpr, Var, const_value
from tilewright.ir.node import Node
from tilewright.ir.visit import post_order, pre_order, rewrite_nodes
from tilewright.tir.buffer import Buffer
from tilewright.tir.function import PrimFunc

E = TypeVar("E", bound=PrimExpr)


def hide_sizes(func: PrimFunc) -> tuple[PrimFunc, Mapping[Var, PrimExpr]]:
    """The program with a variable for each size that is at least 0, and what the variables stand for.

    Only where nothing else of the program has the symbols of the size: what relates them to other sizes must stay.
    """
    opaque: list[PrimExpr] = []
    for buffer in func.buffers:
        for size in buffer.shape:
            inside: list[PrimExpr] = [item for item in post_order(size) if _is_opaque(item)]
            opaque += [item for item in (*inside, *([size] if _is_product(size) else [])) if item not in opaque]
    sizes = [item for item in opaque if not any(item is not other and item in pre_order(other) for other in opaque)]
    hidden = {Var(f"size{n}"): item for n, item in enumerate(sizes)}
    if not hidden:
        return func, {}
    named: dict[PrimExpr, PrimExpr] = {item: var for var, item in hidden.items()}
    whole = {size for buffer in func.buffers for size in buffer.shape if const_value(size) is None}
    for var, item in hidden.items():
        # What is a size of a buffer itself is at least 0: `max(n - 2, 0)` is `n - 2` then.
        named |= {part: var for part in (item.a, item.b) if part in whole} if _is_opaque(item) else {}
    result = _rewritten(func, named)
    symbols = {symbol for item in sizes for symbol in pre_order(item) if type(symbol) is Var}
    parts = [result.body, *(expr for buffer in _buffers(result) for expr in _expressions(buffer))]
    if any(item in symbols for part in parts for item in pre_order(part) if type(item) is Var):
        return func, {}
    return result, hidden


def show_sizes(func: PrimFunc, hidden: Mapping[Var, PrimExpr]) -> PrimFunc:
    """The program with the sizes that variables stand for."""
    return _rewritten(func, hidden) if hidden else func


def _rewritten(func: PrimFunc, mapping: Mapping[E, PrimExpr]) -> PrimFunc:
    """A program with expressions replaced, in the shapes of its buffers too."""
    changed = cast(dict[Node, Node], dict(mapping))
    for buffer in _buffers(func):
        shape, strides = (tuple(rewrite_nodes(e, mapping) for e in part) for part in (buffer.shape, buffer.strides))
        fresh = buffer.replace(shape=shape, strides=strides, offset=rewrite_nodes(buffer.offset, mapping))
        if any(old is not new for old, new in zip(_expressions(buffer), _expressions(fresh), strict=True)):
            changed[buffer] = fresh
    return rewrite_nodes(func, changed)


def _buffers(func: PrimFunc) -> list[Buffer]:
    """All buffers, parameters or not."""
    return list(dict.fromkeys(item for item in pre_order(func) if isinstance(item, Buffer)))


def _expressions(buffer: Buffer) -> tuple[PrimExpr, ...]:
    return (*buffer.shape, *buffer.strides, buffer.offset)


def _is_product(size: PrimExpr) -> bool:
    """Whether the size of a buffer is a product of sizes that are not all symbols or numbers themselves."""
    if not isinstance(size, Mul) or any(const_value(part) is not None for part in (size.a, size.b)):
        return False
    return not all(type(part) is Var for part in (size.a, size.b))


def _is_opaque(item: Node) -> TypeGuard[Max]:
    return isinstance(item, Max) and 0 in (const_value(item.a), const_value(item.b))
