"""Converters of spectra and functions of matrices: singular values and eigenvalues come from the host."""

from __future__ import annotations

import math

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, shape_of
from tilewright.frontend.core.matrices import is_empty, product, turned, unit_matrix
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.linalg import unit_or_empty
from tilewright.frontend.torch.registry import converter
from tilewright.graph.ir.expr import GraphExpr


def _host_parts(b: TorchBuilder, name: str, a: GraphExpr, count: int, **attributes: object) -> list[GraphExpr]:
    found = b.bind(b.call(name, a, **attributes), "factors")
    return [b.item(found, index) for index in range(count)]


@converter("_linalg_svd")
def svd(
    b: TorchBuilder, A: GraphExpr, full_matrices: bool = False, compute_uv: bool = True, driver: str | None = None
) -> list[GraphExpr]:
    """Left vectors, singular values, right vectors."""
    shapes = [tuple(int(dim) for dim in item.shape) for item in b.meta]
    if is_empty(A):
        return [unit_or_empty(b, shape, dtype_of(A)) for shape in shapes]
    left, sizes, right = _host_parts(b, "host.svd", A, 3, full_matrices=full_matrices)
    if not compute_uv:
        return [b.empty(shapes[0], dtype_of(A)), sizes, b.empty(shapes[2], dtype_of(A))]
    return [left, sizes, right]


@converter("_linalg_eigh")
def eigh(b: TorchBuilder, A: GraphExpr, UPLO: str = "L", compute_v: bool = True) -> list[GraphExpr]:
    """Eigenvalues and eigenvectors of symmetric matrices."""
    shapes = [tuple(int(dim) for dim in item.shape) for item in b.meta]
    if is_empty(A):
        return [unit_or_empty(b, shape, dtype_of(A)) for shape in shapes]
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
        right = turned(b, left)
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
    scaled = b.multiply(turned(b, right), b.expand_dims(inverse_sizes, (rank_of(sizes) - 1,)))
    return product(b, scaled, turned(b, left))


# Functions of matrices

_MOST_SQUARINGS = 24
_TAYLOR = 12


@converter("linalg_matrix_exp", "matrix_exp")
def matrix_exp(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """The exponential: a Taylor series of the matrix divided by a power of two, squared as often."""
    if is_empty(x):
        return x
    *batch, rows, _ = shape_of(x)
    wide = b.cast(x, "float64")
    norm = b.reduce("max", b.reduce("sum", b.call("abs", wide), (len(batch),), True), (len(batch) + 1,), True)
    doublings = b.call(
        "ceil", b.multiply(b.call("log", b.call("maximum", norm, b.scalar(1e-30, dtype_of(norm)))), 1 / math.log(2))
    )
    doublings = b.call("clip", b.add(doublings, 1.0), minimum=0.0, maximum=float(_MOST_SQUARINGS))
    scaled = b.multiply(wide, b.call("exp", b.multiply(doublings, -math.log(2))))
    unit = unit_matrix(b, wide, rows)
    total = unit
    for order in range(_TAYLOR, 0, -1):
        total = b.add(unit, b.divide(product(b, scaled, total), float(order)))
    for turn in range(_MOST_SQUARINGS):
        total = b.where(b.compare("greater", doublings, float(turn)), product(b, total, total), total)
    return b.cast(total, dtype_of(x))
