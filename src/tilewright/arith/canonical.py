"""Canonical forms of index expressions: sums of products in which quotients, remainders and minima are reduced.

    (i//4)*4 + i%4                      -> i
    (i*8 + j)//8, 0 <= j < 8            -> i
    (i*12 + j*4 + k) % 4, 0 <= k < 4    -> k
    min(i*32 + 32, n) - i*32            -> min(32, n - i*32)

Equal sums get the same form, so equality is a subtraction. Every step is an identity of mathematical integers; a
quotient or remainder only ever appears where the input had one with the same divisor (or a part of it).
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from tilewright.arith import linear
from tilewright.arith.bounds import factors
from tilewright.arith.knowledge import is_index
from tilewright.arith.linear import Linear
from tilewright.arith.modular import ModularAnalysis
from tilewright.ir import expr as e
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import IntImm, PrimExpr, Var

_PRODUCT_LIMIT = 16
"""Products of sums are multiplied out up to this many terms."""


class CanonicalAnalysis(ModularAnalysis):
    """Linear forms of index expressions, and expressions of linear forms."""

    def form(self, expr: PrimExpr) -> Linear:
        """The canonical linear form of a scalar index expression."""
        known = self._forms.get(expr)
        if known is None:
            known = self.normalise(self._raw(expr))
            self._forms[expr] = known
        return known

    def _raw(self, expr: PrimExpr) -> Linear:
        """The form before merging of terms: sums are collected without normalising each partial sum."""
        kind = type(expr)
        if type(expr) is IntImm:
            return linear.constant(expr.value)
        if type(expr) is e.Add:
            return self._part(expr.a).plus(self._part(expr.b))
        if type(expr) is e.Sub:
            return self._part(expr.a).plus(self._part(expr.b), -1)
        if type(expr) is e.Mul:
            return self.product(self._part(expr.a), self._part(expr.b))
        handler = _HANDLERS.get(kind)
        if handler is not None:
            return handler(self, expr)
        result = self.restructure(expr)
        if result is expr or type(result) is kind:
            return self._term(result)
        return self._part(result)

    def _part(self, expr: PrimExpr) -> Linear:
        if type(expr) is IntImm:
            return linear.constant(expr.value)
        known = self._forms.get(expr)
        if known is not None:
            return known
        if type(expr) in (e.Add, e.Sub, e.Mul):
            return self._raw(expr)
        return self.form(expr)

    def _term(self, expr: PrimExpr) -> Linear:
        """The form of something that is not a sum: a constant if its range says so."""
        known = self.ranges.get(expr)
        if known is not None and known.lower is not None and known.lower == known.upper:
            return linear.constant(known.lower)
        return Linear({expr: 1}, 0)

    # Products

    def product(self, a: Linear, b: Linear) -> Linear:
        """The product of two forms, multiplied out while it stays small."""
        if not b.terms:
            return a.scaled(b.constant)
        if not a.terms:
            return b.scaled(a.constant)
        if a.weight * b.weight > _PRODUCT_LIMIT:
            return self._term(self._product_term([self.render(a), self.render(b)]))
        result: dict[PrimExpr, int] = {}
        for left, left_factor in a.terms.items():
            for right, right_factor in b.terms.items():
                term = self._product_term([*factors(left), *factors(right)])
                result[term] = result.get(term, 0) + left_factor * right_factor
        form = Linear({term: c for term, c in result.items() if c}, a.constant * b.constant)
        if b.constant:
            form = form.plus(Linear(a.terms, 0), b.constant)
        if a.constant:
            form = form.plus(Linear(b.terms, 0), a.constant)
        return form

    def _product_term(self, parts: list[PrimExpr]) -> PrimExpr:
        parts.sort(key=self.order_key)
        result = parts[0]
        for part in parts[1:]:
            result = e.Mul(result, part)
        return result

    # Quotients and remainders

    def floordiv(self, form: Linear, divisor: int) -> Linear:
        """The form of `form // divisor` for a constant divisor."""
        if divisor < 0:
            form, divisor = form.scaled(-1), -divisor
        if divisor == 1:
            return form
        whole, remainder = form.parted(divisor)
        if self.residues and len(remainder.terms) > 1:
            whole, remainder = self._take_multiples(whole, remainder, divisor)
        if not remainder.terms:
            return whole.shifted(remainder.constant // divisor)
        block = self._block(remainder, divisor)
        if block is not None:
            return whole.shifted(block)
        return whole.plus(self._reduced_quotient(remainder, divisor))

    def _take_multiples(self, whole: Linear, rest: Linear, divisor: int) -> tuple[Linear, Linear]:
        """Move terms whose residue modulo the divisor is known out of the remainder: n + j -> n//8 and j for 8 | n."""
        for term, coefficient in list(rest.terms.items()):
            known = self.term_modular(term)
            if (coefficient * known.coefficient) % divisor or len(rest.terms) == 1:
                continue
            residue = (coefficient * known.base) % divisor
            alone = Linear({term: coefficient}, -residue)
            whole = whole.plus(self.floordiv(alone, divisor))
            rest = rest.minus(alone)
        return whole.shifted(rest.constant // divisor), Linear(rest.terms, rest.constant % divisor)

    def _block(self, form: Linear, size: int) -> int | None:
        """The number k such that k*size <= form < (k+1)*size always, if there is one."""
        low, high = self.form_bounds(form)
        if low is None or high is None or low // size != high // size:
            return None
        return low // size

    def _peel(self, form: Linear, divisor: int) -> tuple[int, Linear, Linear] | None:
        """A factor g of the divisor with form = g*outer + inner and 0 <= inner < g, the greatest that works."""
        sizes = {gcd(coefficient, divisor) for coefficient in form.terms.values()}
        for size in sorted(sizes, reverse=True):
            if size == 1:
                break
            outer, inner = form.parted(size)
            block = self._block(inner, size)
            if block is not None:
                return size, outer.shifted(block), inner.shifted(-block * size)
        return None

    def _reduced_quotient(self, form: Linear, divisor: int) -> Linear:
        peeled = self._peel(form, divisor)
        if peeled is not None:
            size, outer, _ = peeled
            return self.floordiv(outer, divisor // size)
        if len(form.terms) == 1:
            ((term, coefficient),) = form.terms.items()
            if coefficient == 1:
                nested = self._quotient_of_term(term, form.constant, divisor)
                if nested is not None:
                    return nested
        return self._term(e.FloorDiv(self._numerator(form), IntImm(divisor, INDEX)))

    def _quotient_of_term(self, term: PrimExpr, constant: int, divisor: int) -> Linear | None:
        if isinstance(term, e.FloorDiv) and isinstance(term.b, IntImm) and term.b.value > 0:
            inner = term.b.value
            return self.floordiv(self.form(term.a).shifted(constant * inner), divisor * inner)
        if isinstance(term, e.FloorMod) and constant == 0 and isinstance(term.b, IntImm) and term.b.value > 0:
            modulus = term.b.value
            if modulus % divisor == 0:
                return self.floormod(self.floordiv(self.form(term.a), divisor), modulus // divisor)
        if isinstance(term, (e.Min, e.Max)):
            sides = [self.floordiv(self.form(side).shifted(constant), divisor) for side in (term.a, term.b)]
            if not any(type(t) in (e.FloorDiv, e.Min, e.Max) for side in sides for t in side.terms):
                return self.extremum(type(term), sides[0], sides[1])
        return None

    def _numerator(self, form: Linear) -> PrimExpr:
        """The expression of a form that becomes an operand: its own form is remembered."""
        expr = self.render(form)
        self._forms.setdefault(expr, form)
        return expr

    def floormod(self, form: Linear, divisor: int) -> Linear:
        """The form of `form % divisor` for a constant divisor."""
        if divisor < 0:
            return self.floormod(form.scaled(-1), -divisor).scaled(-1)
        if divisor == 1:
            return linear.ZERO
        form = self._reduce_modulo(form, divisor)
        if not form.terms:
            return form
        block = self._block(form, divisor)
        if block is not None:
            return form.shifted(-block * divisor)
        peeled = self._peel(form, divisor)
        if peeled is not None:
            size, outer, inner = peeled
            return self.floormod(outer, divisor // size).scaled(size).plus(inner)
        return self._term(e.FloorMod(self._numerator(form), IntImm(divisor, INDEX)))

    def _reduce_modulo(self, form: Linear, divisor: int) -> Linear:
        """An equal form modulo the divisor, without the terms and remainders that do not matter."""
        changed = True
        while changed:
            changed = False
            terms: dict[PrimExpr, int] = {}
            constant = form.constant
            for term, coefficient in form.terms.items():
                # Only multiples of the divisor go. Reducing the others (16*x % 6 -> 4*x % 6) would be right, but
                # would hide that the quotient and the remainder come from one fused iterator.
                if coefficient % divisor == 0:
                    continue
                if self.residues:
                    known = self.term_modular(term)
                    if (coefficient * known.coefficient) % divisor == 0:
                        constant += coefficient * known.base
                        continue
                terms[term] = coefficient
            form = Linear(terms, constant % divisor)
            for term, coefficient in terms.items():
                if type(term) is e.FloorMod and type(term.b) is IntImm and (coefficient * term.b.value) % divisor == 0:
                    rest = Linear({t: c for t, c in terms.items() if t is not term}, form.constant)
                    form = rest.plus(self.form(term.a), coefficient)
                    changed = True
                    break
        return form

    # Minima and maxima

    def extremum(self, kind: type[PrimExpr], a: Linear, b: Linear) -> Linear:
        """The form of min(a, b) or max(a, b)."""
        low, high = self.form_bounds(a.minus(b))
        a_is_less = high is not None and high <= 0
        b_is_less = low is not None and low >= 0
        if a_is_less or b_is_less:
            return a if a_is_less == (kind is e.Min) else b
        shared = {term: c for term, c in a.terms.items() if b.terms.get(term) == c}
        constant = 0
        if a.constant * b.constant > 0:
            constant = min(a.constant, b.constant, key=abs)
        common = Linear(shared, constant)
        a, b = a.minus(common), b.minus(common)
        size = gcd(a.common_divisor(), b.common_divisor(), a.constant, b.constant)
        values = [*a.terms.values(), *b.terms.values(), a.constant, b.constant]
        if all(value <= 0 for value in values):
            size = -size
            kind = e.Max if kind is e.Min else e.Min
        a, b = a.divided(size), b.divided(size)
        return common.plus(self._extremum_term(kind, a, b), size)

    def _extremum_term(self, kind: type[PrimExpr], a: Linear, b: Linear) -> Linear:
        for nested, other in ((a, b), (b, a)):
            term = nested.single()
            if term is None or type(term) is not kind:
                continue
            for keep, drop in ((term.a, term.b), (term.b, term.a)):  # type: ignore[attr-defined]
                difference = other.minus(self.form(drop))
                low, high = self.form_bounds(difference if kind is e.Min else difference.scaled(-1))
                if low is not None and low >= 0:
                    return nested
                if high is not None and high <= 0:
                    return self.extremum(kind, self.form(keep), other)
        left, right = self._numerator(a), self._numerator(b)
        if not a.terms or (b.terms and self.order_key(right) < self.order_key(left)):
            left, right = right, left
        return self._term(kind(left, right))  # type: ignore[call-arg]

    # Merging of terms

    def normalise(self, form: Linear) -> Linear:
        """Merge quotients with remainders and cancel through minima, until nothing changes."""
        if len(form.terms) + (form.constant != 0) < 2 and not self.residues:
            return form
        for _ in range(8):
            for term in form.terms:
                merge = _MERGES.get(type(term))
                if merge is None:
                    continue
                merged = merge(self, form, term)
                if merged is not None:
                    form = merged
                    break
            else:
                return form
        return form

    def merge_remainder(self, form: Linear, term: e.FloorMod) -> Linear | None:
        """k*(x % m) + k*m*(x // m) -> k*x, and for constants k*(x % m) + k*m*((x // m) % p) -> k*(x % (m*p)).

        The quotient may be of another number that has the same remainder: k*(x % m) + k*m*(y // m) -> k*y.
        """
        if type(term.b) is not IntImm:
            return self._merge_symbolic_remainder(form, term)
        if term.b.value <= 0:
            return None
        modulus, coefficient = term.b.value, form.terms[term]
        wanted = coefficient * modulus
        if wanted not in form.terms.values() and not any(c % wanted == 0 for c in form.terms.values()):
            return None
        numerator = self.form(term.a)
        quotient = self.floordiv(numerator, modulus)
        if quotient.terms and all(form.terms.get(t) == wanted * c for t, c in quotient.terms.items()):
            rest = form.plus(quotient, -wanted).plus(linear.term(term), -coefficient)
            return rest.plus(numerator, coefficient)
        for other, other_coefficient in form.terms.items():
            if type(other) is not e.FloorMod or other is term or other_coefficient != wanted:
                continue
            if type(other.b) is not IntImm or other.b.value <= 0:
                continue
            if self.floormod(quotient, other.b.value).single() is other:
                rest = form.plus(linear.term(other), -wanted).plus(linear.term(term), -coefficient)
                return rest.plus(self.floormod(numerator, modulus * other.b.value), coefficient)
        for other, other_coefficient in form.terms.items():
            if type(other) is not e.FloorDiv or other_coefficient != wanted:
                continue
            if type(other.b) is not IntImm or other.b.value != modulus:
                continue
            divided = self.form(other.a)
            apart = self.floormod(divided.minus(numerator), modulus)
            if not apart.terms and not apart.constant:
                rest = form.plus(linear.term(other), -wanted).plus(linear.term(term), -coefficient)
                return rest.plus(divided, coefficient)
        return None

    def _merge_symbolic_remainder(self, form: Linear, term: e.FloorMod) -> Linear | None:
        coefficient = form.terms[term]
        if not any(type(other) is e.Mul and count == coefficient for other, count in form.terms.items()):
            return None
        multiple = self.form(e.Mul(e.FloorDiv(term.a, term.b), term.b))
        if multiple.constant or any(form.terms.get(t) != coefficient * c for t, c in multiple.terms.items()):
            return None
        rest = form.plus(multiple, -coefficient).plus(linear.term(term), -coefficient)
        return rest.plus(self.form(term.a), coefficient)

    def merge_quotient(self, form: Linear, term: e.FloorDiv) -> Linear | None:
        """k*x - k*m*(x // m) -> k*(x % m), also for x = y//a where the quotient is y//(a*m); m*(x//m) -> x if m | x."""
        if type(term.b) is not IntImm or term.b.value <= 0:
            return None
        divisor, coefficient = term.b.value, form.terms[term]
        numerator = self.form(term.a)
        if coefficient % divisor == 0:
            if self.residues:
                known = self.form_modular(numerator)
                if known.coefficient % divisor == 0:
                    rest = form.plus(linear.term(term), -coefficient)
                    return rest.plus(numerator.shifted(-(known.base % divisor)), coefficient // divisor)
            count = -coefficient // divisor
            if all(_covers(form.terms.get(t, 0), count * c) for t, c in numerator.terms.items()):
                rest = form.plus(linear.term(term), -coefficient).plus(numerator, -count)
                return rest.plus(self.floormod(numerator, divisor), count)
        for other, count in form.terms.items():
            if type(other) is not e.FloorDiv or other.a is not term.a or type(other.b) is not IntImm:
                continue
            inner = other.b.value
            if 0 < inner < divisor and divisor % inner == 0 and coefficient == -count * (divisor // inner):
                rest = form.plus(linear.term(term), -coefficient).plus(linear.term(other), -count)
                return rest.plus(self.floormod(linear.term(other), divisor // inner), count)
        return None

    def merge_extremum(self, form: Linear, term: e.Min | e.Max) -> Linear | None:
        """Move the other summands into a minimum or maximum when that makes it smaller."""
        sign = form.terms[term]
        if sign not in (1, -1):
            return None
        rest = Linear({t: c * sign for t, c in form.terms.items() if t is not term}, form.constant * sign)
        if not rest.weight:
            return None
        a, b = self.form(term.a), self.form(term.b)
        moved_a, moved_b = a.plus(rest), b.plus(rest)
        if moved_a.weight + moved_b.weight >= a.weight + b.weight + rest.weight:
            return None
        return self.extremum(type(term), moved_a, moved_b).scaled(sign)

    def merge_select(self, form: Linear, term: e.Select) -> Linear | None:
        """Join selections by one condition, and move the other summands in when that makes them smaller."""
        if not is_index(term):
            return None
        coefficient = form.terms[term]
        a, b = self.form(term.a).scaled(coefficient), self.form(term.b).scaled(coefficient)
        rest = Linear({t: c for t, c in form.terms.items() if t is not term}, form.constant)
        for other, count in rest.terms.items():
            if type(other) is e.Select and other.condition is term.condition:
                rest = rest.plus(linear.term(other), -count)
                a, b = a.plus(self.form(other.a), count), b.plus(self.form(other.b), count)
                return rest.plus(self._selection(term.condition, a, b))
        moved_a, moved_b = a.plus(rest), b.plus(rest)
        if not rest.weight or moved_a.weight + moved_b.weight >= a.weight + b.weight + rest.weight:
            return None
        return self._selection(term.condition, moved_a, moved_b)

    def _selection(self, condition: PrimExpr, a: Linear, b: Linear) -> Linear:
        if a.same_as(b):
            return a
        return self._term(e.Select(condition, self._numerator(a), self._numerator(b)))

    # Expressions of forms

    def render(self, form: Linear) -> PrimExpr:
        """The expression of a form: positive terms first, then products, larger coefficients; the constant last."""
        if len(form.terms) < 2:
            single = form.single()
            if single is not None:
                return single
            if not form.terms:
                return IntImm(form.constant, INDEX)
        key = (form.constant, *form.terms.items())
        known = self._rendered.get(key)
        if known is None:
            known = self._rendered[key] = self._sum(form)
        return known

    def _sum(self, form: Linear) -> PrimExpr:
        ordered = sorted(form.terms.items(), key=self._render_key)
        constant = form.constant
        result: PrimExpr | None = None
        if ordered[0][1] < 0:
            result, constant = IntImm(constant, INDEX), 0
        for term, coefficient in ordered:
            if result is None:
                result = _times(term, coefficient)
            elif coefficient > 0:
                result = e.Add(result, _times(term, coefficient))
            else:
                result = e.Sub(result, _times(term, -coefficient))
        assert result is not None
        if constant > 0:
            result = e.Add(result, IntImm(constant, INDEX))
        elif constant < 0:
            result = e.Sub(result, IntImm(-constant, INDEX))
        return result

    def _render_key(self, item: tuple[PrimExpr, int]) -> tuple[bool, bool, int, object]:
        term, coefficient = item
        return (coefficient < 0, type(term) is not e.Mul, -abs(coefficient), self.order_key(term))


def _covers(present: int, wanted: int) -> bool:
    return present * wanted > 0 and abs(present) >= abs(wanted)


def _times(term: PrimExpr, coefficient: int) -> PrimExpr:
    return term if coefficient == 1 else e.Mul(term, IntImm(coefficient, INDEX))


def _variable(analysis: CanonicalAnalysis, expr: Var) -> Linear:
    value = analysis.values.get(expr)
    return analysis._term(expr) if value is None else analysis.form(value)


def _floordiv(analysis: CanonicalAnalysis, expr: e.FloorDiv) -> Linear:
    a, b = analysis.form(expr.a), analysis.form(expr.b)
    if not b.terms:
        if b.constant == 0:
            return analysis._term(expr)
        return analysis.floordiv(a, b.constant)
    quotient, rest = _divide_by_symbol(analysis, a, b)
    if rest.is_constant and rest.constant == 0:
        return quotient
    if _within(analysis, rest, b):
        return quotient
    return quotient.plus(analysis._term(e.FloorDiv(analysis._numerator(rest), analysis._numerator(b))))


def _floormod(analysis: CanonicalAnalysis, expr: e.FloorMod) -> Linear:
    a, b = analysis.form(expr.a), analysis.form(expr.b)
    if not b.terms:
        if b.constant == 0:
            return analysis._term(expr)
        return analysis.floormod(a, b.constant)
    _, rest = _divide_by_symbol(analysis, a, b)
    if (rest.is_constant and rest.constant == 0) or _within(analysis, rest, b):
        return rest
    return analysis._term(e.FloorMod(analysis._numerator(rest), analysis._numerator(b)))


def _divide_by_symbol(analysis: CanonicalAnalysis, form: Linear, divisor: Linear) -> tuple[Linear, Linear]:
    """Split a form in a multiple of a symbolic divisor (a product of factors) and a rest."""
    symbol = divisor.single()
    if symbol is None:
        if form.same_as(divisor):
            return linear.constant(1), linear.ZERO
        return linear.ZERO, form
    quotient, rest = linear.constant(0), form
    for term, coefficient in form.terms.items():
        parts = factors(term)
        try:
            for part in factors(symbol):
                parts.remove(part)
        except ValueError:
            continue
        share = linear.constant(coefficient)
        for part in parts:
            share = analysis.product(share, linear.term(part))
        quotient = quotient.plus(share)
        rest = rest.plus(linear.term(term), -coefficient)
    return quotient, rest


def _within(analysis: CanonicalAnalysis, form: Linear, limit: Linear) -> bool:
    """Whether 0 <= form < limit."""
    low = analysis.form_bounds(form).lower
    if low is None or low < 0:
        return False
    high = analysis.upper(form.minus(limit), 2, -1)
    return high is not None and high < 0


def _div(analysis: CanonicalAnalysis, expr: e.Div) -> Linear:
    return _truncating(analysis, expr, e.FloorDiv)


def _mod(analysis: CanonicalAnalysis, expr: e.Mod) -> Linear:
    return _truncating(analysis, expr, e.FloorMod)


def _truncating(analysis: CanonicalAnalysis, expr: e.Div | e.Mod, floor: type[e.FloorDiv] | type[e.FloorMod]) -> Linear:
    """Truncating division is floor division where both operands are not negative."""
    a, b = analysis.simplify(expr.a), analysis.simplify(expr.b)
    low, divisor = analysis.bounds(a).lower, analysis.bounds(b).lower
    if low is not None and low >= 0 and divisor is not None and divisor > 0:
        return analysis.form(floor(a, b))
    return analysis._term(type(expr)(a, b))


def _extremum(analysis: CanonicalAnalysis, expr: e.Min | e.Max) -> Linear:
    return analysis.extremum(type(expr), analysis.form(expr.a), analysis.form(expr.b))


_HANDLERS: dict[type, Callable[..., Linear]] = {
    Var: _variable,
    e.FloorDiv: _floordiv,
    e.FloorMod: _floormod,
    e.Div: _div,
    e.Mod: _mod,
    e.Min: _extremum,
    e.Max: _extremum,
}
_MERGES: dict[type, Callable[..., Linear | None]] = {
    e.FloorMod: CanonicalAnalysis.merge_remainder,
    e.FloorDiv: CanonicalAnalysis.merge_quotient,
    e.Min: CanonicalAnalysis.merge_extremum,
    e.Max: CanonicalAnalysis.merge_extremum,
    e.Select: CanonicalAnalysis.merge_select,
}
