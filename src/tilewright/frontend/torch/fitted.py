"""Approximations of smooth functions by pieces of polynomials, fitted while importing to torch's double precision.

A function is sampled at the Chebyshev nodes of each piece of an interval; the interpolating polynomials become a table
of coefficients. At run time a value finds its piece, takes the piece's coefficients and evaluates one polynomial.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.frontend.core.arithmetic import Operand
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import FLOAT64, INT64

_DEGREE = 9
"""The degree of the polynomials: with pieces short enough the error is that of the arithmetic."""


def polynomial(b: TorchBuilder, x: GraphExpr, coefficients: Sequence[Operand]) -> GraphExpr:
    """A polynomial by Horner's rule, the constant term first."""
    result = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        result = b.add(b.multiply(result, x), coefficient)
    return result if isinstance(result, GraphExpr) else b.scalar(result, FLOAT64)


def fit(function: Callable[[Array], Array], low: float, high: float, pieces: int) -> Array:
    """Coefficients (pieces, degree + 1) in the variable -1 .. 1 of each piece, the constant term first."""
    nodes = np.cos((np.arange(_DEGREE + 1) + 0.5) * np.pi / (_DEGREE + 1))
    width = (high - low) / pieces
    centers = low + (np.arange(pieces) + 0.5) * width
    samples = function((centers[:, None] + nodes[None, :] * (width / 2)).ravel()).reshape(pieces, _DEGREE + 1)
    return np.linalg.solve(np.vander(nodes, increasing=True), samples.T).T


def fitted(
    b: TorchBuilder, x: GraphExpr, function: Callable[[Array], Array], low: float, high: float, pieces: int
) -> GraphExpr:
    """A function of a double between two bounds; beyond them, as at the nearer one."""
    table = fit(function, low, high, pieces)
    inside = b.call("clip", b.where(b.call("isnan", x), low, x), minimum=low, maximum=high)
    scaled = b.multiply(b.subtract(inside, low), pieces / (high - low))
    piece = b.call("clip", b.call("floor", scaled), minimum=0.0, maximum=float(pieces - 1))
    local = b.subtract(b.multiply(b.subtract(scaled, piece), 2.0), 1.0)
    index = b.cast(piece, INT64)
    columns = [b.call("take", b.constant(column.copy(), FLOAT64), index, axis=0) for column in table.T]
    return polynomial(b, local, columns)
