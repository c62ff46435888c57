"""What schedule templates share: the schedule under work, the target, and questions about blocks and loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Self

from tilewright.ir.expr import TRUE, BinaryExpr, Call, const_value
from tilewright.ir.visit import find_all, pre_order, uses_any
from tilewright.target import Target
from tilewright.target.machine import CpuParameters, GpuParameters, cpu_parameters, gpu_parameters
from tilewright.tir.buffer import Buffer
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.schedule.schedule import Schedule
from tilewright.tir.stmt import Block, For, IterKind, LoopKind
from tilewright.topi.schedule.choices import A, Choices
from tilewright.topi.schedule.packing import constant_parameters

TYPICAL_SIZE = 128
"""What a symbolic extent is taken for where a size decides how, never whether it is right."""


@dataclass(slots=True)
class ScheduleContext:
    """One function being scheduled."""

    sch: Schedule
    target: Target
    packing: dict[int, IndexMap] = field(default_factory=dict)
    """How constant parameters were rearranged, by parameter number."""
    choices: Choices = field(default_factory=Choices)
    """Answers to what only changes speed."""

    @property
    def cpu(self) -> CpuParameters:
        """The machine parameters of the target, which is a CPU."""
        return cpu_parameters(self.target)

    @property
    def gpu(self) -> GpuParameters:
        """The machine parameters of the target, which is a GPU."""
        return gpu_parameters(self.target)

    def choose(self, name: str, options: Sequence[A], default: A) -> A:
        """A choice that only changes speed: the analytic `default`, unless a tuner has found better."""
        return self.choices.choose(name, options, default)

    def choose_again(self, name: str, options: Sequence[A], default: A) -> A:
        """The same for what a template may ask for several stages: the second question is `name_2`, and so on."""
        count = 1 + sum(asked == name or asked.startswith(f"{name}_") for asked in self.choices.asked)
        return self.choose(name if count == 1 else f"{name}_{count}", options, default)

    def copy(self) -> Self:
        """The same program under work, to try something on; questions that are asked count for both."""
        return replace(self, sch=self.sch.copy(), packing=dict(self.packing))

    def take(self, trial: ScheduleContext) -> None:
        """Go on with what a copy has become."""
        self.sch, self.packing = trial.sch, trial.packing

    def pack(self, handle: BlockHandle, buffer: Buffer, index_map: IndexMap) -> None:
        """Rearrange a constant parameter that a block reads; the model stores it so."""
        self.packing[constant_parameters(self.sch.func)[buffer]] = index_map
        self.sch.transform_layout(handle, buffer.name, index_map)

    def block(self, handle: BlockHandle) -> Block:
        """The block of a handle as it is now."""
        return self.sch.block(handle)

    def loop(self, handle: LoopHandle) -> For:
        """The loop of a handle as it is now."""
        return self.sch.loop(handle)

    def extent(self, handle: LoopHandle) -> int | None:
        """The constant extent of a loop, or None."""
        return const_value(self.loop(handle).extent)

    def extents(self, handles: list[LoopHandle]) -> list[int] | None:
        """The constant extents of loops, or None if any is symbolic."""
        extents = [self.extent(handle) for handle in handles]
        return None if any(e is None for e in extents) else [e for e in extents if e is not None]

    def sizes(self, handles: list[LoopHandle]) -> list[int]:
        """The extents of loops, with a typical size for symbolic ones: for choices, not for what must be exact."""
        extents = [self.extent(handle) for handle in handles]
        return [TYPICAL_SIZE if extent is None else extent for extent in extents]

    def is_symbolic(self, handle: LoopHandle) -> bool:
        """Whether a loop's extent is known only when the program runs."""
        return self.extent(handle) is None

    def lanes(self, handle: BlockHandle) -> int:
        """Elements of the block's result in one vector register."""
        return max(1, self.target.lanes(max(8, self.block(handle).writes[0].buffer.dtype.bits)))

    def parallelize(self, loops: list[LoopHandle], work: int) -> None:
        """Spread outer loops over the cores, fused into one, when there is enough work."""
        if self.target.cores < 2 or work < self.cpu.parallel.least_work or not loops:
            return
        # Fused loops find their indices by division: by constants, or it would cost and hide what conditions mean.
        inner = next((n for n, loop in enumerate(loops) if n > 0 and self.is_symbolic(loop)), len(loops))
        if inner < len(loops) and prod(self.sizes(loops[:inner])) == 1:
            inner += 1
        self.parallel_nest(self._of_whole_tiles(loops[:inner]))

    def _of_whole_tiles(self, loops: list[LoopHandle]) -> list[LoopHandle]:
        """The loops before the first whose last tile is a partial one, where these keep the cores at work; else all.

        A loop that has become one with others has no last iteration to treat apart: each of its tiles is tested.
        """
        tests = [block.predicate for block in find_all(self.loop(loops[0]), Block) if block.predicate is not TRUE]
        count = next((n for n, loop in enumerate(loops) if any(uses_any(test, [loop.var]) for test in tests)), None)
        if not count:
            return loops
        pieces, most = (prod(self.sizes(part)) for part in (loops[:count], loops))
        whole = 0 < pieces and self.idle(pieces) < self.cpu.parallel.tested_tiles * self.idle(most)
        return loops[:count] if whole else loops

    def parallel_nest(self, loops: list[LoopHandle]) -> LoopHandle:
        """Run nested loops in parallel as one; gives that one.

        Each is shown to have independent iterations before they become one: the indices of a fused loop hide much.
        """
        for loop in loops:
            if self.extent(loop) != 1:
                self.sch.parallel(loop)
        return self.sch.fuse(*loops) if len(loops) > 1 else loops[0]

    def parallelize_tiles(self, loops: list[LoopHandle], work: int) -> None:
        """Spread loops over tiles over the cores; each core has a run of the innermost loop to itself.

        Where the others alone would leave cores idle, the innermost loop is divided too: seven rows of sixteen tiles
        are for sixteen cores 7 x 16 pieces of a tile, not seven pieces.
        """
        *outer, last = loops
        if not outer:
            self.parallelize(loops, work)
            return
        extent, pieces = self.extent(last), self.extents(outer)
        if self.target.cores > 1 and extent is not None and pieces is not None and 0 not in pieces:
            parts = self._parts(prod(pieces), extent, work)
            if parts == extent:
                outer = loops
            elif parts > 1:
                part, _ = self.sch.split(last, [parts, None])
                outer = [*outer, part]
        self.parallelize(outer, work)

    def _parts(self, pieces: int, extent: int, work: int) -> int:
        """Into how many parts a loop inside a number of pieces is divided so that cores have about equal work.

        There may be more parts than that needs, so that a core that is slow today leaves some of them to the others.
        """
        parallel = self.cpu.parallel
        best, least = 1, self.idle(pieces)
        for parts in range(2, extent + 1):
            if least <= parallel.most_idle or work < pieces * parts * parallel.least_piece:
                break
            if extent % parts == 0 and self.idle(pieces * parts) * parallel.least_gain < least:
                best, least = parts, self.idle(pieces * parts)
        for parts in range(best, extent + 1):
            enough = pieces * best >= parallel.pieces_per_core * self.target.cores
            if enough or work < pieces * parts * parallel.large_piece:
                break
            if extent % parts == 0:
                best = parts
        return best

    def idle(self, pieces: int) -> float:
        """The time that cores take for some pieces, against what it would be if all were at work to the end."""
        return -(-pieces // self.target.cores) * self.target.cores / pieces


def operations_in(block: Block) -> int:
    """A rough count of what one instance of a block computes; math functions weigh most."""
    total = 0
    for item in pre_order(block.body):
        if isinstance(item, Call):
            total += 8
        elif isinstance(item, BinaryExpr) and item.dtype.is_float:
            total += 1
    return total


def loops_below(context: ScheduleContext, handle: BlockHandle, attach: LoopHandle) -> list[LoopHandle]:
    """The loops of a block inside the loop it is computed at."""
    loops = context.sch.get_loops(handle)
    return loops[[loop.var for loop in loops].index(attach.var) + 1 :]


def spatial_loops(context: ScheduleContext, handle: BlockHandle) -> list[LoopHandle]:
    """The outermost loops of a stage that has them to itself, as far as each serves spatial iterators alone."""
    sch = context.sch
    others = {loop.var for other in sch.blocks() if other != handle for loop in sch.get_loops(other)}
    ordered = [item for item in context.block(handle).iters if item.kind is not IterKind.SPATIAL]
    outermost: list[LoopHandle] = []
    for loop in sch.get_loops(handle):
        used = any(uses_any(item.value, [loop.var]) for item in ordered)
        if used or loop.var in others or context.loop(loop).kind is not LoopKind.SERIAL:
            break
        if outermost and context.loop(outermost[-1]).body is not context.loop(loop):
            break
        outermost.append(loop)
    return outermost
