"""Types of graph values: tensors with static, symbolic or unknown dimensions, tuples, sequences, functions, algebraic
data."""

from __future__ import annotations

from typing import ClassVar

from tilewright.ir.dtype import DataType
from tilewright.ir.expr import IntImm, PrimExpr
from tilewright.ir.node import Node, node
from tilewright.support.errors import UserError


class Type(Node):
    """Base of all types. Types are interned: equal types are the same object."""

    __slots__ = ()


@node(interned=True)
class TensorType(Type):
    """A tensor: `shape` is a tuple of dimensions (constant or symbolic scalar expressions) or None if the rank is
    unknown; a dimension that is None is unknown ("any")."""

    shape: tuple[PrimExpr | None, ...] | None
    dtype: DataType

    def _post_init(self) -> None:
        for dim in self.shape or ():
            if dim is not None and not isinstance(dim, PrimExpr):
                raise UserError(f"a dimension of a tensor type is an expression, not {dim!r}", hint="use tensor_type()")

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape as integers, or None if any dimension is not a constant."""
        dims = [dim.value for dim in self.shape or () if isinstance(dim, IntImm)]
        return tuple(dims) if self.shape is not None and len(dims) == len(self.shape) else None

    @property
    def rank(self) -> int | None:
        """The number of dimensions, or None if unknown."""
        return None if self.shape is None else len(self.shape)


@node(interned=True)
class TupleType(Type):
    """A tuple of values."""

    items: tuple[Type, ...]


@node(interned=True)
class SequenceType(Type):
    """A list of values whose number only a run knows. Values are Python lists; only host functions touch them."""

    item: Type


@node(interned=True)
class OptionalType(Type):
    """A value or nothing (None). Only host functions touch it."""

    item: Type


@node(interned=True)
class FunctionType(Type):
    """A function from parameter types to a result type, possibly polymorphic in type variables."""

    parameters: tuple[Type, ...]
    result: Type
    type_parameters: tuple[TypeVariable, ...] = ()


@node()
class TypeVariable(Type):
    """A type that stands for any type: unique by identity."""

    structural_unique: ClassVar[bool] = True
    structural_ignored: ClassVar[tuple[str, ...]] = ("name",)
    name: str


@node(interned=True)
class DataTypeName(Type):
    """The name of an algebraic data type defined in the module."""

    name: str


@node(interned=True)
class DataTypeCall(Type):
    """An algebraic data type applied to type arguments, e.g. List[Tensor]."""

    name: DataTypeName
    arguments: tuple[Type, ...] = ()


def tensor_type(shape: tuple[int | PrimExpr | None, ...] | None, dtype: DataType | str) -> TensorType:
    """A tensor type from Python integers and expressions."""
    dims = None
    if shape is not None:
        dims = tuple(IntImm(int(d)) if isinstance(d, int) else d for d in shape)
    return TensorType(dims, DataType.of(dtype))
