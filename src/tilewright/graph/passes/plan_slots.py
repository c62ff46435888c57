"""Memory of values whose size is symbolic: slots shared by values that never live at the same time.

Offsets into a workspace of unknown size cannot be packed like a static plan's. Instead the workspace is a row of slots,
each as large as the largest value it ever holds; where that is one of two values is not known before the sizes are, the
slot's size is the greater of both, an expression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tilewright.arith.analyzer import Analyzer
from tilewright.ir.build import as_expr, ge, maximum, mul
from tilewright.ir.expr import IntImm, PrimExpr, Var
from tilewright.ir.types import TensorType
from tilewright.ir.visit import pre_order, substitute
from tilewright.support.errors import UnsupportedError

_NOMINAL = 128
"""What a symbol is taken for where a choice needs a number."""


@dataclass(eq=False, slots=True)
class SlotRequest:
    """A value that needs memory from its first to its last step; `slot` is what it gets."""

    size: PrimExpr
    first: int
    last: int
    slot: int = -1


@dataclass(eq=False, slots=True)
class _Slot:
    size: PrimExpr
    guess: int
    free_from: int


@lru_cache(maxsize=4096)
def symbolic_bytes(kind: TensorType) -> PrimExpr:
    """The bytes of a tensor, as an expression of the symbols in its shape."""
    total: PrimExpr = as_expr(kind.dtype.itemsize)
    for dim in kind.shape if kind.shape is not None else (None,):
        if dim is None:
            raise UnsupportedError(
                "a compiled value needs a shape whose dimensions are numbers or symbols",
                hint="give the shapes of the inputs",
            )
        total = mul(dim, total)
    return total


def assign_slots(values: Sequence[SlotRequest]) -> tuple[PrimExpr, ...]:
    """Give each value a slot; returns the size of each.

    In order of time, a value takes the free slot that fits it best: one that is certainly large enough, else the
    one that must grow least, by nominal sizes.
    """
    chooser = _Chooser(values)
    slots: list[_Slot] = []
    for value in sorted(values, key=lambda value: (value.first, -chooser.guess(value.size))):
        size, guessed = chooser.simplify(value.size), chooser.guess(value.size)
        free = [n for n, slot in enumerate(slots) if slot.free_from <= value.first]
        if free:
            best = min(free, key=lambda n: (abs(slots[n].guess - guessed), n))
            slot = slots[best]
            slot.size = chooser.larger(slot.size, size)
            slot.guess = max(slot.guess, guessed)
            slot.free_from = value.last + 1
            value.slot = best
        else:
            value.slot = len(slots)
            slots.append(_Slot(size, guessed, value.last + 1))
    return tuple(slot.size for slot in slots)


class _Chooser:
    """Sizes simplified and compared, each pair once."""

    def __init__(self, values: Sequence[SlotRequest]) -> None:
        self.analyzer = Analyzer()
        symbols = {item for value in values for item in pre_order(value.size) if type(item) is Var}
        self.nominal: dict[Var, PrimExpr] = dict.fromkeys(symbols, IntImm(_NOMINAL))
        for symbol in sorted(symbols, key=lambda var: var.name):
            self.analyzer.assume_always(ge(symbol, 0))
        self.simplified: dict[PrimExpr, PrimExpr] = {}
        self.guesses: dict[PrimExpr, int] = {}
        self.chosen: dict[tuple[PrimExpr, PrimExpr], PrimExpr] = {}

    def simplify(self, size: PrimExpr) -> PrimExpr:
        simple = self.simplified.get(size)
        if simple is None:
            simple = self.simplified[size] = self.analyzer.simplify(size)
        return simple

    def guess(self, size: PrimExpr) -> int:
        guessed = self.guesses.get(size)
        if guessed is None:
            value = self.analyzer.simplify(substitute(size, self.nominal))
            guessed = self.guesses[size] = value.value if isinstance(value, IntImm) else 0
        return guessed

    def larger(self, a: PrimExpr, b: PrimExpr) -> PrimExpr:
        if a is b:
            return a
        larger = self.chosen.get((a, b))
        if larger is None:
            if self.analyzer.prove(ge(a, b)):
                larger = a
            elif self.analyzer.prove(ge(b, a)):
                larger = b
            else:
                larger = maximum(a, b)
            self.chosen[(a, b)] = larger
        return larger
