"""Finding a tensor intrinsic's description in a block: which buffers are its operands, at which offsets and steps.

A block to be matched holds loops around one inner block. The iterators of the inner block are a start (that the loops
do not move) plus a tile coordinate; tile coordinates are matched with the iterators of the description, and then every
access of the body with the access of an operand: `buffer[base + matrix x]` for element x.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from tilewright.arith.analyzer import Analyzer
from tilewright.arith.linear import Linear
from tilewright.ir.expr import ZERO, Add, And, IntImm, Max, Min, Mul, Or, PrimExpr, Range, Var, const_value
from tilewright.ir.node import Node
from tilewright.ir.visit import substitute
from tilewright.tir.analysis.linear import expression, linear, mentions
from tilewright.tir.annotations import TENSOR_INTRIN, TENSOR_INTRIN_RESET
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.stmt import Block, BlockIter, BufferStore, For, IterKind, Stmt
from tilewright.tir.tensor_intrin import Operand, TensorIntrin, find_intrinsic

_COMMUTATIVE = (Add, Mul, Min, Max, And, Or)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Why a block is not what an intrinsic computes."""

    reason: str


@dataclass(frozen=True, slots=True)
class Match:
    """A block that an intrinsic computes; `role` is "compute", "update" or "reset"."""

    operands: tuple[Operand, ...]
    role: str


@dataclass(frozen=True, slots=True)
class _Tile:
    """An iterator of the inner block: a start, and a coordinate (None where it stands still) with its extent."""

    item: BlockIter
    start: PrimExpr
    coordinate: Var | None
    extent: int


def loop_nest(stmt: Stmt) -> tuple[list[For], Stmt]:
    """Directly nested loops and what is inside the innermost."""
    loops: list[For] = []
    while isinstance(stmt, For):
        loops.append(stmt)
        stmt = stmt.body
    return loops, stmt


def match_intrinsic(block: Block, intrinsic: TensorIntrin) -> Match | Mismatch:
    """How an intrinsic computes a block, or why it does not."""
    loops, inner = loop_nest(block.body)
    if not isinstance(inner, Block):
        return Mismatch(f"block {block.name} does not hold a nest of loops around one block")
    computation = intrinsic.block
    reduces = computation.init is not None
    if block.init is not None or (inner.init is None and reduces):
        role = "update"
    else:
        role = "compute"
    if inner.init is not None and not reduces:
        return Mismatch(f"block {inner.name} is a reduction and {intrinsic.name} is not")
    if role == "compute" and reduces:
        assert inner.init is not None and computation.init is not None
        parts = [(computation.body, inner.body), (computation.init, inner.init)]
    elif block.init is not None:
        init_loops, init_block = loop_nest(block.init)
        if not isinstance(init_block, Block) or computation.init is None:
            return Mismatch(f"the init of block {block.name} is not a nest of loops around one block")
        init_operands = _match_nest(
            init_loops, init_block, intrinsic, [(computation.init, init_block.body)], reset=True
        )
        if isinstance(init_operands, Mismatch):
            return Mismatch(f"the init: {init_operands.reason}")
        parts = [(computation.body, inner.body)]
    else:
        parts = [(computation.body, inner.body)]
    operands = _match_nest(loops, inner, intrinsic, parts, reset=False)
    return operands if isinstance(operands, Mismatch) else Match(operands, role)


def match_reset(block: Block, intrinsic: TensorIntrin) -> Match | Mismatch:
    """How an intrinsic's reset computes a block that initialises a tile."""
    loops, inner = loop_nest(block.body)
    init = intrinsic.block.init
    if not isinstance(inner, Block) or init is None:
        return Mismatch(f"block {block.name} does not hold a nest of loops around one block to reset")
    operands = _match_nest(loops, inner, intrinsic, [(init, inner.body)], reset=True)
    return operands if isinstance(operands, Mismatch) else Match(operands, "reset")


def intrinsic_mismatch(block: Block) -> str | None:
    """Why a block is not what the intrinsic it names computes; None if it is, or names none."""
    for key, match in ((TENSOR_INTRIN, match_intrinsic), (TENSOR_INTRIN_RESET, match_reset)):
        name = key.of(block)
        if name is not None:
            matched = match(block, find_intrinsic(name))
            if isinstance(matched, Mismatch):
                return matched.reason
    return None


