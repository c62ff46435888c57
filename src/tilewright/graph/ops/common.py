"""What the type rules of operators share: checks of ranks and data types, arithmetic and agreement of dimensions.

A dimension is a scalar expression (constant or symbolic) or None (unknown); a shape of None is of unknown rank.
Rules prove what they can and leave the rest to run time: only what certainly does not fit is an error.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size, as_dim, as_size
from tilewright.graph.ir.op import Types
from tilewright.graph.ir.unify import show_dimension
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import IntImm, PrimExpr
from tilewright.ir.types import TensorType, Type
from tilewright.support.errors import UserError

Dim = PrimExpr | None
Shape = tuple[Dim, ...]
"""A dimension that is None is unknown; everything else is in the normal form of `tilewright.graph.ir.dimensions`."""


def tensor(types: Types, index: int, name: str) -> TensorType:
    """The type of an input, which must be a tensor."""
    found = types[index]
    if not isinstance(found, TensorType):
        raise UserError(f"{name} must be a tensor, not {found!r}")
    return found


def tensors(types: Types, names: Sequence[str]) -> list[TensorType]:
    """The types of all inputs, which must be tensors."""
    return [tensor(types, index, names[min(index, len(names) - 1)]) for index in range(len(types))]


def same_dtype(types: Sequence[TensorType], names: Sequence[str]) -> DataType:
    """The one data type that all inputs have."""
    for index, item in enumerate(types):
        if item.dtype is not types[0].dtype:
            first, other = names[0], names[min(index, len(names) - 1)]
            raise UserError(
                f"the data types differ: {first} is {types[0].dtype}, {other} is {item.dtype}",
                hint="cast one of them",
            )
    return types[0].dtype


def require_float(dtype: DataType, what: str = "the input") -> None:
    """Refuse anything but floats."""
    if not dtype.is_float:
        raise UserError(f"{what} must be of a floating-point type, not {dtype}", hint="cast it first")


def require_number(dtype: DataType, what: str = "the input") -> None:
    """Refuse bools."""
    if not (dtype.is_float or dtype.is_integer):
        raise UserError(f"{what} must be a number, not {dtype}", hint="cast it first")


def require_integer(dtype: DataType, what: str = "the input") -> None:
    """Refuse anything but integers."""
    if not dtype.is_integer:
        raise UserError(f"{what} must be of an integer type, not {dtype}", hint="cast it first")


def require_bool(dtype: DataType, what: str = "the input") -> None:
    """Refuse anything but truth values."""
    if not dtype.is_bool:
        raise UserError(f"{what} must be bool, not {dtype}", hint="compare it, or cast it first")


def require_rank(shape: Shape, rank: int, what: str) -> None:
    """Refuse another number of dimensions."""
    if len(shape) != rank:
        raise UserError(f"{what} must have {rank} dimensions, it is {shape_text(shape)}")


def require_axis(axis: int, rank: int) -> None:
    """Refuse an axis outside 0 .. rank-1."""
    if not 0 <= axis < rank:
        raise UserError(f"axis {axis} is out of range for {rank} dimensions", hint="axes count from 0")


def require_axes(axes: Sequence[int], rank: int) -> None:
    """Refuse axes that repeat or are out of range."""
    for axis in axes:
        require_axis(axis, rank)
    if len(set(axes)) != len(axes):
        raise UserError(f"axes {tuple(axes)} repeat")


def require_length(values: Sequence[object], count: int, what: str) -> None:
    """Refuse an attribute with another number of entries."""
    if len(values) != count:
        raise UserError(f"{what} must have {count} entries, it is {tuple(values)}")


def require_positive(values: Sequence[int], what: str) -> None:
    """Refuse entries below one."""
    if any(value < 1 for value in values):
        raise UserError(f"{what} must be positive, it is {tuple(values)}")


def require_not_negative(values: Sequence[Size], what: str) -> None:
    """Refuse entries that are certainly below zero."""
    if any(value < 0 if isinstance(value, int) else dimensions.at_least(-1, value) for value in values):
        raise UserError(f"{what} must not be negative, it is {sizes_text(values)}")


def dim_text(dim: Dim) -> str:
    """A dimension for a message: its number, its expression, or `?`."""
    if dim is None:
        return "?"
    return size_text(as_size(dim))


def size_text(size: Size) -> str:
    """A size for a message: a number, or an expression of symbols as it would be written."""
    return str(size) if isinstance(size, int) else show_dimension(size)


def sizes_text(sizes: Sequence[Size]) -> str:
    """Sizes for a message."""
    inner = ", ".join(size_text(size) for size in sizes)
    return f"({inner},)" if len(sizes) == 1 else f"({inner})"


def shape_text(shape: Shape | None) -> str:
    """A shape for a message."""
    if shape is None:
        return "of unknown rank"
    inner = ", ".join(dim_text(dim) for dim in shape)
    return f"({inner},)" if len(shape) == 1 else f"({inner})"


def constant_dim(dim: Dim) -> int | None:
    """The number of a constant dimension, else None."""
    return dim.value if isinstance(dim, IntImm) else None


def dims(values: Sequence[Size]) -> Shape:
    """Sizes as dimensions."""
    return tuple(as_dim(value) for value in values)


def agree(a: Dim, b: Dim, what: str) -> Dim:
    """The one dimension that two must be equal to; the better known one. Certainly different ones are an error."""
    if a is b or b is None:
        return a
    if a is None:
        return b
    if dimensions.different(a, b):
        raise UserError(f"{what}: {dim_text(a)} and {dim_text(b)} must be equal")
    return a if isinstance(a, IntImm) else b


def broadcast_dim(a: Dim, b: Dim) -> Dim:
    """The dimension that two broadcast to; a UserError if they cannot."""
    if a is b:
        return a
    left, right = constant_dim(a), constant_dim(b)
    if left == 1:
        return b
    if right == 1:
        return a
    if left is not None and right is not None:
        raise UserError(f"dimensions {left} and {right} do not broadcast")
    # A symbolic dimension against a constant other than 1 is that constant, or fails at run time.
    if left is not None:
        return a
    if right is not None:
        return b
    return a if a is not None and b is not None and dimensions.same(a, b) else None


def broadcast_shapes(shapes: Sequence[Shape | None]) -> Shape | None:
    """The shape that several broadcast to by numpy's rule (aligned at the last dimension)."""
    known: list[Shape] = []
    for shape in shapes:
        if shape is None:
            return None
        known.append(shape)
    rank = max((len(shape) for shape in known), default=0)
    result: list[Dim] = [IntImm(1)] * rank
    for shape in known:
        for offset in range(1, len(shape) + 1):
            try:
                result[-offset] = broadcast_dim(result[-offset], shape[-offset])
            except UserError as error:
                texts = " and ".join(shape_text(item) for item in known)
                raise UserError(f"shapes {texts} do not broadcast: {error.message}") from error
    return tuple(result)


