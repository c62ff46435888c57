"""Which nodes of two operands a code generator treats alike: one handler a family."""

from __future__ import annotations

from typing import TypeVar

from tilewright.ir import expr as e

H = TypeVar("H")


def by_family(*, arithmetic: H, division: H, extreme: H, compare: H, logical: H) -> dict[type, H]:
    """A table of handlers by the type of a node, from one handler for each family of operators."""
    return {
        **dict.fromkeys((e.Add, e.Sub, e.Mul), arithmetic),
        **dict.fromkeys((e.Div, e.Mod, e.FloorDiv, e.FloorMod), division),
        **dict.fromkeys((e.Min, e.Max), extreme),
        **dict.fromkeys((e.EQ, e.NE, e.LT, e.LE), compare),
        **dict.fromkeys((e.And, e.Or), logical),
    }
