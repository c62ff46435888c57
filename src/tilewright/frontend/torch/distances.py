"""Converters of distances between rows, and of products of three tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT64


@converter("_cdist_forward")
def pairwise_distances(b: TorchBuilder, x1: GraphExpr, x2: GraphExpr, p: float, compute_mode: int | None) -> GraphExpr:
    """The p-norm of every difference of rows."""
    if 0 in b.shape:
        return b.empty(b.shape, b.dtype)
    first, second = b.expand_dims(x1, (rank_of(x1) - 1,)), b.expand_dims(x2, (rank_of(x2) - 2,))
    if sizes_of(x1)[-1] == 0:
        return b.filled(0, b.shape, b.dtype)
    return _norm(b, b.call("abs", b.subtract(first, second)), p)


def _norm(b: TorchBuilder, size: GraphExpr, p: float) -> GraphExpr:
    """The p-norm of sizes along the last axis."""
    last = (rank_of(size) - 1,)
    if p == 0:
        return b.reduce("sum", b.cast(b.compare("not_equal", size, 0), dtype_of(size)), last)
    if p == 1:
        return b.reduce("sum", size, last)
    if p == 2:
        return b.call("sqrt", b.reduce("sum", b.multiply(size, size), last))
    if math.isinf(p):
        return b.reduce("max", size, last)
    total = b.reduce("sum", b.call("power", size, b.scalar(p, dtype_of(size))), last)
    return b.call("power", total, b.scalar(1 / p, dtype_of(size)))


@converter("_pdist_forward")
def condensed_distances(b: TorchBuilder, x: GraphExpr, p: float = 2) -> GraphExpr:
    """The p-norm of the differences of all pairs of rows, in order."""
    if 0 in b.shape or sizes_of(x)[-1] == 0:
        return b.empty(b.shape, b.dtype) if 0 in b.shape else b.filled(0, b.shape, b.dtype)
    first, second = np.triu_indices(size_at(x, 0), 1)
    rows = [b.call("take", x, b.constant(index.astype(np.int64), INT64), axis=0) for index in (first, second)]
    return _norm(b, b.call("abs", b.subtract(rows[0], rows[1])), p)


@converter("_trilinear")
def trilinear(
    b: TorchBuilder,
    i1: GraphExpr,
    i2: GraphExpr,
    i3: GraphExpr,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> GraphExpr:
    """The product of three, expanded to common dimensions, summed over some."""
    parts = [b.expand_dims(item, axes) for item, axes in ((i1, expand1), (i2, expand2), (i3, expand3))]
    whole = b.multiply(b.multiply(parts[0], parts[1]), parts[2])
    if 0 in b.shape:
        return b.empty(b.shape, b.dtype)
    return b.reduce("sum", whole, tuple(sumdim))
