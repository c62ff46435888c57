"""Eigenvalues of symmetric matrices, and singular values.

Their vectors are refused: those of equal values are not determined, and what is made of them (a pseudo-inverse) has a
gradient there that no rule of single vectors gives.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.gradient.expressions import expand, item, matmul, multiply, rank_of, sizes_of, slice_axis
from tilewright.graph.gradient.registry import Cotangents, reverse_rule
from tilewright.graph.ir.expr import Call, GraphExpr
from tilewright.support.errors import UserError

Parts = Sequence[GraphExpr | None]


@reverse_rule("host.eigh")
def eigh(call: Call, cotangents: Parts) -> Cotangents:
    """V diag(w') V' of the eigenvalues: each half of the matrix gets its share, whichever is read."""
    of_values, of_vectors = cotangents
    _refuse(call, of_vectors)
    if of_values is None:
        return [None]
    vectors = item(call, 1)
    return [matmul(multiply(vectors, _across(of_values)), vectors, transpose_b=True)]


@reverse_rule("host.svd")
def svd(call: Call, cotangents: Parts) -> Cotangents:
    """U diag(s') V' of the singular values."""
    of_left, of_values, of_right = cotangents
    _refuse(call, of_left, of_right)
    if of_values is None:
        return [None]
    rank, count = rank_of(call.args[0]), sizes_of(of_values)[-1]
    left, right = slice_axis(item(call, 0), rank - 1, 0, count), slice_axis(item(call, 2), rank - 2, 0, count)
    return [matmul(multiply(left, _across(of_values)), right)]


def _refuse(call: Call, *vectors: GraphExpr | None) -> None:
    if any(item is not None for item in vectors):
        raise UserError(
            "the gradient of eigenvectors or singular vectors, which equal values do not determine",
            where=None if call.span is None else str(call.span),
            hint="the values have gradients; put stop_gradient before what reads the vectors",
        )


def _across(values: GraphExpr) -> GraphExpr:
    """Values along the columns of matrices."""
    return expand(values, (rank_of(values) - 1,))
