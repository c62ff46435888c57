"""`ContrastLimitedAdaptiveHistogramEqualization`: tiles of an image have their values spread by their own histograms.

Each tile gives a table from 256 values to others, the sum of its histogram up to a value; a new value is between those
that the tables of the four nearest tiles have for the old one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.keras.augmentation import between, images_of, value_range, with_images
from tilewright.frontend.keras.context import LayerCall
from tilewright.frontend.keras.registry import layer
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import FLOAT32, INT64
from tilewright.support.errors import UnsupportedError, UserError

_VALUES = 256
_WHOLE = np.array([0.0, _VALUES - 1.0])


@layer("ContrastLimitedAdaptiveHistogramEqualization")
def equalized_by_tiles(call: LayerCall) -> Any:
    """Images whose contrast is raised tile by tile, up to a limit."""
    b, given = call.builder, images_of(call)
    rank, bounds = rank_of(given), value_range(call)
    if rank not in (3, 4):
        raise UserError(f"images have 3 or 4 dimensions, not {rank}")
    data = b.cast(given if rank == 4 else b.expand_dims(given, (0,)), FLOAT32)
    data = b.transpose(data, (0, 2, 3, 1)) if call.layer.channels_first else data
    result = between(call, _equalized(call, between(call, data, bounds, _WHOLE)), _WHOLE, bounds)
    result = b.transpose(result, (0, 3, 1, 2)) if call.layer.channels_first else result
    return with_images(call, b.cast(b.reshape(result, sizes_of(given)), dtype_of(given)))


def _equalized(call: LayerCall, images: GraphExpr) -> GraphExpr:
    """Images (batch, height, width, channels) of values up to 255."""
    b = call.builder
    batch, height, width, channels = sizes_of(images)
    if not all(isinstance(size, int) for size in (batch, height, width, channels)):
        raise UnsupportedError("equalisation of images of open sizes", hint="give the shapes of inputs: shapes={...}")
    assert isinstance(batch, int) and isinstance(height, int) and isinstance(width, int) and isinstance(channels, int)
    rows, columns = call.layer.integers("tile_grid_size", 2, (8, 8))
    if min(rows, columns) < 1 or rows > height or columns > width:
        raise UserError(f"{rows} x {columns} tiles of an image of {height} x {width}")
    tall, wide = -(-height // rows), -(-width // columns)
    padded = _mirrored(call, _mirrored(call, images, 1, tall * rows), 2, wide * columns)
    values = b.cast(b.call("clip", padded, minimum=0.0, maximum=_VALUES - 1.0), INT64)
    tiles = b.reshape(values, (batch, rows, tall, columns, wide, channels))
    tiles = b.reshape(b.transpose(tiles, (0, 1, 3, 5, 2, 4)), (batch, rows, columns, channels, tall * wide))
    tables = b.reshape(_tables(call, tiles, tall * wide), (batch * rows * columns * channels * _VALUES,))
    image = np.arange(batch)[:, None, None, None] * rows * columns
    places = b.add(values, b.constant(np.arange(channels) * _VALUES, INT64))
    parts = []
    for row, vertical in _neighbours(tall, rows):
        for column, horizontal in _neighbours(wide, columns):
            tile = (image + (row[:, None] * columns + column)[None, :, :, None]) * channels * _VALUES
            found = b.call("take", tables, b.add(places, b.constant(tile, INT64)), axis=0, mode="inside")
            weights = (vertical[:, None] * horizontal)[None, :, :, None]
            parts.append(b.multiply(found, b.constant(weights, FLOAT32)))
    total = b.add(b.add(parts[0], parts[1]), b.add(parts[2], parts[3]))
    return b.slice_axis(b.slice_axis(total, 1, 0, height), 2, 0, width)


def _mirrored(call: LayerCall, images: GraphExpr, axis: int, size: int) -> GraphExpr:
    """Images with their last rows (or columns) once more, backwards, up to a size."""
    old = sizes_of(images)[axis]
    assert isinstance(old, int)
    places = np.arange(size) % (2 * old)
    places = np.where(places < old, places, 2 * old - 1 - places)
    return call.call("take", images, call.builder.constant(places, INT64), axis=axis) if size > old else images


def _tables(call: LayerCall, tiles: GraphExpr, pixels: int) -> GraphExpr:
    """What each of 256 values becomes, for each tile and channel."""
    b, limit = call.builder, call.layer.number("clip_limit", 4.0)
    wide = b.reshape(tiles, (*sizes_of(tiles), 1))
    hits = b.cast(b.call("equal", wide, b.constant(np.arange(_VALUES), INT64)), FLOAT32)
    counts = b.reduce("sum", hits, (4,))
    if limit > 0:
        clipped = b.call("clip", counts, minimum=0.0, maximum=limit * pixels / _VALUES)
        excess = b.call("sum", b.subtract(counts, clipped), axes=(4,), keepdims=True)
        counts = b.add(clipped, b.divide(excess, float(_VALUES)))
    sums = b.call("cumsum", counts, axis=4)
    least = b.call("min", sums, axes=(4,), keepdims=True)
    rest = b.subtract(b.constant_like(float(pixels), least), least)
    rest = b.where(b.compare("equal", rest, 0.0), b.constant_like(1.0, rest), rest)
    spread = b.divide(b.multiply(b.subtract(sums, least), _VALUES - 1.0), rest)
    return b.call("clip", spread, minimum=0.0, maximum=_VALUES - 1.0)


def _neighbours(size: int, count: int) -> list[tuple[Array, Array]]:
    """For each pixel along an axis of tiles of a size: the tile before and behind it, and how much each counts."""
    place = (np.arange(size * count, dtype=np.float32) - np.float32(size / 2)) / np.float32(size)
    before = np.floor(place)
    share = place - before
    tiles = [np.clip(before + step, 0, count - 1).astype(np.int64) for step in (0, 1)]
    return [(tiles[0], 1 - share), (tiles[1], share)]
