"""Host functions of factorisations of matrices that are too large to unroll: what LAPACK's routines give, in numpy.

Nothing raises an error for a matrix that has no such factorisation: infinities and NaN show it, as in frameworks.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.runtime.host.registry import HostValue, register
from tilewright.runtime.host.values import Array, Attributes, integer, tensor
from tilewright.support.errors import UserError

_NO_NUMBER = {"f": np.nan, "c": complex(np.nan, np.nan)}
_PANEL = 32
"""Columns that are eliminated one by one before the rest of the matrix is changed by one product."""


def each_matrix(function: Callable[[Array], tuple[Array, ...]], batch: Array) -> tuple[Array, ...]:
    """A function of a batch of matrices; where numpy refuses one of them, its results are NaN and the others stay."""
    try:
        return function(batch)
    except np.linalg.LinAlgError:
        pass
    sound = tuple(np.asarray(part) for part in function(np.broadcast_to(np.eye(*batch.shape[-2:]), batch.shape)))
    results = tuple(np.full(part.shape, _NO_NUMBER[part.dtype.kind], part.dtype) for part in sound)
    for place in np.ndindex(batch.shape[:-2]):
        try:
            parts = function(batch[place])
        except np.linalg.LinAlgError:
            continue
        for result, part in zip(results, parts, strict=True):
            result[place] = part
    return tuple(result.astype(batch.dtype) if result.dtype.kind == "f" else result for result in results)


@register("host.cholesky")
def cholesky(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """The lower factor of each matrix of a batch, by its lower triangle."""
    return list(each_matrix(lambda batch: (np.linalg.cholesky(batch),), tensor(values[0])))


@register("host.solve_triangular")
def solve_triangular(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """x with a @ x = right for triangular matrices, row by row."""
    a, right = tensor(values[0]), tensor(values[1])
    rows = a.shape[-1]
    batch = np.broadcast_shapes(a.shape[:-2], right.shape[:-2])
    x = np.array(np.broadcast_to(right, (*batch, *right.shape[-2:])))
    with np.errstate(all="ignore"):
        for row in reversed(range(rows)) if attributes["upper"] else range(rows):
            known = slice(row + 1, rows) if attributes["upper"] else slice(0, row)
            x[..., row, :] -= (a[..., row : row + 1, known] @ x[..., known, :])[..., 0, :]
            if not attributes["unit"]:
                x[..., row, :] /= a[..., row, row][..., None]
    return [x]


@register("host.lu")
def lu(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """The first steps of elimination: L below the diagonal, U above, and the row that each step exchanged with."""
    a = np.array(tensor(values[0]))
    steps = integer(attributes, "steps")
    pivots = np.broadcast_to(np.arange(steps, dtype=np.int64), (*a.shape[:-2], steps)).copy()
    with np.errstate(all="ignore"):
        for place in np.ndindex(a.shape[:-2]):
            for begin in range(0, steps, _PANEL):
                end = min(begin + _PANEL, steps)
                _eliminate(a[place], pivots[place], begin, end, bool(attributes["pivot"]))
    return [a, pivots]


def _eliminate(a: Array, pivots: Array, begin: int, end: int, pivot: bool) -> None:
    """Eliminate some columns of a matrix in place, then change what is to the right of them."""
    for step in range(begin, end):
        if pivot:
            other = step + int(np.argmax(np.abs(a[step:, step])))
            pivots[step] = other
            if other != step:
                a[[step, other]] = a[[other, step]]
        if not pivot or a[step, step] != 0:
            a[step + 1 :, step] /= a[step, step]
            a[step + 1 :, step + 1 : end] -= np.outer(a[step + 1 :, step], a[step, step + 1 : end])
    for step in range(begin, end):
        a[step + 1 : end, end:] -= np.outer(a[step + 1 : end, step], a[step, end:])
    a[end:, end:] -= a[end:, begin:end] @ a[begin:end, end:]


@register("host.exchanged")
def exchanged(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """The order of rows after each was exchanged with another one, one after the other (rows are counted from 0)."""
    pivots = tensor(values[0])
    order = np.broadcast_to(np.arange(integer(attributes, "rows")), (*pivots.shape[:-1], integer(attributes, "rows")))
    order = order.astype(pivots.dtype)
    wrong = pivots[(pivots < 0) | (pivots >= order.shape[-1])]
    if wrong.size:
        raise UserError(f"rows are exchanged with row {wrong[0]}, there are {order.shape[-1]}, counted from 0")
    for place in np.ndindex(pivots.shape[:-1]):
        for step, other in enumerate(pivots[place].tolist()):
            order[place][[step, other]] = order[place][[other, step]]
    return [order]


@register("host.reflections")
def reflections(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """R on and above the diagonal, the reflecting vectors below it; and their factors."""
    packed, factors = np.linalg.qr(tensor(values[0]), mode="raw")
    return [np.ascontiguousarray(np.swapaxes(packed, -1, -2)), factors]


@register("host.reflect")
def reflect(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """Reflections applied to the rows of matrices, the first one first or last."""
    packed, factors, given = (tensor(value) for value in values)
    rows, steps = packed.shape[-2], range(factors.shape[-1])
    batch = np.broadcast_shapes(packed.shape[:-2], given.shape[:-2])
    x = np.array(np.broadcast_to(given, (*batch, *given.shape[-2:])))
    for step in steps if attributes["first"] else reversed(steps):
        vector = np.where(np.arange(rows) > step, packed[..., step], 0)
        vector[..., step] = 1
        change = vector[..., None, :] @ x
        x -= (vector * factors[..., step : step + 1])[..., None] * change
    return [x]
