"""The schedule of products of bytes (16-bit integers, or bfloat16) on dot-product instructions."""

from __future__ import annotations

from math import log2, prod

from tilewright.tir.annotations import PREFETCH_NEAR
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.stmt import IterKind
from tilewright.topi.intrinsics.dot import DotInstruction, dot_instruction
from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.cpu.anchors import contraction_template
from tilewright.topi.schedule.cpu.injective import schedule_injective
from tilewright.topi.schedule.cpu.narrow_product import Product, find_product, pack_columns
from tilewright.topi.schedule.cpu.prefetch import buffer_bytes, prefetch_panels, result_places, run_ahead
from tilewright.topi.schedule.cpu.register_tiles import reduction_size, row_axis, shared_axis, start_at_bias
from tilewright.topi.schedule.cpu.tile_choice import choose_tile
from tilewright.topi.schedule.cpu.tiling import RegisterTile, divisors
from tilewright.topi.schedule.cpu.unrolling import unroll_steps

_FEW_LOADS = 2
"""Loads of a row that give a whole reduction: its steps are then unrolled, whatever their number."""
_UNROLLED = 2
"""Steps of a reduction in one iteration, where a load of a row gives one."""
_FEW_BYTES = 8
"""Results of a vector of sums below which several vectors are better stored at once."""


