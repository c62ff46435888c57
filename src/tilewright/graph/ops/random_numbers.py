"""Operators that draw random numbers, which the host does (`tilewright.runtime.host.random_numbers`).

No two draws are one: each call has a number of its own, so that equal ones are not merged.
"""

from __future__ import annotations

from tilewright.graph.ir.dimensions import as_dims
from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Types
from tilewright.graph.ops.common import require_integer, tensor
from tilewright.graph.ops.host import host_operator
from tilewright.ir.dtype import FLOAT32, INT64
from tilewright.ir.expr import PrimExpr
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, Type
from tilewright.support.errors import UserError


@node()
class UniformAttributes(Attributes):
    """The dimensions of the result, the number of the draw, its seed, and the bounds."""

    dims: tuple[PrimExpr, ...]
    draw: int
    seed: float | None = None
    low: float = 0.0
    high: float = 1.0


@host_operator("random.uniform", "shape", attributes=UniformAttributes)
def uniform(types: Types, attributes: UniformAttributes) -> Type:
    """Numbers from `low` up to but without `high`, in a shape."""
    return _drawn(types, attributes.dims)


@node()
class NormalAttributes(Attributes):
    """The dimensions of the result, the number of the draw, its seed, the mean and the standard deviation."""

    dims: tuple[PrimExpr, ...]
    draw: int
    seed: float | None = None
    mean: float = 0.0
    scale: float = 1.0


@host_operator("random.normal", "shape", attributes=NormalAttributes)
def normal(types: Types, attributes: NormalAttributes) -> Type:
    """Numbers of a normal distribution, in a shape."""
    return _drawn(types, attributes.dims)


def _drawn(types: Types, dims: tuple[PrimExpr, ...]) -> Type:
    require_integer(tensor(types, 0, "the shape").dtype, "the shape")
    return TensorType(as_dims(dims), FLOAT32)


@node()
class CategoriesAttributes(Attributes):
    """The dimensions of the result, the number of the draw, and its seed."""

    dims: tuple[PrimExpr, ...]
    draw: int
    seed: float | None = None


@host_operator("random.categories", "logits", "count", attributes=CategoriesAttributes)
def categories(types: Types, attributes: CategoriesAttributes) -> Type:
    """For each row of logarithms of probabilities, so many numbers of classes drawn by them."""
    logits = tensor(types, 0, "the logits")
    if logits.rank not in (2, None) or not logits.dtype.is_float:
        raise UserError(f"classes are drawn from a matrix of floats, not {logits!r}")
    require_integer(tensor(types, 1, "the count").dtype, "the count")
    return TensorType(as_dims(attributes.dims), INT64)
