"""Accesses outside of buffers, found before a program is built: `A[i + 1]` for all eight elements of A.

Of every access the index is bounded by the ranges of loops and iterators and by the conditions around it (predicates,
`if`, the lazy sides of a `Select`). What that leaves open is decided:

- with known sizes, the settings of the variables involved are tried, all of them: an access that leaves its buffer is
  refused, and so is one with more settings than can be tried that cannot be shown to stay inside;
- with symbolic sizes, an access is refused that leaves its buffer whatever the sizes are; others are the program's own
  responsibility, as are indices that are read from memory (`docs/semantics.md`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from tilewright.arith.analyzer import Analyzer
from tilewright.arith.interval import Interval
from tilewright.arith.simplify import depends_on_memory
from tilewright.ir import expr as e
from tilewright.ir.build import const, ge, le, logical_not, lt
from tilewright.ir.expr import PrimExpr, Range, Var, const_value
from tilewright.ir.visit import substitute, variables
from tilewright.support.errors import UserError
from tilewright.tir import stmt as s
from tilewright.tir.analysis.index_values import Numbers, evaluate, is_index
from tilewright.tir.analysis.linear import linear
from tilewright.tir.buffer import Buffer, BufferLoad, loads_in
from tilewright.tir.function import PrimFunc
from tilewright.tir.script.printer import to_script
from tilewright.tir.stmt import Block, For, Stmt

MOST_SETTINGS: Final = 1 << 22
"""How many settings of variables are tried for one index."""
FEW_SETTINGS: Final = 1 << 14
"""How many are tried for an index of an operator in a model."""

_ADDRESSES: Final = ("access_ptr", "element_distance")
"""Calls whose arguments are elements that are not read."""


def require_in_bounds(func: PrimFunc) -> None:
    """Raise a `UserError` for the first access of a program that leaves its buffer, or may do so with known sizes."""
    _Walk(func).run()


def refuse_outside(func: PrimFunc) -> None:
    """Raise a `UserError` for the first access that certainly leaves its buffer: for operators, which are tested."""
    _QuickWalk(func).run()


@dataclass(frozen=True, slots=True)
class _Access:
    """One index of an access: it must be in [0, extent)."""

    what: Callable[[], str]
    index: PrimExpr
    extent: PrimExpr
    limits: Callable[[], str]


class _Walk:
    """Walks a function with the ranges of variables, their values and the conditions that hold."""

    def __init__(self, func: PrimFunc) -> None:
        self._func = func
        self._analyzer = Analyzer()
        self._written = func.span is not None
        self._loops: dict[Var, Range] = {}
        self._values: dict[Var, PrimExpr] = {}
        """Iterators and definitions, in terms of what is around them."""
        self._conditions: tuple[PrimExpr, ...] = ()
        self._seen: set[tuple[PrimExpr, tuple[PrimExpr, ...]]] = set()
        self._block = "root"

    def run(self) -> None:
        """Check all accesses of the function."""
        for dim in self._func.symbolic_dims():
            self._analyzer.assume_always(ge(dim, const(0, dim.dtype)))
        self._stmt(self._func.body)

    # ---------------------------------------------------------------- statements

    def _stmt(self, stmt: Stmt) -> None:
        match stmt:
            case For():
                self._exprs(stmt.min, stmt.extent)
                with self._fresh():
                    self._analyzer.bind(stmt.var, Range(stmt.min, stmt.extent))
                    self._loops[stmt.var] = Range(stmt.min, stmt.extent)
                    self._stmt(stmt.body)
            case Block():
                self._in_block(stmt)
            case s.SeqStmt():
                for item in stmt.stmts:
                    self._stmt(item)
            case s.BufferStore():
                self._exprs(*stmt.indices, stmt.value)
                self._access(stmt.buffer, stmt.indices, "writes")
            case s.LetStmt():
                self._exprs(stmt.value)
                with self._fresh():
                    self._values[stmt.var] = stmt.value
                    if stmt.var.dtype.is_integer and stmt.var.dtype.is_scalar:
                        self._analyzer.bind(stmt.var, _bounded(self._analyzer, stmt.value))
                    self._stmt(stmt.body)
            case s.IfThenElse():
                self._exprs(stmt.condition)
                with self._given(stmt.condition):
                    self._stmt(stmt.then_body)
                if stmt.else_body is not None:
                    with self._given(logical_not(stmt.condition)):
                        self._stmt(stmt.else_body)
            case s.Allocate():
                self._stmt(stmt.body)
            case s.Evaluate():
                self._exprs(stmt.value)
            case s.Assert():
                self._exprs(stmt.condition)

    def _in_block(self, block: Block) -> None:
        self._exprs(block.predicate)
        outer, self._block = self._block, block.name
        with self._given(block.predicate):
            self._exprs(*block.iter_values)
            if self._written:
                self._domains(block)
        with self._fresh():
            for item in block.iters:
                self._analyzer.bind(item.var, item.domain)
                self._values[item.var] = item.value
            self._conditions = (*self._conditions, *([] if block.predicate is e.TRUE else [block.predicate]))
            if block.init is not None:
                self._stmt(block.init)
            self._stmt(block.body)
        self._block = outer

    def _domains(self, block: Block) -> None:
        """Bindings that leave the domains of their iterators: the interpreter stops there."""
        for item in block.iters:
            low, extent = item.domain.min, item.domain.extent
            self._require(_Access(partial(_binding, item), item.value - low, extent, partial(_domain, item.domain)))

    @contextmanager
    def _fresh(self) -> Iterator[None]:
        """What is learnt inside is forgotten at the end."""
        loops, values, conditions, seen = dict(self._loops), dict(self._values), self._conditions, self._seen
        self._seen = set()
        with self._analyzer.scope():
            yield
        self._loops, self._values, self._conditions, self._seen = loops, values, conditions, seen

    @contextmanager
    def _given(self, condition: PrimExpr) -> Iterator[None]:
        before = self._conditions
        if condition is not e.TRUE:
            self._conditions = (*before, condition)
        yield
        self._conditions = before

    # ---------------------------------------------------------------- expressions

    def _exprs(self, *exprs: PrimExpr) -> None:
        for expr in exprs:
            self._expr(expr)

    def _expr(self, expr: PrimExpr) -> None:
        """The loads of an expression, each under the conditions under which it is evaluated."""
        if not depends_on_memory(expr):
            return
        key = (expr, self._conditions)
        if key in self._seen:
            return
        self._seen.add(key)
        match expr:
            case e.Select():
                self._expr(expr.condition)
                for condition, side in ((expr.condition, expr.a), (logical_not(expr.condition), expr.b)):
                    with self._given(condition):
                        self._expr(side)
            case e.And() | e.Or():
                self._expr(expr.a)
                with self._given(expr.a if isinstance(expr, e.And) else logical_not(expr.a)):
                    self._expr(expr.b)
            case e.Call() if expr.name in _ADDRESSES:
                pass
            case _:
                for child in expr.children():
                    if isinstance(child, PrimExpr):
                        self._expr(child)
                if isinstance(expr, BufferLoad):
                    self._access(expr.buffer, expr.indices, "reads")

    def _access(self, buffer: Buffer, indices: Sequence[PrimExpr], word: str) -> None:
        for dimension, (index, extent) in enumerate(zip(indices, buffer.shape, strict=True)):
            if isinstance(index, e.Ramp):
                ends = [index.base, index.base + index.stride * (index.lanes - 1)]
            elif isinstance(index, e.Broadcast):
                ends = [index.value]
            else:
                ends = [index]
            for end in ends:
                if not end.dtype.is_scalar or self._is_inside(end, extent):
                    continue
                what = partial(_element, word, buffer, indices)
                self._require(_Access(what, end, extent, partial(_extent, buffer, dimension)))

    # ---------------------------------------------------------------- decisions

    def _is_inside(self, index: PrimExpr, extent: PrimExpr) -> bool:
        """Whether the ranges of variables alone keep an index inside: what nearly all accesses need."""
        size, bounds = const_value(extent), self._analyzer.bounds(index)
        return size is not None and bounds.lower is not None and bounds.lower >= 0 and _below(bounds, size)

    def _require(self, access: _Access) -> None:
        if self._is_inside(access.index, access.extent) or self._is_proven(access):
            return
        index, conditions = self._in_loops(access.index), [self._in_loops(item) for item in self._conditions]
        extent = self._in_loops(access.extent)
        if _reads_memory(index) or _reads_memory(extent):
            return
        setting = self._leaves(index, extent, conditions)
        if setting is None:
            return
        place = f"function {self._func.name}, block {self._block}"
        span = f" ({self._func.span})" if self._func.span is not None else ""
        raise UserError(
            f"block {self._block} {access.what()} out of bounds: the index is {setting}, and {access.limits()}",
            where=place + span,
            hint="shorten the loop or the axis, or guard the access: a side of te.select (or `a if c else b`) that is "
            "not chosen is not evaluated",
        )

    def _is_proven(self, access: _Access) -> bool:
        inside = [ge(access.index, const(0, access.index.dtype)), lt(access.index, access.extent)]
        with self._analyzer.assume(*self._conditions):
            return all(self._analyzer.prove(part) for part in inside)

    def _in_loops(self, expr: PrimExpr) -> PrimExpr:
        """An expression in terms of loops, outermost iterators and symbolic sizes."""
        while True:
            known = {var: self._values[var] for var in variables(expr) if var in self._values}
            if not known:
                return expr
            expr = substitute(expr, known)

    def _leaves(self, index: PrimExpr, extent: PrimExpr, conditions: list[PrimExpr]) -> str | None:
        """A value that an index has outside of [0, extent), with the settings of variables that give it."""
        conditions = _connected(index, [part for item in conditions for part in _parts(item)])
        involved = [var for part in (index, extent, *conditions) for var in variables(part)]
        ranges = self._ranges(involved)
        if ranges is None or any(_reads_memory(part) for part in conditions):
            return self._always_leaves(index, extent, conditions)
        inside = [part for var in ranges for part in self._own_range(var)]
        if not all(is_index(part) for part in (index, extent, *conditions, *inside)):
            return None
        count = 1
        for interval in ranges.values():
            count *= len(interval)
        if count > self._most():
            return self._undecided(count, ranges)
        return _found_outside(index, extent, [*conditions, *inside], ranges)

    def _most(self) -> int:
        """How many settings are tried."""
        return MOST_SETTINGS

    def _undecided(self, count: int, ranges: Mapping[Var, range]) -> str | None:
        """What is said of an index with more settings than can be tried."""
        return f"not certainly inside ({count} settings of {', '.join(var.name for var in ranges)} are too many)"

    def _ranges(self, involved: Sequence[Var]) -> dict[Var, range] | None:
        """The values that variables may have, if all are loops of known range."""
        ranges: dict[Var, range] = {}
        pending = list(involved)
        while pending:
            var = pending.pop()
            if var in ranges:
                continue
            if var not in self._loops:
                return None
            bounds = self._analyzer.bounds(var)
            if bounds.lower is None or bounds.upper is None:
                return None
            ranges[var] = range(bounds.lower, bounds.upper + 1)
            own = self._loops[var]
            pending.extend(variables(self._in_loops(own.min)))
            pending.extend(variables(self._in_loops(own.extent)))
        return ranges

    def _own_range(self, var: Var) -> list[PrimExpr]:
        """Conditions that keep a loop's variable in its range, where that depends on others."""
        low, extent = (self._in_loops(part) for part in (self._loops[var].min, self._loops[var].extent))
        if const_value(low) is not None and const_value(extent) is not None:
            return []
        return [le(low, var), lt(var, low + extent)]

    def _always_leaves(self, index: PrimExpr, extent: PrimExpr, conditions: Sequence[PrimExpr]) -> str | None:
        """With symbolic sizes: the first or last setting of the loops, if it is outside whatever the sizes are."""
        form = linear(index)
        if conditions or any(type(term) is not Var for term in form.terms):
            return None
        for last in (True, False):
            corner: dict[Var, PrimExpr] = {}
            for var, coefficient in form.terms.items():
                if var in self._loops and isinstance(var, Var):
                    low, size = (self._in_loops(part) for part in (self._loops[var].min, self._loops[var].extent))
                    corner[var] = low + size - 1 if (coefficient > 0) == last else low
            value = self._in_loops(substitute(index, corner))
            if uses_loops(value, self._loops):
                continue
            outside = ge(value, extent) if last else lt(value, const(0, value.dtype))
            if self._analyzer.prove(outside):
                return to_script(self._analyzer.simplify(value))
        return None


