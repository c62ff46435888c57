"""Matrix products in half precision that add up blocks of products in half precision, and the blocks in float32."""

from __future__ import annotations

import numpy as np

from tilewright.graph.expr import Attributes
from tilewright.graph.op import Array, FusionKind, Types, operator
from tilewright.graph.ops.common import agree, require_positive, require_rank, same_dtype, tensors
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, Type
from tilewright.support.errors import UserError


@node()
class HalfMatmulAttributes(Attributes):
    """How many products are added up in half precision before they go to the float32 sum."""

    block: int = 128


def _matmul(args: list[Array], attributes: HalfMatmulAttributes) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(np.matmul(args[0].astype(np.float32), args[1].astype(np.float32)), np.float16)


@operator(
    "half.matmul",
    inputs=("a", "b"),
    kind=FusionKind.OUT_FUSABLE,
    reference=_matmul,
    attributes=HalfMatmulAttributes,
)
def matmul(types: Types, attributes: HalfMatmulAttributes) -> Type:
    """The product of a matrix (its last two dimensions) with a matrix, with blocks of float16 sums.

    The reference adds in float32. A block of n products rounds n times to 11 bits: relative to the sum of magnitudes
    the error is at most n * 2^-11, and about sqrt(n) * 2^-11 for random signs.
    """
    a, b = tensors(types, ("a", "b"))
    dtype = same_dtype([a, b], ("a", "b"))
    if dtype.name != "float16":
        raise UserError(f"the inputs must be float16, they are {dtype}")
    require_positive((attributes.block,), "block")
    if a.shape is None or b.shape is None:
        return TensorType(None, dtype)
    require_rank(b.shape, 2, "b")
    if len(a.shape) < 2:
        raise UserError(f"a must have at least 2 dimensions, it has {len(a.shape)}")
    agree(a.shape[-1], b.shape[0], "the inner dimensions of a and b")
    return TensorType((*a.shape[:-1], b.shape[1]), dtype)
