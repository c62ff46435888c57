"""Convolution by Winograd's algorithm F(m x m, 3 x 3), as tensor expressions (see graph/ops/winograd.py for the sums).

    padded          the input with its border, and enough rows and columns for whole tiles
    input_rows      B d      for each tile and channel: the column transform of its window
    input           V = B d B'   arranged (i, j, tile, channel): (m + 2)^2 matrices of tiles x channels
    product         M = V U      (m + 2)^2 independent matrix products
    output_rows     A M
    output          Y = A M A'   arranged (tile, row, column, channel)
    winograd        Y at its pixels (partial tiles are cut)

A transform is written as a choice between rows: `select(i == 0, row 0, select(i == 1, row 1, ...))`. When a schedule
unrolls i, what remains is one row, in which coefficients of zero and one cost nothing. Rows (columns) for a pair of
opposite points are written as sum and difference of the same two parts, so that each part is computed once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.graph.ops.winograd import KERNEL, Matrix, winograd_matrices
from tilewright.ir import build
from tilewright.ir.build import const
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import ExprLike, PrimExpr, const_value
from tilewright.ir.types import Type
from tilewright.support.errors import UnsupportedError
from tilewright.te import reduction
from tilewright.te.language import compute, reduce_axis
from tilewright.te.tensor import Tensor
from tilewright.topi.convolution import pad_spatial
from tilewright.topi.registry import compute_of, result_shape

_ROW_BLOCKS = (14, 13, 12, 11, 10, 9, 8, 7, 6)
"""Tiles that are multiplied together in registers: the number of tiles is rounded up to have such a divisor."""

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


def _transform(make: Row, matrix: Matrix, row: ExprLike, element: Element, dtype: DataType) -> PrimExpr:
    """Element number `row` of `matrix @ vector`."""
    return _chosen(row, [make(matrix, n, element, dtype) for n in range(matrix.shape[0])])


def _plain_row(matrix: Matrix, row: int, element: Element, dtype: DataType) -> PrimExpr:
    return _sum([(float(value), element(n)) for n, value in enumerate(matrix[row]) if value], dtype)


def _input_row(matrix: Matrix, row: int, element: Element, dtype: DataType) -> PrimExpr:
    """A row of B. The rows of a pair of opposite points are the sum and the difference of the same two parts."""
    if row == 0 or row > _paired(len(matrix)):
        return _plain_row(matrix, row, element, dtype)
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


def _output_row(matrix: Matrix, row: int, element: Element, dtype: DataType) -> PrimExpr:
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


def padded_tiles(tiles: int) -> int:
    """The number of tiles to compute: rounded up, by little, to a multiple of a good register block."""
    if tiles <= _ROW_BLOCKS[0]:
        return tiles
    return min((-(-tiles // block) * block for block in _ROW_BLOCKS), default=tiles)


@compute_of("nn.winograd_weight")
def _winograd_weight(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    (weight,) = inputs
    matrix, dtype = winograd_matrices(attributes.tile).weight, weight.dtype
    size, _, channels, outputs = result_shape(result)
    rows = compute(
        (size, KERNEL, channels, outputs),
        lambda i, v, c, o: _transform(_plain_row, matrix, i, lambda n: weight[n, v, c, o], dtype),
        "weight_rows",
    )
    return compute(
        (size, size, channels, outputs),
        lambda i, j, c, o: _transform(_plain_row, matrix, j, lambda n: rows[i, n, c, o], dtype),
        "winograd_weight",
    )


@compute_of("nn.conv2d_winograd")
def _conv2d_winograd(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    data, weight = inputs
    tile, dtype = attributes.tile, data.dtype
    matrices, size = winograd_matrices(tile), tile + KERNEL - 1
    shape = result_shape(result)
    known = [const_value(dim) for dim in (*shape, *data.shape)]
    if any(dim is None for dim in known):
        raise UnsupportedError("a Winograd convolution needs shapes that are known at compile time")
    batch, height, width, outputs, _, data_height, data_width, channels = (dim or 0 for dim in known)
    rows, columns = -(-height // tile), -(-width // tile)
    tiles = batch * rows * columns
    count = padded_tiles(tiles)
    top, left = attributes.padding[:2]
    bottom, right = (
        number * tile + KERNEL - 1 - low - length
        for number, low, length in ((rows, top, data_height), (columns, left, data_width))
    )
    padded = pad_spatial(data, (top, left, bottom, right), "NHWC")

    def pixel(p: ExprLike, u: ExprLike, v: ExprLike, c: ExprLike) -> PrimExpr:
        """Element (u, v) of the window of a tile; tiles beyond the last repeat it, and their results are dropped."""
        real = build.minimum(p, tiles - 1) if count > tiles else build.as_expr(p)
        row, column = real // columns % rows if batch > 1 else real // columns, real % columns
        return padded[real // (rows * columns), row * tile + u, column * tile + v, c]

    input_rows = compute(
        (count, size, size, channels),
        lambda p, i, v, c: _transform(_input_row, matrices.input, i, lambda n: pixel(p, const(n), v, c), dtype),
        "winograd_input_rows",
    )
    transformed = compute(
        (size, size, count, channels),
        lambda i, j, p, c: _transform(_input_row, matrices.input, j, lambda n: input_rows[p, i, n, c], dtype),
        "winograd_input",
    )
    ic = reduce_axis((0, channels), "ic")
    product = compute(
        (size, size, count, outputs),
        lambda i, j, p, o: reduction.sum(transformed[i, j, p, ic] * weight[i, j, ic, o], [ic]),
        "winograd_product",
        {"anchor": "winograd", "columns": columns, "tiles": tiles},
    )
    output_rows = compute(
        (count, tile, size, outputs),
        lambda p, a, j, o: _transform(_output_row, matrices.output, a, lambda n: product[n, j, p, o], dtype),
        "winograd_output_rows",
    )
    output = compute(
        (count, tile, tile, outputs),
        lambda p, a, b, o: _transform(_output_row, matrices.output, b, lambda n: output_rows[p, a, n, o], dtype),
        "winograd_output",
    )
    return compute(
        shape,
        lambda n, y, x, o: output[
            (build.mul(n, rows) + build.floordiv(y, tile)) * columns + build.floordiv(x, tile),
            build.floormod(y, tile),
            build.floormod(x, tile),
            o,
        ],
        "winograd",
        {"tile": tile},
    )