def _match_nest(
    loops: Sequence[For], inner: Block, intrinsic: TensorIntrin, parts: Sequence[tuple[Stmt, Stmt]], *, reset: bool
) -> tuple[Operand, ...] | Mismatch:
    tiles = _tiles(loops, inner)
    if isinstance(tiles, Mismatch):
        return tiles
    moving = [tile for tile in tiles if tile.coordinate is not None]
    block = intrinsic.block
    axes = [item for item in block.iters if not (reset and item.kind is IterKind.REDUCE)]
    wide = [item for item in axes if const_value(item.domain.extent) != 1]
    text = ", ".join(f"{item.var.name.removeprefix('v_')}: {const_value(item.domain.extent)}" for item in wide)
    have = ", ".join(f"{tile.item.var.name.removeprefix('v_')}: {tile.extent}" for tile in moving)
    if len(wide) != len(moving):
        return Mismatch(f"the tile has the axes ({have}), {intrinsic.name} has ({text})")
    reason = f"no order of the axes ({have}) fits ({text})"
    for order in permutations(moving):
        if not all(
            tile.item.kind is item.kind and tile.extent == const_value(item.domain.extent)
            for tile, item in zip(order, wide, strict=True)
        ):
            continue
        operands = _Unifier(intrinsic, tiles, dict(zip(wide, order, strict=True)), axes).run(parts, reset)
        if not isinstance(operands, Mismatch):
            return operands
        reason = operands.reason
    return Mismatch(reason)


def _tiles(loops: Sequence[For], inner: Block) -> list[_Tile] | Mismatch:
    """The iterators of a block as starts and tile coordinates."""
    if not mentions_nothing(inner.predicate, loops):
        return Mismatch(f"block {inner.name} is guarded inside the tile")
    free = {loop.var: loop for loop in loops}
    used: set[Var] = set()
    result: list[_Tile] = []
    for item in inner.iters:
        form = linear(item.value)
        moving = sorted(_moving(form, free), key=lambda step: step[1])
        if any(type(term) is not Var and mentions(term, free) for term in form.terms):
            return Mismatch(f"iterator {item.var.name} of block {inner.name} divides loops of the tile")
        extent = 1
        start = Linear(dict(form.terms), form.constant)
        for term, coefficient in moving:
            loop = free[term]
            count, low = const_value(loop.extent), const_value(loop.min)
            start = start.plus(Linear({term: 1}, 0), -coefficient)
            if count is None or low is None:
                return Mismatch(f"the extent of loop {term.name} is not constant")
            start = start.shifted(coefficient * low)
            if count == 1:
                continue
            if coefficient != extent or term in used:
                return Mismatch(f"iterator {item.var.name} of block {inner.name} does not run step by step in the tile")
            used.add(term)
            extent *= count
        name = item.var.name.removeprefix("v_")
        result.append(_Tile(item, expression(start), Var(name) if extent > 1 else None, extent))
    idle = [loop.var.name for loop in loops if loop.var not in used and const_value(loop.extent) != 1]
    if idle:
        return Mismatch(f"loop {idle[0]} repeats the tile")
    return result


def _moving(form: Linear, free: Mapping[Var, For]) -> list[tuple[Var, int]]:
    return [(term, coefficient) for term, coefficient in form.terms.items() if type(term) is Var and term in free]


def mentions_nothing(condition: PrimExpr, loops: Sequence[For]) -> bool:
    """Whether a condition is free of loops' variables."""
    return not mentions(condition, {loop.var for loop in loops})


