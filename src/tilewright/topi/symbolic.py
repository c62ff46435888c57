"""Tensors made of sizes: numbers and symbols of shapes brought into data."""

from __future__ import annotations

from typing import Any

from tilewright.ir import build
from tilewright.ir.build import as_expr, cast
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import ExprLike, PrimExpr
from tilewright.ir.types import Type
from tilewright.te.language import compute
from tilewright.te.tensor import Tensor
from tilewright.topi.registry import compute_of, result_shape


@compute_of("dimensions")
def _dimensions(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    shape = result_shape(result)
    values = [as_expr(value, INDEX) for value in attributes.values]

    def element(*i: ExprLike) -> PrimExpr:
        flat: ExprLike = 0
        for index, size in zip(i, shape, strict=True):
            flat = build.add(build.mul(flat, size), index)
        # The tensor is small: one comparison an element.
        selected = values[-1]
        for place in range(len(values) - 2, -1, -1):
            selected = build.select(as_expr(flat).eq(place), values[place], selected)
        return cast(selected, attributes.dtype)

    return compute(shape, element, "dimensions")


@compute_of("assume_shape")
def _assume_shape(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    (x,) = inputs
    return compute(result_shape(result), lambda *i: x[i], "assume_shape")


@compute_of("arange")
def _arange(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    def element(i: ExprLike) -> PrimExpr:
        return cast(build.add(build.mul(i, attributes.step), as_expr(attributes.start, INDEX)), attributes.dtype)

    return compute(result_shape(result), element, "arange")
