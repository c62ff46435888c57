"""A space by rule: multi-level tiling of any contraction, with vectors, unrolled loops and cores as choices.

    task = tw.tune.tiled_contraction(func, target)      # func: a program of one reduction, unscheduled

Every spatial loop is divided into three levels and every loop of the reduction into two, in the order

    spatial 0, spatial 1, reduction 0, reduction 1, spatial 2

so that the innermost spatial tiles are register tiles. Nothing is known of the computation but its loops.
"""

from __future__ import annotations

from math import prod

from tilewright.ir.expr import const_value
from tilewright.support.errors import UserError
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.schedule.schedule import Schedule
from tilewright.tir.stmt import IterKind
from tilewright.topi.schedule.choices import Choices
from tilewright.tune.task import Task
from tilewright.tune.templates import factorizations, program_task

_MOST_LANES = 4
"""Registers that the innermost tile of the last axis may fill."""
_UNROLLED = (0, 16, 64, 256)


def tiled_contraction(func: PrimFunc, target: Target, label: str = "contraction") -> Task:
    """The task of tuning a program with one contraction, by the rule; its other stages must be elementwise."""
    block = _contraction(Schedule(func))
    loops = Schedule(func).get_loops(block)
    if any(const_value(Schedule(func).loop(loop).extent) is None for loop in loops):
        raise UserError(f"'{block.name}' has symbolic extents: the rule tiles constant ones")
    return program_task(lambda choices: tile_by_rule(func, target, choices), label, target)


def tile_by_rule(func: PrimFunc, target: Target, choices: Choices) -> PrimFunc:
    """The program with its contraction tiled as the choices say."""
    sch = Schedule(func)
    block = _contraction(sch)
    loops = sch.get_loops(block)
    reduce_vars = {item.value for item in sch.block(block).iters if item.kind is IterKind.REDUCE}
    spatial = [loop for loop in loops if loop.var not in reduce_vars]
    reduction = [loop for loop in loops if loop.var in reduce_vars]
    lanes = max(1, target.lanes(max(8, sch.block(block).writes[0].buffer.dtype.bits)))
    tiles = [_split(sch, choices, f"spatial{n}", loop, 3, _most(spatial, n, lanes)) for n, loop in enumerate(spatial)]
    depths = [_split(sch, choices, f"reduce{n}", loop, 2, 64) for n, loop in enumerate(reduction)]
    outer, middle, inner = ([tile[level] for tile in tiles] for level in range(3))
    sch.reorder(*outer, *middle, *(depth[0] for depth in depths), *(depth[1] for depth in depths), *inner)
    start = sch.decompose_reduction(block, depths[0][0])
    _unroll(sch, choices, [*(depth[1] for depth in depths), *inner[:-1]])
    if inner and _extent(sch, inner[-1]) > 1:
        sch.vectorize(inner[-1])
        sch.vectorize(sch.get_loops(start)[-1])
    _parallelize(sch, choices, outer, target)
    return sch.func


def _contraction(sch: Schedule) -> BlockHandle:
    found = [handle for handle in sch.blocks() if sch.block(handle).is_reduction]
    if len(found) != 1:
        raise UserError(f"the rule tiles programs with one reduction, not with {len(found)}")
    return found[0]


def _most(spatial: list[LoopHandle], number: int, lanes: int) -> int:
    """How long the innermost tile of an axis may be: some registers along the last axis, some rows along others."""
    return lanes * _MOST_LANES if number == len(spatial) - 1 else 16


def _split(sch: Schedule, choices: Choices, name: str, loop: LoopHandle, parts: int, most: int) -> list[LoopHandle]:
    """A loop divided without remainder; by default the innermost part is as long as it may be."""
    options = [sizes for sizes in factorizations(_extent(sch, loop), parts) if sizes[-1] <= most]
    default = max(options, key=lambda sizes: (sizes[-1], sizes[0]))
    sizes = choices.choose(name, options, default)
    return sch.split(loop, [None, *sizes[1:]])


def _unroll(sch: Schedule, choices: Choices, loops: list[LoopHandle]) -> None:
    """Unroll the innermost loops as far as the body does not get longer than was chosen."""
    most = choices.choose("unroll", _UNROLLED, 16)
    length = 1
    for loop in reversed(loops):
        length *= _extent(sch, loop)
        if length > most:
            return
        sch.unroll(loop)


def _parallelize(sch: Schedule, choices: Choices, outer: list[LoopHandle], target: Target) -> None:
    """Some outer loops, fused, on all cores."""
    if target.cores < 2 or not outer:
        return
    count = choices.choose("parallel", range(len(outer) + 1), len(outer))
    if count and prod(_extent(sch, loop) for loop in outer[:count]) > 1:
        sch.parallel(sch.fuse(*outer[:count]) if count > 1 else outer[0])


def _extent(sch: Schedule, loop: LoopHandle) -> int:
    found = const_value(sch.loop(loop).extent)
    assert found is not None
    return found
