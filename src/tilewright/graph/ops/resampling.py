"""Resampling along an axis where a size, a scale or a region is data, and the tables for where all are constants.

What both have in common is a host function's (`tilewright.runtime.host.resampling`).
"""

from __future__ import annotations

from tilewright.graph.ir.dimensions import as_dims
from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Types
from tilewright.graph.ops.host import host_operator
from tilewright.ir.dtype import BOOL, FLOAT32
from tilewright.ir.expr import PrimExpr
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, TupleType, Type
from tilewright.runtime.host.resampling import LARGEST_AXIS, Rule, taps
from tilewright.support.errors import UserError


@node()
class ResizeWeightsAttributes(Attributes):
    """The new and the old size, and how places are found and read (`tilewright.runtime.host.resampling.Rule`)."""

    dims: tuple[PrimExpr, ...]
    mode: str
    transformation: str
    nearest: str = "round_prefer_floor"
    cubic: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False


@host_operator("host.resize_weights", "old", "new", "scale", "start", "end", attributes=ResizeWeightsAttributes)
def resize_weights(types: Types, attributes: ResizeWeightsAttributes) -> Type:
    """The matrix (new, old) that resamples an axis, and which elements of the new one lie outside the old one."""
    wanted = as_dims(attributes.dims)
    if len(wanted) != 2:
        raise UserError(f"a matrix of weights has two dimensions, not {len(wanted)}")
    return TupleType((TensorType(wanted, FLOAT32), TensorType(wanted[:1], BOOL)))


__all__ = ["LARGEST_AXIS", "Rule", "resize_weights", "taps"]
