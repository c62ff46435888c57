"""The schedule of matrix products and convolutions: brought to matrix form, then computed by tiles."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tilewright.tir.schedule.errors import ScheduleError
from tilewright.tir.schedule.handles import BlockHandle
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.gpu.attempt import attempt
from tilewright.topi.schedule.gpu.block_tile import VECTOR
from tilewright.topi.schedule.gpu.group_choice import schedule_by_groups
from tilewright.topi.schedule.gpu.matrix_form import MatrixForm, find_product, has_matrix_form, lanes_along, matrix_form
from tilewright.topi.schedule.gpu.tile_choice import Shape, ranked_tiles, tile_options
from tilewright.topi.schedule.gpu.tiles import Tile, schedule_tiles
from tilewright.topi.schedule.gpu.warp_choice import schedule_on_tensor_cores

_LEAST_SIDE = 4
"""Rows and columns of a product from which on tiles pay."""
_LEAST_DEPTH = 8
"""Steps of a product from which on tiles pay."""
_TRIED = 8
"""Tiles that are tried."""
_LEAST_THREADS = 16
"""Threads of a block that tiles need."""


def is_tileable(context: ScheduleContext, anchor: BlockHandle) -> BlockHandle | None:
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


def schedule_contraction(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> list[BlockHandle]:
    """Schedule a product with its epilogue; gives all blocks that are computed in its kernel."""
    sch = context.sch
    others = {handle.name for handle in sch.blocks()} - {anchor.name, output.name}
    if not schedule_by_groups(context, anchor, output):
        form = matrix_form(context, anchor, output)
        if not schedule_on_tensor_cores(context, form):
            _schedule_by_threads(context, form)
    return [handle for handle in context.sch.blocks() if handle.name not in others]


def _schedule_by_threads(context: ScheduleContext, form: MatrixForm) -> None:
    """Tiles of threads: a tile whose steps cannot all be shown to be right (guards that meet) gives way to the next."""
    for tile in _choose(context, form):
        if attempt(context, partial(_by_tile, form=replace(form), tile=tile)):
            return
    raise ScheduleError("no tile fits the product", func=context.sch.func)


def _by_tile(context: ScheduleContext, form: MatrixForm, tile: Tile) -> bool:
    schedule_tiles(context, form, tile)
    return True


def _choose(context: ScheduleContext, form: MatrixForm) -> list[Tile]:
    """The tile of a product, by the model or by the tuner, and what to take in its place."""
    item = context.target.shared_item(max(region.buffer.dtype.itemsize for region in context.block(form.anchor).reads))
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
    given = context.choices.given.get("tile")
    if given not in options and given in {tile.answer for tile in ranked}:
        # Found when the model ranked otherwise; it still fits.
        options.append(given)
    chosen = Tile(*context.choose_again("tile", options, options[0]))
    return [chosen, *(tile for tile in ranked[:_TRIED] if tile != chosen)]
