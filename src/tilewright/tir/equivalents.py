"""Equivalents: other programs for what some blocks compute, equal within a tolerance, known by name.

A schedule rearranges the operations that a program has. Some algorithms need others: online softmax sees each score
once, where the plain program has three passes over all of them. An equivalent builds such a program from the blocks it
is to replace; `Schedule.replace_by_equivalent` puts it in their place, and traces record its name and parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tilewright.support.errors import UserError
from tilewright.tir.function import PrimFunc

Parameters = Mapping[str, int]
"""What an equivalent leaves open, the sizes of tiles say: plain numbers, so that traces can hold them."""


@dataclass(frozen=True, slots=True)
class Equivalent:
    """Another program for what some blocks compute."""

    name: str
    """How traces call it."""
    meaning: str
    """What it does otherwise, in a few words."""
    build: Callable[[PrimFunc, Parameters], PrimFunc]
    """From the blocks as a program of their own to the program that takes their place: the same parameters, in order.

    A program that it is not for is refused with a `UserError`.
    """
    smaller: Callable[[PrimFunc, Parameters], tuple[PrimFunc, Parameters]] | None = None
    """A program of the same structure that is quick to interpret, with parameters for it: what verification runs."""
    is_tested: bool = False
    """Whether tests show that its programs are well formed and stay in their buffers: others are checked each time."""


_declared: Final[dict[str, Equivalent]] = {}


def declare_equivalent(equivalent: Equivalent) -> Equivalent:
    """Make an equivalent known by its name. Declaring the same again is fine; something else under the name is not."""
    if _declared.setdefault(equivalent.name, equivalent) != equivalent:
        raise UserError(
            f"another equivalent is declared as {equivalent.name!r} already", hint="give this one a name of its own"
        )
    return equivalent


def find_equivalent(name: str) -> Equivalent:
    """The equivalent of a name."""
    known = _declared.get(name)
    if known is None:
        names = ", ".join(_declared) or "none"
        raise UserError(
            f"there is no equivalent {name!r}",
            hint=f"declare it with declare_equivalent first; declared are: {names}",
        )
    return known
