"""What converters compute with: operators on values and plain numbers, tensors without elements, parts of tensors.

A number takes the type of the tensors it meets; what that type is where tensors differ is a rule of each framework
(`common_type`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import Builder, dtype_of, is_plain, rank_of, sizes_of
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size, as_size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import size_text, sizes_text
from tilewright.ir.dtype import BOOL, FLOAT32, INT64, DataType
from tilewright.ir.expr import PrimExpr
from tilewright.ir.types import TensorType
from tilewright.support.errors import UnsupportedError, UserError

Number = int | float | bool
Operand = GraphExpr | Number | PrimExpr
"""A tensor, a number, or a size that varies (which counts as a whole number)."""


class ArithmeticBuilder(Builder):
    """A builder whose operators take numbers beside tensors."""

    def common_type(self, values: Sequence[Operand]) -> DataType:
        """The type that operands are computed in: that of their first tensor."""
        for value in values:
            if isinstance(value, GraphExpr):
                return dtype_of(value)
        raise UserError("an operator of numbers alone")

    # Empty tensors are constants: whatever is computed from them is known now, and code never sees them.

    def call(self, name: str, *args: GraphExpr, **attributes: object) -> GraphExpr:
        """Apply an operator; empty results become constants, empty parts of a concatenation vanish."""
        if name == "concatenate":
            axis = attributes["axis"]
            assert isinstance(axis, int)
            filled = [arg for arg in args if sizes_of(arg)[axis] != 0]
            if filled and len(filled) < len(args):
                return self.concatenate(filled, axis)
        made = super().call(name, *args, **attributes)
        kind = made.type
        if isinstance(kind, TensorType) and kind.static_shape is not None and 0 in kind.static_shape:
            return self.empty(kind.static_shape, kind.dtype)
        return made

    def empty(self, shape: Sequence[Size], dtype: DataType) -> GraphExpr:
        """A tensor without elements."""
        numbers = dimensions.constants(shape)
        if numbers is None:
            raise UnsupportedError("an empty tensor whose other dimensions vary")
        return self.constant(np.empty(numbers, dtype.numpy()), dtype)

    # Scalars and data types

    def scalar(self, value: Number | PrimExpr, dtype: DataType) -> GraphExpr:
        """A Python number as a constant of a data type (what does not fit wraps), or a size as a value."""
        if isinstance(value, PrimExpr):
            return self.cast(self.reshape(self.shape_tensor([as_size(value)]), ()), dtype)
        if dtype.is_bool:
            return self.constant(np.asarray(bool(value)), dtype)
        if dtype.is_integer:
            wrapped = int(value) & ((1 << dtype.bits) - 1)
            if dtype.is_int and wrapped >> (dtype.bits - 1):
                wrapped -= 1 << dtype.bits
            return self.constant(np.asarray(wrapped, dtype.numpy()), dtype)
        if is_plain(dtype):
            with np.errstate(over="ignore"):
                return self.constant(np.asarray(float(value)).astype(dtype.numpy()), dtype)
        return self.call("cast", self.constant(np.float32(value), FLOAT32), dtype=dtype)

    def operand(self, value: Operand, dtype: DataType) -> GraphExpr:
        """A tensor or number as a value of a data type."""
        return self.cast(value, dtype) if isinstance(value, GraphExpr) else self.scalar(value, dtype)

    def operands(self, *values: Operand, dtype: DataType | None = None) -> list[GraphExpr]:
        """Values as tensors of one type: the one given, or the one they are computed in."""
        common = self.common_type(values) if dtype is None else dtype
        return [self.operand(value, common) for value in values]

    def binary(self, name: str, a: Operand, b: Operand) -> GraphExpr:
        """An operator of two operands, which are brought to one type first."""
        return self.call(name, *self.operands(a, b))

    def add(self, a: Operand, b: Operand) -> GraphExpr:
        """a + b."""
        return self.binary("add", a, b)

    def subtract(self, a: Operand, b: Operand) -> GraphExpr:
        """a - b."""
        return self.binary("subtract", a, b)

    def multiply(self, a: Operand, b: Operand) -> GraphExpr:
        """a * b."""
        return self.binary("multiply", a, b)

    def divide(self, a: Operand, b: Operand) -> GraphExpr:
        """a / b."""
        return self.binary("divide", a, b)

    def where(self, condition: GraphExpr, a: Operand, b: Operand) -> GraphExpr:
        """a where a condition holds, else b."""
        return self.call("where", condition, *self.operands(a, b))

    def compare(self, name: str, a: Operand, b: Operand) -> GraphExpr:
        """A comparison in the common type; truth values compare as bytes."""
        first, second = self.operands(a, b)
        if dtype_of(first).is_bool and name not in ("equal", "not_equal"):
            first, second = self.cast(first, "int8"), self.cast(second, "int8")
        return self.call(name, first, second)

    def truth(self, value: GraphExpr) -> GraphExpr:
        """Whether elements are not zero."""
        return self.cast(value, BOOL)

    def chain(self, value: GraphExpr, *names: str) -> GraphExpr:
        """Several operators of one input, one after the other."""
        for name in names:
            value = self.call(name, value)
        return value

    # Shapes

    def size(self, value: Size) -> Operand:
        """A size as an operand."""
        return value if isinstance(value, int) else self.scalar(value, INT64)

    def axis(self, axis: int, rank: int) -> int:
        """An axis counted from the front; a scalar has one."""
        limit = max(rank, 1)
        if not -limit <= axis < limit:
            raise UserError(f"axis {axis} is out of range for {rank} dimensions")
        return axis % limit

    def axes(self, axes: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
        """Axes counted from the front; none given (or an empty list) means all."""
        if axes is None or (not isinstance(axes, int) and len(axes) == 0):
            return tuple(range(rank))
        listed = [axes] if isinstance(axes, int) else axes
        return tuple(sorted({self.axis(axis, rank) for axis in listed})) if rank else ()

    def at_least_1d(self, value: GraphExpr) -> GraphExpr:
        """A scalar as a list of one."""
        return value if rank_of(value) else self.reshape(value, (1,))

    def flatten(self, value: GraphExpr) -> GraphExpr:
        """All elements in a row."""
        return self.reshape(value, (dimensions.product(sizes_of(value)),))

    def slice(self, value: GraphExpr, axis: int, begin: Size, end: Size, step: int = 1) -> GraphExpr:
        """Elements begin, begin + step ... before end along an axis."""
        if step == 1:
            return self.slice_axis(value, axis, begin, end)
        shape = sizes_of(value)
        starts: list[Size] = [0] * len(shape)
        ends, steps = list(shape), [1] * len(shape)
        starts[axis], ends[axis], steps[axis] = begin, end, step
        return self.call("slice", value, begin=tuple(starts), end=tuple(ends), strides=tuple(steps))

    def select(self, value: GraphExpr, axis: int, index: Size) -> GraphExpr:
        """One slice along an axis, which vanishes."""
        shape = sizes_of(value)
        part = self.slice_axis(value, axis, index, dimensions.add(index, 1))
        return self.reshape(part, shape[:axis] + shape[axis + 1 :])

    def equal_parts(self, value: GraphExpr, axis: int, count: int) -> list[GraphExpr]:
        """So many consecutive parts of one size along an axis."""
        total = sizes_of(value)[axis]
        if count < 1 or (isinstance(total, int) and total % count):
            raise UserError(f"a dimension of {size_text(total)} in {count} equal parts")
        part = dimensions.floor_divide(total, count)
        return self.parts(value, axis, [part] * count)

    def parts(self, value: GraphExpr, axis: int, sizes: Sequence[Size]) -> list[GraphExpr]:
        """Consecutive parts of sizes along an axis; one may be -1, which is what the others leave."""
        total, listed = sizes_of(value)[axis], list(sizes)
        known = [size for size in listed if not isinstance(size, int) or size >= 0]
        if len(known) < len(listed):
            rest = total
            for size in known:
                rest = dimensions.subtract(rest, size)
            listed = [rest if isinstance(size, int) and size < 0 else size for size in listed]
        results: list[GraphExpr] = []
        start: Size = 0
        for size in listed:
            end = dimensions.add(start, size)
            results.append(self.slice_axis(value, axis, start, end))
            start = end
        if dimensions.different(start, total) or len(known) < len(listed) - 1:
            raise UserError(f"parts of {sizes_text(tuple(sizes))} of a dimension of {size_text(total)}")
        return results

    def stack(self, values: Sequence[GraphExpr], axis: int) -> GraphExpr:
        """Values next to each other along a new axis."""
        return self.concatenate([self.expand_dims(value, (axis,)) for value in values], axis)

    def flip(self, value: GraphExpr, axes: Sequence[int]) -> GraphExpr:
        """The order reversed along axes."""
        for axis in axes:
            size = sizes_of(value)[axis]
            if not isinstance(size, int):
                places = self.arange(size, start=dimensions.subtract(size, 1), step=-1)
                value = self.call("take", value, places, axis=axis)
            elif size > 1:
                value = self.call("take", value, self.constant(self.count(size)[::-1].copy(), INT64), axis=axis)
        return value

    def positions(self, shape: Sequence[Size], axis: int) -> GraphExpr:
        """0, 1, 2 ... along one axis of a shape, 1 along the others: it broadcasts."""
        dims: list[Size] = [1] * len(shape)
        dims[axis] = shape[axis]
        return self.reshape(self.arange(shape[axis]), dims)

    def reduce(self, name: str, value: GraphExpr, axes: Sequence[int], keepdims: bool = False) -> GraphExpr:
        """A reduction (itself if there are no axes)."""
        return self.call(name, value, axes=tuple(axes), keepdims=keepdims) if axes else value
