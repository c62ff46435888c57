"""Recurrent layers of several sequences on tensor cores: a step a kernel, its weights in registers as fragments.

for t:  for sixteen sequences and eight elements of the state, all gates, in blocks:
    for warp in threadIdx.y:  own = fragments of the weights of its steps k      (before the step in front is done)
    states = h[t-1, sequences, :]                                                (all threads, to shared memory)
    for warp in threadIdx.y:  sums[gates] += states * own                        (mma; states by ldmatrix)
    shared[warp, gates] = sums
    for element in threads:  h[t] = step(the sum of shared over warps, ...)

Weights are stored as fragments lie in registers. What a step reads besides its products comes before these.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.expr import PrimExpr, Select
from tilewright.ir.visit import find_all
from tilewright.tir.annotations import ANCHOR, Anchor
from tilewright.tir.buffer import Buffer
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.warp_instructions import WARP
from tilewright.topi.intrinsics.tensor_core import COLUMNS, ROWS, WarpProduct, warp_product
from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.gpu.matrix_form import lanes_along
from tilewright.topi.schedule.gpu.recurrent import (
    is_alone,
    read_early,
    recurrent_products,
    recurrent_steps,
    schedule_others,
)
from tilewright.topi.schedule.gpu.register_weights import sum_length
from tilewright.topi.schedule.packing import constant_parameters
from tilewright.topi.schedule.template import Template

_FIRST = -2
"""The place of a stage in front of all others."""
_SPAN = 32
"""Steps of a sum whose weights a thread reads at once: two products', sixteen bytes."""


