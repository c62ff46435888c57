"""Convolution by Winograd's algorithm F(m x m, 3 x 3), as tensor expressions (see graph/ops/winograd.py for the sums).

    padded          the input with its border, and enough rows and columns for whole tiles
    input_rows      B d      for each tile and channel: the column transform of its window
    input           V = B d B'   arranged (i, j, tile, channel): (m + 2)^2 matrices of tiles x channels
    product         M = V U      (m + 2)^2 independent matrix products
    output_rows     A M
    output          Y = A M A'   arranged (tile, row, column, channel)
    winograd        Y at its pixels (partial tiles are cut)

Tiles are those of all images, one image after the other. Where the number of images is open (known when the kernel
runs), they are an axis of their own instead, the first of every stage, and tiles are those of one image; else that axis
has one element.

Weights that are transformed where they are used (`nn.conv2d_winograd_plain`) have two stages of their own,

    weight_rows     G g
    weight          U = G g G'

and tiles at the lower and right border, of which fewer results are wanted, fewer points: the rows of B and columns of A
for the others are zero there, and their products are left out.

`winograd_transforms.py` has the sums of one element of a transform; images of open height or width have stages of their
own (`winograd_open.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from tilewright.graph.ops.winograd import KERNEL, plain_matrices, winograd_matrices
from tilewright.ir import build
from tilewright.ir.build import const
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import ExprLike, PrimExpr, const_value
from tilewright.ir.types import Type
from tilewright.support.errors import UnsupportedError
from tilewright.te import reduction
from tilewright.te.language import compute, reduce_axis
from tilewright.te.tensor import Tensor
from tilewright.tir.annotations import ANCHOR, COLUMNS, TILES, Anchor
from tilewright.topi.convolution import pad_spatial
from tilewright.topi.registry import compute_of, result_shape
from tilewright.topi.winograd_open import open_winograd
from tilewright.topi.winograd_transforms import (
    Element,
    input_row,
    output_row,
    plain_row,
    transform,
    weight_row,
    weight_row_by_another,
)

_ROW_BLOCKS = (14, 13, 12, 11, 10, 9, 8, 7, 6)
"""Tiles that are multiplied together in registers: the number of tiles is rounded up to have such a divisor."""

_NEAR_BYTES = 1 << 20
"""What stays in a second cache level of usual size, beside what passes through it."""
_TILES_A_READING = 20
"""So many tiles are computed while weights are read once from farther away."""
_WORTH_MORE_TILES = 1.3
"""How much less work more tiles must be: their number also decides what fits the registers."""


def padded_tiles(tiles: int, input_bytes: int = 0, weight_bytes: int = 0) -> int:
    """The number of tiles to compute: rounded up, by little, to a multiple of a good register block.

    `input_bytes` are those of a tile's transformed input, `weight_bytes` those of all transformed weights. Weights that
    do not stay near are read for one group of tiles after the other, as many as stay near themselves: more tiles that
    come in fewer groups are less work (49 tiles of 256 channels are seven groups of 7, 52 are two of 26).
    """
    if tiles <= _ROW_BLOCKS[0]:
        return tiles

    def work(block: int) -> int:
        blocks = -(-tiles // block)
        fitting = [n for n in range(1, blocks + 1) if blocks % n == 0 and n * block * input_bytes <= _NEAR_BYTES]
        groups = blocks // max(fitting, default=1) if weight_bytes > _NEAR_BYTES else 1
        return blocks * block + groups * _TILES_A_READING

    def count(block: int) -> int:
        return -(-tiles // block) * block

    least, best = min(_ROW_BLOCKS, key=count), min(_ROW_BLOCKS, key=work)
    return count(best if work(least) > _WORTH_MORE_TILES * work(best) else least)


@compute_of("nn.winograd_weight")
def _winograd_weight(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    (weight,) = inputs
    return _transformed(weight, attributes.tile, weight.dtype)


def _transformed(weight: Tensor, tile: int, dtype: DataType) -> Tensor:
    """U = G g G': the transformed weights (tile + 2, tile + 2, inputs, outputs) of plain ones."""
    matrix, size = winograd_matrices(tile).weight, tile + KERNEL - 1
    *_, channels, outputs = weight.shape
    rows = compute(
        (size, KERNEL, channels, outputs),
        lambda i, v, c, o: transform(input_row, matrix, i, lambda n: weight[n, v, c, o].astype(dtype), dtype),
        "winograd_weight_rows",
    )
    return compute(
        (size, size, channels, outputs),
        lambda i, j, c, o: transform(input_row, matrix, j, lambda n: rows[i, n, c, o], dtype),
        "winograd_weight",
    )


