"""Rearranging buffers: transform_layout."""

from __future__ import annotations

from tilewright.arith.analyzer import Analyzer
from tilewright.arith.itermap import detect_iter_map
from tilewright.ir.expr import FloorMod, IntImm, PrimExpr, Var, const_value
from tilewright.ir.node import Node
from tilewright.ir.visit import uses_any
from tilewright.tir.buffer import Buffer, BufferLoad, BufferRegion
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.state import ScheduleState, transform_users
from tilewright.tir.stmt import Block, BufferStore, Stmt


def transform_layout(state: ScheduleState, block: Block, buffer: Buffer, index_map: IndexMap) -> None:
    """Store the elements of a buffer in another arrangement; every access follows.

    Before:  C[i, j] += A[i, k] * B[k, j]
    After `transform_layout(C, "B", lambda k, j: (j // 16, k, j % 16))`:
             C[i, j] += A[i, k] * B[j // 16, k, j % 16]

    The map must send different elements to different places. A parameter keeps its name and place in the signature
    but not its shape: whoever calls the function gives it in the new arrangement.
    """
    if len(index_map.inputs) != len(buffer.shape):
        state.fail(
            f"transform_layout: the map takes {len(index_map.inputs)} indices, buffer {buffer.name} has {buffer.ndim}",
            block,
        )
    if not index_map.is_rearrangement() and not _keeps_apart(buffer, index_map):
        state.fail(
            f"transform_layout: the map does not provably keep the elements of {buffer.name} apart",
            block,
            "use maps made of i, i // c, i % c and fused indices i * n + j",
        )
    arranged = buffer.replace(shape=_shape(state, block, buffer, index_map), strides=())
    func = state.func
    body = _rewrite(func.body, buffer, arranged, index_map)
    params = tuple(arranged if param is buffer else param for param in func.params)
    state.commit(func.replace(params=params, body=body))


def _keeps_apart(buffer: Buffer, index_map: IndexMap) -> bool:
    """Whether different elements certainly go to different places."""
    iter_map = detect_iter_map(index_map.outputs, index_map.domains(buffer))
    return iter_map is not None and iter_map.injective


def _shape(state: ScheduleState, block: Block, buffer: Buffer, index_map: IndexMap) -> tuple[PrimExpr, ...]:
    """The extents that hold every new index: from the bounds of each output over the old shape."""
    analyzer = Analyzer()
    for var, domain in index_map.domains(buffer).items():
        analyzer.bind(var, domain)
    whole = dict(zip(index_map.inputs, buffer.shape, strict=True))
    dims: list[PrimExpr] = []
    for item in index_map.outputs:
        if isinstance(item, Var) and item in whole:
            dims.append(whole[item])
            continue
        used = [const_value(dim) for var, dim in whole.items() if uses_any(item, [var])]
        if None in used or 0 in used:
            state.fail(f"transform_layout: dimensions of {buffer.name} that change must be constant, not empty", block)
        bounds = analyzer.bounds(item)
        if bounds.upper is None or bounds.lower is None or bounds.lower < 0:
            state.fail(f"transform_layout: the new indices of {buffer.name} are not provably within bounds", block)
        # The inner part of a divided axis has its full size even where the axis is shorter: the rest is padding.
        divisor = const_value(item.b) if isinstance(item, FloorMod) else None
        dims.append(IntImm(bounds.upper + 1 if divisor is None else divisor))
    return tuple(dims)


def _rewrite(stmt: Stmt, old: Buffer, new: Buffer, index_map: IndexMap) -> Stmt:
    def visit(item: Node) -> Node | None:
        if isinstance(item, BufferLoad) and item.buffer is old:
            return BufferLoad(new, index_map.apply(item.indices))
        if isinstance(item, BufferStore) and item.buffer is old:
            return BufferStore(new, index_map.apply(item.indices), item.value)
        if isinstance(item, BufferRegion) and item.buffer is old:
            if all(const_value(part.extent) == 1 for part in item.region):
                return BufferRegion.point(new, index_map.apply([part.min for part in item.region]))
            return new.full_region()
        if isinstance(item, Block) and old in item.allocations:
            return item.replace(allocations=tuple(new if buffer is old else buffer for buffer in item.allocations))
        return None

    return transform_users(stmt, (old,), visit)
