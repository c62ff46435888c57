"""Linear algebra, shared by importers: factorisations of small matrices are unrolled over whole batches.

Each step is a few elementwise operators and reductions on all matrices at once, as LAPACK's unblocked forms do it
(the same pivots and signs). The number of steps is the size of the matrix: large ones are left to the host.
"""

from __future__ import annotations

import numpy as np

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import dtype_of, rank_of, shape_of, sizes_of
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import BOOL, FLOAT32, INT64

_MOST_STEPS = 32
"""The most steps that are unrolled; what takes more of them the host does."""


def product(b: ArithmeticBuilder, x: GraphExpr, y: GraphExpr, transpose_b: bool = False) -> GraphExpr:
    """The product of matrices; a product over nothing is zero."""
    if sizes_of(x)[-1] == 0:
        columns = shape_of(y)[-2 if transpose_b else -1]
        outer = np.broadcast_shapes(shape_of(x)[:-2], shape_of(y)[:-2])
        return b.filled(0, (*outer, shape_of(x)[-2], columns), dtype_of(x))
    return b.call("matmul", x, y, transpose_b=transpose_b)


def on_host(b: ArithmeticBuilder, name: str, *values: GraphExpr, results: int, **attributes: object) -> list[GraphExpr]:
    """What a host function gives of matrices; floats of 16 bits, which it does not take, go through float32."""
    dtype = dtype_of(values[0])
    is_short = dtype.is_float and dtype.bits < 32
    given = [b.cast(value, FLOAT32) for value in values] if is_short else values
    found = b.bind(b.call(name, *given, **attributes), "factors")
    parts = [b.item(found, index) for index in range(results)] if results > 1 else [found]
    return [b.cast(part, dtype) if is_short and dtype_of(part).is_float else part for part in parts]


def mask(b: ArithmeticBuilder, kept: object) -> GraphExpr:
    """A constant mask."""
    return b.constant(np.asarray(kept, bool), BOOL)


def turned(b: ArithmeticBuilder, x: GraphExpr) -> GraphExpr:
    """Rows and columns exchanged."""
    order = list(range(rank_of(x)))
    order[-2], order[-1] = order[-1], order[-2]
    return b.transpose(x, order)


def row_of(b: ArithmeticBuilder, x: GraphExpr, index: int) -> GraphExpr:
    """One row of each matrix, which stays a dimension."""
    return b.slice_axis(x, rank_of(x) - 2, index, index + 1)


def column_of(b: ArithmeticBuilder, x: GraphExpr, index: int) -> GraphExpr:
    """One column of each matrix, which stays a dimension."""
    return b.slice_axis(x, rank_of(x) - 1, index, index + 1)


def factorize(b: ArithmeticBuilder, a: GraphExpr, steps: int, pivot: bool = True) -> tuple[GraphExpr, GraphExpr]:
    """The first steps of elimination: L below the diagonal, U above; and the row that each step exchanged with."""
    *batch, rows, columns = shape_of(a)
    if steps > _MOST_STEPS:
        packed, exchanged = on_host(b, "host.lu", a, results=2, steps=steps, pivot=pivot)
        return packed, exchanged
    zero = b.scalar(0, dtype_of(a))
    down = np.arange(rows)[:, None]
    across = np.arange(columns)[None, :]
    pivots: list[GraphExpr] = []
    for step in range(steps):
        axis = rank_of(a) - 2
        if pivot:
            candidates = b.slice_axis(b.call("abs", column_of(b, a, step)), axis, step, rows)
            place = b.add(b.call("argmax", b.reshape(candidates, (*batch, rows - step)), axis=len(batch)), step)
            pivots.append(place)
            chosen = b.call("equal", b.constant(down, INT64), b.reshape(place, (*batch, 1, 1)))
            best = b.reduce("sum", b.where(chosen, a, zero), (axis,), True)
            a = b.where(chosen, row_of(b, a, step), a)
            a = b.where(mask(b, down == step), best, a)
        else:
            best = row_of(b, a, step)
        head = column_of(b, best, step)
        usable = b.compare("not_equal", head, 0)
        factor = b.divide(column_of(b, a, step), b.where(usable, head, b.scalar(1, dtype_of(a))))
        factor = b.where(b.call("logical_and", mask(b, down > step), usable), factor, zero)
        a = b.subtract(a, b.multiply(factor, b.where(mask(b, across > step), best, zero)))
        below = b.call("logical_and", mask(b, (down > step) & (across == step)), usable)
        a = b.where(below, factor, a)
    if not pivot:
        return a, b.broadcast_to(b.constant(np.arange(steps), INT64), (*batch, steps))
    return a, b.stack(pivots, len(batch))