@dataclass(frozen=True, slots=True)
class _Layout:
    """The tiles of a convolution's result: rows and columns of them in each of some images."""

    tile: int
    outer: PrimExpr
    """The length of the axis of images: their number where it is open, else one."""
    images: int
    """Images whose tiles are counted together: one, or all."""
    height: int
    width: int
    padding: tuple[int, int, int, int]

    @property
    def rows(self) -> int:
        """Tiles on top of each other."""
        return -(-self.height // self.tile)

    @property
    def columns(self) -> int:
        """Tiles side by side."""
        return -(-self.width // self.tile)

    @property
    def tiles(self) -> int:
        """All tiles."""
        return self.images * self.rows * self.columns

    def place(self, tile: PrimExpr) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
        """The image among those that are counted together, the row and the column of a tile."""
        row, column = tile // self.columns, tile % self.columns
        return (row // self.rows, row % self.rows, column) if self.images > 1 else (const(0), row, column)

    def number(self, image: PrimExpr, row: PrimExpr, column: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        """The place along the axis of images and the number of a tile of some image, row and column."""
        if self.images == 1:
            return image, row * self.columns + column
        return const(0), (image * self.rows + row) * self.columns + column

    def rest(self, axis: int) -> int:
        """Rows (axis 0) or columns (axis 1) of results of the last tile."""
        length, count = (self.height, self.rows) if axis == 0 else (self.width, self.columns)
        return length - (count - 1) * self.tile

    def is_last(self, tile: PrimExpr, axis: int) -> PrimExpr:
        """Whether a tile is at the lower (axis 0) or right border."""
        return build.eq(self.place(tile)[1 + axis], (self.rows if axis == 0 else self.columns) - 1)


def _layout(data: Tensor, attributes: Any, result: Type) -> _Layout:
    shape = result_shape(result)
    known = [const_value(dim) for dim in (*shape[1:], *data.shape[1:])]
    if any(dim is None for dim in known):
        raise UnsupportedError("a Winograd convolution needs images and channels that are known at compile time")
    height, width = (dim or 0 for dim in known[:2])
    batch = const_value(shape[0])
    outer, images = (shape[0], 1) if batch is None else (const(1), batch)
    return _Layout(attributes.tile, outer, images, height, width, attributes.padding)


def _padded(data: Tensor, layout: _Layout) -> Tensor:
    """The input with its border, and enough rows and columns for whole tiles."""
    top, left = layout.padding[:2]
    height, width = (const_value(dim) or 0 for dim in data.shape[1:3])
    bottom, right = (
        number * layout.tile + KERNEL - 1 - low - length
        for number, low, length in ((layout.rows, top, height), (layout.columns, left, width))
    )
    return pad_spatial(data, (top, left, bottom, right), "NHWC")


def _at_pixels(output: Tensor, layout: _Layout, shape: Any) -> Tensor:
    """Results in tiles -> results in images."""
    tile = layout.tile
    return compute(
        shape,
        lambda n, y, x, o: output[*layout.number(n, y // tile, x // tile), y % tile, x % tile, o],
        "winograd",
        {"tile": tile},
    )


TileRow = Callable[[PrimExpr, int, ExprLike, Element], PrimExpr]
"""An element of a transform of a tile, along its columns (axis 0) or rows (axis 1): of the number given."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """What differs between the algorithms: the rows of B and of A, and what products sum (with the value of V)."""

    input_row: TileRow
    output_row: TileRow
    term: Callable[[PrimExpr, PrimExpr, PrimExpr, PrimExpr, PrimExpr, PrimExpr], PrimExpr]
    notes: dict[str, object]


def _convolution(
    data: Tensor, layout: _Layout, shape: Any, channels: PrimExpr, outputs: PrimExpr, parts: _Parts, count: int
) -> Tensor:
    """The stages around the products of an algorithm, for `count` tiles: those beyond the last are dropped."""
    tile, size = layout.tile, layout.tile + KERNEL - 1
    padded, outer = _padded(data, layout), layout.outer

    def pixel(n: PrimExpr, p: PrimExpr, u: ExprLike, v: ExprLike, c: ExprLike) -> PrimExpr:
        """Element (u, v) of the window of a tile; tiles beyond the last repeat it."""
        image, row, column = layout.place(build.minimum(p, layout.tiles - 1) if count > layout.tiles else p)
        return padded[n + image, row * tile + u, column * tile + v, c]

    input_rows = compute(
        (outer, count, size, size, channels),
        lambda n, p, i, v, c: parts.input_row(p, 0, i, lambda u: pixel(n, p, const(u), v, c)),
        "winograd_input_rows",
    )
    transformed = compute(
        (outer, size, size, count, channels),
        lambda n, i, j, p, c: parts.input_row(p, 1, j, lambda v: input_rows[n, p, i, v, c]),
        "winograd_input",
    )
    ic = reduce_axis((0, channels), "ic")
    product = compute(
        (outer, size, size, count, outputs),
        lambda n, i, j, p, o: reduction.sum(parts.term(i, j, p, transformed[n, i, j, p, ic], ic.var, o), [ic]),
        "winograd_product",
        parts.notes,
    )
    output_rows = compute(
        (outer, count, tile, size, outputs),
        lambda n, p, a, j, o: parts.output_row(p, 0, a, lambda i: product[n, i, j, p, o]),
        "winograd_output_rows",
    )
    output = compute(
        (outer, count, tile, tile, outputs),
        lambda n, p, a, b, o: parts.output_row(p, 1, b, lambda j: output_rows[n, p, a, j, o]),
        "winograd_output",
    )
    return _at_pixels(output, layout, shape)


@compute_of("nn.conv2d_winograd")
def _conv2d_winograd(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    data, weight = inputs
    shape = result_shape(result)
    if any(const_value(dim) is None for dim in shape[1:3]):
        return open_winograd(data, weight, attributes.tile, attributes.padding, shape)
    layout, dtype = _layout(data, attributes, result), data.dtype
    matrices = winograd_matrices(layout.tile)
    taps, *_, channels, outputs = weight.shape
    if const_value(taps) == KERNEL:
        weight = _transformed(weight, layout.tile, dtype)
    points = (layout.tile + KERNEL - 1) ** 2 * dtype.itemsize
    sizes = [const_value(dim) or 0 for dim in (channels, outputs)]
    # Groups of tiles of several images are whole images.
    count = padded_tiles(layout.tiles, *((points * sizes[0], points * prod(sizes)) if layout.images == 1 else ()))
    parts = _Parts(
        lambda p, axis, row, element: transform(input_row, matrices.input, row, element, dtype),
        lambda p, axis, row, element: transform(output_row, matrices.output, row, element, dtype),
        lambda i, j, p, value, c, o: value * weight[i, j, c, o],
        ANCHOR.entry(Anchor.WINOGRAD) | COLUMNS.entry(layout.columns) | TILES.entry(layout.tiles),
    )
    return _convolution(data, layout, shape, channels, outputs, parts, count)


@compute_of("nn.conv2d_winograd_plain")
def _conv2d_winograd_plain(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    data, weight = inputs
    layout, dtype = _layout(data, attributes, result), data.dtype
    tile = layout.tile
    size, whole = tile + KERNEL - 1, plain_matrices(tile, tile)
    *_, channels, outputs = weight.shape

    def by_border(p: PrimExpr, axis: int, value_of: Callable[[int], PrimExpr]) -> PrimExpr:
        """A value that the number of results in one direction decides, for a tile at the border and for others."""
        rest = layout.rest(axis)
        return value_of(tile) if rest == tile else build.select(layout.is_last(p, axis), value_of(rest), value_of(tile))

    def tile_input(p: PrimExpr, axis: int, row: ExprLike, element: Element) -> PrimExpr:
        return by_border(
            p, axis, lambda rest: transform(plain_row, plain_matrices(tile, rest).input, row, element, dtype)
        )

    def tile_output(p: PrimExpr, axis: int, row: ExprLike, element: Element) -> PrimExpr:
        def value_of(rest: int) -> PrimExpr:
            matrix = plain_matrices(tile, rest).output
            return transform(output_row if rest == tile else plain_row, matrix, row, element, dtype)

        return by_border(p, axis, value_of)

    weight_rows = compute(
        (size, KERNEL, channels, outputs),
        lambda i, v, c, o: transform(weight_row, whole.weight, i, lambda n: weight[n, v, c, o], dtype),
        "winograd_weight_rows",
    )
    weights = compute(
        (size, size, channels, outputs),
        lambda i, j, c, o: transform(weight_row_by_another, whole.weight, j, lambda n: weight_rows[i, n, c, o], dtype),
        "winograd_weight",
    )

    def needed(i: PrimExpr, j: PrimExpr, p: PrimExpr) -> PrimExpr:
        """Whether a tile has a point: it is the last one, infinity, or among the first."""
        conditions: list[PrimExpr] = []
        for axis, point in ((0, i), (1, j)):
            rest = layout.rest(axis)
            if rest < tile:
                among = build.logical_or(build.lt(point, rest + 1), build.eq(point, size - 1))
                conditions.append(build.logical_or(build.logical_not(layout.is_last(p, axis)), among))
        return build.all_of(conditions)

    def term(i: PrimExpr, j: PrimExpr, p: PrimExpr, value: PrimExpr, c: PrimExpr, o: PrimExpr) -> PrimExpr:
        return build.select(needed(i, j, p), value * weights[i, j, c, o], const(0.0, dtype))

    parts = _Parts(tile_input, tile_output, term, ANCHOR.entry(Anchor.WINOGRAD_PLAIN))
    return _convolution(data, layout, result_shape(result), channels, outputs, parts, layout.tiles)
