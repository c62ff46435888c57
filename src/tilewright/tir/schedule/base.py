"""What every schedule has besides primitives: the program, the trace, handles, and ways to look around."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Self

from tilewright.support.errors import UserError
from tilewright.tir.analysis.dependence import consumers, producers
from tilewright.tir.enclose import enclose, is_bare
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule.handles import BlockHandle, Handle, LoopHandle, SampledInt
from tilewright.tir.schedule.state import ScheduleState, require_closed_blocks
from tilewright.tir.schedule.trace import Trace, Value
from tilewright.tir.script.printer import to_script
from tilewright.tir.stmt import Block, For
from tilewright.tir.verify import verify_written


class ScheduleBase:
    """A program, what was done to it, and questions about it."""

    def __init__(self, func: PrimFunc, *, seed: int | None = None) -> None:
        if not isinstance(func, PrimFunc):
            raise UserError(f"a schedule needs a PrimFunc, not {type(func).__name__}")
        if is_bare(func) and func.span is not None:
            func = enclose(func)  # what was written without blocks gets them; what has been lowered had them
        if not isinstance(func.body, Block):
            raise UserError(
                f"function {func.name} has no root block", hint="schedule functions before they are lowered"
            )
        if func.span is not None:
            verify_written(func)  # what was read from text may be anything; what the compiler makes has no place
        require_closed_blocks(func)
        self._state = ScheduleState(func)
        self._state.watch(self._state.index.blocks.values())
        self._trace = Trace()
        self._random = Random(seed)

    @property
    def func(self) -> PrimFunc:
        """The program as it is now."""
        return self._state.func

    @property
    def origin(self) -> PrimFunc:
        """The program that the schedule started from."""
        return self._state.origin

    @property
    def trace(self) -> Trace:
        """What has been done so far."""
        return self._trace

    def copy(self) -> Self:
        """An independent schedule at the same point; handles are valid in both."""
        other = object.__new__(type(self))
        other._state = self._state.copy()
        other._trace = self._trace.copy()
        other._random = Random()
        other._random.setstate(self._random.getstate())
        return other

    def show(self) -> str:
        """The program as text."""
        return to_script(self.func)

    def __str__(self) -> str:
        return self.show()

    def __repr__(self) -> str:
        """The blocks; `print(schedule)` shows the program as it is."""
        index = self._state.index
        blocks = (block for block in index.blocks.values() if block is not index.root)
        return f"Schedule({self.func.name}: {', '.join(block.name for block in blocks)})"

    # Handles

    def _loop(self, handle: object, what: str) -> For:
        if not isinstance(handle, LoopHandle):
            raise UserError(f"{what}: {handle!r} is not a loop", hint="get loops from get_loops, split, fuse, ...")
        loop = self._state.index.loops.get(handle.var)
        if loop is None:
            self._state.fail(
                f"{what}: the loop {handle.var.name} is no longer in the program",
                hint="it was split, fused, or its block was moved: use the loops that came of that",
            )
        if not self._trace.knows(handle):
            self._name_loop(handle, loop)
        return loop

    def _name_loop(self, handle: LoopHandle, loop: For) -> None:
        """Record where a loop that came from outside this trace (a tensor axis) is: the n-th loop around a block."""
        index = self._state.index
        block = index.blocks_under(loop)[0] if index.blocks_under(loop) else None
        if block is None:
            raise UserError(f"the loop {handle.var.name} has no block inside, so a trace cannot name it")
        self.get_loops(self.get_block(block.name))

    def _block(self, handle: object, what: str) -> Block:
        if not isinstance(handle, BlockHandle):
            raise UserError(f"{what}: {handle!r} is not a block", hint="get blocks from get_block")
        block = self._state.index.blocks.get(handle.name)
        if block is None:
            self._state.fail(
                f"{what}: the block {handle.name} is no longer in the program",
                hint=f"it has the blocks {', '.join(self._state.index.blocks)}",
            )
        if not self._trace.knows(handle):
            self.get_block(handle.name)
        return block

    def _target(self, handle: object, what: str) -> For | Block:
        return self._loop(handle, what) if isinstance(handle, LoopHandle) else self._block(handle, what)

    def _record(
        self,
        kind: str,
        inputs: Sequence[Handle],
        attributes: dict[str, object] | None = None,
        outputs: Sequence[Handle | SampledInt] = (),
        decision: Value = None,
    ) -> None:
        self._trace.record(kind, inputs, attributes or {}, outputs, decision)

    # Looking around

    def get_block(self, name: str) -> BlockHandle:
        """The block of a name."""
        if name not in self._state.index.blocks:
            raise UserError(
                f"there is no block {name!r} in function {self.func.name}",
                hint=f"it has: {', '.join(self._state.index.blocks)}",
            )
        handle = BlockHandle(name)
        self._record("get_block", [], {"name": name}, [handle])
        return handle

    def block(self, handle: BlockHandle) -> Block:
        """The block of a handle as it is now: to look at, not to change."""
        return self._block(handle, "block")

    def loop(self, handle: LoopHandle) -> For:
        """The loop of a handle as it is now: to look at, not to change."""
        return self._loop(handle, "loop")

    def get_loops(self, block: BlockHandle) -> list[LoopHandle]:
        """The loops around a block within its scope, outermost first."""
        node = self._block(block, "get_loops")
        handles = [LoopHandle(loop.var) for loop in self._state.index.loops_above(node)]
        self._record("get_loops", [block], {}, handles)
        return handles

    def blocks(self) -> list[BlockHandle]:
        """All blocks except the root, in program order."""
        names = [block.name for block in self._state.index.blocks.values() if block is not self._state.index.root]
        handles = [BlockHandle(name) for name in names]
        self._record("blocks", [], {}, handles)
        return handles

    def _related(self, kind: str, block: BlockHandle, blocks: Sequence[Block]) -> list[BlockHandle]:
        handles = [BlockHandle(item.name) for item in blocks]
        self._record(kind, [block], {}, handles)
        return handles

    def get_child_blocks(self, target: BlockHandle | LoopHandle) -> list[BlockHandle]:
        """The outermost blocks inside a block or a loop."""
        node = self._target(target, "get_child_blocks")
        handles = [BlockHandle(item.name) for item in self._state.index.blocks_under(node)]
        self._record("get_child_blocks", [target], {}, handles)
        return handles

    def get_producers(self, block: BlockHandle) -> list[BlockHandle]:
        """The blocks of the scope that write what a block reads."""
        node = self._block(block, "get_producers")
        return self._related("get_producers", block, producers(self._state.index, node))

    def get_consumers(self, block: BlockHandle) -> list[BlockHandle]:
        """The blocks of the scope that read what a block writes."""
        node = self._block(block, "get_consumers")
        return self._related("get_consumers", block, consumers(self._state.index, node))

    def get_output_blocks(self) -> list[BlockHandle]:
        """The blocks that write parameters of the function."""
        handles = [
            BlockHandle(block.name)
            for block in self._state.index.inside(self._state.index.root).blocks
            if any(self._state.is_parameter(region.buffer) for region in block.writes)
        ]
        self._record("get_output_blocks", [], {}, handles)
        return handles
