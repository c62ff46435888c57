"""Converters of sorting: several tensors in the order that a comparator gives.

A comparator that compares one tensor after the other (as JAX writes it) is a few sorts by one key each, the least
important first. Any other one is asked for every pair of elements, and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.frontend.core.builder import dtype_of, evaluate, rank_of, sizes_of
from tilewright.frontend.core.complex_values import Complex
from tilewright.frontend.stablehlo.builder import StableBuilder, Tensor, each_part, shape_of_tensor
from tilewright.frontend.stablehlo.elementwise import total_order
from tilewright.frontend.stablehlo.program import Block, Dense, Operation, Value
from tilewright.frontend.stablehlo.registry import converter
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import Constant, GraphExpr
from tilewright.ir.dtype import BOOL, INT64, DataType
from tilewright.support.errors import UnsupportedError

_MOST_COMPARED = 1 << 14
"""The longest axis that is sorted by comparing every pair of elements."""


@dataclass(frozen=True, slots=True)
class _Key:
    """One tensor that is compared, and how: `is_total` if -0 comes before 0, and NaN by their signs."""

    operand: int
    descending: bool
    is_total: bool


@converter("sort", of_complex="taken")
def sort(b: StableBuilder, operation: Operation, *operands: Tensor) -> list[Tensor]:
    """Tensors along an axis, in one order."""
    rank = len(shape_of_tensor(operands[0]))
    axis = b.number_of("dimension", rank - 1) % max(rank, 1)
    if not rank or 0 in shape_of_tensor(operands[0]) or shape_of_tensor(operands[0])[axis] == 1:
        return list(operands)
    region = operation.regions[0]
    keys = _keys(b, region, list(operands))
    if keys is None:
        places = _compared(b, region, operands, axis)
    else:
        places = _by_keys(b, keys, operands, axis)
    return [_in_order(b, value, places, axis) for value in operands]


def _in_order(b: StableBuilder, value: Tensor, places: GraphExpr, axis: int) -> Tensor:
    parts = [along(b, part, places, axis) for part in each_part(value)]
    return Complex(parts[0], parts[1]) if len(parts) == 2 else parts[0]


def along(b: StableBuilder, x: GraphExpr, places: GraphExpr, axis: int) -> GraphExpr:
    """Elements at places along an axis, one for each place."""
    x = b.narrow(x) if all(size == 1 for at, size in enumerate(sizes_of(b.narrow(x))) if at != axis) else x
    shape, wanted = sizes_of(x), sizes_of(places)
    if all(size == 1 for at, size in enumerate(shape) if at != axis):
        return b.call("take", b.reshape(x, (shape[axis],)), places, axis=0, mode="inside")
    order = [at for at in range(rank_of(x)) if at != axis] + [axis]
    back = [order.index(at) for at in range(len(order))]
    lines = dimensions.product([size for at, size in enumerate(shape) if at != axis])
    flat = b.reshape(b.transpose(x, order), (dimensions.multiply(lines, shape[axis]),))
    rows = b.reshape(b.transpose(places, order), (lines, wanted[axis]))
    firsts = b.reshape(b.multiply(b.arange(lines), b.size(shape[axis])), (lines, 1))
    taken = b.call("take", flat, b.add(rows, firsts), axis=0, mode="inside")
    return b.transpose(b.reshape(taken, [wanted[at] for at in order]), back)


def _by_keys(b: StableBuilder, keys: Sequence[_Key], operands: Sequence[Tensor], axis: int) -> GraphExpr:
    """Stable sorts, the least important key first."""
    places: GraphExpr | None = None
    for key in reversed(keys):
        value = operands[key.operand]
        assert isinstance(value, GraphExpr)
        if key.is_total and dtype_of(value).is_float:
            value = total_order(b, value)
        elif dtype_of(value).is_bool:
            value = b.cast(value, "int8")
        if places is not None:
            value = along(b, value, places, axis)
        both = b.call("topk", value, axis=axis, k=sizes_of(value)[axis], largest=key.descending)
        found = b.item(both, 1)
        places = found if places is None else along(b, places, found, axis)
    assert places is not None
    return places


# What a comparator compares


def _decoded(dtype: DataType, data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Numbers from what they are stored in; None for types that numpy lacks."""
    if dtype.name == "bfloat16":
        return (data.astype(np.uint32) << 16).view(np.float32)
    return None if dtype.is_small_float else data


def _keys(b: StableBuilder, region: Block, operands: list[Tensor]) -> list[_Key] | None:
    """The keys of a comparator that compares tensors one after the other; None if it is another one."""
    makers = {result: operation for operation in region.operations for result in operation.results}
    reader = _Comparator(region, makers, b.lookup)
    keys = reader.lexicographic(region.results[0])
    if keys is None or any(isinstance(operands[key.operand], Complex) for key in keys):
        return None
    return keys


