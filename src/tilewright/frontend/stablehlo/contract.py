"""Converters of products: dot_general with any dimension numbers, and its older forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.core.complex_values import Complex
from tilewright.frontend.stablehlo.builder import StableBuilder, Tensor, rank_of_tensor
from tilewright.frontend.stablehlo.complex_numbers import whole
from tilewright.frontend.stablehlo.program import Operation
from tilewright.frontend.stablehlo.registry import converter
from tilewright.frontend.stablehlo.scanner import numbers
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import DataType
from tilewright.support.errors import UserError


@converter("dot_general", of_complex="taken")
def dot_general(b: StableBuilder, operation: Operation, x: Tensor, y: Tensor) -> Tensor:
    """Products summed over contracted dimensions, for each element of batching ones."""
    given = operation.attributes.get("dot_dimension_numbers", {})
    if not isinstance(given, Mapping):
        raise UserError("dot_general without dimension numbers")
    batch, inner = ([_numbers(given, f"{side}_{what}_dimensions") for side in ("lhs", "rhs")] for what in _KINDS)
    return contracted(b, x, y, batch, inner)


_KINDS = ("batching", "contracting")


def _numbers(given: Mapping[str, Any], name: str) -> list[int]:
    return numbers(given[name]) if name in given else []


@converter("dot", of_complex="taken")
def dot(b: StableBuilder, operation: Operation, x: Tensor, y: Tensor) -> Tensor:
    """Vectors and matrices: the last dimension of x with the first of y."""
    return contracted(b, x, y, [[], []], [[rank_of_tensor(x) - 1], [0]])


def contracted(
    b: StableBuilder, x: Tensor, y: Tensor, batch: Sequence[Sequence[int]], inner: Sequence[Sequence[int]]
) -> Tensor:
    """A product of real or complex numbers."""
    dtype = b.result_dtype

    def product(p: GraphExpr, q: GraphExpr) -> GraphExpr:
        return _product(b, p, q, batch, inner, dtype)

    if not isinstance(x, Complex) and not isinstance(y, Complex):
        return product(x, y)
    first, second = whole(b, x), whole(b, y)
    real = b.subtract(product(first.real, second.real), product(first.imaginary, second.imaginary))
    return Complex(real, b.add(product(first.real, second.imaginary), product(first.imaginary, second.real)))


def _product(
    b: StableBuilder,
    x: GraphExpr,
    y: GraphExpr,
    batch: Sequence[Sequence[int]],
    inner: Sequence[Sequence[int]],
    dtype: DataType,
) -> GraphExpr:
    """As one product of matrices for each element of a batch."""
    if len(batch[0]) != len(batch[1]) or len(inner[0]) != len(inner[1]):
        raise UserError("the dimension numbers of a product are not pairs")
    outer = [
        [axis for axis in range(rank_of(value)) if axis not in batch[side] and axis not in inner[side]]
        for side, value in enumerate((x, y))
    ]
    shapes = [sizes_of(x), sizes_of(y)]
    lead = [shapes[0][axis] for axis in batch[0]]
    shape = (*lead, *(shapes[0][axis] for axis in outer[0]), *(shapes[1][axis] for axis in outer[1]))
    if 0 in shapes[0] or 0 in shapes[1]:
        return b.empty(shape, dtype) if 0 in shape else b.filled(0, shape, dtype)
    depth = dimensions.product([shapes[0][axis] for axis in inner[0]])
    rows = dimensions.product([shapes[0][axis] for axis in outer[0]])
    columns = dimensions.product([shapes[1][axis] for axis in outer[1]])
    left = _matrix(b, x, (*batch[0], *outer[0], *inner[0]), (*lead, rows, depth))
    # Matrices that lie the other way round are multiplied so, which saves turning them.
    is_turned = len(outer[1]) == 1 and len(inner[1]) == 1 and outer[1][0] < inner[1][0]
    if is_turned:
        right = _matrix(b, y, (*batch[1], *outer[1], *inner[1]), (*lead, columns, depth))
    else:
        right = _matrix(b, y, (*batch[1], *inner[1], *outer[1]), (*lead, depth, columns))
    if dtype.is_bool:
        left, right = (b.cast(value, "int32") for value in (left, right))
        found = b.cast(b.call("matmul", left, right, transpose_b=is_turned), dtype)
    else:
        found = b.call("matmul", b.cast(left, dtype), b.cast(right, dtype), transpose_b=is_turned)
    assert dtype_of(found) is dtype
    return b.reshape(found, shape)


def _matrix(b: StableBuilder, value: GraphExpr, order: Sequence[int], shape: Sequence[Size]) -> GraphExpr:
    return b.reshape(b.transpose(value, order), shape)
