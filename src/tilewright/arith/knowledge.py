"""What an analyzer knows: ranges and values of variables, assumed inequalities, residues, and its memo tables.

`Knowledge` is the base of the chain of analyses (bounds, modular sets, canonical forms, simplification, proofs),
each in a file of its own; the chain ends in `Analyzer`. The analyses call each other: what a lower one needs from
a higher one is declared here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Self

from tilewright.arith.interval import Interval, intersect
from tilewright.arith.linear import Linear
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import FloatImm, IntImm, PrimExpr, Range, StringImm, Var
from tilewright.ir.node import Node
from tilewright.ir.visit import variables_in


class ModularSet(NamedTuple):
    """The integers `base + k * coefficient`. Coefficient 0 is the single value `base`; 1 is every integer."""

    coefficient: int
    base: int

    def __str__(self) -> str:
        return f"{self.base} (mod {self.coefficient})" if self.coefficient else str(self.base)


_MOST_STATES: Final = 4096
"""States that an analyzer remembers."""
OrderKey = tuple[str, tuple[int, ...]]


def is_index(expr: PrimExpr) -> bool:
    """Whether an expression is a scalar of the index type: a mathematical integer to the analyses."""
    return expr.dtype is INDEX


class Facts(NamedTuple):
    """Everything that is known."""

    values: dict[Var, PrimExpr]
    ranges: dict[PrimExpr, Interval]
    residues: dict[PrimExpr, ModularSet]
    inequalities: dict[PrimExpr, tuple[Linear, ...]]
    truths: dict[PrimExpr, bool]


class State:
    """What is known, and what was found out from it. Facts are never changed in place: other facts are another state.

    Scopes come back to the same facts again and again (a pass enters the same loops and conditions for every buffer):
    `after` has the states that were made of this one by learning something, with all that was found out in them.
    """

    __slots__ = ("about", "after", "answers", "bounds", "facts", "forms", "modular", "proofs", "simplified", "touched")

    def __init__(self, facts: Facts, before: State | None = None) -> None:
        """A state in which nothing was found out yet, but what holds in another one."""
        self.facts = facts
        self.simplified: dict[PrimExpr, PrimExpr] = {} if before is None else dict(before.simplified)
        self.forms: dict[PrimExpr, Linear] = {} if before is None else dict(before.forms)
        self.bounds: dict[PrimExpr, Interval] = {} if before is None else dict(before.bounds)
        self.modular: dict[PrimExpr, ModularSet] = {} if before is None else dict(before.modular)
        self.proofs: dict[PrimExpr, bool] = {} if before is None else dict(before.proofs)
        self.answers: dict[object, object] = {} if before is None else dict(before.answers)
        self.about: dict[PrimExpr, list[Linear]] = {}
        """What searches for bounds know of terms (`arith/bounds.py`), of this state alone as well."""
        self.touched: dict[object, dict[PrimExpr, Range | None]] = {}
        """What is touched (`arith/region.py`). It is of this state alone: it may say more in one that knows more."""
        self.after: dict[object, State] = {}

    def share(self, other: State) -> None:
        """Find out together with another state: neither knows anything of what the other is asked alone."""
        self.simplified, self.forms, self.bounds = other.simplified, other.forms, other.bounds
        self.modular, self.proofs, self.answers = other.modular, other.proofs, other.answers

    def mentions(self, var: Var) -> bool:
        """Whether anything was found out about a variable: whoever asks about an expression asks about its leaves."""
        return var in self.forms or var in self.simplified or var in self.bounds or var in self.modular


class Knowledge(ABC):
    """Facts and caches. All caches hold for the present facts: those of a `State`."""

    def __init__(self) -> None:
        self.values: dict[Var, PrimExpr] = {}
        """Variables that stand for an expression."""
        self.ranges: dict[PrimExpr, Interval] = {}
        """Constant ranges of variables and other terms."""
        self.residues: dict[PrimExpr, ModularSet] = {}
        """Known residues of terms."""
        self.inequalities: dict[PrimExpr, tuple[Linear, ...]] = {}
        """Forms known to be <= 0, under each of their terms."""
        self.truths: dict[PrimExpr, bool] = {}
        """Conditions that are neither comparisons of index values nor made of them, and are known."""
        self._conditions = 0
        """Conditions under which something is being simplified at the moment."""
        self._cases = 0
        """How many cases were looked at inside the outermost of them."""
        self._order: dict[PrimExpr, OrderKey] = {}
        self._numbers: dict[Var, int] = {}
        self._rendered: dict[tuple[object, ...], PrimExpr] = {}
        """The sums that forms are: their order does not depend on the facts."""
        self._failing: dict[PrimExpr, bool] = {}
        self._searches = 0
        self._tried = 0
        """Forms that the outermost search has looked at."""
        self._states = 0
        """How many states are remembered."""
        self._is_learning = False
        self.restore(State(self._facts()))

    def _facts(self) -> Facts:
        return Facts(self.values, self.ranges, self.residues, self.inequalities, self.truths)

    def _clear(self) -> None:
        """Other facts: nothing has been found out from them yet."""
        self.restore(State(self._facts()))

    def save(self) -> State:
        """The present state; knowledge added from here on can be dropped by `restore`."""
        return self._state

    def restore(self, state: State) -> None:
        """Go to a state, its caches included."""
        self._state = state
        self.values, self.ranges, self.residues, self.inequalities, self.truths = state.facts
        self._simplified, self._forms, self._bounds = state.simplified, state.forms, state.bounds
        self._modular, self._proofs = state.modular, state.proofs
        self.answers: dict[object, object] = state.answers
        """What others found out with the present facts, under keys of their own."""

    def copy(self) -> Self:
        """Another analyzer that knows the same; what either learns from here on the other does not know."""
        other = type(self)()
        other._order, other._numbers = dict(self._order), dict(self._numbers)
        other._failing = self._failing
        # Caches hold for the present facts, which are the same.
        state = State(self._state.facts)
        state.share(self._state)
        other.restore(state)
        return other

    def learning(self, key: object, change: Callable[[], object]) -> None:
        """Learn something: by `change`, or if that was learnt in this state before, by going where that led.

        The key says all that decides what is learnt.
        """
        if self._is_learning:
            change()
            return
        before = self._state
        after = before.after.get(key)
        if after is None:
            self._is_learning = True
            try:
                change()
            except BaseException:
                self.restore(before)
                raise
            finally:
                self._is_learning = False
            # Most loops are bound once more by those who look at what is inside them.
            after = before if self._state.facts == before.facts else self._state
            if self._states < _MOST_STATES:
                self._states += 1
                before.after[key] = after
        if after is not self._state:
            self.restore(after)

    def learn_range(self, term: PrimExpr, interval: Interval) -> None:
        """A term lies in an interval (together with what was known)."""
        known = self.ranges.get(term)
        self.ranges = {**self.ranges, term: interval if known is None else intersect(known, interval)}
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
        self.inequalities = {
            **self.inequalities,
            **{term: (*self.inequalities.get(term, ()), form) for term in form.terms},
        }
        self._clear()

    def learn_residue(self, term: PrimExpr, residue: ModularSet) -> None:
        """A term has a residue."""
        self.residues = {**self.residues, term: residue}
        self._clear()

    def learn_truths(self, truths: Mapping[PrimExpr, bool]) -> None:
        """Conditions hold, or do not."""
        self.truths = {**self.truths, **truths}
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
        return variables_in(expr)

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
