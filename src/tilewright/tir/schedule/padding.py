"""Shapes made convenient: pad_einsum and over_compute (extents to multiples), decompose_padding (fill, then copy)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.arith.analyzer import Analyzer
from tilewright.ir.build import add, all_of, const, floordiv, le, lt, mul, select
from tilewright.ir.expr import (
    TRUE,
    ZERO,
    Div,
    FloatImm,
    FloorDiv,
    FloorMod,
    IntImm,
    Mod,
    PrimExpr,
    Range,
    Select,
    Var,
    const_value,
)
from tilewright.ir.node import Node
from tilewright.ir.visit import pre_order, substitute, transform
from tilewright.tir.analysis.accesses import with_detected_accesses
from tilewright.tir.analysis.index import ProgramIndex
from tilewright.tir.analysis.linear import mentions
from tilewright.tir.analysis.match_intrin import loop_nest
from tilewright.tir.buffer import Buffer, BufferLoad, BufferRegion
from tilewright.tir.schedule.compute_location import require_movable
from tilewright.tir.schedule.padded_operands import padded_operands
from tilewright.tir.schedule.placement import build_nest
from tilewright.tir.schedule.state import ScheduleState, edit_tree, replace_buffers, with_allocations
from tilewright.tir.stmt import Block, BlockIter, BufferStore, For, IterKind, LoopKind, Stmt, seq


def pad_einsum(state: ScheduleState, block: Block, padding: Sequence[int]) -> list[str]:
    """Make the extents of a product's iterators multiples of numbers; gives the names of the padding blocks.

    for i in 7, j in 9, k in 5:             for i in 8, k in 8: A_pad[i, k] = A[i, k] if i < 7 and k < 5 else 0
        C[i, j] += A[i, k] * B[k, j]   ->   for k in 8, j in 12: B_pad[k, j] = ...
                                            for i in 8, j in 12, k in 8: C_pad[i, j] += A_pad[i, k] * B_pad[k, j]
                                            for i in 7, j in 9: C[i, j] = C_pad[i, j]

    `padding` has one number an iterator (1: as it is); extents may be symbolic. The indices of what the block
    reads and writes must be iterators, what a padded step of a reduction combines must change nothing (zero times zero;
    the least value for a maximum of elements), and its loops must be plain. Iterators that are not padded may be of
    loops further out, a scan's for instance: the padding is then inside these, of what is read there.
    """
    what = "pad_einsum"
    loops, held = _loops_to_pad(state, block, padding, what)
    extents = _padded_extents(state, block, padding, what)
    operands = padded_operands(state, block, extents, what)
    ranges = {item.var: extents[item.var] for item in block.iters}
    nests: list[Stmt] = []
    names: list[str] = []
    buffers: list[Buffer] = []
    swap: dict[BufferLoad, BufferLoad] = {}
    for load, value in operands.items():
        if all(type(at) is not Var or ranges[at] is _extent(block, at) for at in load.indices):
            continue
        taken = [buffer.name for buffer in buffers]
        padded, nest, name = _pad_input(state, block, load, value, ranges, held, taken, names)
        buffers.append(padded)
        names.append(name)
        nests.append(nest)
        swap[load] = BufferLoad(padded, load.indices)
    (store,) = _stores(block)
    target = store.buffer
    output = target
    if any(ranges[_iterator(index)] is not _extent(block, _iterator(index)) for index in store.indices):
        name = _fresh(state.fresh_buffer_name(f"{target.name}_pad"), [buffer.name for buffer in buffers])
        places = zip(map(_iterator, store.indices), target.shape, strict=True)
        output = Buffer(name, tuple(dim if at in held else ranges[at] for at, dim in places), target.dtype)
        buffers.append(output)
    main = _padded_block(block, swap, target, output, ranges)
    body: Stmt = main
    moved = [item for item in block.iters if item.var not in held]
    for loop, item in zip(reversed(loops), reversed(moved), strict=True):
        body = loop.replace(extent=ranges[item.var], body=body)
        state.forget(loop.var)
    nests.append(body)
    if output is not target:
        nest, name = _crop(state, block, store, output, held, names)
        names.append(name)
        nests.append(nest)
    for name in names:
        state.mark_regular(name)
    owner = state.index.scope_block(block).name
    func = with_allocations(state.edited({loops[0]: seq(*nests)}), owner, buffers)
    state.commit(func)
    return names


def _loops_to_pad(
    state: ScheduleState, block: Block, padding: Sequence[int], what: str
) -> tuple[list[For], dict[Var, PrimExpr]]:
    """The plain loops around a block alone, and what iterators that are not padded have of loops around these."""
    above = state.index.loops_above(block)
    start = next((n for n, loop in enumerate(above) if loop_nest(loop)[1] is block), len(above))
    inner = {loop.var for loop in above[start:]}
    held: dict[Var, PrimExpr] = {
        item.var: item.value
        for item, factor in zip(block.iters, padding, strict=False)
        if factor == 1 and start and not mentions(item.value, inner)
    }
    require_movable(state, block, what, above[:start])
    if not held:
        return plain_loops(state, block, what), held
    moved = [item for item in block.iters if item.var not in held]
    plain = len(moved) == len(inner) and block.predicate is TRUE
    for loop, item in zip(above[start:], moved, strict=False):
        plain = plain and _is_plain(loop, item)
    if not plain:
        state.fail(f"{what}: the loops around block {block.name} alone are not one plain loop for each iterator", block)
    return above[start:], held


def _is_plain(loop: For, item: BlockIter) -> bool:
    same = item.value is loop.var and loop.extent is item.domain.extent and const_value(loop.min) == 0
    return same and loop.kind is LoopKind.SERIAL


def find_plain_loops(state: ScheduleState, block: Block) -> list[For] | None:
    """The loops around a block, if they are directly nested and run through one iterator each, in order."""
    loops = state.index.loops_above(block)
    nested, inside = loop_nest(loops[0]) if loops else ([], block)
    plain = inside is block and len(nested) == len(block.iters) and block.predicate is TRUE
    for loop, item in zip(nested, block.iters, strict=False):
        plain = plain and _is_plain(loop, item)
    return loops if plain and loops else None


def plain_loops(state: ScheduleState, block: Block, what: str) -> list[For]:
    """The same, or a refusal."""
    loops = find_plain_loops(state, block)
    if loops is None:
        state.fail(
            f"{what}: the loops around block {block.name} are not one plain loop for each iterator",
            block,
            f"{what} comes before other changes of the loops",
        )
    return loops


def _extent(block: Block, var: Var) -> PrimExpr:
    return next(item.domain.extent for item in block.iters if item.var is var)


def _padded_extents(state: ScheduleState, block: Block, padding: Sequence[int], what: str) -> dict[Var, PrimExpr]:
    if len(padding) != len(block.iters) or any(not isinstance(n, int) or n < 1 for n in padding):
        state.fail(
            f"{what}: {list(padding)} is not one positive number for each of {len(block.iters)} iterators", block
        )
    result: dict[Var, PrimExpr] = {}
    for item, factor in zip(block.iters, padding, strict=True):
        if factor > 1 and const_value(item.domain.min) != 0:
            state.fail(f"{what}: the domain of iterator {item.var.name} does not begin at 0", block)
        result[item.var] = item.domain.extent if factor == 1 else _multiple(state, item.domain.extent, factor)
    return result


def _multiple(state: ScheduleState, extent: PrimExpr, factor: int) -> PrimExpr:
    """The least multiple of a number that is not less than an extent; the extent itself if it is one."""
    grown = mul(floordiv(add(extent, const(factor - 1)), const(factor)), const(factor))
    return extent if state.analyzer.prove_equal(grown, extent) else grown


def _iterator(index: PrimExpr) -> Var:
    assert type(index) is Var
    return index


def _stores(block: Block) -> tuple[BufferStore]:
    assert isinstance(block.body, BufferStore)
    return (block.body,)


def _fresh(base: str, taken: Sequence[str]) -> str:
    name, number = base, 1
    while name in taken:
        name, number = f"{base}_{number}", number + 1
    return name


def _pad_input(
    state: ScheduleState,
    block: Block,
    load: BufferLoad,
    outside: PrimExpr,
    ranges: dict[Var, PrimExpr],
    held: Mapping[Var, PrimExpr],
    buffers: Sequence[str],
    blocks: Sequence[str],
) -> tuple[Buffer, Stmt, str]:
    """A copy of an input with a value past its ends; along iterators that are held, of what is read there."""
    source = load.buffer
    shape = tuple(ranges[at] if type(at) is Var else dim for at, dim in zip(load.indices, source.shape, strict=True))
    padded = Buffer(_fresh(state.fresh_buffer_name(f"{source.name}_pad"), buffers), shape, source.dtype)
    name = _fresh(state.fresh_block_name(padded.name), blocks)
    iters = [
        BlockIter(Var(f"v_ax{n}"), Range(ZERO, dim), IterKind.SPATIAL, Var(f"ax{n}")) for n, dim in enumerate(shape)
    ]
    # The block's own extents count: an operand may have more elements than the block reads.
    inside = all_of(
        lt(item.var, _extent(block, at))
        for item, at in zip(iters, load.indices, strict=True)
        if type(at) is Var and ranges[at] is not _extent(block, at)
    )
    indices = tuple(item.var for item in iters)
    value = select(inside, BufferLoad(source, indices), outside)
    return padded, _nest(state, name, iters, load.indices, held, BufferStore(padded, indices, value)), name


def _nest(
    state: ScheduleState,
    name: str,
    iters: Sequence[BlockIter],
    places: Sequence[PrimExpr],
    held: Mapping[Var, PrimExpr],
    body: Stmt,
) -> Stmt:
    """A block in loops of its own; what it has at places that held iterators decide is the part that is read there."""
    needed = {
        item.var: Range(substitute(place, held), const(1))
        for item, place in zip(iters, places, strict=True)
        if mentions(place, held)
    }
    block = with_detected_accesses(Block(name, tuple(iters), (), (), body))
    return build_nest(state, block, needed, preserve_unit_loops=True)


def _padded_block(
    block: Block, swap: dict[BufferLoad, BufferLoad], target: Buffer, output: Buffer, ranges: dict[Var, PrimExpr]
) -> Block:
    def visit(item: Node) -> Node | None:
        if isinstance(item, BufferLoad):
            padded = swap.get(item)
            return BufferLoad(output, item.indices) if padded is None and item.buffer is target else padded
        if isinstance(item, BufferStore) and item.buffer is target:
            return BufferStore(output, item.indices, item.value)
        return None

    iters = tuple(
        BlockIter(item.var, Range(item.domain.min, ranges[item.var]), item.kind, item.value) for item in block.iters
    )
    body = transform(block.body, visit)
    init = None if block.init is None else transform(block.init, visit)
    return with_detected_accesses(block.replace(iters=iters, body=body, init=init))


def _crop(
    state: ScheduleState,
    block: Block,
    store: BufferStore,
    output: Buffer,
    held: Mapping[Var, PrimExpr],
    blocks: Sequence[str],
) -> tuple[Stmt, str]:
    """The part of the result that was asked for, copied to its place."""
    name = _fresh(state.fresh_block_name(f"{store.buffer.name}_crop"), blocks)
    own = {item.var: item.domain for item in block.iters}
    iters = [
        BlockIter(Var(f"v_ax{n}"), own[_iterator(index)], IterKind.SPATIAL, Var(f"ax{n}"))
        for n, index in enumerate(store.indices)
    ]
    indices = tuple(item.var for item in iters)
    body = BufferStore(store.buffer, indices, BufferLoad(output, indices))
    return _nest(state, name, iters, store.indices, held, body), name


def decompose_padding(state: ScheduleState, block: Block, loop: For) -> str:
    """Fill with the padding value before a loop, and let the block write the rest; gives the filling block.

    for i in 10:                                     for i in 10: B_fill[i] = 0
        B[i] = A[i - 1] if 1 <= i < 9 else 0   ->    for i in 10: B[i] = A[i - 1]  where 1 <= i < 9

    The block must store one choice between a value and a constant.
    """
    what = "decompose_padding"
    index = state.index
    above = index.loops_above(block)
    if not any(item is loop for item in above):
        state.fail(f"{what}: loop {loop.var.name} is not around block {block.name}", loop)
    store = block.body
    if block.init is not None or not isinstance(store, BufferStore) or not isinstance(store.value, Select):
        state.fail(f"{what}: block {block.name} does not store a choice between a value and a constant", block)
    chosen = store.value
    if not isinstance(chosen.b, (IntImm, FloatImm)) or any(
        isinstance(x, BufferLoad) for x in pre_order(chosen.condition)
    ):
        state.fail(f"{what}: block {block.name} does not pad with a constant where indices say so", block)
    if any(region.buffer is store.buffer for region in block.reads):
        state.fail(f"{what}: block {block.name} reads what it writes", block)
    for item in block.iters:
        if item.kind is not IterKind.SPATIAL:
            state.fail(f"{what}: iterator {item.var.name} of block {block.name} is not spatial", block)
    nested, inside = loop_nest(loop)
    if inside is not block:
        state.fail(
            f"{what}: something else stands in loop {loop.var.name}", loop, "choose a loop around this block alone"
        )
    fresh: dict[Var, PrimExpr] = {item.var: Var(item.var.name) for item in nested}
    own: dict[Var, PrimExpr] = {item.var: Var(item.var.name) for item in block.iters}
    name = state.fresh_block_name(f"{block.name}_fill")
    iters = tuple(
        BlockIter(own[item.var], item.domain, item.kind, substitute(item.value, fresh))  # type: ignore[arg-type]
        for item in block.iters
    )
    body = BufferStore(store.buffer, tuple(substitute(place, own) for place in store.indices), chosen.b)
    fill: Stmt = with_detected_accesses(Block(name, iters, (), (), body, predicate=substitute(block.predicate, fresh)))
    for around in reversed(nested):
        extent, low = substitute(around.extent, fresh), substitute(around.min, fresh)
        fill = For(fresh[around.var], low, extent, LoopKind.SERIAL, fill)  # type: ignore[arg-type]
    values: dict[Var, PrimExpr] = {item.var: item.value for item in block.iters}
    condition = state.analyzer.simplify(substitute(chosen.condition, values))
    rest: Stmt = with_detected_accesses(
        block.replace(
            body=BufferStore(store.buffer, store.indices, chosen.a), predicate=all_of([block.predicate, condition])
        )
    )
    for around in reversed(nested):
        rest = around.replace(body=rest)
    state.inherit(name, block.name)
    state.mark_partial(block.name)
    state.commit_index(state.index_of(state.edited({loop: seq(fill, rest)})))
    return name


def over_compute(state: ScheduleState, block: Block, axis: int, factor: int) -> None:
    """Let a block run past the end of an iterator, to a multiple of a number, into elements that nobody reads.

    for i in 7: B[i] = A[i // 4, i % 4]   ->   for i in 8: B[i] = A[i // 4, i % 4]     # B has 8 elements now

    Tiles of that size then need no guard. What is written must be intermediate, and all that is read there must exist
    (A has a second row of 4: an operand that `transform_layout` put in panels is padded).
    """
    what = "over_compute"
    if not 0 <= axis < len(block.iters):
        state.fail(f"{what}: block {block.name} has no iterator number {axis}", block)
    item = block.iters[axis]
    if factor < 1 or const_value(item.domain.min) != 0 or item.kind is not IterKind.SPATIAL:
        state.fail(f"{what}: iterator {item.var.name} must be spatial and begin at 0, and the factor positive", block)
    padded = _multiple(state, item.domain.extent, factor)
    loop = state.index.loops.get(item.value) if type(item.value) is Var else None
    plain = loop is not None and loop.extent is item.domain.extent and state.index.blocks_under(loop) == [block]
    if loop is None or not plain or loop.kind is not LoopKind.SERIAL or mentions(block.predicate, {loop.var}):
        state.fail(
            f"{what}: iterator {item.var.name} does not have a plain loop of its own",
            block,
            f"{what} comes before other changes of the loops",
        )
    if padded is item.domain.extent:
        return
    grown = {region.buffer: _grown(state, block, region, item.var, padded, what) for region in block.writes}
    _require_operands(state, block, item.var, padded, what)
    iters = tuple(
        BlockIter(entry.var, Range(ZERO, padded), entry.kind, entry.value) if entry is item else entry
        for entry in block.iters
    )
    wider = edit_tree(state.index, {block: block.replace(iters=iters)})
    index = ProgramIndex(state.func.replace(body=wider))
    longer = edit_tree(index, {index.loops[loop.var]: index.loops[loop.var].replace(extent=padded)})
    state.forget(loop.var)
    state.commit(state.func.replace(body=replace_buffers(longer, grown)))


def promise_padding(state: ScheduleState, block: Block) -> None:
    """Take somebody's word that a parameter holds past its elements what a block would put there; nobody checks it.

    for i in 16: B[i] = A[i] if i < 14 else 0   ->   for i in 16: B[i] = A[i]     # A has 16 elements, two are zeros

    Constants are so that `transform_layout` put in panels: the rest of the last one is zeros.
    """
    what = "promise_padding"
    store = block.body
    chosen = store.value if isinstance(store, BufferStore) else None
    plain = isinstance(chosen, Select) and isinstance(chosen.a, BufferLoad) and state.is_parameter(chosen.a.buffer)
    if not isinstance(store, BufferStore) or not isinstance(chosen, Select) or not plain:
        state.fail(f"{what}: block {block.name} does not choose between a parameter and a constant", block)
    is_zero = isinstance(chosen.b, (IntImm, FloatImm)) and chosen.b.value == 0
    if not is_zero or any(isinstance(x, BufferLoad) for x in pre_order(chosen.condition)):
        state.fail(f"{what}: block {block.name} does not pad with zeros where indices say so", block)
    for item in block.iters:
        _require_operands(state, block, item.var, item.domain.extent, what)
    body = BufferStore(store.buffer, store.indices, chosen.a)
    state.commit(state.edited({block: with_detected_accesses(block.replace(body=body))}))


def _grown(state: ScheduleState, block: Block, region: BufferRegion, var: Var, extent: PrimExpr, what: str) -> Buffer:
    """A written buffer with room for more of an iterator."""
    buffer = region.buffer
    if state.is_parameter(buffer) or buffer.strides or len(state.index.scope(block).writers_of(buffer)) != 1:
        state.fail(f"{what}: {buffer.name} must be an intermediate buffer that block {block.name} alone writes", block)
    own = [n for n, part in enumerate(region.region) if part.min is var and const_value(part.extent) == 1]
    if len(own) != 1 or sum(mentions(part.min, {var}) for part in region.region) != 1:
        state.fail(f"{what}: block {block.name} does not write {buffer.name} at {var.name} itself", block)
    shape = tuple(extent if n == own[0] else dim for n, dim in enumerate(buffer.shape))
    return buffer.replace(shape=shape)


def _require_operands(state: ScheduleState, block: Block, var: Var, extent: PrimExpr, what: str) -> None:
    """All that a block reads past the end of an iterator must exist, and computing with it must not fail."""
    analyzer = Analyzer()
    for item in block.iters:
        analyzer.bind(item.var, Range(ZERO, extent) if item.var is var else item.domain)
    for region in block.reads:
        for part, dim in zip(region.region, region.buffer.shape, strict=True):
            inside = all_of([le(ZERO, part.min), le(add(part.min, part.extent), dim)])
            if mentions(part.min, {var}) and not analyzer.prove(inside):
                state.fail(f"{what}: {region.buffer.name} has no elements past the end of {var.name}", block)
    for expr in pre_order(block.body):
        if not isinstance(expr, (Div, Mod, FloorDiv, FloorMod)) or expr.dtype.is_float:
            continue
        if const_value(expr.b) is None:
            state.fail(f"{what}: block {block.name} divides by what may be zero past the end of {var.name}", block)