def add(a: Dim, b: Dim | int) -> Dim:
    """a + b, unknown if either is."""
    return None if a is None or b is None else as_dim(dimensions.add(a, b))


def multiply(a: Dim, b: Dim | int) -> Dim:
    """a * b, unknown if either is."""
    return None if a is None or b is None else as_dim(dimensions.multiply(a, b))


def floor_divide(a: Dim, b: int) -> Dim:
    """a // b, unknown if a is."""
    return None if a is None else as_dim(dimensions.floor_divide(a, b))


def product(shape: Sequence[Dim]) -> Dim:
    """The number of elements, unknown if any dimension is."""
    result: Dim = IntImm(1)
    for dim in shape:
        result = multiply(result, dim)
    return result


def reduced_shape(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    """The shape after reducing axes, which stay as 1 or vanish."""
    if keepdims:
        return tuple(IntImm(1) if axis in axes else dim for axis, dim in enumerate(shape))
    return tuple(dim for axis, dim in enumerate(shape) if axis not in axes)


def window_dim(size: Dim, kernel: Dim | int, stride: int, before: int, after: int, dilation: int, what: str) -> Dim:
    """How often a dilated window fits along a padded dimension: (size + padding - extent) // stride + 1.

    That may be 0, where at most a stride is missing; more is an error, as no size is negative.
    """
    taps = kernel if isinstance(kernel, int) else constant_dim(kernel)
    if size is None or taps is None:
        return None
    reach = (taps - 1) * dilation + 1
    length = constant_dim(size)
    if length is not None and length + before + after + stride < reach:
        raise UserError(
            f"the window does not fit along the {what}: it covers {reach}, "
            f"the padded input is {length + before + after}"
        )
    return as_dim((size + (before + after - reach)) // stride + 1)


def result(shape: Shape | None, dtype: DataType) -> Type:
    """A tensor type (the name reads well at the end of a rule)."""
    return TensorType(shape, dtype)
