"""From tensor expressions to a loop program: each operation becomes a loop nest around one block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.build import as_expr, const, select
from tilewright.ir.dtype import INT32
from tilewright.ir.expr import ZERO, PrimExpr, Range, Var, const_value
from tilewright.ir.node import Node
from tilewright.ir.visit import find_all, pre_order, substitute, transform
from tilewright.support.errors import CompilerBug, UserError
from tilewright.te.reduction import Reduce
from tilewright.te.tensor import (
    Axis,
    ComputeOp,
    ExternOp,
    Operation,
    PlaceholderOp,
    ScanOp,
    Tensor,
    TensorLoad,
    operations_of,
)
from tilewright.tir.annotations import KEPT, ROWS
from tilewright.tir.buffer import Buffer, BufferLoad, BufferRegion
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule.state import replace_buffers
from tilewright.tir.stmt import Block, BlockIter, BufferStore, Evaluate, For, IterKind, LetStmt, LoopKind, Stmt, seq


def create_prim_func(args: Sequence[Tensor | Var], name: str = "main") -> PrimFunc:
    """The loop program that computes the non-placeholder tensors among `args` from the placeholders among them.

    Parameters are in the order of `args`. The loops of an operation use its axis variables, so an axis names its loop.
    """
    return create_program(args, name).func


@dataclass(frozen=True, slots=True)
class Program:
    """A loop program made from tensors, and what became of them."""

    func: PrimFunc
    buffers: dict[Tensor, Buffer]
    blocks: dict[Operation, str]
    """The block of each computation (a scan has one for each of its steps)."""


def create_program(args: Sequence[Tensor | Var], name: str = "main") -> Program:
    """As `create_prim_func`, with the buffer of each tensor and the block of each computation."""
    maker = _ProgramMaker(args, name)
    return Program(maker.make(), maker.buffers, maker.blocks)


class _ProgramMaker:
    """Builds one function; owns the buffers and the unique block names."""

    def __init__(self, args: Sequence[Tensor | Var], name: str) -> None:
        self.args = args
        self.name = name
        self.buffers: dict[Tensor, Buffer] = {}
        self.names: set[str] = {"root"}
        self.buffer_names: set[str] = set()
        self.allocations: list[Buffer] = []
        self.blocks: dict[Operation, str] = {}

    def make(self) -> PrimFunc:
        tensors = [arg for arg in self.args if isinstance(arg, Tensor)]
        outputs = [tensor for tensor in tensors if not isinstance(tensor.op, PlaceholderOp)]
        if not outputs:
            raise UserError("there is nothing to compute", hint="pass the output tensors among the arguments")
        params: list[Buffer | Var] = []
        for arg in self.args:
            if isinstance(arg, Var):
                params.append(arg)
                continue
            if arg in self.buffers:
                raise UserError(f"tensor {arg.name} is given twice among the arguments")
            params.append(self._buffer(arg))
        statements: list[Stmt] = []
        for op in operations_of(outputs):
            if isinstance(op, PlaceholderOp):
                if op.outputs[0] not in self.buffers:
                    raise UserError(
                        f"input {op.name} is used but is not among the arguments",
                        hint="pass every placeholder to tw.build / create_prim_func",
                    )
                continue
            for tensor in op.outputs:
                if tensor not in self.buffers:
                    self.allocations.append(self._buffer(tensor))
            statements.append(self._operation(op))
        root = Block("root", (), (), (), seq(*statements), allocations=tuple(self.allocations))
        return PrimFunc(self.name, tuple(params), root, {})

    def _buffer(self, tensor: Tensor) -> Buffer:
        name = _unique(tensor.name, self.buffer_names)
        buffer = Buffer(name, tensor.shape, tensor.dtype)
        self.buffers[tensor] = buffer
        return buffer

    def _operation(self, op: Operation) -> Stmt:
        if isinstance(op, ComputeOp):
            return self._compute(op, [self.buffers[tensor] for tensor in op.outputs])
        if isinstance(op, ScanOp):
            return self._scan(op)
        if isinstance(op, ExternOp):
            return self._extern(op)
        raise CompilerBug(f"no program for {op!r}")

    def _lower(self, expr: PrimExpr, mapping: dict[Var, PrimExpr]) -> PrimExpr:
        buffers = self.buffers

        def load(item: Node) -> Node | None:
            if isinstance(item, TensorLoad):
                buffer = buffers.get(item.tensor)
                if buffer is None:
                    raise UserError(f"tensor {item.tensor.name} is used but is not among the arguments")
                return BufferLoad(buffer, item.indices)
            return None

        return substitute(transform(expr, load), mapping)

    def _compute(self, op: ComputeOp, targets: list[Buffer], fixed: Axis | None = None, start: int = 0) -> Stmt:
        """The loop nest of a computation. Inside a scan, `fixed` is the time axis: its loop is made by the caller."""
        # A sum over nothing is its identity: no iteration would run the init, so it becomes the body.
        empty = any(const_value(axis.domain.extent) == 0 for axis in op.reduce_axis)
        axes = op.axis if empty else (*op.axis, *op.reduce_axis)
        mapping: dict[Var, PrimExpr] = {}
        iters: list[BlockIter] = []
        for axis in axes:
            variable = Var(f"v_{axis.name}")
            kind = axis.kind
            domain = axis.domain
            if axis is fixed:
                kind = IterKind.OPAQUE
                domain = Range(const(start), domain.extent - start)
            iters.append(BlockIter(variable, domain, kind, axis.var))
            mapping[axis.var] = variable
        indices = tuple(item.var for item in iters[: len(op.axis)])
        init, body = (self._identity if empty else self._body)(op, targets, indices, mapping)
        reads = _reads(body, init, targets if op.reduce_axis else [])
        writes = tuple(BufferRegion.point(target, indices) for target in targets)
        name = self.blocks[op] = _unique(op.name, self.names)
        block = Block(name, tuple(iters), reads, writes, body, init, annotations=dict(op.notes))
        result: Stmt = block
        for axis in reversed(axes):
            if axis is not fixed:
                result = For(axis.var, axis.domain.min, axis.domain.extent, LoopKind.SERIAL, result)
        return result

    def _identity(
        self, op: ComputeOp, targets: list[Buffer], indices: tuple[PrimExpr, ...], mapping: dict[Var, PrimExpr]
    ) -> tuple[Stmt | None, Stmt]:
        reduce = op.body[0]
        assert isinstance(reduce, Reduce)
        return None, _stores(targets, indices, [self._lower(value, mapping) for value in reduce.reducer.identity])

    def _body(
        self, op: ComputeOp, targets: list[Buffer], indices: tuple[PrimExpr, ...], mapping: dict[Var, PrimExpr]
    ) -> tuple[Stmt | None, Stmt]:
        if not isinstance(op.body[0], Reduce):
            return None, _held_stores(targets, indices, [self._lower(value, mapping) for value in op.body])
        reduce = op.body[0]
        reducer = reduce.reducer
        # Both may speak of axes: the greatest of a row's own number and its elements, say.
        identities = [self._lower(value, mapping) for value in reducer.identity]
        init = _stores(targets, indices, identities)
        condition = self._lower(reduce.condition, mapping)
        combine: dict[Var, PrimExpr] = {}
        for variable, target in zip(reducer.left, targets, strict=True):
            combine[variable] = BufferLoad(target, indices)
        for variable, source, identity in zip(reducer.right, reduce.sources, identities, strict=True):
            combine[variable] = select(condition, self._lower(source, mapping), identity)
        results = [substitute(self._lower(value, mapping), combine) for value in reducer.results]
        return init, _held_stores(targets, indices, results)

    def _scan(self, op: ScanOp) -> Stmt:
        """Rows of `init` first, then a serial loop over time around everything that depends on the state."""
        for state, output in zip(op.state, op.outputs, strict=True):
            self.buffers[state] = self.buffers[output]
        before: list[Stmt] = []
        rows = max(const_value(first.shape[0]) or 0 for first in op.init)
        for first, output in zip(op.init, op.outputs, strict=True):
            before.append(self._copy(self.buffers[first], self.buffers[output], f"{op.name}_init"))
        time = Var("t")
        steps: list[Stmt] = []
        results = dict(zip(op.update, op.outputs, strict=True))
        for item in op.steps:
            targets = []
            for tensor in item.outputs:
                if tensor in results:
                    self.buffers[tensor] = self.buffers[results[tensor]]
                else:
                    self.allocations.append(self._buffer(tensor))
                targets.append(self.buffers[tensor])
            nest = self._compute(item, targets, fixed=item.axis[0], start=rows)
            steps.append(substitute(nest, {item.axis[0].var: time}))
        extent = op.outputs[0].shape[0] - rows
        loop = For(time, const(rows), extent, LoopKind.SERIAL, seq(*steps))
        return seq(*before, loop)

    def _copy(self, source: Buffer, target: Buffer, name: str) -> Stmt:
        loops = [Var(f"i{n}") for n in range(source.ndim)]
        iters = tuple(
            BlockIter(Var(f"v_i{n}"), Range(ZERO, dim), IterKind.SPATIAL, loop)
            for n, (dim, loop) in enumerate(zip(source.shape, loops, strict=True))
        )
        indices = tuple(item.var for item in iters)
        block = Block(
            _unique(name, self.names),
            iters,
            (BufferRegion.point(source, indices),),
            (BufferRegion.point(target, indices),),
            BufferStore(target, indices, BufferLoad(source, indices)),
        )
        result: Stmt = block
        for loop, dim in zip(reversed(loops), reversed(source.shape), strict=True):
            result = For(loop, ZERO, dim, LoopKind.SERIAL, result)
        return result

    def _rows(self, op: ExternOp, inputs: list[Buffer], outputs: list[Buffer]) -> Stmt:
        """Loops around the statement that writes one row."""
        iters = tuple(BlockIter(Var(f"v_{axis.name}"), axis.domain, axis.kind, axis.var) for axis in op.axis)
        rows = iter(iters)
        rank = len(iters) + len(op.along)
        place: tuple[PrimExpr, ...] = tuple(ZERO if n in op.along else next(rows).var for n in range(rank))
        writes = []
        for buffer in outputs:
            dims = enumerate(zip(place, buffer.shape, strict=True))
            region = (Range(ZERO, dim) if n in op.along else Range(index, const(1)) for n, (index, dim) in dims)
            writes.append(BufferRegion(buffer, tuple(region)))
        body = op.build(inputs, outputs, place)
        if not isinstance(body, Stmt):
            raise UserError(f"te.extern_rows {op.name}: the function must give a statement, not {body!r}")
        name = self.blocks[op] = _unique(op.name, self.names)
        body = self._named_apart(body)
        own = [region for region in writes if _loads(body, region.buffer)]
        reads = (*(buffer.full_region() for buffer in inputs), *own)
        result: Stmt = Block(name, iters, reads, tuple(writes), body, annotations=ROWS.entry(True) | KEPT.entry(True))
        for axis in reversed(op.axis):
            result = For(axis.var, axis.domain.min, axis.domain.extent, LoopKind.SERIAL, result)
        return result

    def _extern(self, op: ExternOp) -> Stmt:
        inputs = [self.buffers[tensor] for tensor in op.inputs]
        outputs = [self.buffers[tensor] for tensor in op.outputs]
        if op.along:
            return self._rows(op, inputs, outputs)
        body = op.build(inputs, outputs)
        if isinstance(body, PrimExpr):
            body = Evaluate(as_expr(body) if body.dtype is INT32 else body)
        if not isinstance(body, Stmt):
            raise UserError(f"te.extern {op.name}: the function must give a statement or a call, not {body!r}")
        if isinstance(body, Block) and body.name == "root" and not body.iters:
            return self._joined(op, body)
        name = self.blocks[op] = _unique(op.name, self.names)
        body = self._named_apart(body)
        read = [*inputs, *(buffer for buffer in outputs if _loads(body, buffer))]
        return Block(
            name,
            (),
            tuple(buffer.full_region() for buffer in read),
            tuple(buffer.full_region() for buffer in outputs),
            body,
        )

    def _joined(self, op: ExternOp, root: Block) -> Stmt:
        """The statements of a whole program, whose memory and blocks become those of this one: schedules see them."""
        own = {item: item.replace(name=_unique(item.name, self.buffer_names)) for item in root.allocations}
        self.allocations.extend(own.values())
        body = self._named_apart(replace_buffers(root.body, own))
        blocks = find_all(body, Block)
        self.blocks[op] = blocks[-1].name if blocks else op.name
        return body

    def _named_apart(self, body: Stmt) -> Stmt:
        """A statement whose blocks have names of their own: an operation may be in a program twice."""

        def rename(item: Node) -> Node | None:
            return item.replace(name=_unique(item.name, self.names)) if isinstance(item, Block) else None

        return transform(body, rename)


def _loads(stmt: Stmt, buffer: Buffer) -> bool:
    """Whether a statement reads a buffer."""
    return any(load.buffer is buffer for load in find_all(stmt, BufferLoad))


def _held_stores(targets: Sequence[Buffer], indices: tuple[PrimExpr, ...], values: Sequence[PrimExpr]) -> Stmt:
    """Stores of values that are all computed before the first is stored: each may depend on what all replace."""
    if len(values) == 1:
        return BufferStore(targets[0], indices, values[0])
    held = [Var(f"{target.name}_next", target.dtype) for target in targets]
    body = _stores(targets, indices, held)
    for variable, value in zip(reversed(held), reversed(values), strict=True):
        body = LetStmt(variable, value, body)
    return body


def _stores(targets: Sequence[Buffer], indices: tuple[PrimExpr, ...], values: Sequence[PrimExpr]) -> Stmt:
    return seq(*(BufferStore(target, indices, value) for target, value in zip(targets, values, strict=True)))


def _reads(body: Stmt, init: Stmt | None, accumulators: list[Buffer]) -> tuple[BufferRegion, ...]:
    """Points read by a block's body, one region for each distinct access; accumulators of a reduction are left out."""
    found: dict[int, BufferRegion] = {}
    for statement in (body, init):
        if statement is None:
            continue
        for item in pre_order(statement):
            if isinstance(item, BufferLoad) and item.buffer not in accumulators:
                found.setdefault(id(item), BufferRegion.point(item.buffer, item.indices))
    return tuple(found.values())


def _unique(name: str, taken: set[str]) -> str:
    candidate = name
    number = 1
    while candidate in taken:
        candidate = f"{name}_{number}"
        number += 1
    taken.add(candidate)
    return candidate
