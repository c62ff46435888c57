"""How far a kernel is from what its processor can do: an estimate, from its schedule and the machine parameters.

    bound = bound_of(func, scheduled, templates, target)
    bound.factor        # 1.3: about as quick as it can be; 12.0: twelve times slower
    bound.reason        # why, where it is far

The bound of a kernel is its arithmetic at the rate of the processor's vector instructions, or its bytes at the rate of
memory, whichever takes longer. Templates for contractions are taken at their word: they keep sums in registers. Under
the templates that take anything, a contraction waits for each sum, or computes one number at a time; other stages are
counted instruction by instruction, as their loops are scheduled: vectors where memory is walked through in order,
single elements elsewhere. Only differences of some size can be told so, which is all that a warning needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.arith.analyzer import Analyzer
from tilewright.ir.build import add, mul
from tilewright.ir.expr import TRUE, ZERO, Call, IntImm, PrimExpr, Range, Select, Var
from tilewright.ir.visit import substitute, uses_any
from tilewright.lower.cost import number_at, work_of
from tilewright.target import Target
from tilewright.target.machine import cpu_parameters
from tilewright.tir.analysis.index import child_statements
from tilewright.tir.analysis.linear import linear
from tilewright.tir.annotations import ANCHOR, Anchor
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.stmt import Block, BufferStore, For, IterKind, LoopKind, Stmt
from tilewright.topi.schedule.template import TemplateChoice

FAR = 4.0
"""The factor from which on a kernel is far from its bound."""
GENERIC = frozenset(["reduction", "elementwise", "plain", ""])
"""Templates that keep no tile of sums in registers; the empty name is no schedule at all."""
_SUMS = frozenset([Anchor.MATMUL, Anchor.CONV2D, Anchor.DEPTHWISE_CONV2D, Anchor.WINDOW_DOTS, Anchor.CONV2D_TRANSPOSE])
_SIZES = (128, 1 << 12, 1 << 16, 1 << 20)
"""Sizes that symbols are taken for, the first that will do."""
_MOST_LANES = 8
"""Registers of partial results that a reduction combines at the end of a row."""
_FUNCTION = 8
"""Vector instructions of a mathematical function, about."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Cycles of one core that a kernel takes at least, and those that it is estimated to take."""

    least: float = 0.0
    estimate: float = 0.0
    reason: str = ""
    """Why the second is far from the first; empty where it is not."""

    @property
    def factor(self) -> float:
        """How many times longer than it must a kernel takes."""
        return self.estimate / self.least if self.least else 1.0


def bound_of(func: PrimFunc, scheduled: PrimFunc, templates: Sequence[TemplateChoice], target: Target) -> Bound:
    """The bound of a kernel, from its program before and after scheduling; devices have none."""
    if not target.is_cpu:
        return Bound()
    return _Estimate(func, templates, target).of(scheduled)


@dataclass(frozen=True, slots=True)
class _Stage:
    """A block with the loops around it, outermost first."""

    block: Block
    loops: tuple[For, ...]

    @property
    def vector(self) -> For | None:
        """The loop whose iterations are the lanes of vectors."""
        return next((loop for loop in reversed(self.loops) if loop.kind is LoopKind.VECTORIZED), None)


def _stages(stmt: Stmt, loops: tuple[For, ...] = ()) -> Iterator[_Stage]:
    """The innermost blocks of a program."""
    if isinstance(stmt, For):
        loops = (*loops, stmt)
    inner = [stage for child in child_statements(stmt) for stage in _stages(child, loops)]
    if isinstance(stmt, Block) and not inner:
        yield _Stage(stmt, loops)
    yield from inner


def _typical_size(func: PrimFunc) -> int:
    """What symbols are taken for: a size at which every loop runs (frames of a signal are few at small ones)."""
    extents = {
        loop.extent for stage in _stages(func.body) for loop in stage.loops if not isinstance(loop.extent, IntImm)
    }
    return next((size for size in _SIZES if all(number_at(extent, size) > 0 for extent in extents)), _SIZES[-1])


