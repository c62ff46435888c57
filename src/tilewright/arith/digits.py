"""Digits of a number back to the number: what fused loops of symbolic extents give to a block's iterators.

Loops over (b, h, w) that are fused to one have the indices x // (h * w), x // w % h and x % w. Iterator maps cannot
divide symbolic extents; but these are the digits of x in a mixed radix, and tell apart just what x tells apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.arith.analyzer import Analyzer
from tilewright.ir.build import add, ge, mul
from tilewright.ir.expr import LE, LT, ONE, ZERO, Add, FloorDiv, FloorMod, IntImm, Mul, PrimExpr

_Digit = tuple[PrimExpr, PrimExpr, PrimExpr | None]
"""number // step % radix: the number, the step and the radix (None without one)."""


def joined_digits(values: Sequence[PrimExpr], conditions: Sequence[PrimExpr], analyzer: Analyzer) -> list[PrimExpr]:
    """The values, with each complete set of digits of a number replaced by the number.

    [x // (h * w), x // w % h, x % w, y]  ->  [x, y]
    [x // w * 4 + i, x % w * 4 + j]       ->  [x, i, j]      for i and j in [0, 4): pixels of tiles

    The first digit may have a radix too, if a condition says that the number has no more digits (x < b * h * w). The
    new values are functions of the old ones wherever no size is 0, so where the new ones differ the old ones do.
    """
    values = [part for value in values for part in _parts(value, analyzer)]
    groups: dict[PrimExpr, list[_Digit]] = {}
    for value in values:
        digit = _digit(value)
        groups.setdefault(digit[0], []).append(digit)
    whole = [
        number
        for number, digits in groups.items()
        if len(digits) > 1 and _is_complete(number, digits, conditions, analyzer)
    ]
    return [*whole, *(value for value in values if all(_digit(value)[0] is not number for number in whole))]


def _parts(value: PrimExpr, analyzer: Analyzer) -> tuple[PrimExpr, ...]:
    """`digit * k + rest` as its two parts where the rest is in [0, k); other values as they are."""
    match value:
        case Add(a=Mul(a=(FloorDiv() | FloorMod()) as digit, b=IntImm(value=factor)), b=rest):
            low, high = analyzer.bounds(rest)
            # Iterator maps divide by constants themselves.
            is_symbolic = type(digit.b) is not IntImm
            if is_symbolic and low is not None and high is not None and 0 <= low and high < factor:
                return digit, rest
    return (value,)


def _digit(value: PrimExpr) -> _Digit:
    """A value as a digit; it is one of itself if it is nothing else."""
    inner, radix = (value.a, value.b) if isinstance(value, FloorMod) else (value, None)
    return (inner.a, inner.b, radix) if isinstance(inner, FloorDiv) else (inner, ONE, radix)


def _is_complete(
    number: PrimExpr, digits: Sequence[_Digit], conditions: Sequence[PrimExpr], analyzer: Analyzer
) -> bool:
    """Whether each digit's step is the product of the radixes below it, and the first digit has all that is left."""
    rest = list(digits)
    step: PrimExpr = ONE
    while rest:
        found = next((digit for digit in rest if analyzer.prove_equal(digit[1], step)), None)
        if found is None:
            return False
        rest.remove(found)
        if found[2] is None:
            return not rest
        step = analyzer.simplify(mul(step, found[2]))
    is_bounded = any(_is_below(number, step, condition, analyzer) for condition in conditions)
    return is_bounded and analyzer.prove(ge(number, ZERO))


def _is_below(number: PrimExpr, bound: PrimExpr, condition: PrimExpr, analyzer: Analyzer) -> bool:
    """Whether a condition is, in so many words, that a number is below a bound."""
    match condition:
        case LT(a=below, b=limit):
            pass
        case LE(a=below, b=last):
            limit = add(last, ONE)
        case _:
            return False
    return below is number and analyzer.prove_equal(limit, bound)
