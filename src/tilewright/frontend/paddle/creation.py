"""Converters of operators that make tensors: constants, ranges, shapes, types, codes of classes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.frontend.core.builder import dtype_of, evaluate, rank_of, sizes_of
from tilewright.frontend.paddle.context import NodeContext
from tilewright.frontend.paddle.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, INT32, INT64, DataType
from tilewright.support.errors import UnsupportedError, UserError

_HELD = {
    "float32": "fp32_values",
    "float64": "fp64_values",
    "int32": "int32_values",
    "int64": "int64_values",
    "int8": "int8_values",
    "bool": "bool_values",
}
"""Attributes that hold the numbers of a constant, by their type."""


def _filled(node: NodeContext, shape: GraphExpr, value: GraphExpr) -> GraphExpr:
    """A value repeated to a shape, which may be data."""
    value = node.builder.reshape(value, ())
    known = evaluate(shape)
    if known is not None:
        return node.builder.broadcast_to(value, tuple(int(size) for size in known.ravel()))
    return node.onnx("Expand", value, shape)


@converter("fill_constant", "full", "empty", inputs="ValueTensor ShapeTensor ShapeTensorList")
def fill_constant(node: NodeContext) -> GraphExpr:
    """A tensor of one value."""
    shape = node.needed_tensor("its shape", (2, 1), "shape")
    return _filled(node, shape, _value(node, 0, node.dtype("dtype", default=FLOAT32)))


def _value(node: NodeContext, slot: int, to: DataType) -> GraphExpr:
    """The number that a tensor is filled with: an input, a text, or an attribute."""
    if node.has_input(slot):
        return node.builder.cast(node.input(slot), to)
    text = node.attribute("str_value")
    value: Any = text if text else node.attribute("value", default=0.0)
    if isinstance(value, tuple):
        value = value[0] if value else 0.0
    try:
        number = int(value) if isinstance(value, str) and to.is_integer and "." not in value else float(value)
    except (ValueError, OverflowError) as error:
        raise UserError(f"{value!r} is no number") from error
    return node.builder.scalar(number, to)


@converter("full_with_tensor", inputs="Value Shape")
def full_with_tensor(node: NodeContext) -> GraphExpr:
    """A tensor of one value, with a shape that may be data."""
    shape = node.needed_tensor("its shape", (1,), "shape")
    return _filled(node, shape, _value(node, 0, node.dtype("dtype", default=FLOAT32)))


@converter("full_int_array")
def full_int_array(node: NodeContext) -> GraphExpr:
    """A list of whole numbers."""
    values = np.array(node.ints("value", default=()), np.int64)
    return node.builder.cast(node.builder.constant(values, INT64), node.dtype("dtype", default=INT64))


@converter("fill_constant_batch_size_like", "full_batch_size_like", inputs="Input Value")
def like_a_batch(node: NodeContext) -> GraphExpr:
    """A tensor of one value, a dimension of which is that of another tensor."""
    b, to = node.builder, node.dtype("dtype", default=FLOAT32)
    sizes = sizes_of(node.input(0))
    place, source = node.integer("output_dim_idx", default=0), node.integer("input_dim_idx", default=0)
    result = [sizes[source] if at == place else size for at, size in enumerate(node.ints("shape"))]
    return b.broadcast_to(b.reshape(_value(node, 1, to), ()), result)


@converter("fill_any_like", "full_like", "fill_zeros_like", "zeros_like", "ones_like", inputs="X Value")
def like(node: NodeContext) -> GraphExpr:
    """A tensor of one value in the shape of another."""
    b, x = node.builder, node.input(0)
    to = node.dtype("dtype", default=dtype_of(x))
    number = {"fill_zeros_like": 0.0, "zeros_like": 0.0, "ones_like": 1.0}.get(node.node.kind)
    value = _value(node, 1, to) if number is None else b.scalar(number, to)
    return b.broadcast_to(b.reshape(value, ()), sizes_of(x))


@converter("assign_value")
def assign_value(node: NodeContext) -> GraphExpr:
    """A constant."""
    to, shape = node.dtype("dtype"), node.ints("shape")
    values = node.attribute("values", _HELD.get(to.name, ""), default=())
    if not values:
        values = next((item for name in _HELD.values() if (item := node.attribute(name))), ())
    stored = np.array([item if isinstance(item, (int, float)) else float(item) for item in values])
    return node.builder.constant(stored.reshape(shape).astype(to.numpy()), to)


@converter("range", "arange", inputs="Start End Step")
def arange(node: NodeContext) -> GraphExpr:
    """Numbers from a start by a step up to an end."""
    b = node.builder
    to = node.dtype("dtype", default=dtype_of(node.input(0)))
    bounds = [b.reshape(b.cast(node.input(at), to), ()) for at in range(3)]
    return node.onnx("Range", *bounds)


@converter("linspace", inputs="Start Stop Num")
def linspace(node: NodeContext) -> GraphExpr:
    """So many numbers from one to another."""
    start, stop, count = (node.constant(at, "a bound").ravel()[0] for at in range(3))
    to = node.dtype("dtype", default=FLOAT32)
    return node.builder.constant(np.linspace(float(start), float(stop), int(count)).astype(to.numpy()), to)


@converter("shape", "shape64", inputs="Input")
def shape(node: NodeContext) -> GraphExpr:
    """The sizes of a tensor."""
    sizes = node.builder.shape_tensor(sizes_of(node.input(0)))
    return sizes if node.node.kind == "shape64" else node.builder.cast(sizes, INT32)


@converter("cast")
def cast(node: NodeContext) -> GraphExpr:
    """Another data type."""
    return node.builder.cast(node.input(0), node.dtype("out_dtype", "dtype"))


@converter("one_hot_v2", "one_hot", inputs="X depth_tensor")
def one_hot(node: NodeContext) -> GraphExpr:
    """1 at the place that each number names along a new last axis, else 0."""
    b, x = node.builder, node.input(0)
    depth = node.whole("how many classes", (1,), "depth", "num_classes")
    if node.node.kind == "one_hot" and isinstance(node.node.inputs, dict) and sizes_of(x)[-1:] == (1,):
        x = b.reshape(x, sizes_of(x)[:-1])
    places = b.reshape(b.arange(depth), (1,) * rank_of(x) + (depth,))
    return b.cast(b.call("equal", b.expand_dims(b.cast(x, INT64), (rank_of(x),)), places), FLOAT32)


@converter("eye", inputs="")
def eye(node: NodeContext) -> GraphExpr:
    """The unit matrix."""
    b, to = node.builder, node.dtype("dtype", default=FLOAT32)
    rows = node.whole("its rows", (0,), "num_rows")
    columns = node.whole("its columns", (1,), "num_columns", default=-1)
    columns = rows if columns < 0 else columns
    down = b.reshape(b.arange(rows), (rows, 1))
    return b.cast(b.call("equal", down, b.reshape(b.arange(columns), (1, columns))), to)


@converter("diag_v2", "diag", inputs="X")
def diag(node: NodeContext) -> GraphExpr:
    """A matrix with a diagonal, or the diagonal of a matrix."""
    b, x = node.builder, node.input(0)
    offset = node.integer("offset", default=0)
    if rank_of(x) == 1:
        size = node.count(x, 0) + abs(offset)
        before, after = (max(0, -offset), max(0, offset))
        column = b.reshape(b.call("pad", x, before=(before,), after=(after,)), (size, 1))
        mask = b.constant(np.eye(size, k=offset, dtype=bool), "bool")
        return b.where(mask, column, b.scalar(node.number("padding_value", default=0.0), dtype_of(x)))
    return diagonal_of(node, x, offset, 0, 1)


@converter("diagonal", inputs="Input")
def diagonal(node: NodeContext) -> GraphExpr:
    """A diagonal of matrices."""
    first, second = node.integer("axis1", default=0), node.integer("axis2", default=1)
    return diagonal_of(node, node.input(0), node.integer("offset", default=0), first, second)


def diagonal_of(node: NodeContext, x: GraphExpr, offset: int, first: int, second: int) -> GraphExpr:
    """The diagonal along two axes, as the last axis."""
    b, rank = node.builder, rank_of(x)
    first, second = node.axis(first, rank), node.axis(second, rank)
    rows, columns = node.count(x, first), node.count(x, second)
    count = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
    x = b.transpose(x, [*(at for at in range(rank) if at not in (first, second)), first, second])
    flat = b.reshape(x, (*sizes_of(x)[:-2], rows * columns))
    start = offset if offset >= 0 else -offset * columns
    places = b.constant(start + np.arange(count, dtype=np.int64) * (columns + 1), INT64)
    return b.call("take", flat, places, axis=rank - 2)


@converter("uniform_random", "uniform", "gaussian_random", "gaussian", inputs="ShapeTensor")
def random_numbers(node: NodeContext) -> GraphExpr:
    """Random numbers, drawn anew in each run."""
    shape = node.wholes("its shape", (0,), "shape")
    if shape is None:
        raise UnsupportedError(f"{node.node.kind} of a shape that is not given")
    if node.node.kind.startswith("uniform"):
        low, high = (
            node.known_number(at, name, default=value) for at, name, value in ((1, "min", -1.0), (2, "max", 1.0))
        )
        return node.onnx("RandomUniform", shape=shape, low=low, high=high)
    return node.onnx(
        "RandomNormal", shape=shape, mean=node.number("mean", default=0.0), scale=node.number("std", default=1.0)
    )
