"""Which products warp groups compute, and by which tiles: candidates for a shape, ranked by an analytic model.

Its numbers are fitted to a hundred tiles of twenty-five products, measured on an H200: 15% off in the mean, and what it
likes best is one percent slower than the best measured.
"""

from __future__ import annotations

from dataclasses import astuple
from functools import cache, partial
from itertools import product
from typing import Final

from tilewright.ir.dtype import FLOAT32, DataType
from tilewright.target import Target
from tilewright.target.tensor_cores import ROUNDED_PRODUCT
from tilewright.tir.schedule.handles import BlockHandle
from tilewright.tir.warp_instructions import GROUP_COLUMNS, GROUP_PANELS
from tilewright.topi.intrinsics.warp_group import ROWS, GroupProduct, group_product
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.gpu.attempt import attempt
from tilewright.topi.schedule.gpu.matrix_form import MatrixForm, find_product, lanes_along, matrix_form
from tilewright.topi.schedule.gpu.warp_choice import warp_cost
from tilewright.topi.schedule.gpu.warp_groups import GroupTile, schedule_group_tiles

_LEAST_COLUMNS: Final = 32
_PRODUCTS: Final = {2: 2000.0, 4: 1000.0}
"""Products that a multiprocessor finishes in a cycle, by the bytes of an element."""
_FETCHED: Final = 50.0
"""Bytes that a multiprocessor gets from the second-level cache in a cycle."""
_READ: Final = 58.0
"""Bytes that products get from shared memory in a cycle."""
_WRITTEN: Final = 3.3
"""Results that a block writes in a cycle."""
_LATENCY: Final = 790.0
"""Cycles from the start of a copy to its data."""
_STEP: Final = 5.0
"""Cycles that a step costs beside its work: waiting, the barrier, addresses."""
_START: Final = 2300.0
"""Cycles of a block beside its steps: starting, the first copies."""
_SECOND: Final = 3150.0
"""Cycles of the kernel that adds up parts beside its work."""
_ADDED: Final = 50.0
"""Bytes of parts that a multiprocessor adds up in a cycle."""
_STAGES: Final = 4
"""Copies of the operands' tiles where more or less make no difference."""
_TOGETHER: Final = 8
"""Rows of blocks that run together."""
_WORK: Final = ROUNDED_PRODUCT
"""Products from which on warp groups are taken without being asked for: below, all is over in a few microseconds."""
_OPTIONS: Final = 24
"""Candidates that a tuner chooses from."""


