"""Arithmetic of dimensions: sizes that are numbers or expressions of symbols, in one normal form.

A *size* is a Python integer where it is known, else a scalar expression over symbols (int64 variables that are never
negative). Type rules and builders bring sizes to a normal form, so that equal ones are mostly the same object; what is
only provably equal is found by `same`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from tilewright.arith.analyzer import Analyzer, Interval
from tilewright.ir import build
from tilewright.ir import expr as e
from tilewright.ir.expr import IntImm, PrimExpr, Var
from tilewright.ir.node import Node
from tilewright.ir.types import Type
from tilewright.ir.visit import pre_order
from tilewright.support.errors import CompilerBug, UserError

Size = int | PrimExpr
"""A number, or an expression of symbols."""
Sizes = tuple[Size, ...]


def analyzer_of(*values: Size) -> Analyzer:
    """An analyzer that knows that the symbols of some sizes are not negative."""
    result = Analyzer()
    for value in values:
        for symbol in symbols_of(value):
            result.bind(symbol, Interval(0, None))
    return result


def symbols_of(value: object) -> list[Var]:
    """The symbols in a size, a type, attributes, or a tuple of these, in order of appearance, each once."""
    if isinstance(value, (PrimExpr, Type)):
        return list(_symbols_in(value))
    below = value.children() if isinstance(value, Node) else value if isinstance(value, (tuple, list)) else ()
    return list(dict.fromkeys(symbol for item in below for symbol in symbols_of(item)))


@lru_cache(maxsize=4096)
def _symbols_in(value: PrimExpr | Type) -> tuple[Var, ...]:
    """The symbols in what there is once only, and what all passes ask of anew."""
    return tuple(item for item in pre_order(value) if type(item) is Var)


def normal(value: Size) -> Size:
    """A size in normal form; a number where it is constant."""
    if isinstance(value, int):
        return value
    if isinstance(value, IntImm):
        return value.value
    if type(value) is Var:
        return value
    found = _simplified(value)
    return found.value if isinstance(found, IntImm) else found


@lru_cache(maxsize=4096)
def _simplified(value: PrimExpr) -> PrimExpr:
    analyzer = analyzer_of(value)
    found = analyzer.simplify(value)
    # -min(a, b) is max(-a, -b): one form for what a slice leaves of a dimension.
    if isinstance(found, e.Sub) and isinstance(found.a, IntImm) and isinstance(found.b, (e.Min, e.Max)):
        other = build.maximum if isinstance(found.b, e.Min) else build.minimum
        found = analyzer.simplify(other(found.a - found.b.a, found.a - found.b.b))
    return found


def as_size(dim: PrimExpr | int) -> Size:
    """A dimension of a type as a size."""
    return dim.value if isinstance(dim, IntImm) else dim


def as_dim(size: Size) -> PrimExpr:
    """A size as a dimension of a type, in normal form."""
    found = normal(size)
    return IntImm(found) if isinstance(found, int) else found


def as_dims(sizes: Sequence[Size]) -> tuple[PrimExpr, ...]:
    """Sizes as the shape of a type."""
    return tuple(as_dim(size) for size in sizes)


def is_constant(sizes: Sequence[Size]) -> bool:
    """Whether all sizes are numbers."""
    return all(isinstance(size, int) for size in sizes)


def constants(sizes: Sequence[Size]) -> tuple[int, ...] | None:
    """The sizes if all of them are numbers, else None."""
    found = tuple(size for size in sizes if isinstance(size, int))
    return found if len(found) == len(sizes) else None


def numbers(sizes: Sequence[Size]) -> tuple[int, ...]:
    """Sizes that are numbers by now (references run on attributes whose symbols have values)."""
    found = constants(sizes)
    if found is None:
        raise CompilerBug("symbols of attributes have no values here")
    return found


def same(a: Size, b: Size) -> bool:
    """Whether two sizes are certainly equal."""
    a, b = normal(a), normal(b)
    if a is b or (isinstance(a, int) and isinstance(b, int)):
        return a == b
    difference = normal(build.sub(as_dim(a), as_dim(b)))
    return difference == 0 if isinstance(difference, int) else analyzer_of(a, b).prove_equal(as_dim(a), as_dim(b))


def different(a: Size, b: Size) -> bool:
    """Whether two sizes are certainly not equal."""
    a, b = normal(a), normal(b)
    if a is b or (isinstance(a, int) and isinstance(b, int)):
        return a != b
    return not can_be(as_dim(a).eq(as_dim(b)))


@lru_cache(maxsize=4096)
def can_be(condition: PrimExpr) -> bool:
    """Whether a condition is not certainly false."""
    return not analyzer_of(condition).prove(build.logical_not(condition))


@lru_cache(maxsize=4096)
def certainly(condition: PrimExpr) -> bool:
    """Whether a condition holds for all values of its symbols."""
    return analyzer_of(condition).prove(condition)


def at_least(size: Size, bound: Size) -> bool:
    """Whether a size is certainly not below a bound."""
    if isinstance(size, int) and isinstance(bound, int):
        return size >= bound
    return certainly(build.ge(as_dim(size), as_dim(bound)))


def acts_as_one(size: Size) -> bool:
    """Whether a size is certainly at most 1, as `min(n, 1)` of a slice is: in a broadcast it is then taken for 1."""
    if isinstance(size, int):
        return size == 1
    return type(size) is not Var and certainly(build.le(size, IntImm(1)))


def add(a: Size, b: Size) -> Size:
    """a + b."""
    return normal(a + b)


def subtract(a: Size, b: Size) -> Size:
    """a - b."""
    return normal(a - b)


def multiply(a: Size, b: Size) -> Size:
    """a * b."""
    return normal(a * b)


def floor_divide(a: Size, b: Size) -> Size:
    """a // b."""
    return normal(a // b)


def modulo(a: Size, b: Size) -> Size:
    """What a // b leaves."""
    return normal(build.floormod(as_dim(a), as_dim(b)))


def ceil_divide(a: Size, b: int) -> Size:
    """a / b, rounded up."""
    return normal((a + (b - 1)) // b)


def minimum(a: Size, b: Size) -> Size:
    """The lesser."""
    return normal(build.minimum(as_dim(a), as_dim(b)))


def maximum(a: Size, b: Size) -> Size:
    """The greater."""
    return normal(build.maximum(as_dim(a), as_dim(b)))


def simplest(sizes: Sequence[Size]) -> Size:
    """The one of several equal sizes that is easiest to reason about: a number, else the shortest expression."""
    return min(sizes, key=lambda size: 0 if isinstance(size, int) else 1 + sum(1 for _ in pre_order(size)))


def product(sizes: Sequence[Size]) -> Size:
    """The number of elements."""
    result: Size = 1
    for size in sizes:
        result = result * size
    return normal(result)


def divide_exactly(total: Size, part: Size) -> Size | None:
    """total / part where part certainly divides total: factors that both have are cancelled; None if it is not sure.

    A factor that is 0 at run time makes both 0; then any quotient is right.
    """
    over, under = _factors(total), _factors(part)
    if over is None or under is None:
        return None
    number, factors = over
    divisor, others = under
    if number == 0:
        return 0 if divisor else None
    left = list(factors)
    for other in others:
        place = next((index for index, factor in enumerate(left) if factor is other), None)
        if place is None:
            return None
        del left[place]
    if divisor == 0 or number % divisor:
        rest = normal(product([number, *left]))
        divided = floor_divide(rest, divisor) if divisor else None
        return divided if divided is not None and same(multiply(divided, divisor), rest) else None
    return product([number // divisor, *left])


def remaining_size(sizes: Sequence[Size], others: Sequence[Size]) -> Size | None:
    """The one size that is left of some where all others are known; None if it is not sure.

    Sizes that both have are cancelled as they are: products of sums (`(n + 257) // 384 - 2`) have no factors any more.
    """
    left, divisors = list(sizes), []
    for other in others:
        place = next((index for index, size in enumerate(left) if same(size, other)), None)
        if place is None:
            divisors.append(other)
        else:
            del left[place]
    return divide_exactly(product(left), product(divisors))


def _factors(value: Size) -> tuple[int, list[PrimExpr]] | None:
    """A size as a number times a list of symbolic factors (which may be sums)."""
    value = normal(value)
    number, factors = 1, []
    stack: list[Size] = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, int):
            number *= item
        elif isinstance(item, IntImm):
            number *= item.value
        elif isinstance(item, e.Mul):
            stack.extend((item.b, item.a))
        elif isinstance(item, (e.Add, e.Sub)):
            common = _common_factor(item)
            number *= common
            factors.append(item if common == 1 else as_dim(floor_divide(item, common)))
        else:
            factors.append(item)
    return number, factors


def _common_factor(value: PrimExpr) -> int:
    """A number that certainly divides a sum."""
    found = analyzer_of(value).modular(value)
    return found.coefficient if found.base == 0 and found.coefficient > 1 else 1


_OPERATIONS: Final[dict[type[e.BinaryExpr], Callable[[int, int], int]]] = {
    e.Add: lambda a, b: a + b,
    e.Sub: lambda a, b: a - b,
    e.Mul: lambda a, b: a * b,
    e.Min: min,
    e.Max: max,
}


def value_of(size: Size, symbols: Mapping[Var, int]) -> int | None:
    """The number that a size is under values of symbols; None if one of them has no value yet."""
    if isinstance(size, int):
        return size
    if isinstance(size, IntImm):
        return size.value
    if type(size) is Var:
        return symbols.get(size)
    if not isinstance(size, e.BinaryExpr):
        raise CompilerBug(f"a {type(size).__name__} in a dimension")
    a, b = value_of(size.a, symbols), value_of(size.b, symbols)
    if a is None or b is None:
        return None
    if isinstance(size, (e.FloorDiv, e.FloorMod)):
        if b == 0:
            raise UserError("a dimension is divided by another one that is 0")
        return a // b if isinstance(size, e.FloorDiv) else a % b
    operation = _OPERATIONS.get(type(size))
    if operation is None:
        raise CompilerBug(f"a {type(size).__name__} in a dimension")
    return int(operation(a, b))


def bind_sizes(value: object, symbols: Mapping[Var, int]) -> object:
    """Attributes, or a tuple of their entries, with numbers in the place of expressions of symbols."""
    if isinstance(value, PrimExpr):
        found = value_of(value, symbols)
        if found is None:
            names = ", ".join(symbol.name for symbol in symbols_of(value) if symbol not in symbols)
            raise CompilerBug(f"the symbols {names} have no value here")
        return found
    if isinstance(value, tuple):
        return tuple(bind_sizes(item, symbols) for item in value)
    if isinstance(value, Node) and not isinstance(value, Type) and symbols_of(value):
        return value.with_values([bind_sizes(item, symbols) for item in value.field_values()])
    return value


def broadcast(a: Size, b: Size) -> Size | None:
    """The size that two broadcast to, None if that is not certain; a UserError if they certainly do not."""
    if same(a, b):
        return a
    if a == 1:
        return b
    if b == 1:
        return a
    if isinstance(a, int) and isinstance(b, int):
        raise UserError(f"dimensions {a} and {b} do not broadcast")
    return None
