"""Constant integer intervals with open ends, and the arithmetic on them that every analysis shares."""

from __future__ import annotations

from typing import Final, NamedTuple

from tilewright.ir.dtype import INDEX, DataType


class Interval(NamedTuple):
    """The integers from `lower` to `upper`, both included; None is an end that is not known.

    `lower > upper` is the empty interval: it can only come from contradictory assumptions.
    """

    lower: int | None
    upper: int | None

    @property
    def is_positive(self) -> bool:
        """Whether there are values and all are above zero."""
        return self.lower is not None and self.lower > 0 and (self.upper is None or self.lower <= self.upper)

    @property
    def is_constant(self) -> bool:
        """Whether there is exactly one value."""
        return self.lower is not None and self.lower == self.upper

    def contains(self, value: int) -> bool:
        """Whether a value may be taken."""
        return (self.lower is None or self.lower <= value) and (self.upper is None or value <= self.upper)

    def __str__(self) -> str:
        low = "-inf" if self.lower is None else str(self.lower)
        high = "+inf" if self.upper is None else str(self.upper)
        return f"[{low}, {high}]"


EVERYTHING: Final = Interval(None, None)
TRUTH: Final = Interval(0, 1)


def of_dtype(dtype: DataType) -> Interval:
    """All values of a type. Index values (int64) are treated as mathematical integers, so they have no ends."""
    if dtype.element is INDEX:
        return EVERYTHING
    if dtype.is_bool:
        return TRUTH
    if dtype.is_integer:
        return Interval(dtype.min_value(), dtype.max_value())
    return EVERYTHING


def fits(interval: Interval, dtype: DataType) -> bool:
    """Whether all values of an interval are representable in an integer type (index values always are)."""
    if dtype.element is INDEX:
        return True
    low, high = interval
    return low is not None and high is not None and dtype.min_value() <= low and high <= dtype.max_value()


def intersect(a: Interval, b: Interval) -> Interval:
    """The values in both."""
    low = a.lower if b.lower is None else b.lower if a.lower is None else max(a.lower, b.lower)
    high = a.upper if b.upper is None else b.upper if a.upper is None else min(a.upper, b.upper)
    return Interval(low, high)


def union(a: Interval, b: Interval) -> Interval:
    """The least interval that holds both."""
    low = None if a.lower is None or b.lower is None else min(a.lower, b.lower)
    high = None if a.upper is None or b.upper is None else max(a.upper, b.upper)
    return Interval(low, high)


def add(a: Interval, b: Interval) -> Interval:
    """The sums."""
    return Interval(
        None if a.lower is None or b.lower is None else a.lower + b.lower,
        None if a.upper is None or b.upper is None else a.upper + b.upper,
    )


def scale(a: Interval, factor: int) -> Interval:
    """The multiples by a constant."""
    low, high = a
    if factor == 0:
        return Interval(0, 0)
    if factor < 0:
        low, high = high, low
    return Interval(None if low is None else low * factor, None if high is None else high * factor)


def mul(a: Interval, b: Interval) -> Interval:
    """The products."""
    if a.is_constant and a.lower is not None:
        return scale(b, a.lower)
    if b.is_constant and b.lower is not None:
        return scale(a, b.lower)
    if a.lower is not None and a.upper is not None and b.lower is not None and b.upper is not None:
        corners = [x * y for x in (a.lower, a.upper) for y in (b.lower, b.upper)]
        return Interval(min(corners), max(corners))
    if a.lower is not None and b.lower is not None and a.lower >= 0 and b.lower >= 0:
        high = None if a.upper is None or b.upper is None else a.upper * b.upper
        return Interval(a.lower * b.lower, high)
    if a.upper is not None and b.upper is not None and a.upper <= 0 and b.upper <= 0:
        high = None if a.lower is None or b.lower is None else a.lower * b.lower
        return Interval(a.upper * b.upper, high)
    if a.lower is not None and b.upper is not None and a.lower >= 0 and b.upper <= 0:
        low = None if a.upper is None or b.lower is None else a.upper * b.lower
        return Interval(low, a.lower * b.upper)
    if b.lower is not None and a.upper is not None and b.lower >= 0 and a.upper <= 0:
        return mul(b, a)
    return EVERYTHING


def floordiv(a: Interval, b: Interval) -> Interval:
    """The floor quotients, where the divisor is positive; everything otherwise."""
    if b.lower is None or not b.is_positive:
        return EVERYTHING
    # A larger divisor pulls the quotient toward zero (or to -1 from below).
    low: int | None = None
    high: int | None = None
    if a.lower is not None:
        if a.lower < 0:
            low = a.lower // b.lower
        else:
            low = 0 if b.upper is None else a.lower // b.upper
    if a.upper is not None:
        if a.upper >= 0:
            high = a.upper // b.lower
        else:
            high = -1 if b.upper is None else a.upper // b.upper
    return Interval(low, high)


def floormod(a: Interval, b: Interval) -> Interval:
    """The floor remainders, where the divisor is positive; everything otherwise."""
    if b.lower is None or not b.is_positive:
        return EVERYTHING
    if a.lower is not None and a.upper is not None:
        if 0 <= a.lower and a.upper < b.lower:
            return a
        if b.upper == b.lower and a.lower // b.lower == a.upper // b.lower:
            return Interval(a.lower % b.lower, a.upper % b.lower)
    high = None if b.upper is None else b.upper - 1
    if a.lower is not None and a.lower >= 0 and a.upper is not None:
        high = a.upper if high is None else min(high, a.upper)
    return Interval(0, high)


def minimum(a: Interval, b: Interval) -> Interval:
    """The lesser of two values."""
    low = None if a.lower is None or b.lower is None else min(a.lower, b.lower)
    high = a.upper if b.upper is None else b.upper if a.upper is None else min(a.upper, b.upper)
    return Interval(low, high)


def maximum(a: Interval, b: Interval) -> Interval:
    """The greater of two values."""
    low = a.lower if b.lower is None else b.lower if a.lower is None else max(a.lower, b.lower)
    high = None if a.upper is None or b.upper is None else max(a.upper, b.upper)
    return Interval(low, high)
