"""Elementary functions that the graph has no operators for, shared by importers."""

from __future__ import annotations

import math

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import dtype_of
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import DataType


def is_negative(b: ArithmeticBuilder, x: GraphExpr) -> GraphExpr:
    """Whether the sign bit of floats is set."""
    bits = b.call("reinterpret", x, dtype=DataType.of(f"int{dtype_of(x).bits}"))
    return b.compare("less", bits, 0)


def atan2(b: ArithmeticBuilder, y: GraphExpr, across: GraphExpr) -> GraphExpr:
    """The angle of the point (across, y), in all four quadrants."""
    steep = b.call("greater", b.call("abs", y), b.call("abs", across))
    # The quotient is kept within 1, so that nothing overflows; 0 / 0 and inf / inf have angles of their own.
    small = b.call("minimum", b.call("abs", y), b.call("abs", across))
    large = b.call("maximum", b.call("abs", y), b.call("abs", across))
    ratio = b.divide(small, large)
    ratio = b.where(b.compare("equal", large, 0), 0.0, ratio)
    both = b.call("logical_and", b.call("isinf", y), b.call("isinf", across))
    ratio = b.where(both, 1.0, ratio)
    angle = b.call("atan", ratio)
    angle = b.where(steep, b.subtract(math.pi / 2, angle), angle)
    angle = b.where(is_negative(b, across), b.subtract(math.pi, angle), angle)
    return b.where(is_negative(b, y), b.call("negative", angle), angle)
