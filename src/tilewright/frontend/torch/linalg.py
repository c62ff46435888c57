"""Converters of linear algebra on small matrices: factorisations unrolled step by step over whole batches.

Each step is a few elementwise operators and reductions on all matrices at once, as LAPACK's unblocked forms do it
(the same pivots and signs). The number of steps is the size of the matrix, which is why large ones are refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.frontend.builder import dtype_of, rank_of, shape_of
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.contract import product
from tilewright.frontend.torch.registry import converter
from tilewright.graph.expr import GraphExpr
from tilewright.ir.dtype import BOOL, INT64, DataType
from tilewright.support.errors import UnsupportedError

_MOST_STEPS = 32
"""The most steps that are unrolled."""
_INT32 = DataType.of("int32")


def _check_steps(steps: int) -> None:
    if steps > _MOST_STEPS:
        raise UnsupportedError(f"a factorisation of matrices of {steps} rows, at most {_MOST_STEPS} are supported")


def _mask(b: TorchBuilder, kept: object) -> GraphExpr:
    return b.constant(np.asarray(kept, bool), BOOL)


def _turned(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """Rows and columns exchanged."""
    order = list(range(rank_of(x)))
    order[-2], order[-1] = order[-1], order[-2]
    return b.transpose(x, order)


def _row(b: TorchBuilder, x: GraphExpr, index: int) -> GraphExpr:
    return b.slice_axis(x, rank_of(x) - 2, index, index + 1)


def _column(b: TorchBuilder, x: GraphExpr, index: int) -> GraphExpr:
    return b.slice_axis(x, rank_of(x) - 1, index, index + 1)


def _no_info(b: TorchBuilder, batch: Sequence[int]) -> GraphExpr:
    """Zeros: nothing went wrong (what did shows as infinities and NaN)."""
    return b.filled(0, batch, _INT32) if 0 not in batch else b.empty(batch, _INT32)


def factorize(b: TorchBuilder, a: GraphExpr, steps: int, pivot: bool = True) -> tuple[GraphExpr, list[GraphExpr]]:
    """The first steps of elimination with row exchanges: L below the diagonal, U above, and the pivot rows."""
    *batch, rows, columns = shape_of(a)
    _check_steps(steps)
    zero = b.scalar(0, dtype_of(a))
    down = np.arange(rows)[:, None]
    across = np.arange(columns)[None, :]
    pivots: list[GraphExpr] = []
    for step in range(steps):
        axis = rank_of(a) - 2
        if pivot:
            candidates = b.slice_axis(b.call("abs", _column(b, a, step)), axis, step, rows)
            place = b.add(b.call("argmax", b.reshape(candidates, (*batch, rows - step)), axis=len(batch)), step)
            pivots.append(place)
            chosen = b.call("equal", b.constant(down, INT64), b.reshape(place, (*batch, 1, 1)))
            best = b.reduce("sum", b.where(chosen, a, zero), (axis,), True)
            a = b.where(chosen, _row(b, a, step), a)
            a = b.where(_mask(b, down == step), best, a)
        else:
            best = _row(b, a, step)
        head = _column(b, best, step)
        usable = b.compare("not_equal", head, 0)
        factor = b.divide(_column(b, a, step), b.where(usable, head, b.scalar(1, dtype_of(a))))
        factor = b.where(b.call("logical_and", _mask(b, down > step), usable), factor, zero)
        a = b.subtract(a, b.multiply(factor, b.where(_mask(b, across > step), best, zero)))
        below = b.call("logical_and", _mask(b, (down > step) & (across == step)), usable)
        a = b.where(below, factor, a)
    return a, pivots


def solve_triangular(b: TorchBuilder, a: GraphExpr, right: GraphExpr, upper: bool, unit: bool = False) -> GraphExpr:
    """x with a @ x = right, row by row."""
    rows = shape_of(a)[-1]
    _check_steps(rows)
    batch = np.broadcast_shapes(shape_of(a)[:-2], shape_of(right)[:-2])
    right = b.broadcast_to(right, (*batch, *shape_of(right)[-2:]))
    found: dict[int, GraphExpr] = {}
    for index in reversed(range(rows)) if upper else range(rows):
        value = _row(b, right, index)
        if not unit:
            value = b.divide(value, _column(b, _row(b, a, index), index))
        found[index] = value
        right = b.subtract(right, b.multiply(_column(b, a, index), value))
    return b.concatenate([found[index] for index in range(rows)], rank_of(right) - 2)


def _is_empty(*values: GraphExpr) -> bool:
    return any(0 in shape_of(value) for value in values)


def _pivot_list(b: TorchBuilder, pivots: Sequence[GraphExpr], batch: Sequence[int]) -> GraphExpr:
    """The rows exchanged, counted from 1."""
    if not pivots:
        return b.empty((*batch, 0), _INT32)
    return b.cast(b.add(b.stack(list(pivots), len(batch)), 1), _INT32)


def _exchanges(b: TorchBuilder, pivots: Sequence[GraphExpr], dtype: DataType) -> GraphExpr:
    """-1 to the power of the number of rows that changed place."""
    sign: GraphExpr | None = None
    for step, place in enumerate(pivots):
        factor = b.where(b.compare("not_equal", place, step), b.scalar(-1, dtype), b.scalar(1, dtype))
        sign = factor if sign is None else b.multiply(sign, factor)
    assert sign is not None
    return sign


def _diagonal(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    *outer, rows, columns = shape_of(x)
    flat = b.reshape(x, (*outer, rows * columns))
    count = min(rows, columns)
    return b.slice(flat, len(outer), 0, (count - 1) * (columns + 1) + 1, columns + 1)


@converter("_linalg_det")
def determinant(b: TorchBuilder, A: GraphExpr) -> tuple[GraphExpr, GraphExpr, GraphExpr]:
    """The product of the pivots."""
    *batch, rows, _ = shape_of(A)
    if _is_empty(A):
        one = b.filled(1, batch, dtype_of(A)) if 0 not in batch else b.empty(batch, dtype_of(A))
        return one, A, b.empty((*batch, rows), _INT32) if 0 in (*batch, rows) else A
    factors, pivots = factorize(b, A, rows)
    value = b.reduce("prod", _diagonal(b, factors), (len(batch),))
    return b.multiply(value, _exchanges(b, pivots, dtype_of(A))), factors, _pivot_list(b, pivots, batch)


@converter("_linalg_slogdet")
def log_determinant(b: TorchBuilder, A: GraphExpr) -> tuple[GraphExpr, GraphExpr, GraphExpr, GraphExpr]:
    """The sign and the logarithm of the determinant."""
    *batch, rows, _ = shape_of(A)
    dtype = dtype_of(A)
    if _is_empty(A):
        whole = 0 not in batch
        sign = b.filled(1, batch, dtype) if whole else b.empty(batch, dtype)
        return sign, b.filled(0, batch, dtype) if whole else sign, A, b.empty((*batch, rows), _INT32)
    factors, pivots = factorize(b, A, rows)
    diagonal = _diagonal(b, factors)
    sign = b.multiply(b.reduce("prod", b.call("sign", diagonal), (len(batch),)), _exchanges(b, pivots, dtype))
    size = b.reduce("sum", b.call("log", b.call("abs", diagonal)), (len(batch),))
    return sign, size, factors, _pivot_list(b, pivots, batch)


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
    if _is_empty(A) or 0 in b.shape:
        result = b.empty(b.shape, dtype_of(A)) if 0 in b.shape else b.filled(0, b.shape, dtype_of(A))
        pivots = b.empty((*batch, rows), _INT32) if 0 in (*batch, rows) else b.filled(0, (*batch, rows), _INT32)
        return result, A, pivots, _no_info(b, batch)
    factors, places = factorize(b, A, rows)
    vector = rank_of(B) == 1 or shape_of(B) == (*batch, rows)
    right = b.expand_dims(B, (rank_of(B),)) if vector else B
    if left:
        result = solve(b, A, right)
    else:
        result = _turned(b, solve(b, _turned(b, A), right if vector else _turned(b, right)))
    return b.reshape(result, b.shape), factors, _pivot_list(b, places, batch), _no_info(b, batch)


@converter("linalg_inv_ex")
def inverse(b: TorchBuilder, A: GraphExpr, check_errors: bool = False) -> tuple[GraphExpr, GraphExpr]:
    """The solution for the unit matrix."""
    *batch, rows, _ = shape_of(A)
    if _is_empty(A):
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
    if _is_empty(A):
        return A, b.empty((*batch, count), _INT32), _no_info(b, batch)
    factors, pivots = factorize(b, A, count, pivot)
    if not pivot:
        table = b.broadcast_to(b.constant(np.arange(1, count + 1, dtype=np.int32), _INT32), (*batch, count))
        return factors, table, _no_info(b, batch)
    return factors, _pivot_list(b, pivots, batch), _no_info(b, batch)


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
    return b.where(_mask(b, below), lower, unit), b.where(_mask(b, above), upper, b.scalar(0, dtype))


def _permutation(b: TorchBuilder, pivots: GraphExpr, rows: int, dtype: DataType) -> GraphExpr:
    """The matrix that puts the rows back: the exchanges applied to the unit matrix, transposed."""
    *batch, count = shape_of(pivots)
    table: GraphExpr = b.broadcast_to(b.constant(np.eye(rows).astype(dtype.numpy()), dtype), (*batch, rows, rows))
    down = np.arange(rows)[:, None]
    for step in range(count):
        place = b.subtract(b.cast(b.select(pivots, len(batch), step), INT64), 1)
        chosen = b.call("equal", b.constant(down, INT64), b.reshape(place, (*batch, 1, 1)))
        best = b.reduce("sum", b.where(chosen, table, b.scalar(0, dtype)), (len(batch),), True)
        table = b.where(chosen, _row(b, table, step), table)
        table = b.where(_mask(b, down == step), best, table)
    return _turned(b, table)


@converter("lu_unpack")
def lu_unpack(
    b: TorchBuilder, LU_data: GraphExpr, LU_pivots: GraphExpr, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[GraphExpr, GraphExpr, GraphExpr]:
    """The permutation and the two factors."""
    dtype = dtype_of(LU_data)
    rows = shape_of(LU_data)[-2]
    nothing = b.empty((0,), dtype)
    if _is_empty(LU_data):
        shapes = [tuple(int(dim) for dim in item.shape) for item in b.meta]
        p, low, up = (_unit_or_empty(b, shape, dtype) for shape in shapes)
        return p, low, up
    lower, upper = _split(b, LU_data) if unpack_data else (nothing, nothing)
    return _permutation(b, LU_pivots, rows, dtype) if unpack_pivots else nothing, lower, upper


def _unit_or_empty(b: TorchBuilder, shape: Sequence[int], dtype: DataType) -> GraphExpr:
    if 0 in shape:
        return b.empty(shape, dtype)
    unit = b.constant(np.eye(shape[-2], shape[-1]).astype(dtype.numpy()), dtype)
    return b.broadcast_to(unit, shape)


@converter("linalg_lu")
def lu(b: TorchBuilder, A: GraphExpr, pivot: bool = True) -> tuple[GraphExpr, GraphExpr, GraphExpr]:
    """The permutation and the two factors."""
    *batch, rows, columns = shape_of(A)
    shapes = [tuple(int(dim) for dim in item.shape) for item in b.meta]
    if _is_empty(A):
        p, low, up = (_unit_or_empty(b, shape, dtype_of(A)) for shape in shapes)
        return p, low, up
    factors, pivots = factorize(b, A, min(rows, columns), pivot)
    lower, upper = _split(b, factors)
    if not pivot:
        return b.empty((0,), dtype_of(A)), lower, upper
    return _permutation(b, _pivot_list(b, pivots, batch), rows, dtype_of(A)), lower, upper


@converter("linalg_lu_solve")
def lu_solve(
    b: TorchBuilder, LU: GraphExpr, pivots: GraphExpr, B: GraphExpr, left: bool = True, adjoint: bool = False
) -> GraphExpr:
    """x with A @ x = B from the factors of A (x @ A = B; or with A transposed)."""
    if 0 in b.shape or _is_empty(LU):
        return b.empty(b.shape, dtype_of(B)) if 0 in b.shape else b.filled(0, b.shape, dtype_of(B))
    lower, upper = _split(b, LU)
    order = _permutation(b, pivots, shape_of(LU)[-2], dtype_of(LU))
    right = B if left else _turned(b, B)
    if left != adjoint:
        value = product(b, _turned(b, order), right)
        value = solve_triangular(b, upper, solve_triangular(b, lower, value, upper=False, unit=True), upper=True)
    else:
        value = solve_triangular(b, _turned(b, upper), right, upper=False)
        value = solve_triangular(b, _turned(b, lower), value, upper=True, unit=True)
        value = product(b, order, value)
    return b.broadcast_to(value if left else _turned(b, value), b.shape)


@converter("linalg_solve_triangular")
def triangular(
    b: TorchBuilder, x: GraphExpr, B: GraphExpr, upper: bool, left: bool = True, unitriangular: bool = False
) -> GraphExpr:
    """x with A @ x = B (or x @ A = B) for a triangular A."""
    if 0 in b.shape or _is_empty(x):
        return b.empty(b.shape, dtype_of(B)) if 0 in b.shape else b.filled(0, b.shape, dtype_of(B))
    a = _one_triangle(b, x, upper)
    if left:
        return b.broadcast_to(solve_triangular(b, a, B, upper, unitriangular), b.shape)
    value = solve_triangular(b, _turned(b, a), _turned(b, B), not upper, unitriangular)
    return b.broadcast_to(_turned(b, value), b.shape)


def _one_triangle(b: TorchBuilder, a: GraphExpr, upper: bool) -> GraphExpr:
    rows, columns = shape_of(a)[-2:]
    kept = ~np.tri(rows, columns, -1, dtype=bool) if upper else np.tri(rows, columns, dtype=bool)
    return b.where(_mask(b, kept), a, b.scalar(0, dtype_of(a)))


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
    if 0 in b.shape or _is_empty(A):
        return (b.empty(b.shape, dtype_of(x)) if 0 in b.shape else b.filled(0, b.shape, dtype_of(x))), A
    a = _one_triangle(b, A, upper)
    if transpose:
        a, upper = _turned(b, a), not upper
    copy = b.broadcast_to(A, tuple(int(dim) for dim in b.meta[1].shape))
    return b.broadcast_to(solve_triangular(b, a, x, upper, unitriangular), b.shape), copy


# Cholesky


def cholesky_factor(b: TorchBuilder, a: GraphExpr) -> GraphExpr:
    """L with L @ L^T = a, column by column, from the lower triangle."""
    rows = shape_of(a)[-1]
    _check_steps(rows)
    down = np.arange(rows)[:, None]
    zero = b.scalar(0, dtype_of(a))
    columns: list[GraphExpr] = []
    for step in range(rows):
        root = b.call("sqrt", _column(b, _row(b, a, step), step))
        column = b.where(_mask(b, down >= step), b.divide(_column(b, a, step), root), zero)
        columns.append(column)
        a = b.subtract(a, b.multiply(column, _turned(b, column)))
    return b.concatenate(columns, rank_of(a) - 1)


@converter("linalg_cholesky_ex")
def cholesky_ex(
    b: TorchBuilder, x: GraphExpr, upper: bool = False, check_errors: bool = False
) -> tuple[GraphExpr, GraphExpr]:
    """The factor, lower or upper."""
    return cholesky(b, x, upper), _no_info(b, shape_of(x)[:-2])


@converter("cholesky", "linalg_cholesky")
def cholesky(b: TorchBuilder, x: GraphExpr, upper: bool = False) -> GraphExpr:
    """The factor, lower or upper."""
    if _is_empty(x):
        return x
    factor = cholesky_factor(b, _turned(b, x) if upper else x)
    return _turned(b, factor) if upper else factor


@converter("cholesky_solve")
def cholesky_solve(b: TorchBuilder, x: GraphExpr, input2: GraphExpr, upper: bool = False) -> GraphExpr:
    """x with A @ x = B from the factor of A."""
    if 0 in b.shape or _is_empty(input2):
        return b.empty(b.shape, dtype_of(x)) if 0 in b.shape else b.filled(0, b.shape, dtype_of(x))
    lower = _turned(b, input2) if upper else input2
    lower = _one_triangle(b, lower, upper=False)
    value = solve_triangular(b, _turned(b, lower), solve_triangular(b, lower, x, upper=False), upper=True)
    return b.broadcast_to(value, b.shape)


@converter("cholesky_inverse")
def cholesky_inverse(b: TorchBuilder, x: GraphExpr, upper: bool = False) -> GraphExpr:
    """The inverse of a matrix from its factor."""
    if _is_empty(x):
        return x
    unit = b.constant(np.eye(shape_of(x)[-1]).astype(dtype_of(x).numpy()), dtype_of(x))
    return cholesky_solve(b, unit, x, upper)


# Householder reflections


def reflections(b: TorchBuilder, a: GraphExpr) -> tuple[GraphExpr, list[GraphExpr]]:
    """R on and above the diagonal, the reflecting vectors below it, and their factors."""
    *batch, rows, columns = shape_of(a)
    count = min(rows, columns)
    _check_steps(count)
    dtype = dtype_of(a)
    zero, one = b.scalar(0, dtype), b.scalar(1, dtype)
    down = np.arange(rows)[:, None]
    factors: list[GraphExpr] = []
    for step in range(count):
        column = _column(b, a, step)
        head = _row(b, column, step)
        tail = b.where(_mask(b, down > step), column, zero)
        square = b.reduce("sum", b.multiply(tail, tail), (len(batch),), True)
        length = b.call("sqrt", b.add(b.multiply(head, head), square))
        target = b.where(b.compare("less", head, 0), length, b.call("negative", length))
        flat = b.compare("equal", square, 0)
        target = b.where(flat, head, target)
        safe = b.where(b.compare("equal", target, 0), one, target)
        factor = b.where(flat, zero, b.divide(b.subtract(target, head), safe))
        vector = b.divide(tail, b.where(flat, one, b.subtract(head, target)))
        vector = b.where(_mask(b, down == step), one, vector)
        rest = np.arange(columns)[None, :] > step
        change = b.multiply(b.multiply(vector, factor), product(b, _turned(b, vector), a))
        a = b.subtract(a, b.where(_mask(b, rest), change, zero))
        here = np.arange(columns)[None, :] == step
        a = b.where(_mask(b, here & (down > step)), vector, a)
        a = b.where(_mask(b, here & (down == step)), target, a)
        factors.append(b.reshape(factor, (*batch, 1)))
    return a, factors


def _reflect(
    b: TorchBuilder, packed: GraphExpr, factors: Sequence[GraphExpr], value: GraphExpr, first: bool
) -> GraphExpr:
    """The reflections applied to the rows of a value, the first one first or last."""
    rows = shape_of(packed)[-2]
    down = np.arange(rows)[:, None]
    dtype = dtype_of(packed)
    steps = range(len(factors))
    for step in steps if first else reversed(steps):
        vector = b.where(_mask(b, down > step), _column(b, packed, step), b.scalar(0, dtype))
        vector = b.where(_mask(b, down == step), b.scalar(1, dtype), vector)
        factor = b.expand_dims(factors[step], (rank_of(factors[step]),))
        value = b.subtract(value, b.multiply(b.multiply(vector, factor), product(b, _turned(b, vector), value)))
    return value


def _unit(b: TorchBuilder, like: GraphExpr, columns: int) -> GraphExpr:
    *batch, rows, _ = shape_of(like)
    table = b.constant(np.eye(rows, columns).astype(dtype_of(like).numpy()), dtype_of(like))
    return b.broadcast_to(table, (*batch, rows, columns))


@converter("geqrf")
def geqrf(b: TorchBuilder, x: GraphExpr) -> tuple[GraphExpr, GraphExpr]:
    """R with the reflecting vectors, and their factors."""
    *batch, rows, columns = shape_of(x)
    if _is_empty(x):
        return x, b.empty((*batch, min(rows, columns)), dtype_of(x))
    packed, factors = reflections(b, x)
    return packed, b.concatenate(factors, len(batch))


@converter("linalg_qr")
def qr(b: TorchBuilder, A: GraphExpr, mode: str = "reduced") -> tuple[GraphExpr, GraphExpr]:
    """An orthogonal and an upper triangular factor."""
    *batch, rows, columns = shape_of(A)
    dtype = dtype_of(A)
    shapes = [tuple(int(dim) for dim in item.shape) for item in b.meta]
    if _is_empty(A):
        return _unit_or_empty(b, shapes[0], dtype), _unit_or_empty(b, shapes[1], dtype)
    packed, factors = reflections(b, A)
    count = rows if mode == "complete" else min(rows, columns)
    upper = _one_triangle(b, packed, upper=True)
    upper = b.slice_axis(upper, len(batch), 0, shapes[1][-2])
    if mode == "r":
        return b.empty((0,), dtype), upper
    return _reflect(b, packed, factors, _unit(b, A, count), first=False), upper


@converter("linalg_householder_product")
def householder_product(b: TorchBuilder, input: GraphExpr, tau: GraphExpr) -> GraphExpr:
    """The first columns of a product of reflections."""
    if _is_empty(input):
        return input
    count = shape_of(tau)[-1]
    factors = [b.slice_axis(tau, rank_of(tau) - 1, step, step + 1) for step in range(count)]
    return _reflect(b, input, factors, _unit(b, input, shape_of(input)[-1]), first=False)


@converter("ormqr")
def ormqr(
    b: TorchBuilder, x: GraphExpr, input2: GraphExpr, input3: GraphExpr, left: bool = True, transpose: bool = False
) -> GraphExpr:
    """A product of reflections (or its transpose) times a matrix, or the other way round."""
    if 0 in b.shape or _is_empty(x):
        return input3
    count = shape_of(input2)[-1]
    factors = [b.slice_axis(input2, rank_of(input2) - 1, step, step + 1) for step in range(count)]
    if left:
        return _reflect(b, x, factors, input3, first=transpose)
    return _turned(b, _reflect(b, x, factors, _turned(b, input3), first=not transpose))


# Spectra, which the host computes


def _host_parts(b: TorchBuilder, name: str, a: GraphExpr, count: int, **attributes: object) -> list[GraphExpr]:
    found = b.bind(b.call(name, a, **attributes), "factors")
    return [b.item(found, index) for index in range(count)]


@converter("_linalg_svd")
def svd(
    b: TorchBuilder, A: GraphExpr, full_matrices: bool = False, compute_uv: bool = True, driver: str | None = None
) -> list[GraphExpr]:
    """Left vectors, singular values, right vectors."""
    shapes = [tuple(int(dim) for dim in item.shape) for item in b.meta]
    if _is_empty(A):
        return [_unit_or_empty(b, shape, dtype_of(A)) for shape in shapes]
    left, sizes, right = _host_parts(b, "host.svd", A, 3, full_matrices=full_matrices)
    if not compute_uv:
        return [b.empty(shapes[0], dtype_of(A)), sizes, b.empty(shapes[2], dtype_of(A))]
    return [left, sizes, right]


@converter("_linalg_eigh")
def eigh(b: TorchBuilder, A: GraphExpr, UPLO: str = "L", compute_v: bool = True) -> list[GraphExpr]:
    """Eigenvalues and eigenvectors of symmetric matrices."""
    shapes = [tuple(int(dim) for dim in item.shape) for item in b.meta]
    if _is_empty(A):
        return [_unit_or_empty(b, shape, dtype_of(A)) for shape in shapes]
    sizes, vectors = _host_parts(b, "host.eigh", A, 2, upper=UPLO.upper() == "U")
    return [sizes, vectors if compute_v else b.empty(shapes[1], dtype_of(A))]


@converter("linalg_pinv.atol_rtol_tensor")
def pseudo_inverse(
    b: TorchBuilder,
    x: GraphExpr,
    atol: GraphExpr | None = None,
    rtol: GraphExpr | None = None,
    hermitian: bool = False,
) -> GraphExpr:
    """The inverse on what the singular values above a tolerance reach."""
    if 0 in b.shape:
        return b.empty(b.shape, dtype_of(x))
    dtype = dtype_of(x)
    if hermitian:
        sizes, left = _host_parts(b, "host.eigh", x, 2, upper=False)
        right = _turned(b, left)
    else:
        left, sizes, right = _host_parts(b, "host.svd", x, 3, full_matrices=False)
    strength = b.call("abs", sizes)
    top = b.reduce("max", strength, (rank_of(sizes) - 1,), True)
    rows, columns = shape_of(x)[-2:]
    share: GraphExpr = b.scalar(max(rows, columns) * float(np.finfo(dtype.name).eps), dtype)
    if rtol is not None:
        share = b.expand_dims(b.cast(rtol, dtype), (rank_of(rtol),)) if rank_of(rtol) else b.cast(rtol, dtype)
    limit = b.multiply(top, share)
    if atol is not None:
        least = b.expand_dims(b.cast(atol, dtype), (rank_of(atol),)) if rank_of(atol) else b.cast(atol, dtype)
        if rtol is None:
            # A given absolute tolerance replaces the usual relative one.
            limit = b.where(b.compare("greater", least, 0), least, limit)
        limit = b.call("maximum", limit, least)
    kept = b.call("greater", strength, limit)
    inverse_sizes = b.where(kept, b.divide(1.0, b.where(kept, sizes, b.scalar(1, dtype))), b.scalar(0, dtype))
    scaled = b.multiply(_turned(b, right), b.expand_dims(inverse_sizes, (rank_of(sizes) - 1,)))
    return product(b, scaled, _turned(b, left))


# Functions of matrices

_MOST_SQUARINGS = 24
_TAYLOR = 12


@converter("linalg_matrix_exp", "matrix_exp")
def matrix_exp(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """The exponential: a Taylor series of the matrix divided by a power of two, squared as often."""
    if _is_empty(x):
        return x
    *batch, rows, _ = shape_of(x)
    wide = b.cast(x, "float64")
    norm = b.reduce("max", b.reduce("sum", b.call("abs", wide), (len(batch),), True), (len(batch) + 1,), True)
    doublings = b.call(
        "ceil", b.multiply(b.call("log", b.call("maximum", norm, b.scalar(1e-30, dtype_of(norm)))), 1 / math.log(2))
    )
    doublings = b.call("clip", b.add(doublings, 1.0), minimum=0.0, maximum=float(_MOST_SQUARINGS))
    scaled = b.multiply(wide, b.call("exp", b.multiply(doublings, -math.log(2))))
    unit = _unit(b, wide, rows)
    total = unit
    for order in range(_TAYLOR, 0, -1):
        total = b.add(unit, b.divide(product(b, scaled, total), float(order)))
    for turn in range(_MOST_SQUARINGS):
        total = b.where(b.compare("greater", doublings, float(turn)), product(b, total, total), total)
    return b.cast(total, dtype_of(x))


# Distances and products of several


@converter("_cdist_forward")
def pairwise_distances(b: TorchBuilder, x1: GraphExpr, x2: GraphExpr, p: float, compute_mode: int | None) -> GraphExpr:
    """The p-norm of every difference of rows."""
    if 0 in b.shape:
        return b.empty(b.shape, b.dtype)
    first, second = b.expand_dims(x1, (rank_of(x1) - 1,)), b.expand_dims(x2, (rank_of(x2) - 2,))
    if shape_of(x1)[-1] == 0:
        return b.filled(0, b.shape, b.dtype)
    return _norm(b, b.call("abs", b.subtract(first, second)), p)


def _norm(b: TorchBuilder, size: GraphExpr, p: float) -> GraphExpr:
    """The p-norm of sizes along the last axis."""
    last = (rank_of(size) - 1,)
    if p == 0:
        return b.reduce("sum", b.cast(b.compare("not_equal", size, 0), dtype_of(size)), last)
    if p == 1:
        return b.reduce("sum", size, last)
    if p == 2:
        return b.call("sqrt", b.reduce("sum", b.multiply(size, size), last))
    if math.isinf(p):
        return b.reduce("max", size, last)
    total = b.reduce("sum", b.call("power", size, b.scalar(p, dtype_of(size))), last)
    return b.call("power", total, b.scalar(1 / p, dtype_of(size)))


@converter("_pdist_forward")
def condensed_distances(b: TorchBuilder, x: GraphExpr, p: float = 2) -> GraphExpr:
    """The p-norm of the differences of all pairs of rows, in order."""
    if 0 in b.shape or shape_of(x)[-1] == 0:
        return b.empty(b.shape, b.dtype) if 0 in b.shape else b.filled(0, b.shape, b.dtype)
    first, second = np.triu_indices(shape_of(x)[0], 1)
    rows = [b.call("take", x, b.constant(index.astype(np.int64), INT64), axis=0) for index in (first, second)]
    return _norm(b, b.call("abs", b.subtract(rows[0], rows[1])), p)


@converter("_trilinear")
def trilinear(
    b: TorchBuilder,
    i1: GraphExpr,
    i2: GraphExpr,
    i3: GraphExpr,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> GraphExpr:
    """The product of three, expanded to common dimensions, summed over some."""
    parts = [b.expand_dims(item, axes) for item, axes in ((i1, expand1), (i2, expand2), (i3, expand3))]
    whole = b.multiply(b.multiply(parts[0], parts[1]), parts[2])
    if 0 in b.shape:
        return b.empty(b.shape, b.dtype)
    return b.reduce("sum", whole, tuple(sumdim))
