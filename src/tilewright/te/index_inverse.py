"""Which steps of a computation read an element: index maps solved for the variables of the loops.

    reads X[i + k] for i < 8, k < 3      ->  element x is read where i = x - k, for each k with 0 <= x - k < 8
    reads X[i * 2 + k]                   ->  k = x % 2 + 2 * j, i = x // 2 - j, for j < 2 where k < 3
    reads X[i // 4, i % 4]               ->  i = x0 * 4 + x1
    reads X[i // 2]                      ->  i = x * 2 + r, for r < 2

Quotients and remainders are written as digits of their variable first, so that everything is a sum of variables; each
sum is then solved for the variable that takes most steps. Steps that are left over are what a gradient sums over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.arith.analyzer import Analyzer
from tilewright.arith.linear import Linear
from tilewright.arith.simplify import depends_on_memory
from tilewright.ir import build
from tilewright.ir import expr as e
from tilewright.ir.build import const
from tilewright.ir.expr import ZERO, PrimExpr, Range, Var, const_value
from tilewright.ir.visit import pre_order, substitute, uses_any
from tilewright.te.tensor import Axis

_ROUNDS = 16
"""Rewrites of quotients after which a map counts as none that can be solved."""
_OPEN = 1 << 40
"""What a size that is not known counts for where the largest is looked for."""


@dataclass(slots=True)
class Inverse:
    """The steps that read an element: variables as expressions of the element's place and of those left over."""

    values: dict[Var, PrimExpr]
    free: dict[Var, PrimExpr]
    """Variables that are left over, from 0, with their extents."""
    conditions: list[PrimExpr] = field(default_factory=list)


def invert(
    indices: Sequence[PrimExpr], domain: Sequence[Axis], place: Sequence[PrimExpr], shape: Sequence[PrimExpr]
) -> Inverse | None:
    """The steps of a domain whose indices are a place of a tensor; None where that cannot be solved."""
    return _Solver(domain, place, shape).solve(indices)