class _Estimate:
    """One kernel on one processor."""

    def __init__(self, func: PrimFunc, templates: Sequence[TemplateChoice], target: Target) -> None:
        self._func = func
        self._templates = templates
        self._target = target
        self._core = cpu_parameters(target).core
        self._is_generic = all(choice.name in GENERIC for choice in templates)
        self._symbols = _typical_size(func)

    def of(self, scheduled: PrimFunc) -> Bound:
        """The bound, and the estimate for a schedule."""
        before = list(_stages(self._func.body))
        sums = [stage for stage in before if self._is_sum(stage)]
        moved = work_of(self._func).at(self._symbols)[1] / self._core.memory_bytes_per_cycle
        least = max(moved, sum(self._arithmetic(stage) for stage in before))
        if not self._is_generic:
            return Bound(least, least)
        reasons: list[str] = []
        estimate = 0.0
        for stage in _stages(scheduled.body):
            if self._is_sum(stage):
                estimate += self._arithmetic(stage) * self._slowdown(stage)
            else:
                estimate += self._counted(stage, reasons)
        estimate = max(estimate, moved)
        if estimate <= FAR * least:
            return Bound(least, estimate)
        if sums:
            reasons.insert(0, self._passed_over())
        return Bound(least, estimate, "; ".join(dict.fromkeys(reasons)) or "more passes over its data than it needs")

    def _size(self, extent: PrimExpr) -> int:
        return number_at(extent, self._symbols)

    def _times(self, stage: _Stage) -> int:
        """How often a stage is computed: of tiles at the end of an open size, only what lies within it."""
        times = prod(self._size(loop.extent) for loop in stage.loops)
        if stage.block.predicate is TRUE or not _is_computed_once(stage):
            return times
        return min(times, prod(self._size(item.domain.extent) for item in stage.block.iters))

    def _is_sum(self, stage: _Stage) -> bool:
        """Whether a stage is a contraction, or a part of one."""
        return stage.block.is_reduction and ANCHOR.of(stage.block) in _SUMS

    def _arithmetic(self, stage: _Stage) -> float:
        """Cycles of a stage at the rate of vector instructions."""
        body = stage.block.body
        if not isinstance(body, BufferStore):
            return 0.0
        operations = 1 if self._is_sum(stage) else _operations(body.value)
        narrowest = min((load.buffer.dtype.bits for load in _loads(body.value)), default=body.buffer.dtype.bits)
        has_dots = self._target.has_vnni or self._target.has_dotprod
        bits = narrowest if self._is_sum(stage) and narrowest == 8 and has_dots else body.buffer.dtype.bits
        return self._times(stage) * operations / (self._target.lanes(max(8, bits)) * self._core.fma_per_cycle)

    def _slowdown(self, stage: _Stage) -> float:
        """How much longer a contraction takes without a register tile: each step waits for the one before it."""
        if stage.vector is not None:
            return float(self._core.fma_in_flight)
        return float(self._core.fma_in_flight * self._target.lanes(32))

    def _passed_over(self) -> str:
        """Which template a contraction has, and why it has no better one."""
        name = self._templates[0].name or "no"
        tiled = [item for item in self._templates[0].passed_over if item.name not in GENERIC]
        others = "; ".join(dict.fromkeys(item.reason for item in tiled[-2:]))
        return (
            f"a contraction under the {name} template, which keeps no sums in registers ({others or 'it has no other'})"
        )

    def _counted(self, stage: _Stage, reasons: list[str]) -> float:
        """Cycles of a stage by its instructions."""
        body = stage.block.body
        if not isinstance(body, BufferStore):
            # Statements of its own, which a template wrote for it.
            return 0.0
        vector = stage.vector or self._combined_lanes(stage)
        width = 1 if vector is None else self._size(vector.extent)
        registers = -(-width // self._target.lanes(max(8, body.buffer.dtype.bits)))
        instructions = _operations(body.value) * registers
        accesses = [(load.buffer, load.indices) for load in _loads(body.value) if load.buffer is not body.buffer]
        if not stage.block.is_reduction:
            accesses.append((body.buffer, body.indices))
        for buffer, indices in accesses:
            if vector is None or width == 1 or self._is_in_order(buffer, indices, stage, vector.var):
                instructions += registers
            else:
                instructions += width
                reasons.append(f"{buffer.name} is read or written element by element, out of its order in memory")
        if width == 1 and self._times(stage) > 1:
            reasons.append(f"{stage.block.name} is computed without vectors")
        return self._times(stage) / width * instructions / self._core.fma_per_cycle

    def _combined_lanes(self, stage: _Stage) -> For | None:
        """The loop over partial results that are combined in the end: they are lanes of vectors, added up in pairs."""
        if not stage.block.is_reduction or not stage.loops:
            return None
        last = stage.loops[-1]
        reduced = any(item.kind is IterKind.REDUCE and item.value is last.var for item in stage.block.iters)
        return last if reduced and self._size(last.extent) <= _MOST_LANES * self._target.lanes(32) else None

    def _is_in_order(self, buffer: Buffer, indices: Sequence[PrimExpr], stage: _Stage, lane: Var) -> bool:
        """Whether the lanes of a vector access one element, or elements side by side."""
        values: dict[Var, PrimExpr] = {item.var: item.value for item in stage.block.iters}
        flat: PrimExpr = ZERO
        for index, extent in zip(indices, buffer.shape, strict=True):
            flat = add(mul(flat, extent), substitute(index, values))
        if not uses_any(flat, [lane]):
            return True
        analyzer = Analyzer()
        for loop in stage.loops:
            analyzer.bind(loop.var, Range(loop.min, loop.extent))
        form = linear(analyzer.simplify(flat))
        return form.terms.get(lane) in (1, -1) and not any(
            uses_any(term, [lane]) for term in form.terms if term is not lane
        )


def _is_computed_once(stage: _Stage) -> bool:
    """Whether every loop around a stage moves it on: none computes it again."""
    return all(any(uses_any(item.value, [loop.var]) for item in stage.block.iters) for loop in stage.loops)


def _loads(value: PrimExpr) -> list[BufferLoad]:
    """What a value reads, without what its indices read."""
    found: dict[BufferLoad, None] = {}
    for item in _parts(value):
        if isinstance(item, BufferLoad):
            found.setdefault(item)
    return list(found)


def _operations(value: PrimExpr) -> int:
    """Vector instructions that compute a value, loads and indices left out; at least one, to move it."""
    total = 0
    for item in _parts(value):
        if isinstance(item, Call):
            total += _FUNCTION
        elif not isinstance(item, (BufferLoad, Select)) and item.children():
            total += 1
    return max(1, total)


def _parts(value: PrimExpr) -> Iterator[PrimExpr]:
    """The parts of a value, each once; conditions and indices are left out."""
    seen: set[PrimExpr] = set()
    stack = [value]
    while stack:
        item = stack.pop()
        if item in seen:
            continue
        seen.add(item)
        yield item
        if isinstance(item, Select):
            stack += [item.a, item.b]
        elif not isinstance(item, BufferLoad):
            stack += [child for child in item.children() if isinstance(child, PrimExpr)]
