"""The `s[C]` schedules of the papers: a thin face over the one schedule engine of loop programs.

    s = te.create_schedule(C.op)
    xo, yo, xi, yi = s[C].tile(C.op.axis[0], C.op.axis[1], 8, 8)
    s[C].vectorize(yi)
    f = tw.build(s, [A, B, C])

Each call changes the program at once (`tilewright.tir.schedule`), so order matters where it does not in the papers'
lazy schedules: `compute_at` makes new loops for the stage it moves, so split and reorder a stage after moving it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import overload

from tilewright.ir.expr import PrimExpr, Range, Var
from tilewright.ir.visit import pre_order, variables
from tilewright.support.errors import UserError
from tilewright.te.program import create_program
from tilewright.te.reduction import Reducer
from tilewright.te.tensor import (
    Axis,
    ComputeOp,
    Operation,
    PlaceholderOp,
    StagedOp,
    Tensor,
    operations_of,
)
from tilewright.tir.analysis.index import ProgramIndex
from tilewright.tir.buffer import Buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.schedule.schedule import Schedule as LoopSchedule
from tilewright.tir.stmt import Block, BlockIter, For, IterKind
from tilewright.tir.tensor_intrin import TensorIntrin

Target = Tensor | Operation


def create_schedule(outputs: Target | Sequence[Target]) -> Schedule:
    """A schedule of everything that outputs (tensors or operations) depend on: the plain program to begin with."""
    items = [outputs] if isinstance(outputs, (Tensor, Operation)) else list(outputs)
    tensors: list[Tensor] = []
    for item in items:
        if not isinstance(item, (Tensor, Operation)):
            raise UserError(f"a schedule is made of tensors or operations, not {item!r}", hint="create_schedule(C.op)")
        tensors.extend([item] if isinstance(item, Tensor) else item.outputs)
    tensors = [tensor for tensor in dict.fromkeys(tensors) if not isinstance(tensor.op, PlaceholderOp)]
    if not tensors:
        raise UserError("there is nothing to schedule", hint="give computed tensors or their operations")
    return Schedule(tensors)


def lower(schedule: Schedule, args: Sequence[Tensor | Var], name: str = "main") -> PrimFunc:
    """The program of a schedule with its parameters in the order of `args`; `tilewright.tir.script` prints it."""
    return schedule.func(args, name)


class Schedule:
    """A schedule of tensor expressions. `s[C]` is the stage that computes C; `s.loops` the engine's own schedule."""

    def __init__(self, outputs: Sequence[Tensor]) -> None:
        operations = operations_of(outputs)
        inputs = [op.outputs[0] for op in operations if isinstance(op, PlaceholderOp)]
        scalars = _scalars(operations)
        program = create_program([*inputs, *scalars, *outputs])
        self.outputs = tuple(outputs)
        self.loops = LoopSchedule(program.func)
        """The schedule of the loop program: every primitive of the engine can be used beside the stages."""
        self._names = {tensor: buffer.name for tensor, buffer in program.buffers.items()}
        self._stages: dict[Operation, Stage] = {}
        self._index: ProgramIndex | None = None
        for op, block in program.blocks.items():
            self._stages[op] = Stage(self, op, block, _axes_of(op, self.index.blocks[block]))

    def __getitem__(self, target: Target) -> Stage:
        op = target.op if isinstance(target, Tensor) else target
        stage = self._stages.get(op)
        if stage is None:
            raise UserError(
                f"the schedule has no stage for {getattr(op, 'name', op)!r}",
                hint=f"its stages are: {', '.join(item.name for item in self.stages)}",
            )
        return stage

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, producers first as they were made."""
        return tuple(self._stages.values())

    @property
    def index(self) -> ProgramIndex:
        """The structure of the program as it is now."""
        if self._index is None or self._index.func is not self.loops.func:
            self._index = ProgramIndex(self.loops.func)
        return self._index

    def __str__(self) -> str:
        return self.loops.show()

    def __repr__(self) -> str:
        """The stages; `print(schedule)` shows the program as it is."""
        return repr(self.loops)

    def cache_read(self, tensor: Tensor, scope: str, readers: Target | Sequence[Target] | None = None) -> Tensor:
        """Copy a tensor to another memory scope for its readers (all of them unless given); gives the copy.

        The stage of the returned tensor is the copying; put it where it is needed with `compute_at`.
        """
        name = self._buffer_name(tensor)
        stages = self.stages if readers is None else [self[item] for item in _listed(readers)]
        blocks = [stage for stage in stages if stage.reads(name)]
        missing = [stage.name for stage in stages if stage not in blocks]
        if readers is not None and missing:
            raise UserError(f"cache_read: stage {missing[0]} does not read {tensor.name}")
        if not blocks:
            raise UserError(f"cache_read: no stage reads {tensor.name}")
        ordered = sorted(blocks, key=lambda stage: self.index.position(stage.block))
        first, *others = [BlockHandle(stage.block_name) for stage in ordered]
        made = self.loops.cache_read(first, name, scope, others).name
        return self._staged(tensor, made, self.index.blocks[made].writes[0].buffer)

    @overload
    def cache_write(self, tensor: Tensor, scope: str) -> Tensor: ...
    @overload
    def cache_write(self, tensor: Sequence[Tensor], scope: str) -> list[Tensor]: ...
    def cache_write(self, tensor: Tensor | Sequence[Tensor], scope: str) -> Tensor | list[Tensor]:
        """Compute a tensor in another memory scope and copy it out afterwards; gives the tensor computed there.

        The stage of the returned tensor is the computation; the stage of `tensor` becomes the copy. Several outputs of
        one operation (a list of them) are computed there together, and copied out by one stage.
        """
        tensors = [tensor] if isinstance(tensor, Tensor) else list(tensor)
        if not tensors or any(item.op is not tensors[0].op for item in tensors):
            raise UserError(
                "cache_write: the tensors are not outputs of one operation", hint="use cache_write for each of them"
            )
        stage = self[tensors[0]]
        block = stage.block
        names: list[int | str] = [self._buffer_name(item) for item in tensors]
        made = self.loops.cache_write(BlockHandle(block.name), names if len(names) > 1 else names[0], scope).name
        copy = self.index.blocks[made]
        computed = [region.buffer for region in copy.reads]
        staged = [self._staged(tensors[0], block.name, computed[0], stage)]
        for buffer in computed[1:]:
            other = StagedOp(buffer.name, buffer.shape, buffer.dtype, staged[0].op.axis, staged[0].op.reduce_axis)
            self._stages[other] = self[staged[0]]
            self._names[other.outputs[0]] = buffer.name
            staged.append(other.outputs[0])
        # The tensors' own axes now name the loops of the copy, dimension by dimension.
        outer = stage.op.axis
        stage.become(made)
        stage.alias(outer, copy.iters)
        return staged[0] if isinstance(tensor, Tensor) else staged

    def rfactor(self, tensor: Tensor, axis: Axis, factor_axis: int = 0) -> Tensor:
        """Keep a partial result for each iteration of a reduction axis; gives the tensor of partial results.

        The stage of `tensor` then combines them: its reduce axis is the factored one.
        """
        stage = self[tensor]
        loop = stage.loop(axis)
        made = self.loops.rfactor(LoopHandle(loop.var), factor_axis).name
        partial = self._staged(tensor, made, self.index.blocks[made].writes[tensor.value_index].buffer)
        stage.become(stage.block_name)
        return partial

    def func(self, args: Sequence[Tensor | Var], name: str = "main") -> PrimFunc:
        """The program, with parameters in the order of `args` (every input and output must be among them)."""
        params: list[Buffer | Var] = []
        extra: list[Buffer] = []
        func = self.loops.func
        known = {param.name: param for param in func.buffers}
        for arg in args:
            found: Buffer | Var
            if isinstance(arg, Var):
                found = arg
            elif not isinstance(arg, Tensor):
                raise UserError(f"an argument must be a tensor or a variable, not {arg!r}")
            elif arg in self._names and self._names[arg] in known:
                found = known[self._names[arg]]
            elif isinstance(arg.op, PlaceholderOp):
                found = Buffer(arg.name, arg.shape, arg.dtype)
            else:
                found = self._whole_buffer(arg)
                extra.append(found)
            if any(found is item for item in params):
                raise UserError(f"{arg.name} is given twice among the arguments")
            params.append(found)
        for param in func.params:
            if all(param is not item for item in params):
                raise UserError(
                    f"{param.name} is used by the schedule but is not among the arguments",
                    hint="pass every input and output: tw.build(s, [A, B, C])",
                )
        root = func.root
        kept = tuple(buffer for buffer in root.allocations if all(buffer is not item for item in extra))
        body = root if not extra else root.replace(allocations=kept)
        return func.replace(name=name, params=tuple(params), body=body)

    def _whole_buffer(self, tensor: Tensor) -> Buffer:
        """The buffer of an intermediate tensor that the caller wants to see, if all of it is computed."""
        stage = self._stages.get(tensor.op)
        name = self._names.get(tensor)
        if stage is not None and not stage.moved:
            for buffer in self.loops.func.root.allocations:
                if buffer.name == name and buffer.scope == "global":
                    return buffer
        raise UserError(
            f"{tensor.name} is not computed as a whole by this schedule, so it cannot be an argument",
            hint="it is no part of the schedule, or was inlined, staged or moved: leave it where it was made",
        )

    def _buffer_name(self, tensor: Tensor) -> str:
        if tensor not in self._names:
            raise UserError(f"tensor {tensor.name} is no part of this schedule")
        return self._names[tensor]

    def _staged(self, tensor: Tensor, block: str, buffer: Buffer, like: Stage | None = None) -> Tensor:
        """A tensor and a stage for a block that a primitive made, or (`like`) that takes over another stage's axes."""
        node = self.index.blocks[block]
        op = StagedOp(buffer.name, buffer.shape, buffer.dtype, *_loop_axes(node, None if like is None else like.op))
        stage = Stage(self, op, block, _axes_of(op, node))
        if like is not None:
            stage.moved = like.moved
            stage._loops = dict(like._loops)
        self._stages[op] = stage
        self._names[op.outputs[0]] = buffer.name
        return op.outputs[0]


