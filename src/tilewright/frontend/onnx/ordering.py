"""Converters of operators about order and counts: TopK, Det of small matrices, n-grams."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from tilewright.frontend.builder import dtype_of, rank_of, shape_of
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.registry import converter
from tilewright.graph.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, INT64
from tilewright.support.errors import UnsupportedError, UserError

_LARGEST_MATRIX = 6
"""The largest matrix whose determinant is expanded: the number of its minors doubles with the size."""
_MOST_GRAMS = 4096
"""The most n-grams that are counted: each is spelled out."""
_LONGEST_AXIS = 1 << 16
"""The longest axis that is sorted: the work grows with its square."""


@converter("TopK", until=9)
def topk_by_attribute(node: NodeContext) -> Sequence[GraphExpr]:
    """k is an attribute; always the greatest."""
    return _topk(node, node.integer("k"), True)


@converter("TopK", since=10)
def topk(node: NodeContext) -> Sequence[GraphExpr]:
    """k is an input."""
    k = node.constant_int(1, "k")
    node.flag("sorted", True)  # sorted results serve where no order is asked for
    return _topk(node, k, node.flag("largest", True))


def _topk(node: NodeContext, k: int, largest: bool) -> Sequence[GraphExpr]:
    data = node.input(0)
    axis = node.axis(node.integer("axis", -1), rank_of(data))
    if shape_of(data)[axis] > _LONGEST_AXIS:
        raise UnsupportedError(f"TopK along an axis of {shape_of(data)[axis]} elements")
    both = node.call("topk", data, axis=axis, k=k, largest=largest)
    return [node.builder.item(both, 0), node.builder.item(both, 1)]


@converter("Det")
def determinant(node: NodeContext) -> GraphExpr:
    """Of small matrices, by minors: those of the last rows first, each from smaller ones."""
    data = node.input(0)
    *batch, rows, columns = shape_of(data) if rank_of(data) >= 2 else (0, 0, 1)
    if rows != columns:
        raise UserError(f"Det needs square matrices, the data is {shape_of(data)}")
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
    if node.has_attribute("pool_strings"):
        raise UnsupportedError("TfIdfVectorizer of texts")
    mode = node.text("mode")
    shortest, longest = node.integer("min_gram_length"), node.integer("max_gram_length")
    skips = node.integer("max_skip_count")
    starts, places = node.ints("ngram_counts"), node.ints("ngram_indexes")
    pool = node.ints("pool_int64s")
    weights = node.floats("weights", (1.0,) * len(places))
    if mode not in ("TF", "IDF", "TFIDF") or len(weights) != len(places) or rank_of(data) not in (1, 2):
        raise UserError(f"TfIdfVectorizer in mode {mode!r} with {len(weights)} weights for {len(places)} n-grams")
    if list(starts) != sorted(starts) or any(not 0 <= at <= len(pool) for at in starts) or min(places, default=0) < 0:
        raise UserError(f"the n-grams of TfIdfVectorizer start at {starts} in a pool of {len(pool)}")
    if max(places, default=0) >= _MOST_GRAMS or len(places) > _MOST_GRAMS:
        raise UnsupportedError(f"TfIdfVectorizer of more than {_MOST_GRAMS} n-grams")
    builder = node.builder
    rows = builder.cast(data if rank_of(data) == 2 else builder.reshape(data, (1, *shape_of(data))), INT64)
    count, length = shape_of(rows)
    columns: dict[int, GraphExpr] = {}
    gram = 0
    for size, begin in enumerate(starts, 1):
        end = starts[size] if size < len(starts) else len(pool)
        for at in range(begin, end, size):
            if gram >= len(places):
                raise UserError("the pool of TfIdfVectorizer has more n-grams than indexes")
            if shortest <= size <= longest:
                columns[places[gram]] = _occurrences(node, rows, pool[at : at + size], skips)
            gram += 1
    if gram != len(places) or not places:
        raise UserError(f"{len(places)} indexes for {gram} n-grams")
    width = max(places) + 1
    zero = builder.filled(0, (count,), FLOAT32)
    table = [builder.expand_dims(columns.get(column, zero), (1,)) for column in range(width)]
    found = builder.concatenate(table, 1)
    factors = np.zeros(width, np.float32)
    for place, weight in zip(places, weights, strict=True):
        factors[place] = weight
    scale = builder.constant(factors, FLOAT32)
    if mode == "TF":
        result = found
    elif mode == "TFIDF":
        result = node.call("multiply", found, scale)
    else:
        some = node.call("greater", found, builder.constant(0.0, FLOAT32))
        result = node.call("where", some, scale, builder.constant(0.0, FLOAT32))
    assert length >= 0
    return result if rank_of(data) == 2 else builder.reshape(result, (width,))


def _occurrences(node: NodeContext, rows: GraphExpr, gram: Sequence[int], skips: int) -> GraphExpr:
    """How often an n-gram occurs in each row, its items 1 to skips + 1 apart (a single item counts once)."""
    builder = node.builder
    count, length = shape_of(rows)
    total: GraphExpr | None = None
    for gap in range(1, (skips if len(gram) > 1 else 0) + 2):
        reach = (len(gram) - 1) * gap + 1
        if reach > length:
            break
        match: GraphExpr | None = None
        for place, item in enumerate(gram):
            part = builder.slice_axis(rows, 1, place * gap, place * gap + length - reach + 1)
            same = node.call("equal", part, builder.constant(item, INT64))
            match = same if match is None else node.call("logical_and", match, same)
        assert match is not None
        found = node.call("sum", builder.cast(match, FLOAT32), axes=(1,), keepdims=False)
        total = found if total is None else node.call("add", total, found)
    if total is None:
        return builder.filled(0, (count,), FLOAT32)
    assert dtype_of(total) is FLOAT32
    return total
