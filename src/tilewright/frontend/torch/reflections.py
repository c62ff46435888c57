"""Converters of factorisations by Householder reflections: QR, and products of reflections."""

from __future__ import annotations

from tilewright.frontend.core.builder import dtype_of, shape_of
from tilewright.frontend.core.matrices import is_empty, one_triangle, reflect, reflections, turned, unit_matrix
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.linalg import unit_or_empty
from tilewright.frontend.torch.registry import converter
from tilewright.graph.ir.expr import GraphExpr


@converter("geqrf")
def geqrf(b: TorchBuilder, x: GraphExpr) -> tuple[GraphExpr, GraphExpr]:
    """R with the reflecting vectors, and their factors."""
    *batch, rows, columns = shape_of(x)
    if is_empty(x):
        return x, b.empty((*batch, min(rows, columns)), dtype_of(x))
    packed, factors = reflections(b, x)
    return packed, factors


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
    return reflect(b, packed, factors, unit_matrix(b, A, count), first=False), upper


@converter("linalg_householder_product")
def householder_product(b: TorchBuilder, input: GraphExpr, tau: GraphExpr) -> GraphExpr:
    """The first columns of a product of reflections."""
    if is_empty(input):
        return input
    return reflect(b, input, tau, unit_matrix(b, input, shape_of(input)[-1]), first=False)


@converter("ormqr")
def ormqr(
    b: TorchBuilder, x: GraphExpr, input2: GraphExpr, input3: GraphExpr, left: bool = True, transpose: bool = False
) -> GraphExpr:
    """A product of reflections (or its transpose) times a matrix, or the other way round."""
    if 0 in b.shape or is_empty(x):
        return input3
    if left:
        return reflect(b, x, input2, input3, first=transpose)
    return turned(b, reflect(b, x, input2, turned(b, input3), first=not transpose))