def _matches(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> str | None:
    """A contraction whose operands fit a dot-product instruction."""
    product = find_product(context, anchor)
    if product is None:
        return "no product of narrow operands with constant columns"
    instruction = dot_instruction(context.target, product.rows.dtype, product.columns.dtype)
    if instruction is None:
        return f"no dot products of {product.rows.dtype} and {product.columns.dtype} on this processor"
    if product.depth % instruction.group or product.width % instruction.lanes:
        return "sizes are no whole vectors"
    return "no elements" if prod(context.sizes(context.sch.get_loops(output))) == 0 else None


def schedule_dot_product(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle) -> None:
    """A register tile around dot-product instructions.

    Before:  c[i, j] += int32(a[i, k]) * int32(w[k, j]);  out[i, j] = epilogue(c[i, j])
    After:   for jo, io:
               acc[ii, ji] = 0;  for ko: acc[ii, ji] = dot(acc[ii, ji], a[i, 4 ko ..], w[jo, ko, ..])   (in registers)
               out[i, j] = epilogue(acc[ii, ji])
    """
    product = find_product(context, anchor)
    assert product is not None
    instruction = dot_instruction(context.target, product.rows.dtype, product.columns.dtype)
    assert instruction is not None
    sch = context.sch
    for producer in sch.get_producers(anchor):
        schedule_injective(context, producer)
    if anchor.name == output.name:
        output = sch.cache_write(anchor, 0, "local")
    start_at_bias(context, anchor)
    loops = sch.get_loops(output)
    extents = context.sizes(loops)
    row = shared_axis(context.block(anchor), extents) if product.apart else row_axis(context, anchor, extents)
    rows, pixels = 1 if row is None else extents[row], prod(extents[:-1])
    steps = _steps(product.depth // instruction.group, instruction.steps)
    most = _most_together(context, output, instruction.lanes)
    near = _near_vectors(context, anchor, product, instruction.lanes)
    held, apart = steps > 1, not instruction.adds
    tile = vector_tile(rows, product.width, instruction.lanes, context, held, apart, most, near, pixels // rows)
    most_vectors = context.cpu.dot_product.most_vectors
    tile = choose_tile(context, tile, rows, product.width, widths=divisors(product.width // tile.lanes, most_vectors))
    # Vectors of a single row come from panels of their own, where several streams help prefetchers.
    streams = pixels == 1 and tile.vectors <= context.cpu.streams.count
    pack_columns(context, anchor, product, tile.lanes if streams else tile.columns, instruction.group)
    together = _together(tile.vectors, most)
    column_outer, vector, lane = sch.split(loops[-1], [None, tile.vectors // together, tile.lanes * together])
    inner: list[LoopHandle] = []
    stay = _weights_stay(context, anchor, output, product, tile, near)
    resident = context.choose("weights_stay", (False, True), stay)
    # Loops with columns of their own are outside where these leave the cache.
    outside = () if resident else product.apart
    others = (n for n in range(len(loops) - 1) if n != row)
    order = [loops[n] for n in sorted(others, key=lambda n: (n not in outside, n))]
    if row is not None:
        row_outer, *inner = sch.split(loops[row], [None, tile.rows])
        order.append(row_outer)
    place = len(order) if resident else min(1 + len(outside), len(order) - 1)
    order.insert(place, column_outer)
    sch.reorder(*order, *inner, vector, lane)
    # A tile may be a single element: the loop over the lanes of an instruction of one lane is there all the same.
    sch.compute_at(anchor, order[-1], preserve_unit_loops=instruction.lanes == 1)
    step = schedule_dot_tile(context, anchor, order[-1], instruction, steps)
    if instruction.steps == 1:
        step = unroll_steps(context, step, tile.rows * tile.vectors, _most_unrolled(context, tile))
    if not resident and pixels > tile.rows and _are_far(context, anchor, product):
        prefetch_panels(context, anchor, [step], tile)
    if pixels > tile.rows and (product.width // tile.lanes if resident else tile.vectors) > near:
        _fetch_near(context, product, tile, step)
    for loop in (*inner, vector):
        sch.unroll(loop)
    sch.vectorize(lane)
    context.parallelize_tiles(order, prod(extents) * reduction_size(context, anchor) // instruction.group)


def _fetch_near(context: ScheduleContext, product: Product, tile: RegisterTile, step: LoopHandle) -> None:
    """Ask for the weights of some steps later before they are waited for: the second cache level has them."""
    steps, bytes_ahead = context.extent(step), context.cpu.prefetch.weights_ahead
    if steps is None:
        return
    distance = context.choose_again("fetch_distance", (0, 256, 512, 1024), bytes_ahead if bytes_ahead > 1 else 0)
    if distance:
        used = product.depth // steps * tile.columns
        ahead = run_ahead(used, distance // product.columns.dtype.itemsize)
        packed = (param for n, param in enumerate(context.sch.func.params) if n in context.packing)
        context.sch.annotate(step, PREFETCH_NEAR, {param.name: ahead for param in packed})


def _most_unrolled(context: ScheduleContext, tile: RegisterTile) -> int:
    """Steps in one iteration: as many as leave sums in registers while weights of all of them are there."""
    sums, most = tile.rows * tile.vectors, context.target.vector_registers
    return _UNROLLED if sums + _UNROLLED * tile.vectors + 1 <= most else 1


def _are_far(context: ScheduleContext, anchor: BlockHandle, product: Product) -> bool:
    """Whether panels come from beyond the second cache level."""
    return _weights_share(context, anchor, product) > context.cpu.dot_product.fetched_share


def _steps(groups: int, loaded: int) -> int:
    """Groups of a reduction that are unrolled: as many as a load gives, or all of a short line that few loads give."""
    if loaded > 1 and groups % loaded and groups <= _FEW_LOADS * loaded:
        return groups
    return loaded if groups % loaded == 0 else 1


def _most_together(context: ScheduleContext, output: BlockHandle, lanes: int) -> int:
    """Vectors of sums whose results are best computed as one: where those of one are a few bytes, they fill one.

    That is for processors whose narrowing instructions put two vectors together.
    """
    size = context.block(output).writes[0].buffer.dtype.itemsize
    if lanes * size >= _FEW_BYTES or not context.target.has_rounded_products:
        return 1
    return max(1, context.target.vector_bits // 8 // (lanes * size))


def _together(vectors: int, most: int) -> int:
    """Vectors of a tile whose results are computed as one; those of no power of two would not stay in registers."""
    return max(count for count in divisors(vectors, most) if count & (count - 1) == 0)


def _near_vectors(context: ScheduleContext, anchor: BlockHandle, product: Product, lanes: int) -> int:
    """Vectors of columns whose weights stay in the first cache level while all rows pass."""
    vector = reduction_size(context, anchor) * lanes * product.columns.dtype.itemsize
    return int(context.cpu.dot_product.panel_share * context.target.l1_bytes // vector)


def _passes(context: ScheduleContext, product: Product) -> bool:
    """Whether rows come quickly enough to be read once for each panel of columns."""
    return buffer_bytes(product.rows.buffer) <= context.cpu.dot_product.image_share * context.target.l2_bytes


def _panels_save(context: ScheduleContext, anchor: BlockHandle, output: BlockHandle, tile: RegisterTile) -> bool:
    """Whether it takes less from the second cache level to read rows once for each panel than weights for each tile.

    Results are then written, and what is added to them is read, a piece of each row at a time.
    """
    scattered = sum(buffer.dtype.itemsize for buffer in result_places(context, output))
    fewer = reduction_size(context, anchor) * (1 / tile.rows - 1 / tile.columns)
    return fewer > scattered * context.cpu.dot_product.scattered_byte


def _weights_stay(
    context: ScheduleContext, anchor: BlockHandle, output: BlockHandle, product: Product, tile: RegisterTile, near: int
) -> bool:
    """Whether panels of columns are the innermost outer loop: all weights stay in the second cache level meanwhile.

    Otherwise rows pass once for each panel, which stays in the first level if it has no more than `near` vectors.
    """
    costs, saves = context.cpu.dot_product, _panels_save(context, anchor, output, tile)
    if saves and tile.vectors <= near < product.width // tile.lanes and _passes(context, product):
        return False
    most = costs.weights_share if saves else max(costs.weights_share, costs.scattered_share)
    return _weights_share(context, anchor, product) <= most


def _weights_share(context: ScheduleContext, anchor: BlockHandle, product: Product) -> float:
    """How much of the second cache level all weights take."""
    weights = reduction_size(context, anchor) * product.width * product.columns.dtype.itemsize
    return weights / context.target.l2_bytes


def vector_tile(
    rows: int,
    columns: int,
    lanes: int,
    context: ScheduleContext,
    held: bool = False,
    apart: bool = False,
    together: int = 1,
    near: int | None = None,
    lines: int = 1,
) -> RegisterTile:
    """The register tile that multiplies most in its time; columns are whole vectors.

    Rows are `held` in a register each where one load gives several steps of the reduction. Products that are `apart`
    from their sums take a register, too. Results of so many vectors are best computed `together`. Weights of more than
    `near` vectors come from the second cache level for every tile, others for the first of all rows of all `lines`.
    """
    registers, costs = context.target.vector_registers - apart, context.cpu.dot_product
    best, best_score = RegisterTile(1, 1, lanes), 0.0
    for vectors in divisors(columns // lanes, costs.most_vectors):
        for height in range(1, min(rows, registers) + 1):
            if height * vectors + vectors + (height if held else 1) > registers:
                break
            filled = 1.0 if rows % height == 0 else costs.partial_tile * rows / (-(-rows // height) * height)
            overlap = min(1.0, height * vectors / costs.in_flight)
            joined = costs.results_apart ** log2(together / _together(vectors, together))
            fetches = 0.0 if near is None else 1.0 if vectors > near else 1 / (lines * -(-rows // height))
            time = max(height * vectors, fetches * costs.far_vector * vectors) + costs.load_time * (height + vectors)
            score = height * vectors / time * overlap * filled * joined
            if score > best_score * (1 + 1e-9):
                best, best_score = RegisterTile(height, vectors, lanes), score
    return best


def schedule_dot_tile(
    context: ScheduleContext, anchor: BlockHandle, attach: LoopHandle, instruction: DotInstruction, steps: int
) -> LoopHandle:
    """The loops of the contraction under its tile: steps of the reduction outside, dot products inside.

    The steps that one load of a row gives are unrolled. Gives the loop over the other steps.
    """
    sch = context.sch
    reduce_vars = {item.value for item in context.block(anchor).iters if item.kind is IterKind.REDUCE}
    below = loops_below(context, anchor, attach)
    reduction = [loop for loop in below if loop.var in reduce_vars]
    spatial = [loop for loop in below if loop.var not in reduce_vars]
    sch.set_scope(anchor, 0, "local")
    step, few, inside = sch.split(reduction[-1], [None, steps, instruction.group])
    vector, lane = sch.split(spatial[-1], [None, instruction.lanes])
    tile = [*spatial[:-1], vector]
    sch.reorder(*reduction[:-1], step, few, *tile, lane, inside)
    start = sch.decompose_reduction(anchor, [*reduction[:-1], step][0])
    *start_rest, start_lane = loops_below(context, start, attach)
    sch.vectorize(start_lane)
    sch.tensorize(lane, instruction.intrinsic)
    for loop in (few, *tile, *start_rest):
        if context.extent(loop) is not None:
            sch.unroll(loop)
    return step


TEMPLATE = contraction_template(
    "dot-product",
    "a register tile around dot-product instructions (VNNI, sdot, pmaddwd, smlad, BF16)",
    _matches,
    schedule_dot_product,
)
