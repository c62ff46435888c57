"""Operators by which a program decides what was not known when it was compiled: how many dimensions a value has, and
that a side that was left out is not taken."""

from __future__ import annotations

from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import NoAttributes, Types
from tilewright.graph.ops.common import tensor
from tilewright.graph.ops.host import host_operator
from tilewright.ir.dtype import INT64
from tilewright.ir.expr import PrimExpr
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, Type


@host_operator("host.rank", "data")
def rank(types: Types, attributes: NoAttributes) -> Type:
    """The number of dimensions of a tensor of which only a run knows it."""
    tensor(types, 0, "the data")
    return TensorType((), INT64)


@node()
class FailAttributes(Attributes):
    """What to say, the type that the value would have, and a symbol of its own: no two ends of a run are one."""

    dims: tuple[PrimExpr, ...]
    message: str
    result: Type


@host_operator("host.fail", attributes=FailAttributes)
def fail(types: Types, attributes: FailAttributes) -> Type:
    """The end of a run, with a message, in the place of a value that could not be compiled."""
    return attributes.result