class Stage:
    """How one operation is computed. Axes are those of `stage.op` (or of the tensor's own op) and those given back."""

    def __init__(self, schedule: Schedule, op: Operation, block: str, axes: dict[Var, Var]) -> None:
        self._schedule = schedule
        self.op = op
        self.block_name = block
        self.name = op.name
        self.moved = False
        """Whether it computes only what its consumers need."""
        self._iterators = axes
        self._loops: dict[Var, Var | None] = {}
        self.renew()

    def __repr__(self) -> str:
        return f"stage {self.name}"

    @property
    def block(self) -> Block:
        """The block of the loop program that computes this stage."""
        found = self._schedule.index.blocks.get(self.block_name)
        if found is None:
            raise UserError(f"stage {self.name} is no longer in the program", hint="it was inlined into its consumers")
        return found

    def reads(self, buffer: str) -> bool:
        """Whether the stage reads a buffer (by its name)."""
        block = self._schedule.index.blocks.get(self.block_name)
        return block is not None and any(region.buffer.name == buffer for region in block.reads)

    # ---------------------------------------------------------------- axes

    def alias(self, axes: Sequence[Axis], items: Sequence[BlockIter]) -> None:
        """Let more axes stand for iterators of the stage's block."""
        self._iterators.update((axis.var, item.var) for axis, item in zip(axes, items, strict=True))
        self.renew()

    def become(self, block: str) -> None:
        """Take another block for the stage's own, with the axes that its loops have now."""
        self.block_name = block
        tensor = self.op.outputs[0]
        self.op = StagedOp(self.name, tensor.shape, tensor.dtype, *_loop_axes(self.block, None))
        self._schedule._stages[self.op] = self
        self._iterators = _axes_of(self.op, self.block)
        self.renew()

    def renew(self, place: For | None = None) -> None:
        """See which loops (inside `place`) now move the iterators that axes stand for; None where none is needed."""
        block = self.block
        index = self._schedule.index
        loops = index.loops_between(place, block)
        values = {item.var: item.value for item in block.iters}
        for axis, iterator in self._iterators.items():
            used = set(variables(values[iterator])) if iterator in values else set()
            moving = [loop for loop in loops if loop.var in used]
            own = [loop for loop in moving if index.blocks_under(loop) == [block]] or moving
            if len(own) <= 1:
                self._loops[axis] = own[0].var if own else None
            else:
                self._loops.setdefault(axis, axis)

    def loop(self, axis: Axis) -> For:
        """The loop that an axis stands for.

        An axis given back by a primitive is its loop's variable. An axis of the operation stays good when the loops
        were made anew: it is then the loop that moves its iterator.
        """
        if not isinstance(axis, Axis):
            raise UserError(f"stage {self.name}: {axis!r} is not an axis", hint="use s[C].op.axis or what split gave")
        above = {loop.var: loop for loop in self._schedule.index.loops_above(self.block)}
        if axis.var in above:
            return above[axis.var]
        if axis.var not in self._loops:
            raise UserError(f"stage {self.name} has no axis {axis.name}", hint=self._hint(above))
        var = self._loops[axis.var]
        if var is None:
            # The iterator takes a single value here, so it has no loop.
            var = self._loops[axis.var] = self._schedule.loops.add_unit_loop(BlockHandle(self.block_name)).var
            return self._schedule.index.loops[var]
        if var not in above:
            raise UserError(f"stage {self.name}: axis {axis.name} was split or fused before", hint=self._hint(above))
        return above[var]

    def _hint(self, loops: Iterable[Var]) -> str:
        names = ", ".join(loop.name for loop in loops) or "none"
        return f"the loops around it are: {names} (compute_at makes new loops: split after it, with s[...].op.axis)"

    def _handle(self, axis: Axis) -> LoopHandle:
        return LoopHandle(self.loop(axis).var)

    def _axis(self, handle: LoopHandle, kind: IterKind) -> Axis:
        loop = self._schedule.index.loops[handle.var]
        return Axis(loop.var, Range(loop.min, loop.extent), kind)

    # ---------------------------------------------------------------- loops

    def split(
        self, axis: Axis, factor: int | PrimExpr | None = None, nparts: int | PrimExpr | None = None
    ) -> tuple[Axis, Axis]:
        """Split an axis in an outer and an inner one: the inner of `factor` iterations, or the outer of `nparts`."""
        if (factor is None) == (nparts is None):
            raise UserError(f"stage {self.name}: split takes either factor or nparts")
        handles = self._schedule.loops.split(self._handle(axis), [nparts, factor])
        outer, inner = (self._axis(handle, axis.kind) for handle in handles)
        return outer, inner

    def fuse(self, *axes: Axis) -> Axis:
        """Make one axis of directly nested ones, outermost first."""
        handle = self._schedule.loops.fuse(*(self._handle(axis) for axis in axes))
        kinds = {axis.kind for axis in axes}
        return self._axis(handle, axes[0].kind if len(kinds) == 1 else IterKind.OPAQUE)

    def reorder(self, *axes: Axis) -> None:
        """Nest axes in the given order, outermost first."""
        self._schedule.loops.reorder(*(self._handle(axis) for axis in axes))

    def tile(self, x_parent: Axis, y_parent: Axis, x_factor: int, y_factor: int) -> tuple[Axis, Axis, Axis, Axis]:
        """Split two axes and nest the inner parts innermost: gives (x_outer, y_outer, x_inner, y_inner)."""
        x_outer, x_inner = self.split(x_parent, x_factor)
        y_outer, y_inner = self.split(y_parent, y_factor)
        self.reorder(x_outer, y_outer, x_inner, y_inner)
        return x_outer, y_outer, x_inner, y_inner

    def vectorize(self, axis: Axis) -> None:
        """Run the iterations of an axis as the lanes of vectors."""
        self._schedule.loops.vectorize(self._handle(axis))

    def unroll(self, axis: Axis) -> None:
        """Repeat the body for each iteration of an axis."""
        self._schedule.loops.unroll(self._handle(axis))

    def parallel(self, axis: Axis) -> None:
        """Run the iterations of an axis on several threads."""
        self._schedule.loops.parallel(self._handle(axis))

    def bind(self, axis: Axis, thread: str) -> None:
        """Run the iterations of an axis along a hardware axis (`te.thread_axis("threadIdx.x")`)."""
        self._schedule.loops.bind(self._handle(axis), thread)

    def tensorize(self, axis: Axis, intrinsic: TensorIntrin | str) -> None:
        """Let a declared intrinsic compute everything from an axis inward."""
        made = self._schedule.loops.tensorize(self._handle(axis), intrinsic)
        # From here on the stage is the tile: its loops are those around it.
        self.block_name = made.name

    def double_buffer(self) -> None:
        """Fill the stage's tensor one iteration ahead of its use, in the loop that it shares with its consumers."""
        self._schedule.loops.double_buffer(BlockHandle(self.block.name))

    def storage_align(self, axis: Axis, factor: int, offset: int = 0) -> None:
        """Space out the stage's tensor: the stride of an axis is `offset` more than a multiple of `factor`."""
        names = [item.var for item in self.op.axis]
        if not isinstance(axis, Axis) or axis.var not in names:
            raise UserError(f"stage {self.name}: {axis!r} is not an axis of its tensor", hint="use s[C].op.axis")
        self._schedule.loops.storage_align(BlockHandle(self.block.name), 0, names.index(axis.var), factor, offset)

    # ---------------------------------------------------------------- where

    def compute_at(self, parent: Stage, axis: Axis) -> None:
        """Compute, in each iteration of an axis of a consumer stage, just what is needed there."""
        if not isinstance(parent, Stage):
            raise UserError(f"stage {self.name}: compute_at takes a stage, not {parent!r}", hint="compute_at(s[C], yo)")
        place = parent._handle(axis)
        self._schedule.loops.compute_at(BlockHandle(self.block.name), place, preserve_unit_loops=True)
        self.moved = True
        self.renew(self._schedule.index.loops[place.var])

    def compute_inline(self) -> None:
        """Put the expression in the place of each use; the stage goes away."""
        self._schedule.loops.compute_inline(BlockHandle(self.block.name))

    def compute_root(self) -> None:
        """Compute the whole tensor before its consumers: where every stage is to begin with."""
        if self.moved:
            raise UserError(
                f"stage {self.name} was moved by compute_at and does not go back",
                hint="leave out the compute_at: stages are at the root to begin with",
            )

    def set_scope(self, scope: str) -> None:
        """Keep the stage's tensor in another memory scope."""
        block = self.block
        for region in block.writes:
            self._schedule.loops.set_scope(BlockHandle(block.name), region.buffer.name, scope)


