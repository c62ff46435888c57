"""Products of bytes with words of four bytes, in 32 bits: the reduction runs over words.

c[i, j] += dot4(word of a[i, 4 k ... 4 k + 3], b[j, k])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.graph.ops.words import WORD
from tilewright.ir.build import all_of, as_expr, le, lt, select
from tilewright.ir.expr import ExprLike, PrimExpr
from tilewright.ir.intrinsics import dot4, word
from tilewright.ir.types import Type
from tilewright.te import reduction
from tilewright.te.language import compute, reduce_axis
from tilewright.te.tensor import Tensor
from tilewright.tir.annotations import ANCHOR, LAYOUT, Anchor, Layout
from tilewright.topi.registry import compute_of, result_shape


def word_at(data: Tensor, *index: ExprLike) -> PrimExpr:
    """A word of the neighbours along the last dimension of bytes."""
    *outer, number = index
    first = as_expr(number) * WORD
    return word(*(data[(*outer, first + place)] for place in range(WORD)))


def in_words(data: Tensor) -> Tensor:
    """All bytes as words."""
    *outer, length = data.shape
    return compute((*outer, length // WORD), lambda *i: word_at(data, *i), "words")


@compute_of("qnn.words")
def _words(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    return in_words(inputs[0])


@compute_of("qnn.word_matmul")
def _matmul(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    a, b = in_words(inputs[0]), inputs[1]
    k = reduce_axis((0, b.shape[-1]), "k")

    def element(*i: ExprLike) -> PrimExpr:
        *outer, row, column = i
        matrix = outer if b.ndim > 2 else []
        return reduction.sum(dot4(a[(*outer, row, k)], b[(*matrix, column, k)]), [k])

    return compute(result_shape(result), element, "matmul", ANCHOR.entry(Anchor.MATMUL))


def bordered_words(data: Tensor, border: Callable[..., PrimExpr], padding: Sequence[int]) -> Tensor:
    """Images (n, height, width, ..., bytes) as words, with a border around them: of words by their last indices."""
    if not any(padding):
        return in_words(data)
    top, left, bottom, right = padding
    n, height, width, *inner, length = data.shape

    def element(b: ExprLike, y: ExprLike, x: ExprLike, *rest: ExprLike) -> PrimExpr:
        row, column = as_expr(y) - top, as_expr(x) - left
        inside = all_of([le(0, row), lt(row, height), le(0, column), lt(column, width)])
        return select(inside, word_at(data, b, row, column, *rest), border(*rest))

    return compute((n, height + top + bottom, width + left + right, *inner, length // WORD), element, "pad_data")


@compute_of("qnn.word_conv2d")
def _conv2d(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    data, weight, zero = inputs
    border = word(*[zero[(0,) * zero.ndim]] * WORD)
    padded = bordered_words(data, lambda channel: border, attributes.padding)
    kh, kw = reduce_axis((0, weight.shape[0]), "kh"), reduce_axis((0, weight.shape[1]), "kw")
    ic = reduce_axis((0, weight.shape[2]), "ic")
    (sh, sw), (dh, dw) = attributes.strides, attributes.dilation

    def element(b: ExprLike, y: ExprLike, x: ExprLike, c: ExprLike) -> PrimExpr:
        value = padded[b, as_expr(y) * sh + kh * dh, as_expr(x) * sw + kw * dw, ic]
        return reduction.sum(dot4(value, weight[kh, kw, ic, c]), [kh, kw, ic])

    return compute(result_shape(result), element, "conv2d", ANCHOR.entry(Anchor.CONV2D) | LAYOUT.entry(Layout.NHWC))
