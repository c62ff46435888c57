"""The loops of GEMM and ALU: one step in a cycle, an instruction straight after the one before it."""

from __future__ import annotations

from typing import Any

from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.hardware.fields import Fields, opcode_of
from tilewright.accel.hardware.hdl import hdl
from tilewright.accel.instructions import Alu, Gemm, MicroOp, Opcode, Overwrite, layout


class Offset:
    """What two loops add to an index: steps times factors, kept by additions."""

    def __init__(self, name: str, bits: int) -> None:
        self.value = hdl.Signal(bits, name=f"{name}_offset")
        self.outer, self.inner = hdl.Signal(bits, name=f"{name}_outer"), hdl.Signal(bits, name=f"{name}_inner")
        self._row = hdl.Signal(bits, name=f"{name}_row")

    def begin(self, outer: Any, inner: Any) -> list[Any]:
        """Assignments that begin an instruction."""
        return [self.value.eq(0), self._row.eq(0), self.outer.eq(outer), self.inner.eq(inner)]

    def step_inner(self) -> list[Any]:
        """Assignments for the next inner step."""
        return [self.value.eq(self.value + self.inner)]

    def step_outer(self) -> list[Any]:
        """Assignments for the next outer step."""
        return [self.value.eq(self._row + self.outer), self._row.eq(self._row + self.outer)]


class Steps:
    """The instruction that compute is at, and its next step. `take` begins the instruction that `word` holds."""

    def __init__(self, config: AccelConfig, word: Any) -> None:
        self.take = hdl.Signal()
        self.valid = hdl.Signal()
        """Whether there is a step in this cycle."""
        self.last = hdl.Signal()
        self.is_empty = hdl.Signal()
        """The instruction has no steps; this one only carries its tokens."""
        self.micro_op = hdl.Signal(config.index_bits[Memory.UOP] + 1)
        self.is_source = hdl.Signal()
        """The step reads ALU's source accumulator; the next reads and writes the destination."""
        self.replaces = hdl.Signal()
        """The step's product replaces the accumulator."""
        source_bits = layout(MicroOp, config)["inp"][1]
        self.acc = Offset("acc", config.index_bits[Memory.ACC])
        self.source = Offset("source", source_bits)
        self.wgt = Offset("wgt", config.index_bits[Memory.WGT])
        self.is_alu, self.use_imm, self.reset = hdl.Signal(), hdl.Signal(), hdl.Signal()
        self.op, self.imm = hdl.Signal(4), hdl.Signal(hdl.signed(16))
        self.push_prev, self.push_next = hdl.Signal(), hdl.Signal()
        self._overwrite = hdl.Signal(3)
        self._begin, self._end = hdl.Signal.like(self.micro_op), hdl.Signal.like(self.micro_op)
        gemm, alu = Fields(word, Gemm, config), Fields(word, Alu, config)
        self._outer, self._inner = hdl.Signal(len(gemm.outer)), hdl.Signal(len(gemm.inner))
        self._outer_step, self._inner_step = hdl.Signal.like(self._outer), hdl.Signal.like(self._inner)
        self.module = hdl.Module()
        self._advance()
        self._load(gemm, alu, opcode_of(word) == Opcode.ALU)

    def _advance(self) -> None:
        m = self.module
        phase_ends = ~self.is_source
        micro_op_ends = self.micro_op + 1 == self._end
        inner_ends = self._inner_step + 1 == self._inner
        outer_ends = self._outer_step + 1 == self._outer
        overwrites = {
            Overwrite.ALWAYS: hdl.Const(1),
            Overwrite.OUTER: self._outer_step == 0,
            Overwrite.INNER: self._inner_step == 0,
            Overwrite.UOP: self.micro_op == self._begin,
        }
        m.d.comb += self.last.eq(self.is_empty | (phase_ends & micro_op_ends & inner_ends & outer_ends))
        with m.Switch(self._overwrite):
            for mode, holds in overwrites.items():
                with m.Case(int(mode)):
                    m.d.comb += self.replaces.eq(holds)
        offsets = (self.acc, self.source, self.wgt)
        with m.If(self.valid & self.last):
            m.d.sync += self.valid.eq(0)
        with m.Elif(self.valid & ~phase_ends):
            m.d.sync += self.is_source.eq(0)
        with m.Elif(self.valid):
            m.d.sync += [self.micro_op.eq(self.micro_op + 1), self.is_source.eq(self.is_alu & ~self.use_imm)]
            with m.If(micro_op_ends):
                m.d.sync += [self.micro_op.eq(self._begin), self._inner_step.eq(self._inner_step + 1)]
                m.d.sync += [item for offset in offsets for item in offset.step_inner()]
                with m.If(inner_ends):
                    m.d.sync += [self._inner_step.eq(0), self._outer_step.eq(self._outer_step + 1)]
                    m.d.sync += [item for offset in offsets for item in offset.step_outer()]

    def _load(self, gemm: Fields, alu: Fields, is_alu: Any) -> None:
        m = self.module

        def of(name: str, alu_name: str | None = None) -> Any:
            return hdl.Mux(is_alu, getattr(alu, alu_name or name), getattr(gemm, name))

        with m.If(self.take):
            m.d.sync += [
                self.valid.eq(1),
                self.is_empty.eq((of("outer") == 0) | (of("inner") == 0) | (of("uop_begin") >= of("uop_end"))),
                self.micro_op.eq(of("uop_begin")),
                self._begin.eq(of("uop_begin")),
                self._end.eq(of("uop_end")),
                self._outer.eq(of("outer")),
                self._inner.eq(of("inner")),
                self._outer_step.eq(0),
                self._inner_step.eq(0),
                *self.acc.begin(of("acc_outer", "dst_outer"), of("acc_inner", "dst_inner")),
                *self.source.begin(of("inp_outer", "src_outer"), of("inp_inner", "src_inner")),
                *self.wgt.begin(gemm.wgt_outer, gemm.wgt_inner),
                self.is_alu.eq(is_alu),
                self.is_source.eq(is_alu & ~alu.use_imm),
                self.use_imm.eq(alu.use_imm),
                self.op.eq(alu.op),
                self.imm.eq(alu.imm),
                self.reset.eq(gemm.reset & ~is_alu),
                self._overwrite.eq(gemm.overwrite),
                self.push_prev.eq(gemm.push_prev),
                self.push_next.eq(gemm.push_next),
            ]
