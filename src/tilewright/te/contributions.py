"""What reads of a tensor give to its gradient, and their sum as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.arith.analyzer import Analyzer, conjuncts
from tilewright.arith.simplify import depends_on_memory
from tilewright.ir import build
from tilewright.ir import expr as e
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import FLOAT32, DataType
from tilewright.ir.expr import ZERO, PrimExpr, Range, Var
from tilewright.ir.node import Node
from tilewright.ir.visit import substitute, transform
from tilewright.support.errors import UserError
from tilewright.te import reduction
from tilewright.te.derivatives import Guard, guarded
from tilewright.te.index_inverse import invert
from tilewright.te.language import compute, extern, reduce_axis, tensors_in
from tilewright.te.tensor import Axis, Tensor, TensorLoad
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.stmt import BufferStore, For, IfThenElse, LoopKind, Stmt, seq


@dataclass(frozen=True, slots=True)
class Contribution:
    """Every step of a domain gives `value`, where the guard holds, to the element at some indices."""

    domain: tuple[Axis, ...]
    indices: tuple[PrimExpr, ...]
    guard: Guard
    value: PrimExpr


@dataclass(frozen=True, slots=True)
class _Gathered:
    """What an element at a place is given: a value, summed over axes if there are any."""

    place: tuple[Var, ...]
    axes: tuple[Axis, ...]
    value: PrimExpr

    def at(self, place: Sequence[PrimExpr]) -> PrimExpr:
        """The value for another place."""
        return substitute(self.value, dict(zip(self.place, place, strict=True)))

    def turned(self, turn: PrimExpr, tensor: Tensor) -> _Gathered:
        """The same, backwards along the first axis."""
        first = Var(self.place[0].name)
        analyzer = Analyzer()
        for var, size in zip((first, *self.place[1:]), tensor.shape, strict=True):
            analyzer.bind(var, Range(ZERO, size))
        for axis in self.axes:
            analyzer.bind(axis.var, axis.domain)
        value = _simplified(substitute(self.value, {self.place[0]: turn - first}), analyzer)
        return _Gathered((first, *self.place[1:]), self.axes, value)


def accumulated(
    tensor: Tensor,
    contributions: Sequence[Contribution],
    given: Sequence[Tensor] = (),
    turn: PrimExpr | None = None,
) -> Tensor | None:
    """The sum of contributions to a tensor's elements and of tensors like it; None where there are none.

    With `turn`, the result runs backwards along its first axis: row t is that of element `turn - t`. Contributions must
    have an inverse then, and what is given runs backwards already.
    """
    wide = _sum_type(tensor.dtype)
    name = f"{tensor.name}_gradient"
    values: list[_Gathered] = []
    sums: list[Tensor] = list(given)
    for contribution in contributions:
        gathered = _gather(tensor, contribution, wide)
        if gathered is not None and turn is not None:
            gathered = gathered.turned(turn, tensor)
        if gathered is None:
            if turn is not None:
                raise UserError(
                    f"te.gradient: the steps that read an element of {tensor.name} cannot be told",
                    hint="read states of a te.scan at fixed distances in time, and at places that are no data",
                )
            sums.append(_scattered(tensor, contribution, wide, name))
        elif _is_zero(gathered.value):
            continue
        elif gathered.axes:
            sums.append(_summed(tensor, gathered, name))
        else:
            values.append(gathered)
    if not values and len(sums) == 1 and sums[0].dtype is tensor.dtype:
        return sums[0]
    if not values and not sums:
        return None

    def element(*i: Axis) -> PrimExpr:
        place = [axis.as_prim_expr() for axis in i]
        terms = [item.at(place) for item in values] + [cast(item[tuple(place)], wide) for item in sums]
        total = terms[0]
        for term in terms[1:]:
            total = build.add(total, term)
        return cast(total, tensor.dtype)

    return compute(tensor.shape, element, name)


def _sum_type(dtype: DataType) -> DataType:
    """The type in which gradients are added up: float32 for the narrow floats."""
    return FLOAT32 if dtype.bits < 32 else dtype


def _is_zero(value: PrimExpr) -> bool:
    return isinstance(value, e.FloatImm) and value.value == 0


def _widened(value: PrimExpr, wide: DataType) -> PrimExpr:
    """A value before it was rounded to a narrow type, where it was."""
    return value.value if isinstance(value, e.Cast) and value.value.dtype is wide else cast(value, wide)


def _gather(tensor: Tensor, contribution: Contribution, wide: DataType) -> _Gathered | None:
    """A contribution as what each element takes; None where its index map has no inverse."""
    place = tuple(Var(f"i{n}") for n in range(tensor.ndim))
    inverse = invert(contribution.indices, contribution.domain, place, tensor.shape)
    if inverse is None:
        return None
    axes = tuple(reduce_axis((0, extent), var.name) for var, extent in inverse.free.items())
    renamed = {var: axis.as_prim_expr() for var, axis in zip(inverse.free, axes, strict=True)}
    values = {var: substitute(item, renamed) for var, item in inverse.values.items()}
    analyzer = Analyzer()
    for var, size in zip(place, tensor.shape, strict=True):
        analyzer.bind(var, Range(ZERO, size))
    for axis in axes:
        analyzer.bind(axis.var, axis.domain)
    inside = [substitute(item, renamed) for item in inverse.conditions]
    guard = _unproven([*inside, *(substitute(item, values) for item in contribution.guard)], analyzer)
    value = _widened(contribution.value, wide)
    if guard is None:
        return _Gathered(place, (), const(0, value.dtype))
    return _Gathered(place, axes, guarded(guard, _simplified(substitute(value, values), analyzer)))


def _unproven(conditions: Sequence[PrimExpr], analyzer: Analyzer) -> Guard | None:
    """Conditions without those that hold anyway, which the analyzer learns; None if one never does."""
    kept: list[PrimExpr] = []
    for condition in conditions:
        for part in conjuncts(condition):
            simple = _simplified(part, analyzer)
            if analyzer.prove(simple):
                continue
            if analyzer.prove(build.logical_not(simple)):
                return None
            analyzer.assume_always(simple)
            kept.append(simple)
    return tuple(kept)


def _simplified(value: PrimExpr, analyzer: Analyzer) -> PrimExpr:
    """A value with simple indices, and without conditions that are known to hold or not."""

    def simplify(item: Node) -> Node | None:
        if isinstance(item, TensorLoad):
            return TensorLoad(item.tensor, tuple(analyzer.simplify(index) for index in item.indices))
        if isinstance(item, e.Select):
            if analyzer.prove(item.condition):
                return item.a
            return item.b if analyzer.prove(build.logical_not(item.condition)) else None
        if isinstance(item, PrimExpr) and item.dtype.is_integer and not depends_on_memory(item):
            return analyzer.simplify(item)
        return None

    return transform(value, simplify)


def _summed(tensor: Tensor, gathered: _Gathered, name: str) -> Tensor:
    def element(*i: Axis) -> PrimExpr:
        return reduction.sum(gathered.at([axis.as_prim_expr() for axis in i]), gathered.axes)

    return compute(tensor.shape, element, name)


def _scattered(tensor: Tensor, contribution: Contribution, wide: DataType, name: str) -> Tensor:
    """Steps in order, each of which adds to the element that its indices name."""
    value = _widened(contribution.value, wide)
    sources = tensors_in([*contribution.indices, *contribution.guard, value])

    def statement(inputs: list[Buffer], outputs: list[Buffer]) -> Stmt:
        (target,) = outputs
        buffers = dict(zip(sources, inputs, strict=True))

        def load(item: Node) -> Node | None:
            return BufferLoad(buffers[item.tensor], item.indices) if isinstance(item, TensorLoad) else None

        indices = tuple(transform(index, load) for index in contribution.indices)
        body: Stmt = BufferStore(target, indices, BufferLoad(target, indices) + transform(value, load))
        for condition in reversed(contribution.guard):
            body = IfThenElse(transform(condition, load), body, None)
        for axis in reversed(contribution.domain):
            body = For(axis.var, axis.domain.min, axis.domain.extent, LoopKind.SERIAL, body)
        place = [Var(f"i{n}") for n in range(target.ndim)]
        clear: Stmt = BufferStore(target, tuple(place), const(0, target.dtype))
        for var, size in zip(reversed(place), reversed(target.shape), strict=True):
            clear = For(var, ZERO, size, LoopKind.SERIAL, clear)
        return seq(clear, body)

    result = extern(tensor.shape, sources, statement, name, wide)
    assert isinstance(result, Tensor)
    return result
