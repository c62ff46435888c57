"""Converters of products of matrices and attention."""

from __future__ import annotations

import math

from tilewright.frontend.core.arithmetic import Number
from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.core.matrices import product
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.registry import converter
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, INT64, DataType
from tilewright.ir.expr import Var
from tilewright.support.errors import UnsupportedError

_SMALL_BITS = 8


@converter("mm", "bmm")
def matrix_product(b: TorchBuilder, x: GraphExpr, mat2: GraphExpr) -> GraphExpr:
    """The product of two matrices, or of batches of them."""
    return product(b, x, mat2)


@converter("matmul")
def matmul(b: TorchBuilder, x: GraphExpr, other: GraphExpr) -> GraphExpr:
    """The product of vectors, matrices, or batches of them."""
    first = b.expand_dims(x, (0,)) if rank_of(x) == 1 else x
    second = b.expand_dims(other, (1,)) if rank_of(other) == 1 else other
    return b.reshape(product(b, first, second), b.shape)


@converter("_scaled_mm")
def scaled_product(
    b: TorchBuilder,
    x: GraphExpr,
    mat2: GraphExpr,
    scale_a: GraphExpr,
    scale_b: GraphExpr,
    bias: GraphExpr | None = None,
    scale_result: GraphExpr | None = None,
    out_dtype: DataType | None = None,
    use_fast_accum: bool = False,
) -> GraphExpr:
    """The product of 8-bit floats with scales of tensors, of rows and columns, or of blocks of 128."""
    if scale_result is not None and dtype_of(scale_result) is not FLOAT32:
        raise UnsupportedError(f"a scale of the result in {dtype_of(scale_result)}", hint="give it in float32")
    rows = scale_a if rank_of(scale_a) == 2 else b.reshape(scale_a, (1, 1))
    columns = b.transpose(scale_b, (1, 0)) if rank_of(scale_b) == 2 else b.reshape(scale_b, (1, 1))
    result = b.call("qnn.scaled_matmul", x, b.transpose(mat2, (1, 0)), rows, columns)
    if bias is not None:
        result = b.add(result, b.cast(bias, FLOAT32))
    if scale_result is not None and b.dtype.bits == _SMALL_BITS:
        result = b.divide(result, b.reshape(scale_result, ()))
    return b.cast(result, b.dtype)


@converter("_grouped_mm")
def grouped_product(
    b: TorchBuilder,
    x: GraphExpr,
    mat2: GraphExpr,
    offs: GraphExpr | None = None,
    bias: GraphExpr | None = None,
    out_dtype: DataType | None = None,
) -> GraphExpr:
    """Rows times the matrix of their group: group g has the rows from `offs[g - 1]` to `offs[g]`, the rest are 0."""
    if bias is not None or (rank_of(x), rank_of(mat2)) not in ((2, 3), (3, 3)):
        raise UnsupportedError(
            f"a grouped product of {rank_of(x)} and {rank_of(mat2)} dimensions{' with a bias' if bias else ''}",
            hint="rows of two dimensions, matrices of three, no bias",
        )
    if offs is None:
        return b.cast(product(b, x, mat2), b.dtype)
    if rank_of(x) != 2:
        raise UnsupportedError("a grouped product of matrices with offsets", hint="rows of two dimensions")
    rows, count = sizes_of(x)[0], sizes_of(mat2)[0]
    before = b.compare("greater_equal", b.reshape(b.arange(rows), (rows, 1)), b.reshape(offs, (1, count)))
    groups = b.reduce("sum", b.cast(before, INT64), (1,))
    result = b.call("grouped_matmul", x, mat2, groups)
    in_a_group = b.reshape(b.call("less", groups, b.scalar(count, INT64)), (rows, 1))
    return b.cast(b.where(in_a_group, result, 0), b.dtype)


@converter("transformers::grouped_mm_fallback")
def grouped_product_of_transformers(b: TorchBuilder, input: GraphExpr, weight: GraphExpr, offs: GraphExpr) -> GraphExpr:
    """The grouped product of mixtures of experts in `transformers`, which spells it so where torch has none."""
    return grouped_product(b, input, weight, offs)


@converter("dot", "vdot")
def dot(b: TorchBuilder, x: GraphExpr, tensor: GraphExpr | None = None, other: GraphExpr | None = None) -> GraphExpr:
    """The inner product of two vectors."""
    second = tensor if tensor is not None else other
    assert second is not None
    return b.reduce("sum", b.multiply(x, second), (0,))


@converter("mv")
def matrix_vector(b: TorchBuilder, x: GraphExpr, vec: GraphExpr) -> GraphExpr:
    """A matrix times a vector."""
    return b.reshape(product(b, x, b.expand_dims(vec, (1,))), b.shape)


def _plus(b: TorchBuilder, x: GraphExpr, value: GraphExpr, beta: Number, alpha: Number) -> GraphExpr:
    """beta * x + alpha * value, where x does not count at all if beta is 0."""
    if alpha != 1:
        value = b.multiply(value, b.scalar(alpha, dtype_of(value)))
    if beta == 0:
        return b.broadcast_to(value, b.shape)
    return b.broadcast_to(b.add(x if beta == 1 else b.multiply(x, b.scalar(beta, dtype_of(x))), value), b.shape)