def solve_triangular(
    b: ArithmeticBuilder, a: GraphExpr, right: GraphExpr, upper: bool, unit: bool = False
) -> GraphExpr:
    """x with a @ x = right, row by row."""
    rows = shape_of(a)[-1]
    if rows > _MOST_STEPS:
        return on_host(b, "host.solve_triangular", a, right, results=1, upper=upper, unit=unit)[0]
    batch = np.broadcast_shapes(shape_of(a)[:-2], shape_of(right)[:-2])
    right = b.broadcast_to(right, (*batch, *shape_of(right)[-2:]))
    found: dict[int, GraphExpr] = {}
    for index in reversed(range(rows)) if upper else range(rows):
        value = row_of(b, right, index)
        if not unit:
            value = b.divide(value, column_of(b, row_of(b, a, index), index))
        found[index] = value
        right = b.subtract(right, b.multiply(column_of(b, a, index), value))
    return b.concatenate([found[index] for index in range(rows)], rank_of(right) - 2)


def order_after(b: ArithmeticBuilder, pivots: GraphExpr, rows: int) -> GraphExpr:
    """The order of rows after each of the first ones was exchanged with another (`pivots`), one after the other."""
    *batch, count = shape_of(pivots)
    if count > _MOST_STEPS:
        return b.call("host.exchanged", pivots, rows=rows)
    places = b.constant(np.arange(rows), dtype_of(pivots))
    order = b.broadcast_to(places, (*batch, rows))
    axis = len(batch)
    for step in range(count):
        other = b.slice_axis(pivots, axis, step, step + 1)
        here = b.slice_axis(order, axis, step, step + 1)
        is_other = b.call("equal", places, other)
        there = b.reduce("sum", b.where(is_other, order, b.scalar(0, dtype_of(pivots))), (axis,), True)
        order = b.where(is_other, here, order)
        order = b.where(mask(b, np.arange(rows) == step), there, order)
    return order


def is_empty(*values: GraphExpr) -> bool:
    """Whether any of some values has no elements."""
    return any(0 in shape_of(value) for value in values)


def one_triangle(b: ArithmeticBuilder, a: GraphExpr, upper: bool) -> GraphExpr:
    """Zeros outside of one triangle."""
    rows, columns = shape_of(a)[-2:]
    kept = ~np.tri(rows, columns, -1, dtype=bool) if upper else np.tri(rows, columns, dtype=bool)
    return b.where(mask(b, kept), a, b.scalar(0, dtype_of(a)))


def cholesky_factor(b: ArithmeticBuilder, a: GraphExpr) -> GraphExpr:
    """L with L @ L^T = a, column by column, from the lower triangle."""
    rows = shape_of(a)[-1]
    if rows > _MOST_STEPS:
        return on_host(b, "host.cholesky", a, results=1)[0]
    down = np.arange(rows)[:, None]
    zero = b.scalar(0, dtype_of(a))
    columns: list[GraphExpr] = []
    for step in range(rows):
        root = b.call("sqrt", column_of(b, row_of(b, a, step), step))
        column = b.where(mask(b, down >= step), b.divide(column_of(b, a, step), root), zero)
        columns.append(column)
        a = b.subtract(a, b.multiply(column, turned(b, column)))
    return b.concatenate(columns, rank_of(a) - 1)


