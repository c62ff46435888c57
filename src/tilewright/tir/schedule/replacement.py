"""Blocks replaced by an equivalent program: another algorithm for the same result, within a stated tolerance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Final, NoReturn

from tilewright.ir.expr import PrimExpr, Var
from tilewright.ir.structural import structural_equal
from tilewright.ir.visit import find_all, substitute
from tilewright.support import settings
from tilewright.support.errors import UserError
from tilewright.tir.agreement import disagreement, instances
from tilewright.tir.analysis.bindings import visits_domains
from tilewright.tir.analysis.index import statements
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.equivalents import Equivalent, Parameters
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule.state import ScheduleState, replace_buffers, require_closed_blocks
from tilewright.tir.stmt import Block, BufferStore, SeqStmt, Stmt, seq
from tilewright.tir.verify import violations
from tilewright.tir.verify_bounds import require_in_bounds

_MOST_INSTANCES: Final = 1 << 20
"""Instances of blocks up to which verification interprets a program: about a second."""


def replace_by_equivalent(
    state: ScheduleState, blocks: Sequence[Block], equivalent: Equivalent, tolerance: float, parameters: Parameters
) -> list[str]:
    """Put the program of an equivalent in the place of some blocks; gives the names of its blocks."""
    if not isfinite(tolerance) or tolerance < 0:
        state.fail(f"replace_by_equivalent: {tolerance} is no tolerance", blocks[0], "give a relative error: 1e-6, say")
    region = _region(state, blocks)
    before = _as_program(state, region)
    after = _built(state, equivalent, before, parameters)
    if settings.VERIFY.get():
        _verify(state, equivalent, before, after, tolerance, parameters)
    new = [block for block in statements(after.root) if isinstance(block, Block) and block is not after.root]
    kept = state.index.blocks.keys() - {block.name for stmt in region for block in _blocks(stmt)}
    for block in new:
        if block.name in kept:
            _refuse(state, equivalent, f"there is a block {block.name} already")
    state.commit(_spliced(state, region, before, after))
    for block in new:
        if visits_domains(state.index, block, state.analyzer):
            state.mark_regular(block.name)
        else:
            state.mark_partial(block.name)
    state.watch(new)
    return [block.name for block in new]


def _refuse(state: ScheduleState, equivalent: Equivalent, reason: str, hint: str | None = None) -> NoReturn:
    state.fail(f"replace_by_equivalent: {equivalent.name}: {reason}", hint=hint)


# ---------------------------------------------------------------- the region


def _stages(root: Block) -> tuple[Stmt, ...]:
    return root.body.stmts if isinstance(root.body, SeqStmt) else (root.body,)


def _blocks(stmt: Stmt) -> list[Block]:
    return [item for item in statements(stmt) if isinstance(item, Block)]


def _region(state: ScheduleState, blocks: Sequence[Block]) -> list[Stmt]:
    """The neighbouring statements of the root that have these blocks, and no others but those inside them."""
    index = state.index
    stages = _stages(index.root)
    outermost = [{block.name for block in index.blocks_under(stmt)} for stmt in stages]
    given = {block.name for block in blocks}
    places = [number for number, names in enumerate(outermost) if names & given]
    strays = given.difference(*(outermost[number] for number in places)) if places else given
    if strays:
        name = min(strays)
        state.fail(f"replace_by_equivalent: block {name} is no stage of the function", index.blocks[name])
    region = range(places[0], places[-1] + 1)
    others = sorted(set().union(*(outermost[number] for number in region)) - given)
    if others or any(not outermost[number] for number in region):
        what = f"block {others[0]} stands" if others else "statements without blocks stand"
        state.fail(
            f"replace_by_equivalent: {what} among those to be replaced",
            index.blocks[others[0]] if others else blocks[0],
            "replace all blocks of neighbouring loop nests",
        )
    return [stages[number] for number in region]


def _accessed(stmts: Iterable[Stmt]) -> tuple[set[Buffer], set[Buffer]]:
    """The buffers that statements load from, and those that they store to."""
    found = list(stmts)
    loads = {load.buffer for stmt in found for load in find_all(stmt, BufferLoad)}
    return loads, {store.buffer for stmt in found for store in find_all(stmt, BufferStore)}


def _as_program(state: ScheduleState, region: Sequence[Stmt]) -> PrimFunc:
    """Statements as a function of the buffers that they share with the rest, in the order of their declaration."""
    root = state.index.root
    used = set().union(*_accessed(region))
    elsewhere = set().union(*_accessed(stmt for stmt in _stages(root) if stmt not in region))
    internal = tuple(buffer for buffer in root.allocations if buffer in used and buffer not in elsewhere)
    shared = [buffer for buffer in root.allocations if buffer in used and buffer in elsewhere]
    params = [param for param in state.func.params if isinstance(param, Var) or param in used]
    body = root.replace(body=seq(*region), allocations=internal)
    return PrimFunc(state.func.name, (*params, *shared), body)


def _spliced(state: ScheduleState, region: Sequence[Stmt], before: PrimFunc, after: PrimFunc) -> PrimFunc:
    """The program with a function's statements in the place of others."""
    root = state.index.root
    stages = _stages(root)
    start = stages.index(region[0])
    body = seq(*stages[:start], after.root.body, *stages[start + len(region) :])
    gone = set(before.root.allocations)
    kept = tuple(buffer for buffer in root.allocations if buffer not in gone)
    return state.func.replace(body=root.replace(body=body, allocations=(*kept, *after.root.allocations)))


