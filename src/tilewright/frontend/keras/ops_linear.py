"""Operations with products: matrices, sums over axes by equations, norms and distances."""

from __future__ import annotations

import math
from typing import Any

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.core.einsum import einsum
from tilewright.frontend.keras.context import LayerCall
from tilewright.frontend.keras.ops_elementwise import both, tensor
from tilewright.frontend.keras.ops_shape import wholes
from tilewright.frontend.keras.registry import operation
from tilewright.frontend.keras.values import KerasBuilder, Value
from tilewright.graph.ir.dimensions import product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT32
from tilewright.support.errors import UnsupportedError, UserError


def _counted(call: LayerCall) -> list[GraphExpr]:
    """Two tensors of one type, truth values as whole numbers."""
    b = call.builder
    return [b.cast(item, INT32) if dtype_of(item).is_bool else item for item in both(call)]


def matrix_product(b: KerasBuilder, x: GraphExpr, y: GraphExpr) -> GraphExpr:
    """As numpy's `matmul`: vectors become matrices, and the result loses what they gained."""
    first, second = rank_of(x) == 1, rank_of(y) == 1
    x = b.reshape(x, (1, *sizes_of(x))) if first else x
    y = b.reshape(y, (*sizes_of(y), 1)) if second else y
    result = b.call("matmul", x, y)
    sizes = list(sizes_of(result))
    if second:
        sizes.pop()
    if first:
        sizes.pop(len(sizes) - (1 if second else 2))
    return b.reshape(result, sizes)


@operation("Matmul")
def matmul(call: LayerCall) -> GraphExpr:
    """The product of matrices."""
    x, y = _counted(call)
    if not rank_of(x) or not rank_of(y):
        raise UserError("a matrix product of a single number")
    return matrix_product(call.builder, x, y)


@operation("Dot")
def dot(call: LayerCall) -> GraphExpr:
    """As numpy's `dot`: the last axis of one with the last but one of the other."""
    b = call.builder
    x, y = _counted(call)
    if not rank_of(x) or not rank_of(y):
        return b.multiply(x, y)
    return _contracted(b, x, y, [rank_of(x) - 1], [max(rank_of(y) - 2, 0)])


def _contracted(b: KerasBuilder, x: GraphExpr, y: GraphExpr, first: list[int], second: list[int]) -> GraphExpr:
    left = [axis for axis in range(rank_of(x)) if axis not in first]
    right = [axis for axis in range(rank_of(y)) if axis not in second]
    rows, columns = [sizes_of(x)[axis] for axis in left], [sizes_of(y)[axis] for axis in right]
    inner = [sizes_of(x)[axis] for axis in first]
    a = b.reshape(b.transpose(x, [*left, *first]), (product(rows), product(inner)))
    c = b.reshape(b.transpose(y, [*second, *right]), (product(inner), product(columns)))
    return b.reshape(b.call("matmul", a, c), [*rows, *columns])


@operation("Tensordot")
def tensordot(call: LayerCall) -> GraphExpr:
    """Sums of products over axes of each."""
    x, y = _counted(call)
    described = call.layer.option("axes", 2)
    if isinstance(described, int):
        first = list(range(rank_of(x) - described, rank_of(x)))
        second = list(range(described))
    else:
        first, second = ([*wholes(item, "axes")] for item in described)
    first = [call.axis(axis, rank_of(x)) for axis in first]
    second = [call.axis(axis, rank_of(y)) for axis in second]
    return _contracted(call.builder, x, y, first, second)


@operation("Inner")
def inner(call: LayerCall) -> GraphExpr:
    """Sums of products over the last axes."""
    x, y = _counted(call)
    if not rank_of(x) or not rank_of(y):
        return call.builder.multiply(x, y)
    return _contracted(call.builder, x, y, [rank_of(x) - 1], [rank_of(y) - 1])


@operation("Vdot")
def vdot(call: LayerCall) -> GraphExpr:
    """The sum of all products."""
    b = call.builder
    x, y = (b.flatten(item) for item in _counted(call))
    return b.reduce("sum", b.multiply(x, y), (0,))


@operation("Outer")
def outer(call: LayerCall) -> GraphExpr:
    """Each element with each."""
    b = call.builder
    x, y = (b.flatten(item) for item in _counted(call))
    return b.multiply(b.expand_dims(x, (1,)), b.expand_dims(y, (0,)))


@operation("Kron")
def kron(call: LayerCall) -> GraphExpr:
    """Each element of one times the whole other."""
    b = call.builder
    x, y = _counted(call)
    rank = max(rank_of(x), rank_of(y))
    x, y = (b.expand_dims(item, range(rank - rank_of(item))) for item in (x, y))
    wide = b.reshape(x, [part for size in sizes_of(x) for part in (size, 1)])
    other = b.reshape(y, [part for size in sizes_of(y) for part in (1, size)])
    return b.reshape(b.multiply(wide, other), [product(pair) for pair in zip(sizes_of(x), sizes_of(y), strict=True)])


