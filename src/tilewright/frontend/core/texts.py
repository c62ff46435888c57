"""Operators applied to texts: no kernel touches them, so each becomes a host operator that does the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.graph.ir.dimensions import Size, as_dims
from tilewright.graph.ir.expr import Attributes, GraphExpr
from tilewright.ir.dtype import STRING
from tilewright.ir.expr import PrimExpr
from tilewright.ir.types import TensorType, Type
from tilewright.support.errors import UnsupportedError

_FAR = -(1 << 62)
"""A bound below every place."""


@dataclass(frozen=True)
class HostCall:
    """A call to a host operator: values, then tensors of sizes, then attributes."""

    name: str
    args: tuple[GraphExpr, ...]
    sizes: tuple[Sequence[Size], ...] = ()
    attributes: Mapping[str, object] = field(default_factory=dict)


def is_text(value: GraphExpr) -> bool:
    """Whether a value is a tensor of texts."""
    return isinstance(value.type, TensorType) and value.type.dtype is STRING


def concerns_texts(args: Sequence[GraphExpr], attributes: Mapping[str, object]) -> bool:
    """Whether a call reads or makes texts."""
    return attributes.get("dtype") is STRING or any(is_text(arg) for arg in args)


def on_host(name: str, args: Sequence[GraphExpr], attributes: Attributes | None, result: Type) -> HostCall:
    """The host operator that does what an operator does; `result` is the type of the call."""
    given = tuple(args)
    shape = result.shape if isinstance(result, TensorType) else None
    found = {} if attributes is None else dict(zip(attributes.fields, attributes.field_values(), strict=True))
    if shape is None or not all(isinstance(dim, PrimExpr) for dim in shape):
        raise UnsupportedError(f"{name} of texts is not supported")
    dims = tuple(dim for dim in shape if dim is not None)
    sizes: tuple[Size, ...] = dims
    match name:
        case "reshape":
            return HostCall("shape.reshape", given, (sizes,), {"dims": dims})
        case "broadcast_to":
            return HostCall("shape.broadcast", given, (sizes,), {"dims": dims})
        case "tile":
            return HostCall("shape.tile", given, (_sizes(found["repeats"]),), {"dims": dims})
        case "slice":
            begin, end, strides = (_sizes(found[key]) for key in ("begin", "end", "strides"))
            ends = [_FAR if isinstance(step, int) and step < 0 and last == -1 else last
                    for last, step in zip(end, strides, strict=True)]  # fmt: skip
            axes = tuple(range(len(dims)))
            return HostCall("shape.slice", given, (begin, ends, strides), {"dims": dims, "axes": axes})
        case "transpose":
            return HostCall("text.transpose", given, (), {"axes": found["axes"]})
        case "take":
            return HostCall("text.take", given, (), {"axis": found["axis"]})
        case "concatenate":
            axis = found["axis"]
            assert isinstance(axis, int)
            return HostCall("text.concatenate", given, (), {"axis": axis, "dims": as_dims((dims[axis],))})
        case "where":
            return HostCall("text.where", given)
        case "equal":
            return HostCall("text.equal", given)
        case "cast" if is_text(given[0]):
            return HostCall("text.to_numbers", given, (), {"dtype": found["dtype"]})
        case "cast":
            source = given[0].type
            assert isinstance(source, TensorType)
            return HostCall("text.from_numbers", given, (), {"dtype": source.dtype})
    raise UnsupportedError(f"{name} of texts is not supported")


def _sizes(value: object) -> tuple[Size, ...]:
    assert isinstance(value, tuple)
    return value
