"""Copies between memory and on-chip memories become LOAD and STORE: rectangles of tensors, with padding around.

    for y, x, lane in grid(6, 10, 16):                          accel.load(&inp[0], &data[...], 16,
        inp[y * 160 + x * 16 + lane] = (                            y_size, 8, 8,
            data[t * 512 + y * 128 + x * 16 + lane - 144]   ->      max(0, 1 - t * 4), ..., 1, 1, 0)
            if 1 <= t * 4 + y < 9 and 1 <= x < 9 else 0)

The elements of a tensor lie one after another on both sides; on chip, tensors do as well. Loops whose tensors are
neighbours on both sides are one row; beside a row there is a second loop, and what is more stays around the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

from tilewright.arith.analyzer import Analyzer
from tilewright.arith.linear import Linear
from tilewright.backends.accel.nests import Steps, extent_of, nest_of, steps_of
from tilewright.ir.build import add, as_expr, const, maximum, minimum, mul, select, sub
from tilewright.ir.dtype import HANDLE, INDEX
from tilewright.ir.expr import LE, LT, ONE, TRUE, ZERO, And, Call, IntImm, PrimExpr, Range, Select, StringImm, Var
from tilewright.support.errors import UnsupportedError
from tilewright.tir.accel_instructions import LOAD, SCOPES, STORE, accel_call
from tilewright.tir.analysis.linear import expression, linear, mentions
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.statements import StmtRewriter
from tilewright.tir.stmt import BufferStore, Evaluate, For, LoopKind, Stmt


@dataclass(frozen=True, slots=True)
class CopiesOptions:
    """Sizes of tensors."""

    lanes: tuple[tuple[str, int], ...] = ()
    """Elements of a tensor of each on-chip memory, by scope."""


def copies_to_dma(func: PrimFunc, options: CopiesOptions) -> PrimFunc:
    """The function with copies between memory and on-chip memories as instructions."""
    return func.replace(body=_Copies(dict(options.lanes)).stmt(func.body))


@dataclass(frozen=True, slots=True)
class _Axis:
    """One loop of a copy, in tensors: its extent, its steps on chip and in memory, and which part is no padding."""

    extent: int
    chip: int
    memory: int
    low: PrimExpr = field(default=ZERO)
    high: PrimExpr | None = None
    """One past the last iteration that copies; None: all do."""

    @property
    def is_padded(self) -> bool:
        """Whether some iterations may be padding."""
        return self.high is not None


class _Copies(StmtRewriter):
    def __init__(self, lanes: dict[str, int]) -> None:
        self._lanes = lanes
        self._analyzer = Analyzer()

    def visit_for(self, loop: For) -> Stmt:
        nest = nest_of(loop)
        if isinstance(nest.leaf, BufferStore) and _is_copy(nest.leaf):
            return self._copy(nest.loops, nest.leaf)
        with self._analyzer.scope():
            self._analyzer.bind(loop.var, Range(loop.min, loop.extent))
            return super().visit_for(loop)

    def _copy(self, loops: Sequence[For], store: BufferStore) -> Stmt:
        condition, source, pad = _parts(store)
        is_load = store.buffer.scope in SCOPES
        chip = store.buffer if is_load else source.buffer
        lanes = self._lanes[chip.scope]
        target, origin = steps_of(store.indices[0], loops), steps_of(source.indices[0], loops)
        if target is None or origin is None:
            raise UnsupportedError(f"the copy to {store.buffer.name} is no rectangle")
        on_chip, in_memory = (target, origin) if is_load else (origin, target)
        axes = [
            _Axis(extent_of(loop), a, b) for loop, a, b in zip(loops, on_chip.by_loop, in_memory.by_loop, strict=True)
        ]
        axes, always = self._with_padding(axes, loops, condition)
        rows = _tensors(axes, lanes, chip)
        *outer, down, across = [_Axis(1, 0, 0), _Axis(1, 0, 0), *_merged(rows)]
        if across.memory not in (0, 1):
            outer, down, across = [*outer, down], across, _Axis(1, 0, 0)
        if always is not TRUE:
            outer, down, across = _guarded(outer, down, across, always)
        outer = [axis for axis in outer if axis.extent > 1]
        if any(axis.is_padded for axis in outer):
            raise UnsupportedError(f"the copy to {store.buffer.name} is padded in more than two dimensions")
        if is_load:
            return self._load(store.buffer, source.buffer, on_chip, in_memory, outer, down, across, lanes, pad)
        return self._store(store.buffer, source.buffer, on_chip, in_memory, outer, down, across, lanes)

    def _with_padding(
        self, axes: list[_Axis], loops: Sequence[For], condition: PrimExpr
    ) -> tuple[list[_Axis], PrimExpr]:
        """The loops with the parts of them that copy, and what of the condition is about none of them."""
        always: PrimExpr = TRUE
        variables = {loop.var: n for n, loop in enumerate(loops)}
        for part in _conjuncts(condition):
            form = _not_negative(part)
            about = [] if form is None else [term for term in form.terms if mentions(term, variables)]
            if not about and not mentions(part, variables):
                always = part if always is TRUE else And(always, part)
                continue
            var = about[0] if about else None
            if form is None or len(about) != 1 or type(var) is not Var or abs(form.terms[var]) != 1:
                raise UnsupportedError("the condition of a copy is no range of its loops")
            number = variables[var]
            axis, extent = axes[number], const(axes[number].extent)
            rest = expression(form.minus(linear(var).scaled(form.terms[var])))
            high = extent if axis.high is None else axis.high
            if form.terms[var] == 1:
                low = maximum(axis.low, minimum(sub(ZERO, rest), extent))
                axes[number] = replace(axis, low=self._simple(low), high=high)
            else:
                high = minimum(high, maximum(add(rest, ONE), ZERO))
                axes[number] = replace(axis, high=self._simple(high))
        return axes, always

    def _simple(self, expr: PrimExpr) -> PrimExpr:
        return self._analyzer.simplify(expr)

    def _span(self, axis: _Axis) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
        """Iterations of padding before, of copies, of padding after."""
        if axis.high is None:
            return ZERO, const(axis.extent), ZERO
        size = self._simple(maximum(sub(axis.high, axis.low), ZERO))
        return axis.low, size, self._simple(sub(sub(const(axis.extent), axis.low), size))

    def _load(
        self,
        chip: Buffer,
        memory: Buffer,
        on_chip: Steps,
        in_memory: Steps,
        outer: list[_Axis],
        down: _Axis,
        across: _Axis,
        lanes: int,
        pad: int,
    ) -> Stmt:
        variables = [Var("row") for _ in outer]
        (y_before, y_size, y_after), (x_before, x_size, x_after) = self._span(down), self._span(across)
        start = in_memory.start
        for axis, first in ((down, y_before), (across, x_before)):
            start = add(start, mul(first, const(axis.memory * lanes)))
        source = self._at(start, outer, variables, lanes, memory=True)
        target = self._at(on_chip.start, outer, variables, lanes, memory=False)
        tensors = down.extent * across.extent
        reach = (down.extent - 1) * down.memory + across.extent
        call = accel_call(
            LOAD,
            self._pointer("w", chip, target, tensors * lanes),
            self._pointer("r", memory, source, reach * lanes),
            const(lanes),
            y_size,
            x_size,
            const(down.memory if down.extent > 1 else across.extent),
            y_before,
            y_after,
            x_before,
            x_after,
            const(pad),
        )
        return _around(Evaluate(call), outer, variables)

    def _store(
        self,
        memory: Buffer,
        chip: Buffer,
        on_chip: Steps,
        in_memory: Steps,
        outer: list[_Axis],
        down: _Axis,
        across: _Axis,
        lanes: int,
    ) -> Stmt:
        if down.is_padded or across.is_padded:
            raise UnsupportedError(f"the copy to {memory.name} leaves tensors out")
        variables = [Var("row") for _ in outer]
        source = self._at(on_chip.start, outer, variables, lanes, memory=False)
        target = self._at(in_memory.start, outer, variables, lanes, memory=True)
        reach = (down.extent - 1) * down.memory + across.extent
        call = accel_call(
            STORE,
            self._pointer("w", memory, target, reach * lanes),
            self._pointer("r", chip, source, down.extent * across.extent * lanes),
            const(lanes),
            const(down.extent),
            const(across.extent),
            const(down.memory if down.extent > 1 else across.extent),
        )
        return _around(Evaluate(call), outer, variables)

    def _at(self, start: PrimExpr, outer: list[_Axis], variables: list[Var], lanes: int, *, memory: bool) -> PrimExpr:
        for axis, var in zip(outer, variables, strict=True):
            start = add(start, mul(var, const((axis.memory if memory else axis.chip) * lanes)))
        return self._simple(start)

    def _pointer(self, mode: str, buffer: Buffer, start: PrimExpr, size: int) -> PrimExpr:
        last = self._simple(add(start, const(size - 1)))
        return Call("access_ptr", (StringImm(mode), BufferLoad(buffer, (start,)), BufferLoad(buffer, (last,))), HANDLE)


def _around(stmt: Stmt, outer: Sequence[_Axis], variables: Sequence[Var]) -> Stmt:
    for axis, var in zip(reversed(outer), reversed(variables), strict=True):
        stmt = For(var, ZERO, const(axis.extent), LoopKind.SERIAL, stmt)
    return stmt


def _is_copy(store: BufferStore) -> bool:
    value = store.value.a if isinstance(store.value, Select) else store.value
    if not isinstance(value, BufferLoad):
        return False
    return (store.buffer.scope in SCOPES) != (value.buffer.scope in SCOPES)


def _parts(store: BufferStore) -> tuple[PrimExpr, BufferLoad, int]:
    """When a copy takes place, what it copies, and the number that is there instead."""
    value = store.value
    if isinstance(value, BufferLoad):
        return TRUE, value, 0
    if isinstance(value, Select) and isinstance(value.a, BufferLoad) and isinstance(value.b, IntImm):
        return value.condition, value.a, value.b.value
    raise UnsupportedError(f"padding of {store.buffer.name} is no constant")


def _conjuncts(condition: PrimExpr) -> list[PrimExpr]:
    if condition is TRUE:
        return []
    if isinstance(condition, And):
        return [*_conjuncts(condition.a), *_conjuncts(condition.b)]
    return [condition]


def _not_negative(part: PrimExpr) -> Linear | None:
    """The form that is not negative where a comparison holds."""
    if isinstance(part, LE):
        return linear(part.b).minus(linear(part.a))
    if isinstance(part, LT):
        return linear(part.b).minus(linear(part.a)).shifted(-1)
    return None


def _tensors(axes: list[_Axis], lanes: int, chip: Buffer) -> list[_Axis]:
    """The loops over tensors, outermost first on chip: those over the elements of one are left out."""
    kept = sorted((axis for axis in axes if axis.extent > 1), key=lambda axis: -axis.chip)
    inside = [axis for axis in kept if axis.chip < lanes]
    packed = all(axis.chip == axis.memory and not axis.is_padded for axis in inside)
    if not packed or prod(axis.extent for axis in inside) != lanes:
        raise UnsupportedError(f"tensors of {chip.name} are not packed in memory")
    result = []
    for axis in kept:
        if axis.chip < lanes:
            continue
        if axis.chip % lanes or axis.memory % lanes:
            raise UnsupportedError(f"{chip.name} does not hold whole tensors of memory")
        result.append(replace(axis, chip=axis.chip // lanes, memory=axis.memory // lanes))
    expected = 1
    for axis in reversed(result):
        if axis.chip != expected:
            raise UnsupportedError(f"tensors of {chip.name} do not lie one after another")
        expected *= axis.extent
    return result


def _guarded(outer: list[_Axis], down: _Axis, across: _Axis, always: PrimExpr) -> tuple[list[_Axis], _Axis, _Axis]:
    """The loops of a copy of all or nothing: a row or a column that is padding where the condition does not hold."""
    high = select(always, as_expr(1, INDEX), as_expr(0, INDEX))
    if across.extent == 1 and not across.is_padded:
        return outer, down, replace(across, high=high)
    if down.extent > 1 or down.is_padded:
        outer = [*outer, down]
    return outer, _Axis(1, 0, 0, high=high), across


def _merged(rows: list[_Axis]) -> list[_Axis]:
    """Neighbouring loops as one where tensors go on in memory as they do on chip."""
    result: list[_Axis] = []
    for axis in rows:
        outer = result[-1] if result else None
        if outer is not None and not (outer.is_padded or axis.is_padded) and outer.memory == axis.memory * axis.extent:
            result[-1] = replace(axis, extent=outer.extent * axis.extent)
        else:
            result.append(axis)
    return result
