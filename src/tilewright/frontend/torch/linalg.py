"""Converters of linear algebra on small matrices: what factorisations (`core/matrices.py`) are for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, shape_of
from tilewright.frontend.core.matrices import (
    cholesky_factor,
    factorize,
    is_empty,
    mask,
    one_triangle,
    order_after,
    product,
    solve_triangular,
    turned,
)
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT64, DataType

_INT32 = DataType.of("int32")


def _no_info(b: TorchBuilder, batch: Sequence[int]) -> GraphExpr:
    """Zeros: nothing went wrong (what did shows as infinities and NaN)."""
    return b.filled(0, batch, _INT32) if 0 not in batch else b.empty(batch, _INT32)


def _pivot_list(b: TorchBuilder, pivots: GraphExpr) -> GraphExpr:
    """The rows exchanged, counted from 1."""
    return b.cast(b.add(pivots, 1), _INT32)


def _exchanges(b: TorchBuilder, pivots: GraphExpr, dtype: DataType) -> GraphExpr:
    """-1 to the power of the number of rows that changed place."""
    steps = b.constant(np.arange(shape_of(pivots)[-1]), dtype_of(pivots))
    signs = b.where(b.call("not_equal", pivots, steps), b.scalar(-1, dtype), b.scalar(1, dtype))
    return b.reduce("prod", signs, (rank_of(pivots) - 1,))


def _diagonal(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    *outer, rows, columns = shape_of(x)
    flat = b.reshape(x, (*outer, rows * columns))
    count = min(rows, columns)
    return b.slice(flat, len(outer), 0, (count - 1) * (columns + 1) + 1, columns + 1)


def _as_torch_factors(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """The matrix whose factors torch keeps of a determinant: the transposed one if it is laid out row by row.

    LAPACK takes columns. The gradient reads the factors, and goes by the layout as well.
    """
    laid_out = b.operand_meta
    return turned(b, x) if laid_out is not None and laid_out.is_contiguous() else x


@converter("_linalg_det")
def determinant(b: TorchBuilder, A: GraphExpr) -> tuple[GraphExpr, GraphExpr, GraphExpr]:
    """The product of the pivots."""
    *batch, rows, _ = shape_of(A)
    if is_empty(A):
        one = b.filled(1, batch, dtype_of(A)) if 0 not in batch else b.empty(batch, dtype_of(A))
        return one, A, b.empty((*batch, rows), _INT32) if 0 in (*batch, rows) else A
    factors, pivots = factorize(b, _as_torch_factors(b, A), rows)
    value = b.reduce("prod", _diagonal(b, factors), (len(batch),))
    return b.multiply(value, _exchanges(b, pivots, dtype_of(A))), factors, _pivot_list(b, pivots)


@converter("_linalg_slogdet")
def log_determinant(b: TorchBuilder, A: GraphExpr) -> tuple[GraphExpr, GraphExpr, GraphExpr, GraphExpr]:
    """The sign and the logarithm of the determinant."""
    *batch, rows, _ = shape_of(A)
    dtype = dtype_of(A)
    if is_empty(A):
        whole = 0 not in batch
        sign = b.filled(1, batch, dtype) if whole else b.empty(batch, dtype)
        return sign, b.filled(0, batch, dtype) if whole else sign, A, b.empty((*batch, rows), _INT32)
    factors, pivots = factorize(b, _as_torch_factors(b, A), rows)
    diagonal = _diagonal(b, factors)
    sign = b.multiply(b.reduce("prod", b.call("sign", diagonal), (len(batch),)), _exchanges(b, pivots, dtype))
    size = b.reduce("sum", b.call("log", b.call("abs", diagonal)), (len(batch),))
    return sign, size, factors, _pivot_list(b, pivots)


def solve(b: TorchBuilder, a: GraphExpr, right: GraphExpr) -> GraphExpr:
    """x with a @ x = right: both eliminated together, then solved from the last row up."""
    rows = shape_of(a)[-1]
    batch = np.broadcast_shapes(shape_of(a)[:-2], shape_of(right)[:-2])
    both = [b.broadcast_to(item, (*batch, *shape_of(item)[-2:])) for item in (a, right)]
    last = len(batch) + 1
    reduced, _ = factorize(b, b.concatenate(both, last), rows)
    return solve_triangular(
        b,
        b.slice_axis(reduced, last, 0, rows),
        b.slice_axis(reduced, last, rows, shape_of(reduced)[-1]),
        upper=True,
    )


@converter("_linalg_solve_ex")
def solve_ex(
    b: TorchBuilder, A: GraphExpr, B: GraphExpr, left: bool = True, check_errors: bool = False
) -> tuple[GraphExpr, GraphExpr, GraphExpr, GraphExpr]:
    """The solution, and the factors that it came from."""
    *batch, rows, _ = shape_of(A)
    if is_empty(A) or 0 in b.shape:
        result = b.empty(b.shape, dtype_of(A)) if 0 in b.shape else b.filled(0, b.shape, dtype_of(A))
        pivots = b.empty((*batch, rows), _INT32) if 0 in (*batch, rows) else b.filled(0, (*batch, rows), _INT32)
        return result, A, pivots, _no_info(b, batch)
    factors, places = factorize(b, A, rows)
    vector = rank_of(B) == 1 or shape_of(B) == (*batch, rows)
    right = b.expand_dims(B, (rank_of(B),)) if vector else B
    if left:
        result = solve(b, A, right)
    else:
        result = turned(b, solve(b, turned(b, A), right if vector else turned(b, right)))
    return b.reshape(result, b.shape), factors, _pivot_list(b, places), _no_info(b, batch)


@converter("linalg_inv_ex")
def inverse(b: TorchBuilder, A: GraphExpr, check_errors: bool = False) -> tuple[GraphExpr, GraphExpr]:
    """The solution for the unit matrix."""
    *batch, rows, _ = shape_of(A)
    if is_empty(A):
        return A, _no_info(b, batch)
    unit = b.constant(np.eye(rows).astype(dtype_of(A).numpy()), dtype_of(A))
    return solve(b, A, unit), _no_info(b, batch)


@converter("linalg_inv", "inverse")
def inverse_alone(b: TorchBuilder, A: GraphExpr | None = None, x: GraphExpr | None = None) -> GraphExpr:
    """The inverse; a singular matrix gives infinities and NaN instead of an error."""
    matrix = A if A is not None else x
    assert matrix is not None
    return inverse(b, matrix)[0]


@converter("linalg_solve")
def solve_alone(b: TorchBuilder, A: GraphExpr, B: GraphExpr, left: bool = True) -> GraphExpr:
    """The solution; a singular matrix gives infinities and NaN instead of an error."""
    return solve_ex(b, A, B, left)[0]


@converter("linalg_lu_factor")
def lu_factor_alone(b: TorchBuilder, A: GraphExpr, pivot: bool = True) -> tuple[GraphExpr, GraphExpr]:
    """Both factors in one matrix, the rows exchanged."""
    factors, pivots, _ = lu_factor(b, A, pivot)
    return factors, pivots


@converter("linalg_lu_factor_ex")
def lu_factor(
    b: TorchBuilder, A: GraphExpr, pivot: bool = True, check_errors: bool = False
) -> tuple[GraphExpr, GraphExpr, GraphExpr]:
    """Both factors in one matrix, the rows exchanged."""
    *batch, rows, columns = shape_of(A)
    count = min(rows, columns)
    if is_empty(A):
        return A, b.empty((*batch, count), _INT32), _no_info(b, batch)
    factors, pivots = factorize(b, A, count, pivot)
    return factors, _pivot_list(b, pivots), _no_info(b, batch)


def _split(b: TorchBuilder, factors: GraphExpr) -> tuple[GraphExpr, GraphExpr]:
    """L with ones on the diagonal, and U."""
    rows, columns = shape_of(factors)[-2:]
    count = min(rows, columns)
    last = rank_of(factors) - 1
    dtype = dtype_of(factors)
    lower, upper = b.slice_axis(factors, last, 0, count), b.slice_axis(factors, last - 1, 0, count)
    below = np.tri(rows, count, -1, dtype=bool)
    unit = b.constant(np.eye(rows, count).astype(dtype.numpy()), dtype)
    above = ~np.tri(count, columns, -1, dtype=bool)
    return b.where(mask(b, below), lower, unit), b.where(mask(b, above), upper, b.scalar(0, dtype))


def _permutation(b: TorchBuilder, pivots: GraphExpr, rows: int, dtype: DataType) -> GraphExpr:
    """The matrix that puts the rows back: the exchanges applied to the unit matrix, transposed."""
    order = order_after(b, b.subtract(b.cast(pivots, INT64), 1), rows)
    down = b.constant(np.arange(rows)[:, None], INT64)
    return b.cast(b.call("equal", down, b.expand_dims(order, (rank_of(order) - 1,))), dtype)


@converter("lu_unpack")
def lu_unpack(
    b: TorchBuilder, LU_data: GraphExpr, LU_pivots: GraphExpr, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[GraphExpr, GraphExpr, GraphExpr]:
    """The permutation and the two factors."""
    dtype = dtype_of(LU_data)
    rows = shape_of(LU_data)[-2]
    nothing = b.empty((0,), dtype)
    if is_empty(LU_data):
        shapes = [tuple(int(dim) for dim in item.shape) for item in b.meta]
        p, low, up = (unit_or_empty(b, shape, dtype) for shape in shapes)
        return p, low, up
    lower, upper = _split(b, LU_data) if unpack_data else (nothing, nothing)
    return _permutation(b, LU_pivots, rows, dtype) if unpack_pivots else nothing, lower, upper


def unit_or_empty(b: TorchBuilder, shape: Sequence[int], dtype: DataType) -> GraphExpr:
    """Unit matrices of a shape, or nothing if it has no elements."""
    if 0 in shape:
        return b.empty(shape, dtype)
    unit = b.constant(np.eye(shape[-2], shape[-1]).astype(dtype.numpy()), dtype)
    return b.broadcast_to(unit, shape)


@converter("linalg_lu")
def lu(b: TorchBuilder, A: GraphExpr, pivot: bool = True) -> tuple[GraphExpr, GraphExpr, GraphExpr]:
    """The permutation and the two factors."""
    *_, rows, columns = shape_of(A)
    shapes = [tuple(int(dim) for dim in item.shape) for item in b.meta]
    if is_empty(A):
        p, low, up = (unit_or_empty(b, shape, dtype_of(A)) for shape in shapes)
        return p, low, up
    factors, pivots = factorize(b, A, min(rows, columns), pivot)
    lower, upper = _split(b, factors)
    if not pivot:
        return b.empty((0,), dtype_of(A)), lower, upper
    return _permutation(b, _pivot_list(b, pivots), rows, dtype_of(A)), lower, upper


@converter("linalg_lu_solve")
def lu_solve(
    b: TorchBuilder, LU: GraphExpr, pivots: GraphExpr, B: GraphExpr, left: bool = True, adjoint: bool = False
) -> GraphExpr:
    """x with A @ x = B from the factors of A (x @ A = B; or with A transposed)."""
    if 0 in b.shape or is_empty(LU):
        return b.empty(b.shape, dtype_of(B)) if 0 in b.shape else b.filled(0, b.shape, dtype_of(B))
    lower, upper = _split(b, LU)
    order = _permutation(b, pivots, shape_of(LU)[-2], dtype_of(LU))
    right = B if left else turned(b, B)
    if left != adjoint:
        value = product(b, turned(b, order), right)
        value = solve_triangular(b, upper, solve_triangular(b, lower, value, upper=False, unit=True), upper=True)
    else:
        value = solve_triangular(b, turned(b, upper), right, upper=False)
        value = solve_triangular(b, turned(b, lower), value, upper=True, unit=True)
        value = product(b, order, value)
    return b.broadcast_to(value if left else turned(b, value), b.shape)


@converter("linalg_solve_triangular")
def triangular(
    b: TorchBuilder, x: GraphExpr, B: GraphExpr, upper: bool, left: bool = True, unitriangular: bool = False
) -> GraphExpr:
    """x with A @ x = B (or x @ A = B) for a triangular A."""
    if 0 in b.shape or is_empty(x):
        return b.empty(b.shape, dtype_of(B)) if 0 in b.shape else b.filled(0, b.shape, dtype_of(B))
    a = one_triangle(b, x, upper)
    if left:
        return b.broadcast_to(solve_triangular(b, a, B, upper, unitriangular), b.shape)
    value = solve_triangular(b, turned(b, a), turned(b, B), not upper, unitriangular)
    return b.broadcast_to(turned(b, value), b.shape)


@converter("triangular_solve")
def triangular_solve(
    b: TorchBuilder,
    x: GraphExpr,
    A: GraphExpr,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[GraphExpr, GraphExpr]:
    """The solution and a copy of the matrix."""
    if 0 in b.shape or is_empty(A):
        return (b.empty(b.shape, dtype_of(x)) if 0 in b.shape else b.filled(0, b.shape, dtype_of(x))), A
    a = one_triangle(b, A, upper)
    if transpose:
        a, upper = turned(b, a), not upper
    copy = b.broadcast_to(A, tuple(int(dim) for dim in b.meta[1].shape))
    return b.broadcast_to(solve_triangular(b, a, x, upper, unitriangular), b.shape), copy


# Cholesky


@converter("linalg_cholesky_ex")
def cholesky_ex(
    b: TorchBuilder, x: GraphExpr, upper: bool = False, check_errors: bool = False
) -> tuple[GraphExpr, GraphExpr]:
    """The factor, lower or upper."""
    return cholesky(b, x, upper), _no_info(b, shape_of(x)[:-2])


@converter("cholesky", "linalg_cholesky")
def cholesky(b: TorchBuilder, x: GraphExpr, upper: bool = False) -> GraphExpr:
    """The factor, lower or upper."""
    if is_empty(x):
        return x
    factor = cholesky_factor(b, turned(b, x) if upper else x)
    return turned(b, factor) if upper else factor


@converter("cholesky_solve")
def cholesky_solve(b: TorchBuilder, x: GraphExpr, input2: GraphExpr, upper: bool = False) -> GraphExpr:
    """x with A @ x = B from the factor of A."""
    if 0 in b.shape or is_empty(input2):
        return b.empty(b.shape, dtype_of(x)) if 0 in b.shape else b.filled(0, b.shape, dtype_of(x))
    lower = turned(b, input2) if upper else input2
    lower = one_triangle(b, lower, upper=False)
    value = solve_triangular(b, turned(b, lower), solve_triangular(b, lower, x, upper=False), upper=True)
    return b.broadcast_to(value, b.shape)


@converter("cholesky_inverse")
def cholesky_inverse(b: TorchBuilder, x: GraphExpr, upper: bool = False) -> GraphExpr:
    """The inverse of a matrix from its factor."""
    if is_empty(x):
        return x
    unit = b.constant(np.eye(shape_of(x)[-1]).astype(dtype_of(x).numpy()), dtype_of(x))
    return cholesky_solve(b, unit, x, upper)