def reflections(b: ArithmeticBuilder, a: GraphExpr) -> tuple[GraphExpr, GraphExpr]:
    """R on and above the diagonal, the reflecting vectors below it, and their factors."""
    *batch, rows, columns = shape_of(a)
    count = min(rows, columns)
    if count > _MOST_STEPS:
        packed, scales = on_host(b, "host.reflections", a, results=2)
        return packed, scales
    dtype = dtype_of(a)
    zero, one = b.scalar(0, dtype), b.scalar(1, dtype)
    down = np.arange(rows)[:, None]
    factors: list[GraphExpr] = []
    for step in range(count):
        column = column_of(b, a, step)
        head = row_of(b, column, step)
        tail = b.where(mask(b, down > step), column, zero)
        square = b.reduce("sum", b.multiply(tail, tail), (len(batch),), True)
        length = b.call("sqrt", b.add(b.multiply(head, head), square))
        target = b.where(b.compare("less", head, 0), length, b.call("negative", length))
        flat = b.compare("equal", square, 0)
        target = b.where(flat, head, target)
        safe = b.where(b.compare("equal", target, 0), one, target)
        factor = b.where(flat, zero, b.divide(b.subtract(target, head), safe))
        vector = b.divide(tail, b.where(flat, one, b.subtract(head, target)))
        vector = b.where(mask(b, down == step), one, vector)
        rest = np.arange(columns)[None, :] > step
        change = b.multiply(b.multiply(vector, factor), product(b, turned(b, vector), a))
        a = b.subtract(a, b.where(mask(b, rest), change, zero))
        here = np.arange(columns)[None, :] == step
        a = b.where(mask(b, here & (down > step)), vector, a)
        a = b.where(mask(b, here & (down == step)), target, a)
        factors.append(b.reshape(factor, (*batch, 1)))
    return a, b.concatenate(factors, len(batch))


def reflect(b: ArithmeticBuilder, packed: GraphExpr, factors: GraphExpr, value: GraphExpr, first: bool) -> GraphExpr:
    """The reflections applied to the rows of a value, the first one first or last."""
    steps = range(shape_of(factors)[-1])
    if len(steps) > _MOST_STEPS:
        return on_host(b, "host.reflect", packed, factors, value, results=1, first=first)[0]
    rows = shape_of(packed)[-2]
    down = np.arange(rows)[:, None]
    dtype = dtype_of(packed)
    for step in steps if first else reversed(steps):
        vector = b.where(mask(b, down > step), column_of(b, packed, step), b.scalar(0, dtype))
        vector = b.where(mask(b, down == step), b.scalar(1, dtype), vector)
        factor = b.expand_dims(b.slice_axis(factors, rank_of(factors) - 1, step, step + 1), (rank_of(factors),))
        value = b.subtract(value, b.multiply(b.multiply(vector, factor), product(b, turned(b, vector), value)))
    return value


def unit_matrix(b: ArithmeticBuilder, like: GraphExpr, columns: int) -> GraphExpr:
    """Unit matrices beside others, of so many columns."""
    *batch, rows, _ = shape_of(like)
    table = b.constant(np.eye(rows, columns).astype(dtype_of(like).numpy()), dtype_of(like))
    return b.broadcast_to(table, (*batch, rows, columns))


def solve(b: ArithmeticBuilder, a: GraphExpr, right: GraphExpr) -> GraphExpr:
    """x with a @ x = right, by elimination with row exchanges of both sides at once."""
    *_, rows, _ = shape_of(a)
    axis = rank_of(a) - 1
    packed, _ = factorize(b, b.concatenate([a, right], axis), rows)
    upper = b.slice_axis(packed, axis, 0, rows)
    return solve_triangular(b, upper, b.slice_axis(packed, axis, rows, sizes_of(packed)[-1]), upper=True)


def inverse(b: ArithmeticBuilder, a: GraphExpr) -> GraphExpr:
    """The inverse of matrices."""
    return solve(b, a, unit_matrix(b, a, shape_of(a)[-1]))
