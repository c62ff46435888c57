"""Tiles found by themselves: auto_tensorize brings any block that an intrinsic can compute to its tiles."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.ir.build import add, const, mul
from tilewright.ir.expr import PrimExpr, Var, const_value
from tilewright.ir.visit import variables
from tilewright.tir.analysis.intrinsic_mapping import IntrinsicMapping
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.handles import BlockHandle
from tilewright.tir.schedule.primitives import Primitives
from tilewright.tir.tensor_intrin import TensorIntrin


def auto_tensorize(
    sch: Primitives, handle: BlockHandle, intrinsic: TensorIntrin, mapping: IntrinsicMapping
) -> BlockHandle:
    """Reindex, fuse, pad, split and reorder until an intrinsic computes tiles of a block; gives the tile.

    for n, y, x, f, r, s, c:                          A_reindex[m, k] = A[...];  W_reindex[k, f] = W[...]
        C[n, y, x, f] +=                       ->     for m0, f0, k0: gemm8x8(C_reindex[m0 * 8.., f0 * 8..], ...)
            A[n, y + r, x + s, c] * W[r, s, c, f]     C[n, y, x, f] = C_reindex[m, f]
    """
    groups = [(number,) for number in mapping.rest] + [tuple(group) for group in mapping.axes]
    sizes = [const_value(item.domain.extent) or 0 for item in sch.block(handle).iters]
    copies = [
        _plain_operand(sch, handle, load, groups, sizes, load is mapping.operands[-1]) for load in mapping.operands
    ]
    if groups != [(number,) for number in range(len(sizes))]:
        sch.fuse_iterators(handle, groups)
    _pad(sch, handle, copies, mapping, [prod(sizes[number] for number in group) for group in mapping.axes])
    loops = sch.get_loops(handle)
    outer, inner = loops[: len(mapping.rest)], []
    for loop, extent in zip(loops[len(mapping.rest) :], mapping.extents, strict=True):
        tiles, tile = sch.split(loop, [None, extent])
        outer.append(tiles)
        inner.append(tile)
    sch.reorder(*outer, *inner)
    return sch.tensorize(inner[0], intrinsic)


def _plain_operand(
    sch: Primitives,
    handle: BlockHandle,
    load: BufferLoad,
    groups: Sequence[Sequence[int]],
    sizes: Sequence[int],
    is_result: bool,
) -> BlockHandle | None:
    """Give a block an operand with a dimension for each group of iterators; gives the copy, if one was needed."""
    iters = [item.var for item in sch.block(handle).iters]
    used = [number for number, var in enumerate(iters) if any(var in variables(index) for index in load.indices)]
    parts = [[number for number in group if number in used] for group in groups]
    plain = all(isinstance(index, Var) for index in load.indices) and len(set(load.indices)) == len(load.indices)
    if plain and all(len(part) < 2 for part in parts):
        return None
    copy = sch.reindex(handle, load.buffer.name, "write" if is_result else "read")
    block = sch.block(copy)
    staged = (block.reads if is_result else block.writes)[0].buffer

    def flat(*places: PrimExpr) -> tuple[PrimExpr, ...]:
        at = dict(zip(used, places, strict=True))
        result: list[PrimExpr] = []
        for part in parts:
            if part:
                position = at[part[0]]
                for number in part[1:]:
                    position = add(mul(position, const(sizes[number])), at[number])
                result.append(position)
        return tuple(result)

    sch.transform_layout(handle, staged.name, IndexMap.of(flat, len(used)))
    if not is_result:
        sch.fuse_iterators(copy, [[used.index(number) for number in part] for part in parts if part])
    return copy


def _pad(
    sch: Primitives,
    handle: BlockHandle,
    copies: Sequence[BlockHandle | None],
    mapping: IntrinsicMapping,
    lengths: Sequence[int],
) -> None:
    """Make the axes multiples of the intrinsic's, with zeros; copies of operands go into the padding."""
    if all(length % extent == 0 for length, extent in zip(lengths, mapping.extents, strict=True)):
        return
    paddings = sch.pad_einsum(handle, [*(1 for _ in mapping.rest), *mapping.extents])
    for padding in paddings:
        for copy in copies[:-1]:
            if copy is not None and copy in sch.get_producers(padding):
                sch.compute_inline(copy)
        if copies[-1] is not None and copies[-1] in sch.get_consumers(padding):
            sch.compute_inline(padding)
