"""Matrix products."""

from __future__ import annotations

import numpy as np

from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Array, FusionKind, Types, operator
from tilewright.graph.ops.common import (
    agree,
    broadcast_shapes,
    constant_dim,
    require_integer,
    require_number,
    same_dtype,
    shape_text,
    tensors,
)
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, Type
from tilewright.support.errors import UserError


@node()
class MatmulAttributes(Attributes):
    """Whether the last two dimensions of an input are read swapped."""

    transpose_a: bool = False
    transpose_b: bool = False
    row_bits: int = 0
    """Bits to which numbers of `a` may be rounded, relative to the largest of a few neighbours, for speed; 0: none."""


def accumulation_type(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """The type in which a reference adds up products: at least float32."""
    return np.dtype(np.float32) if dtype == np.float16 else dtype


def _matmul(args: list[Array], attributes: MatmulAttributes) -> Array:
    wide = accumulation_type(args[0].dtype)
    a, b = (array.astype(wide, copy=False) for array in args)
    a = np.swapaxes(a, -1, -2) if attributes.transpose_a else a
    b = np.swapaxes(b, -1, -2) if attributes.transpose_b else b
    with np.errstate(all="ignore"):
        return np.asarray(np.matmul(a, b), args[0].dtype)


@operator("matmul", inputs=("a", "b"), kind=FusionKind.OUT_FUSABLE, reference=_matmul, attributes=MatmulAttributes)
def matmul(types: Types, attributes: MatmulAttributes) -> Type:
    """The product of matrices in the last two dimensions; the dimensions before them broadcast."""
    a, b = tensors(types, ("a", "b"))
    dtype = same_dtype([a, b], ("a", "b"))
    require_number(dtype, "the inputs")
    if a.shape is None or b.shape is None:
        return TensorType(None, dtype)
    for item, name in ((a.shape, "a"), (b.shape, "b")):
        if len(item) < 2:
            raise UserError(f"{name} must have at least 2 dimensions, it is {shape_text(item)}")
    rows, depth = a.shape[-2:] if not attributes.transpose_a else (a.shape[-1], a.shape[-2])
    depth_b, columns = b.shape[-2:] if not attributes.transpose_b else (b.shape[-1], b.shape[-2])
    agree(depth, depth_b, f"the inner dimensions of {shape_text(a.shape)} and {shape_text(b.shape)}")
    batch = broadcast_shapes([a.shape[:-2], b.shape[:-2]])
    assert batch is not None
    return TensorType((*batch, rows, columns), dtype)


def _grouped_matmul(args: list[Array], attributes: Attributes) -> Array:
    a, b, groups = args
    wide = accumulation_type(a.dtype)
    chosen = np.clip(groups.astype(np.int64), 0, b.shape[0] - 1)
    result = np.zeros((a.shape[0], b.shape[2]), wide)
    with np.errstate(all="ignore"):
        for group in np.unique(chosen):
            rows = chosen == group
            result[rows] = a[rows].astype(wide, copy=False) @ b[group].astype(wide, copy=False)
    return np.asarray(result, a.dtype)


@operator("grouped_matmul", inputs=("a", "b", "groups"), kind=FusionKind.OUT_FUSABLE, reference=_grouped_matmul)
def grouped_matmul(types: Types, attributes: Attributes) -> Type:
    """Each row of a times the matrix of b that its group names; groups that b does not have are the nearest."""
    a, b, groups = tensors(types, ("a", "b", "groups"))
    dtype = same_dtype([a, b], ("a", "b"))
    require_number(dtype, "the inputs")
    require_integer(groups.dtype, "the groups")
    if a.shape is None or b.shape is None or groups.shape is None:
        return TensorType(None, dtype)
    for item, name, rank in ((a.shape, "a", 2), (b.shape, "b", 3), (groups.shape, "groups", 1)):
        if len(item) != rank:
            raise UserError(f"{name} must have {rank} dimensions, it is {shape_text(item)}")
    agree(a.shape[1], b.shape[1], f"the inner dimensions of {shape_text(a.shape)} and {shape_text(b.shape)}")
    agree(a.shape[0], groups.shape[0], f"the rows of {shape_text(a.shape)} and {shape_text(groups.shape)}")
    if constant_dim(b.shape[0]) == 0:
        raise UserError("b has no matrices")
    return TensorType((a.shape[0], b.shape[2]), dtype)