class _QuickWalk(_Walk):
    """The same with little work: what cannot be decided quickly is taken to be right."""

    def _most(self) -> int:
        return FEW_SETTINGS

    def _undecided(self, count: int, ranges: Mapping[Var, range]) -> str | None:
        return None


def _element(word: str, buffer: Buffer, indices: Sequence[PrimExpr]) -> str:
    return f"{word} {buffer.name}[{', '.join(to_script(item) for item in indices)}]"


def _extent(buffer: Buffer, dimension: int) -> str:
    return f"{buffer.name} has the extent {to_script(buffer.shape[dimension])} in dimension {dimension}"


def _binding(item: s.BlockIter) -> str:
    return f"binds the iterator {item.var.name} to {to_script(item.value)}"


def _domain(domain: Range) -> str:
    return f"the domain is [{to_script(domain.min)}, {to_script(domain.min + domain.extent)})"


def uses_loops(expr: PrimExpr, loops: Mapping[Var, Range]) -> bool:
    """Whether an expression mentions any of some loops."""
    return any(var in loops for var in variables(expr))


def _bounded(analyzer: Analyzer, value: PrimExpr) -> Interval:
    return analyzer.bounds(value)


def _below(bounds: Interval, size: int) -> bool:
    return bounds.upper is not None and bounds.upper < size


