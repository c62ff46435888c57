"""Where a run decides how a model goes on: the branches of an If, the rank of a value, the length of a list.

Each *side* of such a fork is imported as if it were the only one, so that all types in it are known. The sides come
together again as soon as what is used after them has one type whichever was taken: for most branches at once, and
otherwise the nodes that follow are imported into each side, at worst to the end of the graph. What differs in its
dimensions only has symbols for them after the fork.

    y = Squeeze(x) if n == 1 else x        ->    if n == 1 { y = Squeeze(x); z = Unsqueeze(y) } else { y = x; z = ... }
    z = Unsqueeze(y)

Typing is lazy: a side that cannot be imported is the end of a run that takes it, with the error that importing it gave.
It is an error of the model if no side is left.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from tilewright.frontend.core.builder import Builder, Undecided, sizes_of
from tilewright.frontend.core.loops import outer_kind
from tilewright.frontend.core.symbolic_values import symbolic_value
from tilewright.graph.ir.dimensions import same
from tilewright.graph.ir.expr import GraphExpr, If
from tilewright.graph.ir.unify import Mismatch, Unifier, show_type
from tilewright.ir.expr import IntImm, PrimExpr
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.types import TensorType, TupleType, Type
from tilewright.support.errors import UnsupportedError, UserError

MOST_SIDES = 1024
"""Sides that are imported for one model, those that are imported anew with more nodes counted again."""


@dataclass(frozen=True)
class Side:
    """One way to go on, taken if its condition holds (None: otherwise) and that of none before it did."""

    condition: GraphExpr | None
    outputs: Callable[[], Sequence[GraphExpr | None]] | None = None
    """Builds what the node gives on this side; None if the node is to be tried again with what is known here."""
    known: Callable[[], GraphExpr] | None = None
    """Builds the value that is not decided as it is known to be on this side."""


class Fork(Exception):
    """Raised by a converter: a run decides between sides, and what follows may depend on which it is."""

    def __init__(self, sides: Sequence[Side], value: GraphExpr | None = None) -> None:
        super().__init__("a run decides how the model goes on")
        self.sides = sides
        self.value = value
        """What is known on each side only; None if the sides give the outputs of the node."""


def by_run(builder: Builder, undecided: Undecided) -> Fork:
    """The sides for what a run decides about the shape of a value: how many dimensions it has, or how long it is."""
    value, choices = undecided.value, list(range(undecided.most + 1))
    kind = value.type
    assert isinstance(kind, TensorType)
    shapes: list[list[PrimExpr]]
    if kind.shape is None:
        choices = sorted(builder.ranks.possible(value))
        number = builder.call("host.rank", value)
        shapes = [[Symbol(f"rank{rank}_{axis}") for axis in range(rank)] for rank in choices]
    else:
        number = builder.reshape(builder.shape_tensor(sizes_of(value)), ())
        shapes = [[IntImm(length)] for length in choices]

    def known(shape: Sequence[PrimExpr]) -> Callable[[], GraphExpr]:
        return lambda: builder.call("shape.match", value, dims=tuple(shape))

    sides = [
        Side(builder.call("equal", number, builder.constant(choice, "int64")), known=known(shape))
        for choice, shape in zip(choices, shapes, strict=True)
    ]

    def beyond() -> GraphExpr:
        what = "dimensions" if kind.shape is None else "elements"
        raise UserError(f"a value has more than {choices[-1]} {what}")

    return Fork([*sides, Side(None, known=beyond)], value)


def among(builder: Builder, value: GraphExpr, choices: Mapping[int, Sequence[int]], what: str) -> Fork:
    """The sides for a value of one whole number that is one of few: each choice with the numbers that mean it."""
    kind = value.type
    assert isinstance(kind, TensorType) and kind.static_shape is not None
    number = builder.cast(builder.reshape(value, ()), "int64")
    sides: list[Side] = []
    for choice, meaning in choices.items():
        tests = [builder.call("equal", number, builder.constant(item, "int64")) for item in meaning]
        condition = functools.reduce(lambda a, b: builder.call("logical_or", a, b), tests)
        stored = np.full(kind.static_shape, choice, np.int64)
        sides.append(Side(condition, known=functools.partial(builder.constant, stored, kind.dtype)))

    def other() -> GraphExpr:
        raise UserError(f"{what} is none of {', '.join(str(item) for items in choices.values() for item in items)}")

    return Fork([*sides, Side(None, known=other)], value)


@dataclass
class Imported:
    """A side after it was imported: the values that are used after it, or why there are none."""

    values: list[GraphExpr] = field(default_factory=list)
    body: GraphExpr | None = None
    """All values, after what the side binds."""
    inside: set[Symbol] = field(default_factory=set)
    """Symbols that have values on this side only."""
    error: UserError | None = None

    def kind(self, place: int) -> Type:
        """The type of a value as it is seen after the side."""
        return outer_kind(cast(Type, self.values[place].type), self.inside)


def import_side(builder: Builder, build: Callable[[], Sequence[GraphExpr]]) -> Imported:
    """Build one side. An error of the model in it is kept: it is for a run that takes this side."""
    side = Imported()

    def body() -> GraphExpr:
        side.values = list(build())
        side.inside = builder.introduced()
        return builder.tuple(side.values) if side.values else builder.constant(0, "int64")

    try:
        side.body = builder.enclosed(body)
    except UserError as error:
        side.error = error
    return side


def import_sides(attempt: Callable[[int], Sequence[Imported]], last: int) -> tuple[int, Sequence[Imported]]:
    """The sides of a fork, each with as many nodes as they need to come together: how many, and the sides.

    `attempt` imports all sides with so many nodes: from 1, the one that forks, up to the last number.
    """
    count, hopeful = 1, 0
    while True:
        sides = attempt(count)
        left = [place for place, side in enumerate(sides) if side.error is None]
        if not left:
            error = sides[hopeful].error
            assert error is not None
            raise error
        hopeful = left[0]
        good = [sides[place] for place in left]
        if count == last or (len(left) > 1 and _of_one_type(good) and (count == 1 or _keeps_sizes(good))):
            return count, sides
        # All that follows belongs to the only side that is left: there, everything about it is known.
        count = last if len(left) == 1 else min(last, 2 * count)


def _of_one_type(sides: Sequence[Imported]) -> bool:
    """Whether each value that is used after the sides has one type, and a known rank where it had one."""
    for place in range(len(sides[0].values)):
        try:
            kind = _joined(sides, place)
        except Mismatch:
            return False
        if _is_unranked(kind) and not any(_is_unranked(side.kind(place)) for side in sides):
            return False
    return True


def _keeps_sizes(sides: Sequence[Imported]) -> bool:
    """Whether no value that is used after the sides is one of sizes that differ: as data they would not be known."""
    for place in range(len(sides[0].values)):
        values = [side.values[place] for side in sides]
        if any(symbolic_value(value) is not None for value in values) and not _is_one(values):
            return False
    return True


def _is_unranked(kind: Type) -> bool:
    return isinstance(kind, TensorType) and kind.shape is None


def _is_one(values: Sequence[GraphExpr]) -> bool:
    """Whether the values of several sides are one, or the same sizes: it does not depend on the side then."""
    if all(value is values[0] for value in values):
        return True
    first, *others = [symbolic_value(value) for value in values]
    if first is None or any(value.type is not values[0].type for value in values):
        return False
    return all(other is not None and all(map(same, first.reshape(-1), other.reshape(-1))) for other in others)


def _joined(sides: Sequence[Imported], place: int) -> Type:
    kind = sides[0].kind(place)
    for side in sides[1:]:
        kind = Unifier().join(kind, side.kind(place))
    return kind


def join_sides(
    builder: Builder, conditions: Sequence[GraphExpr | None], sides: Sequence[Imported], names: Sequence[str]
) -> list[GraphExpr]:
    """The values of some names after a fork, of which at least one side could be imported."""
    good = [side for side in sides if side.error is None]
    kinds: list[Type] = []
    for place, name in enumerate(names):
        try:
            kinds.append(_joined(good, place))
        except Mismatch as error:
            texts = " and ".join(show_type(side.kind(place)) for side in good)
            raise UnsupportedError(f"only a run decides the type of '{name}', {texts}: {error}") from None
    result: GraphExpr | None = None
    for condition, side in zip(reversed(conditions), reversed(sides), strict=True):
        body = side.body if side.error is None else _ended(builder, side.error, kinds)
        assert body is not None
        if result is None:
            result = body
            continue
        assert condition is not None
        result = If(condition, body, result)
        result.type, result.span = TupleType(tuple(kinds)) if len(kinds) > 1 else kinds[0], builder.span
    assert result is not None
    after: list[GraphExpr] = []
    for place, name in enumerate(names):
        choices = [side.values[place] for side in good]
        if len(good) > 1 and _is_one(choices):
            after.append(choices[0])
        else:
            after.append(builder.named(result if len(kinds) == 1 else builder.item(result, place), name))
            builder.ranks.note(after[-1], set().union(*map(builder.ranks.possible, choices)))
    return after


def _ended(builder: Builder, error: UserError, kinds: Sequence[Type]) -> GraphExpr:
    """What stands for a side that could not be imported."""

    def values() -> GraphExpr:
        ends = [builder.call("host.fail", dims=(Symbol("end"),), message=str(error), result=kind) for kind in kinds]
        return builder.tuple(ends)

    return builder.enclosed(values)
