"""Converters of factorisations by Householder reflections: QR, and products of reflections."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, shape_of
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.contract import product
from tilewright.frontend.torch.linalg import (
    check_steps,
    column_of,
    is_empty,
    mask,
    one_triangle,
    row_of,
    turned,
    unit_or_empty,
)
from tilewright.frontend.torch.registry import converter
from tilewright.graph.ir.expr import GraphExpr


def reflections(b: TorchBuilder, a: GraphExpr) -> tuple[GraphExpr, list[GraphExpr]]:
    """R on and above the diagonal, the reflecting vectors below it, and their factors."""
    *batch, rows, columns = shape_of(a)
    count = min(rows, columns)
    check_steps(count)
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
        vector = b.where(mask(b, down > step), column_of(b, packed, step), b.scalar(0, dtype))
        vector = b.where(mask(b, down == step), b.scalar(1, dtype), vector)
        factor = b.expand_dims(factors[step], (rank_of(factors[step]),))
        value = b.subtract(value, b.multiply(b.multiply(vector, factor), product(b, turned(b, vector), value)))
    return value


def unit_matrix(b: TorchBuilder, like: GraphExpr, columns: int) -> GraphExpr:
    """Unit matrices beside others, of so many columns."""
    *batch, rows, _ = shape_of(like)
    table = b.constant(np.eye(rows, columns).astype(dtype_of(like).numpy()), dtype_of(like))
    return b.broadcast_to(table, (*batch, rows, columns))


@converter("geqrf")
def geqrf(b: TorchBuilder, x: GraphExpr) -> tuple[GraphExpr, GraphExpr]:
    """R with the reflecting vectors, and their factors."""
    *batch, rows, columns = shape_of(x)
    if is_empty(x):
        return x, b.empty((*batch, min(rows, columns)), dtype_of(x))
    packed, factors = reflections(b, x)
    return packed, b.concatenate(factors, len(batch))


@converter("linalg_qr")
def qr(b: TorchBuilder, A: GraphExpr, mode: str = "reduced") -> tuple[GraphExpr, GraphExpr]:
    """An orthogonal and an upper triangular factor."""
    *batch, rows, columns = shape_of(A)
    dtype = dtype_of(A)
    shapes = [tuple(int(dim) for dim in item.shape) for item in b.meta]
    if is_empty(A):
        return unit_or_empty(b, shapes[0], dtype), unit_or_empty(b, shapes[1], dtype)
    packed, factors = reflections(b, A)
    count = rows if mode == "complete" else min(rows, columns)
    upper = one_triangle(b, packed, upper=True)
    upper = b.slice_axis(upper, len(batch), 0, shapes[1][-2])
    if mode == "r":
        return b.empty((0,), dtype), upper
    return _reflect(b, packed, factors, unit_matrix(b, A, count), first=False), upper


@converter("linalg_householder_product")
def householder_product(b: TorchBuilder, input: GraphExpr, tau: GraphExpr) -> GraphExpr:
    """The first columns of a product of reflections."""
    if is_empty(input):
        return input
    count = shape_of(tau)[-1]
    factors = [b.slice_axis(tau, rank_of(tau) - 1, step, step + 1) for step in range(count)]
    return _reflect(b, input, factors, unit_matrix(b, input, shape_of(input)[-1]), first=False)


@converter("ormqr")
def ormqr(
    b: TorchBuilder, x: GraphExpr, input2: GraphExpr, input3: GraphExpr, left: bool = True, transpose: bool = False
) -> GraphExpr:
    """A product of reflections (or its transpose) times a matrix, or the other way round."""
    if 0 in b.shape or is_empty(x):
        return input3
    count = shape_of(input2)[-1]
    factors = [b.slice_axis(input2, rank_of(input2) - 1, step, step + 1) for step in range(count)]
    if left:
        return _reflect(b, x, factors, input3, first=transpose)
    return turned(b, _reflect(b, x, factors, turned(b, input3), first=not transpose))