class _Unifier:
    """Matches the statements of a description with those of a block under one assignment of axes."""

    def __init__(
        self, intrinsic: TensorIntrin, tiles: Sequence[_Tile], order: dict[BlockIter, _Tile], axes: Sequence[BlockIter]
    ) -> None:
        self._intrinsic = intrinsic
        self._analyzer = Analyzer()
        self._target: dict[Var, PrimExpr] = {}
        self._coordinates: set[Var] = set()
        for tile in tiles:
            value = tile.start
            if tile.coordinate is not None:
                value = value + tile.coordinate
                self._coordinates.add(tile.coordinate)
                self._analyzer.bind(tile.coordinate, Range(ZERO, IntImm(tile.extent, ZERO.dtype)))
            self._target[tile.item.var] = value
        self._axes: dict[Var, PrimExpr] = {}
        for axis in axes:
            place = order.get(axis)
            self._axes[axis.var] = ZERO if place is None or place.coordinate is None else place.coordinate
        self._operands: dict[Buffer, Operand] = {}
        self._reason = "the computation differs"

    def run(self, parts: Sequence[tuple[Stmt, Stmt]], reset: bool) -> tuple[Operand, ...] | Mismatch:
        """The operands, in the order of the description's parameters (for a reset: the output alone)."""
        for pattern, given in parts:
            if not isinstance(pattern, BufferStore) or not isinstance(given, BufferStore):
                return Mismatch("only blocks with a single store are matched")
            left = BufferLoad(pattern.buffer, pattern.indices)
            right = BufferLoad(given.buffer, given.indices)
            if not self._unify(left, right) or not self._unify(pattern.value, given.value):
                return Mismatch(self._reason)
        params = self._intrinsic.description.buffers
        output = self._operands[params[-1]].buffer
        inputs = [self._operands[param].buffer for param in params[:-1] if param in self._operands]
        if any(buffer is output for buffer in inputs):
            return Mismatch(f"{output.name} is read and written by the tile")
        if reset:
            return (self._operands[params[-1]],)
        missing = [param.name for param in params if param not in self._operands]
        if missing:
            return Mismatch(f"nothing stands for operand {missing[0]}")
        return tuple(self._operands[param] for param in params)

    def _unify(self, pattern: PrimExpr, given: PrimExpr) -> bool:
        if pattern.dtype is not given.dtype:
            self._reason = f"{given.dtype} stands where {self._intrinsic.name} has {pattern.dtype}"
            return False
        if isinstance(pattern, BufferLoad):
            return isinstance(given, BufferLoad) and self._operand(pattern, given)
        if isinstance(pattern, Var) or (pattern.dtype.is_integer and not _loads(pattern)):
            difference = substitute(pattern, self._axes) - substitute(given, self._target)
            same = not _loads(given) and self._analyzer.prove_equal(difference, 0)
            return same or self._same_kind(pattern, given)
        return self._same_kind(pattern, given)

    def _same_kind(self, pattern: PrimExpr, given: PrimExpr) -> bool:
        if type(pattern) is not type(given) or isinstance(pattern, Var):
            return False
        mine = [child for child in pattern.children() if isinstance(child, PrimExpr)]
        theirs = [child for child in given.children() if isinstance(child, PrimExpr)]
        if len(mine) != len(theirs):
            return False
        if not mine:
            return pattern is given
        if getattr(pattern, "name", None) != getattr(given, "name", None):
            return False
        saved = dict(self._operands)
        if all(self._unify(a, b) for a, b in zip(mine, theirs, strict=True)):
            return True
        self._operands = saved
        if isinstance(pattern, _COMMUTATIVE):
            if self._unify(mine[0], theirs[1]) and self._unify(mine[1], theirs[0]):
                return True
            self._operands = saved
        return False

    def _operand(self, pattern: BufferLoad, given: BufferLoad) -> bool:
        """Record (or compare) where an operand is."""
        name = pattern.buffer.name
        shape = pattern.buffer.static_shape
        assert shape is not None
        # Quotients and remainders of panels vanish here where the coordinates stay within one panel.
        mine = [linear(self._analyzer.simplify(substitute(index, self._axes))) for index in pattern.indices]
        theirs = [linear(self._analyzer.simplify(substitute(index, self._target))) for index in given.indices]
        columns = [self._column(number, mine, theirs) for number in range(len(mine))]
        matrix: list[tuple[int, ...]] = []
        base: list[PrimExpr] = []
        for dimension, form in enumerate(theirs):
            rest = form
            row: list[int] = []
            for column, index in zip(columns, mine, strict=True):
                if column is None:
                    self._reason = f"the index of operand {name} cannot be taken apart"
                    return False
                rest = rest.minus(index.scaled(column[dimension]))
                row.append(column[dimension])
            if any(mentions(term, self._coordinates) for term in rest.terms):
                self._reason = f"{given.buffer.name} is not accessed as operand {name} of {self._intrinsic.name} is"
                return False
            matrix.append(tuple(row))
            base.append(self._analyzer.simplify(expression(rest)))
        operand = Operand(name, shape, pattern.buffer.dtype, given.buffer, tuple(base), tuple(matrix))
        known = self._operands.setdefault(pattern.buffer, operand)
        if known is operand:
            return True
        same = known.buffer is operand.buffer and known.matrix == operand.matrix
        if not same or not all(self._analyzer.prove_equal(a, b) for a, b in zip(known.base, operand.base, strict=True)):
            self._reason = f"operand {name} would be two different tiles"
            return False
        return True

    def _column(self, number: int, mine: Sequence[Linear], theirs: Sequence[Linear]) -> list[int] | None:
        """The steps of a buffer's dimensions along one dimension of an operand."""
        form = mine[number]
        if not form.terms:
            return [0] * len(theirs)
        for term, coefficient in form.terms.items():
            alone = all(term not in other.terms for place, other in enumerate(mine) if place != number)
            if alone and abs(coefficient) == 1:
                return [given.terms.get(term, 0) * coefficient for given in theirs]
        return None


def _loads(expr: Node) -> bool:
    stack = [expr]
    while stack:
        item = stack.pop()
        if isinstance(item, BufferLoad):
            return True
        stack.extend(item.children())
    return False
