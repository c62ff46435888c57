"""Converters of products of matrices and of linear algebra."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.core.builder import rank_of, shape_of
from tilewright.frontend.core.einsum import einsum
from tilewright.frontend.core.matrices import (
    cholesky_factor,
    factorize,
    inverse,
    one_triangle,
    reflect,
    reflections,
    solve,
    solve_triangular,
    turned,
    unit_matrix,
)
from tilewright.frontend.tensorflow.context import NodeContext
from tilewright.frontend.tensorflow.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UserError


@converter("MatMul")
def matmul(node: NodeContext) -> GraphExpr:
    """The product of two matrices."""
    a, b = node.input(0), node.input(1)
    if rank_of(a) != 2 or rank_of(b) != 2:
        raise UserError(f"MatMul of {rank_of(a)} and {rank_of(b)} dimensions")
    return node.call("matmul", a, b, transpose_a=node.flag("transpose_a"), transpose_b=node.flag("transpose_b"))


@converter("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def batch_matmul(node: NodeContext) -> GraphExpr:
    """Products of matrices, whose dimensions before broadcast."""
    a, b = node.input(0), node.input(1)
    result = node.call("matmul", a, b, transpose_a=node.flag("adj_x"), transpose_b=node.flag("adj_y"))
    return node.builder.cast(result, node.dtype("Tout")) if node.has("Tout") else result


@converter("Einsum")
def einsum_of_inputs(node: NodeContext) -> GraphExpr:
    """Products and sums over named dimensions."""
    return einsum(node.builder, node.text("equation"), [node.input(at) for at in range(len(node.values))])


@converter("Cross")
def cross(node: NodeContext) -> GraphExpr:
    """The cross products of vectors along the last axis."""
    b, x, y = node.builder, node.input(0), node.input(1)
    axis = rank_of(x) - 1
    parts = [[b.slice_axis(value, axis, at, at + 1) for at in range(3)] for value in (x, y)]
    (x0, x1, x2), (y0, y1, y2) = parts
    pairs = (((x1, y2), (x2, y1)), ((x2, y0), (x0, y2)), ((x0, y1), (x1, y0)))
    rows = [b.subtract(b.multiply(*first), b.multiply(*second)) for first, second in pairs]
    return b.concatenate(rows, axis)


@converter("Cholesky")
def cholesky(node: NodeContext) -> GraphExpr:
    """The triangular factor of symmetric matrices."""
    return one_triangle(node.builder, cholesky_factor(node.builder, node.input(0)), upper=False)


@converter("MatrixTriangularSolve")
def triangular_solve(node: NodeContext) -> GraphExpr:
    """x with a @ x = b for triangular a."""
    b, a, right = node.builder, node.input(0), node.input(1)
    lower, adjoint = node.flag("lower", True), node.flag("adjoint")
    return solve_triangular(b, turned(b, a) if adjoint else a, right, upper=lower == adjoint)


@converter("MatrixSolve")
def matrix_solve(node: NodeContext) -> GraphExpr:
    """x with a @ x = b."""
    b, a = node.builder, node.input(0)
    return solve(b, turned(b, a) if node.flag("adjoint") else a, node.input(1))


@converter("MatrixInverse")
def matrix_inverse(node: NodeContext) -> GraphExpr:
    """The inverse of matrices."""
    b, a = node.builder, node.input(0)
    return inverse(b, turned(b, a) if node.flag("adjoint") else a)


@converter("MatrixDeterminant")
def determinant(node: NodeContext) -> GraphExpr:
    """The determinant of matrices: the product of pivots, with a sign for each exchange."""
    b, a = node.builder, node.input(0)
    rows = shape_of(a)[-1]
    packed, pivots = factorize(b, a, rows)
    result: GraphExpr | None = None
    for at in range(rows):
        head = b.select(b.select(packed, rank_of(packed) - 1, at), rank_of(packed) - 2, at)
        stays = b.compare("equal", b.select(pivots, rank_of(pivots) - 1, at), at)
        sign = b.where(stays, 1.0, b.constant_like(-1, head))
        part = b.multiply(head, sign)
        result = part if result is None else b.multiply(result, part)
    if result is None:
        raise UserError("the determinant of a matrix without elements")
    return result


@converter("Qr", outputs=("q", "r"))
def qr(node: NodeContext) -> Sequence[GraphExpr]:
    """Orthogonal columns times an upper triangle."""
    b, a = node.builder, node.input(0)
    rows, columns = shape_of(a)[-2:]
    packed, factors = reflections(b, a)
    width = rows if node.flag("full_matrices") else min(rows, columns)
    q = reflect(b, packed, factors, unit_matrix(b, a, width), first=False)
    r = one_triangle(b, b.slice_axis(packed, rank_of(a) - 2, 0, width), upper=True)
    return [q, r]


@converter("SelfAdjointEigV2", outputs=("e", "v"))
def eigh(node: NodeContext) -> Sequence[GraphExpr]:
    """Rising eigenvalues and eigenvectors of symmetric matrices."""
    both = node.call("host.eigh", node.input(0))
    return [node.builder.item(both, 0), node.builder.item(both, 1)]


@converter("Svd", outputs=("s", "u", "v"))
def svd(node: NodeContext) -> Sequence[GraphExpr]:
    """Singular values, left vectors, right vectors as columns."""
    b = node.builder
    both = node.call("host.svd", node.input(0), full_matrices=node.flag("full_matrices"))
    left, values, right = (b.item(both, at) for at in range(3))
    return [values, left, turned(b, right)]


@converter("SparseMatMul")
def sparse_matmul(node: NodeContext) -> GraphExpr:
    """A product of matrices of which many elements are 0."""
    a, b = node.input(0), node.input(1)
    wide = [node.builder.cast(value, "float32") for value in (a, b)]
    return node.call("matmul", *wide, transpose_a=node.flag("transpose_a"), transpose_b=node.flag("transpose_b"))
