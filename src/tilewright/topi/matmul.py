"""Matrix multiplication, plain and batched."""

from __future__ import annotations

from typing import Any

from tilewright.ir import build
from tilewright.ir.build import cast
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import ExprLike, PrimExpr, const_value
from tilewright.ir.types import Type
from tilewright.te import reduction
from tilewright.te.language import compute, reduce_axis
from tilewright.te.tensor import Tensor
from tilewright.tir.annotations import ANCHOR, KEPT, Anchor
from tilewright.topi.reduce import accumulator_type
from tilewright.topi.registry import compute_of, compute_on_cpus, result_shape


@compute_of("matmul")
def _matmul(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    a, b = inputs
    shape = result_shape(result)
    total = accumulator_type(a.dtype)
    k = reduce_axis((0, a.shape[-2] if attributes.transpose_a else a.shape[-1]), "k")

    def element(*i: ExprLike) -> PrimExpr:
        *batch, row, column = i
        left = (k, row) if attributes.transpose_a else (row, k)
        right = (column, k) if attributes.transpose_b else (k, column)
        x = a[(*_batch_index(a, shape, tuple(batch)), *left)]
        y = b[(*_batch_index(b, shape, tuple(batch)), *right)]
        return reduction.sum(cast(x, total) * cast(y, total), [k])

    product = compute(shape, element, "matmul", ANCHOR.entry(Anchor.MATMUL))
    if total is a.dtype:
        return product
    return compute(shape, lambda *i: cast(product[i], a.dtype), "matmul_out")


_FEW_ROWS = 4
"""Rows of a product that are worth no copy of the other matrix."""
_MANY_ROWS = 64
"""Rows and columns of a product from which on a transposed copy of the rows pays."""


@compute_on_cpus("matmul")
def _batched_matmul(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor | None:
    """Matrices of a batch whose columns lie apart are transposed first: columns are what vectors are made of.

    Single ones are mostly weights, which schedules arrange when the model is compiled. So are rows whose elements lie
    apart, as in gradients for weights: a register tile would read each from another line.
    """
    a, b = inputs
    rows, columns = (const_value(dim) or 0 for dim in result_shape(result)[-2:])
    turns_rows = attributes.transpose_a and min(rows, columns) >= _MANY_ROWS
    turns_columns = attributes.transpose_b and b.ndim >= 3 and rows >= _FEW_ROWS
    if not turns_rows and not turns_columns:
        return None
    plain = attributes.replace(
        transpose_a=attributes.transpose_a and not turns_rows, transpose_b=attributes.transpose_b and not turns_columns
    )
    return _matmul([_transposed(a) if turns_rows else a, _transposed(b) if turns_columns else b], plain, result)


def _transposed(matrices: Tensor) -> Tensor:
    """A copy of matrices, transposed."""
    return compute(
        (*matrices.shape[:-2], matrices.shape[-1], matrices.shape[-2]),
        lambda *i: matrices[(*i[:-2], i[-1], i[-2])],
        "matmul_turned",
        KEPT.entry(True),
    )


@compute_of("grouped_matmul")
def _grouped_matmul(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    """A row at a time: the matrices of the groups that nobody names are not read."""
    a, b, groups = inputs
    shape = result_shape(result)
    total = accumulator_type(a.dtype)
    k = reduce_axis((0, a.shape[1]), "k")

    def element(row: ExprLike, column: ExprLike) -> PrimExpr:
        group = build.maximum(build.minimum(cast(groups[row], INDEX), b.shape[0] - 1), 0)
        return reduction.sum(cast(a[row, k], total) * cast(b[group, k, column], total), [k])

    product = compute(shape, element, "grouped_matmul")
    if total is a.dtype:
        return product
    return compute(shape, lambda *i: cast(product[i], a.dtype), "grouped_matmul_out")


def _batch_index(tensor: Tensor, shape: tuple[PrimExpr, ...], batch: tuple[ExprLike, ...]) -> tuple[ExprLike, ...]:
    """Indices of the batch dimensions of an operand, broadcast by numpy's rules."""
    rank = tensor.ndim - 2
    offset = len(batch) - rank
    return tuple(
        0 if const_value(tensor.shape[n]) == 1 and const_value(shape[offset + n]) != 1 else batch[offset + n]
        for n in range(rank)
    )
