"""Values of which only those of one side are computed, by a condition that a run knows: shared by importers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from tilewright.frontend.core.builder import Builder
from tilewright.graph.ir.expr import GraphExpr, If
from tilewright.graph.ir.unify import Mismatch, Unifier, show_type
from tilewright.ir.types import Type
from tilewright.support.errors import UnsupportedError, UserError

Side = Callable[[], Sequence[GraphExpr]]
"""Builds the values of one side."""


def choice(
    builder: Builder, condition: GraphExpr, sides: tuple[Side, Side], what: str, name: str = "branch"
) -> list[GraphExpr]:
    """The values of the first side where a condition holds, else those of the second; `name` is for open sizes."""
    counts: list[int] = []

    def built(side: Side) -> GraphExpr:
        values = side()
        counts.append(len(values))
        if not values:
            raise UnsupportedError(f"branches of {what} that give nothing")
        return builder.tuple(list(values))

    made = [builder.enclosed(lambda side=side: built(side)) for side in sides]  # type: ignore[misc]
    if counts[0] != counts[1]:
        raise UserError(f"the branches of {what} give {counts[0]} and {counts[1]} results")
    chosen = If(builder.reshape(condition, ()), made[0], made[1])
    try:
        chosen.type = Unifier().join(cast(Type, made[0].type), cast(Type, made[1].type))
    except Mismatch as error:
        texts = [show_type(cast(Type, item.type)) for item in made]
        raise UserError(f"the branches of {what} give {texts[0]} and {texts[1]}: {error}") from None
    chosen.span = builder.span
    parts = [chosen] if counts[0] == 1 else [builder.item(chosen, index) for index in range(counts[0])]
    return [builder.named(part, name) for part in parts]


def free_name(builder: Builder, stem: str = "loop") -> str:
    """A name that no function has; loops inside of one that is being built get theirs before it is finished."""
    return f"{stem}_{next(builder.numbers)}"
