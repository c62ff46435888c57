"""A lowered program runs once, at compile time: its calls of instructions become steps of an instruction stream.

All loops are static. On-chip buffers get places in their memories where they are allocated; a reset of accumulators
that products fill right after it is a part of these: their first product overwrites.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.encoding import field_limits
from tilewright.accel.instructions import Alu, Epi, Gemm, Instruction, Load, Store
from tilewright.backends.accel.micro_kernels import Loop, MicroKernel, micro_kernel
from tilewright.backends.accel.steps import Argument, Indices, Step, Touched, loop_places
from tilewright.ir.expr import Call, IntImm, PrimExpr, StringImm, Var
from tilewright.support.errors import CompilerBug, UnsupportedError, UserError
from tilewright.tir import accel_instructions as accel
from tilewright.tir.analysis.index_values import evaluate
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.passes.split_host_device import buffer_bytes
from tilewright.tir.stmt import Allocate, BufferStore, Evaluate, For, IfThenElse, SeqStmt, Stmt

MEMORIES: Final = {
    accel.INP: Memory.INP,
    accel.WGT: Memory.WGT,
    accel.ACC: Memory.ACC,
    accel.OUT: Memory.OUT,
    accel.PAR: Memory.PAR,
}
MOST_STEPS: Final = 1 << 20
"""Instructions of one kernel beyond which something is wrong with its schedule."""


def emit_steps(func: PrimFunc, config: AccelConfig) -> list[Step]:
    """The instructions of a lowered kernel, in order."""
    emitter = _Emitter(func, config)
    emitter.stmt(func.body)
    return emitter.finished()


class _Emitter:
    def __init__(self, func: PrimFunc, config: AccelConfig) -> None:
        self._config = config
        self._where = f"function {func.name}"
        self._arguments = {param: number for number, param in enumerate(func.params) if isinstance(param, Buffer)}
        self._values: dict[Var, np.int64] = {}
        self._bases: dict[Buffer, int] = {}
        self._used = dict.fromkeys(Memory, 0)
        self._steps: list[Step] = []
        self._resets: dict[int, Indices] = {}
        """Resets that nothing has touched yet, by their numbers, with their accumulators."""
        self._dropped: set[int] = set()
        self._instructions: dict[str, Callable[[Call], None]] = {
            accel.LOAD: self._load,
            accel.STORE: self._store,
            accel.RESET: self._reset,
            accel.GEMM: self._gemm,
            accel.ALU: self._alu,
            accel.ALU_IMMEDIATE: self._alu,
            accel.EPI: self._epi,
            accel.EPI_RESIDUAL: self._epi,
        }

    def finished(self) -> list[Step]:
        """The steps, without resets that products made needless."""
        return [step for number, step in enumerate(self._steps) if number not in self._dropped]

    # ---------------------------------------------------------------- statements

    def stmt(self, stmt: Stmt) -> None:
        """Execute a statement."""
        if isinstance(stmt, SeqStmt):
            for item in stmt.stmts:
                self.stmt(item)
        elif isinstance(stmt, For):
            first, extent = self._number(stmt.min), self._number(stmt.extent)
            for value in range(first, first + extent):
                self._values[stmt.var] = np.int64(value)
                self.stmt(stmt.body)
            self._values.pop(stmt.var, None)
        elif isinstance(stmt, IfThenElse):
            if self._number(stmt.condition):
                self.stmt(stmt.then_body)
            elif stmt.else_body is not None:
                self.stmt(stmt.else_body)
        elif isinstance(stmt, Allocate):
            self._allocate(stmt)
        elif isinstance(stmt, Evaluate) and isinstance(stmt.value, Call) and stmt.value.name in self._instructions:
            self._instructions[stmt.value.name](stmt.value)
        elif not (isinstance(stmt, Evaluate) and isinstance(stmt.value, IntImm)):
            raise UnsupportedError(f"the accelerator has no instruction for {_described(stmt)}", where=self._where)

    def _allocate(self, stmt: Allocate) -> None:
        buffer, memory = stmt.buffer, MEMORIES.get(stmt.buffer.scope)
        size = buffer_bytes(buffer)
        if memory is None or size is None:
            raise UnsupportedError(
                f"buffer {buffer.name} of scope {buffer.scope} has no place on chip", where=self._where
            )
        element = self._config.element_bits[memory] // 8
        begin, count = self._used[memory], -(-size // element)
        if begin + count > self._config.depth[memory]:
            raise UserError(
                f"{buffer.name} needs {count} tensors of {memory.name}, which has {self._config.depth[memory]} "
                f"and {begin} of them in use",
                where=self._where,
                hint="use smaller tiles",
            )
        self._bases[buffer], self._used[memory] = begin, begin + count
        self.stmt(stmt.body)
        self._used[memory] = begin

    def _number(self, expr: PrimExpr) -> int:
        if isinstance(expr, IntImm):
            return expr.value
        return int(evaluate(expr, self._values))  # type: ignore[arg-type]

    def _numbers(self, call: Call, start: int) -> list[int]:
        return [self._number(arg) for arg in call.args[start:]]

    # ---------------------------------------------------------------- addresses

    def _pointer(self, call: Call, number: int) -> tuple[Buffer, int]:
        """What an argument addresses: a buffer, and an element of it."""
        pointer = call.args[number]
        assert isinstance(pointer, Call) and isinstance(pointer.args[1], BufferLoad)
        first = pointer.args[1]
        return first.buffer, self._number(first.indices[0])

    def _on_chip(self, call: Call, number: int) -> tuple[Memory, int]:
        """The memory and the index of its tensor that an argument addresses."""
        buffer, element = self._pointer(call, number)
        memory = MEMORIES.get(buffer.scope)
        if memory is None or buffer not in self._bases:
            raise UnsupportedError(f"{call.name}: {buffer.name} is not in an on-chip memory", where=self._where)
        lanes = self._config.element_bits[memory] // buffer.dtype.bits
        if element % lanes:
            raise CompilerBug(f"{call.name}: element {element} of {buffer.name} begins no tensor")
        return memory, self._bases[buffer] + element // lanes

    def _in_dram(self, call: Call, number: int) -> tuple[int, int]:
        """The argument of the kernel, and the word of the bus in it."""
        buffer, element = self._pointer(call, number)
        argument = self._arguments.get(buffer)
        if argument is None:
            raise UnsupportedError(f"{call.name}: {buffer.name} is no argument of the kernel", where=self._where)
        word, rest = divmod(element * buffer.dtype.itemsize, self._config.bus_bytes)
        if rest:
            raise UnsupportedError(f"{call.name}: {buffer.name} is not read in words of the bus", where=self._where)
        return argument, word

    def _words(self, memory: Memory, word: int, y_size: int, x_size: int, y_stride: int) -> Indices:
        per_element = self._config.dma_bytes[memory] // self._config.bus_bytes
        return loop_places(word, ((y_size, y_stride * per_element), (x_size * per_element, 1)))

    def _field(self, kind: type[Instruction], name: str, value: int, what: str) -> int:
        """A value for a field of an instruction, whose bits must hold it."""
        least, most = field_limits(kind, name, self._config)
        if not least <= value <= most:
            raise UnsupportedError(f"{what} is {value}, instructions have {least} to {most}", where=self._where)
        return value

    # ---------------------------------------------------------------- copies

    def _rows(self, kind: type[Load] | type[Store], y_size: int, x_size: int, y_stride: int) -> dict[str, Any]:
        """The fields of a copy for its rows in DRAM."""
        return {
            "y_size": self._field(kind, "y_size", y_size, "rows of a copy"),
            "x_size": self._field(kind, "x_size", x_size, "the length of a row"),
            "y_stride": self._field(kind, "y_stride", y_stride if y_size > 1 else 0, "the distance of rows"),
        }

    def _load(self, call: Call) -> None:
        memory, place = self._on_chip(call, 0)
        _, y_size, x_size, y_stride, *padding, pad = self._numbers(call, 2)
        empty = not y_size or not x_size
        argument, word = (0, 0) if empty else self._in_dram(call, 1)
        names = ("y_before", "y_after", "x_before", "x_after")
        frame: dict[str, Any] = {
            name: self._field(Load, name, amount, "padding") for name, amount in zip(names, padding, strict=True)
        }
        y_before, y_after, x_before, x_after = frame.values()
        rows, columns = y_before + y_size + y_after, x_before + x_size + x_after
        self._add(
            Load(
                memory=memory,
                sram=place,
                dram=word,
                **self._rows(Load, y_size, x_size, y_stride),
                **frame,
                pad=pad,
            ),
            reads=[] if empty else [Touched(Argument(argument), self._words(memory, word, y_size, x_size, y_stride))],
            writes=[Touched(memory, np.arange(place, place + rows * columns, dtype=np.int64))],
            argument=None if empty else argument,
        )

    def _store(self, call: Call) -> None:
        memory, place = self._on_chip(call, 1)
        argument, word = self._in_dram(call, 0)
        _, y_size, x_size, y_stride = self._numbers(call, 2)
        self._add(
            Store(
                memory=memory,
                sram=place,
                dram=word,
                **self._rows(Store, y_size, x_size, y_stride),
            ),
            reads=[Touched(memory, np.arange(place, place + y_size * x_size, dtype=np.int64))],
            writes=[Touched(Argument(argument), self._words(memory, word, y_size, x_size, y_stride))],
            argument=argument,
        )

    # ---------------------------------------------------------------- compute

    def _loops(self, call: Call, pointers: int) -> list[Loop]:
        numbers = self._numbers(call, accel.FIXED[call.name])
        width = pointers + 1
        return [Loop(numbers[at], tuple(numbers[at + 1 : at + width])) for at in range(0, len(numbers), width)]

    def _reset(self, call: Call) -> None:
        (memory, place), loops = self._on_chip(call, 0), self._loops(call, 1)
        kernel = micro_kernel((place, 0, 0), [Loop(loop.extent, (loop.steps[0], 0, 0)) for loop in loops])
        places = kernel.places(0)
        self._forget(places)
        self._resets[len(self._steps)] = places
        instruction = Gemm(reset=True, uop_end=len(kernel.micro_ops), **kernel.fields(_GEMM))
        self._add(instruction, writes=[Touched(memory, places)], micro_ops=kernel)

    def _forget(self, places: Indices) -> None:
        """Resets whose accumulators are used are needed."""
        for number, other in list(self._resets.items()):
            if np.isin(places, other).any():
                del self._resets[number]

    def _begins(self, places: Indices) -> bool:
        """Whether products to these accumulators are the first since a reset of just these; it is dropped then."""
        for number, other in self._resets.items():
            if np.array_equal(other, places):
                del self._resets[number]
                self._dropped.add(number)
                return True
        self._forget(places)
        return False

    def _gemm(self, call: Call) -> None:
        places = tuple(self._on_chip(call, number)[1] for number in range(3))
        kernel = micro_kernel((places[0], places[1], places[2]), self._loops(call, 3))
        acc = Touched(Memory.ACC, kernel.places(0))
        reads = [Touched(Memory.INP, kernel.places(1)), Touched(Memory.WGT, kernel.places(2))]
        begins = self._begins(acc.places)
        for begin, end, overwrite in kernel.ranges(begins):
            instruction = Gemm(overwrite=overwrite, uop_begin=begin, uop_end=end, **kernel.fields(_GEMM))
            self._add(instruction, reads=[*reads, acc], writes=[acc], micro_ops=kernel)

    def _alu(self, call: Call) -> None:
        operation = call.args[0]
        assert isinstance(operation, StringImm)
        immediate = call.name == accel.ALU_IMMEDIATE
        target = self._on_chip(call, 1)[1]
        source = 0 if immediate else self._on_chip(call, 2)[1]
        loops = [Loop(loop.extent, (*loop.steps, 0, 0)[:3]) for loop in self._loops(call, 1 if immediate else 2)]
        kernel = micro_kernel((target, source, 0), loops)
        written = Touched(Memory.ACC, kernel.places(0))
        reads = [written] if immediate else [written, Touched(Memory.ACC, kernel.places(1))]
        for item in reads:
            self._forget(item.places)
        number = self._number(call.args[2]) if immediate else 0
        instruction = Alu(
            op=accel.OPERATIONS[operation.value],
            use_imm=immediate,
            imm=self._field(Alu, "imm", number, "the immediate of ALU"),
            uop_end=len(kernel.micro_ops),
            **kernel.fields(_ALU),
        )
        self._add(instruction, reads=reads, writes=[written], micro_ops=kernel)

    def _epi(self, call: Call) -> None:
        residual = call.name == accel.EPI_RESIDUAL
        places = [self._on_chip(call, number)[1] for number in range(4 if residual else 3)]
        out, acc, par = places[0], places[-2], places[-1]
        if residual and places[1] != out:
            raise CompilerBug("a residual does not lie where its result goes")
        _, _, scale, offset, low, high = self._numbers(call, len(places))[:6]
        loops = self._loops(call, len(places))
        for moved, outer, inner in _epi_loops(loops):
            steps = (moved[0] + out, moved[-2] + acc, moved[-1] + par)
            pairs = [((outer.extent, outer.steps[n]), (inner.extent, inner.steps[n])) for n in (0, -2, -1)]
            results, sums, words = (
                Touched(memory, loop_places(start, pair))
                for memory, start, pair in zip((Memory.OUT, Memory.ACC, Memory.PAR), steps, pairs, strict=True)
            )
            self._forget(sums.places)
            instruction = Epi(
                scale=bool(scale),
                residual=residual,
                offset=offset,
                low=low,
                high=high,
                outer=self._field(Epi, "outer", outer.extent, "channels of EPI"),
                inner=self._field(Epi, "inner", inner.extent, "tensors of EPI"),
                out=steps[0],
                acc=steps[1],
                par=steps[2],
                out_outer=outer.steps[0],
                out_inner=inner.steps[0],
                acc_outer=outer.steps[-2],
                acc_inner=inner.steps[-2],
            )
            reads = [sums, words, *([results] if residual else [])]
            self._add(instruction, reads=reads, writes=[results])

    def _add(
        self,
        instruction: Load | Store | Gemm | Alu | Epi,
        *,
        reads: Sequence[Touched] = (),
        writes: Sequence[Touched] = (),
        argument: int | None = None,
        micro_ops: MicroKernel | None = None,
    ) -> None:
        if len(self._steps) >= MOST_STEPS:
            raise UnsupportedError(f"the kernel has more than {MOST_STEPS} instructions", where=self._where)
        kernel = () if micro_ops is None else micro_ops.micro_ops
        loops = tuple((var.name, int(value)) for var, value in self._values.items())
        self._steps.append(Step(instruction, tuple(reads), tuple(writes), argument, kernel, loops))


def _described(stmt: Stmt) -> str:
    if isinstance(stmt, BufferStore):
        return f"what is stored to {stmt.buffer.name}"
    if isinstance(stmt, Evaluate) and isinstance(stmt.value, Call):
        return f"the call of {stmt.value.name}"
    return f"a part of this kernel ({type(stmt).__name__})"


_GEMM: Final = ("acc", "inp", "wgt")
_ALU: Final = ("dst", "src")


def _epi_loops(loops: list[Loop]) -> list[tuple[tuple[int, ...], Loop, Loop]]:
    """Where each EPI begins (steps of its addresses), its loop over channels and its loop inside one."""
    width = len(loops[0].steps) if loops else 4
    nothing = Loop(1, (0,) * width)
    channels = next((loop for loop in loops if loop.steps[-1] == 1), nothing)
    same = [loop for loop in loops if loop.steps[-1] == 0]
    inner = max(same, key=lambda loop: loop.extent, default=nothing)
    rest = [loop for loop in loops if loop is not channels and loop is not inner]
    starts: list[tuple[int, ...]] = [(0,) * width]
    for loop in rest:
        starts = [
            tuple(at + number * step for at, step in zip(start, loop.steps, strict=True))
            for start in starts
            for number in range(loop.extent)
        ]
    return [(start, channels, inner) for start in starts]
