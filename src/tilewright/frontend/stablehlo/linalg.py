"""Converters of linear algebra: Cholesky, triangular systems, and the routines of LAPACK that JAX calls on a CPU.

Small matrices are factorised step by step (`core/matrices.py`); larger ones and spectra come from the host.
"""

from __future__ import annotations

from tilewright.frontend.core.builder import dtype_of, shape_of
from tilewright.frontend.core.complex_values import Complex
from tilewright.frontend.core.matrices import (
    cholesky_factor,
    factorize,
    is_empty,
    on_host,
    one_triangle,
    order_after,
    reflect,
    reflections,
    solve_triangular,
    turned,
    unit_matrix,
)
from tilewright.frontend.stablehlo.builder import StableBuilder, Tensor
from tilewright.frontend.stablehlo.calls import target
from tilewright.frontend.stablehlo.program import Operation
from tilewright.frontend.stablehlo.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import DataType
from tilewright.support.errors import UnsupportedError

_INT32 = DataType.of("int32")


@converter("cholesky")
def cholesky(b: StableBuilder, operation: Operation, x: GraphExpr) -> GraphExpr:
    """The factor, lower or upper; what is on the other side of the diagonal is zero."""
    if is_empty(x):
        return x
    lower = operation.attributes.get("lower", False) is True
    return cholesky_factor(b, x) if lower else turned(b, cholesky_factor(b, turned(b, x)))


@converter("triangular_solve")
def triangular_solve(b: StableBuilder, operation: Operation, a: GraphExpr, right: GraphExpr) -> GraphExpr:
    """x with a @ x = right (or x @ a = right) for a triangular a."""
    attributes = operation.attributes
    lower, left, unit = (attributes.get(name) is True for name in ("lower", "left_side", "unit_diagonal"))
    transposed = str(attributes.get("transpose_a", "NO_TRANSPOSE")) in ("TRANSPOSE", "ADJOINT")
    return _solved(b, a, right, upper=not lower, left=left, transposed=transposed, unit=unit)


def _solved(
    b: StableBuilder, a: GraphExpr, right: GraphExpr, *, upper: bool, left: bool, transposed: bool, unit: bool
) -> GraphExpr:
    if is_empty(a, right):
        return right
    matrix = one_triangle(b, a, upper)
    if transposed:
        matrix, upper = turned(b, matrix), not upper
    if left:
        return solve_triangular(b, matrix, right, upper, unit)
    return turned(b, solve_triangular(b, turned(b, matrix), turned(b, right), not upper, unit))


# LAPACK


def _letter(operation: Operation, name: str) -> str:
    """An option of a routine, which is the number of a letter."""
    config = operation.attributes.get("mhlo.backend_config") or operation.attributes.get("backend_config") or {}
    value = config.get(name) if isinstance(config, dict) else None
    return chr(value) if isinstance(value, int) and 0 < value < 128 else ""


def _fixed_shape(operation: Operation, place: int) -> list[int]:
    return [size for size in operation.results[place].tensor.shape if size is not None]


def _no_info(b: StableBuilder, operation: Operation, place: int) -> GraphExpr:
    """Zeros: nothing went wrong (what did shows as infinities and NaN)."""
    shape = _fixed_shape(operation, place)
    return b.empty(shape, _INT32) if 0 in shape else b.filled(0, shape, _INT32)


@target("lapack_spotrf_ffi", "lapack_dpotrf_ffi")
def potrf(b: StableBuilder, operation: Operation, a: GraphExpr) -> list[GraphExpr]:
    """Cholesky's factor."""
    if is_empty(a):
        return [a, _no_info(b, operation, 1)]
    is_upper = _letter(operation, "uplo") == "U"
    factor = cholesky_factor(b, turned(b, a) if is_upper else a)
    rank = len(shape_of(a))
    # JAX looks at this: no element of the result is a number where a matrix has no factor.
    info = b.reduce("max", b.cast(b.call("isnan", factor), _INT32), (rank - 2, rank - 1))
    return [turned(b, factor) if is_upper else factor, info]


@target("lapack_strsm_ffi", "lapack_dtrsm_ffi")
def trsm(b: StableBuilder, operation: Operation, a: GraphExpr, right: GraphExpr, *_: GraphExpr) -> GraphExpr:
    """A triangular system."""
    return _solved(
        b,
        a,
        right,
        upper=_letter(operation, "uplo") == "U",
        left=_letter(operation, "side") != "R",
        transposed=_letter(operation, "trans_x") in ("T", "C"),
        unit=_letter(operation, "diag") == "U",
    )