class _Solver:
    """One system of equations `index = place`, and the variables that it is in now."""

    def __init__(self, domain: Sequence[Axis], place: Sequence[PrimExpr], shape: Sequence[PrimExpr]) -> None:
        self.place = list(place)
        self.values: dict[Var, PrimExpr] = {}
        self.free: dict[Var, PrimExpr] = {}
        self.conditions: list[PrimExpr] = []
        self.latest: dict[Var, PrimExpr] = {}
        """What the last rewrite made of variables."""
        self.analyzer = Analyzer()
        for index, size in zip(place, shape, strict=True):
            if isinstance(index, Var):
                self.analyzer.bind(index, Range(ZERO, size))
        for axis in domain:
            if const_value(axis.domain.min) == 0:
                self._add(axis.var, axis.domain.extent)
                self.values[axis.var] = axis.var
            else:
                self.values[axis.var] = self._new(axis.name, axis.domain.extent) + axis.domain.min

    def _add(self, variable: Var, extent: PrimExpr) -> None:
        self.free[variable] = extent
        self.analyzer.bind(variable, Range(ZERO, extent))

    def _new(self, name: str, extent: PrimExpr) -> Var:
        variable = Var(name)
        self._add(variable, extent)
        return variable

    def _replace(self, variable: Var, value: PrimExpr) -> None:
        """A variable is an expression of others from here on."""
        extent = self.free.pop(variable)
        self.values = {var: substitute(item, {variable: value}) for var, item in self.values.items()}
        self.conditions = [substitute(item, {variable: value}) for item in self.conditions]
        self.conditions += [build.le(0, value), build.lt(value, extent)]

    def solve(self, indices: Sequence[PrimExpr]) -> Inverse | None:
        equations = [substitute(index, self.values) for index in indices]
        if any(depends_on_memory(index) for index in equations) or not self._as_sums(equations):
            return None
        order = sorted(range(len(equations)), key=lambda n: len(self._moving(self.form(equations[n]))))
        for number in order:
            if not self._solve(equations, number):
                return None
        values = {var: self.analyzer.simplify(item) for var, item in self.values.items()}
        return Inverse(values, self.free, self._unproven())

    def _unproven(self) -> list[PrimExpr]:
        kept: list[PrimExpr] = []
        for condition in dict.fromkeys(self.analyzer.simplify(item) for item in self.conditions):
            if not self.analyzer.prove(condition):
                kept.append(condition)
        return kept

    def form(self, index: PrimExpr) -> Linear:
        """An index as a sum."""
        return self.analyzer.form(index)

    def _moving(self, form: Linear) -> list[PrimExpr]:
        """The terms of a sum that variables are in."""
        return [term for term in form.terms if uses_any(term, self.free)]

    # Quotients and remainders

    def _as_sums(self, equations: list[PrimExpr]) -> bool:
        """Write quotients and remainders of variables as their digits."""
        for _ in range(_ROUNDS):
            for number, equation in enumerate(equations):
                equations[number] = self.analyzer.simplify(equation)
            quotient = next((item for equation in equations for item in self._quotients(equation)), None)
            if quotient is None:
                return all(type(term) is Var for item in equations for term in self._moving(self.form(item)))
            before = set(self.free)
            if not self._take_apart(quotient):
                return False
            changed = before - set(self.free)
            for number, equation in enumerate(equations):
                equations[number] = substitute(equation, {var: self.latest[var] for var in changed})
        return False

    def _quotients(self, equation: PrimExpr) -> list[e.BinaryExpr]:
        """Quotients and remainders with variables, innermost first."""
        found = [
            item
            for item in pre_order(equation)
            if isinstance(item, (e.FloorDiv, e.FloorMod)) and uses_any(item, self.free)
        ]
        return list(reversed(found))

    def _take_apart(self, quotient: e.BinaryExpr) -> bool:
        """Let the dividend be digits: a variable is split, variables that are digits of a number become that number."""
        divisor, form = const_value(quotient.b), self.form(quotient.a)
        self.latest = {}
        if divisor is None or divisor < 1:
            return False
        terms = self._moving(form)
        if any(type(term) is not Var for term in terms) or len(terms) != len(form.terms):
            return False
        if len(terms) == 1 and form.constant == 0 and form.terms[terms[0]] == 1:
            return self._split(terms[0], divisor)
        return self._join(form)

    def _split(self, variable: PrimExpr, divisor: int) -> bool:
        assert isinstance(variable, Var)
        extent = self.free[variable]
        high = self._new(f"{variable.name}_high", (extent + (divisor - 1)) // divisor)
        low = self._new(f"{variable.name}_low", const(divisor))
        self._forward(variable, high * divisor + low)
        return True

    def _join(self, form: Linear) -> bool:
        """One variable for a sum whose variables are the digits of a number, perhaps shifted."""
        place = 1
        digits: list[tuple[Var, int, int]] = []
        for term, coefficient in sorted(form.terms.items(), key=lambda item: item[1]):
            size = const_value(self.free[term]) if isinstance(term, Var) else None
            if coefficient != place or size is None or not isinstance(term, Var):
                return False
            digits.append((term, coefficient, size))
            place *= size
        shift = form.constant
        if shift < 0:
            return False
        # A number from `shift` on is one from 0 on, the first ones of which are left out.
        joined = self._new("_".join(term.name for term, _, _ in reversed(digits)), const(place + shift))
        number = joined - shift
        for position, (term, coefficient, size) in enumerate(digits):
            digit = number // coefficient if coefficient > 1 else number
            self._forward(term, digit if position == len(digits) - 1 else digit % size)
        return True

    def _forward(self, variable: Var, value: PrimExpr) -> None:
        self.latest[variable] = value
        self._replace(variable, value)

    # Sums

    def _solve(self, equations: list[PrimExpr], number: int) -> bool:
        """Solve an equation for the variable of most steps, and put what it is into the others."""
        form, target = self.form(equations[number]), self.place[number]
        variables = [term for term in self._moving(form) if isinstance(term, Var)]
        if not variables:
            self.conditions.append(build.eq(equations[number], target))
            return True
        if any(uses_any(term, self.free) for term in form.terms if term not in variables):
            return False
        largest = max(variables, key=lambda var: (self._size(var), -list(self.free).index(var)))
        coefficient = form.terms[largest]
        rest = self.analyzer.render(form.minus(Linear({largest: coefficient}, 0)))
        distance = target - rest
        if abs(coefficient) == 1:
            value = distance if coefficient == 1 else build.neg(distance)
        elif coefficient < 0:
            return False
        else:
            others = [var for var in variables if var is not largest]
            if len(others) == 1 and form.terms[others[0]] == 1:
                distance = self._in_phase(equations, others[0], distance, coefficient)
            self.conditions.append(build.eq(distance % coefficient, 0))
            value = distance // coefficient
        self._settle(equations, largest, self.analyzer.simplify(value))
        return True

    def _in_phase(self, equations: list[PrimExpr], tap: Var, distance: PrimExpr, stride: int) -> PrimExpr:
        """Let a variable that must leave a remainder count only the steps that do: every `stride`-th from it on."""
        count = self._new(tap.name, (self.free[tap] + (stride - 1)) // stride)
        base = distance + tap
        value = base % stride + count * stride
        self._settle(equations, tap, value)
        return self.analyzer.simplify(base - value)

    def _settle(self, equations: list[PrimExpr], variable: Var, value: PrimExpr) -> None:
        for position, equation in enumerate(equations):
            equations[position] = substitute(equation, {variable: value})
        self._replace(variable, value)

    def _size(self, variable: Var) -> int:
        known = const_value(self.free[variable])
        return _OPEN if known is None else known
