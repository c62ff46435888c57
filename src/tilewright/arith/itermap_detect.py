"""The detector of iterator maps: reads index expressions and predicates as digits of loop variables.

Sums of digits that count without gaps (chains) are divided by cutting them at a place value; where the place falls
between no digits, the rest of the chain is fused to a new source. A predicate `chain < limit` makes a source of fewer
values. `tilewright.arith.itermap` is the public face.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd

from tilewright.arith.analyzer import Analyzer, conjuncts
from tilewright.arith.bounds import factors
from tilewright.arith.iterform import IterMap, IterMark, IterSplit, IterSum, Size, collect_sources
from tilewright.arith.linear import Linear
from tilewright.ir import build
from tilewright.ir import expr as e
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import ZERO, IntImm, PrimExpr, Range, Var
from tilewright.support.errors import CompilerBug


class _NotAMap(Exception):
    """Raised inside detection when the expressions do not split and fuse cleanly."""


@dataclass(frozen=True, slots=True)
class _Constraint:
    """A predicate `sum of digits < limit`: the digits fuse to a source with fewer values."""

    digits: dict[tuple[int, Size, Size], Size]
    mark: IterMark


class IterMapDetector:
    """One attempt at detection, over one set of domains (bound in the analyzer).

    `fuse_chains`: divide sums of several digits as one fused source, and never digit by digit.
    """

    def __init__(
        self, domains: Mapping[Var, Range], analyzer: Analyzer, *, as_written: bool, fuse_chains: bool = False
    ) -> None:
        self.analyzer = analyzer
        self.as_written = as_written
        self.fuse_chains = fuse_chains
        self.domains = domains
        self.variables = frozenset(domains)
        self.marks: dict[Var, IterMark] = {}
        self.fused: dict[tuple[object, ...], IterMark] = {}
        self.constraints: list[_Constraint] = []
        self.restricted = False
        """Whether the predicate leaves out iterations in a way that the digits do not show."""
        for var, value in domains.items():
            self.marks[var] = IterMark(var, self._size(value.extent))

    def detect(self, exprs: Sequence[PrimExpr], predicate: PrimExpr) -> IterMap | None:
        """The map, or None if the expressions do not split and fuse cleanly."""
        try:
            if any(self._at_most(mark.extent, 0) for mark in self.marks.values()):
                raise _NotAMap  # there are no iterations
            self._read_predicate(predicate)
            sums = [self._sum(expr) for expr in exprs]
            indices = [IterSum(self._ordered(self._limited(item.splits)), item.base) for item in sums]
            used = self._used_digits(indices)
        except _NotAMap:
            return None
        injective = used and all(self._decodable(index.splits) for index in indices)
        extents = tuple(None if self.restricted else self._filled(index.splits) for index in indices)
        return IterMap(tuple(indices), self.domains, self.marks, injective, extents)

    # Sizes

    def _size(self, expr: Size) -> Size:
        if isinstance(expr, int):
            return expr
        simple = self.analyzer.simplify(expr)
        return simple.value if isinstance(simple, IntImm) else simple

    def _times(self, a: Size, b: Size) -> Size:
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        return self._size(build.mul(a, b))

    def _same(self, a: Size, b: Size) -> bool:
        if isinstance(a, int) and isinstance(b, int):
            return a == b
        return self.analyzer.prove_equal(build.as_expr(a, INDEX), build.as_expr(b, INDEX))

    def _quotient(self, a: Size, b: Size) -> Size | None:
        """a / b where b certainly divides a."""
        if isinstance(a, int) and isinstance(b, int):
            return a // b if a % b == 0 else None
        if self.analyzer.prove_equal(build.floormod(a, b), ZERO):
            return self._size(build.floordiv(a, b))
        return None

    def _at_most(self, a: Size, b: Size) -> bool:
        if isinstance(a, int) and isinstance(b, int):
            return a <= b
        return self.analyzer.prove(build.le(a, b))

    # Reading expressions

    def _moves(self, expr: PrimExpr) -> bool:
        return not self.variables.isdisjoint(self.analyzer.variables_of(expr))

    def _sum(self, expr: PrimExpr) -> IterSum:
        if self.as_written:
            return self._sum_as_written(expr)
        return self._sum_of_form(self.analyzer.form(expr))

    def _sum_as_written(self, expr: PrimExpr) -> IterSum:
        if not self._moves(expr):
            return IterSum((), self.analyzer.simplify(expr))
        match expr:
            case e.Add() | e.Sub():
                a, b = self._sum(expr.a), self._sum(expr.b)
                sign = 1 if isinstance(expr, e.Add) else -1
                splits = [*a.splits, *(split.scaled(self._times(split.scale, sign)) for split in b.splits)]
                base = build.add(a.base, build.mul(b.base, sign))
                return IterSum(self._merged(splits), self.analyzer.simplify(base))
            case e.Mul() if not self._moves(expr.a) or not self._moves(expr.b):
                moving, fixed = (expr.b, expr.a) if self._moves(expr.b) else (expr.a, expr.b)
                inner, scale = self._sum(moving), self._size(fixed)
                splits = [split.scaled(self._times(split.scale, scale)) for split in inner.splits]
                return IterSum(self._merged(splits), self.analyzer.simplify(build.mul(inner.base, scale)))
            case _:
                return self._term(expr)

    def _sum_of_form(self, form: Linear) -> IterSum:
        splits: list[IterSplit] = []
        base = Linear({t: c for t, c in form.terms.items() if not self._moves(t)}, form.constant)
        for term, coefficient in form.terms.items():
            if self._moves(term):
                part = self._term(term)
                splits.extend(split.scaled(self._times(split.scale, coefficient)) for split in part.splits)
                base = base.plus(self.analyzer.form(part.base), coefficient)
        return IterSum(self._merged(splits), self.analyzer.render(base))

    def _merged(self, splits: list[IterSplit]) -> tuple[IterSplit, ...]:
        """Equal digits add up and digits of one value vanish; negative scales are not handled."""
        found: dict[tuple[int, Size, Size], IterSplit] = {}
        for split in splits:
            known = found.get(split.digit)
            scale = split.scale if known is None else self._size(build.as_expr(known.scale, INDEX) + split.scale)
            found[split.digit] = split.scaled(scale)
        kept = [split for split in found.values() if split.scale != 0 and not self._same(split.extent, 1)]
        if any(not self._positive(split.scale) for split in kept):
            raise _NotAMap
        return tuple(kept)

    def _positive(self, size: Size) -> bool:
        return size > 0 if isinstance(size, int) else self.analyzer.prove(build.gt(size, 0))

    def _term(self, term: PrimExpr) -> IterSum:
        match term:
            case Var():
                mark = self.marks[term]
                return IterSum((IterSplit(mark, 1, mark.extent, 1),), self.domains[term].min)
            case e.FloorDiv() if not self._moves(term.b):
                return self._divide(self._sum(term.a), self._size(term.b))[0]
            case e.FloorMod() if not self._moves(term.b):
                return self._divide(self._sum(term.a), self._size(term.b))[1]
            case e.Mul():
                parts = factors(term)
                moving = [part for part in parts if self._moves(part)]
                if len(moving) != 1:
                    raise _NotAMap
                scale: Size = 1
                for part in parts:
                    if part is not moving[0]:
                        scale = self._times(scale, part)
                inner = self._term(moving[0])
                splits = tuple(split.scaled(self._times(split.scale, scale)) for split in inner.splits)
                return IterSum(splits, build.mul(inner.base, scale))
            case _:
                raise _NotAMap

    def _divide(self, dividend: IterSum, divisor: Size) -> tuple[IterSum, IterSum]:
        """Quotient and remainder of a sum of digits."""
        if not self._positive(divisor) or not self.analyzer.prove_equal(build.floormod(dividend.base, divisor), ZERO):
            raise _NotAMap
        base = self.analyzer.simplify(build.floordiv(dividend.base, divisor))
        chain = self._chain(dividend.splits)
        if not chain:
            return IterSum((), base), IterSum((), ZERO)
        unit = chain[0].scale
        whole = self._quotient(unit, divisor)
        if whole is not None:
            return IterSum(self._counted(chain, whole), base), IterSum((), ZERO)
        rest = self._quotient(divisor, unit)
        if rest is None:
            raise _NotAMap
        cut_whole = self.fuse_chains and len(chain) > 1
        low, high = self._cut_fused([], list(chain), rest) if cut_whole else self._cut(list(chain), rest)
        return IterSum(self._counted(high, 1), base), IterSum(self._counted(low, unit), ZERO)

    def _cut(self, chain: list[IterSplit], rest: Size) -> tuple[list[IterSplit], list[IterSplit]]:
        """The digits below and above a place value of a chain, cutting a digit where the place falls inside it."""
        low: list[IterSplit] = []
        while chain and not self._same(rest, 1):
            digit = chain[0]
            smaller = self._quotient(rest, digit.extent)
            if smaller is not None:
                low.append(chain.pop(0))
                rest = smaller
                continue
            place = rest if self._quotient(digit.extent, rest) is not None else None
            if place is None and isinstance(rest, int) and isinstance(digit.extent, int):
                common = gcd(rest, digit.extent)
                place = common if common > 1 else None
            if place is None:
                return self._cut_fused(low, chain, rest)
            below, above = self._cut_digit(digit, place)
            low.append(below)
            chain[0] = above
            rest = self._size(build.floordiv(build.as_expr(rest, INDEX), place))
        return low, chain

    def _cut_digit(self, digit: IterSplit, place: Size) -> tuple[IterSplit, IterSplit]:
        rest = self._quotient(digit.extent, place)
        if rest is None:
            raise _NotAMap
        below = IterSplit(digit.source, digit.lower_factor, place, 1)
        return below, IterSplit(digit.source, self._times(digit.lower_factor, place), rest, 1)

    def _cut_fused(
        self, low: list[IterSplit], chain: list[IterSplit], rest: Size
    ) -> tuple[list[IterSplit], list[IterSplit]]:
        """The place falls between no digits: fuse what is left and cut the fusion."""
        extent: Size = 1
        for digit in chain:
            extent = self._times(extent, digit.extent)
        if self._at_most(extent, rest):
            return low + chain, []
        if len(chain) == 1:
            raise _NotAMap
        mark = self._fuse(chain, extent)
        below, above = self._cut_digit(IterSplit(mark, 1, extent, 1), rest)
        return [*low, below], [above]

    def _fuse(self, chain: Sequence[IterSplit], extent: Size) -> IterMark:
        splits = self._counted(chain, 1)
        key = (tuple(split.digit for split in splits), extent)
        mark = self.fused.get(key)
        if mark is None:
            mark = self.fused[key] = IterMark(IterSum(splits, ZERO), extent)
        return mark

    def _counted(self, chain: Iterable[IterSplit], unit: Size) -> tuple[IterSplit, ...]:
        """Digits with the scales of a positional number of the given unit."""
        result = []
        for digit in chain:
            result.append(digit.scaled(unit))
            unit = self._times(unit, digit.extent)
        return tuple(result)

    # Chains: sums of digits that count without gaps

    def _limited(self, splits: tuple[IterSplit, ...]) -> tuple[IterSplit, ...]:
        """Replace digits that a predicate limits together by the digit of their limited fusion."""
        for constraint in self.constraints:
            present = {split.digit: split for split in splits}
            if not all(digit in present for digit in constraint.digits):
                continue
            first = next(iter(constraint.digits))
            unit = self._quotient(present[first].scale, constraint.digits[first])
            if unit is None:
                continue
            if all(self._same(present[d].scale, self._times(unit, scale)) for d, scale in constraint.digits.items()):
                others = [split for split in splits if split.digit not in constraint.digits]
                splits = (*others, IterSplit(constraint.mark, 1, constraint.mark.extent, unit))
        return splits

    def _ordered(self, splits: tuple[IterSplit, ...]) -> tuple[IterSplit, ...]:
        """Digits from the smallest scale up; symbolic scales follow the digits they continue."""
        rest = list(splits)
        ordered: list[IterSplit] = []
        while rest:
            constants = [split for split in rest if isinstance(split.scale, int)]
            if ordered:
                wanted = self._times(ordered[-1].scale, ordered[-1].extent)
                following = next((split for split in rest if self._same(split.scale, wanted)), None)
            else:
                following = None
            if following is None:
                following = min(constants, key=_constant_scale) if constants else rest[0]
            ordered.append(following)
            rest.remove(following)
        return tuple(ordered)

    def _chain(self, splits: tuple[IterSplit, ...]) -> tuple[IterSplit, ...]:
        """The digits in order, if together they count without gaps."""
        chain = self._ordered(self._limited(splits))
        for lower, upper in pairwise(chain):
            if not self._same(upper.scale, self._times(lower.scale, lower.extent)):
                raise _NotAMap
        return chain

    # Predicates

    def _read_predicate(self, predicate: PrimExpr) -> None:
        if not self.as_written:
            predicate = self.analyzer.simplify(predicate)
        parts = [part for part in conjuncts(predicate) if not self.analyzer.prove(part)]
        parts.sort(key=lambda part: len(self.analyzer.variables_of(part) & self.variables))
        for part in parts:
            try:
                self._read_comparison(part)
            except _NotAMap:
                # Fewer iterations stay different from each other, but what they fill is not known.
                self.restricted = True

    def _read_comparison(self, condition: PrimExpr) -> None:
        if not isinstance(condition, (e.LT, e.LE)) or condition.a.dtype is not INDEX:
            raise _NotAMap
        form = self.analyzer.form(condition.a).minus(self.analyzer.form(condition.b))
        form = form.shifted(0 if isinstance(condition, e.LT) else -1)
        moving = Linear({t: c for t, c in form.terms.items() if self._moves(t)}, 0)
        fixed = form.minus(moving)
        if not moving.terms:
            raise _NotAMap
        left = self._sum_of_form(moving)
        chain = self._chain(left.splits)
        if not chain:
            raise _NotAMap
        limit = self.analyzer.render(fixed.plus(self.analyzer.form(left.base)).scaled(-1))
        unit = chain[0].scale
        # unit * x < limit  is  x < ceil(limit / unit)
        bound = self._size(build.floordiv(limit + build.as_expr(unit, INDEX) - 1, unit))
        extent: Size = 1
        for digit in chain:
            extent = self._times(extent, digit.extent)
        if self._at_most(extent, bound):
            return
        if self._at_most(bound, 0):
            raise _NotAMap  # no iteration is left
        if not self._at_most(bound, extent):
            raise _NotAMap
        self._limit(chain, bound)

    def _limit(self, chain: tuple[IterSplit, ...], bound: Size) -> None:
        source = chain[0].source.source
        if len(chain) == 1 and isinstance(source, Var) and self._same(chain[0].extent, chain[0].source.extent):
            # A limit of one variable only makes its range shorter.
            self.marks[source] = IterMark(source, bound)
            return
        splits = self._counted(chain, 1)
        digits = {split.digit: split.scale for split in splits}
        self.constraints.append(_Constraint(digits, IterMark(IterSum(splits, ZERO), bound)))

    # Checks

    def _used_digits(self, indices: Sequence[IterSum]) -> bool:
        """Whether every digit of every source is used exactly once. Digits used twice are not a map of this kind."""
        used: dict[int, list[IterSplit]] = {}
        marks: dict[int, IterMark] = {}

        def add(splits: Iterable[IterSplit]) -> None:
            for split in splits:
                used.setdefault(id(split.source), []).append(split)
                marks[id(split.source)] = split.source

        for index in indices:
            add(index.splits)
        complete = True
        while marks:
            # A source is looked at when no other is built from it: then all its digits are known.
            mark = self._outermost(marks)
            del marks[id(mark)]
            if not self._tiles(mark, used.pop(id(mark))):
                complete = False
            if isinstance(mark.source, IterSum):
                add(mark.source.splits)
        return self._all_used(indices) and complete

    def _outermost(self, marks: Mapping[int, IterMark]) -> IterMark:
        inner: set[int] = set()
        for mark in marks.values():
            collect_sources(mark, inner)
        for key, mark in marks.items():
            if key not in inner:
                return mark
        raise CompilerBug("fused iterators form a cycle")

    def _tiles(self, mark: IterMark, digits: list[IterSplit]) -> bool:
        """Whether digits cover their source; raises if they overlap."""
        rest = list(digits)
        place: Size = 1
        gaps = False
        while rest:
            following = next((split for split in rest if self._same(split.lower_factor, place)), None)
            if following is None:
                constants = [split for split in rest if isinstance(split.lower_factor, int)]
                if len(constants) != len(rest) or not isinstance(place, int):
                    raise _NotAMap
                following = min(constants, key=_constant_place)
                if _constant_place(following) < place or _constant_place(following) % place:
                    raise _NotAMap
                gaps = True
            rest.remove(following)
            place = self._times(following.lower_factor, following.extent)
        return not gaps and self._same(place, mark.extent)

    def _all_used(self, indices: Sequence[IterSum]) -> bool:
        """Whether every variable that runs has a part in the indices; limits without a part are noted."""
        reached: set[int] = set()
        for index in indices:
            for split in index.splits:
                reached.add(id(split.source))
                collect_sources(split.source, reached)
        if any(id(constraint.mark) not in reached for constraint in self.constraints):
            self.restricted = True
        return all(id(mark) in reached or self._same(mark.extent, 1) for mark in self.marks.values())

    def _decodable(self, splits: tuple[IterSplit, ...]) -> bool:
        """Whether the digits can be read back from their sum: each scale exceeds what is below it."""
        below: Size = 0
        for split in splits:
            if not self.analyzer.prove(build.lt(build.as_expr(below, INDEX), build.as_expr(split.scale, INDEX))):
                return False
            span = self._times(split.scale, self._size(build.as_expr(split.extent, INDEX) - 1))
            below = self._size(build.as_expr(below, INDEX) + span)
        return True

    def _filled(self, splits: tuple[IterSplit, ...]) -> Size | None:
        """The number of integers that a sum runs over without a gap."""
        extent: Size = 1
        for split in splits:
            if not self._same(split.scale, extent):
                return None
            extent = self._times(extent, split.extent)
        return extent


def _constant_scale(split: IterSplit) -> int:
    assert isinstance(split.scale, int)
    return split.scale


def _constant_place(split: IterSplit) -> int:
    assert isinstance(split.lower_factor, int)
    return split.lower_factor
