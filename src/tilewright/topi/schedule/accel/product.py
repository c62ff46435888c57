"""The schedule of products in blocks: tiles of results in accumulators, two virtual threads, EPI at each tile's end."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.accel.config import AccelConfig, Memory
from tilewright.ir.expr import Add, Call, Cast, IntImm, Max, Min, Var, const_value
from tilewright.ir.visit import variables
from tilewright.tir.accel_instructions import ACC, INP, OUT, PAR, WGT
from tilewright.tir.annotations import ANCHOR, Anchor
from tilewright.tir.buffer import Buffer
from tilewright.tir.schedule.errors import ScheduleError
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.stmt import Block, BufferStore
from tilewright.topi.fixed_point import Requantization
from tilewright.topi.intrinsics.accel import epilogue, product
from tilewright.topi.schedule.accel.tiles import Problem, Tiling, best_tilings
from tilewright.topi.schedule.context import ScheduleContext, loops_below

RESULTS = ("n", "co", "y", "x", "r", "c")
"""The loops over results, outermost first."""
SUMS = ("ci", "kh", "kw", "k")


@dataclass(frozen=True, slots=True)
class BlockedProduct:
    """The stages of a product: the staged image (if it is not the parameter itself), sums, requantisation (if any)."""

    sums: BlockHandle
    image: BlockHandle | None
    data: Buffer
    weight: Buffer
    problem: Problem
    requantized: Requantized | None = None
    """None where the sums themselves are the results."""


@dataclass(frozen=True, slots=True)
class Requantized:
    """The stage that makes bytes of sums, and what it reads."""

    block: BlockHandle
    form: Requantization
    parameters: Buffer
    residual: Buffer | None = None


def find_product(context: ScheduleContext, config: AccelConfig) -> BlockedProduct | str:
    """The product that a kernel is, else why it is none that the processor computes."""
    sch = context.sch
    anchors = [handle for handle in sch.blocks() if ANCHOR.of(context.block(handle)) is Anchor.BLOCKED_PRODUCT]
    if len(anchors) != 1:
        return "no product in blocks of channels"
    (sums,) = anchors
    consumers, producers = sch.get_consumers(sums), sch.get_producers(sums)
    if len(consumers) > 1 or (consumers or [sums]) != sch.get_output_blocks() or len(producers) > 1:
        return "the sums are not requantised, or more is computed than that"
    if len(sch.blocks()) != 1 + len(consumers) + len(producers):
        return "more is computed than the product"
    requantized = find_requantized(context, consumers[0]) if consumers else None
    if consumers and requantized is None:
        return "the sums are not requantised in fixed point"
    return _described(context, sums, producers[0] if producers else None, requantized, config)


def find_requantized(context: ScheduleContext, handle: BlockHandle) -> Requantized | None:
    """A stage that requantises in fixed point; None for another stage."""
    block, (sums,) = context.block(handle), context.sch.get_producers(handle)
    form = requantization_of(block)
    if form is None:
        return None
    written = context.block(sums).writes[0].buffer
    others = list(dict.fromkeys(item.buffer for item in block.reads if item.buffer is not written))
    parameters = next(item for item in others if item.ndim == 3)
    return Requantized(handle, form, parameters, next((item for item in others if item is not parameters), None))


def _described(
    context: ScheduleContext,
    sums: BlockHandle,
    image: BlockHandle | None,
    requantized: Requantized | None,
    config: AccelConfig,
) -> BlockedProduct | str:
    block = context.block(sums)
    own = block.writes[0].buffer
    data, weight = list(dict.fromkeys(item.buffer for item in block.reads if item.buffer is not own))
    extents = [const_value(item.domain.extent) for item in block.iters]
    shape, weights = data.static_shape, weight.static_shape
    if shape is None or weights is None or any(extent is None for extent in extents):
        return "sizes are open"
    n, co, y, x, rows, columns, *reduced = (int(extent or 0) for extent in extents)
    if (rows, columns, reduced[-1]) != (config.batch, config.block_out, config.block_in):
        return f"its blocks are {rows} x {columns} x {reduced[-1]}"
    ci, kh, kw = reduced[:3]
    height, width = shape[2], shape[3]
    down = 1 if y == 1 else (height - kh) // (y - 1)
    across = 1 if x == 1 else (width - kw) // (x - 1)
    problem = Problem(
        n,
        co,
        y,
        x,
        ci,
        kh,
        kw,
        max(1, down),
        max(1, across),
        height,
        width,
        shape[1] // ci,
        has_residual=requantized is not None and requantized.residual is not None,
        weight_blocks=weights[0],
        weight_taps=weights[2] * weights[3],
        gives_sums=requantized is None,
    )
    return BlockedProduct(sums, image, data, weight, problem, requantized)


def requantization_of(block: Block) -> Requantization | None:
    """What a stage that requantises in fixed point does; None for another stage."""
    body = block.body
    if not isinstance(body, BufferStore) or not isinstance(body.value, Cast):
        return None
    clipped = body.value.value
    if not isinstance(clipped, Min) or not isinstance(clipped.a, Max):
        return None
    high, low, value = clipped.b, clipped.a.b, clipped.a.a
    offset = 0
    if isinstance(value, Add) and isinstance(value.b, IntImm):
        offset = value.b.value
        value = value.a
    if not (isinstance(high, IntImm) and isinstance(low, IntImm) and isinstance(value, Call)):
        return None
    inputs = {item.buffer for item in block.reads if item.buffer not in {write.buffer for write in block.writes}}
    if value.name != "shift_right" or not 2 <= len(inputs) <= 3:
        return None
    return Requantization(len(inputs) == 3, offset, low.value, high.value)


def schedule_product(context: ScheduleContext, config: AccelConfig) -> None:
    """Tiles of results in accumulators.

    Before:  acc[..] += inp[..] * wgt[..];  out[..] = requantize(acc[..], par[..])
    After:   for tiles: for threads:
               for ci chunks: load INP; load WGT; ACC += INP * WGT     (GEMM)
               OUT = requantize(ACC, PAR)                              (EPI)
               out = OUT                                               (STORE)
    """
    found = find_product(context, config)
    assert isinstance(found, BlockedProduct)
    tiling = _tiling(context, found.problem, config)
    if tiling is None:
        raise ScheduleError("no tile of the product fits in the on-chip memories", func=context.sch.func)
    sch = context.sch
    last = found.requantized
    store = sch.cache_write(found.sums, 0, ACC) if last is None else sch.cache_write(last.block, 0, OUT)
    if last is not None:
        sch.set_scope(found.sums, 0, ACC)
    if found.image is None:
        image = sch.cache_read(found.sums, found.data.name, INP)
    else:
        image = found.image
        sch.set_scope(image, 0, INP)
    weights = sch.cache_read(found.sums, found.weight.name, WGT)
    parameters = None if last is None else sch.cache_read(last.block, last.parameters.name, PAR)
    tile = tile_loops(context, store, tiling)
    if last is not None:
        sch.compute_at(last.block, tile)
        if parameters is not None and found.problem.co > config.depth[Memory.PAR]:
            sch.compute_at(parameters, tile)
        elif parameters is not None and tiling.co < found.problem.co:
            # The first results need the parameters of their channels, and do not wait for all others.
            pieces, _ = sch.split(sch.get_loops(parameters)[0], [None, tiling.co])
            sch.unroll(pieces)
        if last.residual is not None:
            sch.compute_at(sch.cache_read(last.block, last.residual.name, OUT), tile)
    sch.compute_at(found.sums, tile)
    step, inside = sum_loops(context, found.sums, tile, tiling)
    for handle, stays in ((image, tiling.inputs_stay), (weights, tiling.weights_stay)):
        if not stays:
            sch.compute_at(handle, step)
        else:
            _in_pieces(context, handle)
    sch.tensorize(inside, product(config))
    if last is not None:
        below = loops_below(context, last.block, tile)
        sch.tensorize(first_lane(context, last.block, below), epilogue(config, last.form))


def _tiling(context: ScheduleContext, problem: Problem, config: AccelConfig) -> Tiling | None:
    """The tiles of the model, unless somebody else chooses."""
    threads = context.choose("threads", (1, 2), 2)
    options = {tiling.numbers: tiling for tiling in best_tilings(problem, config, threads=threads)}
    if not options:
        return None
    # What the model finds about as good comes next.
    return options[context.choose(tiling_question(threads), tuple(options), next(iter(options)))]


def tiling_question(threads: int) -> str:
    """Tilings of one thread are options of a question of their own: none of two threads is among them."""
    return "tiling" if threads == 2 else "tiling_alone"


def tile_loops(context: ScheduleContext, store: BlockHandle, tiling: Tiling) -> LoopHandle:
    """Loops over tiles of results; gives the innermost."""
    sch = context.sch
    n, co, y, x, *lanes = sch.get_loops(store)
    sizes = {"n": 1, "co": tiling.co, "y": tiling.y, "x": tiling.x}
    outer: dict[str, LoopHandle] = {}
    inner: list[LoopHandle] = []
    for name, loop in (("n", n), ("co", co), ("y", y), ("x", x)):
        tiles, within = sch.split(loop, [None, sizes[name]])
        outer[name] = tiles
        inner.append(within)
    order = ["n", "y", "x", "co"] if tiling.spatial_first else ["n", "co", "y", "x"]
    tiles_in_order = [outer[name] for name in order]
    if tiling.thread:
        number = order.index(tiling.thread)
        tiles_in_order[number], thread = sch.split(outer[tiling.thread], [None, 2])
        tiles_in_order.append(thread)
    sch.reorder(*tiles_in_order, *inner, *lanes)
    if tiling.thread:
        sch.bind(tiles_in_order[-1], "vthread")
    return tiles_in_order[-1]


def sum_loops(
    context: ScheduleContext, sums: BlockHandle, tile: LoopHandle, tiling: Tiling
) -> tuple[LoopHandle, LoopHandle]:
    """The steps of the sum around the loops of a tile; gives the loop of the steps, and that of a tensor's elements."""
    sch = context.sch
    below = loops_below(context, sums, tile)
    loops = by_iterator(context, sums, below)
    n, co, y, x, rows, columns, *reduced = loops
    *taps, depth = reduced[1:]
    spatial = [loop for loop in (n, co, y, x) if loop is not None]
    lanes = [loop for loop in (rows, columns, depth) if loop is not None]
    step, chunk = tile, None
    if reduced[0] is not None:
        step, chunk = sch.split(reduced[0], [None, tiling.ci])
    inner = [loop for loop in (chunk, *taps, *spatial, *lanes) if loop is not None]
    sch.reorder(*([] if step is tile else [step]), *inner)
    return step, lanes[0]


def by_iterator(context: ScheduleContext, handle: BlockHandle, loops: list[LoopHandle]) -> list[LoopHandle | None]:
    """The loop of each iterator of a block, or None where it has a single value there."""
    by_var: dict[Var, LoopHandle] = {loop.var: loop for loop in loops}
    result: list[LoopHandle | None] = []
    for item in context.block(handle).iters:
        own = [by_var[var] for var in variables(item.value) if var in by_var]
        result.append(own[0] if own else None)
    return result


def first_lane(context: ScheduleContext, handle: BlockHandle, loops: list[LoopHandle]) -> LoopHandle:
    """The outermost of the loops over the elements of a tensor."""
    rows, columns = by_iterator(context, handle, loops)[-2:]
    first = columns if rows is None else rows
    assert first is not None
    return first


def _in_pieces(context: ScheduleContext, handle: BlockHandle) -> None:
    """Let a copy that is made once be several: what needs the first part of it does not wait for the last."""
    sch = context.sch
    for loop in sch.get_loops(handle)[:2]:
        sch.unroll(loop)
