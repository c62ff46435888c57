"""The normal form of iterator maps: sources, digits and their sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ir import build
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import PrimExpr, Range, Var

Size = int | PrimExpr
"""An extent or factor: a Python integer where it is constant."""


@dataclass(frozen=True, eq=False, slots=True)
class IterMark:
    """A source of digits, counting from 0 to `extent` - 1: a variable less its minimum, or a fusion of digits."""

    source: Var | IterSum
    extent: Size


@dataclass(frozen=True, slots=True)
class IterSplit:
    """The digit (source // lower_factor) % extent, times a scale."""

    source: IterMark
    lower_factor: Size
    extent: Size
    scale: Size

    def scaled(self, scale: Size) -> IterSplit:
        """The same digit with another scale."""
        return IterSplit(self.source, self.lower_factor, self.extent, scale)

    @property
    def digit(self) -> tuple[int, Size, Size]:
        """What identifies the digit, whatever its scale."""
        return (id(self.source), self.lower_factor, self.extent)


@dataclass(frozen=True, slots=True)
class IterSum:
    """A sum of scaled digits and a base that does not depend on the loops; digits of small scale first."""

    splits: tuple[IterSplit, ...]
    base: PrimExpr


@dataclass(frozen=True, slots=True)
class IterMap:
    """The normal form of a map, and what is known of it."""

    indices: tuple[IterSum, ...]
    domains: Mapping[Var, Range]
    marks: Mapping[Var, IterMark]
    injective: bool
    """Different iterations give different indices."""
    extents: tuple[Size | None, ...]
    """How many integers each index runs over without a gap; None where it leaves gaps."""

    @property
    def bijective(self) -> bool:
        """Whether the map takes the iterations one to one onto a box."""
        return self.injective and all(extent is not None for extent in self.extents)

    def ranges(self) -> list[Range] | None:
        """The box that a bijective map fills."""
        if not self.bijective:
            return None
        return [
            Range(index.base, build.as_expr(extent, INDEX))
            for index, extent in zip(self.indices, self.extents, strict=True)
            if extent is not None
        ]


def collect_sources(mark: IterMark, into: set[int]) -> None:
    """Add the sources that a fusion is built from, at any depth."""
    if isinstance(mark.source, IterSum):
        for split in mark.source.splits:
            into.add(id(split.source))
            collect_sources(split.source, into)