@operation("Cross")
def cross(call: LayerCall) -> GraphExpr:
    """Cross products of vectors of three (or two) numbers along the last axis."""
    b = call.builder
    x, y = both(call)
    options = call.layer
    axes = [options.option(name, -1) for name in ("axisa", "axisb", "axisc")]
    if options.option("axis") is not None:
        axes = [options.option("axis")] * 3
    x, y = (_last(call, item, axis) for item, axis in zip((x, y), axes, strict=False))
    sizes = [size_at(item, rank_of(item) - 1) for item in (x, y)]
    if not all(size in (2, 3) for size in sizes):
        raise UserError(f"a cross product of vectors of {sizes} numbers")
    a, c = (
        [b.select(item, rank_of(item) - 1, at) for at in range(size)] for item, size in zip((x, y), sizes, strict=True)
    )
    if sizes == [2, 2]:
        return b.subtract(b.multiply(a[0], c[1]), b.multiply(a[1], c[0]))
    zero = b.scalar(0, dtype_of(x))
    a, c = ([*part, zero] if len(part) == 2 else part for part in (a, c))
    parts = [b.subtract(b.multiply(a[i], c[j]), b.multiply(a[j], c[i])) for i, j in ((1, 2), (2, 0), (0, 1))]
    rank = rank_of(parts[0])
    return b.stack(parts, call.axis(axes[2], rank + 1))


def _last(call: LayerCall, value: GraphExpr, described: Any) -> GraphExpr:
    axis = call.axis(described, rank_of(value))
    return call.builder.transpose(value, [*(at for at in range(rank_of(value)) if at != axis), axis])


@operation("Einsum")
def einsum_operation(call: LayerCall) -> GraphExpr:
    """By an equation of letters."""
    values = [call.as_tensor(item) for item in call.args if isinstance(item, Value)]
    return einsum(call.builder, call.layer.text("subscripts", ""), call.builder.operands(*values))


@operation("Norm")
def norm(call: LayerCall) -> GraphExpr:
    """The length of vectors, or a norm of matrices."""
    b, value = call.builder, call.builder.floating(tensor(call))
    described, keep = call.layer.option("axis"), call.layer.flag("keepdims")
    order = call.layer.option("ord")
    axes = (
        tuple(range(rank_of(value)))
        if described is None
        else tuple(call.axis(item, rank_of(value)) for item in wholes(described, "axis"))
    )
    if order is None or order == "fro" or (order == 2 and len(axes) == 1):
        return b.call("sqrt", b.reduce("sum", b.multiply(value, value), sorted(axes), keep))
    order = float(order) if isinstance(order, (int, float, str)) and order not in ("nuc",) else order
    if not isinstance(order, float):
        raise UnsupportedError(f"the norm {order!r}")
    if len(axes) == 1:
        return _vector_norm(b, value, axes, order, keep)
    if len(axes) == 2 and (math.isinf(order) or abs(order) == 1):
        return _matrix_norm(b, value, axes, order, keep)
    raise UnsupportedError(f"the norm {order} of matrices")


def _vector_norm(b: KerasBuilder, value: GraphExpr, axes: tuple[int, ...], order: float, keep: bool) -> GraphExpr:
    size = b.call("abs", value)
    if math.isinf(order):
        return b.reduce("max" if order > 0 else "min", size, axes, keep)
    if order == 0:
        return b.reduce("sum", b.cast(b.compare("not_equal", value, 0.0), dtype_of(value)), axes, keep)
    if order == 1:
        return b.reduce("sum", size, axes, keep)
    total = b.reduce("sum", b.call("power", size, b.scalar(order, dtype_of(value))), axes, keep)
    return b.call("power", total, b.scalar(1 / order, dtype_of(value)))


def _matrix_norm(b: KerasBuilder, value: GraphExpr, axes: tuple[int, ...], order: float, keep: bool) -> GraphExpr:
    """The greatest (or least) sum of a row or column."""
    summed, compared = (axes[0], axes[1]) if abs(order) == 1 else (axes[1], axes[0])
    sums = b.reduce("sum", b.call("abs", value), (summed,), True)
    result = b.reduce("max" if order > 0 else "min", sums, (compared,), True)
    if keep:
        return result
    return b.reshape(result, [size for at, size in enumerate(sizes_of(value)) if at not in axes])


@operation("CDist")
def distances(call: LayerCall) -> GraphExpr:
    """The distance of each row to each."""
    b = call.builder
    x, y = both(call, floats=True)
    gap = b.subtract(b.expand_dims(x, (rank_of(x) - 1,)), b.expand_dims(y, (rank_of(y) - 2,)))
    return b.call("sqrt", b.reduce("sum", b.multiply(gap, gap), (rank_of(gap) - 1,)))
