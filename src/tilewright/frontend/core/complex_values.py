"""Complex numbers of importers: a pair of a real and an imaginary part, each an ordinary value of the graph."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.graph.ir.expr import GraphExpr


@dataclass(frozen=True, slots=True)
class Complex:
    """A tensor of complex numbers."""

    real: GraphExpr
    imaginary: GraphExpr

    @property
    def parts(self) -> tuple[GraphExpr, GraphExpr]:
        """The real part, the imaginary part."""
        return self.real, self.imaginary
