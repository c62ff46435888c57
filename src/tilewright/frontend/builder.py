"""Building graphs whose types are known at once: what importers write their conversions with.

Every value gets its type when it is made, and what depends on constants only is computed right away (so the shape
arithmetic that exporters leave in models disappears while it is imported). Big results are left to the graph passes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tilewright.graph import ops as _ops
from tilewright.graph.expr import Call, Constant, GraphExpr, Tuple, TupleGet, constant
from tilewright.graph.op import Array, Operator, call
from tilewright.ir.dtype import DataType
from tilewright.ir.types import TensorType, TupleType, Type
from tilewright.support.errors import CompilerBug, UnsupportedError, UserError
from tilewright.support.span import Span

FOLD_LIMIT = 1 << 16
"""The most elements of a result that is computed while importing."""
LARGEST_MADE = 1 << 26
"""The most elements of a constant that an importer makes itself."""
LARGEST_TENSOR = 1 << 60
"""The most elements of any tensor."""
_VIEWS = frozenset({"reshape", "slice", "split"})
"""Operators whose results are no larger than their inputs: constants go through them whatever their size."""

assert _ops.__all__  # imported so that every operator is registered


def shape_of(value: GraphExpr) -> tuple[int, ...]:
    """The constant shape of a tensor."""
    found = value.type
    if not isinstance(found, TensorType):
        raise UserError(f"a tensor is needed here, not {found!r}")
    shape = found.static_shape
    if shape is None:
        raise UserError("a tensor of constant shape is needed here")
    return shape


def dtype_of(value: GraphExpr) -> DataType:
    """The data type of a tensor."""
    if not isinstance(value.type, TensorType):
        raise UserError(f"a tensor is needed here, not {value.type!r}")
    return value.type.dtype


def rank_of(value: GraphExpr) -> int:
    """The number of dimensions of a tensor."""
    return len(shape_of(value))


def is_plain(dtype: DataType) -> bool:
    """Whether numpy computes with the storage of a data type directly."""
    return dtype.name in ("bool", "float16", "float32", "float64") or (dtype.is_integer and dtype.bits >= 8)


def elements(kind: Type) -> int:
    """The number of elements of a value of a type (of all its items)."""
    if isinstance(kind, TupleType):
        return sum(elements(item) for item in kind.items)
    if isinstance(kind, TensorType) and kind.static_shape is not None:
        return math.prod(kind.static_shape)
    return FOLD_LIMIT + 1


def check_size(kind: Type) -> None:
    """Refuse tensors so large that positions in them are no 64-bit numbers."""
    if elements(kind) > LARGEST_TENSOR:
        raise UserError(f"a tensor of {elements(kind)} elements is too large")


class Builder:
    """Makes typed graph nodes that carry a span."""

    def __init__(self) -> None:
        self.span: Span | None = None
        """Put on every node made from now on."""

    def constant(self, value: npt.ArrayLike, dtype: DataType | str | None = None) -> Constant:
        """A constant tensor."""
        made = constant(value, dtype)
        made.span = self.span
        return made

    def constant_like(self, value: float | int, other: GraphExpr) -> GraphExpr:
        """A scalar constant of the data type of another value."""
        dtype = dtype_of(other)
        if dtype.is_integer and not (float(value).is_integer() and dtype.min_value() <= value <= dtype.max_value()):
            raise UserError(f"a value of type {dtype} cannot hold {value}: a floating-point type is needed here")
        if is_plain(dtype):
            return self.constant(value, dtype)
        return self.call("cast", self.constant(value, "float32"), dtype=dtype)

    def filled(self, value: float | int, shape: Sequence[int], dtype: DataType) -> GraphExpr:
        """A tensor of one value."""
        scalar: GraphExpr = self.constant(value, dtype if is_plain(dtype) else "float32")
        return self.broadcast_to(self.cast(scalar, dtype), shape)

    def count(self, size: int, step: int = 1) -> Array:
        """0, step, 2 * step ... for a table that becomes a constant; refuses tables that are too large."""
        if size > LARGEST_MADE:
            raise UnsupportedError(f"a table of {size} entries is needed here, which is too large")
        return np.arange(size, dtype=np.int64) * step

    def call(self, name: str, *args: GraphExpr, **attributes: object) -> GraphExpr:
        """Apply an operator; the result is a constant if all inputs are and it is small."""
        made = call(name, *args, span=self.span, **attributes)
        operator = made.callee
        assert isinstance(operator, Operator)
        types: list[Type] = []
        for arg in args:
            if arg.type is None:
                raise CompilerBug(f"an input of {name} has no type")
            types.append(arg.type)
        made.type = operator.infer(types, made.attributes)
        check_size(made.type)
        if all(isinstance(arg, Constant) and is_plain(arg.dtype) for arg in args) and (
            name in _VIEWS or elements(made.type) <= FOLD_LIMIT
        ):
            return self._fold(made, operator, made.type)
        return made

    def _fold(self, made: Call, operator: Operator, kind: Type) -> GraphExpr:
        kinds = kind.items if isinstance(kind, TupleType) else (kind,)
        dtypes = [item.dtype for item in kinds if isinstance(item, TensorType)]
        if not all(is_plain(dtype) for dtype in dtypes):
            return made
        arrays = [arg.data for arg in made.args if isinstance(arg, Constant)]
        result = operator.reference(list(arrays), made.attributes)
        if isinstance(result, tuple):
            items = [self.constant(np.asarray(item), dtype) for item, dtype in zip(result, dtypes, strict=True)]
            folded = Tuple(tuple(items))
            folded.type, folded.span = kind, self.span
            return folded
        return self.constant(np.asarray(result), dtypes[0])

    def item(self, value: GraphExpr, index: int) -> GraphExpr:
        """One item of a tuple."""
        if isinstance(value, Tuple):
            return value.items[index]
        if not isinstance(value.type, TupleType):
            raise CompilerBug(f"an item of {value.type!r}")
        made = TupleGet(value, index)
        made.type, made.span = value.type.items[index], self.span
        return made

    # Sugar: shapes are constant here, so the forms that frameworks know are all a reshape or a slice.

    def reshape(self, value: GraphExpr, shape: Sequence[int]) -> GraphExpr:
        """The same elements under another shape (itself if it has that shape)."""
        wanted = tuple(int(dim) for dim in shape)
        return value if shape_of(value) == wanted else self.call("reshape", value, shape=wanted)

    def expand_dims(self, value: GraphExpr, axes: Sequence[int]) -> GraphExpr:
        """New dimensions of 1 at places counted in the result."""
        shape = list(shape_of(value))
        for axis in sorted(axes):
            shape.insert(axis, 1)
        return self.reshape(value, shape)

    def transpose(self, value: GraphExpr, axes: Sequence[int]) -> GraphExpr:
        """Dimensions in another order (itself if the order is the same)."""
        order = tuple(int(axis) for axis in axes)
        return value if order == tuple(range(rank_of(value))) else self.call("transpose", value, axes=order)

    def cast(self, value: GraphExpr, dtype: DataType | str) -> GraphExpr:
        """Converted to a data type (itself if it has that type)."""
        wanted = DataType.of(dtype)
        return value if dtype_of(value) is wanted else self.call("cast", value, dtype=wanted)

    def broadcast_to(self, value: GraphExpr, shape: Sequence[int]) -> GraphExpr:
        """Repeated to fill a shape (itself if it has that shape)."""
        wanted = tuple(int(dim) for dim in shape)
        return value if shape_of(value) == wanted else self.call("broadcast_to", value, shape=wanted)

    def slice_axis(self, value: GraphExpr, axis: int, begin: int, end: int) -> GraphExpr:
        """Elements begin .. end-1 along one axis."""
        shape = shape_of(value)
        if begin == 0 and end == shape[axis]:
            return value
        starts, ends = [0] * len(shape), list(shape)
        starts[axis], ends[axis] = begin, end
        return self.call("slice", value, begin=tuple(starts), end=tuple(ends), strides=(1,) * len(shape))

    def concatenate(self, values: Sequence[GraphExpr], axis: int) -> GraphExpr:
        """Values one after the other along an axis."""
        return values[0] if len(values) == 1 else self.call("concatenate", *values, axis=axis)

    def tuple(self, items: Sequence[GraphExpr]) -> GraphExpr:
        """A tuple; a single value stays itself."""
        if len(items) == 1:
            return items[0]
        made = Tuple(tuple(items))
        kinds: list[Type] = []
        for item in items:
            if item.type is None:
                raise CompilerBug("an item of a tuple has no type")
            kinds.append(item.type)
        made.type, made.span = TupleType(tuple(kinds)), self.span
        return made


def evaluate(value: GraphExpr) -> Array | None:
    """The value of an expression that depends on constants only, whatever its size; None if it depends on inputs."""
    done: dict[int, Array | tuple[Array, ...] | None] = {}
    stack: list[tuple[GraphExpr, bool]] = [(value, False)]
    while stack:
        node, ready = stack.pop()
        if id(node) in done:
            continue
        if isinstance(node, Constant):
            done[id(node)] = node.data if is_plain(node.dtype) else None
        elif isinstance(node, (Call, Tuple, TupleGet)):
            below = _operands(node)
            if not ready:
                stack.append((node, True))
                stack.extend((item, False) for item in below)
            else:
                done[id(node)] = _apply(node, [done[id(item)] for item in below])
        else:
            done[id(node)] = None
    result = done[id(value)]
    return result if isinstance(result, np.ndarray) else None


def _operands(node: GraphExpr) -> tuple[GraphExpr, ...]:
    match node:
        case Call():
            return node.args
        case Tuple():
            return node.items
        case TupleGet():
            return (node.value,)
    return ()


def _apply(node: GraphExpr, values: list[Array | tuple[Array, ...] | None]) -> Array | tuple[Array, ...] | None:
    if isinstance(node, TupleGet):
        whole = values[0]
        return whole[node.index] if isinstance(whole, tuple) else None
    arrays = [item for item in values if isinstance(item, np.ndarray)]
    if len(arrays) != len(values):
        return None
    if isinstance(node, Tuple):
        return tuple(arrays)
    if isinstance(node, Call) and isinstance(node.callee, Operator):
        return node.callee.reference(arrays, node.attributes)
    return None
