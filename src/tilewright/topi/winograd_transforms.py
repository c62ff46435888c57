"""Transforms of Winograd's algorithm as scalar expressions: one element of a matrix times a vector.

A transform is written as a choice between rows: `select(i == 0, row 0, select(i == 1, row 1, ...))`. When a schedule
unrolls i, what remains is one row, in which coefficients of zero and one cost nothing. Rows (columns) for a pair of
opposite points are written as sum and difference of the same two parts, so that each part is computed once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.graph.ops.winograd import Matrix
from tilewright.ir import build
from tilewright.ir.build import const
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import ExprLike, PrimExpr
from tilewright.ir.intrinsics import fma

Element = Callable[[int], PrimExpr]
"""The n-th element of the vector that a transform is applied to."""
Row = Callable[[Matrix, int, Element, DataType], PrimExpr]
"""One element of `matrix @ vector`, of a fixed number."""


def _chosen(row: ExprLike, rows: list[PrimExpr]) -> PrimExpr:
    """The expression whose number is `row`, which may be a variable."""
    result = rows[-1]
    for n in reversed(range(len(rows) - 1)):
        result = build.select(build.eq(row, n), rows[n], result)
    return result


def transform(make: Row, matrix: Matrix, row: ExprLike, element: Element, dtype: DataType) -> PrimExpr:
    """Element number `row` of `matrix @ vector`."""
    return _chosen(row, [make(matrix, n, element, dtype) for n in range(matrix.shape[0])])


def plain_row(matrix: Matrix, row: int, element: Element, dtype: DataType) -> PrimExpr:
    """A row of any matrix."""
    return _sum([(float(value), element(n)) for n, value in enumerate(matrix[row]) if value], dtype)


def input_row(matrix: Matrix, row: int, element: Element, dtype: DataType) -> PrimExpr:
    """A row of B. The rows of a pair of opposite points are the sum and the difference of the same two parts."""
    if row == 0 or row > _paired(len(matrix)):
        return plain_row(matrix, row, element, dtype)
    first = row if row % 2 else row - 1
    one, other = matrix[first], matrix[first + 1]
    shared, opposite = (
        _sum([(float(value), element(n)) for n, value in enumerate(part) if value], dtype)
        for part in ((one + other) / 2, (one - other) / 2)
    )
    return shared + opposite if row % 2 else shared - opposite


def _paired(size: int) -> int:
    """The last row of B (column of A) that belongs to a pair of opposite points; the first is 1."""
    return (size - 2) // 2 * 2


def output_row(matrix: Matrix, row: int, element: Element, dtype: DataType) -> PrimExpr:
    """A row of A. The columns of a pair of points have the same coefficient, or opposite ones."""
    values = [float(value) for value in matrix[row]]
    last = len(values) - 1
    paired = _paired(len(values))
    terms = [(values[n], element(n)) for n in (0, *range(paired + 1, last + 1)) if values[n]]
    for n in range(1, paired, 2):
        pair = element(n) + element(n + 1) if values[n] == values[n + 1] else element(n) - element(n + 1)
        terms.append((values[n], pair))
    return _sum(terms, dtype)


def _sum(terms: list[tuple[float, PrimExpr]], dtype: DataType) -> PrimExpr:
    # Terms of coefficient one come first: they start the sum, and each later term is one multiply-add.
    total: PrimExpr | None = None
    for factor, value in sorted(terms, key=lambda term: term[0] != 1.0):
        scaled = value if factor == 1.0 else value * const(factor, dtype)
        total = scaled if total is None else total + scaled
    return const(0.0, dtype) if total is None else total


def weight_row(matrix: Matrix, row: int, element: Element, dtype: DataType) -> PrimExpr:
    """A row of G for plain weights. Every term after the first, whose coefficient is one, is one multiply-add."""
    terms = [(float(value), element(n)) for n, value in enumerate(matrix[row]) if value]
    (_, total), *others = sorted(terms, key=lambda term: term[0] != 1.0)
    for factor, value in others:
        total = _added(total, factor, value, dtype)
    return total


def weight_row_by_another(matrix: Matrix, row: int, element: Element, dtype: DataType) -> PrimExpr:
    """The same where all rows are made together: one that has its first two terms from an earlier one adds the last."""
    for earlier in range(row):
        if np.array_equal(matrix[earlier, :2], matrix[row, :2]):
            total = weight_row(matrix, earlier, element, dtype)
            return _added(total, float(matrix[row, 2] - matrix[earlier, 2]), element(2), dtype)
    return weight_row(matrix, row, element, dtype)


def _added(total: PrimExpr, factor: float, value: PrimExpr, dtype: DataType) -> PrimExpr:
    """A term added in one instruction: products that several rows share would be one more."""
    if abs(factor) == 1.0:
        return total + value if factor > 0 else total - value
    return fma(value, const(factor, dtype), total)