def _listed(targets: Target | Sequence[Target]) -> list[Target]:
    return [targets] if isinstance(targets, (Tensor, Operation)) else list(targets)


def _axes_of(op: Operation, block: Block) -> dict[Var, Var]:
    """The iterator of a block that each axis of an operation moves, in order."""
    spatial = [item for item in block.iters if item.kind is not IterKind.REDUCE]
    reduced = [item for item in block.iters if item.kind is IterKind.REDUCE]
    pairs = [*zip(op.axis, spatial, strict=False), *zip(op.reduce_axis, reduced, strict=False)]
    return {axis.var: item.var for axis, item in pairs}


def _loop_axes(block: Block, like: Operation | None) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    """Axes for the iterators of a block: another operation's, or the variables of the loops they are bound to."""
    if like is not None:
        return like.axis, like.reduce_axis
    spatial: list[Axis] = []
    reduced: list[Axis] = []
    for item in block.iters:
        var = item.value if type(item.value) is Var else Var(item.var.name.removeprefix("v_"))
        assert isinstance(var, Var)
        target = reduced if item.kind is IterKind.REDUCE else spatial
        target.append(Axis(var, item.domain, item.kind))
    return tuple(spatial), tuple(reduced)


def _scalars(operations: Sequence[Operation]) -> list[Var]:
    """Variables that computations use and that are neither axes nor dimensions: scalar parameters."""
    dims: set[Var] = set()
    for op in operations:
        for tensor in op.outputs:
            for dim in tensor.shape:
                dims.update(variables(dim))
    found: dict[Var, None] = {}
    for op in operations:
        if not isinstance(op, ComputeOp):
            continue
        bound = {axis.var for axis in (*op.axis, *op.reduce_axis)}
        for value in op.body:
            found.update((var, None) for var in _free(value) if var not in bound and var not in dims)
    return list(found)


def _free(value: PrimExpr) -> list[Var]:
    """The variables of an expression that no reducer binds."""
    bound: set[Var] = set()
    seen: list[Var] = []
    for item in pre_order(value):
        if isinstance(item, Reducer):
            bound.update((*item.left, *item.right))
        elif type(item) is Var:
            seen.append(item)
    return [var for var in seen if var not in bound]
