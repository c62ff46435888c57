"""Winograd's algorithm for images whose height or width is open (known when the kernel runs), as tensor expressions.

    window          the pixels of each tile, with zeros past the image
    input_rows      B d
    input           V = B d B'
    product         M = V U      for each block of tiles (m + 2)^2 independent matrix products
    output_rows     A M
    output          Y = A M A'
    winograd        Y at its pixels (partial tiles are cut)

The tiles of an image are counted row by row, and come in blocks of a fixed number: the number of blocks is open.
Every stage has the axes (image, block, tile in the block, ...), products (image, block, i, j, tile in the block, ...).
The last tile is repeated to fill the last block.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.arith.analyzer import Analyzer
from tilewright.graph.ops.winograd import KERNEL, winograd_matrices
from tilewright.graph.ops.winograd import OPEN_BLOCK_TILES as BLOCK_TILES
from tilewright.ir import build
from tilewright.ir.build import const
from tilewright.ir.expr import ExprLike, PrimExpr
from tilewright.te import reduction
from tilewright.te.language import compute, reduce_axis
from tilewright.te.tensor import Tensor
from tilewright.tir.annotations import ANCHOR, Anchor
from tilewright.topi.winograd_transforms import Element, input_row, output_row, transform


def open_winograd(
    data: Tensor, weight: Tensor, tile: int, padding: tuple[int, int, int, int], shape: Sequence[PrimExpr]
) -> Tensor:
    """A 3 x 3 convolution of stride 1 with transformed weights, of images (batch, height, width, channels)."""
    images, height, width, outputs = shape
    top, left = padding[:2]
    channels, dtype, size = data.shape[3], data.dtype, tile + KERNEL - 1
    matrices = winograd_matrices(tile)
    simplify = Analyzer().simplify  # as schedules write the extents of the loops that they make
    rows, columns = (simplify(build.floordiv(length + (tile - 1), tile)) for length in (height, width))
    tiles = simplify(rows * columns)
    blocks = simplify(build.floordiv(tiles + (BLOCK_TILES - 1), BLOCK_TILES))

    def transformed_input(row: PrimExpr, element: Element) -> PrimExpr:
        return transform(input_row, matrices.input, row, element, dtype)

    def transformed_output(row: PrimExpr, element: Element) -> PrimExpr:
        return transform(output_row, matrices.output, row, element, dtype)

    def pixel(n: PrimExpr, b: PrimExpr, p: PrimExpr, u: PrimExpr, v: PrimExpr, c: PrimExpr) -> PrimExpr:
        number = build.minimum(b * BLOCK_TILES + p, tiles - 1)
        y = number // columns * tile + u - top
        x = number % columns * tile + v - left
        inside = build.all_of([build.le(0, y), build.lt(y, data.shape[1]), build.le(0, x), build.lt(x, data.shape[2])])
        return build.select(inside, data[n, y, x, c], const(0.0, dtype))

    window = compute((images, blocks, BLOCK_TILES, size, size, channels), pixel, "winograd_window")
    input_rows = compute(
        (images, blocks, BLOCK_TILES, size, size, channels),
        lambda n, b, p, i, v, c: transformed_input(i, lambda u: window[n, b, p, u, v, c]),
        "winograd_input_rows",
    )
    transformed = compute(
        (images, blocks, size, size, BLOCK_TILES, channels),
        lambda n, b, i, j, p, c: transformed_input(j, lambda v: input_rows[n, b, p, i, v, c]),
        "winograd_input",
    )
    ic = reduce_axis((0, channels), "ic")
    product = compute(
        (images, blocks, size, size, BLOCK_TILES, outputs),
        lambda n, b, i, j, p, o: reduction.sum(transformed[n, b, i, j, p, ic] * weight[i, j, ic, o], [ic]),
        "winograd_product",
        ANCHOR.entry(Anchor.WINOGRAD_OPEN),
    )
    output_rows = compute(
        (images, blocks, BLOCK_TILES, tile, size, outputs),
        lambda n, b, p, i, j, o: transformed_output(i, lambda u: product[n, b, u, j, p, o]),
        "winograd_output_rows",
    )
    output = compute(
        (images, blocks, BLOCK_TILES, tile, tile, outputs),
        lambda n, b, p, i, j, o: transformed_output(j, lambda v: output_rows[n, b, p, i, v, o]),
        "winograd_output",
    )

    def result(n: ExprLike, y: PrimExpr, x: PrimExpr, o: ExprLike) -> PrimExpr:
        number = y // tile * columns + x // tile
        return output[n, number // BLOCK_TILES, number % BLOCK_TILES, y % tile, x % tile, o]

    return compute(shape, result, "winograd", {"tile": tile})
