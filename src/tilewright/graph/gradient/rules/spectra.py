"""Eigenvalues of symmetric matrices and singular values, with their vectors.

Vectors of equal values are not determined: where a gradient asks how such a pair turns, it is infinite, as PyTorch's.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.gradient.expressions import (
    add,
    arange,
    compare,
    divide,
    expand,
    item,
    matmul,
    multiply,
    rank_of,
    sizes_of,
    slice_axis,
    subtract,
    swap_last,
    where,
)
from tilewright.graph.gradient.registry import Cotangents, reverse_rule
from tilewright.graph.ir.expr import Call, GraphExpr
from tilewright.support.errors import UserError

Parts = Sequence[GraphExpr | None]


@reverse_rule("host.eigh")
def eigh(call: Call, cotangents: Parts) -> Cotangents:
    """V (diag(w') + (V' dV) / (w_j - w_i)) V': each half of the matrix gets its share, whichever is read."""
    values, vectors = item(call, 0), item(call, 1)
    of_values, of_vectors = cotangents
    inner: GraphExpr | None = None
    if of_vectors is not None:
        inner = _turns(matmul(vectors, of_vectors, transpose_a=True), values)
    if of_values is not None:
        inner = where(_diagonal(values), _across(of_values), 0 if inner is None else inner)
    return [None if inner is None else matmul(matmul(vectors, inner), vectors, transpose_b=True)]


@reverse_rule("host.svd")
def svd(call: Call, cotangents: Parts) -> Cotangents:
    """U (diag(s') + turns of U and V by the gaps of s^2) V', and what lies outside the spans of U and V."""
    data = call.args[0]
    left, values, right = (item(call, place) for place in range(3))
    of_left, of_values, of_right = cotangents
    count, (rows, columns) = sizes_of(values)[-1], sizes_of(data)[-2:]
    if (of_left is not None and sizes_of(left)[-1] != count) or (of_right is not None and sizes_of(right)[-2] != count):
        raise UserError(
            "the gradient of singular vectors that no singular value belongs to, which are not determined",
            where=None if call.span is None else str(call.span),
            hint="say full_matrices=False",
        )
    rank = rank_of(data)
    left, right = slice_axis(left, rank - 1, 0, count), slice_axis(right, rank - 2, 0, count)
    squares = multiply(values, values)
    parts: list[GraphExpr] = []
    outside: list[GraphExpr] = []
    if of_values is not None:
        parts.append(where(_diagonal(values), _across(of_values), 0))
    if of_left is not None:
        turns = matmul(left, of_left, transpose_a=True)
        parts.append(multiply(_turns(subtract(turns, swap_last(turns)), squares), _across(values)))
        if rows != count:
            scaled = divide(of_left, _across(values))
            free = subtract(scaled, matmul(left, matmul(left, scaled, transpose_a=True)))
            outside.append(matmul(free, right))
    if of_right is not None:
        turns = matmul(right, of_right, transpose_b=True)
        parts.append(multiply(_turns(subtract(turns, swap_last(turns)), squares), _down(values)))
        if columns != count:
            scaled = divide(of_right, _down(values))
            free = subtract(scaled, matmul(matmul(scaled, right, transpose_b=True), right))
            outside.append(matmul(left, free))
    if not parts:
        return [None]
    total = parts[0]
    for part in parts[1:]:
        total = add(total, part)
    result = matmul(matmul(left, total), right)
    for part in outside:
        result = add(result, part)
    return [result]


def _across(values: GraphExpr) -> GraphExpr:
    """Values along the columns of matrices."""
    return expand(values, (rank_of(values) - 1,))


def _down(values: GraphExpr) -> GraphExpr:
    """Values along the rows of matrices."""
    return expand(values, (rank_of(values),))


def _diagonal(values: GraphExpr) -> GraphExpr:
    """Which elements of matrices lie on the diagonal."""
    places = arange(sizes_of(values)[-1])
    return compare("equal", expand(places, (1,)), expand(places, (0,)))


def _turns(turns: GraphExpr, values: GraphExpr) -> GraphExpr:
    """How the vectors of two values turn into each other, by the gap between the two."""
    diagonal = _diagonal(values)
    return divide(where(diagonal, 0, turns), where(diagonal, 1, subtract(_across(values), _down(values))))