def _reads_memory(expr: PrimExpr) -> bool:
    return bool(loads_in(expr))


def _parts(condition: PrimExpr) -> Iterator[PrimExpr]:
    """The parts of a conjunction, without hints."""
    if isinstance(condition, e.And):
        yield from _parts(condition.a)
        yield from _parts(condition.b)
    elif isinstance(condition, e.Call) and condition.name == "likely":
        yield from _parts(condition.args[0])
    else:
        yield condition


def _connected(index: PrimExpr, conditions: Sequence[PrimExpr]) -> list[PrimExpr]:
    """The conditions that have to do with the variables of an index, directly or through others."""
    known, left, kept = set(variables(index)), list(conditions), []
    grown = True
    while grown:
        grown = False
        for part in list(left):
            if known.intersection(variables(part)):
                known.update(variables(part))
                kept.append(part)
                left.remove(part)
                grown = True
    return kept


# ---------------------------------------------------------------- all settings at once


def _found_outside(
    index: PrimExpr, extent: PrimExpr, conditions: Sequence[PrimExpr], ranges: Mapping[Var, range]
) -> str | None:
    """The first setting of variables at which conditions hold and an index is outside, in words."""
    if any(len(values) == 0 for values in ranges.values()):
        return None
    grids = np.meshgrid(*(np.arange(r.start, r.stop) for r in ranges.values()), indexing="ij", sparse=True)
    values: dict[Var, Numbers] = dict(zip(ranges, grids, strict=True))
    known: dict[PrimExpr, Numbers] = {}
    with np.errstate(all="ignore"):
        place, size = evaluate(index, values, known), evaluate(extent, values, known)
        wrong = (place < 0) | (place >= size)
        for part in conditions:
            wrong = wrong & evaluate(part, values, known).astype(bool)
    wrong = np.broadcast_to(wrong, tuple(len(values) for values in ranges.values()))
    if not wrong.any():
        return None
    first = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    setting = {var: r[int(n)] for (var, r), n in zip(ranges.items(), first, strict=True)}
    shown = np.broadcast_to(place, wrong.shape)[first]
    names = ", ".join(f"{var.name} = {value}" for var, value in setting.items())
    return f"{int(shown)} where {names}" if names else str(int(shown))