@target("lapack_sgetrf_ffi", "lapack_dgetrf_ffi")
def getrf(b: StableBuilder, operation: Operation, a: GraphExpr) -> list[GraphExpr]:
    """Both triangular factors in one matrix, and the rows that were exchanged, counted from 1."""
    *batch, rows, columns = shape_of(a)
    if is_empty(a):
        return [a, b.empty((*batch, min(rows, columns)), _INT32), _no_info(b, operation, 2)]
    factors, pivots = factorize(b, a, min(rows, columns))
    return [factors, b.cast(b.add(pivots, 1), _INT32), _no_info(b, operation, 2)]


@target("lapack_sgeqrf_ffi", "lapack_dgeqrf_ffi")
def geqrf(b: StableBuilder, operation: Operation, a: GraphExpr) -> list[GraphExpr]:
    """R with the reflecting vectors below it, and their factors."""
    *batch, rows, columns = shape_of(a)
    if is_empty(a):
        return [a, b.empty((*batch, min(rows, columns)), dtype_of(a))]
    packed, factors = reflections(b, a)
    return [packed, factors]


@target("lapack_sorgqr_ffi", "lapack_dorgqr_ffi")
def orgqr(b: StableBuilder, operation: Operation, packed: GraphExpr, factors: GraphExpr) -> GraphExpr:
    """The first columns of the product of reflections."""
    if is_empty(packed):
        return packed
    return reflect(b, packed, factors, unit_matrix(b, packed, shape_of(packed)[-1]), first=False)


@target("lapack_ssyevd_ffi", "lapack_dsyevd_ffi")
def syevd(b: StableBuilder, operation: Operation, a: GraphExpr) -> list[GraphExpr]:
    """Eigenvectors and eigenvalues of symmetric matrices."""
    *batch, rows, _ = shape_of(a)
    if is_empty(a):
        return [a, b.empty((*batch, rows), dtype_of(a)), _no_info(b, operation, 2)]
    values, vectors = on_host(b, "host.eigh", a, results=2, upper=_letter(operation, "uplo") == "U")
    return [vectors, values, _no_info(b, operation, 2)]


@target("lapack_sgesdd_ffi", "lapack_dgesdd_ffi", "lapack_sgesvd_ffi", "lapack_dgesvd_ffi")
def gesdd(b: StableBuilder, operation: Operation, a: GraphExpr) -> list[GraphExpr]:
    """Singular values and their vectors: the matrix, the values, left and right vectors."""
    mode = _letter(operation, "mode")
    if is_empty(a):
        raise UnsupportedError("singular values of an empty matrix")
    left, values, right = on_host(b, "host.svd", a, results=3, full_matrices=mode == "A")
    if mode == "N":
        # Nobody looks at vectors that were not asked for.
        left, right = (b.filled(0, _fixed_shape(operation, place), dtype_of(a)) for place in (2, 3))
    return [a, values, left, right, _no_info(b, operation, 4)]


@target("lapack_sgeev_ffi", "lapack_dgeev_ffi")
def geev(b: StableBuilder, operation: Operation, a: GraphExpr) -> list[Tensor]:
    """Eigenvalues, by their parts, and left and right eigenvectors of any square matrices."""
    if is_empty(a):
        real, imaginary, *vectors = (
            b.empty(_fixed_shape(operation, place), dtype_of(a)) for place in (0, 1, 2, 2, 3, 3)
        )
        return [real, imaginary, Complex(*vectors[:2]), Complex(*vectors[2:]), _no_info(b, operation, 4)]
    wants_left = _letter(operation, "compute_left") == "V"
    real, imaginary, *vectors = on_host(b, "host.eig", a, results=6, left=wants_left)
    return [real, imaginary, Complex(*vectors[2:]), Complex(*vectors[:2]), _no_info(b, operation, 4)]


@target("LuPivotsToPermutation", "cu_lu_pivots_to_permutation")
def pivots_to_permutation(b: StableBuilder, operation: Operation, pivots: GraphExpr) -> GraphExpr:
    """The order of rows after exchanges, one after the other."""
    size = operation.results[0].tensor.shape[-1]
    assert isinstance(size, int)
    return order_after(b, pivots, size)
