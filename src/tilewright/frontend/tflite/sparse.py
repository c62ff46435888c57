"""Constants that are stored without their zeros: dimensions in an order of traversal, dense or compressed by rows."""

from __future__ import annotations

import math

import numpy as np

from tilewright.frontend.tflite.flatbuffer import Table
from tilewright.graph.ir.op import Array
from tilewright.support.errors import UserError

_VECTORS = ("", "Int32Vector", "Uint16Vector", "Uint8Vector")
_MOST = 1 << 26
"""Elements of a constant that is written out, at most."""


def dense_values(table: Table, stored: Array, shape: tuple[int, ...], name: str) -> Array:
    """The whole constant: what is stored, and zeros."""
    order = [int(item) for item in table.numbers("traversal_order")]
    blocks = [int(item) for item in table.numbers("block_map")]
    levels = table.tables("dim_metadata")
    rank = len(shape)
    damaged = table.buffer.damaged(f"the sparse tensor '{name}' does not fit its shape {shape}")
    is_permuted = sorted(order) == list(range(rank + len(blocks))) and len(levels) == len(order)
    if not is_permuted or any(not 0 <= item < rank for item in blocks) or math.prod(shape) > _MOST:
        raise damaged
    # The sizes of dimensions of blocks are those of their levels; the others follow.
    sizes = list(shape) + [0] * len(blocks)
    for level, dimension in zip(levels, order, strict=True):
        if dimension >= rank:
            sizes[dimension] = level.number("dense_size")
    for block, dimension in enumerate(blocks):
        if sizes[rank + block] < 1 or sizes[dimension] % sizes[rank + block]:
            raise damaged
        sizes[dimension] //= sizes[rank + block]
    positions = np.zeros((1, 0), np.int64)
    rows = np.zeros(1, np.int64)
    for level, dimension in zip(levels, order, strict=True):
        columns, rows, parents = _level(level, rows, sizes[dimension], damaged)
        positions = np.concatenate([positions[parents], columns[:, None]], axis=1)
    if len(positions) > stored.size or len(positions) > _MOST:
        raise damaged
    return _placed(positions, stored, shape, order, blocks, sizes)


def _level(level: Table, rows: Array, size: int, damaged: UserError) -> tuple[Array, Array, Array]:
    """The places along one dimension under each row of those before: places, rows for the next, and parents."""
    if level.number("format") == 0:
        if len(rows) * max(size, 1) > _MOST:
            raise damaged
        columns = np.tile(np.arange(size), len(rows))
        parents = np.repeat(np.arange(len(rows)), size)
        return columns, rows[parents] * size + columns, parents
    segments, indices = _vector(level, "array_segments"), _vector(level, "array_indices")
    if segments is None or indices is None or (len(rows) and int(rows.max()) + 1 >= len(segments)):
        raise damaged
    starts, ends = segments[rows], segments[rows + 1]
    counts = ends - starts
    if (counts < 0).any() or (starts < 0).any() or (ends > len(indices)).any() or int(counts.sum()) > _MOST:
        raise damaged
    parents = np.repeat(np.arange(len(rows)), counts)
    firsts = np.repeat(starts - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
    places = firsts + np.arange(len(parents))
    columns = indices[places]
    if len(columns) and (int(columns.min()) < 0 or int(columns.max()) >= size):
        raise damaged
    return columns, places, parents


def _vector(level: Table, field: str) -> Array | None:
    kind = level.number(f"{field}_type")
    table = level.union(field, _VECTORS[kind]) if 0 < kind < len(_VECTORS) else None
    return None if table is None else table.numbers("values").astype(np.int64)


def _placed(
    positions: Array, stored: Array, shape: tuple[int, ...], order: list[int], blocks: list[int], sizes: list[int]
) -> Array:
    rank = len(shape)
    by_dimension = np.zeros_like(positions)
    by_dimension[:, order] = positions
    places = by_dimension[:, :rank]
    for block, dimension in enumerate(blocks):
        places[:, dimension] = places[:, dimension] * sizes[rank + block] + by_dimension[:, rank + block]
    dense = np.zeros(shape, stored.dtype)
    dense[tuple(places.T)] = stored[: len(places)]
    return dense
