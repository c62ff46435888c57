"""Where several blocks of threads share the keys of a head: a kernel that merges what each has found (flash decoding).

for sequence, head, query, element:
    best = max over parts of part_max;  weight = 2^(factor * (part_max - best))
    attention = sum over parts of part_values * weight  /  sum over parts of part_sum * weight
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tilewright.ir import build
from tilewright.ir.build import const
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.expr import ZERO, PrimExpr, Range, Var
from tilewright.tir.analysis.accesses import with_detected_accesses
from tilewright.tir.buffer import Buffer, make_buffer
from tilewright.tir.stmt import Block, BlockIter, BufferStore, For, IterKind, LoopKind, Stmt, seq
from tilewright.topi.schedule.gpu.attention.blocks import MINUS_INFINITY, ZERO_FLOAT, exp2, inverse_of, unless_masked
from tilewright.topi.schedule.gpu.attention.sizes import AttentionSizes, AttentionTile


class Parts(Protocol):
    """The program that leaves the results of parts, in the memory of the device."""

    sizes: AttentionSizes
    tile: AttentionTile
    buffers: list[Buffer]
    factor: PrimExpr
    """What scores are multiplied by to be exponents of two."""
    part_max: Buffer
    part_sum: Buffer
    part_values: Buffer

    def store_result(self, b: PrimExpr, h: PrimExpr, i: PrimExpr, e: PrimExpr, *found: PrimExpr) -> BufferStore:
        """An element of the result, from that of the accumulator, the sum of exponentials, and the largest score."""
        ...


def merge_parts(program: Parts) -> Stmt:
    """The stages of the second kernel, in one nest of loops over results."""
    sizes, parts = program.sizes, program.tile.parts
    extents = (sizes.batch, sizes.heads, sizes.queries, sizes.width)
    loops = [Var(f"merged_{name}") for name in ("sequence", "head", "query", "element")]
    best, total, merged = (
        make_buffer(name, extents, FLOAT32, "local") for name in ("best_part", "merged_sum", "merged")
    )
    program.buffers.extend((best, total, merged))

    def stage(name: str, store: Callable[..., BufferStore], start: BufferStore | None = None) -> Stmt:
        part = Var(f"{name}_part")
        places: list[tuple[int, IterKind, PrimExpr]] = [
            (extent, IterKind.SPATIAL, loop) for extent, loop in zip(extents, loops, strict=True)
        ]
        if start is not None:
            places.append((parts, IterKind.REDUCE, part))
        iters = tuple(
            BlockIter(Var(f"v{n}"), Range(ZERO, const(extent)), kind, value)
            for n, (extent, kind, value) in enumerate(places)
        )
        at = [item.var for item in iters]
        init = None if start is None else start.replace(indices=tuple(at[:4]))
        block = with_detected_accesses(Block(f"attention_{name}", iters, (), (), store(*at), init))
        return block if start is None else For(part, ZERO, const(parts), LoopKind.SERIAL, block)

    def weight(*place: PrimExpr) -> PrimExpr:
        b, h, i, e, p = place
        shift = unless_masked(best[b, h, i, e], best[b, h, i, e] * program.factor, ZERO_FLOAT)
        return exp2(program.part_max[b, h * parts + p, i, ZERO] * program.factor - shift)

    def largest(b: PrimExpr, h: PrimExpr, i: PrimExpr, e: PrimExpr, p: PrimExpr) -> BufferStore:
        of_part = program.part_max[b, h * parts + p, i, ZERO]
        return BufferStore(best, (b, h, i, e), build.maximum(best[b, h, i, e], of_part))

    def weighted_sum(b: PrimExpr, h: PrimExpr, i: PrimExpr, e: PrimExpr, p: PrimExpr) -> BufferStore:
        of_part = program.part_sum[b, h * parts + p, i, ZERO]
        return BufferStore(total, (b, h, i, e), total[b, h, i, e] + of_part * weight(b, h, i, e, p))

    def weighted_value(b: PrimExpr, h: PrimExpr, i: PrimExpr, e: PrimExpr, p: PrimExpr) -> BufferStore:
        of_part = program.part_values[b, h * parts + p, i, e]
        return BufferStore(merged, (b, h, i, e), merged[b, h, i, e] + of_part * weight(b, h, i, e, p))

    def result(*place: PrimExpr) -> BufferStore:
        return program.store_result(*place, merged[place], inverse_of(total[place]), best[place])

    places = tuple(loops)
    body = seq(
        stage("best_part", largest, BufferStore(best, places, MINUS_INFINITY)),
        stage("merged_sum", weighted_sum, BufferStore(total, places, ZERO_FLOAT)),
        stage("merged", weighted_value, BufferStore(merged, places, ZERO_FLOAT)),
        stage("merged_result", result),
    )
    for var, extent in reversed(list(zip(loops, extents, strict=True))):
        body = For(var, ZERO, const(extent), LoopKind.SERIAL, body)
    return body