# ---------------------------------------------------------------- the program that takes its place


def _built(state: ScheduleState, equivalent: Equivalent, before: PrimFunc, parameters: Parameters) -> PrimFunc:
    """The program of an equivalent on the buffers of the one it replaces: well formed, with the same interface."""
    try:
        after = equivalent.build(before, parameters)
        if not isinstance(after.body, Block):
            raise UserError("its program has no root block", hint="build it as programs are before lowering")
        after = _on_same_buffers(before, after)
        if settings.VERIFY.get() or not equivalent.is_tested:
            _require_right(after)
        require_closed_blocks(after)
    except UserError as error:
        _refuse(state, equivalent, error.message, error.hint)
    for verb, own, replaced in zip(("read", "write"), _outside(after), _outside(before), strict=True):
        for buffer in own ^ replaced:
            both = ("does not", "does") if buffer in replaced else ("does", "does not")
            _refuse(state, equivalent, f"its program {both[0]} {verb} {buffer.name}, what it replaces {both[1]}")
    return after


def _require_right(func: PrimFunc) -> None:
    """What every program from outside must be (`tir/admission.py`), as far as its loops do not matter yet."""
    faults = violations(func)
    if faults:
        raise UserError(f"its program is not well formed: {faults[0]}")
    require_in_bounds(func)


def _outside(func: PrimFunc) -> tuple[set[Buffer], set[Buffer]]:
    """The parameters that a function reads, and those that it writes."""
    loads, stores = _accessed([func.body])
    return loads & set(func.buffers), stores & set(func.buffers)


def _on_same_buffers(before: PrimFunc, after: PrimFunc) -> PrimFunc:
    """A program on the parameters of another one: as many of them, of the same types and shapes."""
    if after.params == before.params:
        return after
    if len(after.params) != len(before.params):
        raise UserError(f"its program has {len(after.params)} parameters, not {len(before.params)}: {_names(before)}")
    symbols: dict[Var, PrimExpr] = {}
    buffers: dict[Buffer, Buffer] = {}
    for own, given in zip(after.params, before.params, strict=True):
        if isinstance(own, Var) and isinstance(given, Var) and own.dtype is given.dtype:
            symbols[own] = given
        elif isinstance(own, Buffer) and isinstance(given, Buffer) and _have_one_type(own, given, symbols):
            buffers[own] = given
        else:
            raise UserError(f"its parameter {own!r} stands for {given!r}")
    return after.replace(params=before.params, body=substitute(replace_buffers(after.body, buffers), symbols))


def _have_one_type(own: Buffer, given: Buffer, symbols: dict[Var, PrimExpr]) -> bool:
    """Whether two buffers have one type and shape; sizes that are symbols of the first are bound to the second's."""
    if own.dtype is not given.dtype or own.ndim != given.ndim or own.strides or given.strides:
        return False
    for dim, size in zip(own.shape, given.shape, strict=True):
        bound = symbols.setdefault(dim, size) if isinstance(dim, Var) else substitute(dim, symbols)
        if not structural_equal(bound, size):
            return False
    return True


def _names(func: PrimFunc) -> str:
    return ", ".join(param.name for param in func.params)


def _verify(
    state: ScheduleState,
    equivalent: Equivalent,
    before: PrimFunc,
    after: PrimFunc,
    tolerance: float,
    parameters: Parameters,
) -> None:
    """Interpret both programs, or smaller ones of the same structure, on random inputs."""
    if equivalent.smaller is not None:
        before, small_parameters = equivalent.smaller(before, parameters)
        after = _built(state, equivalent, before, small_parameters)
    work = [instances(func) for func in (before, after)]
    if any(count is not None and count > _MOST_INSTANCES for count in work):
        _refuse(
            state,
            equivalent,
            "its program is too large to be verified by interpreting it",
            "declare it with `smaller`, or turn TILEWRIGHT_VERIFY off",
        )
    difference = disagreement(before, after, tolerance)
    if difference is not None:
        _refuse(state, equivalent, f"its program computes something else, beyond {tolerance:g}: {difference}")
