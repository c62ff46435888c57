"""The schedule of matrix products and convolutions: brought to matrix form, then computed by tiles."""

from __future__ import annotations

from tilewright.tir.schedule.handles import BlockHandle
from tilewright.topi.schedule.cpu.context import CpuContext
from tilewright.topi.schedule.gpu.matrix_form import MatrixForm, find_product, has_matrix_form, lanes_along, matrix_form
from tilewright.topi.schedule.gpu.tile_choice import Shape, ranked_tiles, tile_options
from tilewright.topi.schedule.gpu.tiles import VECTOR, Tile, schedule_tiles

_LEAST_SIDE = 4
"""Rows and columns of a product from which on tiles pay."""
_LEAST_DEPTH = 8
"""Steps of a product from which on tiles pay."""
_LEAST_THREADS = 16
"""Threads of a block that tiles need."""


def is_tileable(context: CpuContext, anchor: BlockHandle) -> BlockHandle | None:
    """The stage that gives the result of a product that can be tiled: the product itself, or its epilogue."""
    block = context.block(anchor)
    if not block.is_reduction or context.target.max_threads < _LEAST_THREADS:
        return None
    product = find_product(block)
    if product is None:
        return None
    sides = min(product.size(product.row), product.size(product.column))
    if sides < _LEAST_SIDE or product.size(product.depth) < _LEAST_DEPTH:
        return None
    consumers = context.sch.get_consumers(anchor)
    if len(consumers) == 1 and has_matrix_form(context, anchor, consumers[0]):
        return consumers[0]
    return anchor if has_matrix_form(context, anchor, anchor) else None


def schedule_contraction(context: CpuContext, anchor: BlockHandle, output: BlockHandle) -> list[BlockHandle]:
    """Schedule a product with its epilogue; gives all blocks that are computed in its kernel."""
    sch = context.sch
    form = matrix_form(context, anchor, output)
    tile = _choose(context, form)
    schedule_tiles(context, form, tile)
    root = sch.get_loops(form.output)[0]
    return [handle for handle in sch.blocks() if root in sch.get_loops(handle)[:1]]


def _choose(context: CpuContext, form: MatrixForm) -> Tile:
    """The tile of a product: by the model, or by the tuner."""
    item = max(region.buffer.dtype.itemsize for region in context.block(form.anchor).reads)
    shape = Shape(
        form.batch,
        form.row_count,
        form.column_count,
        form.depth,
        item,
        lanes_along(context, form.rows, len(context.block(form.rows).iters) - 1, VECTOR),
        lanes_along(context, form.columns, len(context.block(form.columns).iters) - 1, VECTOR),
    )
    ranked = ranked_tiles(shape, context.target)
    options = [tile.answer for tile in tile_options(ranked)]
    return Tile(*context.choose_again("tile", options, options[0]))