@converter("addmm")
def addmm(
    b: TorchBuilder, x: GraphExpr, mat1: GraphExpr, mat2: GraphExpr, beta: Number = 1, alpha: Number = 1
) -> GraphExpr:
    """beta * x + alpha * mat1 @ mat2."""
    return _plus(b, x, product(b, mat1, mat2), beta, alpha)


@converter("addmv")
def addmv(
    b: TorchBuilder, x: GraphExpr, mat: GraphExpr, vec: GraphExpr, beta: Number = 1, alpha: Number = 1
) -> GraphExpr:
    """beta * x + alpha * mat @ vec."""
    return _plus(b, x, b.reshape(product(b, mat, b.expand_dims(vec, (1,))), b.shape), beta, alpha)


@converter("baddbmm")
def baddbmm(
    b: TorchBuilder, x: GraphExpr, batch1: GraphExpr, batch2: GraphExpr, beta: Number = 1, alpha: Number = 1
) -> GraphExpr:
    """beta * x + alpha * batch1 @ batch2."""
    return _plus(b, x, product(b, batch1, batch2), beta, alpha)


@converter("addbmm")
def addbmm(
    b: TorchBuilder, x: GraphExpr, batch1: GraphExpr, batch2: GraphExpr, beta: Number = 1, alpha: Number = 1
) -> GraphExpr:
    """beta * x + alpha * the sum of batch1 @ batch2 over the batch."""
    return _plus(b, x, b.reduce("sum", product(b, batch1, batch2), (0,)), beta, alpha)


@converter("linear")
def linear(b: TorchBuilder, input: GraphExpr, weight: GraphExpr, bias: GraphExpr | None = None) -> GraphExpr:
    """Rows times the transposed weight, plus a bias."""
    *outer, inner = sizes_of(input)
    is_vector = rank_of(weight) == 1
    if is_vector:
        weight = b.expand_dims(weight, (0,))
    # One product of all rows is quickest; sums among the sizes are left alone, since their products prove nothing.
    if all(isinstance(size, int) or type(size) is Var for size in outer):
        input = b.reshape(input, (dimensions.product(outer), inner))
    columns = () if is_vector else sizes_of(weight)[:1]
    result = b.reshape(product(b, input, weight, transpose_b=True), (*outer, *columns))
    return result if bias is None else b.add(result, bias)


@converter("scaled_dot_product_attention")
def attention(
    b: TorchBuilder,
    query: GraphExpr,
    key: GraphExpr,
    value: GraphExpr,
    attn_mask: GraphExpr | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> GraphExpr:
    """softmax(query @ key^T * scale + mask) @ value; rows that are masked altogether are 0."""
    if dropout_p:
        raise UnsupportedError("attention with dropout", hint="call model.eval() first")
    if enable_gqa:
        groups = size_at(query, rank_of(query) - 3) // size_at(key, rank_of(key) - 3)
        key, value = _repeated(b, key, groups), _repeated(b, value, groups)
    scores, hidden = attention_scores(b, query, key, attn_mask, is_causal, scale)
    if 0 in sizes_of(scores):
        return b.filled(0, b.shape, b.dtype)
    return b.broadcast_to(product(b, attention_weights(b, scores, hidden), value), b.shape)


def attention_scale(query: GraphExpr, scale: float | None) -> float:
    """What products of queries and keys are multiplied by."""
    depth = size_at(query, rank_of(query) - 1)
    return 1 / math.sqrt(depth) if scale is None and depth else (scale or 1.0)


def attention_scores(
    b: TorchBuilder,
    query: GraphExpr,
    key: GraphExpr,
    mask: GraphExpr | None,
    is_causal: bool,
    scale: float | None,
) -> tuple[GraphExpr, bool]:
    """query @ key^T * scale + mask, and whether there may be rows that are masked altogether."""
    rows, columns = sizes_of(query)[-2], sizes_of(key)[-2]
    scores = b.multiply(product(b, query, key, transpose_b=True), attention_scale(query, scale))
    if is_causal:
        down, across = b.reshape(b.arange(rows), (rows, 1)), b.arange(columns)
        scores = b.where(b.compare("greater_equal", down, across), scores, -math.inf)
    if mask is None:
        return scores, False
    if dtype_of(mask).is_bool:
        return b.where(mask, scores, -math.inf), True
    return b.add(scores, b.cast(mask, dtype_of(scores))), True


def attention_weights(b: TorchBuilder, scores: GraphExpr, hidden: bool) -> GraphExpr:
    """The softmax of scores; rows that are masked altogether are 0."""
    last = rank_of(scores) - 1
    weights = b.call("nn.softmax", scores, axis=last)
    if not hidden:
        return weights
    top = b.reduce("max", scores, (last,), True)
    return b.where(b.compare("equal", top, -math.inf), 0.0, weights)


def _repeated(b: TorchBuilder, x: GraphExpr, times: int) -> GraphExpr:
    """Each head several times in a row."""
    if times == 1:
        return x
    shape = sizes_of(x)
    spread = b.broadcast_to(b.expand_dims(x, (len(shape) - 2,)), (*shape[:-2], times, *shape[-2:]))
    return b.reshape(spread, (*shape[:-3], dimensions.multiply(shape[-3], times), *shape[-2:]))