@dataclass(frozen=True, slots=True)
class _Tile:
    """How a product is divided: warps that share its steps, and spans of each."""

    item: WarpProduct
    warps: int
    spans: int

    @property
    def depth(self) -> int:
        """Steps of all warps."""
        return self.warps * self.own

    @property
    def own(self) -> int:
        """Steps of a warp."""
        return self.spans * _SPAN

    def stored(self, g: PrimExpr, n: PrimExpr, k: PrimExpr) -> tuple[PrimExpr, ...]:
        """Weights in memory: what a thread reads at once lies side by side."""
        place = (n // COLUMNS, k // self.own, k % self.own // _SPAN, g, n % COLUMNS)
        return *place, k % 8 // 2, k % _SPAN // 16, k % 16 // 8, k % 2


def _operands(context: ScheduleContext, product: BlockHandle) -> tuple[Buffer, Buffer]:
    """States and weights of a product."""
    states, weights = (region.buffer for region in context.block(product).reads)
    return states, weights


def _why_not(context: ScheduleContext) -> str | None:
    products = recurrent_products(context)
    if not products:
        return "the kernel is no recurrent layer"
    if len(recurrent_steps(context)) > 1:
        return "products of what another product gives"
    gates = _most_gates(context, products)
    constants = constant_parameters(context.sch.func)
    for product in products:
        if ANCHOR.of(context.block(product)) is not Anchor.RECURRENCE:
            return "a single step"
        sizes = context.extents(context.sch.get_loops(product))
        if sizes is None:
            return "open sizes"
        states, weights = _operands(context, product)
        if weights not in constants or warp_product(context.target, states.dtype, weights.dtype) is None:
            return "no product of tensor cores with constant weights of such types"
        if states.dtype.bits != 16:
            return "states or weights in float32"
        steps, sequences, _, size, length = sizes
        if sequences < context.gpu.recurrence.least_sequences:
            return "too few sequences"
        if is_alone(context, steps, size * length):
            return "all steps in one block"
        if not _tiles(context, length, gates):
            return "no two warps or more have all weights in registers, and states in shared memory"
    return None


def _tiles(context: ScheduleContext, length: int, gates: int) -> list[tuple[int, int]]:
    """Warps and spans of each that hold all weights of a block in registers; the preferred ones first.

    Shared memory must hold the states of the sequences, and the sums of all warps.
    """
    machine, spans = context.gpu.recurrence, -(-length // _SPAN)
    most = min(machine.most_fragment_warps, context.target.max_threads // WARP)
    found = [(warps, -(-spans // warps)) for warps in range(2, most + 1)]
    fitting = [
        (warps, own)
        for warps, own in found
        if -(-spans // own) == warps
        and 4 * own * gates <= machine.fragment_registers
        and 2 * ROWS * (warps * own * _SPAN + COLUMNS) + 4 * warps * gates * ROWS * COLUMNS
        <= context.target.shared_bytes
    ]
    return sorted(fitting, key=lambda tile: (abs(tile[0] - machine.fragment_warps), tile[0]))


def _schedule(context: ScheduleContext) -> None:
    products, steps = recurrent_products(context), recurrent_steps(context)
    schedule_others(context, products, steps)
    tile = _choose_tile(context, products)
    # All products get whole tiles before weights that several of them may read are arranged.
    copies = {product: _whole_tiles(context, product, tile) for product in products}
    for _, weights in copies.values():
        _pack(context, weights, tile)
    for step in steps:
        own = [item for item in products if step in context.sch.get_consumers(item)]
        _schedule_step(context, step, own, [_Parts.of(context, item, *copies[item], tile) for item in own])


def _schedule_step(
    context: ScheduleContext, step: BlockHandle, products: list[BlockHandle], parts: list[_Parts]
) -> None:
    """One step, with the products that it reads, as a kernel."""
    sch = context.sch
    others = [sch.cache_read(step, name, "local") for name in read_early(context, step, products)]
    *_, batch, column = sch.get_loops(step)
    group, row = sch.split(batch, [None, ROWS])
    block, column = sch.split(column, [None, COLUMNS])
    sch.reorder(group, block, row, column)
    sch.bind(group, "blockIdx.y")
    sch.bind(block, "blockIdx.x")
    element = sch.fuse(row, column)
    for product in products:
        sch.set_scope(product, 0, "local")
        sch.compute_at(product, element, preserve_unit_loops=True)
        for loop in loops_below(context, product, element):
            sch.unroll(loop)
    warps = parts[0].tile.warps
    for copy in others:
        sch.compute_at(copy, block, preserve_unit_loops=True, index=_FIRST)
        _, row, *gates, column = loops_below(context, copy, block)
        sch.reorder(row, column, *gates)
        _spread(context, sch.fuse(row, column), warps)
        for loop in gates:
            sch.unroll(loop)
    for part in parts:
        part.place(context, block)
    _spread(context, element, warps)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The stages of a product: copies of its operands, the sums of warps, and what they write to shared memory."""

    tile: _Tile
    states: BlockHandle
    weights: BlockHandle
    sums: BlockHandle
    written: BlockHandle

    @staticmethod
    def of(
        context: ScheduleContext, product: BlockHandle, states: BlockHandle, weights: BlockHandle, tile: _Tile
    ) -> _Parts:
        """Divide the steps of a product over warps."""
        sch = context.sch
        warp, _ = sch.split(sch.get_loops(product)[-1], [tile.warps, None])
        sums = sch.rfactor(warp, 0)
        written = sch.cache_write(sums, 0, "local")
        sch.set_scope(written, 0, "shared")
        return _Parts(tile, states, weights, sums, written)

    def place(self, context: ScheduleContext, block: LoopHandle) -> None:
        """Compute all of it in a loop over blocks."""
        sch = context.sch
        for stage in (self.written, self.sums):
            sch.compute_at(stage, block, preserve_unit_loops=True)
        sch.compute_at(self.weights, block, preserve_unit_loops=True, index=_FIRST)
        _schedule_weights(context, self.weights, block, self.tile)
        once = sch.add_unit_loop(loops_below(context, self.sums, block)[0])
        sch.compute_at(self.states, once, preserve_unit_loops=True)
        _schedule_sums(context, self.sums, self.states, once, self.tile)
        _schedule_states(context, self.states, once, self.tile)
        _schedule_written(context, self.written, block)


def _choose_tile(context: ScheduleContext, products: list[BlockHandle]) -> _Tile:
    states, weights = _operands(context, products[0])
    item = warp_product(context.target, states.dtype, weights.dtype)
    assert item is not None
    tiles = _tiles(context, sum_length(context, products[0]), _most_gates(context, products))
    warps, spans = context.choose("fragment_warps", tiles, tiles[0])
    return _Tile(item, warps, spans)


def _most_gates(context: ScheduleContext, products: list[BlockHandle]) -> int:
    return max(context.sizes(context.sch.get_loops(product)[-3:])[0] for product in products)


def _whole_tiles(context: ScheduleContext, product: BlockHandle, tile: _Tile) -> tuple[BlockHandle, BlockHandle]:
    """Make whole tiles of a product; gives the copies of its states, in shared memory, and of its weights."""
    sch = context.sch
    buffers = _operands(context, product)
    padded = sch.pad_einsum(product, [1, ROWS, 1, COLUMNS, tile.depth])
    for reader in sch.get_consumers(product):
        if reader in padded:
            sch.compute_inline(reader)
    copies: list[BlockHandle] = []
    for buffer, scope in zip(buffers, ("shared", "local"), strict=True):
        mine = [item for item in sch.get_producers(product) if item in padded and _reads(context, item, buffer)]
        copies.append(mine[0] if mine else sch.cache_read(product, buffer.name, scope))
        sch.set_scope(copies[-1], 0, scope)
    return copies[0], copies[1]


def _pack(context: ScheduleContext, weights: BlockHandle, tile: _Tile) -> None:
    """Store weights as fragments lie in registers, with zeros past the ends."""
    (buffer,) = (region.buffer for region in context.block(weights).reads)
    if constant_parameters(context.sch.func)[buffer] not in context.packing:
        context.pack(weights, buffer, IndexMap.of(tile.stored, 3))
    if find_all(context.block(weights).body, Select):
        context.sch.promise_padding(weights)


def _reads(context: ScheduleContext, handle: BlockHandle, buffer: Buffer) -> bool:
    return any(region.buffer is buffer for region in context.block(handle).reads)


def _schedule_weights(context: ScheduleContext, weights: BlockHandle, block: LoopHandle, tile: _Tile) -> None:
    """Each thread's fragments of the weights, by sixteen bytes; the last span of a sum may have an end inside."""
    sch = context.sch
    gate, column, k = loops_below(context, weights, block)
    warp, span, several, half, thread, element = sch.split(k, [tile.warps, None, 2, 2, 4, 2])
    sch.reorder(warp, column, thread, span, gate, several, half, element)
    sch.vectorize(sch.fuse(several, half, element))
    buffer = context.block(weights).writes[0].buffer

    def layout(g: PrimExpr, n: PrimExpr, k: PrimExpr) -> tuple[PrimExpr, ...]:
        lane = n % COLUMNS * 4 + k % 8 // 2
        return k // tile.own, k % tile.own // _SPAN, g, k % _SPAN // 16, n // COLUMNS, lane, k % 16 // 8, k % 2

    sch.transform_layout(weights, buffer.name, IndexMap.of(layout, 3))
    sch.bind(warp, "threadIdx.y")
    sch.bind(sch.fuse(column, thread), "threadIdx.x")
    for loop in (span, gate):
        sch.unroll(loop)


def _schedule_states(context: ScheduleContext, states: BlockHandle, once: LoopHandle, tile: _Tile) -> None:
    """Copy the states of all steps of the sums, by all threads, in vectors.

    Rows of whole vectors come through registers, which is quicker than asynchronous copies (35 steps of 16 x 1024: 118
    us, 154 by these). Others take many short copies, for which registers are too few: `once` becomes a pipeline of one
    iteration, whose copies are all under way at once (16 x 650: 97 us, 142 through registers).
    """
    sch = context.sch
    lanes = lanes_along(context, states, 2, tile.item.lanes)
    _, row, k = loops_below(context, states, once)
    if lanes == tile.item.lanes:
        k, lane = sch.split(k, [None, lanes])
        own, *threads = _spread(context, sch.fuse(row, k), tile.warps)
        sch.reorder(*threads, own)
    else:
        # Neighbouring threads have a span of a row, and others rows beside it: places need no division.
        rows = min(ROWS, lanes)
        own, row = sch.split(row, [None, rows])
        warp, span, thread, lane = sch.split(k, [tile.warps, None, WARP // rows, lanes])
        sch.reorder(warp, row, thread, span, own, lane)
        sch.bind(warp, "threadIdx.y")
        sch.bind(sch.fuse(row, thread), "threadIdx.x")
        for loop in (span, own):
            sch.unroll(loop)
        sch.software_pipeline(once, [0, 1])
    sch.vectorize(lane)
    # Rows of shared memory begin in different banks.
    size = tile.item.row.itemsize
    sch.storage_align(states, 0, -2, 32 // size, 16 // size)


def _spread(context: ScheduleContext, element: LoopHandle, warps: int) -> list[LoopHandle]:
    """Divide a loop over all threads of a block; gives the loops over what a thread has, warps and lanes."""
    sch = context.sch
    own, warp, lane = sch.split(element, [None, min(warps, -(-(context.extent(element) or 1) // WARP)), WARP])
    sch.unroll(own)
    sch.bind(warp, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    return [own, warp, lane]


def _divide_sums(context: ScheduleContext, row: LoopHandle, gate: LoopHandle, column: LoopHandle) -> LoopHandle:
    """Loops over the sums of a warp, by what threads hold; gives the loop over neighbours."""
    sch = context.sch
    half, row_thread = sch.split(row, [2, ROWS // 2])
    column_thread, own = sch.split(column, [COLUMNS // 2, 2])
    sch.reorder(row_thread, column_thread, gate, half, own)
    sch.bind(sch.fuse(row_thread, column_thread), "threadIdx.x")
    for loop in (gate, half):
        sch.unroll(loop)
    return own


def _schedule_written(context: ScheduleContext, written: BlockHandle, block: LoopHandle) -> None:
    """What warps leave for the others to add up: neighbouring threads then read neighbours of a gate."""
    sch = context.sch
    warp, _, row, gate, column = loops_below(context, written, block)
    sch.vectorize(_divide_sums(context, row, gate, column))
    sch.bind(warp, "threadIdx.y")
    buffer = context.block(written).writes[0].buffer
    sch.transform_layout(written, buffer.name, lambda w, t, b, g, n: (w, t, g, b, n))


def _schedule_sums(
    context: ScheduleContext, sums: BlockHandle, states: BlockHandle, block: LoopHandle, tile: _Tile
) -> None:
    """The products of a warp, their sums in registers."""
    sch = context.sch
    item = tile.item
    warp, step, row, gate, column, k = loops_below(context, sums, block)
    warp = sch.fuse(warp, step)
    slab, k = sch.split(k, [None, item.depth])
    sch.reorder(warp, slab, gate, row, column, k)
    start = sch.decompose_reduction(sums, slab)
    buffer = context.block(sums).writes[0].buffer

    def layout(*index: PrimExpr) -> tuple[PrimExpr, ...]:
        *outer, b, g, n = index
        return item.sums_layout(*outer, g, b, n)

    sch.transform_layout(sums, buffer.name, IndexMap.of(layout, buffer.ndim))
    fragment = sch.cache_read(sums, context.block(states).writes[0].buffer.name, "local")
    sch.compute_at(fragment, slab, preserve_unit_loops=True)
    rows = context.block(fragment).writes[0].buffer

    def rows_layout(t: PrimExpr, b: PrimExpr, k: PrimExpr) -> tuple[PrimExpr, ...]:
        _, group, _, *own = item.rows_layout(t, b, k)
        return t, k // tile.own, k % tile.own // item.depth, group, *own

    sch.transform_layout(fragment, rows.name, IndexMap.of(rows_layout, rows.ndim))
    load = item.load_rows
    assert load is not None
    sch.tensorize(loops_below(context, fragment, slab)[-2], load)
    sch.tensorize(row, item.multiply)
    for loop in (slab, gate):
        sch.unroll(loop)
    sch.bind(warp, "threadIdx.y")
    first_gate, first_row, first_column = loops_below(context, start, warp)
    sch.unroll(_divide_sums(context, first_row, first_gate, first_column))


TEMPLATE = Template(
    "recurrence_fragments",
    "a step a kernel; products of several sequences on tensor cores, weights in registers before the step in front",
    _why_not,
    _schedule,
)