def schedule_by_groups(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> bool:
    """Schedule a product with its epilogue for warp groups, if the target has them and they are the best for it."""
    found = find_product(context.block(anchor))
    assert found is not None
    dtype = found.rows.buffer.dtype
    if found.columns.buffer.dtype is not dtype or group_product(context.target, dtype, _LEAST_COLUMNS) is None:
        return False
    if dtype is FLOAT32 and not context.target.has_feature("tf32"):
        return False
    if context.block(anchor).writes[0].buffer.dtype is not FLOAT32:
        return False
    if found.size(found.row) < ROWS // 2 or found.size(found.column) < _LEAST_COLUMNS:
        return False
    if found.size(found.depth) < 2 * GroupProduct(dtype, _LEAST_COLUMNS).steps:
        return False
    return attempt(context, partial(_by_groups, anchor=anchor, output=output, dtype=dtype))


def _by_groups(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle, dtype: DataType) -> bool:
    form = matrix_form(context, anchor, output, steps_last=True)
    panels = _lies_in_panels(context, form, dtype)
    if panels is None:
        return False
    sizes = (form.batch, form.row_count, form.column_count, form.depth)
    ranked = ranked_group_tiles(*sizes, dtype, panels, context.target)
    if not ranked:
        return False
    large = form.batch * form.row_count * form.column_count * form.depth >= _WORK
    if dtype is FLOAT32 and not large:
        return False  # Its operands are not rounded to tf32: other instructions do that by themselves.
    pays = large and group_cost(*sizes, dtype, ranked[0], context.target) < warp_cost(*sizes, dtype, context.target)
    options = [(), *(astuple(tile) for tile in ranked[:_OPTIONS])]
    given = context.choices.given.get("group_tile")
    if given not in options and given in {astuple(tile) for tile in ranked}:
        # Found when the model ranked otherwise; it still fits.
        options.append(given)
    chosen = context.choose_again("group_tile", options, options[1] if pays else ())
    if not chosen:
        return False
    tile = GroupTile(*chosen)
    item = group_product(context.target, dtype, tile.columns, panels)
    if item is None:
        return False
    schedule_group_tiles(context, form, item, tile)
    return True


def _lies_in_panels(context: ScheduleContext, form: MatrixForm, dtype: DataType) -> bool | None:
    """Whether columns are neighbours in the second operand, not steps; None if 16 bytes of neither can be copied."""
    lanes = 16 // dtype.itemsize
    last = len(context.block(form.rows).iters) - 1
    if lanes_along(context, form.rows, last, lanes) < lanes:
        return None
    if lanes_along(context, form.columns, last - 1, lanes, reads_only=True) == lanes:
        return False
    return True if dtype is not FLOAT32 and lanes_along(context, form.columns, last, lanes) == lanes else None


@cache
def ranked_group_tiles(
    batch: int, rows: int, columns: int, depth: int, dtype: DataType, panels: bool, target: Target
) -> tuple[GroupTile, ...]:
    """The tiles that fit a target, cheapest first."""
    widths = GROUP_PANELS if panels else [width for width in GROUP_COLUMNS if width >= _LEAST_COLUMNS]
    steps = -(-depth // (128 // dtype.itemsize))
    tiles = [
        GroupTile(groups, width, stages, _TOGETHER, parts)
        for groups, width, stages, parts in product((1, 2), widths, (3, 4, 5, 6), (1, 2, 4, 8, 16))
        if parts == 1 or steps >= 2 * parts
    ]
    fitting = [tile for tile in tiles if tile.shared_bytes <= target.shared_bytes]
    costs = {tile: group_cost(batch, rows, columns, depth, dtype, tile, target) for tile in fitting}
    return tuple(sorted(fitting, key=lambda tile: (costs[tile], abs(tile.stages - _STAGES))))


def group_cost(
    batch: int, rows: int, columns: int, depth: int, dtype: DataType, tile: GroupTile, target: Target
) -> float:
    """Cycles that a product takes by a tile of warp groups; blocks that fit a multiprocessor together share it."""
    blocks = batch * -(-rows // tile.rows) * -(-columns // tile.columns) * tile.parts
    held = max(1, target.shared_bytes // (tile.shared_bytes + 1024))
    held = min(held, max(1, 65536 // (128 * tile.groups * (tile.columns // 2 + 48))))
    rounds, rest = divmod(-(-blocks // target.cores), held)
    steps = -(-depth // (128 // dtype.itemsize * tile.parts))
    total = rounds * _round_cost(steps, dtype, tile, held)
    if rest:
        total += _round_cost(steps, dtype, tile, rest)
    if tile.parts > 1:
        total += _SECOND + batch * rows * columns * tile.parts * 4 / (_ADDED * target.cores)
    return total


def _round_cost(steps: int, dtype: DataType, tile: GroupTile, together: int) -> float:
    """Cycles of some blocks that share a multiprocessor, from their start to their end."""
    work = tile.rows * tile.columns * 128 / dtype.itemsize / _PRODUCTS[dtype.itemsize]
    fetched = (tile.rows + tile.columns) * 128 / _FETCHED
    read = tile.groups * (ROWS + tile.columns) * 128 / _READ
    busy = max(together * max(work, fetched, read), _LATENCY / (tile.stages - 2))
    return _START + steps * (busy + _STEP) + tile.rows * tile.columns / _WRITTEN
