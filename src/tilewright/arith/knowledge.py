"""What an analyzer knows: ranges and values of variables, assumed inequalities, residues, and its memo tables.

`Knowledge` is the base of the chain of analyses (bounds, modular sets, canonical forms, simplification, proofs),
each in a file of its own; the chain ends in `Analyzer`. The analyses call each other: what a lower one needs from
a higher one is declared here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, NamedTuple, Self

from tilewright.arith.interval import Interval, intersect
from tilewright.arith.linear import Linear
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import FloatImm, IntImm, PrimExpr, StringImm, Var
from tilewright.ir.node import Node
from tilewright.ir.visit import variables


class ModularSet(NamedTuple):
    """The integers `base + k * coefficient`. Coefficient 0 is the single value `base`; 1 is every integer."""

    coefficient: int
    base: int

    def __str__(self) -> str:
        return f"{self.base} (mod {self.coefficient})" if self.coefficient else str(self.base)


_NO_VARIABLES: Final[frozenset[Var]] = frozenset()
OrderKey = tuple[str, tuple[int, ...]]


def is_index(expr: PrimExpr) -> bool:
    """Whether an expression is a scalar of the index type: a mathematical integer to the analyses."""
    return expr.dtype is INDEX


class _Facts(NamedTuple):
    """A saved state of knowledge, to return to when a context ends."""

    values: dict[Var, PrimExpr]
    ranges: dict[PrimExpr, Interval]
    residues: dict[PrimExpr, ModularSet]
    inequalities: dict[PrimExpr, list[Linear]]
    truths: dict[PrimExpr, bool]
    memos: tuple[
        dict[PrimExpr, PrimExpr],
        dict[PrimExpr, Linear],
        dict[PrimExpr, Interval],
        dict[PrimExpr, ModularSet],
        dict[PrimExpr, bool],
        dict[object, object],
    ]


class Knowledge(ABC):
    """Facts and caches. All caches hold for the present facts; learning anything starts new ones."""

    def __init__(self) -> None:
        self.values: dict[Var, PrimExpr] = {}
        """Variables that stand for an expression."""
        self.ranges: dict[PrimExpr, Interval] = {}
        """Constant ranges of variables and other terms."""
        self.residues: dict[PrimExpr, ModularSet] = {}
        """Known residues of terms."""
        self.inequalities: dict[PrimExpr, list[Linear]] = {}
        """Forms known to be <= 0, under each of their terms."""
        self.truths: dict[PrimExpr, bool] = {}
        """Conditions that are neither comparisons of index values nor made of them, and are known."""
        self._conditions = 0
        """Conditions under which something is being simplified at the moment."""
        self._cases = 0
        """How many cases were looked at inside the outermost of them."""
        self._order: dict[PrimExpr, OrderKey] = {}
        self._numbers: dict[Var, int] = {}
        self._variables: dict[PrimExpr, frozenset[Var]] = {}
        self._failing: dict[PrimExpr, bool] = {}
        self._searches = 0
        self._tried = 0
        """Forms that the outermost search has looked at."""
        self._facts: dict[PrimExpr, list[Linear]] = {}
        """What that search knows of terms."""
        self._clear()

    def _clear(self) -> None:
        self._simplified: dict[PrimExpr, PrimExpr] = {}
        self._forms: dict[PrimExpr, Linear] = {}
        self._bounds: dict[PrimExpr, Interval] = {}
        self._modular: dict[PrimExpr, ModularSet] = {}
        self._proofs: dict[PrimExpr, bool] = {}
        self.answers: dict[object, object] = {}
        """What others found out with the present facts, under keys of their own."""

    def save(self) -> _Facts:
        """The present state; knowledge added from here on can be dropped by `restore`."""
        saved = _Facts(
            self.values,
            self.ranges,
            self.residues,
            self.inequalities,
            self.truths,
            (self._simplified, self._forms, self._bounds, self._modular, self._proofs, self.answers),
        )
        self.values = dict(self.values)
        self.ranges = dict(self.ranges)
        self.residues = dict(self.residues)
        self.inequalities = {term: list(forms) for term, forms in self.inequalities.items()}
        self.truths = dict(self.truths)
        self._clear()
        return saved

    def copy(self) -> Self:
        """Another analyzer that knows the same; what either learns from here on the other does not know."""
        other = type(self)()
        other.values = dict(self.values)
        other.ranges = dict(self.ranges)
        other.residues = dict(self.residues)
        other.inequalities = {term: list(forms) for term, forms in self.inequalities.items()}
        other.truths = dict(self.truths)
        other._order, other._numbers = dict(self._order), dict(self._numbers)
        other._variables, other._failing = self._variables, self._failing
        # Caches hold for the present facts, which are the same; who learns something starts new ones.
        other._simplified, other._forms, other._bounds = self._simplified, self._forms, self._bounds
        other._modular, other._proofs, other.answers = self._modular, self._proofs, self.answers
        return other

    def restore(self, saved: _Facts) -> None:
        """Go back to a saved state, its caches included."""
        self.values = saved.values
        self.ranges = saved.ranges
        self.residues = saved.residues
        self.inequalities = saved.inequalities
        self.truths = saved.truths
        self._simplified, self._forms, self._bounds, self._modular, self._proofs, self.answers = saved.memos

    def learn_range(self, term: PrimExpr, interval: Interval) -> None:
        """A term lies in an interval (together with what was known)."""
        known = self.ranges.get(term)
        self.ranges[term] = interval if known is None else intersect(known, interval)
        self._clear()

    def learn_at_most_zero(self, form: Linear) -> None:
        """A form is <= 0."""
        divisor = form.common_divisor()
        if divisor == 0:
            return
        if divisor > 1:
            form = Linear({t: c // divisor for t, c in form.terms.items()}, -((-form.constant) // divisor))
        if len(form.terms) == 1:
            ((term, coefficient),) = form.terms.items()
            if coefficient == 1:
                self.learn_range(term, Interval(None, -form.constant))
            else:
                self.learn_range(term, Interval(form.constant, None))
            return
        for term in form.terms:
            self.inequalities.setdefault(term, []).append(form)
        self._clear()

    def order_key(self, expr: PrimExpr) -> OrderKey:
        """A key that orders terms: by text, then by the order in which variables of one name were first met."""
        key = self._order.get(expr)
        if key is None:
            key = self._order[expr] = self._order_key(expr)
        return key

    def _order_key(self, expr: PrimExpr) -> OrderKey:
        if isinstance(expr, Var):
            return (expr.name, (self._numbers.setdefault(expr, len(self._numbers)),))
        if isinstance(expr, (IntImm, FloatImm, StringImm)):
            return (str(expr.value), ())
        texts: list[str] = []
        numbers: list[int] = []
        for child in expr.children():
            text, more = self.order_key(child) if isinstance(child, PrimExpr) else (_name_of(child), ())
            texts.append(text)
            numbers.extend(more)
        # A leading tilde sorts compound terms after variables.
        return (f"~{type(expr).__name__}({','.join(texts)})", tuple(numbers))

    def variables_of(self, expr: PrimExpr) -> frozenset[Var]:
        """The variables that occur in an expression."""
        known = self._variables.get(expr)
        if known is None:
            if isinstance(expr, Var):
                known = frozenset((expr,))
            else:
                known = _NO_VARIABLES
                for child in expr.children():
                    known |= self.variables_of(child) if isinstance(child, PrimExpr) else frozenset(variables(child))
            self._variables[expr] = known
        return known

    @abstractmethod
    def form(self, expr: PrimExpr) -> Linear:
        """The canonical linear form of an index expression."""

    @abstractmethod
    def render(self, form: Linear) -> PrimExpr:
        """The expression of a form."""

    @abstractmethod
    def product(self, a: Linear, b: Linear) -> Linear:
        """The product of two forms, multiplied out."""

    @abstractmethod
    def simplify(self, expr: PrimExpr) -> PrimExpr:
        """The simplest equal expression that is known."""

    @abstractmethod
    def restructure(self, expr: PrimExpr) -> PrimExpr:
        """An expression that is not a sum with its operands simplified and the rules applied at its root."""

    @abstractmethod
    def prove(self, condition: PrimExpr) -> bool:
        """Whether a condition certainly holds."""

    @abstractmethod
    def bounds(self, expr: PrimExpr) -> Interval:
        """Constants between which an integer expression lies."""

    @abstractmethod
    def modular(self, expr: PrimExpr) -> ModularSet:
        """The residue class of an integer expression."""


def _name_of(node: Node) -> str:
    name = getattr(node, "name", None)
    return name if isinstance(name, str) else type(node).__name__
