"""Converters of operators about order and counts: TopK, Det of small matrices, n-grams."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.registry import converter
from tilewright.graph.ir.dimensions import Size, as_dim
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, STRING
from tilewright.support.errors import UnsupportedError, UserError

_LARGEST_MATRIX = 6
"""The largest matrix whose determinant is expanded: the number of its minors doubles with the size."""
_LONGEST_AXIS = 1 << 16
"""The longest axis that a kernel sorts: its work grows with the square."""


@converter("TopK", until=9)
def topk_by_attribute(node: NodeContext) -> Sequence[GraphExpr]:
    """k is an attribute; always the greatest."""
    return _topk(node, node.integer("k"), True)


@converter("TopK", since=10)
def topk(node: NodeContext) -> Sequence[GraphExpr]:
    """k is an input."""
    found = node.sizes(1, "k")
    if found is not None and len(found) != 1:
        raise UserError(f"k of TopK must be one number, it has {len(found)}")
    node.flag("sorted", True)  # sorted results serve where no order is asked for
    return _topk(node, None if found is None else found[0], node.flag("largest", True))


def _topk(node: NodeContext, k: Size | None, largest: bool) -> Sequence[GraphExpr]:
    """By a kernel where that is quick enough, else (or where k is data) on the host."""
    data = node.input(0)
    axis = node.axis(node.integer("axis", -1), rank_of(data))
    length = sizes_of(data)[axis]
    if k is not None and (not isinstance(length, int) or length <= _LONGEST_AXIS):
        both = node.call("topk", data, axis=axis, k=k, largest=largest)
    else:
        count = node.symbol("k") if k is None else as_dim(k)
        number = node.input(1) if k is None else node.builder.shape_tensor((k,))
        both = node.call("host.topk", data, number, dims=(count,), axis=axis, largest=largest, dtype=dtype_of(data))
    return [node.builder.item(both, 0), node.builder.item(both, 1)]


@converter("Det")
def determinant(node: NodeContext) -> GraphExpr:
    """Of small matrices, by minors: those of the last rows first, each from smaller ones."""
    data = node.input(0)
    if rank_of(data) < 2:
        raise UserError(f"Det needs square matrices, the data has {rank_of(data)} dimensions")
    batch, rows, columns = sizes_of(data)[:-2], size_at(data, -2), size_at(data, -1)
    if rows != columns:
        raise UserError(f"Det needs square matrices, they are {rows} x {columns}")
    if not 1 <= rows <= _LARGEST_MATRIX:
        raise UnsupportedError(f"Det of matrices of {rows} rows, at most {_LARGEST_MATRIX} are supported")
    builder, rank = node.builder, rank_of(data)

    def element(row: int, column: int) -> GraphExpr:
        part = builder.slice_axis(builder.slice_axis(data, rank - 2, row, row + 1), rank - 1, column, column + 1)
        return builder.reshape(part, batch)

    minors: dict[tuple[int, ...], GraphExpr] = {(column,): element(rows - 1, column) for column in range(rows)}
    for size in range(2, rows + 1):
        larger: dict[tuple[int, ...], GraphExpr] = {}
        for chosen in itertools.combinations(range(rows), size):
            total: GraphExpr | None = None
            for place, column in enumerate(chosen):
                rest = chosen[:place] + chosen[place + 1 :]
                term = node.call("multiply", element(rows - size, column), minors[rest])
                total = term if total is None else node.call("subtract" if place % 2 else "add", total, term)
            assert total is not None
            larger[chosen] = total
        minors = larger
    return minors[tuple(range(rows))]


@converter("TfIdfVectorizer")
def n_grams(node: NodeContext) -> GraphExpr:
    """How often each n-gram of a pool of numbers occurs, with gaps of several lengths, perhaps weighted."""
    data = node.input(0)
    mode = node.text("mode")
    shortest, longest = node.integer("min_gram_length"), node.integer("max_gram_length")
    skips = node.integer("max_skip_count")
    starts, places = node.ints("ngram_counts"), node.ints("ngram_indexes")
    texts = node.has_attribute("pool_strings")
    if texts is not (dtype_of(data) is STRING):
        raise UserError(f"the pool of TfIdfVectorizer does not fit data of type {dtype_of(data)}")
    pool = node.texts("pool_strings") if texts else node.ints("pool_int64s")
    weights = node.floats("weights", (1.0,) * len(places))
    if mode not in ("TF", "IDF", "TFIDF") or len(weights) != len(places) or rank_of(data) not in (1, 2):
        raise UserError(f"TfIdfVectorizer in mode {mode!r} with {len(weights)} weights for {len(places)} n-grams")
    if list(starts) != sorted(starts) or any(not 0 <= at <= len(pool) for at in starts) or min(places, default=0) < 0:
        raise UserError(f"the n-grams of TfIdfVectorizer start at {starts} in a pool of {len(pool)}")
    sizes = [size for size, begin in enumerate(starts, 1)
             for _ in range(begin, starts[size] if size < len(starts) else len(pool), size)]  # fmt: skip
    if len(sizes) != len(places) or not places:
        raise UserError(f"{len(places)} indexes for {len(sizes)} n-grams")
    width = max(places) + 1
    found = node.call(
        "text.ngrams",
        data,
        pool=pool,
        starts=starts,
        places=places,
        shortest=shortest,
        longest=longest,
        skips=skips,
        width=width,
    )
    factors = np.zeros(width, np.float32)
    for place, weight in zip(places, weights, strict=True):
        factors[place] = weight
    scale = node.builder.constant(factors, FLOAT32)
    if mode == "TF":
        return found
    if mode == "TFIDF":
        return node.call("multiply", found, scale)
    some = node.call("greater", found, node.builder.constant(0.0, FLOAT32))
    return node.call("where", some, scale, node.builder.constant(0.0, FLOAT32))
