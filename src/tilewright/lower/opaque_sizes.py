"""Sizes that a schedule need not look into: `max(n // 384 - 1, 0)`, of a slice of frames, is a size as any other.

Before:  x: Buffer[(max(n // 384 - 1, 0), 258)], y: Buffer[((max(n // 384 - 1, 0) + 1) // 2, 16)]
While:   x: Buffer[(size, 258)],                 y: Buffer[((size + 1) // 2, 16)]
After:   the scheduled program, with `max(n // 384 - 1, 0)` again

What schedules must prove of tiles holds for any size; the parts of such an expression only hide that from the prover.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir.expr import Max, PrimExpr, Var, const_value
from tilewright.ir.visit import post_order, pre_order, rewrite_nodes
from tilewright.tir.function import PrimFunc


def hide_sizes(func: PrimFunc) -> tuple[PrimFunc, Mapping[Var, PrimExpr]]:
    """The program with a variable for each size that is at least 0 by its form, and what the variables stand for.

    Only where nothing else of the program has the symbols of the size: what relates them to other sizes must stay.
    """
    found: list[PrimExpr] = []
    for buffer in func.buffers:
        for size in buffer.shape:
            found += [item for item in post_order(size) if _is_opaque(item) and item not in found]
    sizes = [item for item in found if not any(item is not other and item in pre_order(other) for other in found)]
    hidden = {Var(f"size{n}"): item for n, item in enumerate(sizes)}
    if not hidden:
        return func, {}
    result = rewrite_nodes(func, {item: var for var, item in hidden.items()})
    symbols = {symbol for item in sizes for symbol in pre_order(item) if type(symbol) is Var}
    if any(item in symbols for item in pre_order(result) if type(item) is Var):
        return func, {}
    return result, hidden


def show_sizes(func: PrimFunc, hidden: Mapping[Var, PrimExpr]) -> PrimFunc:
    """The program with the sizes that variables stand for."""
    return rewrite_nodes(func, hidden) if hidden else func


def _is_opaque(item: object) -> bool:
    return isinstance(item, Max) and 0 in (const_value(item.a), const_value(item.b))
