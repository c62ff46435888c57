"""Spectral factorisations of matrices, which the host does (`tilewright.runtime.host.spectra`)."""

from __future__ import annotations

from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Types
from tilewright.graph.ops.common import agree, constant_dim, require_float, tensor
from tilewright.graph.ops.host import host_operator
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import PrimExpr
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, TupleType, Type
from tilewright.support.errors import UserError


@node()
class SvdAttributes(Attributes):
    """Whether the vectors span the whole spaces, not only what the singular values reach."""

    full_matrices: bool = False


@node()
class EighAttributes(Attributes):
    """Which triangle is read."""

    upper: bool = False


@node()
class EigAttributes(Attributes):
    """Whether left vectors are wanted; the right ones are given twice where they are not."""

    left: bool = False


def matrices(types: Types) -> tuple[tuple[PrimExpr | None, ...], PrimExpr | None, PrimExpr | None, DataType]:
    """The sizes of a batch of matrices (the first operand), of their rows and columns, and their type."""
    data = tensor(types, 0, "the matrices")
    require_float(data.dtype, "the matrices")
    if data.shape is None or len(data.shape) < 2:
        raise UserError("matrices of at least 2 dimensions are needed here")
    return data.shape[:-2], data.shape[-2], data.shape[-1], data.dtype


@host_operator("host.svd", "data", attributes=SvdAttributes)
def svd(types: Types, attributes: SvdAttributes) -> Type:
    """Left vectors, singular values by falling size, right vectors as rows."""
    batch, rows, columns, dtype = matrices(types)
    down, across = constant_dim(rows), constant_dim(columns)
    if down is None or across is None:
        raise UserError("the singular values of matrices whose size varies")
    least = rows if down <= across else columns
    first, last = (rows, columns) if attributes.full_matrices else (least, least)
    return TupleType(
        (
            TensorType((*batch, rows, first), dtype),
            TensorType((*batch, least), dtype),
            TensorType((*batch, last, columns), dtype),
        )
    )


@host_operator("host.eigh", "data", attributes=EighAttributes)
def eigh(types: Types, attributes: EighAttributes) -> Type:
    """Rising eigenvalues, and the eigenvectors as columns, of symmetric matrices."""
    batch, rows, columns, dtype = matrices(types)
    agree(rows, columns, "the two sides of a symmetric matrix")
    return TupleType((TensorType((*batch, rows), dtype), TensorType((*batch, rows, columns), dtype)))


@host_operator("host.eig", "data", attributes=EigAttributes)
def eig(types: Types, attributes: EigAttributes) -> Type:
    """Eigenvalues, right and left eigenvectors as columns: real and imaginary parts of each, one after the other."""
    batch, rows, columns, dtype = matrices(types)
    agree(rows, columns, "the two sides of a matrix that has eigenvalues")
    sizes, vectors = TensorType((*batch, rows), dtype), TensorType((*batch, rows, columns), dtype)
    return TupleType((sizes, sizes, vectors, vectors, vectors, vectors))
