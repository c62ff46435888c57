"""Converters of operations that make and move elements: constants, broadcasts, slices, padding, open shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.core.complex_values import Complex
from tilewright.frontend.stablehlo.builder import StableBuilder, Tensor
from tilewright.frontend.stablehlo.program import Dense, Operation, TensorSpec
from tilewright.frontend.stablehlo.registry import converter
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import Constant, GraphExpr
from tilewright.ir.dtype import INT64
from tilewright.support.errors import UnsupportedError, UserError


@converter("constant")
def constant(b: StableBuilder, operation: Operation) -> Tensor:
    """A tensor that the program holds; one number everywhere is kept as such."""
    value = operation.attributes.get("value")
    if not isinstance(value, Dense):
        raise UserError("a constant has no value")
    if value.spec.is_complex:
        return Complex(*(_literal(b, value.spec, value.data[..., part]) for part in (0, 1)))
    return _literal(b, value.spec, value.data)


def _literal(b: StableBuilder, spec: TensorSpec, data: np.ndarray[Any, Any]) -> GraphExpr:
    if data.size > 1 and not any(data.strides):
        first = Constant(np.ascontiguousarray(data.reshape(-1)[:1]).reshape((1,) * data.ndim), spec.dtype)
        first.span = b.span
        return b.repeated(first, data.shape)
    made = Constant(np.ascontiguousarray(data).reshape(data.shape), spec.dtype)
    made.span = b.span
    return made


@converter("iota", of_complex="taken")
def iota(b: StableBuilder, operation: Operation) -> Tensor:
    """0, 1, 2 ... along one axis."""
    spec = b.result
    if None in spec.shape:
        raise UserError("iota of an open shape: dynamic_iota is needed")
    return _counted(b, [size for size in spec.shape if size is not None], b.number_of("iota_dimension"))


def _counted(b: StableBuilder, shape: Sequence[Size], axis: int) -> Tensor:
    if not 0 <= axis < len(shape):
        raise UserError(f"iota along axis {axis} of {len(shape)} dimensions")
    spec = b.result
    if 0 in shape:
        counts = b.empty(shape, spec.dtype)
    else:
        line: list[Size] = [1] * len(shape)
        line[axis] = shape[axis]
        kind = spec.dtype if spec.dtype.is_integer and spec.dtype.bits >= 32 else INT64
        counts = b.repeated(b.cast(b.reshape(b.arange(shape[axis], dtype=kind), line), spec.dtype), shape)
    if not spec.is_complex:
        return counts
    return Complex(counts, b.filled(0, shape, spec.dtype))


@converter("dynamic_iota", of_complex="taken")
def dynamic_iota(b: StableBuilder, operation: Operation, shape: GraphExpr) -> Tensor:
    """`iota` of a shape that is computed."""
    return _counted(b, b.sizes_in(shape), b.number_of("iota_dimension"))


# Shapes


@converter("broadcast_in_dim", of_complex="partwise")
def broadcast_in_dim(b: StableBuilder, operation: Operation, x: GraphExpr) -> GraphExpr:
    """Dimensions put in their places, and repeated."""
    axes = b.list_of("broadcast_dimensions")
    if b.is_wide and not axes:
        return x  # of a scalar in a region that is computed on whole tensors
    return _spread(b, x, axes, [size if size is not None else 1 for size in b.result.shape])


@converter("dynamic_broadcast_in_dim", of_complex="partwise")
def dynamic_broadcast_in_dim(b: StableBuilder, operation: Operation, x: GraphExpr, shape: GraphExpr) -> GraphExpr:
    """The same, to a shape that is computed."""
    return _spread(b, x, b.list_of("broadcast_dimensions"), b.sizes_in(shape))


def _spread(b: StableBuilder, x: GraphExpr, axes: Sequence[int], shape: Sequence[Size]) -> GraphExpr:
    if len(axes) != rank_of(x) or any(not 0 <= axis < len(shape) for axis in axes):
        raise UserError(f"{rank_of(x)} dimensions are put at {list(axes)} of {len(shape)}")
    small = b.narrow(x)
    order = sorted(range(len(axes)), key=lambda at: axes[at])
    placed = b.transpose(small, order)
    sizes: list[Size] = [1] * len(shape)
    for at in order:
        sizes[axes[at]] = sizes_of(small)[at]
    return b.repeated(b.reshape(placed, sizes), shape)


@converter("broadcast", of_complex="partwise")
def broadcast(b: StableBuilder, operation: Operation, x: GraphExpr) -> GraphExpr:
    """New dimensions in front."""
    sizes = b.list_of("broadcast_sizes")
    shape = (*sizes, *sizes_of(x))
    return _spread(b, x, range(len(sizes), len(shape)), shape)


@converter("reshape", of_complex="partwise")
def reshape(b: StableBuilder, operation: Operation, x: GraphExpr) -> GraphExpr:
    """The same elements under another shape."""
    shape = b.result.shape
    if b.is_wide and not shape:
        return x
    wanted = [size for size in shape if size is not None]
    if len(wanted) != len(shape):
        raise UserError("reshape to an open shape: dynamic_reshape is needed")
    small = b.narrow(x)
    if small is not x and dimensions.product(sizes_of(small)) == 1 and wanted:
        return b.repeated(b.reshape(small, (1,) * len(wanted)), wanted)
    return b.reshape(x, wanted)


@converter("dynamic_reshape", of_complex="partwise")
def dynamic_reshape(b: StableBuilder, operation: Operation, x: GraphExpr, shape: GraphExpr) -> GraphExpr:
    """The same elements under a shape that is computed."""
    return b.reshape(x, b.sizes_in(shape))


@converter("transpose", of_complex="partwise")
def transpose(b: StableBuilder, operation: Operation, x: GraphExpr) -> GraphExpr:
    """Dimensions in another order."""
    order = b.list_of("permutation")
    if sorted(order) != list(range(rank_of(x))):
        raise UserError(f"{order} is no order of {rank_of(x)} dimensions")
    small = b.narrow(x)
    if small is not x:
        return b.repeated(b.transpose(small, order), [sizes_of(x)[axis] for axis in order])
    return b.transpose(x, order)


@converter("reverse", of_complex="partwise")
def reverse(b: StableBuilder, operation: Operation, x: GraphExpr) -> GraphExpr:
    """The other way around along axes."""
    return b.flip(x, b.list_of("dimensions"))


@converter("slice", of_complex="partwise")
def slice_elements(b: StableBuilder, operation: Operation, x: GraphExpr) -> GraphExpr:
    """Elements from a place to another by a step."""
    shape = sizes_of(x)
    starts, ends = b.list_of("start_indices"), b.list_of("limit_indices")
    steps = b.list_of("strides", [1] * len(shape))
    return sliced(b, x, starts, ends, steps)


def sliced(
    b: StableBuilder, x: GraphExpr, starts: Sequence[Size], ends: Sequence[Size], steps: Sequence[int]
) -> GraphExpr:
    """Elements between places along every axis (itself if that is all)."""
    shape = sizes_of(x)
    if not len(starts) == len(ends) == len(steps) == len(shape):
        raise UserError(f"bounds of {len(starts)} dimensions for a tensor of {len(shape)}")
    if all(step == 1 for step in steps) and not any(starts) and all(map(dimensions.same, ends, shape)):
        return x
    return b.call("slice", x, begin=tuple(starts), end=tuple(ends), strides=tuple(steps))


@converter("real_dynamic_slice", of_complex="partwise")
def real_dynamic_slice(
    b: StableBuilder, operation: Operation, x: GraphExpr, starts: GraphExpr, ends: GraphExpr, steps: GraphExpr
) -> GraphExpr:
    """A slice between places that are computed from sizes."""
    strides = [step for step in b.sizes_in(steps) if isinstance(step, int)]
    if len(strides) != rank_of(x):
        raise UnsupportedError("a slice whose steps are not known", hint="use steps that are numbers")
    return sliced(b, x, b.sizes_in(starts), b.sizes_in(ends), strides)


@converter("concatenate", of_complex="taken")
def concatenate(b: StableBuilder, operation: Operation, *parts: Tensor) -> Tensor:
    """One after the other along an axis."""
    axis = b.number_of("dimension")
    if isinstance(parts[0], Complex):
        pairs = [part.parts for part in parts if isinstance(part, Complex)]
        return Complex(*(b.concatenate(list(column), axis) for column in zip(*pairs, strict=True)))
    return b.concatenate([part for part in parts if isinstance(part, GraphExpr)], axis)


# Padding


@converter("pad", of_complex="partwise")
def pad(b: StableBuilder, operation: Operation, x: GraphExpr, value: GraphExpr) -> GraphExpr:
    """Elements added around and between; negative numbers take away."""
    low, high = b.list_of("edge_padding_low"), b.list_of("edge_padding_high")
    return padded(b, x, value, low, high, b.list_of("interior_padding", [0] * len(low)))


@converter("dynamic_pad", of_complex="partwise")
def dynamic_pad(
    b: StableBuilder,
    operation: Operation,
    x: GraphExpr,
    value: GraphExpr,
    low: GraphExpr,
    high: GraphExpr,
    interior: GraphExpr,
) -> GraphExpr:
    """Padding by amounts that are computed from sizes."""
    between = [size for size in b.sizes_in(interior) if isinstance(size, int)]
    if len(between) != rank_of(x):
        raise UnsupportedError("padding between elements by an open amount", hint="use numbers")
    return padded(b, x, value, b.sizes_in(low), b.sizes_in(high), between)


def padded(
    b: StableBuilder,
    x: GraphExpr,
    value: GraphExpr,
    low: Sequence[Size],
    high: Sequence[Size],
    interior: Sequence[int],
) -> GraphExpr:
    """A tensor with elements of a value around and between its own."""
    if not len(low) == len(high) == len(interior) == rank_of(x):
        raise UserError(f"padding of {len(low)} dimensions for a tensor of {rank_of(x)}")
    if any(between < 0 for between in interior):
        raise UserError("negative padding between elements")
    for axis, between in enumerate(interior):
        x = spaced(b, x, axis, between + 1, value)
    starts = [_cut(amount) for amount in low]
    ends = [dimensions.subtract(size, _cut(amount)) for size, amount in zip(sizes_of(x), high, strict=True)]
    before, after = ([_added(amount) for amount in side] for side in (low, high))
    # Cutting off comes first, unless nothing would be left of which there is something to keep.
    if any(
        isinstance(end, int) and isinstance(start, int) and end < start for start, end in zip(starts, ends, strict=True)
    ):
        return _cut_after(b, x, value, low, high)
    x = sliced(b, x, starts, ends, [1] * len(starts))
    return _surrounded(b, x, value, before, after)


def _cut(amount: Size) -> Size:
    return max(0, -amount) if isinstance(amount, int) else 0


def _added(amount: Size) -> Size:
    return max(0, amount) if isinstance(amount, int) else amount


def _cut_after(
    b: StableBuilder, x: GraphExpr, value: GraphExpr, low: Sequence[Size], high: Sequence[Size]
) -> GraphExpr:
    """Padded first, then cut: where one side takes more than there is."""
    x = _surrounded(b, x, value, [_added(amount) for amount in low], [_added(amount) for amount in high])
    starts = [_cut(amount) for amount in low]
    ends = [dimensions.subtract(size, _cut(amount)) for size, amount in zip(sizes_of(x), high, strict=True)]
    return sliced(b, x, starts, ends, [1] * len(starts))


def _surrounded(
    b: StableBuilder, x: GraphExpr, value: GraphExpr, before: Sequence[Size], after: Sequence[Size]
) -> GraphExpr:
    if not any(before) and not any(after):
        return x
    if 0 in sizes_of(x):
        shape = [
            dimensions.add(size, dimensions.add(p, q)) for size, p, q in zip(sizes_of(x), before, after, strict=True)
        ]
        return b.repeated(b.reshape(value, (1,) * len(shape)), shape) if 0 not in shape else b.empty(shape, dtype_of(x))
    number = _plain_number(b, value, x)
    if number is not None:
        return b.call("pad", x, before=tuple(before), after=tuple(after), mode="constant", value=number)
    for axis, amounts in enumerate(zip(before, after, strict=True)):
        parts = [_border(b, x, value, axis, amount) for amount in amounts]
        x = b.concatenate([*parts[0], x, *parts[1]], axis)
    return x


def _border(b: StableBuilder, x: GraphExpr, value: GraphExpr, axis: int, amount: Size) -> list[GraphExpr]:
    """So many elements of a value beside a tensor along an axis."""
    line = list(sizes_of(x))
    line[axis] = amount
    return [] if amount == 0 else [b.broadcast_to(b.reshape(value, (1,) * len(line)), line)]


def _plain_number(b: StableBuilder, value: GraphExpr, x: GraphExpr) -> float | None:
    """A padding value that a float holds exactly."""
    small = b.narrow(value)
    if not isinstance(small, Constant) or small.data.size != 1 or dtype_of(x).is_bool:
        return None
    if dtype_of(x).name not in ("float32", "float64", "float16") and not dtype_of(x).is_integer:
        return None
    item = small.data.reshape(-1)[0]
    return float(item) if float(item) == item and abs(float(item)) < 2**53 else None


def spaced(b: StableBuilder, x: GraphExpr, axis: int, step: int, value: GraphExpr) -> GraphExpr:
    """Elements that lie `step` apart along an axis, with a value between them."""
    length = sizes_of(x)[axis]
    if step == 1 or length == 0 or length == 1:
        return x
    shape = list(sizes_of(x))
    apart = b.expand_dims(x, (axis + 1,))
    after: list[Size] = [0] * rank_of(apart)
    after[axis + 1] = step - 1
    wide = _surrounded(b, apart, value, [0] * rank_of(apart), after)
    shape[axis] = dimensions.multiply(length, step)
    last = dimensions.add(dimensions.multiply(dimensions.subtract(length, 1), step), 1)
    return b.slice_axis(b.reshape(wide, shape), axis, 0, last)


# Sizes


@converter("get_dimension_size", of_complex="taken")
def dimension_size(b: StableBuilder, operation: Operation, x: Tensor) -> GraphExpr:
    """One dimension as a number."""
    part = x.real if isinstance(x, Complex) else x
    size = sizes_of(part)[b.number_of("dimension")]
    return b.cast(b.reshape(b.shape_tensor([size]), ()), b.result_dtype)


# Tuples and tokens


@converter("tuple", of_complex="taken")
def make_tuple(b: StableBuilder, operation: Operation, *items: Any) -> Any:
    """Several values as one."""
    return tuple(items)


@converter("get_tuple_element", of_complex="taken")
def tuple_item(b: StableBuilder, operation: Operation, value: Any) -> Any:
    """One of several values."""
    index = b.number_of("index")
    if not isinstance(value, tuple) or not 0 <= index < len(value):
        raise UserError(f"there is no item {index}")
    return value[index]


@converter("create_token", "after_all", of_complex="taken")
def token(b: StableBuilder, operation: Operation, *_: Any) -> Any:
    """What orders effects, of which there are none."""
    return None
