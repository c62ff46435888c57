"""Factorisations of matrices that are too large to unroll, which the host does.

`tilewright.runtime.host.factorizations` has the functions; importers call them (`frontend/core/matrices.py`).
"""

from __future__ import annotations

from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Types
from tilewright.graph.ops.common import Shape, agree, broadcast_shapes, constant_dim, dims, tensor
from tilewright.graph.ops.host import host_operator
from tilewright.graph.ops.spectra import matrices
from tilewright.ir.dtype import INT64
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, TupleType, Type
from tilewright.support.errors import UserError


@node()
class TriangularAttributes(Attributes):
    """Which triangle there is, and whether its diagonal is ones."""

    upper: bool = False
    unit: bool = False


@node()
class EliminationAttributes(Attributes):
    """How many columns are eliminated, and whether rows are exchanged."""

    steps: int
    pivot: bool = True


@node()
class ExchangeAttributes(Attributes):
    """How many rows there are."""

    rows: int


@node()
class ReflectAttributes(Attributes):
    """Whether the first reflection comes first."""

    first: bool = False


def _batch(first: Shape, second: Shape) -> Shape:
    batch = broadcast_shapes((first, second))
    assert batch is not None  # both are known
    return batch


@host_operator("host.cholesky", "data")
def cholesky(types: Types, attributes: Attributes) -> Type:
    """The lower factor of symmetric matrices, from their lower triangles; NaN where there is none."""
    batch, rows, columns, dtype = matrices(types)
    agree(rows, columns, "the two sides of a symmetric matrix")
    return TensorType((*batch, rows, columns), dtype)


@host_operator("host.solve_triangular", "matrix", "right", attributes=TriangularAttributes)
def solve_triangular(types: Types, attributes: TriangularAttributes) -> Type:
    """x with matrix @ x = right, for triangular matrices."""
    batch, rows, columns, dtype = matrices(types)
    right = tensor(types, 1, "the right side")
    if right.shape is None or len(right.shape) < 2:
        raise UserError("the right side of triangular systems needs at least 2 dimensions")
    agree(rows, columns, "the two sides of a triangular matrix")
    agree(rows, right.shape[-2], "the rows of both sides of a triangular system")
    return TensorType((*_batch(batch, right.shape[:-2]), *right.shape[-2:]), dtype)


@host_operator("host.lu", "data", attributes=EliminationAttributes)
def lu(types: Types, attributes: EliminationAttributes) -> Type:
    """The first steps of elimination: L below the diagonal, U above; and the row that each step exchanged with."""
    batch, rows, columns, dtype = matrices(types)
    sizes = [constant_dim(size) for size in (rows, columns)]
    if any(size is not None and attributes.steps > size for size in sizes):
        raise UserError(f"{attributes.steps} steps of elimination are more than a matrix has rows and columns")
    packed = TensorType((*batch, rows, columns), dtype)
    return TupleType((packed, TensorType((*batch, *dims((attributes.steps,))), INT64)))


@host_operator("host.exchanged", "pivots", attributes=ExchangeAttributes)
def exchanged(types: Types, attributes: ExchangeAttributes) -> Type:
    """The order of rows after each of the first ones was exchanged with another, one after the other."""
    pivots = tensor(types, 0, "the exchanges")
    if pivots.shape is None or not pivots.shape:
        raise UserError("exchanges of rows need at least 1 dimension")
    return TensorType((*pivots.shape[:-1], *dims((attributes.rows,))), pivots.dtype)


@host_operator("host.reflections", "data")
def reflections(types: Types, attributes: Attributes) -> Type:
    """R on and above the diagonal with the reflecting vectors below it, and their factors."""
    batch, rows, columns, dtype = matrices(types)
    down, across = constant_dim(rows), constant_dim(columns)
    if down is None or across is None:
        raise UserError("the reflections of matrices whose size varies")
    least = rows if down <= across else columns
    return TupleType((TensorType((*batch, rows, columns), dtype), TensorType((*batch, least), dtype)))


@host_operator("host.reflect", "packed", "factors", "data", attributes=ReflectAttributes)
def reflect(types: Types, attributes: ReflectAttributes) -> Type:
    """Reflections (as `host.reflections` gives them) applied to the rows of matrices."""
    batch, rows, _, dtype = matrices(types)
    data = tensor(types, 2, "what is reflected")
    if data.shape is None or len(data.shape) < 2:
        raise UserError("what is reflected needs at least 2 dimensions")
    agree(rows, data.shape[-2], "the rows of reflecting vectors and of what is reflected")
    return TensorType((*_batch(batch, data.shape[:-2]), *data.shape[-2:]), dtype)