class _Comparator:
    """The operations of a comparator by what they give."""

    def __init__(self, region: Block, makers: dict[Value, Operation], lookup: Callable[[Value], Any]) -> None:
        self.lookup = lookup
        self.arguments = {value: at for at, value in enumerate(region.arguments)}
        self.makers = makers

    def lexicographic(self, value: Value) -> list[_Key] | None:
        """`first < first' or (first == first' and rest)`."""
        maker = self.makers.get(value)
        if maker is None:
            return None
        if maker.short == "compare":
            key = self.key(maker, ("LT", "GT"))
            return None if key is None else [key]
        if maker.short == "or":
            for first, other in (maker.operands, reversed(maker.operands)):
                head = self.makers.get(first)
                rest = self.makers.get(other)
                if head is None or rest is None or head.short != "compare" or rest.short != "and":
                    continue
                found = self.with_rest(head, rest)
                if found is not None:
                    return found
        return None

    def with_rest(self, head: Operation, rest: Operation) -> list[_Key] | None:
        """The key of a comparison, and those that decide where it finds both equal."""
        key = self.key(head, ("LT", "GT"))
        for first, other in (rest.operands, reversed(rest.operands)):
            same = self.makers.get(first)
            if key is None or same is None or same.short != "compare":
                continue
            equal = self.key(same, ("EQ",))
            if equal is None or equal.operand != key.operand:
                continue
            inner = self.lexicographic(other)
            if inner is not None:
                return [key, *inner]
        return None

    def key(self, comparison: Operation, directions: tuple[str, ...]) -> _Key | None:
        """What a comparison of the two elements of one tensor says."""
        direction = comparison.attributes.get("comparison_direction")
        if direction not in directions:
            return None
        sides = [self.argument(value) for value in comparison.operands]
        if sides[0] is None or sides[1] is None or sides[0][0] // 2 != sides[1][0] // 2 or sides[0][0] == sides[1][0]:
            return None
        is_total = comparison.attributes.get("compare_type") == "TOTALORDER" and not (sides[0][1] and sides[1][1])
        is_swapped = sides[0][0] > sides[1][0]
        return _Key(sides[0][0] // 2, (direction == "GT") is not is_swapped, is_total)

    def argument(self, value: Value) -> tuple[int, bool] | None:
        """The argument that a value is, and whether its zeros and NaN were made one: as JAX writes it."""
        if value in self.arguments:
            return self.arguments[value], False
        maker = self.makers.get(value)
        if maker is None or maker.short != "select":
            return None
        # select(x != x, NaN, select(x == 0, 0, x))
        test, _, inner = maker.operands
        plain = self.makers.get(inner)
        odd = self.makers.get(test)
        if plain is None or odd is None or plain.short != "select" or odd.short != "compare":
            return None
        source = plain.operands[2]
        zero = self.makers.get(plain.operands[0])
        if source not in self.arguments or odd.operands != [source, source] or zero is None:
            return None
        if odd.attributes.get("comparison_direction") != "NE" or zero.attributes.get("comparison_direction") != "EQ":
            return None
        if source not in zero.operands or not all(
            self.number(item) == 0 for item in zero.operands if item is not source
        ):
            return None
        # Whatever sign the one NaN has, it must come last.
        replaced = self.number(maker.operands[1])
        if self.number(plain.operands[1]) != 0 or replaced is None or replaced == replaced or np.signbit(replaced):
            return None
        return self.arguments[source], True

    def number(self, value: Value) -> float | None:
        """A number that is known while importing."""
        maker = self.makers.get(value)
        if maker is not None and maker.short == "constant":
            literal = maker.attributes.get("value")
            known = _decoded(literal.spec.dtype, literal.data) if isinstance(literal, Dense) else None
        else:
            outer = self.lookup(value)
            small = evaluate(outer) if isinstance(outer, GraphExpr) else None
            if small is None and isinstance(outer, Constant):
                small = outer.data
            known = None if small is None else _decoded(dtype_of(outer), small)
        return float(known.reshape(-1)[0]) if known is not None and known.size else None


# Any comparator


def _compared(b: StableBuilder, region: Block, operands: Sequence[Tensor], axis: int) -> GraphExpr:
    """The place of each element in order: how many others come before it, by asking for every pair."""
    shape = shape_of_tensor(operands[0])
    size = shape[axis]
    if not isinstance(size, int) or size > _MOST_COMPARED:
        raise UnsupportedError(
            f"sorting {size} elements by a comparator of its own",
            hint=f"at most {_MOST_COMPARED}, or compare one tensor after the other as jax.lax.sort does",
        )
    rank = len(shape)

    def spread(value: Tensor, at: int) -> Tensor:
        parts = [b.expand_dims(b.transpose(part, _axis_last(rank, axis)), (at,)) for part in each_part(value)]
        return Complex(parts[0], parts[1]) if len(parts) == 2 else parts[0]

    mine = [spread(value, rank) for value in operands]
    others = [spread(value, rank - 1) for value in operands]
    comes_first = _asked(b, region, mine, others)
    comes_behind = _asked(b, region, others, mine)
    earlier = b.compare("less", b.arange(size), b.reshape(b.arange(size), (size, 1)))
    before = b.call("where", earlier, b.call("logical_not", comes_first), comes_behind)
    wide: list[Size] = [shape[at] for at in _axis_last(rank, axis)] + [size]
    counts = b.reduce("sum", b.cast(b.broadcast_to(before, wide), INT64), (rank,))
    both = b.call("topk", counts, axis=rank - 1, k=size, largest=False)
    order = _axis_last(rank, axis)
    return b.transpose(b.item(both, 1), [order.index(at) for at in range(rank)])


def _axis_last(rank: int, axis: int) -> list[int]:
    return [at for at in range(rank) if at != axis] + [axis]


def _asked(b: StableBuilder, region: Block, first: Sequence[Any], second: Sequence[Any]) -> GraphExpr:
    pairs = [value for pair in zip(first, second, strict=True) for value in pair]
    (found,) = b.run_wide(region, pairs)
    assert isinstance(found, GraphExpr)
    return b.cast(found, BOOL)
