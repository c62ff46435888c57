"""Matrix products."""

from __future__ import annotations

from tilewright.graph.gradient.expressions import (
    expand,
    matmul,
    multiply,
    number,
    rank_of,
    reshape,
    sizes_of,
    sum_to,
    swap_last,
    zeros_like,
)
from tilewright.graph.gradient.registry import Cotangents, reverse_rule
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.expr import Call, GraphExpr
from tilewright.graph.ir.rewrite import make
from tilewright.graph.ops.contract import MatmulAttributes


@reverse_rule("matmul")
def matmul_(call: Call, cotangent: GraphExpr) -> Cotangents:
    """dA = dC B', dB = A' dC, in the order in which the inputs are stored."""
    assert isinstance(call.attributes, MatmulAttributes)
    a, b = call.args
    flip_a, flip_b = call.attributes.transpose_a, call.attributes.transpose_b

    def of_a() -> GraphExpr:
        if flip_a:
            return sum_to(matmul(b, cotangent, transpose_a=flip_b, transpose_b=True), a)
        return sum_to(matmul(cotangent, b, transpose_b=not flip_b), a)

    def of_b() -> GraphExpr:
        left, given = a, cotangent
        if rank_of(b) == 2 and rank_of(a) > 2 and not flip_a:
            # One product over all rows of the batch, not a sum of one a member.
            left, given = _rows(a), _rows(cotangent)
        if flip_b:
            return sum_to(matmul(given, left, transpose_a=True, transpose_b=flip_a), b)
        return sum_to(matmul(left, given, transpose_a=not flip_a), b)

    return [of_a, of_b]


def _rows(value: GraphExpr) -> GraphExpr:
    sizes = sizes_of(value)
    return reshape(value, (dimensions.product(sizes[:-1]), sizes[-1]))


@reverse_rule("grouped_matmul")
def grouped_matmul(call: Call, cotangent: GraphExpr) -> Cotangents:
    """Each row by the transpose of its matrix; each matrix gets the outer products of its rows."""
    a, b, groups = call.args

    def of_matrices() -> GraphExpr:
        products = multiply(expand(a, [2]), expand(cotangent, [1]))
        dtype = groups.tensor_type.dtype
        last = dimensions.subtract(sizes_of(b)[0], 1)
        limit = make("dimensions", values=(last,), shape=(), dtype=dtype)
        places = make("minimum", make("maximum", groups, number(0, dtype)), limit)
        return make("scatter", zeros_like(b), places, products, reduction="add", inside=True)

    return [lambda: make("grouped_matmul", cotangent, swap_last(b), groups), of_matrices, None]
